// Package metrics writes what a run measures: JSON lines, TensorBoard event
// files and Prometheus gauges, behind one small interface. What is written for a
// step is on disk when Write returns. Opening the files of a run that resumes
// cuts off what lies behind the checkpoint's step, so that nothing is counted
// twice.
package metrics

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"os"
	"slices"
	"time"
)

// Record is what one step measured.
type Record struct {
	Step   int64
	At     time.Time
	Values map[string]float64 // names such as "train/reward_mean"
}

// Sink takes records in order of steps.
type Sink interface {
	Write(Record) error
	Close() error
}

// Multi writes to all of its sinks.
type Multi []Sink

// Write gives the record to every sink and returns the errors joined.
func (m Multi) Write(r Record) error {
	var errs []error
	for _, s := range m {
		errs = append(errs, s.Write(r))
	}
	return errors.Join(errs...)
}

// Close closes every sink and returns the errors joined.
func (m Multi) Close() error {
	var errs []error
	for _, s := range m {
		errs = append(errs, s.Close())
	}
	return errors.Join(errs...)
}

// Lines is a file of JSON objects, one a line, each with a "step". Lines of one
// step are written together.
type Lines struct {
	f *os.File
	// Last is the step of the last line that was kept; -1: none.
	Last int64
	// Cut is how many bytes were cut off.
	Cut int64
}

// OpenLines opens or creates a file and cuts off what lies behind step keep: all
// lines from the first one whose step is larger, or that is broken. keep < 0
// empties the file.
func OpenLines(path string, keep int64) (*Lines, error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o644)
	if err != nil {
		return nil, fmt.Errorf("opening %s: %w", path, err)
	}
	end, last, err := keptLines(f, keep)
	var was int64
	if err == nil {
		was, err = f.Seek(0, io.SeekEnd)
	}
	if err == nil {
		err = f.Truncate(end)
	}
	if err == nil {
		_, err = f.Seek(end, io.SeekStart)
	}
	if err != nil {
		f.Close()
		return nil, fmt.Errorf("cutting %s back to step %d: %w", path, keep, err)
	}
	return &Lines{f, last, was - end}, nil
}

func keptLines(r io.Reader, keep int64) (end, last int64, err error) {
	last = -1
	in := bufio.NewReaderSize(r, 1<<16)
	for keep >= 0 {
		line, err := in.ReadBytes('\n')
		if err == io.EOF {
			return end, last, nil // a line without its newline was cut off by a crash
		}
		if err != nil {
			return 0, last, err
		}
		var head struct {
			Step *int64 `json:"step"`
		}
		if json.Unmarshal(line, &head) != nil || head.Step == nil || *head.Step > keep {
			return end, last, nil
		}
		end, last = end+int64(len(line)), *head.Step
	}
	return end, last, nil
}

// Append writes the values, each as one line, in one write.
func (l *Lines) Append(values ...any) error {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	for _, v := range values {
		if err := enc.Encode(v); err != nil {
			return fmt.Errorf("writing a line of %s: %w", l.f.Name(), err)
		}
	}
	if _, err := l.f.Write(b.Bytes()); err != nil {
		return fmt.Errorf("writing %s: %w", l.f.Name(), err)
	}
	return nil
}

// Write appends a record: {"step":…,"time":…, then the values by name}. Values
// that are not finite are written as null.
func (l *Lines) Write(r Record) error {
	var b bytes.Buffer
	fmt.Fprintf(&b, `{"step":%d,"time":%q`, r.Step, r.At.UTC().Format(time.RFC3339Nano))
	for _, name := range slices.Sorted(maps.Keys(r.Values)) {
		v := r.Values[name]
		if math.IsNaN(v) || math.IsInf(v, 0) {
			fmt.Fprintf(&b, ",%q:null", name)
			continue
		}
		text, err := json.Marshal(v)
		if err != nil {
			return fmt.Errorf("writing %s: %w", name, err)
		}
		fmt.Fprintf(&b, ",%q:%s", name, text)
	}
	b.WriteString("}\n")
	if _, err := l.f.Write(b.Bytes()); err != nil {
		return fmt.Errorf("writing %s: %w", l.f.Name(), err)
	}
	return nil
}

// Close closes the file.
func (l *Lines) Close() error { return l.f.Close() }

package metrics

import (
	"bytes"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
)

var when = time.Unix(1_800_000_000, 5000)

func record(step int64) Record {
	return Record{Step: step, At: when, Values: map[string]float64{"train/reward": float64(step) / 4, "bad": math.NaN()}}
}

func TestResumeCutsOffWhatLiesBehindTheCheckpoint(t *testing.T) {
	for name, c := range map[string]struct {
		open func(dir string, keep int64) (Sink, error)
		file string
	}{
		"lines":       {func(dir string, keep int64) (Sink, error) { return OpenLines(filepath.Join(dir, "m.jsonl"), keep) }, "m.jsonl"},
		"TensorBoard": {func(dir string, keep int64) (Sink, error) { return OpenBoard(dir, keep, when) }, "*.fulgur"},
	} {
		t.Run(name, func(t *testing.T) {
			run := func(dir string, keep, from, to int64) []byte {
				s, err := c.open(dir, keep)
				if err != nil {
					t.Fatal(err)
				}
				for step := from; step <= to; step++ {
					if err := s.Write(record(step)); err != nil {
						t.Fatal(err)
					}
				}
				if err := s.Close(); err != nil {
					t.Fatal(err)
				}
				found, _ := filepath.Glob(filepath.Join(dir, c.file))
				if len(found) != 1 {
					t.Fatalf("files %v", found)
				}
				raw, err := os.ReadFile(found[0])
				if err != nil {
					t.Fatal(err)
				}
				return raw
			}
			want := run(t.TempDir(), -1, 1, 6)
			dir := t.TempDir()
			run(dir, -1, 1, 5)
			if got := run(dir, 3, 4, 6); !bytes.Equal(got, want) {
				t.Errorf("resumed at step 3: %d bytes, want %d", len(got), len(want))
			}
			// A crash left half a record.
			found, _ := filepath.Glob(filepath.Join(dir, c.file))
			if err := os.WriteFile(found[0], want[:len(want)-3], 0o644); err != nil {
				t.Fatal(err)
			}
			if got := run(dir, 6, 6, 6); !bytes.Equal(got, want) {
				t.Errorf("resumed on half a record: %d bytes, want %d", len(got), len(want))
			}
			if got := run(dir, -1, 1, 6); !bytes.Equal(got, want) {
				t.Error("started anew: the file differs")
			}
		})
	}
}

func TestLinesAreJSONWithNullForNaN(t *testing.T) {
	path := filepath.Join(t.TempDir(), "m.jsonl")
	l, err := OpenLines(path, -1)
	if err != nil {
		t.Fatal(err)
	}
	if err := l.Write(record(2)); err != nil {
		t.Fatal(err)
	}
	raw, _ := os.ReadFile(path)
	want := `{"step":2,"time":"2027-01-15T08:00:00.000005Z","bad":null,"train/reward":0.5}` + "\n"
	if diff := cmp.Diff(want, string(raw)); diff != "" {
		t.Error(diff)
	}
}

func TestEventFileIsTensorBoards(t *testing.T) {
	dir := t.TempDir()
	b, err := OpenBoard(dir, -1, time.Unix(0, 0))
	if err != nil {
		t.Fatal(err)
	}
	if err := b.Write(Record{Step: 1, At: time.Unix(0, 0), Values: map[string]float64{"a": 1}}); err != nil {
		t.Fatal(err)
	}
	found, _ := filepath.Glob(filepath.Join(dir, "*tfevents*"))
	raw, err := os.ReadFile(found[0])
	if err != nil {
		t.Fatal(err)
	}
	// The first record holds wall_time 0 (field 1) and file_version (field 3).
	first := append([]byte{0x09, 0, 0, 0, 0, 0, 0, 0, 0, 0x1a, 13}, "brain.Event:2"...)
	second := []byte{0x09, 0, 0, 0, 0, 0, 0, 0, 0, 0x10, 1, 0x2a, 10, 0x0a, 8, 0x0a, 1, 'a', 0x15, 0, 0, 0x80, 0x3f}
	// Every event file of TensorFlow begins with these twelve bytes.
	if want := []byte("\x18\x00\x00\x00\x00\x00\x00\x00\xa3\x7fK\""); !bytes.Equal(raw[:12], want) {
		t.Errorf("the file begins with %x, want %x", raw[:12], want)
	}
	at := 0
	for _, want := range [][]byte{first, second} {
		got := raw[at+12 : at+12+len(want)]
		if int(raw[at]) != len(want) || !bytes.Equal(got, want) {
			t.Errorf("record %x, want %x", got, want)
		}
		at += len(want) + 16
	}
	if at != len(raw) {
		t.Errorf("%d bytes, want %d", len(raw), at)
	}
}

func TestGaugesShowTheNewestRecord(t *testing.T) {
	reg := prometheus.NewRegistry()
	g, err := NewGauges(reg, "calc")
	if err != nil {
		t.Fatal(err)
	}
	if err := g.Write(record(8)); err != nil {
		t.Fatal(err)
	}
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	var text strings.Builder
	for _, f := range families {
		text.WriteString(f.String())
	}
	for _, want := range []string{"fulgur_trainer_step", "value:8", "train/reward", "value:2"} {
		if !strings.Contains(text.String(), want) {
			t.Errorf("no %s in %s", want, text.String())
		}
	}
	if err := g.Close(); err != nil {
		t.Fatal(err)
	}
	if families, _ = reg.Gather(); len(families) != 0 {
		t.Error("gauges stay registered")
	}
}

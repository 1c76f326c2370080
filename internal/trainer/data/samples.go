package data

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/parquet-go/parquet-go"

	"github.com/fulgur-rl/fulgur"
)

// LabelledSample is a sample with what its rollout was given, as sample files have
// it: JSONL, one object a line, or Parquet, one row each, zstd.
type LabelledSample struct {
	fulgur.Sample
	Step      int64    `json:"step"`
	Reward    *float64 `json:"reward"` // null: none
	Advantage float64  `json:"advantage"`
	Weight    float64  `json:"weight"` // of each trained token
}

// parquetSample is a row of a Parquet file. Lists of all tokens have one length.
type parquetSample struct {
	Rollout   string    `parquet:"rollout,dict"`
	Group     string    `parquet:"group,dict"`
	Step      int64     `parquet:"step"`
	Reward    *float64  `parquet:"reward,optional"`
	Advantage float64   `parquet:"advantage"`
	Weight    float64   `parquet:"weight"`
	Tokens    []int32   `parquet:"tokens,list"`
	Mask      []bool    `parquet:"mask,list"`
	LogProbs  []float32 `parquet:"log_probs,list"`
	Versions  []int64   `parquet:"versions,list"`
	Calls     []string  `parquet:"calls,list"`
	// Experts of all tokens behind one another, Width for each; -1 where a token has none.
	Experts []int32 `parquet:"routed_experts,list"`
	Width   int32   `parquet:"routed_experts_width"`
}

// SampleWriter writes samples to a file.
type SampleWriter struct {
	file    io.WriteCloser
	buf     *bufio.Writer
	lines   *json.Encoder
	parquet *parquet.GenericWriter[parquetSample]
}

// CreateSamples makes a file; its format is its name's end: .jsonl or .parquet.
func CreateSamples(path string) (*SampleWriter, error) {
	kind, err := sampleKind(path)
	if err != nil {
		return nil, err
	}
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
	if errors.Is(err, os.ErrExist) {
		return nil, fulgur.E(fulgur.KindConflict, "write samples", path+" is there already: choose another name", nil)
	}
	if err != nil {
		return nil, fulgur.E(fulgur.KindExhausted, "write samples", "choose a place that can be written to", err)
	}
	w := &SampleWriter{file: f, buf: bufio.NewWriterSize(f, 1<<16)}
	if kind == ".parquet" {
		w.parquet = parquet.NewGenericWriter[parquetSample](w.buf, parquet.Compression(&parquet.Zstd))
	} else {
		w.lines = json.NewEncoder(w.buf)
	}
	return w, nil
}

func sampleKind(path string) (string, error) {
	switch kind := strings.ToLower(filepath.Ext(path)); kind {
	case ".jsonl", ".parquet":
		return kind, nil
	default:
		return "", fulgur.E(fulgur.KindInvalid, "open samples", fmt.Sprintf("%s: a file of samples ends in .jsonl or .parquet", path), nil)
	}
}

// Write appends a sample.
func (w *SampleWriter) Write(s LabelledSample) error {
	if w.lines != nil {
		return w.lines.Encode(s)
	}
	_, err := w.parquet.Write([]parquetSample{flat(s)})
	return err
}

// Close ends the file; without it the file is not whole.
func (w *SampleWriter) Close() error {
	var err error
	if w.parquet != nil {
		err = w.parquet.Close()
	}
	return errors.Join(err, w.buf.Flush(), w.file.Close())
}

func flat(s LabelledSample) parquetSample {
	p := parquetSample{Rollout: string(s.Rollout), Group: string(s.Group), Step: s.Step, Reward: s.Reward, Advantage: s.Advantage, Weight: s.Weight,
		Tokens: s.Tokens, Mask: s.Mask, LogProbs: s.LogProbs}
	for _, v := range s.Versions {
		p.Versions = append(p.Versions, int64(v))
	}
	for _, c := range s.Calls {
		p.Calls = append(p.Calls, string(c))
	}
	for _, row := range s.Experts {
		p.Width = max(p.Width, int32(len(row)))
	}
	if p.Width > 0 {
		for _, row := range s.Experts {
			for k := range int(p.Width) {
				x := int32(-1)
				if k < len(row) {
					x = int32(row[k])
				}
				p.Experts = append(p.Experts, x)
			}
		}
	}
	return p
}

func (p *parquetSample) sample() LabelledSample {
	s := LabelledSample{Step: p.Step, Reward: p.Reward, Advantage: p.Advantage, Weight: p.Weight, Sample: fulgur.Sample{
		Rollout: fulgur.RolloutID(p.Rollout), Group: fulgur.GroupID(p.Group), Tokens: p.Tokens, Mask: p.Mask, LogProbs: p.LogProbs}}
	for _, v := range p.Versions {
		s.Versions = append(s.Versions, fulgur.PolicyVersion(v))
	}
	for _, c := range p.Calls {
		s.Calls = append(s.Calls, fulgur.CallID(c))
	}
	if w := int(p.Width); w > 0 {
		for row := range slices.Chunk(p.Experts, w) {
			if row[0] < 0 {
				s.Experts = append(s.Experts, nil)
				continue
			}
			out := make([]uint16, len(row))
			for k, x := range row {
				out[k] = uint16(x)
			}
			s.Experts = append(s.Experts, out)
		}
	}
	return s
}

// ReadSamples calls each with the samples of a file in order. A broken sample is an
// error of KindInvalid that names file, line (of Parquet: row), and what is wrong.
func ReadSamples(path string, each func(LabelledSample) error) error {
	kind, err := sampleKind(path)
	if err != nil {
		return err
	}
	f, err := os.Open(path)
	if err != nil {
		return fulgur.E(fulgur.KindNotFound, "read samples "+path, "the file can't be read; check the path", err)
	}
	defer f.Close()
	n := 0
	take := func(s LabelledSample, err error) error {
		n++
		if err == nil {
			err = checkSample(&s)
		}
		if err != nil {
			return fulgur.E(fulgur.KindInvalid, "read samples "+path, fmt.Sprintf("sample %d: %s", n, plain(err)), nil)
		}
		return each(s)
	}
	if kind == ".parquet" {
		return readParquetSamples(f, path, take)
	}
	lines := bufio.NewReaderSize(f, 1<<16)
	for {
		text, err := lines.ReadBytes('\n')
		if len(bytes.TrimSpace(text)) > 0 {
			var s LabelledSample
			if err := take(s, json.Unmarshal(text, &s)); err != nil {
				return err
			}
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return fulgur.E(fulgur.KindInvalid, "read samples "+path, "the file can't be read to its end", err)
		}
	}
}

func readParquetSamples(f *os.File, path string, take func(LabelledSample, error) error) (err error) {
	defer func() { // the library panics on some broken files
		if x := recover(); x != nil {
			err = fulgur.E(fulgur.KindInvalid, "read samples "+path, fmt.Sprintf("the Parquet file is broken: %v", x), nil)
		}
	}()
	info, err := f.Stat()
	if err != nil {
		return err
	}
	p, err := parquet.OpenFile(f, info.Size())
	if err != nil {
		return fulgur.E(fulgur.KindInvalid, "read samples "+path, "this is no whole Parquet file", err)
	}
	for _, column := range []string{"tokens", "mask", "log_probs"} {
		if _, ok := p.Schema().Lookup(column, "list", "element"); !ok {
			return fulgur.E(fulgur.KindInvalid, "read samples "+path, fmt.Sprintf("the file has no list %q: samples have tokens, mask and log_probs (docs/samples.md)", column), nil)
		}
	}
	r := parquet.NewGenericReader[parquetSample](p)
	defer r.Close()
	for {
		rows := make([]parquetSample, 1) // anew: samples keep their lists
		n, err := r.Read(rows)
		for i := range rows[:n] {
			if err := take(rows[i].sample(), nil); err != nil {
				return err
			}
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return fulgur.E(fulgur.KindInvalid, "read samples "+path, "the file can't be read to its end", err)
		}
	}
}

// lowestLogProb is the least that is believed of a trained token, as in building
// samples: -9999 and its like stand for a missing one (case AL-13).
const lowestLogProb = -1000

// checkSample says what is wrong with a sample, and fills in what another
// program's may lack: versions (0 where sampled).
func checkSample(s *LabelledSample) error {
	n := len(s.Tokens)
	switch {
	case n == 0:
		return errors.New("it has no tokens")
	case len(s.Mask) != n:
		return fmt.Errorf("mask has %d entries for %d tokens", len(s.Mask), n)
	case len(s.LogProbs) != n:
		return fmt.Errorf("log_probs has %d entries for %d tokens", len(s.LogProbs), n)
	case s.Versions != nil && len(s.Versions) != n:
		return fmt.Errorf("versions has %d entries for %d tokens", len(s.Versions), n)
	case s.Experts != nil && len(s.Experts) != n:
		return fmt.Errorf("routed_experts has %d rows for %d tokens", len(s.Experts), n)
	case s.Mask[0]:
		return errors.New("its first token is marked as trained, but nothing stands before it that could have sampled it")
	}
	for i, x := range s.LogProbs {
		if v := float64(x); math.IsNaN(v) || math.IsInf(v, 0) || s.Mask[i] && v > 0 {
			return fmt.Errorf("log prob %d is %g", i, v)
		}
		if s.Mask[i] && x < lowestLogProb {
			return fmt.Errorf("log prob %d is %g, which stands for none: a token without one cannot train (mask false)", i, x)
		}
		if s.Mask[i] && s.Versions != nil && s.Versions[i] < 0 {
			return fmt.Errorf("version %d is %d, but its token trains: only what was not sampled has none", i, s.Versions[i])
		}
		if s.Tokens[i] < 0 {
			return fmt.Errorf("token %d is %d", i, s.Tokens[i])
		}
	}
	if !slices.Contains(s.Mask, true) {
		return errors.New("nothing of it trains")
	}
	if s.Versions == nil {
		s.Versions = make([]fulgur.PolicyVersion, n)
		for i, on := range s.Mask {
			if !on {
				s.Versions[i] = -1
			}
		}
	}
	return nil
}

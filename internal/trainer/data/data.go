// Package data reads datasets: one object per rollout input, from JSONL files (one
// object a line), JSON files (an array of objects), CSV and TSV (a line of names,
// then one row a line) and Parquet.
package data

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"sort"
	"strings"
	"unicode/utf8"

	"github.com/fulgur-rl/fulgur"
)

// Row is one input. Its index is its place in the file, from 0, empty lines not
// counted.
type Row struct {
	Index int
	Line  int             // in the file, from 1; of Parquet the row
	Input json.RawMessage // the object as it was written, compacted
}

// Set is a dataset.
type Set struct {
	Path string
	Hash string // hex SHA-256 of the file's bytes
	Rows []Row
	Left int // rows that the filter left out
}

// Options of Read.
type Options struct {
	// Fields that every row must have and that must not be null, as dotted
	// paths with or without "input." in front: those that reward and input
	// mapping name.
	Fields []string
	// Filter leaves rows out, before Limit. What it leaves out is checked too.
	Filter Filter
	// Limit keeps the first rows only; 0: all. All rows are checked.
	Limit int
	// Look, if not nil, is shown every sound row, also those that are left out.
	Look func(input json.RawMessage)
}

// maxProblems is how many things one error names that are wrong, and of how many lines.
const maxProblems = 5

// Read reads and checks a file. A broken row is an error of KindInvalid that
// names file, line and what is wrong; up to five are listed at once.
func Read(path string, o Options) (Set, error) {
	// A device may never end, and a pipe can't be read again when the run is resumed.
	if st, err := os.Stat(path); err == nil && !st.Mode().IsRegular() {
		return Set{}, fulgur.E(fulgur.KindInvalid, "read data "+path, "this is no regular file; name a file with one JSON object per line", nil)
	}
	raw, err := os.ReadFile(path)
	if err != nil {
		return Set{}, fulgur.E(fulgur.KindNotFound, "read data "+path, "the data file can't be read; check the path (`data:` in the run file, or --data)", err)
	}
	return Parse(path, raw, o)
}

// Parse is Read on bytes; path is only named in errors.
func Parse(path string, raw []byte, o Options) (Set, error) {
	sum := sha256.Sum256(raw)
	set := Set{Path: path, Hash: hex.EncodeToString(sum[:])}
	problems := troubles{lines: map[string][]int{}}
	place := "line"
	if bytes.HasPrefix(raw, []byte(parquetMagic)) {
		place = "row"
	}
	add := func(line int, input []byte) {
		compact, problem := check(input, o.Fields)
		if problem != "" {
			problems.add(line, problem)
			return
		}
		if o.Look != nil {
			o.Look(compact)
		}
		if !o.Filter.Keeps(compact) {
			set.Left++
			return
		}
		set.Rows = append(set.Rows, Row{Index: len(set.Rows), Line: line, Input: compact})
	}
	file := parse(path, raw, add)
	if all := append(problems.told(place), file...); len(all) > 0 {
		return Set{}, fulgur.E(fulgur.KindInvalid, "read data "+path, strings.Join(all, "; "), nil)
	}
	if len(set.Rows) == 0 && set.Left > 0 {
		return Set{}, fulgur.E(fulgur.KindInvalid, "read data "+path, fmt.Sprintf("the filter leaves none of the %d rows; look at data.filter", set.Left), nil)
	}
	if len(set.Rows) == 0 {
		return Set{}, fulgur.E(fulgur.KindInvalid, "read data "+path, "the file has no rows; it needs one JSON object a line", nil)
	}
	if o.Limit > 0 && len(set.Rows) > o.Limit {
		set.Rows = set.Rows[:o.Limit]
	}
	return set, nil
}

// troubles are what is wrong with rows: each text, in the order of its first line,
// and the lines that it is true of.
type troubles struct {
	texts []string
	lines map[string][]int
}

func (t *troubles) add(line int, text string) {
	if t.lines[text] == nil {
		t.texts = append(t.texts, text)
	}
	t.lines[text] = append(t.lines[text], line)
}

// told names the first troubles, and the first lines of each: a wrong path in the
// run file is wrong for every row.
func (t *troubles) told(place string) []string {
	var out []string
	for i, text := range t.texts {
		if i == maxProblems {
			return append(out, fmt.Sprintf("and %d more", len(t.texts)-maxProblems))
		}
		where, lines := place, t.lines[text]
		for n, line := range lines[:min(len(lines), maxProblems)] {
			switch {
			case n > 0:
				where += ","
			case len(lines) > 1:
				where += "s"
			}
			where += fmt.Sprintf(" %d", line)
		}
		if more := len(lines) - maxProblems; more > 0 {
			where += fmt.Sprintf(" and %d more", more)
		}
		out = append(out, where+": "+text)
	}
	return out
}

// parse reads the rows in the file's format: Parquet by its first bytes, CSV by
// its name, an array by its bracket, else lines.
func parse(path string, raw []byte, add adder) (problems []string) {
	if bytes.HasPrefix(raw, []byte(parquetMagic)) {
		if problem := columns(raw, add); problem != "" {
			return []string{problem}
		}
		return nil
	}
	if strings.HasSuffix(strings.ToLower(path), ".parquet") {
		return []string{"this is no Parquet file: it does not begin with " + parquetMagic}
	}
	raw = bytes.TrimPrefix(raw, []byte("\xef\xbb\xbf"))
	if comma := delimiter(path); comma != 0 {
		return table(raw, comma, add)
	}
	if trimmed := bytes.TrimLeft(raw, " \t\r\n"); len(trimmed) > 0 && trimmed[0] == '[' {
		if problem := array(raw, add); problem != "" {
			return []string{problem}
		}
		return nil
	}
	lines(raw, add)
	return nil
}

func lines(raw []byte, add func(line int, input []byte)) {
	r := bufio.NewReaderSize(bytes.NewReader(raw), 1<<16)
	for line := 1; ; line++ {
		text, err := r.ReadBytes('\n')
		if text = bytes.TrimSpace(text); len(text) > 0 {
			add(line, text)
		}
		if err != nil {
			return
		}
	}
}

func array(raw []byte, add func(line int, input []byte)) (problem string) {
	d := json.NewDecoder(bytes.NewReader(raw))
	lineAt := func(offset int64) int { return 1 + bytes.Count(raw[:min(int(offset), len(raw))], []byte("\n")) }
	if _, err := d.Token(); err != nil {
		return fmt.Sprintf("line 1: %s", plain(err))
	}
	// Counting newlines from the last item on keeps this linear.
	line, counted := 1, 0
	for d.More() {
		var item json.RawMessage
		if err := d.Decode(&item); err != nil {
			return fmt.Sprintf("line %d: %s", lineAt(offset(err, d.InputOffset())), plain(err))
		}
		start := int(d.InputOffset()) - len(item)
		line += bytes.Count(raw[counted:start], []byte("\n"))
		counted = start
		add(line, item)
	}
	if _, err := d.Token(); err != nil {
		return fmt.Sprintf("line %d: the array does not end: %s", lineAt(int64(len(raw))), plain(err))
	}
	if rest := bytes.TrimSpace(raw[d.InputOffset():]); len(rest) > 0 {
		return fmt.Sprintf("line %d: there is text behind the array", lineAt(d.InputOffset()))
	}
	return ""
}

func offset(err error, otherwise int64) int64 {
	var syntax *json.SyntaxError
	if errors.As(err, &syntax) {
		return syntax.Offset
	}
	return otherwise
}

func plain(err error) string {
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return "the JSON is cut off"
	}
	return strings.TrimPrefix(err.Error(), "json: ")
}

// check says what is wrong with a row, or returns it compacted.
func check(input []byte, fields []string) (compact json.RawMessage, problem string) {
	var b bytes.Buffer
	if err := json.Compact(&b, input); err != nil {
		problem = "bad JSON: " + plain(err)
		for _, word := range []string{"NaN", "Infinity"} {
			if bytes.Contains(input, []byte(word)) {
				problem += "; " + word + " is no JSON number"
			}
		}
		return nil, problem
	}
	if !utf8.Valid(input) { // decoding would put U+FFFD in the place of what is none
		return nil, "it is no UTF-8 text: save the file as UTF-8"
	}
	var row map[string]json.RawMessage
	if json.Unmarshal(input, &row) != nil || row == nil {
		return nil, "a row must be a JSON object"
	}
	for _, f := range fields {
		if problem := field(row, f); problem != "" {
			return nil, problem
		}
	}
	return b.Bytes(), ""
}

func field(row map[string]json.RawMessage, path string) (problem string) {
	at := row
	parts := strings.Split(strings.TrimPrefix(path, "input."), ".")
	for i, p := range parts {
		v, ok := at[p]
		if !ok {
			return fmt.Sprintf("field %q is missing, which the run file names; the row has %s", strings.Join(parts[:i+1], "."), names(at))
		}
		if string(v) == "null" {
			return fmt.Sprintf("field %q is null, but the run file names it", strings.Join(parts[:i+1], "."))
		}
		at = nil
		if i+1 < len(parts) && json.Unmarshal(v, &at) != nil {
			return fmt.Sprintf("field %q is no object", strings.Join(parts[:i+1], "."))
		}
	}
	return ""
}

func names(row map[string]json.RawMessage) string {
	if len(row) == 0 {
		return "no fields"
	}
	keys := make([]string, 0, len(row))
	for k := range row {
		keys = append(keys, k)
	}
	sort.Strings(keys)
	return strings.Join(keys, ", ")
}

package data

import (
	"bytes"
	"encoding/csv"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"unicode/utf8"
)

// adder takes a row with its place in the file.
type adder func(line int, input []byte)

// delimiter is what cells of a CSV file are divided by, by the file's name; 0: it
// is no CSV file.
func delimiter(path string) rune {
	switch lower := strings.ToLower(path); {
	case strings.HasSuffix(lower, ".csv"):
		return ','
	case strings.HasSuffix(lower, ".tsv"):
		return '\t'
	}
	return 0
}

// table reads CSV (RFC 4180) whose first line has the names of the fields. Every
// cell is text: "007" stays what it is, and numbers belong into JSON or Parquet.
// A row is named by the line on which it starts.
func table(raw []byte, comma rune, add adder) (problems []string) {
	r := csv.NewReader(bytes.NewReader(raw))
	r.Comma = comma
	header, err := r.Read()
	switch {
	case errors.Is(err, io.EOF):
		return []string{"the file has no line with the names of its fields"}
	case err != nil:
		return []string{csvProblem(err)}
	case len(header) == 1 && strings.ContainsAny(header[0], ";\t|"):
		return []string{fmt.Sprintf("line 1: one field only, %q: cells must be divided by commas (.csv) or tabs (.tsv)", header[0])}
	}
	for i, name := range header {
		if header[i] = strings.TrimSpace(name); header[i] == "" {
			problems = append(problems, fmt.Sprintf("line 1: field %d has no name", i+1))
		} else if slices.Contains(header[:i], header[i]) {
			problems = append(problems, fmt.Sprintf("line 1: two fields are named %q", header[i]))
		}
	}
	if len(problems) > 0 {
		return problems
	}
	for {
		cells, err := r.Read()
		if errors.Is(err, io.EOF) {
			return problems
		}
		if err != nil {
			problems = append(problems, csvProblem(err))
			if errors.Is(err, csv.ErrFieldCount) {
				continue
			}
			return append(problems, "what follows was not read")
		}
		line, _ := r.FieldPos(0)
		input, problem := cellsJSON(header, cells)
		if problem != "" {
			problems = append(problems, fmt.Sprintf("line %d: %s", line, problem))
			continue
		}
		add(line, input)
	}
}

func csvProblem(err error) string {
	var p *csv.ParseError
	if !errors.As(err, &p) {
		return err.Error()
	}
	if errors.Is(p.Err, csv.ErrFieldCount) {
		return fmt.Sprintf("line %d: not as many cells as the first line has names (a cell with a comma or a line break needs quotes)", p.StartLine)
	}
	return fmt.Sprintf("line %d, column %d: %v", p.Line, p.Column, p.Err)
}

// cellsJSON makes an object of a row, fields in the order of the file.
func cellsJSON(header, cells []string) (object []byte, problem string) {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	for i, c := range cells {
		if !utf8.ValidString(c) {
			return nil, fmt.Sprintf("field %q is no UTF-8 text: save the file as UTF-8", header[i])
		}
		b.WriteByte("{,"[min(i, 1)])
		_ = e.Encode(header[i]) // text encodes, and a buffer takes it
		b.WriteByte(':')
		_ = e.Encode(c)
	}
	b.WriteByte('}')
	return b.Bytes(), ""
}

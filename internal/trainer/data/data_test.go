package data

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/fulgur-rl/fulgur"
)

func TestReadsLinesAndArrays(t *testing.T) {
	for name, text := range map[string]string{
		"lines":                  "{\"a\": 1}\n\n{\"a\": 2}",
		"lines of Windows":       "{\"a\": 1}\r\n{\"a\": 2}\r\n",
		"array":                  "[\n{\"a\": 1},\n {\"a\": 2}\n]\n",
		"with a byte-order mark": "\xef\xbb\xbf{\"a\":1}\n{\"a\":2}\n",
	} {
		t.Run(name, func(t *testing.T) {
			s, err := Parse("x", []byte(text), Options{Fields: []string{"input.a"}})
			if err != nil {
				t.Fatal(err)
			}
			if len(s.Rows) != 2 || string(s.Rows[1].Input) != `{"a":2}` || s.Rows[1].Index != 1 || len(s.Hash) != 64 {
				t.Errorf("got %+v", s)
			}
		})
	}
	s, err := Parse("x", []byte("{}\n{}\n{}"), Options{Limit: 2})
	if err != nil || len(s.Rows) != 2 {
		t.Errorf("limit: %v, %v", s.Rows, err)
	}
}

func TestBrokenRowsAreNamedByLine(t *testing.T) {
	for name, c := range map[string]struct{ text, want string }{
		"bad JSON":             {"{}\n{\"a\":}\n", "line 2: bad JSON"},
		"cut off":              {"{\"a\":1}\n{\"a\":", "line 2: bad JSON"},
		"NaN":                  {"{\"a\":1}\n\n{\"a\": NaN}", "line 3: bad JSON: invalid character 'N' looking for beginning of value; NaN is no JSON number"},
		"no object":            {"{\"a\":1}\n[1]\n", "line 2: a row must be a JSON object"},
		"a missing field":      {"{\"a\":1}\n{\"b\":1,\"c\":2}", `line 2: field "a" is missing, which the run file names; the row has b, c`},
		"a null field":         {"{\"a\":null}", `line 1: field "a" is null`},
		"Latin-1":              {"{\"a\":1}\n{\"a\":\"caf\xe9\"}", "line 2: it is no UTF-8 text: save the file as UTF-8"},
		"no rows":              {"\n\n", "the file has no rows"},
		"a broken array":       {"[\n{\"a\":1},\n{\"a\":}\n]", "line 3: invalid character '}'"},
		"an array cut off":     {"[{\"a\":1}", "the array does not end"},
		"text behind an array": {"[{\"a\":1}]\nx", "there is text behind the array"},
		"an array's bad row":   {"[\n{\"a\":1},\n\n{\"b\":1}]", `line 4: field "a" is missing`},
		"many":                 {strings.Repeat("x\n", 8), "lines 1, 2, 3, 4, 5 and 3 more: bad JSON: invalid character 'x' looking for beginning of value"},
		"many ways":            {"{}\nx\n[1]\n{\"b\":1}\n{\"c\":1}\n{\"d\":1}\n{\"e\":1}", `; line 5: field "a" is missing, which the run file names; the row has c; and 2 more`},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := Parse("rows.jsonl", []byte(c.text), Options{Fields: []string{"a"}})
			if fulgur.KindOf(err) != fulgur.KindInvalid || !strings.Contains(err.Error(), c.want) || !strings.Contains(err.Error(), "rows.jsonl") {
				t.Errorf("got %v, want %q in it", err, c.want)
			}
		})
	}
}

func TestNestedFields(t *testing.T) {
	o := Options{Fields: []string{"input.task.answer"}}
	if _, err := Parse("x", []byte(`{"task":{"answer":1}}`), o); err != nil {
		t.Error(err)
	}
	for _, text := range []string{`{"task":{}}`, `{"task":3}`, `{}`} {
		if _, err := Parse("x", []byte(text), o); err == nil {
			t.Errorf("%s passed", text)
		}
	}
}

func TestReadFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "x.jsonl")
	if _, err := Read(path, Options{}); fulgur.KindOf(err) != fulgur.KindNotFound {
		t.Errorf("got %v", err)
	}
	if err := os.WriteFile(path, []byte(`{"a":1}`), 0o644); err != nil {
		t.Fatal(err)
	}
	if s, err := Read(path, Options{}); err != nil || len(s.Rows) != 1 {
		t.Errorf("%v, %v", s, err)
	}
}

func TestOnlyRegularFilesAreRead(t *testing.T) {
	for name, path := range map[string]string{"a device without end": "/dev/zero", "a folder": t.TempDir()} {
		t.Run(name, func(t *testing.T) {
			if _, err := Read(path, Options{}); fulgur.KindOf(err) != fulgur.KindInvalid || !strings.Contains(err.Error(), "no regular file") {
				t.Errorf("got %v", err)
			}
		})
	}
}

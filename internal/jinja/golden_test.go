package jinja

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/fulgur-rl/fulgur/internal/goldentest"
)

func goldenTime(t *testing.T, s string) func() time.Time {
	t.Helper()
	now, err := time.Parse("2006-01-02T15:04:05", s)
	if err != nil {
		t.Fatal(err)
	}
	return func() time.Time { return now }
}

func mustJSON(t *testing.T, b []byte) Value {
	t.Helper()
	v, err := FromJSON(b)
	if err != nil {
		t.Fatal(err)
	}
	return v
}

// address matches what differs from process to process when Python prints an object.
var address = regexp.MustCompile(` at 0x[0-9a-f]+`)

func TestGoldenJinja(t *testing.T) {
	var file jinjaCases
	goldentest.Load(t, &file, "render", "jinja.json")
	file.check(t, "jinja.json")
}

// TestAsJinja2 holds further cases of the same kind: what jinja2 3.1.6 made of
// them, set up as transformers does.
func TestAsJinja2(t *testing.T) {
	b, err := os.ReadFile("testdata/jinja2.json")
	if err != nil {
		t.Fatal(err)
	}
	var file jinjaCases
	if err := json.Unmarshal(b, &file); err != nil {
		t.Fatal(err)
	}
	file.check(t, "jinja2.json")
}

type jinjaCases struct {
	MadeWith struct{ Now string } `json:"made_with"`
	Context  json.RawMessage
	Cases    []struct{ ID, Template, Out, Error, Message string }
}

func (file *jinjaCases) check(t *testing.T, name string) {
	now := goldenTime(t, file.MadeWith.Now)
	if len(file.Cases) == 0 {
		t.Fatal("no cases")
	}
	passed := 0
	for _, c := range file.Cases {
		ok := t.Run(c.ID, func(t *testing.T) {
			vars := mustJSON(t, file.Context).(*Dict)
			ms, _ := vars.Get("ms")
			vars.Set("messages", ms).Set("tools", nil).Set("documents", nil).Set("add_generation_prompt", false)
			got, kind, msg := run(c.ID, c.Template, vars, now)
			if kind != ErrorKind(c.Error) {
				t.Fatalf("template %q: error %q (%s), want %q; out %q, want %q", c.Template, kind, msg, c.Error, got, c.Out)
			}
			if c.Error == "raise" && msg != c.Message {
				t.Errorf("raised %q, want %q", msg, c.Message)
			}
			if want := address.ReplaceAllString(c.Out, " at 0x0"); got != want {
				t.Errorf("template %q\n got %q\nwant %q", c.Template, got, want)
			}
		})
		if ok {
			passed++
		}
	}
	t.Logf("%s: %d of %d cases", name, passed, len(file.Cases))
}

func run(name, source string, vars *Dict, now func() time.Time) (string, ErrorKind, string) {
	tmpl, err := Compile(name, source)
	var out Output
	if err == nil {
		out, err = tmpl.Render(vars, RenderOptions{Now: now})
	}
	var e *Error
	if errors.As(err, &e) {
		return "", e.Kind, e.Msg
	}
	return out.Text, "", ""
}

type templateCase struct {
	ID       string
	Template string
	Chat     string
	Tools    []string
	Kwargs   json.RawMessage
	AddGen   bool `json:"add_generation_prompt"`
	Continue bool `json:"continue_final_message"`
	Rendered *string
	Error    *struct{ Kind, Message string }
}

// TestGoldenTemplates renders conversations with the templates that people
// use. They are no part of this repository (each has its model's licence):
// FULGUR_TEMPLATES names a folder with vendor/llama.cpp/models/templates of the
// llama-cpp-python sdist, unpacked; `make test-long` fetches it.
func TestGoldenTemplates(t *testing.T) {
	dir := os.Getenv("FULGUR_TEMPLATES")
	if dir == "" {
		t.Skip("FULGUR_TEMPLATES does not name the unpacked llama-cpp-python sdist")
	}
	var file struct {
		MadeWith      struct{ Now string } `json:"made_with"`
		SpecialTokens map[string]string    `json:"special_tokens"`
		Templates     map[string]struct{ File string }
		Tools         map[string]json.RawMessage
		Messages      map[string]json.RawMessage
		Cases         []templateCase
	}
	goldentest.Load(t, &file, "render", "templates.json")
	now := goldenTime(t, file.MadeWith.Now)
	passed, total := 0, 0
	for _, c := range file.Cases {
		if c.Continue {
			continue // is done outside the template
		}
		total++
		ok := t.Run(c.ID, func(t *testing.T) {
			src, err := os.ReadFile(filepath.Join(dir, file.Templates[c.Template].File))
			if err != nil {
				t.Fatal(err)
			}
			vars := NewDict()
			for k, v := range file.SpecialTokens {
				vars.Set(k, Text(v))
			}
			vars.Set("messages", mustJSON(t, file.Messages[c.Chat])).Set("add_generation_prompt", c.AddGen).Set("documents", nil).Set("tools", nil)
			if c.Tools != nil {
				l := &List{}
				for _, n := range c.Tools {
					l.items = append(l.items, mustJSON(t, file.Tools[n]))
				}
				vars.Set("tools", l)
			}
			if len(c.Kwargs) > 0 {
				kw := mustJSON(t, c.Kwargs).(*Dict)
				for i, k := range kw.keys {
					vars.Set(str(k), kw.vals[i])
				}
			}
			got, kind, msg := run(c.Template, string(src), vars, now)
			switch {
			case c.Error != nil && (kind != KindRaise || msg != c.Error.Message):
				t.Errorf("got error %s %q and %q, want raise %q", kind, msg, got, c.Error.Message)
			case c.Rendered != nil && (kind != "" || got != *c.Rendered):
				t.Errorf("error %q %s\n%s", kind, msg, firstDifference(got, *c.Rendered))
			}
		})
		if ok {
			passed++
		}
	}
	t.Logf("templates.json: %d of %d cases (of %d, the others continue a message)", passed, total, len(file.Cases))
}

func firstDifference(got, want string) string {
	i := 0
	for i < len(got) && i < len(want) && got[i] == want[i] {
		i++
	}
	at := func(s string) string { return strings.ToValidUTF8(s[max(0, i-60):min(len(s), i+80)], "?") }
	return "at byte " + str(int64(i)) + "\n got …" + at(got) + "\nwant …" + at(want)
}

package jinja

import (
	"errors"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestDialect(t *testing.T) {
	d := Dialect{KeepBlocks: true, Strict: true, Filters: map[string]func(Value) (*Str, error){
		"quote": func(v Value) (*Str, error) {
			s := Printed(v).String()
			if s == "bad" {
				return nil, errors.New("will not quote this")
			}
			return Concat(Text(`<`), Data(strconv.Quote(s)), Text(`>`)), nil
		},
	}}
	for name, test := range map[string]struct{ source, want, fails string }{
		"white space around tags stays":       {"a: {% if true %}1{% endif %}\n  {# no #}\nb", "a: 1\n  \nb", ""},
		"marks still strip it":                {"a {%- if true -%} \n b {% endif %}", "ab ", ""},
		"its own filters":                     {"{{ x | quote }}", `<"v">`, ""},
		"a filter's error has its line":       {"\n\n{{ 'bad' | quote }}", "", "t:3: type: will not quote this"},
		"what is not there is not printed":    {"\n{{ d.nothing }}", "", "t:2: undefined: "},
		"nor given to a filter of its own":    {"{{ nobody | quote }}", "", "'nobody' is undefined"},
		"but may have a default, or be asked": {"{{ nobody | default('x') }}{% if d.nothing %}y{% endif %}", "x", ""},
		"a name that is no filter":            {"\n{{ x | quoet }}", "", "t:2: compile: no filter named 'quoet'"},
	} {
		t.Run(name, func(t *testing.T) {
			tmpl, err := d.Compile("t", test.source)
			var out Output
			if err == nil {
				out, err = tmpl.Render(NewDict().Set("x", Data("v")).Set("d", NewDict()), RenderOptions{})
			}
			if test.fails != "" {
				if err == nil || !strings.Contains(err.Error(), test.fails) {
					t.Errorf("error %v, want %s", err, test.fails)
				}
				return
			}
			if err != nil || out.Text != test.want {
				t.Errorf("%q, %v; want %q", out.Text, err, test.want)
			}
		})
	}
}

func TestOutputSaysWhereItComesFrom(t *testing.T) {
	tmpl, err := Compile("t", "one\n{% for i in [1, 2] %}\n  item {{ i }}\n{% endfor %}\nlast\n")
	if err != nil {
		t.Fatal(err)
	}
	out, err := tmpl.Render(nil, RenderOptions{})
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]int{}
	for i, m := range out.Lines {
		end := len(out.Text)
		if i+1 < len(out.Lines) {
			end = out.Lines[i+1].Offset
		}
		got[out.Text[m.Offset:end]] = m.Line
	}
	want := map[string]int{"one\n": 1, "  item ": 3, "1": 3, "2": 3, "\n": 3, "last": 5}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
}

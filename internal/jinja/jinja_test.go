package jinja

import (
	"encoding/json"
	"errors"
	"os"
	"strings"
	"testing"
	"time"
)

func render(t *testing.T, source string, vars *Dict, lim Limits) (Output, error) {
	t.Helper()
	tmpl, err := Compile("test", source)
	if err != nil {
		return Output{}, err
	}
	return tmpl.Render(vars, RenderOptions{Limits: lim})
}

// TestDataIsMarked: the output says which of its bytes came from data. In the
// expectation they stand in brackets.
func TestDataIsMarked(t *testing.T) {
	vars := NewDict().Set("m", NewDict().Set("role", Text("user")).Set("content", Data(" hé\nyo ")).Set("args", NewDict().Set("k", Data("v"))))
	for source, want := range map[string]string{
		`<|{{ m.role }}|>{{ m.content }}<|end|>`:                                        "<|user|>[ hé\nyo ]<|end|>",
		`{{ '<|' + m.role + '|>' + m.content | trim + '<|end|>' }}`:                     "<|user|>[hé\nyo]<|end|>",
		`{{ '<' ~ m.content[1:3] ~ '>' }}{{ m.content.split('\n')[1] }}`:                "<[hé]>[yo ]",
		`{{ ['a', m.content | trim, 'b'] | join('-') }}`:                                "a-[hé\nyo]-b",
		`{{ m.content | upper }}|{{ m.args | tojson }}|{{ m.args }}`:                    "[ HÉ\nYO ]|[{\"k\": \"v\"}]|[{'k': 'v'}]",
		`{{ '%s:%s' % ('a', m.args.k) }}{{ '<{}>'.format(m.args.k) }}`:                  "a:[v]<[v]>",
		`{% macro f(x) %}<{{ x }}>{% endmacro %}{{ f(m.args.k) }}`:                      "<[v]>",
		`{% set x %}<{{ m.args.k }}>{% endset %}{{ x }}{{ x[1:] }}`:                     "<[v]>[v]>",
		`{% filter indent(2) %}a{{ m.content }}{% endfilter %}`:                         "a[ hé]\n  [yo ]",
		`{{ m.content.replace('h', '<b>') }}{{ 'xax'.replace('a', 'b') }}`:              "[ ]<b>[é\nyo ]xbx",
		`{{ m.content.strip().split('\n') | last }}{{ m.role | upper }}`:                "[yo]USER",
		`{% for c in m.args.k %}{{ c }}{% endfor %}{{ (m.args | items | list)[0][1] }}`: "[vv]",
	} {
		out, err := render(t, source, vars, Limits{})
		if err != nil {
			t.Errorf("%s: %v", source, err)
			continue
		}
		if got := brackets(out); got != want {
			t.Errorf("%s\n got %q\nwant %q", source, got, want)
		}
	}
}

func brackets(out Output) string {
	var b strings.Builder
	at := 0
	for _, s := range out.Data {
		b.WriteString(out.Text[at:s.Start] + "[" + out.Text[s.Start:s.End] + "]")
		at = s.End
	}
	return b.String() + out.Text[at:]
}

func TestLimits(t *testing.T) {
	for name, source := range map[string]string{
		"endless work":        `{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}`,
		"endless recursion":   `{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}`,
		"doubling strings":    `{% set ns = namespace(x='aaaaaaaaaaaaaaaa') %}{% for a in range(99) %}{% set ns.x = ns.x ~ ns.x %}{% endfor %}`,
		"doubling lists":      `{% set ns = namespace(x=[1]) %}{% for a in range(99) %}{% set ns.x = ns.x + ns.x %}{% endfor %}`,
		"a huge repetition":   `{{ 'a' * 10 ** 15 }}`,
		"a huge list":         `{{ [0] * 10 ** 15 }}`,
		"a huge power":        `{{ 10 ** (10 ** 10) }}`,
		"a tower of products": `{% set ns = namespace(x=10 ** 1000) %}{% for a in range(99) %}{% set ns.x = ns.x * ns.x %}{% endfor %}`,
		"a huge replacement":  `{{ ('a' * 10000).replace('a', 'b' * 10000) }}`,
		"a huge padding":      `{{ 'a'.center(10 ** 9) }}`,
		"a huge width":        `{{ '%999999999d' % 1 }}`,
		"a huge join":         `{{ range(99999) | join('a' * 9999) }}`,
		"a deep value":        `{% set ns = namespace(x=[]) %}{% for a in range(9999) %}{% set ns.x = [ns.x] %}{% endfor %}{{ ns.x }}`,
		"a deep comparison":   `{% set ns = namespace(x=[], y=[]) %}{% for a in range(9999) %}{% set ns.x = [ns.x] %}{% set ns.y = [ns.y] %}{% endfor %}{{ ns.x == ns.y }}`,
		"much output":         `{% for a in range(99999) %}{{ 'aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa' }}{% endfor %}`,
	} {
		_, err := render(t, source, nil, Limits{Steps: 300_000, Output: 1 << 20, Memory: 8 << 20})
		var e *Error
		if !errors.As(err, &e) || e.Kind != KindLimit && e.Kind != KindType || e.Kind == KindType && name != "a huge width" {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestDeepSourceIsRefusedOrRuns(t *testing.T) {
	for name, source := range map[string]string{
		"parentheses": "{{ " + strings.Repeat("(", 100_000) + "1" + strings.Repeat(")", 100_000) + " }}",
		"minus signs": "{{ " + strings.Repeat("- ", 100_000) + "1 }}",
		"not":         "{{ " + strings.Repeat("not ", 100_000) + "1 }}",
		"ifs":         strings.Repeat("{% if 1 %}", 100_000) + strings.Repeat("{% endif %}", 100_000),
		"a sum":       "{{ 1" + strings.Repeat(" + 1", 100_000) + " }}",
		"filters":     "{{ 1" + strings.Repeat(" | abs", 100_000) + " }}",
		"attributes":  "{{ x" + strings.Repeat(".x", 100_000) + " }}",
		"targets":     "{% set " + strings.Repeat("(", 100_000) + "a" + strings.Repeat(")", 100_000) + " = 1 %}",
	} {
		if _, err := render(t, source, nil, Limits{}); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}

func TestErrorsNameTheLine(t *testing.T) {
	for source, line := range map[string]int{
		"a\n{{ 1 +\n }}":                            3,
		"a\nb\n{{ nope.x }}":                        3,
		"{% for a in\n[1] %}\n{{ a + 'x' }}":        3,
		"{{ 1 }}\n{{ raise_exception('x') }}":       2,
		"{# c\n\n #}\n{% nope %}":                   4,
		"\n\n{{ 'x' | tojson | int | nope }}":       3,
		"a\n{{ {} | tojson }}\n{{ nope | tojson }}": 3,
	} {
		_, err := render(t, source, nil, Limits{})
		var e *Error
		if !errors.As(err, &e) || e.Line != line || e.Template != "test" {
			t.Errorf("%q: %v, want line %d", source, err, line)
		}
	}
}

func TestFromJSONIsToJSON(t *testing.T) {
	for in, want := range map[string]string{
		`{"b":1,"a":[1.50,1e2,-0,-0.0,null,true],"b":2}`: `{"b": 2, "a": [1.5, 100.0, 0, -0.0, null, true]}`,
		`12345678901234567890123`:                        `12345678901234567890123`,
		` "a\u00e9\ud83d\ude00\n" `:                      "\"aé😀\\n\"",
		`[[],{}]`:                                        `[[], {}]`,
		`{"1":1,"2":2,"3":3,"4":4,"5":5,"6":6,"7":7,"8":8,"9":9,"1":0}`: `{"1": 0, "2": 2, "3": 3, "4": 4, "5": 5, "6": 6, "7": 7, "8": 8, "9": 9}`,
	} {
		v, err := FromJSON([]byte(in))
		if err != nil {
			t.Errorf("%s: %v", in, err)
			continue
		}
		if got, err := ToJSON(v); err != nil || got != want {
			t.Errorf("%s: %s (%v), want %s", in, got, err, want)
		}
	}
	for _, bad := range []string{``, `{`, `[1,]`, `{"a":}`, `{1:2}`, `01`, `1.`, `"a`, "\"a\nb\"", `"\x"`, `[1] 2`, `nul`, `-`, strings.Repeat("[", 9999)} {
		if _, err := FromJSON([]byte(bad)); err == nil {
			t.Errorf("%.20q passed", bad)
		}
	}
}

// FuzzRender: any template is refused with an *Error or rendered, within limits.
func FuzzRender(f *testing.F) {
	b, err := os.ReadFile("testdata/jinja2.json")
	if err != nil {
		f.Fatal(err)
	}
	var file jinjaCases
	if err := json.Unmarshal(b, &file); err != nil {
		f.Fatal(err)
	}
	for _, c := range file.Cases {
		f.Add(c.Template)
	}
	now := func() time.Time { return time.Date(2026, 1, 5, 7, 3, 9, 0, time.UTC) }
	f.Fuzz(func(t *testing.T, source string) {
		v, err := FromJSON(file.Context)
		if err != nil {
			t.Fatal(err)
		}
		var e *Error
		tmpl, err := Compile("fuzz", source)
		if err == nil {
			var out Output
			out, err = tmpl.Render(v.(*Dict), RenderOptions{Now: now, Limits: Limits{Steps: 20_000, Output: 1 << 16, Memory: 1 << 20, Depth: 50}})
			at := 0
			for _, s := range out.Data {
				if s.Start < at || s.End <= s.Start || s.End > len(out.Text) {
					t.Fatalf("spans %v of %d bytes", out.Data, len(out.Text))
				}
				at = s.End
			}
		}
		if err != nil && !errors.As(err, &e) {
			t.Fatal(err)
		}
	})
}

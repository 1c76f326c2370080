package parser

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/fulgur-rl/fulgur"
)

var cases = map[string]struct {
	text      string
	opt       Options
	want      fulgur.Message
	malformed bool
}{
	"an answer": {text: "Answer: 7", opt: Options{Tools: true}, want: fulgur.Message{Content: "Answer: 7"}},
	"a compact call": {text: `<tool_call>{"name":"calc","arguments":{"expression":"2*3"}}</tool_call>`, opt: Options{Tools: true},
		want: fulgur.Message{ToolCalls: []fulgur.ToolCall{{Name: "calc", Arguments: `{"expression":"2*3"}`}}}},
	"calls on lines of their own, arguments as written": {text: "I look.\n<tool_call>\n{\"name\": \"a\", \"arguments\": {\"x\":  1.50}}\n</tool_call>\n<tool_call>\n{\"name\": \"b\", \"arguments\": {}}\n</tool_call>", opt: Options{Tools: true},
		want: fulgur.Message{Content: "I look.", ToolCalls: []fulgur.ToolCall{{Name: "a", Arguments: `{"x":  1.50}`}, {Name: "b", Arguments: `{}`}}}},
	"arguments as a string": {text: `<tool_call>{"name":"f","arguments":"{\"a\": 1}"}</tool_call>`, opt: Options{Tools: true},
		want: fulgur.Message{ToolCalls: []fulgur.ToolCall{{Name: "f", Arguments: `{"a": 1}`}}}},
	"a brace is missing": {text: "x\n<tool_call>{\"name\":\"calc\",\"arguments\":{\"expression\":\"2*3\"}</tool_call> y", opt: Options{Tools: true}, malformed: true,
		want: fulgur.Message{Content: "x\n<tool_call>{\"name\":\"calc\",\"arguments\":{\"expression\":\"2*3\"}</tool_call> y"}},
	"no end of the call":   {text: `<tool_call>{"name":"calc"`, opt: Options{Tools: true}, malformed: true, want: fulgur.Message{Content: `<tool_call>{"name":"calc"`}},
	"no name":              {text: `<tool_call>{"Name":"calc","arguments":{}}</tool_call>`, opt: Options{Tools: true}, malformed: true, want: fulgur.Message{Content: `<tool_call>{"Name":"calc","arguments":{}}</tool_call>`}},
	"arguments are a list": {text: `<tool_call>{"name":"calc","arguments":[1]}</tool_call>`, opt: Options{Tools: true}, malformed: true, want: fulgur.Message{Content: `<tool_call>{"name":"calc","arguments":[1]}</tool_call>`}},
	"a good call and a bad one": {text: "<tool_call>{\"name\":\"a\",\"arguments\":{}}</tool_call>\n<tool_call>no</tool_call>", opt: Options{Tools: true}, malformed: true,
		want: fulgur.Message{Content: "\n<tool_call>no</tool_call>", ToolCalls: []fulgur.ToolCall{{Name: "a", Arguments: "{}"}}}},
	"text behind a call": {text: "<tool_call>{\"name\":\"a\",\"arguments\":{}}</tool_call>\n\nDone.", opt: Options{Tools: true},
		want: fulgur.Message{Content: "\n\nDone.", ToolCalls: []fulgur.ToolCall{{Name: "a", Arguments: "{}"}}}},
	"no tools were offered": {text: `a<tool_call>{"name":"a","arguments":{}}</tool_call>`, want: fulgur.Message{Content: `a<tool_call>{"name":"a","arguments":{}}</tool_call>`}},
	"half a tag is content": {text: "a <tool_cal\n", opt: Options{Tools: true}, want: fulgur.Message{Content: "a <tool_cal\n"}},
	"reasoning, then a call": {text: "<think>\nhm\n\nok\n</think>\n\nSure.\n<tool_call>\n{\"name\": \"f\", \"arguments\": {}}\n</tool_call>", opt: Options{Tools: true, Reasoning: true},
		want: fulgur.Message{Reasoning: "hm\n\nok", Content: "Sure.", ToolCalls: []fulgur.ToolCall{{Name: "f", Arguments: "{}"}}}},
	"reasoning that the prompt opened":  {text: "hm\n</think>\n\nYes", opt: Options{Reasoning: true, Open: true}, want: fulgur.Message{Reasoning: "hm", Content: "Yes"}},
	"reasoning cut off":                 {text: "<think>\nhm </thi", opt: Options{Reasoning: true}, want: fulgur.Message{Reasoning: "hm </thi"}},
	"no reasoning where it is possible": {text: "  <b>Yes", opt: Options{Reasoning: true}, want: fulgur.Message{Content: "  <b>Yes"}},
	"only white space":                  {text: " \n", opt: Options{Reasoning: true, Tools: true}, want: fulgur.Message{Content: " \n"}},
	"an empty reply":                    {opt: Options{Reasoning: true, Tools: true}},
}

func TestParse(t *testing.T) {
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			c.want.Role = "assistant"
			got, malformed := Parse(c.text, c.opt)
			if d := cmp.Diff(c.want, got); d != "" {
				t.Error(d)
			}
			if malformed != c.malformed {
				t.Errorf("malformed: %v", malformed)
			}
		})
	}
}

func TestStreamedInAnyPiecesIsWhole(t *testing.T) {
	for name, c := range cases {
		for size := 1; size <= 7; size++ {
			p := New(c.opt)
			var deltas []Delta
			for s := c.text; s != ""; {
				n := min(size, len(s))
				deltas = append(deltas, p.Feed(s[:n])...)
				s = s[n:]
			}
			last, got, _ := p.Finish()
			c.want.Role = "assistant"
			if d := cmp.Diff(c.want, got); d != "" {
				t.Errorf("%s in pieces of %d: %s", name, size, d)
			}
			checkDeltas(t, name, append(deltas, last...), got)
		}
	}
}

// checkDeltas: the deltas joined are the message.
func checkDeltas(t *testing.T, name string, deltas []Delta, m fulgur.Message) {
	t.Helper()
	var content, reasoning strings.Builder
	var calls []fulgur.ToolCall
	for _, d := range deltas {
		content.WriteString(d.Content)
		reasoning.WriteString(d.Reasoning)
		if d.ToolCall != nil {
			calls = append(calls, *d.ToolCall)
		}
	}
	joined := fulgur.Message{Role: "assistant", Content: content.String(), Reasoning: reasoning.String(), ToolCalls: calls}
	if d := cmp.Diff(m, joined); d != "" {
		t.Errorf("%s: the deltas make another message: %s", name, d)
	}
}

func FuzzChunks(f *testing.F) {
	for _, c := range cases {
		f.Add(c.text, uint16(3), c.opt.Tools, c.opt.Reasoning, c.opt.Open)
	}
	f.Fuzz(func(t *testing.T, text string, cut uint16, tools, reasoning, open bool) {
		opt := Options{tools, reasoning, open}
		want, malformed := Parse(text, opt)
		p := New(opt)
		i := int(cut) % (len(text) + 1)
		deltas := append(p.Feed(text[:i]), p.Feed(text[i:])...)
		last, got, bad := p.Finish()
		if d := cmp.Diff(want, got); d != "" || bad != malformed {
			t.Fatalf("cut at %d: %s", i, d)
		}
		checkDeltas(t, "fuzz", append(deltas, last...), got)
	})
}

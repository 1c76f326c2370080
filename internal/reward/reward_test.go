package reward

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/fulgur-rl/fulgur"
)

func call(first, reply string, change ...func(*fulgur.Call)) fulgur.Call {
	c := fulgur.Call{HTTPStatus: 200, Fate: fulgur.FateDelivered, Reply: &fulgur.Message{Role: "assistant", Content: reply},
		Messages: []fulgur.Message{{Role: "system", Content: "s"}, {Role: "user", Content: first}}}
	for _, f := range change {
		f(&c)
	}
	return c
}

func tools(c *fulgur.Call)     { c.Reply.ToolCalls = []fulgur.ToolCall{{Name: "calc", Arguments: "{}"}} }
func auxiliary(c *fulgur.Call) { c.Auxiliary = "title" }
func failed(c *fulgur.Call)    { c.HTTPStatus, c.Reply = 502, nil }
func left(c *fulgur.Call)      { c.Fate = fulgur.FateLeft }

func TestFinalAnswerReadsTheLastReplyOfTheMainConversation(t *testing.T) {
	for name, test := range map[string]struct {
		calls []fulgur.Call
		want  string
	}{
		"no call":                              {nil, NoAnswer},
		"one answer":                           {[]fulgur.Call{call("q", "42")}, Right},
		"tools, then the answer":               {[]fulgur.Call{call("q", "", tools), call("q", "42")}, Right},
		"tools only":                           {[]fulgur.Call{call("q", "42", tools)}, NoAnswer},
		"the last answer counts":               {[]fulgur.Call{call("q", "42"), call("q", "41")}, Wrong},
		"a sub-agent's answer does not":        {[]fulgur.Call{call("q", "", tools), call("other", "41"), call("q", "42"), call("other", "41")}, Right},
		"an auxiliary call's does not":         {[]fulgur.Call{call("title?", "41", auxiliary), call("q", "42"), call("title?", "41", auxiliary)}, Right},
		"an answer that nobody got does not":   {[]fulgur.Call{call("q", "41"), call("q", "42", left)}, Wrong},
		"a failed call has none":               {[]fulgur.Call{call("q", "42"), call("q", "", failed)}, Right},
		"a rewritten history is looked at too": {[]fulgur.Call{call("q", "", tools), call("summary", "42")}, Right},
		"an empty answer is none":              {[]fulgur.Call{call("q", " ")}, NoAnswer},
	} {
		t.Run(name, func(t *testing.T) {
			g, err := New("final-answer", Options{Expected: "input.answer"})
			if err != nil {
				t.Fatal(err)
			}
			v, why, err := g.Grade(json.RawMessage(`{"answer":"42"}`), test.calls)
			if err != nil || why != test.want || (v == 1) != (why == Right) {
				t.Errorf("%v %q %v, want %q", v, why, err, test.want)
			}
		})
	}
}

func TestFinalAnswerCompares(t *testing.T) {
	for name, test := range map[string]struct {
		o           Options
		input, text string
		want        string
	}{
		"exact":                                {Options{}, `{"answer":"yes"}`, " yes\n", Right},
		"exact minds case":                     {Options{}, `{"answer":"yes"}`, "Yes", Wrong},
		"exact of a number in JSON":            {Options{}, `{"answer":42}`, "42", Right},
		"exact behind a prefix":                {Options{Prefix: "Answer:"}, `{"answer":"yes"}`, "hm\nAnswer: no\nAnswer: yes", Right},
		"a prefix that is not there":           {Options{Prefix: "Answer:"}, `{"answer":"yes"}`, "yes", NoAnswer},
		"number":                               {Options{Compare: "number"}, `{"answer":42}`, "It is 41. No: 42.", Right},
		"number by value":                      {Options{Compare: "number"}, `{"answer":"42"}`, "42.0", Right},
		"number with thousands":                {Options{Compare: "number"}, `{"answer":1234567}`, "so 1,234,567 in all", Right},
		"number of a list":                     {Options{Compare: "number"}, `{"answer":4}`, "3,4", Right},
		"number that is negative":              {Options{Compare: "number"}, `{"answer":-3}`, "Answer: -3", Right},
		"number with a typographic minus":      {Options{Compare: "number"}, `{"answer":-3}`, "\u22123", Right},
		"number behind an operator":            {Options{Compare: "number"}, `{"answer":3}`, "5-3", Right},
		"number in scientific form":            {Options{Compare: "number"}, `{"answer":4200}`, "4.2e3", Right},
		"number without a leading zero":        {Options{Compare: "number"}, `{"answer":0.5}`, ".5", Right},
		"number that is exact beyond floats":   {Options{Compare: "number"}, `{"answer":9007199254740993}`, "9007199254740992", Wrong},
		"number with an exponent out of reach": {Options{Compare: "number"}, `{"answer":1}`, "1e999999999", Wrong},
		"number that is absent":                {Options{Compare: "number"}, `{"answer":1}`, "none", NoAnswer},
		"pattern":                              {Options{Compare: "pattern", Pattern: `(?m)^Answer: (.*)$`}, `{"answer":"b"}`, "Answer: a\nAnswer: b ", Right},
		"pattern that does not match":          {Options{Compare: "pattern", Pattern: `Answer: (.*)`}, `{"answer":"b"}`, "b", NoAnswer},
		"a nested field":                       {Options{Expected: "input.x.1.y"}, `{"x":[0,{"y":"z"}]}`, "z", Right},
	} {
		t.Run(name, func(t *testing.T) {
			if test.o.Expected == "" {
				test.o.Expected = "input.answer"
			}
			g, err := New("final-answer", test.o)
			if err != nil {
				t.Fatal(err)
			}
			if err := g.Check(json.RawMessage(test.input)); err != nil {
				t.Fatal(err)
			}
			if _, why, err := g.Grade(json.RawMessage(test.input), []fulgur.Call{call("q", test.text)}); err != nil || why != test.want {
				t.Errorf("%q %v, want %q", why, err, test.want)
			}
		})
	}
}

func TestCheckNamesWhatIsMissing(t *testing.T) {
	for input, want := range map[string]string{
		`{"question":"q"}`:   `no "answer"`,
		`{"answer":null}`:    "null",
		`{"answer":"many"}`:  "no number",
		`{"answer":{"a":1}}`: "neither a number nor a text",
		`{"answer":[1,18]}`:  "neither a number nor a text",
		`[]`:                 `no "answer"`,
		`"text"`:             `no "answer"`,
		`{"answer":`:         "unexpected end",
	} {
		g, err := New("final-answer", Options{Expected: "input.answer", Compare: "number"})
		if err != nil {
			t.Fatal(err)
		}
		if err := g.Check(json.RawMessage(input)); fulgur.KindOf(err) != fulgur.KindInvalid || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), "input.answer") {
			t.Errorf("%s: %v, want %q", input, err, want)
		}
	}
}

func TestNewRefuses(t *testing.T) {
	for name, test := range map[string]struct {
		grader string
		o      Options
		want   string
	}{
		"an unknown grader":       {"vibes", Options{}, "final-answer"},
		"no field":                {"final-answer", Options{}, "input.answer"},
		"a field of nothing":      {"final-answer", Options{Expected: "answer"}, "input.answer"},
		"an unknown mode":         {"final-answer", Options{Expected: "input.a", Compare: "fuzzy"}, "exact, number or pattern"},
		"a bad pattern":           {"final-answer", Options{Expected: "input.a", Compare: "pattern", Pattern: "("}, "regular expression"},
		"a pattern without group": {"final-answer", Options{Expected: "input.a", Compare: "pattern", Pattern: "a"}, "group"},
	} {
		t.Run(name, func(t *testing.T) {
			if _, err := New(test.grader, test.o); fulgur.KindOf(err) != fulgur.KindInvalid || !strings.Contains(err.Error(), test.want) {
				t.Errorf("error %v", err)
			}
		})
	}
}

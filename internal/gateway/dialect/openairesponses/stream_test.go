package openairesponses_test

import (
	"bytes"
	"encoding/json"
	"flag"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"

	"github.com/fulgur-rl/fulgur"
	"github.com/fulgur-rl/fulgur/internal/gateway/call"
	"github.com/fulgur-rl/fulgur/internal/gateway/dialect"
	"github.com/fulgur-rl/fulgur/internal/gateway/dialect/openairesponses"
)

var update = flag.Bool("update", false, "write the golden streams")

// request offers every kind of tool and asks for sealed reasoning, as Codex does.
const request = `{"model":"m","stream":true,"input":"x","include":["reasoning.encrypted_content"],"tool_choice":"auto","tools":[
	{"type":"function","name":"f","parameters":{}},{"type":"custom","name":"patch"},
	{"type":"namespace","name":"multi_agent_v1","tools":[{"type":"function","name":"spawn_agent","parameters":{}}]}]}`

func TestGoldenStreams(t *testing.T) {
	tool := func(i int, id, name, args string) call.Delta {
		return call.Delta{Tools: []call.ToolDelta{{Index: i, ID: id, Name: name, Arguments: args}}}
	}
	usage := &fulgur.Usage{PromptTokens: 2, CompletionTokens: 3}
	for name, c := range map[string]struct {
		deltas []call.Delta
		res    *call.Result
	}{
		"text": {[]call.Delta{{PromptIDs: []int32{1}}, {Text: "Hel"}, {Text: "lo <北京>\n"}}, &call.Result{Status: 200, Finish: "stop", Usage: usage}},
		"tools": {[]call.Delta{{Reasoning: "Let me "}, {Reasoning: "think."}, {Text: "I do."}, tool(0, "k0", "f", `{"cmd":`), tool(0, "", "", `  "ls"}`),
			tool(1, "k1", "multi_agent_v1__spawn_agent", `{}`), tool(2, "k2", "patch", `{"input":`), tool(2, "", "", `"*** Begin\n"}`)},
			&call.Result{Status: 200, Finish: "tool_calls", Usage: usage}},
		"cut":     {[]call.Delta{{Text: "half of"}}, &call.Result{Status: 200, Finish: "length", Usage: usage}},
		"nothing": {nil, &call.Result{Status: 200, Finish: "stop", Usage: usage}},
		"failed":  {[]call.Delta{{Text: "half"}}, nil},
	} {
		s := openairesponses.Dialect{}.Stream(parse(t, request), meta)
		b := s.KeepAlive(nil)
		for _, d := range c.deltas {
			b = s.Delta(b, d)
		}
		if c.res != nil {
			b = s.Close(b, c.res)
		} else {
			b = s.Fail(b, dialect.Failure{Status: 502, Message: "it broke", Type: "api_error", Code: "upstream"})
		}
		path := filepath.Join("testdata", name+".sse")
		if *update {
			if err := os.WriteFile(path, b, 0o644); err != nil {
				t.Fatal(err)
			}
		}
		want, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(strings.Split(string(want), "\n"), strings.Split(string(b), "\n")); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}

// script cuts a reply into pieces as random tells, calls interleaved if mixed.
func script(m fulgur.Message, r *rand.Rand, mixed bool) []call.Delta {
	var out []call.Delta
	pieces := func(s string, f func(string) call.Delta) {
		for s != "" {
			n := 1 + r.IntN(len(s))
			for n < len(s) && !utf8.RuneStart(s[n]) {
				n++
			}
			out = append(out, f(s[:n]))
			s = s[n:]
		}
	}
	pieces(m.Reasoning, func(s string) call.Delta { return call.Delta{Reasoning: s} })
	pieces(m.Content, func(s string) call.Delta { return call.Delta{Text: s} })
	start := len(out)
	for i, c := range m.ToolCalls {
		out = append(out, call.Delta{Tools: []call.ToolDelta{{Index: i, ID: c.ID, Name: c.Name}}})
		if !mixed {
			pieces(c.Arguments, func(s string) call.Delta { return call.Delta{Tools: []call.ToolDelta{{Index: i, Arguments: s}}} })
		}
	}
	if mixed {
		rest := make([]string, len(m.ToolCalls))
		for i, c := range m.ToolCalls {
			rest[i] = c.Arguments
		}
		for {
			i := -1
			for j, s := range rest {
				if s != "" && (i < 0 || r.IntN(2) == 0) {
					i = j
				}
			}
			if i < 0 {
				break
			}
			n := 1
			for n < len(rest[i]) && !utf8.RuneStart(rest[i][n]) {
				n++
			}
			out = append(out, call.Delta{Tools: []call.ToolDelta{{Index: i, Arguments: rest[i][:n]}}})
			rest[i] = rest[i][n:]
		}
	}
	if start < len(out) && r.IntN(2) == 0 {
		out[len(out)-1].Last = true
	}
	return out
}

// stream writes a reply in pieces, with signs of life between them.
func stream(req *call.Request, deltas []call.Delta, res *call.Result, r *rand.Rand) []byte {
	s := openairesponses.Dialect{}.Stream(req, meta)
	var b []byte
	for _, d := range deltas {
		if r.IntN(4) == 0 {
			b = s.KeepAlive(b)
		}
		b = s.Delta(b, d)
	}
	return s.Close(b, res)
}

// back is the turn that a harness makes of a response by sending its items back.
func back(t testing.TB, raw []byte) fulgur.Message {
	t.Helper()
	var w struct{ Output []json.RawMessage }
	if err := json.Unmarshal(raw, &w); err != nil {
		t.Fatalf("%v: %s", err, raw)
	}
	body, err := json.Marshal(map[string]any{"input": w.Output})
	if err != nil {
		t.Fatal(err)
	}
	req := parse(t, string(body))
	if req.Invalid != nil || len(req.Messages) != 1 {
		t.Fatalf("%v, %d turns: %s", req.Invalid, len(req.Messages), body)
	}
	return req.Messages[0]
}

// check holds a reply's stream against its unstreamed answer, and both, sent
// back, against the reply.
func check(t testing.TB, m fulgur.Message, finish string, seed uint64) {
	t.Helper()
	r := rand.New(rand.NewPCG(seed, 1))
	res := &call.Result{Status: 200, Finish: finish, Reply: &m, Usage: &fulgur.Usage{PromptTokens: 1, CompletionTokens: 2}}
	plainReq := parse(t, strings.Replace(request, `"stream":true`, `"stream":false`, 1))
	whole := openairesponses.Dialect{}.AppendAnswer(nil, plainReq, meta, res)
	var want response
	if err := json.Unmarshal(whole, &want); err != nil {
		t.Fatalf("%v: %s", err, whole)
	}
	events := parseEvents(t, stream(parse(t, request), script(m, r, seed%2 == 0), res, r))
	got, _ := collect(t, events)
	if diff := cmp.Diff(want, got); diff != "" {
		t.Fatalf("a stream ends in another response (-unstreamed +streamed):\n%s", diff)
	}
	var last struct{ Response json.RawMessage }
	if err := json.Unmarshal(events[len(events)-1].Data, &last); err != nil {
		t.Fatal(err)
	}
	for _, raw := range [][]byte{whole, last.Response} {
		if b := back(t, raw); !m.Same(b) {
			t.Fatalf("sent back it is another turn: %s", cmp.Diff(m, b))
		}
	}
}

func TestStreamEqualsAnswer(t *testing.T) {
	calls := []fulgur.ToolCall{{ID: "a", Name: "f", Arguments: `{"x":  "北\u0065"}`}, {ID: "b", Name: "multi_agent_v1__spawn_agent", Arguments: `{}`},
		{ID: "c", Name: "patch", Arguments: `{ "input" : "*** Begin \"x\"\n\u2028" }`}, {ID: "d", Name: "unknown", Arguments: `no JSON`}}
	for seed := range uint64(200) {
		m := fulgur.Message{Role: "assistant"}
		if seed&1 != 0 {
			m.Reasoning = "thinking </think>\n\n of 北京\n"
		}
		if seed&2 != 0 {
			m.Content = "\n <b>text</b> & \"more\" \t\x01 é\n"
		}
		if seed&4 != 0 {
			m.ToolCalls = calls[:1+seed%uint64(len(calls))]
		}
		check(t, m, []string{"stop", "length", "tool_calls", ""}[seed/8%4], seed)
	}
}

// What a sampler says in an odd order is sent back as the same turn.
func TestOddOrders(t *testing.T) {
	tool := call.Delta{Tools: []call.ToolDelta{{Index: 3, ID: "k", Name: "f", Arguments: "{}"}}}
	r := rand.New(rand.NewPCG(1, 1))
	b := stream(parse(t, request), []call.Delta{{Text: "a"}, {Reasoning: "x"}, tool, {Text: "b"}, {Reasoning: "y"}, {Text: "c"}}, &call.Result{Status: 200, Finish: "stop"}, r)
	events := parseEvents(t, b)
	collect(t, events)
	var last struct{ Response json.RawMessage }
	if err := json.Unmarshal(events[len(events)-1].Data, &last); err != nil {
		t.Fatal(err)
	}
	want := fulgur.Message{Role: "assistant", Content: "abc", Reasoning: "xy", ToolCalls: []fulgur.ToolCall{{ID: "k", Name: "f", Arguments: "{}"}}}
	if diff := cmp.Diff(want, back(t, last.Response)); diff != "" {
		t.Error(diff)
	}
}

// A harness acts on a call when its item is done: not before the call is good.
func TestNoCallIsDoneBeforeTheEnd(t *testing.T) {
	s := openairesponses.Dialect{}.Stream(parse(t, request), meta)
	b := s.Delta(nil, call.Delta{Tools: []call.ToolDelta{{ID: "k", Name: "f", Arguments: "{}"}}})
	b = s.Fail(b, dialect.Failure{Status: 400, Message: "too long", Type: "invalid_request_error", Code: "context_length_exceeded"})
	if bytes.Contains(b, []byte("output_item.done")) || bytes.Contains(b, []byte("response.completed")) ||
		!bytes.Contains(b, []byte(`"status":"failed","background":false,"error":{"code":"context_length_exceeded","message":"too long"}`)) {
		t.Errorf("%s", b)
	}
}

// A request of several lines is repeated in one.
func TestEventsAreOneLine(t *testing.T) {
	s := openairesponses.Dialect{}.Stream(parse(t, "{\"input\":\"x\",\"stream\":true,\"tools\":[\n{\r\"name\":\"f\"}]}"), meta)
	b := s.Close(nil, &call.Result{Status: 200, Finish: "stop"})
	if bytes.Contains(b, []byte("\r")) || !bytes.Contains(b, []byte(`"tools":[{"name":"f"}]`)) {
		t.Errorf("%s", b)
	}
}

func FuzzStream(f *testing.F) {
	f.Add("hm", "text", `{"a":1}`, "f", uint64(1))
	f.Add("", "", `{"input":"x"}`, "patch", uint64(2))
	f.Add("<北\u2028", "\x00\"", "[", "multi_agent_v1__spawn_agent", uint64(3))
	f.Fuzz(func(t *testing.T, thought, text, args, name string, seed uint64) {
		for _, s := range []*string{&thought, &text, &args, &name} {
			*s = strings.ToValidUTF8(*s, "?") // what a sampler gives is text
		}
		m := fulgur.Message{Role: "assistant", Reasoning: thought, Content: text}
		var in struct{ Input *string }
		readable := json.Unmarshal([]byte(args), &in) == nil && in.Input != nil && len(args) == len(`{"input":""}`)+len(*in.Input)
		if name != "" && name != "patch" || name == "patch" && readable { // a custom tool's input is told by one form alone
			m.ToolCalls = []fulgur.ToolCall{{ID: "1", Name: name, Arguments: args}, {ID: "2", Name: name, Arguments: args}}
		}
		check(t, m, []string{"stop", "length"}[seed%2], seed)
	})
}

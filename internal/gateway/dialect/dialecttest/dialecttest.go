// Package dialecttest is the conformance suite of dialects.
package dialecttest

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/fulgur-rl/fulgur"
	"github.com/fulgur-rl/fulgur/internal/gateway/call"
	"github.com/fulgur-rl/fulgur/internal/gateway/dialect"
	"github.com/fulgur-rl/fulgur/internal/gateway/dialect/sse"
)

// Reply is an answer as a client of the dialect reads it.
type Reply struct {
	Text   string
	Tools  []fulgur.ToolCall
	Finish string // as the dialect says it
	Usage  *fulgur.Usage
}

// Subject is a dialect with what the suite must know of it. The readers are
// independent of the dialect's own code.
type Subject struct {
	Dialect dialect.Dialect
	// Request writes a request of one user message; usage: the client wants it
	// in the stream.
	Request func(text string, stream, usage bool) string
	// ReadAnswer reads an unstreamed answer, ReadEvents the events of a stream;
	// done: the terminal event was there.
	ReadAnswer func(t *testing.T, body []byte) Reply
	ReadEvents func(t *testing.T, events []sse.Event) (r Reply, done bool)
	// Finish is how the dialect says stop, length, tool_calls.
	Finish map[string]string
	// AlwaysUsage: its streams have usage, asked for or not.
	AlwaysUsage bool
	// Raw: its prompts are texts that no template touches, so it has no messages
	// and no tool calls.
	Raw bool
}

var meta = dialect.Meta{ID: "c1", Created: 1700000000, Model: "m"}

// Run is the suite.
func Run(t *testing.T, s Subject) {
	t.Run("bodies that nothing could read are refused", func(t *testing.T) { refuses(t, s) })
	t.Run("a request is read, and its bytes are kept", func(t *testing.T) { reads(t, s) })
	t.Run("a stream says what an unstreamed answer says", func(t *testing.T) { answers(t, s) })
	t.Run("errors are read by both SDKs", func(t *testing.T) { errorsRead(t, s) })
	t.Run("from the last piece on all waits for the close", func(t *testing.T) { keeps(t, s) })
	t.Run("a failed stream does not end as a whole one", func(t *testing.T) { fails(t, s) })
}

func refuses(t *testing.T, s Subject) {
	for is, body := range map[string]string{"half an object": `{"a":`, "a list": `[]`, "a number": `1`, "bad UTF-8": "{\"a\":\"\xff\"}", "two values": `{} {}`,
		"nested so deep that no Python reads its record": `{"messages":` + strings.Repeat(`[{"a":`, 400) + "1" + strings.Repeat("}]", 400) + "}"} {
		if _, err := s.Dialect.Parse([]byte(body)); fulgur.KindOf(err) != fulgur.KindInvalid || fulgur.PublicMessage(err) == "" {
			t.Errorf("%s: %v", is, err)
		}
	}
	for _, body := range []string{"", "  ", "{}"} {
		req, err := s.Dialect.Parse([]byte(body))
		if err != nil || req.Invalid == nil || req.N != 1 || !json.Valid(req.Body) {
			t.Errorf("%q: %+v %v", body, req, err)
		}
	}
}

func reads(t *testing.T, s Subject) {
	for _, stream := range []bool{false, true} {
		body := s.Request(`say "北"`, stream, false)
		req, err := s.Dialect.Parse([]byte(body))
		if err != nil || req.Invalid != nil {
			t.Fatalf("%v %v", err, req.Invalid)
		}
		want := []fulgur.Message{{Role: "user", Content: `say "北"`}}
		if s.Raw {
			want = nil
			if diff := cmp.Diff(&call.Prompt{Text: `say "北"`}, req.Prompt); diff != "" {
				t.Errorf("prompt (-want +got):\n%s", diff)
			}
		}
		if diff := cmp.Diff(want, req.Messages); diff != "" || string(req.Body) != body || req.Stream != stream || req.Dialect != s.Dialect.Name() {
			t.Errorf("%+v\n%s", req, diff)
		}
		unknown := strings.TrimSuffix(body, "}") + `,"some_field_of_tomorrow":{"x":[1]}}`
		if req, err := s.Dialect.Parse([]byte(unknown)); err != nil || req.Invalid != nil {
			t.Errorf("an unknown field: %v", err)
		}
	}
}

// script is an answer in pieces, and whole.
func script() ([]call.Delta, *call.Result) {
	deltas := []call.Delta{{PromptIDs: []int32{1, 2}, Tokens: []call.Token{{ID: 3}}}, {Text: "a \"北"}, {Text: "京\"\n"}, {Tokens: []call.Token{{ID: 4}}},
		{Tools: []call.ToolDelta{{Index: 0, ID: "k0", Name: "f", Arguments: `{"x":`}}}, {Tools: []call.ToolDelta{{Index: 0, Arguments: `"北"}`}}},
		{Tools: []call.ToolDelta{{Index: 1, ID: "k1", Name: "g", Arguments: `{}`}}}}
	res := &call.Result{Status: 200, Finish: "tool_calls", PromptIDs: []int32{1, 2}, SampledIDs: []int32{3, 4, 5}, LogProbs: []float32{-1, -2, -3},
		Usage: &fulgur.Usage{PromptTokens: 2, CompletionTokens: 3},
		Reply: &fulgur.Message{Role: "assistant", Content: "a \"北京\"\n", ToolCalls: []fulgur.ToolCall{{ID: "k0", Name: "f", Arguments: `{"x":"北"}`}, {ID: "k1", Name: "g", Arguments: `{}`}}}}
	return deltas, res
}

func answers(t *testing.T, s Subject) {
	deltas, res := script()
	if s.Raw {
		res.Reply.ToolCalls, res.Finish = nil, "stop"
	}
	want := Reply{Text: res.Reply.Content, Tools: res.Reply.ToolCalls, Finish: s.Finish[res.Finish], Usage: res.Usage}
	req, err := s.Dialect.Parse([]byte(s.Request("x", false, false)))
	if err != nil {
		t.Fatal(err)
	}
	body := s.Dialect.AppendAnswer([]byte("kept"), req, meta, res)
	if diff := cmp.Diff(want, s.ReadAnswer(t, body[len("kept"):])); diff != "" {
		t.Errorf("answer (-want +got):\n%s", diff)
	}
	for _, usage := range []bool{true, false} {
		for alive := -1; alive <= len(deltas); alive++ { // a sign of life at each place
			if !usage && !s.AlwaysUsage {
				want.Usage = nil
			}
			req, err := s.Dialect.Parse([]byte(s.Request("x", true, usage)))
			if err != nil {
				t.Fatal(err)
			}
			out := s.Dialect.Stream(req, meta)
			var b []byte
			for i, d := range deltas {
				if i == alive {
					b = out.KeepAlive(b)
				}
				b = out.Delta(b, d)
			}
			if alive == len(deltas) {
				b = out.KeepAlive(b)
			}
			got, done := s.ReadEvents(t, events(t, out.Close(b, res)))
			if diff := cmp.Diff(want, got); diff != "" || !done {
				t.Errorf("usage %t, alive %d, done %t (-want +got):\n%s", usage, alive, done, diff)
			}
			want.Usage = res.Usage
		}
	}
}

func events(t *testing.T, b []byte) []sse.Event {
	t.Helper()
	var out []sse.Event
	var p sse.Parser
	for i := range b { // cut anywhere
		if err := p.Feed(b[i:i+1], func(e sse.Event) error {
			out = append(out, e)
			return nil
		}); err != nil {
			t.Fatal(err)
		}
	}
	return out
}

func errorsRead(t *testing.T, s Subject) {
	body := s.Dialect.AppendError(nil, dialect.Failure{Status: 400, Message: `no "x"`, Type: "invalid_request_error", Code: "context_length_exceeded"})
	var e struct {
		Type  string
		Error struct{ Type, Message, Code string }
	}
	if err := json.Unmarshal(body, &e); err != nil || e.Type != "error" || !strings.Contains(e.Error.Message, `no "x"`) || e.Error.Type != "invalid_request_error" {
		t.Errorf("%v %s", err, body)
	}
	if !json.Valid(s.Dialect.AppendError(nil, dialect.Failure{})) || !json.Valid(s.Dialect.AppendModels(nil, []string{"a", `"`})) || !json.Valid(s.Dialect.AppendModels(nil, nil)) {
		t.Error("not JSON")
	}
	if c, ok := s.Dialect.(dialect.Counter); ok && (len(c.CountPaths()) == 0 || !json.Valid(c.AppendCount(nil, 5)) || !strings.Contains(string(c.AppendCount(nil, 5)), "5")) {
		t.Errorf("no count: %v %s", c.CountPaths(), c.AppendCount(nil, 5))
	}
	if l, ok := s.Dialect.(dialect.Lister); ok && l.Lists(func(string) string { return "" }) {
		t.Error("a request that says nothing is taken for this dialect's")
	}
}

func keeps(t *testing.T, s Subject) {
	req, err := s.Dialect.Parse([]byte(s.Request("x", true, false)))
	if err != nil {
		t.Fatal(err)
	}
	out := s.Dialect.Stream(req, meta)
	before := out.Delta(nil, call.Delta{Text: "early"})
	after := out.Delta(nil, call.Delta{Text: "late", Last: true})
	after = out.Delta(after, call.Delta{Text: "later"})
	if len(after) != 0 {
		t.Errorf("goes out before the call is on record: %s", after)
	}
	got, done := s.ReadEvents(t, events(t, out.Close(before, &call.Result{Status: 200, Finish: "stop"})))
	if !done || got.Text != "earlylatelater" || got.Finish != s.Finish["stop"] {
		t.Errorf("%+v, done %t", got, done)
	}
}

func fails(t *testing.T, s Subject) {
	req, err := s.Dialect.Parse([]byte(s.Request("x", true, false)))
	if err != nil {
		t.Fatal(err)
	}
	out := s.Dialect.Stream(req, meta)
	b := out.Delta(nil, call.Delta{Text: "half"})
	b = out.Fail(b, dialect.Failure{Status: 502, Message: "it broke", Type: "api_error"})
	list := events(t, b)
	if _, done := s.ReadEvents(t, list[:len(list)-1]); done || !strings.Contains(string(list[len(list)-1].Data), "it broke") {
		t.Errorf("done %t: %s", done, b)
	}
}

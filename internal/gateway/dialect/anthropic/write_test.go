package anthropic_test

import (
	"bytes"
	"encoding/json"
	"flag"
	"math/rand/v2"
	"os"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"

	"github.com/fulgur-rl/fulgur"
	"github.com/fulgur-rl/fulgur/internal/gateway/call"
	"github.com/fulgur-rl/fulgur/internal/gateway/dialect"
	"github.com/fulgur-rl/fulgur/internal/gateway/dialect/anthropic"
	"github.com/fulgur-rl/fulgur/internal/gateway/dialect/sse"
)

var update = flag.Bool("update", false, "write golden files anew")

var meta = dialect.Meta{ID: "c1", Created: 1700000000, Model: "m"}

// GW-03: the events of a stream, byte for byte.
func TestGoldenStreams(t *testing.T) {
	type script struct {
		deltas []call.Delta
		res    call.Result
	}
	for file, s := range map[string]script{
		"text-then-tool": {[]call.Delta{{PromptIDs: []int32{1, 2, 3}, Tokens: []call.Token{{ID: 4}}}, {Text: "I make"}, {Text: " the <file>.\n"},
			{Tools: []call.ToolDelta{{ID: "k0", Name: "Bash", Arguments: `{"command":`}}}, {Tools: []call.ToolDelta{{Arguments: `"echo \"北\""}`}}}},
			call.Result{Finish: "tool_calls", Usage: &fulgur.Usage{PromptTokens: 3, CompletionTokens: 9, CachedTokens: 2}}},
		"thinking-and-two-tools": {[]call.Delta{{Reasoning: "Let me "}, {Reasoning: "think."}, {Tools: []call.ToolDelta{{Index: 0, Name: "f", Arguments: "{}"}, {Index: 1, ID: "k1", Name: "g"}}}},
			call.Result{Finish: "stop", PromptIDs: []int32{1}, SampledIDs: []int32{2, 3}}},
		"nothing": {nil, call.Result{Finish: "stop", PromptIDs: []int32{1}, SampledIDs: []int32{2}}},
		"stopped by a string": {[]call.Delta{{Text: "a"}, {Text: "b", Last: true}, {Text: "c"}},
			call.Result{Finish: "stop", Stopped: "\nObservation:", Usage: &fulgur.Usage{}}},
		"cut in a tool": {[]call.Delta{{Text: "Go."}, {Tools: []call.ToolDelta{{ID: "k0", Name: "f", Arguments: `{"path":"a`}}}},
			call.Result{Finish: "length", Usage: &fulgur.Usage{CompletionTokens: 5}}},
	} {
		out := anthropic.Dialect{}.Stream(nil, meta)
		var b []byte
		for i, d := range s.deltas {
			if i == 1 {
				b = out.KeepAlive(b)
			}
			b = out.Delta(b, d)
		}
		golden(t, file+".sse", out.Close(b, &s.res))
	}
	out := anthropic.Dialect{}.Stream(nil, meta)
	b := out.KeepAlive(nil)
	b = out.Delta(b, call.Delta{Text: "half"})
	b = out.Delta(b, call.Delta{Tools: []call.ToolDelta{{Name: "f", Arguments: `{"half":`}}})
	golden(t, "failed.sse", out.Fail(b, dialect.Failure{Status: 502, Message: "Upstream model server failed", Type: "api_error", Code: "upstream"}))
}

func golden(t *testing.T, file string, got []byte) {
	t.Helper()
	file = "testdata/" + strings.ReplaceAll(file, " ", "-")
	if *update {
		if err := os.WriteFile(file, got, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), string(got)); diff != "" {
		t.Errorf("%s (-want +got):\n%s", file, diff)
	}
}

func TestStopReasons(t *testing.T) {
	tool := []fulgur.ToolCall{{ID: "1", Name: "f", Arguments: "{}"}}
	for name, c := range map[string]struct {
		res  call.Result
		want string
	}{
		"the end":                               {call.Result{Finish: "stop"}, `"stop_reason":"end_turn","stop_sequence":null`},
		"a stop string":                         {call.Result{Finish: "stop", Stopped: `"x`}, `"stop_reason":"stop_sequence","stop_sequence":"\"x"`},
		"too long":                              {call.Result{Finish: "length"}, `"stop_reason":"max_tokens"`},
		"a call":                                {call.Result{Finish: "tool_calls", Reply: &fulgur.Message{ToolCalls: tool}}, `"stop_reason":"tool_use"`},
		"a call that the upstream calls a stop": {call.Result{Finish: "stop", Reply: &fulgur.Message{ToolCalls: tool}}, `"stop_reason":"tool_use"`},
		"a call that was cut":                   {call.Result{Finish: "length", Reply: &fulgur.Message{ToolCalls: tool}}, `"stop_reason":"max_tokens"`},
		"calls without a call":                  {call.Result{Finish: "tool_calls"}, `"stop_reason":"end_turn"`},
		"a filter":                              {call.Result{Finish: "content_filter"}, `"stop_reason":"refusal"`},
		"nobody knows":                          {call.Result{}, `"stop_reason":null`},
	} {
		if body := string(anthropic.Dialect{}.AppendAnswer(nil, nil, meta, &c.res)); !strings.Contains(body, c.want) || !json.Valid([]byte(body)) {
			t.Errorf("%s: %s", name, body)
		}
	}
}

// No client can read arguments that are no object: they are wrapped, and come
// back as what was sampled.
func TestArguments(t *testing.T) {
	for args, want := range map[string]string{
		``:                               `{}`,
		" \n":                            `{}`,
		`{}`:                             `{}`,
		` {"b": 1, "a":"\u00e9"} `:       ` {"b": 1, "a":"\u00e9"} `,
		`{"a":`:                          `{"INVALID_JSON":"{\"a\":"}`,
		`[1]`:                            `{"INVALID_JSON":"[1]"}`,
		`null`:                           `{"INVALID_JSON":"null"}`,
		`{"a":1}{"b":2}`:                 `{"INVALID_JSON":"{\"a\":1}{\"b\":2}"}`,
		`{"INVALID_JSON":"x"}`:           `{"INVALID_JSON":"{\"INVALID_JSON\":\"x\"}"}`,
		`{"INVALID_JSON":5}`:             `{"INVALID_JSON":5}`,
		`{"INVALID_JSON":"x","more":[]}`: `{"INVALID_JSON":"x","more":[]}`,
		"{\"a\":\"\xff\"}":               `{"INVALID_JSON":"{\"a\":\"\ufffd\"}"}`,
	} {
		sampled := fulgur.Message{Role: "assistant", ToolCalls: []fulgur.ToolCall{{ID: "1", Name: "f", Arguments: args}}}
		body := anthropic.Dialect{}.AppendAnswer(nil, nil, meta, &call.Result{Finish: "tool_calls", Reply: &sampled})
		if !strings.Contains(string(body), `"input":`+want+`}`) {
			t.Errorf("%q: %s", args, body)
		}
		if back := sentBack(t, whole(t, body)); strings.TrimSpace(args) != "" && utf8.ValidString(args) && !sampled.Same(back) {
			t.Errorf("%q comes back as %+v", args, back)
		}
	}
}

// sentBack is the normal form of an answer that a client puts into its next request.
func sentBack(t *testing.T, a answer) fulgur.Message {
	t.Helper()
	var blocks []map[string]any
	for _, c := range a.Content {
		b := map[string]any{"type": c.Type}
		switch c.Type {
		case "text":
			b["text"] = c.Text
		case "thinking":
			b["thinking"], b["signature"] = c.Thinking, c.Signature
		case "tool_use":
			b["id"], b["name"], b["input"] = c.ID, c.Name, c.Input
		}
		blocks = append(blocks, b)
	}
	body, err := json.Marshal(map[string]any{"messages": []any{map[string]any{"role": "assistant", "content": blocks}}})
	if err != nil {
		t.Fatal(err)
	}
	req := parse(t, string(body))
	if req.Invalid != nil || len(req.Messages) != 1 {
		t.Fatalf("%v: %s", req.Invalid, body)
	}
	return req.Messages[0]
}

func TestErrors(t *testing.T) {
	for name, c := range map[string]struct {
		f    dialect.Failure
		want string
	}{
		"of a known type": {dialect.Failure{Status: 429, Message: "wait", Type: "rate_limit_error", Code: "gateway_paused"},
			`{"type":"error","error":{"type":"rate_limit_error","message":"wait","code":"gateway_paused"}}`},
		"of a status": {dialect.Failure{Status: 404, Message: "no"}, `{"type":"error","error":{"type":"not_found_error","message":"no"}}`},
		"GW-23 a full context": {dialect.Failure{Status: 400, Type: "invalid_request_error", Code: "context_length_exceeded", Message: "9 > 8"},
			`{"type":"error","error":{"type":"invalid_request_error","message":"prompt is too long: 9 > 8 (context_length_exceeded)","code":"context_length_exceeded"}}`},
		"GW-23 one that says so": {dialect.Failure{Status: 400, Type: "invalid_request_error", Code: "context_length_exceeded", Message: "The prompt is too long"},
			`{"type":"error","error":{"type":"invalid_request_error","message":"The prompt is too long (context_length_exceeded)","code":"context_length_exceeded"}}`},
	} {
		if got := string(anthropic.Dialect{}.AppendError(nil, c.f)); got != c.want {
			t.Errorf("%s: %s", name, got)
		}
	}
}

func TestModelsAndCounts(t *testing.T) {
	d := anthropic.Dialect{}
	for _, c := range []struct {
		models []string
		want   string
	}{
		{nil, `{"data":[],"has_more":false,"first_id":null,"last_id":null}`},
		{[]string{"a", "b"}, `{"data":[{"type":"model","id":"a","display_name":"a","created_at":"1970-01-01T00:00:00Z"},{"type":"model","id":"b","display_name":"b","created_at":"1970-01-01T00:00:00Z"}],"has_more":false,"first_id":"a","last_id":"b"}`},
	} {
		if got := string(d.AppendModels(nil, c.models)); got != c.want {
			t.Error(got)
		}
	}
	if got := string(d.AppendCount(nil, 17)); got != `{"input_tokens":17}` {
		t.Error(got)
	}
	for header, want := range map[string]bool{"anthropic-version": true, "x-api-key": false, "Authorization": false} {
		if got := d.Lists(func(name string) string { return map[string]string{header: "x"}[name] }); got != want {
			t.Errorf("%s: %t", header, got)
		}
	}
}

// play makes an answer of bytes: its pieces, with signs of life between them,
// and the whole. Tool calls interleave, reasoning comes anywhere.
func play(data []byte) (b []byte, res *call.Result) {
	next := func() (c byte) {
		if len(data) > 0 {
			c, data = data[0], data[1:]
		}
		return c
	}
	word := func() string {
		n := min(int(next()%9), len(data))
		s := strings.ToValidUTF8(string(data[:n]), "北")
		data = data[n:]
		return s
	}
	reply := &fulgur.Message{Role: "assistant"}
	res = &call.Result{Status: 200, Reply: reply, PromptIDs: []int32{1, 2}, Finish: []string{"stop", "length", "tool_calls", ""}[next()%4]}
	if next()%2 == 0 {
		res.Usage = &fulgur.Usage{PromptTokens: 5, CompletionTokens: int(next()), CachedTokens: 3}
	}
	if next()%4 == 0 {
		res.Stopped = word()
	}
	out := anthropic.Dialect{}.Stream(nil, meta)
	for len(data) > 0 {
		var d call.Delta
		for op := next(); ; op = next() {
			switch op % 8 {
			case 0, 1:
				s := word()
				d.Text += s
				reply.Content += s
			case 2:
				s := word()
				d.Reasoning += s
				reply.Reasoning += s
			case 3:
				c := fulgur.ToolCall{ID: word(), Name: "f" + word(), Arguments: `{"a":` + word()}
				d.Tools = append(d.Tools, call.ToolDelta{Index: len(reply.ToolCalls), ID: c.ID, Name: c.Name, Arguments: c.Arguments})
				reply.ToolCalls = append(reply.ToolCalls, c)
			case 4:
				if n := len(reply.ToolCalls); n > 0 {
					i, s := int(next())%n, word()
					d.Tools = append(d.Tools, call.ToolDelta{Index: i, Arguments: s})
					reply.ToolCalls[i].Arguments += s
				}
			case 5:
				b = out.KeepAlive(b)
			case 6:
				d.Tokens, d.PromptIDs = []call.Token{{ID: 1}}, res.PromptIDs
			case 7:
				d.Last = op > 200
			}
			if op < 160 || len(data) == 0 {
				break
			}
		}
		b = out.Delta(b, d)
	}
	return out.Close(b, res), res
}

// checkPlay: a stream put together, and the unstreamed answer, say the same, and
// come back as what was sampled.
func checkPlay(t *testing.T, data []byte) {
	t.Helper()
	b, res := play(data)
	var events []sse.Event
	var p sse.Parser
	if err := p.Feed(b, func(e sse.Event) error { events = append(events, e); return nil }); err != nil {
		t.Fatal(err)
	}
	got, done := accumulate(t, events)
	body := anthropic.Dialect{}.AppendAnswer(nil, nil, meta, res)
	want := whole(t, body)
	gotBack, wantBack := sentBack(t, got), sentBack(t, want)
	got.Content, want.Content = nil, nil
	if diff := cmp.Diff(want, got) + cmp.Diff(wantBack, gotBack); diff != "" || !done {
		t.Errorf("done %t (-unstreamed +streamed):\n%s\n%s\n%s", done, diff, b, body)
	}
	if !res.Reply.Same(gotBack) {
		t.Errorf("sampled %+v\nback    %+v", res.Reply, gotBack)
	}
}

func TestStreamsSayWhatUnstreamedAnswersSay(t *testing.T) {
	rnd := rand.New(rand.NewPCG(1, 2))
	for range 1000 {
		data := make([]byte, rnd.IntN(120))
		for i := range data {
			data[i] = byte(rnd.Uint32())
		}
		checkPlay(t, data)
	}
}

func FuzzStream(f *testing.F) {
	f.Add([]byte("\x02\x01\x01\x02\x05think\x00\x05hello\x03\x01a\x01f\x03\"b\"\x04\x00\x01}\x05\x03\x01b\x01g\x00\xff\x00"))
	f.Add(bytes.Repeat([]byte{3, 1, 'k', 1, 'f', 2, '{', '}'}, 4))
	f.Fuzz(func(t *testing.T, data []byte) { checkPlay(t, data) })
}

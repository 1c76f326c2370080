package openairesponses_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/fulgur-rl/fulgur"
	"github.com/fulgur-rl/fulgur/internal/gateway/call"
	"github.com/fulgur-rl/fulgur/internal/gateway/dialect"
	"github.com/fulgur-rl/fulgur/internal/gateway/dialect/dialecttest"
	"github.com/fulgur-rl/fulgur/internal/gateway/dialect/openairesponses"
	"github.com/fulgur-rl/fulgur/internal/gateway/dialect/sse"
)

// response and event are what a client reads, independent of the dialect's code.
type response struct {
	ID, Status string
	Output     []outputItem
	Usage      *struct {
		Input  int `json:"input_tokens"`
		Output int `json:"output_tokens"`
		Total  int `json:"total_tokens"`
	}
	Incomplete *struct{ Reason string } `json:"incomplete_details"`
	Error      *struct{ Code, Message string }
	Tools      []json.RawMessage
}

type outputItem struct {
	ID, Type, Status, Name, Namespace, Arguments, Input string
	CallID                                              string `json:"call_id"`
	Content, Summary                                    []struct{ Type, Text string }
	Encrypted                                           string `json:"encrypted_content"`
}

type event struct {
	Type     string
	Seq      *int `json:"sequence_number"`
	Response *response
	Item     outputItem
	ItemID   string `json:"item_id"`
	Index    int    `json:"output_index"`
	Delta    string
	Text     string
	Args     string `json:"arguments"`
	Input    string
}

func replyOf(r response) dialecttest.Reply {
	out := dialecttest.Reply{Finish: r.Status}
	if r.Usage != nil {
		out.Usage = &fulgur.Usage{PromptTokens: r.Usage.Input, CompletionTokens: r.Usage.Output}
	}
	for _, it := range r.Output {
		switch it.Type {
		case "message":
			for _, c := range it.Content {
				out.Text += c.Text
			}
		case "function_call":
			out.Tools = append(out.Tools, fulgur.ToolCall{ID: it.CallID, Name: it.Name, Arguments: it.Arguments})
		}
	}
	return out
}

func parseEvents(t testing.TB, b []byte) []sse.Event {
	t.Helper()
	var out []sse.Event
	var p sse.Parser
	if err := p.Feed(b, func(e sse.Event) error {
		out = append(out, e)
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	return out
}

// collect reads a stream as a strict client: the order of events, the counting,
// and that deltas, done events, items and the last response say one thing.
func collect(t testing.TB, events []sse.Event) (last response, name string) {
	t.Helper()
	text := map[int]string{}
	var items []outputItem
	done := map[int]bool{}
	for i, e := range events {
		var ev event
		if err := json.Unmarshal(e.Data, &ev); err != nil || ev.Type != e.Name || ev.Seq == nil || *ev.Seq != i {
			t.Fatalf("event %d: %v %s: %s", i, err, e.Name, e.Data)
		}
		if name != "" {
			t.Fatalf("behind %s: %s", name, e.Data)
		}
		if created := []string{"response.created", "response.in_progress"}; i < 2 && ev.Type != created[i] {
			t.Fatalf("event %d is %s", i, ev.Type)
		}
		if ev.ItemID != "" && (ev.Index >= len(items) || items[ev.Index].ID != ev.ItemID || done[ev.Index]) {
			t.Fatalf("no such item is open: %s", e.Data)
		}
		same := func(got, want string) {
			if got != want {
				t.Fatalf("%s says %q, its pieces %q", ev.Type, got, want)
			}
		}
		switch ev.Type {
		case "response.output_item.added":
			if ev.Index != len(items) {
				t.Fatalf("item %d is added as %d", len(items), ev.Index)
			}
			items = append(items, ev.Item)
		case "response.output_text.delta", "response.reasoning_summary_text.delta", "response.function_call_arguments.delta", "response.custom_tool_call_input.delta":
			text[ev.Index] += ev.Delta
		case "response.output_text.done", "response.reasoning_summary_text.done":
			same(ev.Text, text[ev.Index])
		case "response.function_call_arguments.done":
			same(ev.Args, text[ev.Index])
		case "response.custom_tool_call_input.done":
			same(ev.Input, text[ev.Index])
		case "response.output_item.done":
			it := ev.Item
			said := it.Arguments + it.Input
			for _, p := range append(it.Content, it.Summary...) {
				said += p.Text
			}
			same(said, text[ev.Index])
			items[ev.Index], done[ev.Index] = it, true
		case "response.completed", "response.incomplete", "response.failed":
			last, name = *ev.Response, ev.Type
		}
	}
	if name == "response.completed" || name == "response.incomplete" {
		if diff := cmp.Diff(items, last.Output); diff != "" || len(done) != len(items) {
			t.Fatalf("items and response differ (-items +response), %d of %d done:\n%s", len(done), len(items), diff)
		}
	}
	return last, name
}

func TestSuite(t *testing.T) {
	dialecttest.Run(t, dialecttest.Subject{
		Dialect:     openairesponses.Dialect{},
		AlwaysUsage: true,
		Finish:      map[string]string{"stop": "completed", "length": "incomplete", "tool_calls": "completed"},
		Request: func(text string, stream, _ bool) string {
			q, _ := json.Marshal(text)
			return fmt.Sprintf(`{"model":"m","stream":%t,"input":[{"role":"user","content":%s}]}`, stream, q)
		},
		ReadAnswer: func(t *testing.T, body []byte) dialecttest.Reply {
			var r response
			if err := json.Unmarshal(body, &r); err != nil {
				t.Fatalf("%v: %s", err, body)
			}
			return replyOf(r)
		},
		ReadEvents: func(t *testing.T, events []sse.Event) (dialecttest.Reply, bool) {
			last, name := collect(t, events)
			return replyOf(last), name == "response.completed" || name == "response.incomplete"
		},
	})
}

func parse(t testing.TB, body string) *call.Request {
	t.Helper()
	req, err := openairesponses.Dialect{}.Parse([]byte(body))
	if err != nil {
		t.Fatalf("%v: %s", err, body)
	}
	return req
}

var meta = dialect.Meta{ID: "c1", Created: 1700000000, Model: "m"}

func TestAnswer(t *testing.T) {
	req := parse(t, `{"model":"m","input":"x","instructions":"be brief","temperature":0.5,"tool_choice":"required","parallel_tool_calls":false,"metadata":{"a":"b"},
		"tools":[{"type":"web_search"},{"type":"function","name":"f","parameters":{"z":1,"a":2}}]}`)
	res := &call.Result{Status: 200, Finish: "length", Usage: &fulgur.Usage{PromptTokens: 5, CompletionTokens: 2, CachedTokens: 3},
		Reply: &fulgur.Message{Reasoning: "hm", Content: "yes", ToolCalls: []fulgur.ToolCall{{ID: "k", Name: "f", Arguments: `{"a":  "\u0065"}`}}}}
	got := string(openairesponses.Dialect{}.AppendAnswer(nil, req, meta, res))
	want := `{"id":"resp_c1","object":"response","created_at":1700000000,"status":"incomplete","background":false,"error":null,` +
		`"incomplete_details":{"reason":"max_output_tokens"},"instructions":"be brief","max_output_tokens":null,"model":"m","output":[` +
		`{"id":"rs_c1_0","type":"reasoning","summary":[{"type":"summary_text","text":"hm"}]},` +
		`{"id":"msg_c1_1","type":"message","status":"completed","role":"assistant","content":[{"type":"output_text","text":"yes","annotations":[],"logprobs":[]}]},` +
		`{"id":"fc_c1_2","type":"function_call","status":"incomplete","call_id":"k","name":"f","arguments":"{\"a\":  \"\\u0065\"}"}],` +
		`"parallel_tool_calls":false,"previous_response_id":null,"reasoning":{"effort":null,"summary":null},"store":false,"temperature":0.5,` +
		`"text":{"format":{"type":"text"}},"tool_choice":"required","tools":[{"type":"web_search"},{"type":"function","name":"f","parameters":{"z":1,"a":2}}],` +
		`"top_p":1,"truncation":"disabled","usage":{"input_tokens":5,"input_tokens_details":{"cached_tokens":3},"output_tokens":2,` +
		`"output_tokens_details":{"reasoning_tokens":0},"total_tokens":7},"user":null,"metadata":{"a":"b"}}`
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

// An upstream's refusal reaches the client in this API's shape.
func TestUpstreamErrors(t *testing.T) {
	for name, c := range map[string]struct{ raw, want string }{
		"OpenAI's shape": {`{"error":{"message":"too long","type":"invalid_request_error","code":"context_length_exceeded","param":"messages"}}`,
			`{"type":"error","error":{"message":"too long","type":"invalid_request_error","param":"messages","code":"context_length_exceeded"}}`},
		"vLLM's older shape": {`{"object":"error","message":"bad","type":"BadRequestError","code":400}`,
			`{"type":"error","error":{"message":"bad","type":"BadRequestError","param":null,"code":null}}`},
		"a page": {`<html>`, `{"type":"error","error":{"message":"upstream answered with status 400","type":"invalid_request_error","param":null,"code":null}}`},
	} {
		res := &call.Result{Status: 400, Raw: []byte(c.raw), Wire: "openai-chat", Fault: "upstream answered with status 400"}
		if got := string(openairesponses.Dialect{}.AppendAnswer(nil, parse(t, `{"input":"x"}`), meta, res)); got != c.want {
			t.Errorf("%s: %s", name, got)
		}
	}
}

// An answer or event in this dialect's own wire format goes out as it is.
func TestRelay(t *testing.T) {
	req := parse(t, `{"input":"x","stream":true}`)
	res := &call.Result{Status: 200, Raw: []byte(`{"id":"theirs"}`), Wire: "openai-responses", Relayed: true}
	if got := string(openairesponses.Dialect{}.AppendAnswer(nil, req, meta, res)); got != `{"id":"theirs"}` {
		t.Error(got)
	}
	s := openairesponses.Dialect{}.Stream(req, meta)
	b := s.Delta(nil, call.Delta{Wire: "openai-responses", Raw: []byte(`{"type":"response.created"}`)})
	if got := string(s.Delta(nil, call.Delta{Wire: "openai-responses", Raw: []byte(`{"type":"response.completed"}`), Last: true})); got != "" {
		t.Error(got)
	}
	want := "event: response.created\ndata: {\"type\":\"response.created\"}\n\nevent: response.completed\ndata: {\"type\":\"response.completed\"}\n\n"
	if got := string(s.Close(b, res)); got != want {
		t.Error(got)
	}
}

func TestModels(t *testing.T) {
	got := string(openairesponses.Dialect{}.AppendModels(nil, []string{"a"}))
	if !strings.Contains(got, `{"id":"a","object":"model"`) {
		t.Error(got)
	}
}

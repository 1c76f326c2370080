package openairesponses_test

import (
	"encoding/json"
	"errors"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/openai/openai-go/v3"
	"github.com/openai/openai-go/v3/option"
	"github.com/openai/openai-go/v3/packages/param"
	"github.com/openai/openai-go/v3/responses"

	"github.com/fulgur-rl/fulgur"
	"github.com/fulgur-rl/fulgur/internal/gateway/call"
	"github.com/fulgur-rl/fulgur/internal/gateway/dialect"
	"github.com/fulgur-rl/fulgur/internal/gateway/dialect/openairesponses"
)

// house is a server of the dialect alone: it answers by what it is told, and
// keeps what it was asked.
type house struct {
	reply  func(msgs []fulgur.Message) fulgur.Message
	finish string
	broken bool
	asked  []*call.Request
}

func (h *house) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	d := openairesponses.Dialect{}
	fail := func(f dialect.Failure) {
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(f.Status)
		_, _ = w.Write(d.AppendError(nil, f))
	}
	body, err := io.ReadAll(r.Body)
	if err != nil || r.URL.Path != "/"+d.Paths()[0] {
		fail(dialect.Failure{Status: 404, Message: "no such page"})
		return
	}
	req, err := d.Parse(body)
	if err == nil {
		err = req.Invalid
	}
	if err != nil {
		f := dialect.Failure{Status: 400, Message: fulgur.PublicMessage(err), Type: "invalid_request_error", Code: "invalid"}
		var field *dialect.FieldError
		if errors.As(err, &field) {
			f.Param = field.Param
		}
		fail(f)
		return
	}
	h.asked = append(h.asked, req)
	m := h.reply(req.Messages)
	res := &call.Result{Status: 200, Finish: h.finish, Reply: &m, Usage: &fulgur.Usage{PromptTokens: 5, CompletionTokens: 7}}
	if !req.Stream {
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write(d.AppendAnswer(nil, req, meta, res))
		return
	}
	w.Header().Set("Content-Type", "text/event-stream")
	random := rand.New(rand.NewPCG(uint64(len(h.asked)), 1))
	deltas := script(m, random, true)
	if h.broken {
		s := d.Stream(req, meta)
		_, _ = w.Write(s.Fail(s.Delta(nil, deltas[0]), dialect.Failure{Status: 502, Message: "it broke", Type: "api_error"}))
		panic(http.ErrAbortHandler)
	}
	_, _ = w.Write(stream(req, deltas, res, random))
}

func (h *house) client(t *testing.T) openai.Client {
	t.Helper()
	s := httptest.NewServer(h)
	t.Cleanup(s.Close)
	return openai.NewClient(option.WithBaseURL(s.URL+"/openai/v1/"), option.WithAPIKey("k"), option.WithMaxRetries(0))
}

func params(items ...responses.ResponseInputItemUnionParam) responses.ResponseNewParams {
	return responses.ResponseNewParams{
		Model:        "policy",
		Instructions: param.NewOpt("be brief"),
		Input:        responses.ResponseNewParamsInputUnion{OfInputItemList: items},
		Tools:        []responses.ToolUnionParam{responses.ToolParamOfFunction("add", map[string]any{"type": "object"}, true)},
		Store:        param.NewOpt(false),
		Include:      []responses.ResponseIncludable{"reasoning.encrypted_content"},
	}
}

// streamed asks with a stream, and collects it with the SDK's own accumulator.
func streamed(t *testing.T, client openai.Client, p responses.ResponseNewParams) *responses.Response {
	t.Helper()
	s := client.Responses.NewStreaming(t.Context(), p)
	var acc responses.ResponseAccumulator
	for s.Next() {
		var ev responses.ResponsesServerEventUnion
		if err := json.Unmarshal([]byte(s.Current().RawJSON()), &ev); err != nil {
			t.Fatal(err)
		}
		before := acc.Snapshot()
		if err := acc.AddEvent(ev); err != nil {
			t.Fatalf("the SDK does not take %s: %v", ev.RawJSON(), err)
		}
		if after := acc.Snapshot(); after.TerminalEvent != "" { // its pieces say what its end says
			before.TerminalEvent = after.TerminalEvent
			if diff := cmp.Diff(before, after); diff != "" {
				t.Errorf("the pieces differ from the response (-pieces +response):\n%s", diff)
			}
		}
	}
	if err := s.Err(); err != nil {
		t.Fatal(err)
	}
	r, err := acc.ReconstructedResponse()
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// GW-04: a task with tools in parallel over the official SDK, streaming and not:
// the harness sends its items back, and each turn is known again.
func TestSDKTask(t *testing.T) {
	two := fulgur.Message{Role: "assistant", Reasoning: "two at once", Content: "let me see", ToolCalls: []fulgur.ToolCall{
		{ID: "k0", Name: "add", Arguments: `{"a":  "北京"}`}, {ID: "k1", Name: "add", Arguments: `{"a": 2}`}}}
	for name, ask := range map[string]func(*testing.T, openai.Client, responses.ResponseNewParams) *responses.Response{
		"streamed": streamed,
		"unstreamed": func(t *testing.T, client openai.Client, p responses.ResponseNewParams) *responses.Response {
			r, err := client.Responses.New(t.Context(), p)
			if err != nil {
				t.Fatal(err)
			}
			return r
		},
	} {
		t.Run(name, func(t *testing.T) {
			h := &house{finish: "stop", reply: func(msgs []fulgur.Message) fulgur.Message {
				if msgs[len(msgs)-1].Role == "tool" {
					return fulgur.Message{Role: "assistant", Content: "done"}
				}
				return two
			}}
			client := h.client(t)
			user := responses.ResponseInputItemParamOfMessage("go", responses.EasyInputMessageRoleUser)
			first := ask(t, client, params(user))
			if first.Status != "completed" || first.OutputText() != "let me see" || first.ID != "resp_c1" || len(first.Tools) != 1 ||
				first.Usage.InputTokens != 5 || first.Usage.OutputTokens != 7 || first.Usage.TotalTokens != 12 {
				t.Errorf("first: %s", first.RawJSON())
			}
			items := []responses.ResponseInputItemUnionParam{user}
			var results []responses.ResponseInputItemUnionParam
			for _, it := range first.Output {
				items = append(items, param.Override[responses.ResponseInputItemUnionParam](json.RawMessage(it.RawJSON())))
				if it.Type == "function_call" {
					out := responses.ResponseInputItemParamOfFunctionCallOutput("result of " + it.CallID)
					out.OfFunctionCallOutput.CallID = param.NewOpt(it.CallID)
					results = append(results, out)
				}
			}
			second := ask(t, client, params(append(items, results...)...))
			if second.OutputText() != "done" || len(h.asked) != 2 {
				t.Fatalf("second: %s", second.RawJSON())
			}
			want := []fulgur.Message{{Role: "system", Content: "be brief"}, {Role: "user", Content: "go"}, two,
				{Role: "tool", ToolCallID: "k0", Content: "result of k0"}, {Role: "tool", ToolCallID: "k1", Content: "result of k1"}}
			if diff := cmp.Diff(want, h.asked[1].Messages); diff != "" {
				t.Errorf("what came back (-want +got):\n%s", diff)
			}
			if got := string(h.asked[1].Tools[0].Raw); got != `{"type":"function","function":{"name":"add","parameters":{"type":"object"},"strict":true}}` {
				t.Error(got)
			}
		})
	}
}

func TestSDKSeesErrors(t *testing.T) {
	h := &house{finish: "length", reply: func([]fulgur.Message) fulgur.Message { return fulgur.Message{Content: "some text"} }}
	client := h.client(t)
	user := responses.ResponseInputItemParamOfMessage("go", responses.EasyInputMessageRoleUser)
	p := params(user)
	p.PreviousResponseID = param.NewOpt("resp_0")
	_, err := client.Responses.New(t.Context(), p)
	var api *openai.Error
	if !errors.As(err, &api) || api.StatusCode != 400 || api.Param != "previous_response_id" || api.Type != "invalid_request_error" || !strings.Contains(api.Message, "whole conversation") {
		t.Errorf("%v", err)
	}
	if r := streamed(t, client, params(user)); r.Status != "incomplete" || r.IncompleteDetails.Reason != "max_output_tokens" {
		t.Errorf("cut: %s", r.RawJSON())
	}
	h.broken = true
	s := client.Responses.NewStreaming(t.Context(), params(user))
	var last string
	for s.Next() {
		last = s.Current().Type
	}
	if err := s.Err(); err == nil || !strings.Contains(err.Error(), "it broke") || last != "response.failed" {
		t.Errorf("broken: %v, last event %s", err, last)
	}
}

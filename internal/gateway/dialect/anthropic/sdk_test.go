package anthropic_test

import (
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	sdk "github.com/anthropics/anthropic-sdk-go"
	"github.com/anthropics/anthropic-sdk-go/option"
	"github.com/google/go-cmp/cmp"

	"github.com/fulgur-rl/fulgur"
	"github.com/fulgur-rl/fulgur/internal/gateway/call"
	"github.com/fulgur-rl/fulgur/internal/gateway/dialect"
	"github.com/fulgur-rl/fulgur/internal/gateway/dialect/anthropic"
)

// server answers over the dialect: each conversation's next reply by its number
// of messages, in small pieces, with pings. fail: streams break in the middle.
type server struct {
	t       *testing.T
	replies map[int]fulgur.Message
	fail    bool
	seen    []*call.Request
}

func (s *server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	d := anthropic.Dialect{}
	path := strings.TrimPrefix(r.URL.Path, "/")
	if r.Method == http.MethodGet {
		if !d.Lists(r.Header.Get) {
			s.t.Error("the SDK's request for models is not known as one of this dialect")
		}
		_, _ = w.Write(d.AppendModels(nil, []string{"policy", "judge"}))
		return
	}
	body, err := io.ReadAll(r.Body)
	if err != nil {
		s.t.Error(err)
	}
	req, err := d.Parse(body)
	if err == nil {
		err = req.Invalid
	}
	switch {
	case err != nil:
		w.WriteHeader(http.StatusBadRequest)
		_, _ = w.Write(d.AppendError(nil, dialect.Failure{Status: 400, Type: "invalid_request_error", Message: fulgur.PublicMessage(err)}))
	case slices.Contains(d.CountPaths(), path):
		_, _ = w.Write(d.AppendCount(nil, 11*len(req.Messages)))
	case slices.Contains(d.Paths(), path):
		s.seen = append(s.seen, req)
		s.answer(w, req)
	default:
		http.NotFound(w, r)
	}
}

func (s *server) answer(w http.ResponseWriter, req *call.Request) {
	d := anthropic.Dialect{}
	reply := s.replies[len(req.Messages)]
	res := &call.Result{Status: 200, Finish: "stop", Reply: &reply, PromptIDs: make([]int32, 7), Usage: &fulgur.Usage{PromptTokens: 7, CompletionTokens: 5, CachedTokens: 4}}
	if len(reply.ToolCalls) > 0 {
		res.Finish = "tool_calls"
	}
	if !req.Stream {
		_, _ = w.Write(d.AppendAnswer(nil, req, meta, res))
		return
	}
	w.Header().Set("Content-Type", "text/event-stream; charset=utf-8")
	out := d.Stream(req, meta)
	b := out.KeepAlive(nil) // also before message_start
	for _, c := range reply.Reasoning {
		b = out.Delta(b, call.Delta{Reasoning: string(c), PromptIDs: res.PromptIDs})
	}
	for _, c := range reply.Content {
		b = out.KeepAlive(out.Delta(b, call.Delta{Text: string(c), PromptIDs: res.PromptIDs}))
	}
	for i, c := range reply.ToolCalls {
		b = out.Delta(b, call.Delta{Tools: []call.ToolDelta{{Index: i, ID: c.ID, Name: c.Name}}})
		for _, r := range c.Arguments {
			b = out.Delta(b, call.Delta{Tools: []call.ToolDelta{{Index: i, Arguments: string(r)}}})
		}
	}
	if s.fail {
		_, _ = w.Write(out.Fail(b, dialect.Failure{Status: 502, Type: "api_error", Message: "it broke"}))
		_ = http.NewResponseController(w).Flush()
		panic(http.ErrAbortHandler)
	}
	_, _ = w.Write(out.Close(b, res))
}

func serve(t *testing.T, s *server) sdk.Client {
	s.t = t
	srv := httptest.NewServer(s)
	t.Cleanup(srv.Close)
	return sdk.NewClient(option.WithBaseURL(srv.URL+"/anthropic/"), option.WithAPIKey("k"), option.WithMaxRetries(0))
}

func params(msgs ...sdk.MessageParam) sdk.MessageNewParams {
	return sdk.MessageNewParams{
		Model: "policy", MaxTokens: 100, Messages: msgs,
		System: []sdk.TextBlockParam{{Text: "Be brief.", CacheControl: sdk.NewCacheControlEphemeralParam()}},
		Tools: []sdk.ToolUnionParam{{OfTool: &sdk.ToolParam{Name: "add", Description: sdk.String("Adds."),
			InputSchema: sdk.ToolInputSchemaParam{Properties: map[string]any{"a": map[string]any{"type": "number"}}}}}},
	}
}

// GW-03: Anthropic's own SDK, streaming and not: a turn with reasoning, text and
// two tool calls (one of which is no JSON), its results, and the answer.
func TestSDK(t *testing.T) {
	first := fulgur.Message{Role: "assistant", Reasoning: "Hm, 北.", Content: " Let me \"see\"\n", ToolCalls: []fulgur.ToolCall{
		{ID: "k0", Name: "add", Arguments: `{"b": "北京",  "a":[1, 2.50]}`}, {ID: "k1", Name: "add", Arguments: `{"a":`}}}
	for _, stream := range []bool{false, true} {
		s := &server{replies: map[int]fulgur.Message{2: first, 5: {Role: "assistant", Content: "done"}}}
		client := serve(t, s)
		ask := func(p sdk.MessageNewParams) *sdk.Message {
			t.Helper()
			if !stream {
				m, err := client.Messages.New(t.Context(), p)
				if err != nil {
					t.Fatal(err)
				}
				return m
			}
			events := client.Messages.NewStreaming(t.Context(), p)
			var m sdk.Message
			for events.Next() {
				if err := m.Accumulate(events.Current()); err != nil {
					t.Fatal(err)
				}
			}
			if err := events.Err(); err != nil {
				t.Fatal(err)
			}
			return &m
		}
		user := sdk.NewUserMessage(sdk.NewTextBlock("go"))
		m := ask(params(user))
		if m.ID != "msg_c1" || m.Model != "m" || m.StopReason != sdk.StopReasonToolUse || m.Usage.InputTokens != 3 || m.Usage.CacheReadInputTokens != 4 || m.Usage.OutputTokens != 5 {
			t.Errorf("stream %t: %s", stream, m.RawJSON())
		}
		var results []sdk.ContentBlockParamUnion
		for _, b := range m.Content {
			if use, ok := b.AsAny().(sdk.ToolUseBlock); ok {
				var input map[string]any
				if err := json.Unmarshal(use.Input, &input); err != nil {
					t.Errorf("stream %t: %s: %v", stream, use.Input, err)
				}
				results = append(results, sdk.NewToolResultBlock(use.ID, "result of "+use.ID, len(results) > 0))
			}
		}
		end := ask(params(user, m.ToParam(), sdk.NewUserMessage(results...)))
		if end.StopReason != sdk.StopReasonEndTurn || len(end.Content) != 1 || end.Content[0].Text != "done" {
			t.Errorf("stream %t: %s", stream, end.RawJSON())
		}
		got := s.seen[1].Messages
		if len(got) != 5 || !first.Same(got[2]) {
			t.Fatalf("stream %t: sent back %+v", stream, got)
		}
		want := []fulgur.Message{{Role: "tool", ToolCallID: "k0", Content: "result of k0"}, {Role: "tool", ToolCallID: "k1", Content: "result of k1"}}
		if diff := cmp.Diff(want, got[3:]) + cmp.Diff(s.seen[0].Tools, s.seen[1].Tools); diff != "" || len(s.seen[0].Tools) != 1 {
			t.Errorf("stream %t (-want +got):\n%s", stream, diff)
		}
	}
}

func TestSDKBeta(t *testing.T) {
	client := serve(t, &server{replies: map[int]fulgur.Message{1: {Content: "hi", Reasoning: "r", ToolCalls: []fulgur.ToolCall{{Name: "f"}}}}})
	p := sdk.BetaMessageNewParams{Model: "policy", MaxTokens: 9, Betas: []sdk.AnthropicBeta{"a-beta-of-tomorrow"},
		Messages: []sdk.BetaMessageParam{sdk.NewBetaUserMessage(sdk.NewBetaTextBlock("x"))}}
	events := client.Beta.Messages.NewStreaming(t.Context(), p)
	var m sdk.BetaMessage
	for events.Next() {
		if err := m.Accumulate(events.Current()); err != nil {
			t.Fatal(err)
		}
	}
	if events.Err() != nil || len(m.Content) != 3 || m.Content[1].Text != "hi" || m.Content[2].ID == "" {
		t.Errorf("%v: %s", events.Err(), m.RawJSON())
	}
}

func TestSDKErrors(t *testing.T) {
	client := serve(t, &server{fail: true, replies: map[int]fulgur.Message{2: {Content: "half", ToolCalls: []fulgur.ToolCall{{Name: "add", Arguments: `{}`}}}}})
	p := params(sdk.NewUserMessage(sdk.NewTextBlock("go")))
	p.MaxTokens = 0
	_, err := client.Messages.New(t.Context(), p)
	var api *sdk.Error
	if !errors.As(err, &api) || api.StatusCode != 400 || api.Type() != "invalid_request_error" || !strings.Contains(api.Error(), "max_tokens must be at least 1") {
		t.Errorf("%v", err)
	}
	events := client.Messages.NewStreaming(t.Context(), params(sdk.NewUserMessage(sdk.NewTextBlock("go"))))
	var m sdk.Message
	for events.Next() {
		if err := m.Accumulate(events.Current()); err != nil {
			t.Fatal(err)
		}
	}
	if err := events.Err(); err == nil || !strings.Contains(err.Error(), "it broke") || m.StopReason != "" || len(m.Content) != 1 {
		t.Errorf("%v: %s", err, m.RawJSON()) // no part of the call was seen
	}
}

func TestSDKModelsAndCounts(t *testing.T) {
	client := serve(t, &server{})
	n, err := client.Messages.CountTokens(t.Context(), sdk.MessageCountTokensParams{Model: "policy",
		System:   sdk.MessageCountTokensParamsSystemUnion{OfString: sdk.String("s")},
		Messages: []sdk.MessageParam{sdk.NewUserMessage(sdk.NewTextBlock("go"))}})
	if err != nil || n.InputTokens != 22 {
		t.Errorf("%+v %v", n, err)
	}
	var models []string
	list := client.Models.ListAutoPaging(t.Context(), sdk.ModelListParams{})
	for list.Next() {
		models = append(models, list.Current().ID)
	}
	if list.Err() != nil || !slices.Equal(models, []string{"policy", "judge"}) {
		t.Errorf("%v %v", models, list.Err())
	}
}

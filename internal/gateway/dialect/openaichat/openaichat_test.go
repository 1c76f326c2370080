package openaichat_test

import (
	"encoding/json"
	"fmt"
	"runtime"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/fulgur-rl/fulgur"
	"github.com/fulgur-rl/fulgur/internal/gateway/call"
	"github.com/fulgur-rl/fulgur/internal/gateway/dialect"
	"github.com/fulgur-rl/fulgur/internal/gateway/dialect/dialecttest"
	"github.com/fulgur-rl/fulgur/internal/gateway/dialect/openaichat"
	"github.com/fulgur-rl/fulgur/internal/gateway/dialect/sse"
)

type wire struct {
	Choices []struct {
		Message, Delta struct {
			Role      string
			Content   *string
			ToolCalls []struct {
				Index    int
				ID       string
				Function struct{ Name, Arguments string }
			} `json:"tool_calls"`
		}
		FinishReason string `json:"finish_reason"`
	}
	Usage *struct {
		PromptTokens     int `json:"prompt_tokens"`
		CompletionTokens int `json:"completion_tokens"`
	}
}

func usage(w wire) *fulgur.Usage {
	if w.Usage == nil {
		return nil
	}
	return &fulgur.Usage{PromptTokens: w.Usage.PromptTokens, CompletionTokens: w.Usage.CompletionTokens}
}

func TestSuite(t *testing.T) {
	dialecttest.Run(t, dialecttest.Subject{
		Dialect: openaichat.Dialect{},
		Finish:  map[string]string{"stop": "stop", "length": "length", "tool_calls": "tool_calls"},
		Request: func(text string, stream, usage bool) string {
			q, _ := json.Marshal(text)
			return fmt.Sprintf(`{"model":"m","stream":%t,"stream_options":{"include_usage":%t},"messages":[{"role":"user","content":%s}]}`, stream, usage, q)
		},
		ReadAnswer: func(t *testing.T, body []byte) dialecttest.Reply {
			var w wire
			if err := json.Unmarshal(body, &w); err != nil || len(w.Choices) != 1 {
				t.Fatalf("%v: %s", err, body)
			}
			c := w.Choices[0]
			r := dialecttest.Reply{Text: *c.Message.Content, Finish: c.FinishReason, Usage: usage(w)}
			for _, k := range c.Message.ToolCalls {
				r.Tools = append(r.Tools, fulgur.ToolCall{ID: k.ID, Name: k.Function.Name, Arguments: k.Function.Arguments})
			}
			return r
		},
		ReadEvents: func(t *testing.T, events []sse.Event) (r dialecttest.Reply, done bool) {
			roles := 0
			for _, e := range events {
				if done {
					t.Errorf("behind [DONE]: %s", e.Data)
				}
				if string(e.Data) == "[DONE]" {
					done = true
					continue
				}
				var w wire
				if err := json.Unmarshal(e.Data, &w); err != nil || w.Choices == nil {
					t.Fatalf("%v: %s", err, e.Data) // opencode: each event has choices
				}
				if u := usage(w); u != nil {
					r.Usage = u
				}
				for _, c := range w.Choices {
					if c.Delta.Role != "" {
						roles++
					}
					if c.Delta.Content != nil {
						r.Text += *c.Delta.Content
					}
					for _, k := range c.Delta.ToolCalls {
						if k.Index == len(r.Tools) {
							r.Tools = append(r.Tools, fulgur.ToolCall{ID: k.ID, Name: k.Function.Name})
						}
						r.Tools[k.Index].Arguments += k.Function.Arguments
					}
					r.Finish += c.FinishReason
				}
			}
			if roles != 1 {
				t.Errorf("%d chunks with a role", roles)
			}
			return r, done
		},
	})
}

func TestParseMessages(t *testing.T) {
	req, err := openaichat.Dialect{}.Parse([]byte(`{"messages":[
		{"role":"system","content":[{"type":"text","text":"a","cache_control":{}},{"type":"text","text":"b"}]},
		{"role":"assistant","content":null,"reasoning_content":"hm","tool_calls":[{"id":"1","type":"function","function":{"name":"f","arguments":"{}"}}]},
		{"role":"assistant","reasoning":"so","refusal":null},
		{"role":"tool","tool_call_id":"1","content":""}],
		"tools":[{"function":{"parameters":{"z":1,"a":2},"name":"f"},"type":"function"},{"type":"web_search"}],
		"tool_choice":{"type":"function","function":{"name":"f"}},"max_tokens":5,"max_completion_tokens":7,"stop":"x","top_k":3,"min_p":0.1}`))
	if err != nil || req.Invalid != nil {
		t.Fatal(err, req.Invalid)
	}
	want := []fulgur.Message{{Role: "system", Content: "ab"},
		{Role: "assistant", Reasoning: "hm", ToolCalls: []fulgur.ToolCall{{ID: "1", Name: "f", Arguments: "{}"}}},
		{Role: "assistant", Reasoning: "so"}, {Role: "tool", ToolCallID: "1"}}
	if diff := cmp.Diff(want, req.Messages); diff != "" {
		t.Error(diff)
	}
	if len(req.Tools) != 1 || string(req.Tools[0].Raw) != `{"function":{"parameters":{"z":1,"a":2},"name":"f"},"type":"function"}` || string(req.Tools[0].Schema) != `{"z":1,"a":2}` {
		t.Errorf("tools: %+v", req.Tools)
	}
	if fmt.Sprint(req.Constrained, req.Relayed, *req.Wishes.MaxTokens, req.Wishes.Stop, *req.Wishes.TopK, req.Wishes.Others) !=
		"[tool_choice function f] [a tool of type web_search] 7 [x] 3 [min_p]" {
		t.Errorf("%+v %v %v", req.Wishes, req.Constrained, req.Relayed)
	}
}

// Clients that ask get ids and log probs as vLLM gives them.
func TestIDsAndLogProbs(t *testing.T) {
	req, err := openaichat.Dialect{}.Parse([]byte(`{"logprobs":true,"return_token_ids":true,"messages":[{"role":"user","content":"x"}]}`))
	if err != nil {
		t.Fatal(err)
	}
	res := &call.Result{Status: 200, Finish: "stop", PromptIDs: []int32{1}, SampledIDs: []int32{2, 3}, LogProbs: []float32{-0.5, -0.25}, TokenTexts: []string{"h", "é"}, Reply: &fulgur.Message{Content: "hé"}}
	body := string(openaichat.Dialect{}.AppendAnswer(nil, req, dialect.Meta{}, res))
	for _, want := range []string{`"token_ids":[2,3]`, `"prompt_token_ids":[1]`, `{"token":"é","logprob":-0.25,"bytes":[195,169],"top_logprobs":[]}`} {
		if !strings.Contains(body, want) || !json.Valid([]byte(body)) {
			t.Errorf("no %s in %s", want, body)
		}
	}
	s := openaichat.Dialect{}.Stream(req, dialect.Meta{})
	got := string(s.Delta(nil, call.Delta{PromptIDs: []int32{1}, Tokens: []call.Token{{ID: 2, LogProb: -0.5, Text: "h"}}}))
	if !strings.Contains(got, `"prompt_token_ids":[1]`) || !strings.Contains(got, `"token_ids":[2]`) || !strings.Contains(got, `"logprob":-0.5`) {
		t.Errorf("stream: %s", got)
	}
}

// Keep-alives before an upstream's first chunk do not make clients drop what follows.
func TestRelayAfterKeepAlive(t *testing.T) {
	req, err := openaichat.Dialect{}.Parse([]byte(`{"stream":true}`))
	if err != nil {
		t.Fatal(err)
	}
	s := openaichat.Dialect{}.Stream(req, dialect.Meta{ID: "ours"})
	b := s.KeepAlive(nil)
	b = s.Delta(b, call.Delta{Wire: "openai-chat", Raw: []byte(`{"id":"theirs","choices":[]}`)})
	if strings.Count(string(b), `"id":"chatcmpl-ours"`) != 2 {
		t.Errorf("%s", b)
	}
}

func FuzzParse(f *testing.F) {
	f.Add([]byte(`{"messages":[{"role":"user","content":[{"type":"text","text":"x"}]}],"stop":["a"],"tools":[{}],"tool_choice":{}}`))
	f.Add([]byte(`{"messages":null,"stop":1,"tool_choice":[],"n":1e9}`))
	f.Fuzz(func(t *testing.T, body []byte) {
		req, err := openaichat.Dialect{}.Parse(body)
		if err == nil && !json.Valid(req.Body) {
			t.Errorf("%q is taken", body)
		}
	})
}

func TestRequestsThatNoModelCanAnswerAreMarked(t *testing.T) {
	const user = `"messages":[{"role":"user","content":"hi"}]`
	for name, body := range map[string]string{
		"no answers asked for":      `{` + user + `,"n":0}`,
		"fewer than no answers":     `{` + user + `,"n":-1}`,
		"a tool without a name":     `{` + user + `,"tools":[{"type":"function","function":{"parameters":{}}}]}`,
		"a tool that is nothing":    `{` + user + `,"tools":[null]}`,
		"no messages":               `{"messages":[]}`,
		"a message without a role":  `{"messages":[{"content":"hi"}]}`,
		"a temperature below zero":  `{` + user + `,"temperature":-1}`,
		"no token to sample":        `{` + user + `,"max_tokens":0}`,
		"a choice that is a number": `{` + user + `,"tool_choice":5}`,
	} {
		req, err := openaichat.Dialect{}.Parse([]byte(body))
		if err != nil || req.Invalid == nil {
			t.Errorf("%s: error %v, not marked", name, err)
		}
	}
}

// Thousands of calls wait through a pause: nothing of one is there twice.
func TestAFoldedRequestHoldsItsBodyAlone(t *testing.T) {
	body := []byte(`{"model":"m","max_tokens":9,"temperature":1,"messages":[{"role":"user","content":"` + strings.Repeat(`a\n`, 20_000) + `"}]}`)
	const n = 100
	var reqs [n]*call.Request
	heap := func() uint64 {
		var m runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	d := openaichat.New()
	before := heap()
	for i := range reqs {
		req, err := d.Parse(body)
		if err != nil {
			t.Fatal(err)
		}
		reqs[i] = req
		req.Fold(d.Parse)
	}
	if each := (heap() - before) / n; each > 4<<10 {
		t.Errorf("%d bytes beside the body of %d", each, len(body))
	}
	if reqs[0].Unfold(); len(reqs[0].Messages) != 1 || len(reqs[0].Messages[0].Content) != 40_000 {
		t.Errorf("%d messages", len(reqs[0].Messages))
	}
	runtime.KeepAlive(reqs)
}

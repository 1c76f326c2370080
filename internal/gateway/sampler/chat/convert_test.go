package chat_test

import (
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/fulgur-rl/fulgur"
	"github.com/fulgur-rl/fulgur/internal/gateway/call"
	"github.com/fulgur-rl/fulgur/internal/gateway/sampler"
	"github.com/fulgur-rl/fulgur/internal/gateway/sampler/chat"
)

// asked are the bodies that a server was sent.
type asked struct {
	mu   sync.Mutex
	list []string
}

func (a *asked) add(body string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.list = append(a.list, body)
}

// take returns them, and forgets them.
func (a *asked) take() []string {
	a.mu.Lock()
	defer a.mu.Unlock()
	out := a.list
	a.list = nil
	return out
}

// upstream is a server that notes what it was asked and answers as it is told.
func upstream(t *testing.T, o chat.Options, answer http.HandlerFunc) (*chat.Sampler, fulgur.Endpoint, *asked) {
	t.Helper()
	a := &asked{}
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodGet {
			http.NotFound(w, r)
			return
		}
		b, _ := io.ReadAll(r.Body)
		a.add(string(b))
		answer(w, r)
	}))
	if o.Retry.Backoff == 0 {
		o.Retry = sampler.Retry{Backoff: time.Millisecond}
	}
	s := chat.New(o)
	t.Cleanup(func() {
		_ = s.Close()
		srv.Close()
	})
	return s, fulgur.Endpoint{Model: "policy", URL: srv.URL + "/v1"}, a
}

func foreign(ep fulgur.Endpoint) *call.Order {
	seed := int64(9)
	return &call.Order{Request: &call.Request{Body: []byte(`{"system":"x"}`), Dialect: "anthropic", N: 1, Wishes: call.Wishes{Seed: &seed},
		Messages: []fulgur.Message{
			{Role: "system", Content: "be \"brief\""},
			{Role: "developer", Content: "be kind"},
			{Role: "user", Content: "add 1"},
			{Role: "assistant", Reasoning: "hm", ToolCalls: []fulgur.ToolCall{{ID: "k1", Name: "add", Arguments: `{"z": 1, "a":2}`}}},
			{Role: "tool", ToolCallID: "k1", Name: "add", Content: "3"},
			{Role: "assistant", Content: "so"},
			{Role: "user", Content: ""}},
		Tools:      []fulgur.Tool{{Name: "add", Description: "adds", Schema: json.RawMessage(`{"type":"object","z":98765432109876543210,"a":{}}`)}, {Name: "none"}},
		ToolChoice: "function add", Constrained: []string{"tool_choice function add"}},
		Call: "c", Mode: fulgur.ModeTrain, Endpoint: ep, Target: "policy", NeedLogProbs: true,
		Sampling: fulgur.Sampling{Temperature: 0.5, TopP: 0.9, TopK: 7, MaxTokens: 64, Stop: []string{"\n", "END"}, Seed: 1 << 60}}
}

// A call of a dialect that the server does not speak is written as a chat
// completion, every byte of a schema in its place (GW-05).
func TestConvertedRequest(t *testing.T) {
	s, ep, asked := upstream(t, chat.Options{RoutedExperts: true}, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/v1/chat/completions" {
			t.Errorf("asked at %s", r.URL.Path)
		}
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, `{"id":"u","prompt_token_ids":[1,2],"choices":[{"index":0,"message":{"role":"assistant","content":null,"reasoning":"so","tool_calls":[{"id":"k2","type":"function","function":{"name":"add","arguments":"{}"}}]},`+
			`"logprobs":{"content":[{"token":"a","logprob":-0.5}]},"finish_reason":"tool_calls","token_ids":[7],"routed_experts":"AAAA"}],"usage":{"prompt_tokens":2,"completion_tokens":1}}`)
	})
	res, err := s.Sample(t.Context(), foreign(ep), nil)
	if err != nil {
		t.Fatal(err)
	}
	want := `{"model":"policy","messages":[{"role":"system","content":"be \"brief\""},{"role":"system","content":"be kind"},{"role":"user","content":"add 1"},` +
		`{"role":"assistant","content":null,"reasoning_content":"hm","reasoning":"hm","tool_calls":[{"id":"k1","type":"function","function":{"name":"add","arguments":"{\"z\": 1, \"a\":2}"}}]},` +
		`{"role":"tool","content":"3","tool_call_id":"k1","name":"add"},{"role":"assistant","content":"so"},{"role":"user","content":""}],` +
		`"tools":[{"type":"function","function":{"name":"add","description":"adds","parameters":{"type":"object","z":98765432109876543210,"a":{}}}},{"type":"function","function":{"name":"none"}}],` +
		`"tool_choice":{"type":"function","function":{"name":"add"}},"temperature":0.5,"top_p":0.9,"top_k":7,"max_tokens":64,"seed":9,"stop":["\n","END"],` +
		`"return_token_ids":true,"logprobs":true,"return_routed_experts":true}`
	if got := asked.take(); got[0] != want || string(res.Sent) != want {
		t.Errorf("asked\n%s, want\n%s", got[0], want)
	}
	reply := &fulgur.Message{Role: "assistant", Reasoning: "so", ToolCalls: []fulgur.ToolCall{{ID: "k2", Name: "add", Arguments: "{}"}}}
	if d := cmp.Diff(reply, res.Reply); d != "" || res.Raw != nil || string(res.Experts) != `"AAAA"` || res.Finish != "tool_calls" {
		t.Errorf("%+v\n%s", res, d)
	}
}

// What the other API's words can't say is refused, not left out.
func TestWhatIsNotConverted(t *testing.T) {
	s, ep, asked := upstream(t, chat.Options{}, func(w http.ResponseWriter, r *http.Request) {})
	for is, change := range map[string]func(o *call.Order){
		"an image":             func(o *call.Order) { o.Relayed = []string{"an image"} },
		"several answers":      func(o *call.Order) { o.N = 2 },
		"top_logprobs":         func(o *call.Order) { o.TopLogProbs = 3 },
		"frequency_penalty":    func(o *call.Order) { o.Wishes.Others = []string{"frequency_penalty"} },
		"a JSON schema":        func(o *call.Order) { o.Constrained = []string{"a JSON schema"} },
		"messages are no list": func(o *call.Order) { o.Invalid = fulgur.E(fulgur.KindInvalid, "", "messages are no list", nil) },
		"a raw prompt":         func(o *call.Order) { o.Prompt = &call.Prompt{Text: "x"} },
	} {
		o := foreign(ep)
		change(o)
		_, err := s.Sample(t.Context(), o, nil)
		if fulgur.KindOf(err).HTTPStatus() != 400 || !strings.Contains(fulgur.PublicMessage(err), is) {
			t.Errorf("%s: %v", is, err)
		}
	}
	if got := asked.take(); len(got) > 0 {
		t.Errorf("the server was asked: %s", got)
	}
}

// A server's errors become ours, for the client's dialect writes them in its own
// shape.
func TestErrorsOfConvertedCalls(t *testing.T) {
	for is, c := range map[string]struct {
		status int
		body   string
		kind   fulgur.Kind
		says   string
		tries  int
	}{
		"a bad request":           {400, `{"error":{"message":"bad tool"}}`, fulgur.KindInvalid, "bad tool", 1},
		"the context is full":     {400, `{"error":{"message":"This model's maximum context length is 1024 tokens."}}`, fulgur.KindContextFull, "1024", 1},
		"max_tokens are too many": {400, `{"error":{"message":"max_tokens=5000 cannot be greater than max_model_len=1024."}}`, fulgur.KindContextFull, "1024", 1},
		"an unknown model":        {404, `{"error":{"message":"no such model"}}`, fulgur.KindUpstream, "failed", 1},
		"busy":                    {503, `busy`, fulgur.KindUnavailable, "overloaded", 2},
		"broken":                  {500, ``, fulgur.KindUpstream, "failed", 2},
		"HTML":                    {200, `<html>`, fulgur.KindUpstream, "no chat completion", 1},
		"a list":                  {200, `[]`, fulgur.KindUpstream, "no chat completion", 1},
		"no choices":              {200, `{"choices":[]}`, fulgur.KindUpstream, "no chat completion", 1},
	} {
		s, ep, asked := upstream(t, chat.Options{Retry: sampler.Retry{Tries: 2, Backoff: time.Millisecond}}, func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			w.WriteHeader(c.status)
			_, _ = io.WriteString(w, c.body)
		})
		for _, emit := range []func(call.Delta) error{nil, func(call.Delta) error { t.Error("shown"); return nil }} {
			o := foreign(ep)
			o.Stream = emit != nil
			res, err := s.Sample(t.Context(), o, emit)
			if n := len(asked.take()); fulgur.KindOf(err) != c.kind || !strings.Contains(fulgur.PublicMessage(err), c.says) || n != c.tries || res.Raw != nil || res.Fault == "" {
				t.Errorf("%s: %v after %d tries, %+v", is, err, n, res)
			}
		}
	}
}

// The recorded streams of vLLM, as pieces with fields: text, tool calls, ids and
// log probs of all pieces are those of the result.
func TestConvertedStreamsOfVLLM(t *testing.T) {
	f, err := os.ReadFile("testdata/vllm.jsonl")
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for line := range bytes.SplitSeq(bytes.TrimSpace(f), []byte("\n")) {
		var e exchange
		if err := json.Unmarshal(line, &e); err != nil {
			t.Fatal(err)
		}
		if e.Response.SSE == "" || e.Request.Path != "/v1/chat/completions" {
			continue
		}
		n++
		s, ep, _ := upstream(t, chat.Options{}, func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Type", "text/event-stream")
			for i := range len(e.Response.SSE) {
				_, _ = io.WriteString(w, e.Response.SSE[i:i+1])
			}
		})
		var shown fulgur.Message
		var ids, prompt []int32
		var probs []float32
		o := foreign(ep)
		o.Stream = true
		res, err := s.Sample(t.Context(), o, func(d call.Delta) error {
			shown.Content += d.Text
			for _, k := range d.Tools {
				if k.Index == len(shown.ToolCalls) {
					shown.ToolCalls = append(shown.ToolCalls, fulgur.ToolCall{ID: k.ID, Name: k.Name})
				}
				shown.ToolCalls[k.Index].Arguments += k.Arguments
			}
			for _, k := range d.Tokens {
				ids, probs = append(ids, k.ID), append(probs, k.LogProb)
			}
			prompt = append(prompt, d.PromptIDs...)
			return nil
		})
		if err != nil {
			t.Fatalf("%s: %v", e.Name, err)
		}
		w := want(t, e)
		if shown.Content != w.Reply.Content || !shown.Same(fulgur.Message{Content: res.Reply.Content, ToolCalls: res.Reply.ToolCalls}) || cmp.Diff(w.SampledIDs, ids) != "" || cmp.Diff(w.PromptIDs, prompt) != "" || cmp.Diff(w.LogProbs, res.LogProbs) != "" {
			t.Errorf("%s: shown %+v, ids %v, prompt %v", e.Name, shown, ids, prompt)
		}
		if len(w.LogProbs) > 0 && cmp.Diff(w.LogProbs, probs) != "" {
			t.Errorf("%s: log probs %v, want %v", e.Name, probs, w.LogProbs)
		}
	}
	if n < 4 {
		t.Errorf("%d streams", n)
	}
}

// Harnesses ask for more tokens than a model's context has: what is asked of the
// server fits, as vLLM says of itself (recorded exchanges 1, 36, 37).
func TestTokensThatFit(t *testing.T) {
	var sent string
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		b, _ := io.ReadAll(r.Body)
		switch r.Method + r.URL.Path {
		case "GET/v1/models":
			_, _ = io.WriteString(w, `{"object":"list","data":[{"id":"other","max_model_len":7},{"id":"policy","max_model_len":1024}]}`)
		case "POST/tokenize":
			if strings.Contains(string(b), `"prompt":"say hi"`) {
				_, _ = io.WriteString(w, `{"count":6,"max_model_len":1024,"tokens":[85,67,91,223,74,75],"token_strs":null}`)
				return
			}
			if !strings.Contains(string(b), `"messages":[{"role":"system"`) || !strings.Contains(string(b), `"tools":[`) || !strings.Contains(string(b), `"add_generation_prompt":true`) {
				t.Errorf("counted: %s", b)
			}
			_, _ = io.WriteString(w, `{"count":500,"max_model_len":1024,"tokens":[1]}`)
		case "POST/v1/chat/completions":
			sent = string(b)
			writeFine(w)
		default:
			t.Errorf("%s %s", r.Method, r.URL.Path)
		}
	}))
	defer srv.Close()
	s := chat.New(chat.Options{})
	defer s.Close()
	o := foreign(fulgur.Endpoint{URL: srv.URL + "/v1/"})
	for want, is := range map[int]string{32000: "", 1024: "", 1000: `"max_tokens":524,`, 600: `"max_tokens":524,`, 20: `"max_tokens":20,`} {
		o.Sampling.MaxTokens = want
		o.Body = make([]byte, 700)
		if _, err := s.Sample(t.Context(), o, nil); err != nil || !strings.Contains(sent, is) || strings.Contains(sent, "max_tokens") != (is != "") {
			t.Errorf("%d: %v, sent %s", want, err, sent)
		}
	}
	if n, err := s.Count(t.Context(), o); err != nil || n != 500 {
		t.Errorf("counted %d, %v", n, err)
	}
	o.Prompt = &call.Prompt{Text: "say hi"}
	if n, err := s.Count(t.Context(), o); err != nil || n != 6 {
		t.Errorf("counted %d, %v", n, err)
	}
}

func TestAServerThatDoesNotCount(t *testing.T) {
	s, ep, _ := upstream(t, chat.Options{}, func(w http.ResponseWriter, r *http.Request) { http.NotFound(w, r) })
	if _, err := s.Count(t.Context(), foreign(ep)); fulgur.KindOf(err) != fulgur.KindUnsupported {
		t.Errorf("%v", err)
	}
}

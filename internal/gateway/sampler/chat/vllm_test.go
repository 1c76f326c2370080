package chat_test

import (
	"bufio"
	"encoding/json"
	"math"
	"net/http"
	"net/http/httptest"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/fulgur-rl/fulgur"
	"github.com/fulgur-rl/fulgur/internal/gateway/call"
	"github.com/fulgur-rl/fulgur/internal/gateway/sampler/chat"
)

// exchange is a recorded answer of vLLM 0.32.0.
type exchange struct {
	N       int    `json:"n"`
	Name    string `json:"name"`
	Request struct {
		Path string          `json:"path"`
		JSON json.RawMessage `json:"json"`
	} `json:"request"`
	Response struct {
		Status  int               `json:"status"`
		Headers map[string]string `json:"headers"`
		JSON    json.RawMessage   `json:"json"`
		SSE     string            `json:"sse"`
	} `json:"response"`
}

type choice struct {
	Index    int     `json:"index"`
	TokenIDs []int32 `json:"token_ids"`
	LogProbs *struct {
		Content []struct {
			LogProb float32 `json:"logprob"`
		} `json:"content"`
		TokenLogProbs []*float32 `json:"token_logprobs"`
	} `json:"logprobs"`
	FinishReason   string      `json:"finish_reason"`
	StopReason     any         `json:"stop_reason"`
	Text           string      `json:"text"`
	PromptTokenIDs []int32     `json:"prompt_token_ids"`
	Message        wireMessage `json:"message"`
	Delta          wireMessage `json:"delta"`
}

type wireMessage struct {
	Content   *string `json:"content"`
	ToolCalls []struct {
		Function struct {
			Name      string `json:"name"`
			Arguments string `json:"arguments"`
		} `json:"function"`
	} `json:"tool_calls"`
}

type body struct {
	PromptTokenIDs []int32  `json:"prompt_token_ids"`
	Choices        []choice `json:"choices"`
	Usage          *struct {
		PromptTokens     int `json:"prompt_tokens"`
		CompletionTokens int `json:"completion_tokens"`
	} `json:"usage"`
}

// want reads what an exchange says of its first choice, in the plainest way.
func want(t *testing.T, e exchange) call.Result {
	t.Helper()
	var bodies []body
	parse := func(s string) {
		var b body
		if err := json.Unmarshal([]byte(s), &b); err != nil {
			t.Fatalf("exchange %d: %v", e.N, err)
		}
		bodies = append(bodies, b)
	}
	if e.Response.SSE == "" {
		parse(string(e.Response.JSON))
	} else {
		for line := range strings.SplitSeq(e.Response.SSE, "\n") {
			if data, ok := strings.CutPrefix(line, "data: "); ok && data != "[DONE]" {
				parse(data)
			}
		}
	}
	var r call.Result
	for _, b := range bodies {
		if len(b.PromptTokenIDs) > 0 {
			r.PromptIDs = b.PromptTokenIDs
		}
		if b.Usage != nil {
			r.Usage = &fulgur.Usage{PromptTokens: b.Usage.PromptTokens, CompletionTokens: b.Usage.CompletionTokens}
		}
		for _, c := range b.Choices {
			if c.Index != 0 {
				continue
			}
			r.SampledIDs = append(r.SampledIDs, c.TokenIDs...)
			if len(c.PromptTokenIDs) > 0 {
				r.PromptIDs = c.PromptTokenIDs
			}
			if c.LogProbs != nil {
				for _, p := range c.LogProbs.Content {
					r.LogProbs = append(r.LogProbs, p.LogProb)
				}
				for _, p := range c.LogProbs.TokenLogProbs {
					if p == nil { // of the first token of an echoed prompt
						nan := float32(math.NaN())
						p = &nan
					}
					r.LogProbs = append(r.LogProbs, *p)
				}
			}
			if c.FinishReason != "" {
				r.Finish = c.FinishReason
			}
			if stop, ok := c.StopReason.(string); ok {
				r.Stopped = stop
			}
			for _, m := range []wireMessage{c.Message, c.Delta} {
				if r.Reply == nil {
					r.Reply = &fulgur.Message{}
				}
				if c.Text != "" {
					r.Reply.Content, c.Text = r.Reply.Content+c.Text, ""
				}
				if m.Content != nil {
					r.Reply.Content += *m.Content
				}
				for _, f := range m.ToolCalls {
					if f.Function.Name != "" {
						r.Reply.ToolCalls = append(r.Reply.ToolCalls, fulgur.ToolCall{Name: f.Function.Name})
					}
					if n := len(r.Reply.ToolCalls); n > 0 {
						r.Reply.ToolCalls[n-1].Arguments += f.Function.Arguments
					}
				}
			}
		}
	}
	return r
}

// Every exchange of chat and text completions recorded from vLLM, byte for byte, and torn into single
// bytes: the result is what vLLM said, and the client gets all of it.
func TestVLLM(t *testing.T) {
	f, err := os.Open("testdata/vllm.jsonl")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	sc := bufio.NewScanner(f)
	sc.Buffer(nil, 1<<20)
	n := 0
	for sc.Scan() {
		var e exchange
		if err := json.Unmarshal(sc.Bytes(), &e); err != nil {
			t.Fatal(err)
		}
		n++
		t.Run(e.Name, func(t *testing.T) { replay(t, e) })
	}
	t.Logf("%d exchanges", n)
}

func dialectOf(e exchange) string {
	if e.Request.Path == "/v1/completions" {
		return chat.WireText
	}
	return chat.Wire
}

func replay(t *testing.T, e exchange) {
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != e.Request.Path {
			t.Errorf("asked at %s, want %s", r.URL.Path, e.Request.Path)
		}
		w.Header().Set("Content-Type", e.Response.Headers["content-type"])
		w.WriteHeader(e.Response.Status)
		if e.Response.SSE == "" {
			_, _ = w.Write(e.Response.JSON)
			return
		}
		for i := range len(e.Response.SSE) {
			_, _ = w.Write([]byte{e.Response.SSE[i]})
			if i%7 == 0 {
				w.(http.Flusher).Flush()
			}
		}
	}))
	defer srv.Close()
	s := chat.New(chat.Options{})
	defer s.Close()
	o := &call.Order{Request: &call.Request{Body: e.Request.JSON, Dialect: dialectOf(e), Stream: e.Response.SSE != ""}, Mode: fulgur.ModeTrain,
		Endpoint: fulgur.Endpoint{URL: srv.URL + "/v1"}, Target: "tiny", Sampling: fulgur.Sampling{Temperature: 1}, NeedLogProbs: true}
	if o.Body == nil {
		o.Body = []byte("{}")
	}
	var relayed []string
	var emit func(call.Delta) error
	if o.Stream {
		emit = func(d call.Delta) error {
			relayed = append(relayed, string(d.Raw))
			return nil
		}
	}
	res, err := s.Sample(t.Context(), o, emit)
	if err != nil {
		t.Fatal(err)
	}
	if res.Status != e.Response.Status {
		t.Errorf("status %d, want %d", res.Status, e.Response.Status)
	}
	if e.Response.Status >= 400 {
		if res.Fault == "" || !strings.Contains(string(res.Raw), `"error"`) {
			t.Errorf("fault %q, body %s", res.Fault, res.Raw)
		}
		return
	}
	w := want(t, e)
	for _, c := range []struct {
		what      string
		want, got any
	}{
		{"prompt ids", w.PromptIDs, res.PromptIDs}, {"sampled ids", w.SampledIDs, res.SampledIDs}, {"log probs", w.LogProbs, res.LogProbs},
		{"finish", w.Finish, res.Finish}, {"usage", w.Usage, res.Usage}, {"content", w.Reply.Content, res.Reply.Content},
		{"the stop string", w.Stopped, res.Stopped},
	} {
		if diff := cmp.Diff(c.want, c.got, cmpopts.EquateNaNs()); diff != "" {
			t.Errorf("%s (-want +got):\n%s", c.what, diff)
		}
	}
	got := *res.Reply
	got.Role = ""
	if !got.Same(*w.Reply) {
		t.Errorf("reply is %+v, want %+v", got, *w.Reply)
	}
	if !json.Valid(res.Raw) {
		t.Errorf("what is recorded is not JSON: %s", res.Raw)
	}
	if o.Stream {
		all := strings.Join(relayed, "\n\n")
		sent := strings.TrimSuffix(strings.ReplaceAll(e.Response.SSE, "data: ", ""), "\n\n[DONE]\n\n")
		if all != sent {
			t.Errorf("relayed other bytes:\n%s\nwant:\n%s", all, sent)
		}
		return
	}
	want := regexp.MustCompile(`, ?"routed_experts": ?null`).ReplaceAll(e.Response.JSON, nil) // v1 takes them out, null or not
	if string(res.Raw) != string(want) {
		t.Errorf("the answer is not relayed as it is: %s", res.Raw)
	}
}

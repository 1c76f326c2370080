package gateway_test

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/fulgur-rl/fulgur"
	"github.com/fulgur-rl/fulgur/internal/engine"
	"github.com/fulgur-rl/fulgur/internal/gateway"
	"github.com/fulgur-rl/fulgur/internal/gateway/sampler/samplertest"
)

func patient(o *gateway.Options, _ *book) { o.RetryGrace, o.RetryKeep = 20*time.Second, 20*time.Second }

// slow makes the model take its time: n tokens, one each 20 ms.
func (h *house) slow(n int) {
	h.gen.Delay = 20 * time.Millisecond
	h.gen.Reply = func(engine.GenerateRequest) []int32 {
		return samplertest.Answer(fulgur.Message{Content: strings.Repeat("x", n)})
	}
}

// leaver makes a call and hangs up when it is told.
func (h *house) leaver(t *testing.T, body string) (leave func()) {
	t.Helper()
	n := h.gen.Calls()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		post(t, ctx, h.url+"/openai/v1/chat/completions", agentKey, body)
	}()
	eventually(t, "it is sampling", func() bool { return h.gen.Calls() == n+1 })
	return func() { cancel(); <-done }
}

func (h *house) orphaned(t *testing.T) {
	t.Helper()
	eventually(t, "its client's leaving is noticed", func() bool { a, b := h.g.Orphans(); return a+b == 1 })
}

func (h *house) kept(t *testing.T) {
	t.Helper()
	eventually(t, "its answer is kept", func() bool { _, kept := h.g.Orphans(); return kept == 1 })
}

// said is the text of an answer, streamed or not; "" if it is not whole.
func said(r reply) string {
	if r.err != nil || r.status != 200 {
		return ""
	}
	type choices struct {
		Choices []struct {
			Message, Delta struct{ Content string }
		}
	}
	body, stream := strings.CutSuffix(r.body, "data: [DONE]\n\n")
	var out strings.Builder
	for ev := range strings.SplitSeq(strings.TrimSpace(body), "\n\n") {
		var c choices
		if json.Unmarshal([]byte(strings.TrimPrefix(ev, "data: ")), &c) != nil {
			return ""
		}
		for _, c := range c.Choices {
			out.WriteString(c.Message.Content + c.Delta.Content)
		}
	}
	if strings.HasPrefix(r.header.Get("Content-Type"), "text/event-stream") != stream {
		return ""
	}
	return out.String()
}

func text(r reply) bool { return said(r) == strings.Repeat("x", 30) }

// Issue point 6, harnesses.md 6 and 7: a call that its client repeats after it
// left is joined to the generation that runs, or answered from the one that is
// finished, in the form it asks for; there is one generation and one record.
func TestRetryIsJoined(t *testing.T) {
	limited := strings.Replace(hiStream, `"stream":true`, `"stream":true,"stream_options":{"include_usage":true},"max_tokens":60`, 1)
	for is, c := range map[string]struct{ first, again string }{
		"unstreamed twice":       {hi, hi},
		"streamed twice":         {hiStream, hiStream},
		"streamed, then not":     {hiStream, hi},
		"unstreamed, then not":   {hi, limited},
		"with another key order": {hiStream, `{"messages":[{"content":"hi","role":"user"}],"model":"policy"}`},
	} {
		for _, finished := range []bool{false, true} {
			name := is + ", while it runs"
			if finished {
				name = is + ", when it is finished"
			}
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				h := newHouse(t, patient)
				h.slow(30)
				leave := h.leaver(t, c.first)
				leave()
				h.orphaned(t)
				if finished {
					h.kept(t)
					if n := len(h.all()); n != 0 {
						t.Errorf("%d on record before its fate is known", n)
					}
					eventually(t, "a finished generation is not in flight", func() bool {
						p, _ := h.g.PauseState(t.Context(), "run")
						return p.InFlight == 0
					})
				}
				if got := h.chat(t, agentKey, c.again); !text(got) {
					t.Errorf("%d %q %v", got.status, got.body, got.err)
				}
				if n := h.gen.Calls(); n != 1 {
					t.Errorf("%d generations", n)
				}
				all := h.all()
				if len(all) != 1 || all[0].Fate != fulgur.FateDelivered || !all[0].Trainable || all[0].Joined != 1 || all[0].HTTPStatus != 200 || len(all[0].SampledIDs) != 31 {
					t.Fatalf("records: %+v", all)
				}
				// harnesses.md 8: what was delivered is never joined
				h.gen.Delay = 0
				if got := h.chat(t, agentKey, c.again); !text(got) || h.gen.Calls() != 2 || len(h.all()) != 2 {
					t.Errorf("after delivery: %d, %d generations, %d records", got.status, h.gen.Calls(), len(h.all()))
				}
			})
		}
	}
}

// A header that says retry joins a call whose first connection is not known to
// be gone; both get the answer.
func TestAHeaderSaysRetry(t *testing.T) {
	h := newHouse(t, patient)
	h.slow(30)
	first := make(chan reply, 1)
	go func() { first <- h.chat(t, agentKey, hiStream) }()
	eventually(t, "it is sampling", func() bool { return h.gen.Live() == 1 })
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, h.url+"/openai/v1/chat/completions", strings.NewReader(hi))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+agentKey)
	req.Header.Set("X-Stainless-Retry-Count", "1")
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	if got := <-first; !text(got) || resp.StatusCode != 200 {
		t.Errorf("%d %q, %d", got.status, got.body, resp.StatusCode)
	}
	if c := h.last(t); h.gen.Calls() != 1 || len(h.all()) != 1 || c.Joined != 1 || c.Fate != fulgur.FateDelivered {
		t.Errorf("%d generations, %d records, %+v", h.gen.Calls(), len(h.all()), c)
	}
	// of a call that was refused there is nothing to join
	h.gen.Delay = 0
	req.Body = http.NoBody
	req2 := req.Clone(t.Context())
	req2.Body, req2.ContentLength = readCloser(hi), int64(len(hi))
	if resp, err = http.DefaultClient.Do(req2); err != nil || resp.StatusCode != 200 || h.gen.Calls() != 2 {
		t.Errorf("%v %v, %d generations", resp, err, h.gen.Calls())
	}
	resp.Body.Close()
}

// Two equal calls with both sockets open are two samples; so are calls of other
// attempts, and other calls.
func TestWhatIsNoRetry(t *testing.T) {
	h := newHouse(t, patient)
	h.rollout("r2", true, "key-2")
	h.slow(30)
	leave := h.leaver(t, `{"model":"policy","messages":[{"role":"user","content":"another"}]}`)
	leave()
	h.orphaned(t)
	got := make(chan reply, 3)
	for _, key := range []string{agentKey, agentKey, "key-2"} {
		go func() { got <- h.chat(t, key, hi) }()
	}
	for range 3 {
		if r := <-got; !text(r) {
			t.Errorf("%d %q", r.status, r.body)
		}
	}
	if h.gen.Calls() != 4 || len(h.all()) != 3 {
		t.Errorf("%d generations, %d records", h.gen.Calls(), len(h.all()))
	}
	for _, c := range h.all() {
		if c.Joined != 0 || !c.Trainable {
			t.Errorf("record: %+v", c)
		}
	}
}

// An answer that nobody comes back for is put on record as left: when its time
// is over, or when the gateway closes. It does not train.
func TestNobodyComesBack(t *testing.T) {
	left := func(t *testing.T, h *house) {
		t.Helper()
		c := h.last(t)
		if c.Fate != fulgur.FateLeft || c.Trainable || c.Untrainable[0] != fulgur.UntrainableAborted || c.FinishReason != "stop" || len(c.SampledIDs) != 31 || c.HTTPStatus != 499 {
			t.Errorf("record: %+v", c)
		}
	}
	t.Run("its time is over", func(t *testing.T) {
		h := newHouse(t, func(o *gateway.Options, _ *book) { o.RetryGrace, o.RetryKeep = 20*time.Second, 50*time.Millisecond })
		h.slow(30)
		h.leaver(t, hi)()
		eventually(t, "it is on record", func() bool { return len(h.all()) == 1 })
		left(t, h)
		if got := h.chat(t, agentKey, hi); !text(got) || h.gen.Calls() != 2 {
			t.Errorf("%d, %d generations", got.status, h.gen.Calls())
		}
	})
	t.Run("the gateway closes", func(t *testing.T) {
		h := newHouse(t, patient)
		h.slow(30)
		h.leaver(t, hi)()
		h.kept(t)
		if err := h.g.Close(t.Context()); err != nil {
			t.Error(err)
		}
		left(t, h)
	})
	t.Run("it can't be put on record then", func(t *testing.T) {
		h := newHouse(t, patient)
		h.slow(30)
		h.leaver(t, hi)()
		h.kept(t)
		h.mu.Lock()
		h.fail = fulgur.E(fulgur.KindExhausted, "append call", "no", nil)
		h.mu.Unlock()
		if got := h.chat(t, agentKey, hi); got.status != 507 || strings.Contains(got.body, "xxx") {
			t.Errorf("%d %s", got.status, got.body)
		}
	})
}

// A generation that failed is no answer to a retry.
func TestAFailureIsNotKept(t *testing.T) {
	h := newHouse(t, patient)
	h.slow(30)
	h.gen.Fail, h.gen.FailAfter = fulgur.E(fulgur.KindUnavailable, "generate", "the engine is closed", nil), 10
	h.leaver(t, hi)()
	eventually(t, "it is on record", func() bool { return len(h.all()) == 1 })
	if c := h.last(t); c.Fate != fulgur.FateLeft || c.Trainable {
		t.Errorf("record: %+v", c)
	}
	h.gen.Fail = nil
	if got := h.chat(t, agentKey, hi); !text(got) || h.gen.Calls() != 2 {
		t.Errorf("%d, %d generations", got.status, h.gen.Calls())
	}
}

// Without a grace a generation ends with its client, as GW-10 asks at least.
func TestNoGrace(t *testing.T) {
	h := newHouse(t, func(o *gateway.Options, _ *book) { o.RetryGrace = -1 })
	h.slow(60)
	h.leaver(t, hi)()
	eventually(t, "it is on record", func() bool { return len(h.all()) == 1 })
	if c := h.last(t); c.Fate != fulgur.FateLeft || len(c.SampledIDs) > 50 {
		t.Errorf("record: %+v", c)
	}
}

// A retry of a chat server's answer is given it in the form it asks for.
func TestRetryOfARelayedAnswer(t *testing.T) {
	for is, c := range map[string]struct {
		first, again string
		answer       func(gate chan struct{}) http.HandlerFunc
	}{
		"unstreamed, then streamed": {hi, hiStream, func(gate chan struct{}) http.HandlerFunc {
			return func(w http.ResponseWriter, r *http.Request) { <-gate; jsonAnswer(goodAnswer)(w, r) }
		}},
		"streamed, then not": {hiStream, hi, func(gate chan struct{}) http.HandlerFunc {
			return func(w http.ResponseWriter, r *http.Request) {
				events(`data: {"id":"x","choices":[{"index":0,"delta":{"role":"assistant","content":"o"},"token_ids":[7],"logprobs":{"content":[{"token":"o","logprob":-0.5}]}}],"prompt_token_ids":[1,2,3]}`+"\n\n")(w, r)
				_ = http.NewResponseController(w).Flush()
				<-gate
				events(`data: {"id":"x","choices":[{"index":0,"delta":{"content":"k"},"token_ids":[8],"logprobs":{"content":[{"token":"k","logprob":-0.25}]},"finish_reason":"stop"}]}`+"\n\n",
					`data: {"id":"x","choices":[],"usage":{"prompt_tokens":3,"completion_tokens":2,"total_tokens":5}}`+"\n\n", "data: [DONE]\n\n")(w, r)
			}
		}},
	} {
		t.Run(is, func(t *testing.T) {
			gate := make(chan struct{})
			h, u := chatHouse(t, c.answer(gate), patient)
			ctx, cancel := context.WithCancel(t.Context())
			done := make(chan struct{})
			go func() {
				defer close(done)
				post(t, ctx, h.url+"/openai/v1/chat/completions", agentKey, c.first)
			}()
			eventually(t, "it is at the upstream", func() bool { return u.hits.Load() == 1 })
			cancel()
			<-done
			h.orphaned(t)
			close(gate)
			h.kept(t)
			got := h.chat(t, agentKey, c.again)
			if said(got) != "ok" || !strings.Contains(got.body, `"finish_reason":"stop"`) || u.hits.Load() != 1 {
				t.Errorf("%d %s", got.status, got.body)
			}
			if r := h.last(t); !r.Trainable || r.Joined != 1 || len(h.all()) != 1 {
				t.Errorf("record: %+v", r)
			}
		})
	}
}

func readCloser(s string) io.ReadCloser { return io.NopCloser(strings.NewReader(s)) }

// A retry by header joins a call that is held; the first client may leave then.
func TestRetryOfAHeldCall(t *testing.T) {
	h := newHouse(t, fastBeat)
	h.slow(30)
	h.gen.Delay = 0
	h.pause(t, fulgur.PauseRequest{Owner: "x"})
	ctx, cancel := context.WithCancel(t.Context())
	first := make(chan struct{})
	go func() {
		defer close(first)
		post(t, ctx, h.url+"/openai/v1/chat/completions", agentKey, hiStream)
	}()
	eventually(t, "it is held", func() bool { return h.held(t) == 1 })
	again := make(chan *http.Response, 1)
	go func() {
		req, _ := http.NewRequestWithContext(t.Context(), http.MethodPost, h.url+"/openai/v1/chat/completions", strings.NewReader(hi))
		req.Header.Set("Authorization", "Bearer "+agentKey)
		req.Header.Set("X-Stainless-Retry-Count", "2")
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Error(err)
		}
		again <- resp
	}()
	resp := <-again // signs of life
	cancel()
	<-first
	time.Sleep(50 * time.Millisecond)
	if h.held(t) != 1 {
		t.Error("the retry is not held any more")
	}
	h.resume(t)
	b, err := io.ReadAll(resp.Body)
	resp.Body.Close()
	if !text(reply{resp.StatusCode, resp.Header, strings.TrimSpace(string(b)), err}) || h.gen.Calls() != 1 {
		t.Errorf("%d %q %v, %d generations", resp.StatusCode, b, err, h.gen.Calls())
	}
	if c := h.last(t); c.Joined != 1 || c.Fate != fulgur.FateDelivered || !c.Trainable {
		t.Errorf("record: %+v", c)
	}
}

package gateway_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/openai/openai-go/v3"
	"github.com/openai/openai-go/v3/option"

	"github.com/fulgur-rl/fulgur"
	"github.com/fulgur-rl/fulgur/internal/engine"
	"github.com/fulgur-rl/fulgur/internal/gateway"
	"github.com/fulgur-rl/fulgur/internal/gateway/dialect/anthropic"
	"github.com/fulgur-rl/fulgur/internal/gateway/sampler/samplertest"
)

func fastBeat(o *gateway.Options, _ *book) {
	o.KeepAlive, o.SpaceAfter = 20*time.Millisecond, 50*time.Millisecond
}

func (h *house) pause(t *testing.T, req fulgur.PauseRequest) fulgur.Pause {
	t.Helper()
	p, err := h.g.PauseCalls(t.Context(), "run", req)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func (h *house) resume(t *testing.T) {
	t.Helper()
	if _, err := h.g.ResumeCalls(t.Context(), "run", ""); err != nil {
		t.Fatal(err)
	}
}

func (h *house) held(t *testing.T) int {
	t.Helper()
	p, err := h.g.PauseState(t.Context(), "run")
	if err != nil {
		t.Fatal(err)
	}
	return p.Held
}

// AS-01, AS-05: a pause never shows to the stock SDK, streamed or not; what is
// held goes on with the new weights.
func TestPauseIsInvisible(t *testing.T) {
	h := newHouse(t, fastBeat)
	h.pause(t, fulgur.PauseRequest{Owner: "trainer", Drain: time.Second})
	client := openai.NewClient(option.WithBaseURL(h.url+"/openai/v1/"), option.WithAPIKey(agentKey), option.WithMaxRetries(0))
	type result struct {
		text string
		err  error
	}
	results := make(chan result, 2)
	go func() {
		c, err := client.Chat.Completions.New(t.Context(), params(openai.UserMessage("go")))
		if err != nil {
			results <- result{err: err}
			return
		}
		results <- result{text: c.Choices[0].Message.Content}
	}()
	go func() {
		s := client.Chat.Completions.NewStreaming(t.Context(), params(openai.UserMessage("go")))
		acc := openai.ChatCompletionAccumulator{}
		for s.Next() {
			acc.AddChunk(s.Current())
		}
		if s.Err() != nil || len(acc.Choices) == 0 {
			results <- result{err: s.Err()}
			return
		}
		results <- result{text: acc.Choices[0].Message.Content}
	}()
	eventually(t, "both calls are held", func() bool { return h.held(t) == 2 })
	time.Sleep(200 * time.Millisecond) // signs of life go out
	if h.gen.Calls() != 0 {
		t.Error("a held call reached the engine")
	}
	h.gen.Publish(1)
	h.mu.Lock()
	h.endpoints[0].Version = 1
	h.mu.Unlock()
	h.resume(t)
	for range 2 {
		if r := <-results; r.err != nil || r.text != "hello 北" {
			t.Errorf("%+v", r)
		}
	}
	for _, c := range h.all() {
		if c.Version() != 1 || c.Endpoint.Version != 1 || !c.Trainable {
			t.Errorf("record: version %d, %v", c.Version(), c.Untrainable)
		}
	}
	if a, _ := h.g.Activity(t.Context(), "r1", "0"); a.Calls != 2 || a.InFlight != 0 || a.Held < 200*time.Millisecond || a.LastEnd.IsZero() {
		t.Errorf("activity: %+v", a)
	}
}

// A keep-alive is an event of the dialect in a stream, and white space before
// an unstreamed answer's JSON.
func TestSignsOfLife(t *testing.T) {
	h := newHouse(t, fastBeat)
	h.pause(t, fulgur.PauseRequest{Owner: "x"})
	got := make(chan reply, 2)
	for _, body := range []string{hi, hiStream} {
		go func() { got <- h.chat(t, agentKey, body) }()
	}
	eventually(t, "both calls are held", func() bool { return h.held(t) == 2 })
	time.Sleep(300 * time.Millisecond)
	h.resume(t)
	for range 2 {
		r := <-got
		stream := strings.HasPrefix(r.header.Get("Content-Type"), "text/event-stream")
		switch {
		case r.status != 200:
			t.Errorf("%d %s", r.status, r.body)
		case stream && (strings.Count(r.body, `"delta":{},"logprobs":null,"finish_reason":null`) < 2 || !strings.HasSuffix(r.body, "data: [DONE]\n\n")):
			t.Errorf("stream: %s", r.body)
		case !stream && (!strings.HasPrefix(r.body, "  ") || !strings.HasSuffix(r.body, "}")):
			t.Errorf("unstreamed: %q", r.body)
		}
	}
}

// AS-04: a refusal is told from a model server's 429, and is no call.
func TestRefusalsAreToldApart(t *testing.T) {
	h := newHouse(t)
	h.pause(t, fulgur.PauseRequest{Owner: "x", Refuse: true, Lease: 5 * time.Second})
	got := h.chat(t, agentKey, hi)
	if got.status != 429 || got.code() != "gateway_paused" || got.header.Get("X-Agl-Paused") != "true" || got.header.Get("Retry-After") != "5" {
		t.Errorf("%d %v %s", got.status, got.header, got.body)
	}
	h.resume(t)
	why := "weight update"
	h.g.PauseAll(3, &why)
	v1 := h.url + "/proxy/rollout/r1/attempt/0/mode/train/openai/v1/chat/completions"
	if got := post(t, t.Context(), v1, serverKey, hi); got.status != 429 || got.body != `{"error":"gateway paused","reason":"weight update"}` ||
		got.header.Get("Retry-After") != "3" || got.header.Get("X-Agl-Paused") != "true" {
		t.Errorf("v1: %d %v %s", got.status, got.header, got.body)
	}
	h.g.ResumeAll()
	if len(h.all()) != 0 {
		t.Error("a refused call is on record")
	}
}

// A drain that reaches its limit aborts; the client is told to try again, and
// the record says what there was.
func TestAbortByDrain(t *testing.T) {
	h := newHouse(t)
	h.gen.Delay = 20 * time.Millisecond
	h.gen.Reply = func(engine.GenerateRequest) []int32 { return samplertest.Encode(strings.Repeat("x", 60)) }
	got := make(chan reply, 2)
	for _, body := range []string{hi, hiStream} {
		go func() { got <- h.chat(t, agentKey, body) }()
	}
	eventually(t, "both are sampling", func() bool { return h.gen.Live() == 2 })
	time.Sleep(60 * time.Millisecond)
	p := h.pause(t, fulgur.PauseRequest{Owner: "x", Drain: 10 * time.Millisecond})
	if p.Aborted != 2 || p.InFlight != 0 || h.gen.Live() != 0 {
		t.Errorf("%+v, %d live", p, h.gen.Live())
	}
	for range 2 {
		r := <-got
		broken := r.err != nil && r.status == 200 && strings.Contains(r.body, "try again") && !strings.Contains(r.body, "[DONE]")
		if !broken && (r.status != 503 || r.code() != "unavailable") {
			t.Errorf("%d %q %v", r.status, r.body, r.err)
		}
	}
	for _, c := range h.all() {
		if c.Trainable || c.Untrainable[0] != fulgur.UntrainableAborted || c.FinishReason != "" || len(c.SampledIDs) == 0 && c.Stream {
			t.Errorf("record: %+v", c)
		}
	}
	h.resume(t)
}

// GW-10: the client hangs up unstreamed, before the first token, in the middle
// of a stream, or while it is held.
func TestClientLeaves(t *testing.T) {
	for is, c := range map[string]struct {
		body  string
		delay time.Duration
		wait  time.Duration
	}{
		"unstreamed":             {hi, 50 * time.Millisecond, 200 * time.Millisecond},
		"before the first token": {hiStream, 20 * time.Second, 200 * time.Millisecond},
		"in the middle":          {hiStream, 50 * time.Millisecond, 300 * time.Millisecond},
	} {
		t.Run(is, func(t *testing.T) {
			h := newHouse(t)
			h.gen.Delay = c.delay
			h.gen.Reply = func(engine.GenerateRequest) []int32 { return samplertest.Encode(strings.Repeat("x", 63)) }
			ctx, cancel := context.WithCancel(t.Context())
			done := make(chan struct{})
			go func() {
				defer close(done)
				post(t, ctx, h.url+"/openai/v1/chat/completions", agentKey, c.body)
			}()
			eventually(t, "it is sampling", func() bool { return h.gen.Live() == 1 })
			time.Sleep(c.wait)
			start := time.Now()
			cancel()
			<-done
			eventually(t, "the generation ends", func() bool { return h.gen.Live() == 0 })
			if d := time.Since(start); d > time.Second {
				t.Errorf("the generation ran on for %v", d)
			}
			eventually(t, "it is on record", func() bool { return len(h.all()) == 1 })
			r := h.last(t)
			if r.Fate != fulgur.FateLeft || r.Trainable || r.Untrainable[0] != fulgur.UntrainableAborted {
				t.Errorf("fate %s, %v", r.Fate, r.Untrainable)
			}
			eventually(t, "it is no longer in flight", func() bool {
				p, _ := h.g.PauseState(t.Context(), "run")
				return p.InFlight == 0
			})
		})
	}
	t.Run("while held", func(t *testing.T) {
		h := newHouse(t)
		h.pause(t, fulgur.PauseRequest{Owner: "x"})
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		defer cancel()
		post(t, ctx, h.url+"/openai/v1/chat/completions", agentKey, hi)
		eventually(t, "nothing is held", func() bool { return h.held(t) == 0 })
		h.resume(t)
		if h.gen.Calls() != 0 || len(h.all()) != 0 {
			t.Error("a call whose client left on hold reached the engine")
		}
	})
}

// An answer that could not be put on record is not given out.
func TestRecordingFails(t *testing.T) {
	for kind, status := range map[fulgur.Kind]int{fulgur.KindExhausted: 507, fulgur.KindInternal: 500} {
		h := newHouse(t)
		h.fail = fulgur.E(kind, "append call", "no", nil)
		if got := h.chat(t, agentKey, hi); got.status != status || strings.Contains(got.body, "hello") {
			t.Errorf("unstreamed: %d %s", got.status, got.body)
		}
		got := h.chat(t, agentKey, hiStream)
		if got.err == nil || strings.Contains(got.body, "[DONE]") || strings.Contains(got.body, `"finish_reason":"stop"`) || !strings.Contains(got.body, "could not be put on record") {
			t.Errorf("streamed: %v %s", got.err, got.body)
		}
	}
}

// The engine fails in the middle: the answer never looks whole.
func TestEngineFails(t *testing.T) {
	h := newHouse(t)
	h.gen.Fail, h.gen.FailAfter = fulgur.E(fulgur.KindUnavailable, "generate", "the engine is closed", nil), 3
	if got := h.chat(t, agentKey, hi); got.status != 503 || got.code() != "unavailable" {
		t.Errorf("unstreamed: %d %s", got.status, got.body)
	}
	if got := h.chat(t, agentKey, hiStream); got.err == nil || strings.Contains(got.body, "[DONE]") || !strings.Contains(got.body, `"error"`) {
		t.Errorf("streamed: %v %s", got.err, got.body)
	}
	for _, c := range h.all() {
		if c.Fate != fulgur.FateRefused || c.HTTPStatus != 503 || c.Error == "" || c.Untrainable[0] != fulgur.UntrainableError || len(c.SampledIDs) != 3 {
			t.Errorf("record: %+v", c)
		}
	}
}

// A stream whose upstream says nothing for long is kept alive too.
func TestSilentUpstream(t *testing.T) {
	h := newHouse(t, fastBeat)
	h.gen.Delay = 300 * time.Millisecond
	got := h.chat(t, agentKey, `{"stream":true,"max_tokens":2,"messages":[{"role":"user","content":"x"}]}`)
	if strings.Count(got.body, `"delta":{},"logprobs":null,"finish_reason":null`) < 3 || !strings.HasSuffix(got.body, "data: [DONE]\n\n") {
		t.Errorf("%s", got.body)
	}
}

// A hold has a bound. A client that has been sent nothing is told to try again;
// for others the answer breaks, with the dialect's error event in a stream, and
// never ends as if it were whole.
func TestHeldTooLong(t *testing.T) {
	for is, beat := range map[string]bool{"nothing was sent": false, "signs of life went out": true} {
		t.Run(is, func(t *testing.T) {
			h := newHouse(t, func(o *gateway.Options, b *book) {
				if o.HoldLimit = 200 * time.Millisecond; beat {
					fastBeat(o, b)
				}
			})
			h.pause(t, fulgur.PauseRequest{Owner: "x"})
			for _, body := range []string{hi, hiStream} {
				got := h.chat(t, agentKey, body)
				switch {
				case !beat && (got.err != nil || got.status != 503 || got.code() != "unavailable" || got.header.Get("Retry-After") == ""):
					t.Errorf("%d %v %s", got.status, got.header, got.body)
				case beat && (got.err == nil || got.status != 200 || strings.Contains(got.body, "[DONE]")):
					t.Errorf("%d %v %q", got.status, got.err, got.body)
				case beat && body == hiStream && !strings.Contains(got.body, `data: {"type":"error"`):
					t.Errorf("no error event: %q", got.body)
				}
			}
			if h.gen.Calls() != 0 || len(h.all()) != 0 {
				t.Error("a call that was only held is on record")
			}
			h.resume(t)
		})
	}
}

// --pause=hold: v1's pause holds calls too; held ones are not in flight.
func TestV1PauseThatHolds(t *testing.T) {
	h := newHouse(t, fastBeat, func(o *gateway.Options, _ *book) { o.HoldV1 = true })
	why := "weights"
	h.g.PauseAll(7, &why)
	got := make(chan reply, 1)
	go func() {
		got <- post(t, t.Context(), h.url+"/proxy/rollout/r1/attempt/0/mode/train/openai/v1/chat/completions", serverKey, hi)
	}()
	eventually(t, "it is held", func() bool { return h.held(t) == 1 })
	if p := h.g.StateAll(); !p.Paused || p.InFlight != 0 || p.RetryAfterSeconds != 7 {
		t.Errorf("%+v", p)
	}
	h.g.ResumeAll()
	if r := <-got; r.status != 200 || r.err != nil {
		t.Errorf("%d %s", r.status, r.body)
	}
}

// What is read of a held call's body twice over is dropped while it waits: its record
// is that of a call that was not held, whatever answers it.
func TestAHeldCallIsRecordedWhole(t *testing.T) {
	const talk = `"messages":[{"role":"system","content":"a\nb"},{"role":"user","content":[{"type":"text","text":"hi"}]}],"max_tokens":9,
		"tools":[{"type":"function","function":{"name":"f","parameters":{"type":"object"}}}]}`
	const answer = `{"id":"x","prompt_token_ids":[1,2],"choices":[{"token_ids":[3],"message":{"role":"assistant","content":"x"},"finish_reason":"stop","logprobs":{"content":[{"logprob":-1}]}}],
		"usage":{"prompt_tokens":2,"completion_tokens":1}}`
	relay, _ := chatHouse(t, jsonAnswer(answer))
	converting, _ := chatHouse(t, jsonAnswer(answer), func(o *gateway.Options, _ *book) { o.Dialects = append(o.Dialects, anthropic.Dialect{}) })
	tokens := newHouse(t)
	for name, c := range map[string]struct {
		h          *house
		path, body string
	}{
		"relayed":                {relay, "/openai/v1/chat/completions", `{"model":"policy",` + talk},
		"relayed, a stream":      {relay, "/openai/v1/chat/completions", `{"model":"policy","stream":true,` + talk},
		"converted":              {converting, "/anthropic/v1/messages", `{"model":"policy","max_tokens":9,"system":"a","messages":[{"role":"user","content":[{"type":"text","text":"hi"}]}]}`},
		"by tokens":              {tokens, "/openai/v1/chat/completions", `{"model":"policy",` + talk},
		"by tokens, as a stream": {tokens, "/openai/v1/chat/completions", `{"model":"policy","stream":true,` + talk},
	} {
		t.Run(name, func(t *testing.T) {
			got := make(chan reply, 1)
			var want, held fulgur.Call
			for _, into := range []*fulgur.Call{&want, &held} {
				if into == &held {
					c.h.pause(t, fulgur.PauseRequest{Owner: "x"})
				}
				go func() { got <- post(t, t.Context(), c.h.url+c.path, agentKey, c.body) }()
				if into == &held {
					eventually(t, "it is held", func() bool { return c.h.held(t) == 1 })
					c.h.resume(t)
				}
				if r := <-got; r.status != 200 || r.err != nil {
					t.Fatalf("%d %v %s", r.status, r.err, r.body)
				}
				*into = c.h.last(t)
			}
			if len(want.Messages) == 0 || len(want.PromptIDs) == 0 {
				t.Fatalf("%+v", want)
			}
			of := func(c fulgur.Call) []any {
				return []any{c.Messages, c.Tools, c.PromptIDs, string(c.Request), c.Trainable, c.Untrainable}
			}
			if diff := cmp.Diff(of(want), of(held)); diff != "" {
				t.Error(diff)
			}
		})
	}
}

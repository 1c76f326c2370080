package gateway_test

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/fulgur-rl/fulgur"
	"github.com/fulgur-rl/fulgur/internal/engine"
	"github.com/fulgur-rl/fulgur/internal/gateway/sampler/samplertest"
)

// Issue point 7, AS-05: with Partial, what a drain cuts off goes on after the
// update from its own tokens, each token with its version; neither the streaming
// client nor the other one notices.
func TestPartialGoesOn(t *testing.T) {
	h := newHouse(t, fastBeat)
	const n = 40
	full := samplertest.Answer(fulgur.Message{Content: strings.Repeat("x", n)})
	prompt, err := samplertest.Bytes{}.Render([]fulgur.Message{{Role: "user", Content: "hi"}}, nil)
	if err != nil {
		t.Fatal(err)
	}
	h.gen.Delay = 10 * time.Millisecond
	h.gen.Reply = func(req engine.GenerateRequest) []int32 { return full[len(req.Prompt)-len(prompt):] }
	got := make(chan reply, 2)
	for _, body := range []string{hi, hiStream} {
		go func() { got <- h.chat(t, agentKey, body) }()
	}
	eventually(t, "both are sampling", func() bool { return h.gen.Live() == 2 })
	updates := 2
	for v := range updates {
		time.Sleep(80 * time.Millisecond)
		p := h.pause(t, fulgur.PauseRequest{Owner: "trainer", Drain: time.Millisecond, Partial: true})
		if p.Suspended != 2 || p.Aborted != 0 || p.InFlight != 0 || h.gen.Live() != 0 || p.Drained <= 0 {
			t.Errorf("%+v, %d live", p, h.gen.Live())
		}
		eventually(t, "both are held", func() bool { return h.held(t) == 2 })
		time.Sleep(60 * time.Millisecond)
		if h.gen.Live() != 0 || len(h.all()) != 0 {
			t.Errorf("in the pause %d are live, %d on record", h.gen.Live(), len(h.all()))
		}
		h.gen.Publish(fulgur.PolicyVersion(v + 1))
		h.mu.Lock()
		h.endpoints[0].Version = fulgur.PolicyVersion(v + 1)
		h.mu.Unlock()
		h.resume(t)
		eventually(t, "both go on", func() bool { return h.gen.Live() == 2 })
	}
	for range 2 {
		if r := <-got; said(r) != strings.Repeat("x", n) {
			t.Errorf("%d %q %v", r.status, r.body, r.err)
		}
	}
	if len(h.all()) != 2 || h.gen.Calls() != 2*(updates+1) {
		t.Errorf("%d records, %d generations", len(h.all()), h.gen.Calls())
	}
	for _, c := range h.all() {
		if d := cmp.Diff(full, c.SampledIDs); d != "" || !c.Trainable || len(c.Spans) != updates+1 || c.Usage.CompletionTokens != len(full) || len(c.LogProbs) != len(full) {
			t.Errorf("record: spans %v, %v, usage %+v\n%s", c.Spans, c.Untrainable, c.Usage, d)
		}
		for i, s := range c.Spans {
			if int(s.Version) != i || i > 0 && s.Start <= c.Spans[i-1].Start {
				t.Errorf("spans: %v", c.Spans)
			}
		}
		if d := cmp.Diff(prompt, c.PromptIDs); d != "" || c.Endpoint.Version != 2 {
			t.Errorf("endpoint version %d\n%s", c.Endpoint.Version, d)
		}
	}
}

// What has no tokens to go on from is aborted, and told to try again.
func TestPartialOfAChatServer(t *testing.T) {
	gate := make(chan struct{})
	defer close(gate)
	h, u := chatHouse(t, waits(gate))
	got := make(chan reply, 1)
	go func() { got <- h.chat(t, agentKey, hi) }()
	eventually(t, "it is at the upstream", func() bool { return u.hits.Load() == 1 })
	p := h.pause(t, fulgur.PauseRequest{Owner: "trainer", Drain: time.Millisecond, Partial: true})
	if p.Aborted != 1 || p.Suspended != 0 || p.InFlight != 0 {
		t.Errorf("%+v", p)
	}
	if r := <-got; r.status != 503 || r.header.Get("Retry-After") == "" {
		t.Errorf("%d %s", r.status, r.body)
	}
	if c := h.last(t); c.Trainable || c.Untrainable[0] != fulgur.UntrainableAborted {
		t.Errorf("record: %+v", c)
	}
}

// A suspended call whose client leaves in the pause is on record with what it had.
func TestPartialClientLeaves(t *testing.T) {
	h := newHouse(t)
	h.slow(60)
	leave := h.leaver(t, hiStream)
	time.Sleep(100 * time.Millisecond)
	h.pause(t, fulgur.PauseRequest{Owner: "trainer", Drain: time.Millisecond, Partial: true})
	leave()
	eventually(t, "it is on record", func() bool { return len(h.all()) == 1 })
	if c := h.last(t); c.Fate != fulgur.FateLeft || c.Trainable || len(c.SampledIDs) == 0 || h.held(t) != 0 {
		t.Errorf("record: %+v", c)
	}
	h.resume(t)
}

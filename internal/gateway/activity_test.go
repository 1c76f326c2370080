package gateway_test

import (
	"context"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/fulgur-rl/fulgur"
	"github.com/fulgur-rl/fulgur/internal/gateway"
)

// An attempt whose last call the model server or the gateway failed is no
// failure of its agent, however the agent takes it: the activity says so, as
// soon as the client can know.
func TestActivitySaysHowTheLastCallWasFailed(t *testing.T) {
	var answer atomic.Value
	h, _ := chatHouse(t, func(w http.ResponseWriter, r *http.Request) { answer.Load().(http.HandlerFunc)(w, r) },
		func(o *gateway.Options, _ *book) { o.HoldLimit = 5 * time.Millisecond })
	status := func(code int) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			w.WriteHeader(code)
			_, _ = io.WriteString(w, `{"error":{"message":"no"}}`)
		}
	}
	const plain, stream = `{"messages":[{"role":"user","content":"x"}]}`, `{"stream":true,"messages":[{"role":"user","content":"x"}]}`
	good := jsonAnswer(goodAnswer)
	endpoints := h.endpoints
	for _, c := range []struct {
		name   string
		answer http.HandlerFunc
		body   string
		prep   func()
		fault  bool
	}{
		{name: "answered", answer: good, body: plain},
		{name: "a server error", answer: status(500), body: plain, fault: true},
		{name: "it coped", answer: good, body: plain},
		{name: "the caller's fault", answer: status(400), body: plain},
		{name: "no JSON", answer: good, body: "{"},
		{name: "broken in the middle", answer: events(`data: {"choices":[{"index":0,"delta":{"content":"a"}}]}`+"\n\n", `data: {"error":{"message":"dead"}}`+"\n\n"), body: stream, fault: true},
		{name: "answered again", answer: good, body: plain},
		{name: "no endpoint", answer: good, body: plain, fault: true, prep: func() { h.mu.Lock(); h.endpoints = nil; h.mu.Unlock() }},
		{name: "refused while paused", answer: good, body: plain, prep: func() {
			h.mu.Lock()
			h.endpoints = endpoints
			h.mu.Unlock()
			h.pause(t, fulgur.PauseRequest{Owner: "me", Refuse: true})
		}},
		{name: "held for too long", answer: good, body: plain, fault: true, prep: func() {
			h.resume(t)
			h.pause(t, fulgur.PauseRequest{Owner: "me"})
		}},
	} {
		answer.Store(c.answer)
		if c.prep != nil {
			c.prep()
		}
		got := h.chat(t, agentKey, c.body)
		a, err := h.g.Activities(t.Context(), []fulgur.AttemptKey{{Rollout: "r1", Attempt: "0"}, {Rollout: "r1", Attempt: "9"}})
		if err != nil || (a[0].Upstream != "") != c.fault || a[1] != (fulgur.Activity{Up: a[1].Up}) || a[1].Up <= 0 {
			t.Errorf("%s: %+v (%v), answered %d %s", c.name, a, err, got.status, got.body)
		}
	}
	h.resume(t)

	// A client that hangs up in the middle.
	answer.Store(status(500))
	h.chat(t, agentKey, plain)
	begun := make(chan struct{})
	answer.Store(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { close(begun); <-r.Context().Done() }))
	ctx, cancel := context.WithCancel(t.Context())
	go func() { <-begun; cancel() }()
	req, _ := http.NewRequestWithContext(ctx, http.MethodPost, h.url+"/openai/v1/chat/completions", strings.NewReader(plain))
	req.Header.Set("Authorization", "Bearer "+agentKey)
	if resp, err := http.DefaultClient.Do(req); err == nil {
		_ = resp.Body.Close()
		t.Fatal("answered")
	}
	for {
		a, _ := h.g.Activity(t.Context(), "r1", "0")
		if a.InFlight == 0 && a.Upstream == "" {
			break
		}
		time.Sleep(time.Millisecond)
	}
}

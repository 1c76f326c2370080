package controller_test

import (
	"context"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/fulgur-rl/fulgur"
	"github.com/fulgur-rl/fulgur/internal/controller"
	"github.com/fulgur-rl/fulgur/internal/controller/plan"
	"github.com/fulgur-rl/fulgur/internal/controller/runnertest"
)

// full is a runner on a machine that has no file to open for so many starts.
type full struct {
	outside
	refuse, asked atomic.Int64
}

func (r *full) Start(ctx context.Context, e controller.Execution) (controller.Started, error) {
	r.asked.Add(1)
	if r.refuse.Add(-1) >= 0 {
		return controller.Started{}, fulgur.E(fulgur.KindExhausted, "", "no file is left", &fulgur.Error{Kind: fulgur.KindInternal, Err: syscall.EMFILE})
	}
	return r.outside.Start(ctx, e)
}

// What this machine has no room for waits, and uses up no attempt.
func TestStartsWaitForThisMachine(t *testing.T) {
	h := open(t)
	cl := &cluster{runs: map[plan.Key]bool{}}
	r := &full{outside: outside{c: cl, events: make(chan controller.Event, 8)}}
	r.refuse.Store(1 << 30)
	c, err := controller.New(controller.Options{Run: run, AgentURL: h.model.server.URL, Limits: plan.Limits{Slots: 4, Starting: 1, Start: 100 * time.Millisecond}}, h.store, h.model, r)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- c.Run(ctx) }()
	defer func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	}()
	ids := h.create(nil, "", "")
	runnertest.Until(t, "one was tried again, and is on record as waiting", func() bool {
		at := append(h.attempts(ids[0]), h.attempts(ids[1])...)
		return r.asked.Load() >= 2 && len(at) == 1 && at[0].Phase == fulgur.PhaseWaiting && strings.Contains(at[0].Why, "no file is left")
	})
	if s := c.Stats(); s.Waiting != 1 || s.Queued != 1 || len(s.Outcomes) > 0 {
		t.Errorf("%+v", s)
	}
	first, second := ids[0], ids[1]
	if len(h.attempts(first)) == 0 {
		first, second = second, first
	}
	if _, err := h.store.EndRollout(t.Context(), first, fulgur.Outcome{Class: fulgur.OutcomeInfrastructure, Reason: "ended"}); err != nil {
		t.Fatal(err)
	}
	runnertest.Until(t, "it was ended while it waited, and the other is tried", func() bool { return len(h.attempts(second)) == 1 })
	r.refuse.Store(0)
	key := plan.Key{Rollout: second, Attempt: "0"}
	runnertest.Until(t, "it runs when there is room", func() bool { cl.mu.Lock(); defer cl.mu.Unlock(); return cl.runs[key] })
	r.events <- controller.Event{Key: key, Exit: &plan.Exit{}}
	if got := h.ended(second); got.State != fulgur.Succeeded || got.LastAttempt != "0" {
		t.Errorf("%s by attempt %s: %+v", got.State, got.LastAttempt, got.Outcome)
	}
}

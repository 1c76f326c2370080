package controller_test

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/fulgur-rl/fulgur"
	"github.com/fulgur-rl/fulgur/internal/controller"
	"github.com/fulgur-rl/fulgur/internal/controller/plan"
	"github.com/fulgur-rl/fulgur/internal/controller/runnertest"
)

// cluster is where executions live on without the runner that started them: what
// the runners of containers and Jobs are about, without either.
type cluster struct {
	mu      sync.Mutex
	runs    map[plan.Key]bool
	stopped []plan.Key
	acked   []plan.Key
}

// outside is a runner of a cluster.
type outside struct {
	c      *cluster
	events chan controller.Event
	left   bool
	queued bool // what starts is not running yet
}

func (r *outside) Name() string                    { return "outside" }
func (r *outside) Events() <-chan controller.Event { return r.events }
func (r *outside) Leave()                          { r.left = true }
func (r *outside) Start(_ context.Context, e controller.Execution) (controller.Started, error) {
	r.c.mu.Lock()
	defer r.c.mu.Unlock()
	r.c.runs[e.Key] = true
	return controller.Started{Handle: "job/" + string(e.Key.Rollout), Running: !r.queued}, nil
}

func (r *outside) Stop(_ context.Context, k plan.Key) error {
	r.c.mu.Lock()
	defer r.c.mu.Unlock()
	r.c.stopped = append(r.c.stopped, k)
	delete(r.c.runs, k)
	go func() { r.events <- controller.Event{Key: k, Exit: &plan.Exit{Code: -1, Signal: "terminated"}} }()
	return nil
}

func (r *outside) List(context.Context) ([]plan.Key, error) { return nil, nil }

func (r *outside) Adopt(_ context.Context, left []controller.Leftover) (keys []plan.Key, err error) {
	r.c.mu.Lock()
	defer r.c.mu.Unlock()
	for _, l := range left {
		if r.c.runs[l.Key] {
			keys = append(keys, l.Key)
		}
	}
	return keys, nil
}

func (r *outside) Acknowledge(keys []plan.Key) {
	r.c.mu.Lock()
	defer r.c.mu.Unlock()
	r.c.acked = append(r.c.acked, keys...)
}

func (r *outside) Close() error { return nil }

// outside starts a controller over the cluster; stop ends it and waits.
func (h *house) outside(cl *cluster, o controller.Options) (r *outside, c *controller.Controller, stop func()) {
	h.t.Helper()
	r = &outside{c: cl, events: make(chan controller.Event, 8)}
	o.Run, o.AgentURL, o.LeaseTTL = run, h.model.server.URL, 500*time.Millisecond
	c, err := controller.New(o, h.store, h.model, r)
	if err != nil {
		h.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- c.Run(ctx) }()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			h.t.Error(err)
		}
	})
	h.t.Cleanup(stop)
	return r, c, stop
}

// A controller that is stopped with Leave, or that loses its lease, ends nothing
// that lives on without it: its successor goes on with the same attempt.
func TestWhatLivesOnIsLeftToTheSuccessor(t *testing.T) {
	for name, leave := range map[string]bool{"left": true, "ended with its controller": false} {
		t.Run(name, func(t *testing.T) {
			h := open(t)
			cl := &cluster{runs: map[plan.Key]bool{}}
			begin := func() (*outside, func()) {
				r, _, stop := h.outside(cl, controller.Options{Limits: plan.Limits{Slots: 2, Lost: 3}, RunWindow: -1, Leave: leave})
				return r, stop
			}
			first, stop := begin()
			id := h.create(nil, "")[0]
			key := plan.Key{Rollout: id, Attempt: "0"}
			runnertest.Until(t, "it is on record as running", func() bool {
				at, _ := h.store.Attempts(t.Context(), id)
				return len(at) == 1 && at[0].Phase == fulgur.PhaseRunning && at[0].Handle != ""
			})
			stop()
			if first.left != leave || len(cl.stopped) > 0 == leave {
				t.Fatalf("left %v, stopped %v", first.left, cl.stopped)
			}
			second, _ := begin()
			if !leave {
				key.Attempt = "1"
				runnertest.Until(t, "a new attempt runs", func() bool { cl.mu.Lock(); defer cl.mu.Unlock(); return cl.runs[key] })
			}
			second.events <- controller.Event{Key: key, Exit: &plan.Exit{}}
			if r := h.ended(id); r.State != fulgur.Succeeded || r.LastAttempt != key.Attempt {
				t.Errorf("%s by attempt %s: %+v", r.State, r.LastAttempt, r.Outcome)
			}
			runnertest.Until(t, "the end was acknowledged", func() bool {
				cl.mu.Lock()
				defer cl.mu.Unlock()
				return len(cl.acked) > 0 && cl.acked[len(cl.acked)-1] == key
			})
		})
	}
}

// CK-03, without a cluster: agents that wait for room that others have are told of
// once, their start clock stands, and they run when there is room.
func TestAgentsThatWaitForRoom(t *testing.T) {
	h := open(t)
	cl := &cluster{runs: map[plan.Key]bool{}}
	r := &outside{c: cl, events: make(chan controller.Event, 8), queued: true}
	var mu sync.Mutex
	var told []string
	c, err := controller.New(controller.Options{Run: run, AgentURL: h.model.server.URL, Limits: plan.Limits{Slots: 4, Starting: 1, Start: 200 * time.Millisecond}, LeaseTTL: 500 * time.Millisecond,
		Tell: func(text string) { mu.Lock(); defer mu.Unlock(); told = append(told, text) }}, h.store, h.model, r)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- c.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	ids := h.create(nil, "", "", "")
	for _, id := range ids { // one may be starting at once; what waits is none of those
		key := plan.Key{Rollout: id, Attempt: "0"}
		runnertest.Until(t, string(id)+" was given to the runner", func() bool { cl.mu.Lock(); defer cl.mu.Unlock(); return cl.runs[key] })
		r.events <- controller.Event{Key: key, Phase: fulgur.PhaseWaiting, Why: "exceeded quota: jobs=0"}
	}
	runnertest.Until(t, "all wait", func() bool { return c.Stats().Waiting == 3 })
	time.Sleep(400 * time.Millisecond) // twice the start clock, which stands
	if s := c.Stats(); s.Waiting != 3 || len(s.Outcomes) > 0 {
		t.Errorf("%+v", s)
	}
	stands := func(id fulgur.RolloutID, phase fulgur.Phase, why string) {
		t.Helper()
		runnertest.Until(t, fmt.Sprintf("%s is on record as %s", id, phase), func() bool {
			at := h.attempts(id)
			return len(at) == 1 && at[0].Phase == phase && at[0].Why == why && at[0].Runner != ""
		})
	}
	for _, id := range ids {
		stands(id, fulgur.PhaseWaiting, "exceeded quota: jobs=0")
		r.events <- controller.Event{Key: plan.Key{Rollout: id, Attempt: "0"}, Phase: fulgur.PhaseStarting}
		stands(id, fulgur.PhaseStarting, "")
		r.events <- controller.Event{Key: plan.Key{Rollout: id, Attempt: "0"}, Phase: fulgur.PhaseStarting, Why: "no node has room"}
		stands(id, fulgur.PhaseStarting, "no node has room")
		r.events <- controller.Event{Key: plan.Key{Rollout: id, Attempt: "0"}, Handle: "job"}
		r.events <- controller.Event{Key: plan.Key{Rollout: id, Attempt: "0"}, Exit: &plan.Exit{}}
		if got := h.ended(id); got.State != fulgur.Succeeded {
			t.Errorf("%s: %+v", id, got.Outcome)
		}
	}
	mu.Lock()
	defer mu.Unlock()
	if len(told) != 2 || !strings.Contains(told[0], "wait for room: exceeded quota: jobs=0") || !strings.Contains(told[1], "any more") {
		t.Errorf("told %q", told)
	}
}

// An execution whose start was not told any more is adopted, and can be ended.
func TestAdoptedBeforeItsStartWasTold(t *testing.T) {
	h := open(t)
	cl := &cluster{runs: map[plan.Key]bool{}}
	begin := func() (*controller.Controller, func()) {
		_, c, stop := h.outside(cl, controller.Options{Limits: plan.Limits{Slots: 2}, RunWindow: time.Hour, Leave: true})
		return c, stop
	}
	_, stop := begin()
	id := h.create(nil, "")[0]
	key := plan.Key{Rollout: id, Attempt: "0"}
	runs := func() bool { cl.mu.Lock(); defer cl.mu.Unlock(); return cl.runs[key] }
	runnertest.Until(t, "it runs", runs)
	stop()
	if at := h.attempts(id); len(at) != 1 || at[0].Phase != fulgur.PhaseWaiting || !runs() {
		t.Fatalf("attempts %+v", at)
	}
	second, _ := begin()
	runnertest.Until(t, "it was adopted", func() bool { return second.Stats().Starting == 1 })
	if _, err := h.store.EndRollout(t.Context(), id, fulgur.Outcome{Class: fulgur.OutcomeInfrastructure, Reason: "ended"}); err != nil {
		t.Fatal(err)
	}
	runnertest.Until(t, "it was ended", func() bool { return !runs() })
	if at := h.attempts(id); len(at) != 1 {
		t.Errorf("attempts %+v", at)
	}
}

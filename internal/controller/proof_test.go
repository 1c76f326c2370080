package controller_test

import (
	"context"
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/fulgur-rl/fulgur"
	"github.com/fulgur-rl/fulgur/internal/controller"
	"github.com/fulgur-rl/fulgur/internal/controller/plan"
	"github.com/fulgur-rl/fulgur/internal/controller/runnertest"
)

// prover is a runner of a cluster whose proof and adoption end as the test says.
type prover struct {
	*outside
	proof func() error // nil: it holds
	adopt func() error // nil: well
}

func (r *prover) Prove(context.Context, string) error {
	if r.proof == nil {
		return nil
	}
	return r.proof()
}

func (r *prover) Adopt(ctx context.Context, left []controller.Leftover) ([]plan.Key, error) {
	if r.adopt != nil {
		if err := r.adopt(); err != nil {
			return nil, err
		}
	}
	return r.outside.Adopt(ctx, left)
}

// proving is a controller over such a runner; its error comes on done.
type proving struct {
	*controller.Controller
	*prover
	done chan error
	stop func()
	told func() string
}

func (h *house) proving(cl *cluster, r prover, of fulgur.RunID) *proving {
	h.t.Helper()
	r.outside = &outside{c: cl, events: make(chan controller.Event, 8)}
	var mu sync.Mutex
	var told []string
	c, err := controller.New(controller.Options{Run: of, AgentURL: h.model.server.URL, LeaseTTL: 500 * time.Millisecond, RunWindow: -1, Leave: true, Limits: plan.Limits{Slots: 2, Lost: 3},
		Tell: func(s string) { mu.Lock(); defer mu.Unlock(); told = append(told, s) }}, h.store, h.model, &r)
	if err != nil {
		h.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	p := &proving{Controller: c, prover: &r, done: make(chan error, 1), told: func() string { mu.Lock(); defer mu.Unlock(); return strings.Join(told, "\n") }}
	ended := make(chan struct{})
	go func() { p.done <- c.Run(ctx); close(ended) }()
	p.stop = func() { cancel(); <-ended }
	h.t.Cleanup(p.stop)
	return p
}

func (p *proving) isSettled() bool {
	select {
	case <-p.Settled():
		return true
	default:
		return false
	}
}

func (h *house) runs(id fulgur.RolloutID) {
	h.t.Helper()
	runnertest.Until(h.t, string(id)+" is on record as running", func() bool {
		at, _ := h.store.Attempts(h.t.Context(), id)
		return len(at) == 1 && at[0].Phase == fulgur.PhaseRunning
	})
}

// left is a cluster in which an earlier controller has left the agent of a rollout,
// and another rollout that waits.
func (h *house) left() (cl *cluster, running, queued fulgur.RolloutID) {
	h.t.Helper()
	cl = &cluster{runs: map[plan.Key]bool{}}
	first := h.proving(cl, prover{}, run)
	running = h.create(nil, "")[0]
	h.runs(running)
	first.stop()
	queued = h.create(func(s *fulgur.RolloutSpec) { s.ID = "next" }, "")[0]
	return cl, running, queued
}

var (
	errNoRoom  = fulgur.E(fulgur.KindExhausted, "", "exceeded quota", nil)
	errEscaped = fulgur.E(fulgur.KindForbidden, "", "agents reach more than the gateway", nil)
)

// A run that fills a quota leaves its probes no room. What an earlier controller left
// is taken over all the same, its ends are told, and the room that it gives up is
// what the proof waits for. Nothing is started before.
func TestTakingOverDoesNotWaitForTheProof(t *testing.T) {
	h := open(t)
	cl, id, next := h.left()
	key := plan.Key{Rollout: id, Attempt: "0"}
	second := h.proving(cl, prover{proof: func() error {
		cl.mu.Lock()
		defer cl.mu.Unlock()
		if cl.runs[key] {
			return errNoRoom
		}
		return nil
	}}, run)
	runnertest.Until(t, "it is told that there is no room", func() bool { return strings.Contains(second.told(), "exceeded quota") })
	if !second.isSettled() {
		t.Error("whoever starts it waits for the proof, though it has agents to see to")
	}
	runnertest.Until(t, "the record says what the next one waits for", func() bool {
		at, _ := h.store.Attempts(t.Context(), next)
		return len(at) == 1 && at[0].Phase == fulgur.PhaseWaiting && strings.Contains(at[0].Why, "no room to try what agents reach: exceeded quota")
	})
	cl.mu.Lock()
	delete(cl.runs, key)
	cl.mu.Unlock()
	second.events <- controller.Event{Key: key, Exit: &plan.Exit{}}
	if r := h.ended(id); r.State != fulgur.Succeeded {
		t.Errorf("the agent that was taken over: %s %+v", r.State, r.Outcome)
	}
	h.runs(next)
	runnertest.Until(t, "it is told that it goes on", func() bool { return strings.Contains(second.told(), "are started again") })
}

// A proof that fails refuses the run: nothing is started, and what an earlier
// controller left is left to the next.
func TestAFailedProofEndsTheController(t *testing.T) {
	for name, taken := range map[string]bool{"nothing of it runs": false, "agents were taken over": true} {
		t.Run(name, func(t *testing.T) {
			h := open(t)
			cl := &cluster{runs: map[plan.Key]bool{}}
			if taken {
				cl, _, _ = h.left()
			} else {
				h.create(nil, "")
			}
			before := len(cl.runs)
			p := h.proving(cl, prover{proof: func() error { return errEscaped }}, run)
			select {
			case err := <-p.done:
				if !errors.Is(err, errEscaped) {
					t.Errorf("error %v", err)
				}
			case <-time.After(5 * time.Second):
				t.Fatal("it goes on")
			}
			if len(cl.runs) != before || len(cl.stopped) > 0 || p.left != true {
				t.Errorf("%d agents run, %d were stopped, left: %v", len(cl.runs), len(cl.stopped), p.left)
			}
			if p.isSettled() != taken {
				t.Errorf("settled: %v", !taken)
			}
		})
	}
}

// A run that its trainer is still to create is proven, or refused, before.
func TestTheProofDoesNotWaitForTheRun(t *testing.T) {
	h := open(t)
	cl := &cluster{runs: map[plan.Key]bool{}}
	p := h.proving(cl, prover{}, "later")
	runnertest.Until(t, "it is proven", p.isSettled)
	p = h.proving(cl, prover{proof: func() error { return errEscaped }}, "refused")
	if err := <-p.done; !errors.Is(err, errEscaped) {
		t.Errorf("error %v", err)
	}
}

// A cluster that does not answer now is led again, and that is told once. What it
// refuses for good ends the controller.
func TestALeadThatFailsIsBegunAgain(t *testing.T) {
	h := open(t)
	id := h.create(nil, "")[0]
	cl := &cluster{runs: map[plan.Key]bool{}}
	var tries atomic.Int32
	p := h.proving(cl, prover{adopt: func() error {
		if tries.Add(1) < 3 {
			return fulgur.E(fulgur.KindUnavailable, "", "no answer", nil)
		}
		return nil
	}}, run)
	runnertest.Until(t, "it says so", func() bool { return strings.Contains(p.Trouble(), "no answer") })
	h.runs(id)
	if said := p.told(); strings.Count(said, "no answer") != 1 || !strings.Contains(said, "are run again") || p.Trouble() != "" {
		t.Errorf("told %q, trouble %q", said, p.Trouble())
	}
	p.stop()
	bad := fulgur.E(fulgur.KindInvalid, "", "it may not list Jobs", nil)
	p = h.proving(cl, prover{adopt: func() error { return bad }}, run)
	if err := <-p.done; !errors.Is(err, bad) {
		t.Errorf("error %v", err)
	}
}

package controller_test

import (
	"bytes"
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/fulgur-rl/fulgur"
	"github.com/fulgur-rl/fulgur/internal/controller"
	"github.com/fulgur-rl/fulgur/internal/controller/local"
	"github.com/fulgur-rl/fulgur/internal/controller/plan"
	"github.com/fulgur-rl/fulgur/internal/controller/runnertest"
)

// lead starts a controller over this machine's processes, as start does, with more
// of its options; the function that it returns stops it.
func (h *house) lead(o controller.Options, change ...func(*local.Options)) (*controller.Controller, func()) {
	h.t.Helper()
	l := local.Options{Command: []string{os.Args[0]}, Env: map[string]string{runnertest.AgentEnv: "process", "DO": "input.do"}, Grace: 200 * time.Millisecond}
	for _, f := range change {
		f(&l)
	}
	r, err := local.New(l)
	if err != nil {
		h.t.Fatal(err)
	}
	o.Run, o.AgentURL, o.Model, o.LeaseTTL = run, h.model.server.URL, "m", 500*time.Millisecond
	o.Limits.Slots = max(o.Limits.Slots, 1)
	c, err := controller.New(o, h.store, h.model, r)
	if err != nil {
		h.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- c.Run(ctx) }()
	stop := sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			h.t.Error("run:", err)
		}
		if err := r.Close(); err != nil {
			h.t.Error("close:", err)
		}
	})
	h.t.Cleanup(stop)
	return c, stop
}

// lines is a log that several goroutines write.
type lines struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.Write(p)
}

func (l *lines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.String()
}

// The whole process group goes with its rollout, and the log says so.
func TestADeletedRolloutsTreeIsEndedAndLogged_CL02(t *testing.T) {
	h := open(t)
	said := &lines{}
	h.lead(controller.Options{Log: slog.New(slog.NewTextHandler(said, nil))})
	file := filepath.Join(t.TempDir(), "pid")
	id := h.create(nil, "ignore; child "+file+".child; daemon "+file+".daemon; pid "+file+"; hang")[0]
	pids := []int{runnertest.Pid(t, file), runnertest.Pid(t, file+".child"), runnertest.Pid(t, file+".daemon")}
	if err := h.store.DeleteRollout(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	begin := time.Now()
	runnertest.Until(t, "all of it is dead", func() bool { return !slices.ContainsFunc(pids, func(pid int) bool { return !runnertest.Dead(pid) }) })
	t.Logf("dead after %s, of which the grace is 200 ms", time.Since(begin))
	if s := said.String(); !strings.Contains(s, "ending an execution") || !strings.Contains(s, "rollout="+string(id)) || !strings.Contains(s, "reason=ended") {
		t.Errorf("the log says %q", s)
	}
}

// An attempt that was lost with its controller has no credential any more: what
// survives of it cannot call.
func TestALostAttemptsCredentialEnds_CL08(t *testing.T) {
	h := open(t)
	id := h.create(nil, "call")[0]
	old, err := h.store.OpenAttempt(t.Context(), id)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := h.store.ReportAttempt(t.Context(), id, old.ID, fulgur.AttemptReport{Phase: fulgur.PhaseRunning, Runner: "local", Holder: "dead", Handle: "gone:1:1"}); err != nil {
		t.Fatal(err)
	}
	h.lead(controller.Options{Limits: plan.Limits{Lost: 1}})
	if r := h.ended(id); r.State != fulgur.Succeeded || r.LastAttempt != "1" {
		t.Errorf("rollout %+v", r)
	}
	if who, err := h.store.Identify(t.Context(), old.Credential); err != nil || !who.Ended {
		t.Errorf("the lost attempt's credential: %+v, %v", who, err)
	}
}

// An agent that posts events, and asks the model nothing, is not idle.
func TestEventsKeepAnAgentFromIdling_CL11(t *testing.T) {
	h := open(t)
	h.lead(controller.Options{Limits: plan.Limits{Idle: time.Second, Total: time.Hour}})
	id := h.create(nil, "sleep 2600")[0]
	runnertest.Until(t, "it runs", func() bool { a := h.attempts(id); return len(a) == 1 && a[0].Phase != fulgur.PhaseEnded })
	over := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		for tick := time.NewTicker(100 * time.Millisecond); ; {
			select {
			case <-tick.C:
				_, _ = h.store.AppendEvent(context.Background(), fulgur.Event{Rollout: id, Attempt: "0", Type: "progress", Data: []byte(`{}`)})
			case <-over:
				tick.Stop()
				return
			}
		}
	})
	r := h.ended(id)
	close(over)
	wg.Wait()
	if r.Outcome.Reason != "no_calls" {
		t.Errorf("one that posts events: %+v", *r.Outcome)
	}
	quiet := h.create(func(s *fulgur.RolloutSpec) { s.ID = "quiet" }, "sleep 2600")[0]
	if r := h.ended(quiet); r.Outcome.Reason != plan.ReasonIdle {
		t.Errorf("one that does not: %+v", *r.Outcome)
	}
}

// More rollouts wait than one listing has, and all of them are seen (ST-10).
func TestMoreThanAListing_CL06(t *testing.T) {
	h := open(t)
	ids := h.create(nil, make([]string, 1100)...)
	c, _ := h.lead(controller.Options{}, func(o *local.Options) { o.Command = []string{"sleep", "60"} })
	runnertest.Until(t, "all are seen", func() bool { s := c.Stats(); return s.Queued+s.Running+s.Starting == len(ids) })
}

// Of what waits, validation goes first, although it came last.
func TestValidationGoesFirst(t *testing.T) {
	h := open(t)
	dir := t.TempDir()
	h.create(nil, "again; pid "+dir+"/first; sleep 500", "write "+dir+"/1", "write "+dir+"/2")
	h.lead(controller.Options{})
	runnertest.Pid(t, dir+"/first")
	id := h.create(func(s *fulgur.RolloutSpec) { s.ID, s.IsTrain = "val", false }, "call")[0]
	h.ended(id)
	order := map[string]time.Time{}
	for _, id := range []fulgur.RolloutID{"r-1", "r-2", "val"} {
		h.ended(id)
		a := h.attempts(id)
		if a[0].StartedAt == nil {
			t.Fatalf("%s: no start is on record", id)
		}
		order[string(id)] = *a[0].StartedAt
	}
	if v := order["val"]; !v.Before(order["r-1"]) || !v.Before(order["r-2"]) {
		t.Errorf("started at %v", order)
	}
}

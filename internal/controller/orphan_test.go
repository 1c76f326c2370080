package controller_test

import (
	"path/filepath"
	"testing"
	"time"

	"github.com/fulgur-rl/fulgur"
	"github.com/fulgur-rl/fulgur/internal/controller"
	"github.com/fulgur-rl/fulgur/internal/controller/plan"
	"github.com/fulgur-rl/fulgur/internal/controller/runnertest"
)

// CK-11, on the local runner: the agents of a run whose trainer died are ended,
// and none is started, until it comes back.
func TestRunWhoseTrainerIsGone(t *testing.T) {
	h := open(t)
	if _, err := h.store.AcquireLease(t.Context(), run, controller.TrainerLease, "one", 10*time.Millisecond); err != nil {
		t.Fatal(err)
	}
	h.start(setup{limits: plan.Limits{Slots: 1}, orphaned: 300 * time.Millisecond})
	file := filepath.Join(t.TempDir(), "pid")
	ids := h.create(nil, "child "+file+".child; pid "+file+"; hang", "")
	pid, child := runnertest.Pid(t, file), runnertest.Pid(t, file+".child")
	r := h.ended(ids[0])
	if r.Outcome == nil || r.Outcome.Reason != plan.ReasonOrphaned || r.Outcome.Class != fulgur.OutcomeInfrastructure {
		t.Errorf("outcome %+v", r.Outcome)
	}
	runnertest.Until(t, "its processes are dead", func() bool { return runnertest.Dead(pid) && runnertest.Dead(child) })
	time.Sleep(200 * time.Millisecond) // in which nothing is to happen
	if r, err := h.store.Rollout(t.Context(), ids[1]); err != nil || r.State != fulgur.Queuing {
		t.Errorf("the next one: %s, %v", r.State, err)
	}
	if _, err := h.store.AcquireLease(t.Context(), run, controller.TrainerLease, "two", time.Hour); err != nil {
		t.Fatal(err)
	}
	if r := h.ended(ids[1]); r.State != fulgur.Succeeded {
		t.Errorf("after it came back: %s %+v", r.State, r.Outcome)
	}
}

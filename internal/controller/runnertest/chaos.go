package runnertest

import (
	"context"
	"errors"
	"math/rand/v2"
	"os"
	"os/exec"
	"testing"
	"time"

	"github.com/fulgur-rl/fulgur"
	"github.com/fulgur-rl/fulgur/internal/controller"
	"github.com/fulgur-rl/fulgur/internal/controller/plan"
	"github.com/fulgur-rl/fulgur/internal/store"
	"github.com/fulgur-rl/fulgur/internal/store/sqlite"
)

// Record puts a run with rollouts into a new store's file.
func Record(t *testing.T, db string, specs []fulgur.RolloutSpec) {
	t.Helper()
	s, err := store.Open(t.Context(), sqlite.New(db, sqlite.Options{}), store.Options{})
	if err != nil {
		t.Fatal(err)
	}
	err = s.PutRun(t.Context(), fulgur.Run{ID: specs[0].Run, Model: "m"})
	if err == nil {
		_, err = s.CreateRollouts(t.Context(), specs)
	}
	if err := errors.Join(err, s.Close()); err != nil {
		t.Fatal(err)
	}
}

// TellDone writes the file when no rollout of the run is open any more. It is for a
// controller's process that its test kills.
func TellDone(s controller.Rollouts, run fulgur.RunID, file string) {
	open := fulgur.RolloutQuery{Run: run, States: []fulgur.RolloutState{fulgur.Queuing, fulgur.Running}, Limit: 1}
	for ; ; time.Sleep(20 * time.Millisecond) {
		if left, err := s.Rollouts(context.Background(), open); err == nil && len(left) == 0 {
			_ = os.WriteFile(file, nil, 0o600)
			return
		}
	}
}

// Kills is a controller's process that is killed at random moments, and begun again.
type Kills struct {
	Begin         func() *exec.Cmd // starts it
	Times         int              // at most
	After, Spread time.Duration    // a life lasts After, and up to Spread more
	Done          string           // the file of TellDone: no more kills are needed
	Patience      time.Duration    // for Done, after the last kill
	Look          func()           // between, to see what must never be; may be nil
}

// Run returns when all is done, or patience is over; nothing runs any more then.
func (k Kills) Run(t *testing.T) {
	t.Helper()
	done := func() bool { _, err := os.Stat(k.Done); return err == nil }
	look := func() {
		if k.Look != nil {
			k.Look()
		}
	}
	kill := func(c *exec.Cmd) { _ = c.Process.Kill(); _ = c.Wait() }
	c, killed := k.Begin(), 0
	for ; killed < k.Times && !done(); killed++ {
		time.Sleep(k.After + rand.N(k.Spread)) // the moment is the test
		look()
		kill(c)
		c = k.Begin()
	}
	for end := time.Now().Add(k.Patience); !done() && time.Now().Before(end); time.Sleep(100 * time.Millisecond) {
		look()
	}
	kill(c)
	t.Logf("killed %d times", killed)
}

// EndedOnce checks that each rollout ended well by its last attempt, and that each
// attempt before was lost with its controller.
func EndedOnce(t *testing.T, s interface {
	controller.Rollouts
	controller.Attempts
}, specs []fulgur.RolloutSpec,
) {
	t.Helper()
	again := 0
	for _, spec := range specs {
		r, err := s.Rollout(t.Context(), spec.ID)
		if err != nil || r.State != fulgur.Succeeded {
			t.Errorf("%s: %s %+v, %v", spec.ID, r.State, r.Outcome, err)
			continue
		}
		attempts, err := s.Attempts(t.Context(), spec.ID)
		if err != nil {
			t.Fatal(err)
		}
		for i, a := range attempts {
			last := i == len(attempts)-1
			if a.Outcome == nil || last != (a.Outcome.Class == fulgur.OutcomeOK) || !last && a.Outcome.Reason != plan.ReasonLost {
				t.Errorf("%s: attempt %s ended %+v", spec.ID, a.ID, a.Outcome)
			}
		}
		again += len(attempts) - 1
	}
	t.Logf("%d attempts were lost and made again", again)
}

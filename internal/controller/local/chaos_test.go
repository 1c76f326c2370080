package local

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/fulgur-rl/fulgur"
	"github.com/fulgur-rl/fulgur/internal/controller/plan"
	"github.com/fulgur-rl/fulgur/internal/controller/runnertest"
	"github.com/fulgur-rl/fulgur/internal/store"
	"github.com/fulgur-rl/fulgur/internal/store/sqlite"
)

// tellDone writes FILE.done when no rollout is open any more.
func tellDone(s *store.Store, db string) {
	open := fulgur.RolloutQuery{Run: "calc", States: []fulgur.RolloutState{fulgur.Queuing, fulgur.Running}, Limit: 1}
	for ; ; time.Sleep(20 * time.Millisecond) {
		if left, err := s.Rollouts(context.Background(), open); err == nil && len(left) == 0 {
			_ = os.WriteFile(db+".done", nil, 0o600)
			return
		}
	}
}

// The controller is killed 20 times while 300 rollouts run (FULGUR_LONG; 4 times
// and 60 without it): every rollout ends well, by one attempt; no two processes of
// one rollout ever live at once; nothing is left over.
func TestLongControllerIsKilledAtRandom(t *testing.T) { chaos(t) }

func TestLongSandboxedControllerIsKilledAtRandom(t *testing.T) {
	needBwrap(t)
	t.Setenv("FULGUR_TEST_BOX", "1")
	chaos(t)
}

func chaos(t *testing.T) {
	rollouts, kills := 60, 4
	if os.Getenv("FULGUR_LONG") != "" {
		rollouts, kills = 300, 20
	} else if testing.Short() {
		t.Skip("seconds of killing; FULGUR_LONG=1 makes it longer")
	}
	dir := t.TempDir()
	db := filepath.Join(dir, "store.db")
	s, err := store.Open(t.Context(), sqlite.New(db, sqlite.Options{}), store.Options{})
	if err != nil {
		t.Fatal(err)
	}
	if err := s.PutRun(t.Context(), fulgur.Run{ID: "calc", Model: "m"}); err != nil {
		t.Fatal(err)
	}
	var specs []fulgur.RolloutSpec
	for i := range rollouts {
		id := fmt.Sprintf("r-%d", i)
		input, _ := json.Marshal(map[string]string{"do": "alone " + filepath.Join(dir, id) + "; child " + filepath.Join(dir, id) + ".child; sleep 150"})
		specs = append(specs, fulgur.RolloutSpec{ID: fulgur.RolloutID(id), Run: "calc", Input: input})
	}
	if _, err := s.CreateRollouts(t.Context(), specs); err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}

	begun := 0
	begin := func() *exec.Cmd {
		begun++
		c := exec.Command(os.Args[0])
		told := []string{"late", "early"}[begun%2] // when a start is on record
		c.Env = append(os.Environ(), "FULGUR_TEST_CONTROLLER="+db, "FULGUR_TEST_CHAOS="+told)
		c.Stderr = os.Stderr
		if err := c.Start(); err != nil {
			t.Fatal(err)
		}
		return c
	}
	done := func() bool { _, err := os.Stat(db + ".done"); return err == nil }
	rng := rand.New(rand.NewPCG(uint64(time.Now().UnixNano()), 1))
	c := begin()
	killed := 0
	for ; killed < kills && !done(); killed++ {
		time.Sleep(time.Duration(100+rng.IntN(600)) * time.Millisecond) // the moment is the test
		_ = c.Process.Kill()
		_ = c.Wait()
		c = begin()
	}
	end := time.Now().Add(2 * time.Minute)
	for !done() && time.Now().Before(end) {
		time.Sleep(20 * time.Millisecond)
	}
	_ = c.Process.Kill()
	_ = c.Wait()
	t.Logf("killed %d times", killed)

	s, ctrl, r, err := house(t.Context(), db, false, false)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = s.Close() }()
	defer func() { _ = r.Close() }()
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
	if twice, _ := filepath.Glob(filepath.Join(dir, "*.twice")); len(twice) > 0 {
		t.Errorf("two processes at once: %v", twice)
	}
	// The last controller was killed too; what it left, its successor ends.
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- ctrl.Run(ctx) }()
	mine := r.(*Processes).owner
	scope, _, _ := strings.Cut(mine, "/")
	runnertest.Until(t, "no process is left", func() bool {
		return len(marked(func(m string) bool { return strings.HasPrefix(m, scope+"/") })) == 0
	})
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

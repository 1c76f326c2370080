package container

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
	"github.com/fulgur-rl/fulgur/internal/controller"
	"github.com/fulgur-rl/fulgur/internal/controller/plan"
	"github.com/fulgur-rl/fulgur/internal/controller/runnertest"
	"github.com/fulgur-rl/fulgur/internal/store"
	"github.com/fulgur-rl/fulgur/internal/store/sqlite"
)

// house is a store with a controller, as one process has it.
func house(ctx context.Context, db string) (*store.Store, *controller.Controller, *Runner, error) {
	s, err := store.Open(ctx, sqlite.New(db, sqlite.Options{}), store.Options{})
	if err != nil {
		return nil, nil, nil, err
	}
	image, err := agentImage()
	if err != nil {
		return nil, nil, nil, err
	}
	r, err := New(ctx, Options{Program: os.Getenv("FULGUR_TEST_CONTAINER"), Image: image, Pull: "never", Command: []string{"/bin/agent"}, Scope: db, Grace: grace,
		Network: "none", Env: map[string]string{runnertest.AgentEnv: "process", "DO": "input.do"}})
	if err != nil {
		return nil, nil, nil, err
	}
	c, err := controller.New(controller.Options{Run: "calc", Holder: "this-process", AgentURL: "http://127.0.0.1:1", LeaseTTL: 500 * time.Millisecond,
		Limits: plan.Limits{Slots: 6, Lost: 5}}, s, nil, r)
	return s, c, r, err
}

// controllerProcess works until it is killed.
func controllerProcess(db string) {
	s, c, _, err := house(context.Background(), db)
	if err == nil {
		_ = os.Unsetenv("FULGUR_TEST_CONTROLLER")
		go tellDone(s, db)
		err = c.Run(context.Background())
	}
	fmt.Fprintln(os.Stderr, err)
	os.Exit(1)
}

// tellDone writes FILE.done when no rollout is open any more.
func tellDone(s *store.Store, db string) {
	open := fulgur.RolloutQuery{Run: "calc", States: []fulgur.RolloutState{fulgur.Queuing, fulgur.Running}, Limit: 1}
	for ; ; time.Sleep(50 * time.Millisecond) {
		if left, err := s.Rollouts(context.Background(), open); err == nil && len(left) == 0 {
			_ = os.WriteFile(db+".done", nil, 0o600)
			return
		}
	}
}

// The controller is killed at random while containers run (20 times and 300 with
// FULGUR_LONG, else 3 and 24): every rollout ends well, by one attempt; no two
// containers of one rollout ever run at once; nothing is left over.
func TestLongControllerIsKilledAtRandom(t *testing.T) {
	program(t)
	rollouts, kills := 24, 3
	if os.Getenv("FULGUR_LONG") != "" {
		rollouts, kills = 300, 20
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
		input, _ := json.Marshal(map[string]string{"do": "sleep 800"})
		specs = append(specs, fulgur.RolloutSpec{ID: fulgur.RolloutID(fmt.Sprintf("r-%d", i)), Run: "calc", Input: input})
	}
	if _, err := s.CreateRollouts(t.Context(), specs); err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	begin := func() *exec.Cmd {
		c := exec.Command(os.Args[0])
		c.Env = append(os.Environ(), "FULGUR_TEST_CONTROLLER="+db)
		c.Stderr = os.Stderr
		if err := c.Start(); err != nil {
			t.Fatal(err)
		}
		return c
	}
	done := func() bool { _, err := os.Stat(db + ".done"); return err == nil }
	rng := rand.New(rand.NewPCG(uint64(time.Now().UnixNano()), 1))
	c, killed := begin(), 0
	for ; killed < kills && !done(); killed++ {
		time.Sleep(time.Duration(1500+rng.IntN(2500)) * time.Millisecond) // the moment is the test
		onlyOnce(t, db)
		_ = c.Process.Kill()
		_ = c.Wait()
		c = begin()
	}
	end := time.Now().Add(5 * time.Minute)
	for !done() && time.Now().Before(end) {
		onlyOnce(t, db)
		time.Sleep(300 * time.Millisecond)
	}
	_ = c.Process.Kill()
	_ = c.Wait()
	t.Logf("killed %d times", killed)

	s, _, r, err := house(t.Context(), db)
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
	// The last controller was killed too; what it left, its successor removes.
	if _, err := r.Adopt(t.Context(), nil); err != nil {
		t.Error(err)
	}
	if left := containers(t, r); len(left) > 0 {
		t.Errorf("containers left: %v", left)
	}
}

// onlyOnce looks for two containers of one rollout that run at once.
func onlyOnce(t *testing.T, scope string) {
	t.Helper()
	c := &client{path: os.Getenv("FULGUR_TEST_CONTAINER"), environ: os.Environ()}
	out, err := c.run(t.Context(), "ps", "--quiet", "--no-trunc", "--filter", "label="+labelScope+"="+short(scope))
	if err != nil {
		t.Fatal(err)
	}
	all, err := c.inspect(t.Context(), strings.Fields(string(out))...)
	if err != nil {
		t.Fatal(err)
	}
	seen := map[string]string{}
	for _, s := range all {
		id := s.Config.Labels[labelRollout]
		if other, ok := seen[id]; ok && id != "" && s.State.Running {
			t.Errorf("two containers of %s run at once: %s and %s", id, other, s.Name)
		}
		if s.State.Running {
			seen[id] = s.Name
		}
	}
}

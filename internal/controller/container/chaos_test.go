package container

import (
	"context"
	"encoding/json"
	"fmt"
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
		Limits: plan.Limits{Slots: 6, Lost: 5}}, s, nil, unproven{r})
	return s, c, r, err
}

// unproven has no gateway that its containers could reach.
type unproven struct{ *Runner }

func (unproven) Prove(context.Context, string) error { return nil }

// controllerProcess works until it is killed.
func controllerProcess(db string) {
	s, c, _, err := house(context.Background(), db)
	if err == nil {
		_ = os.Unsetenv("FULGUR_TEST_CONTROLLER")
		go runnertest.TellDone(s, "calc", db+".done")
		err = c.Run(context.Background())
	}
	fmt.Fprintln(os.Stderr, err)
	os.Exit(1)
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
	runnertest.Kills{Begin: begin, Times: kills, After: 1500 * time.Millisecond, Spread: 2500 * time.Millisecond, Done: db + ".done", Patience: 5 * time.Minute,
		Look: func() { onlyOnce(t, db) }}.Run(t)

	s, _, r, err := house(t.Context(), db)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = s.Close() }()
	defer func() { _ = r.Close() }()
	runnertest.EndedOnce(t, s, specs)
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

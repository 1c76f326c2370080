package local

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"testing"
	"time"

	"github.com/fulgur-rl/fulgur"
	"github.com/fulgur-rl/fulgur/internal/controller"
	"github.com/fulgur-rl/fulgur/internal/controller/plan"
	"github.com/fulgur-rl/fulgur/internal/controller/runnertest"
	"github.com/fulgur-rl/fulgur/internal/controller/sandbox"
	"github.com/fulgur-rl/fulgur/internal/store"
	"github.com/fulgur-rl/fulgur/internal/store/sqlite"
)

// house is a store with a controller, as one process has it.
func house(ctx context.Context, db string, orphans, worker bool) (*store.Store, *controller.Controller, controller.Runner, error) {
	s, err := store.Open(ctx, sqlite.New(db, sqlite.Options{}), store.Options{})
	if err != nil {
		return nil, nil, nil, err
	}
	o := Options{Command: []string{os.Args[0]}, Scope: db, Grace: 200 * time.Millisecond, orphans: orphans,
		Env: map[string]string{runnertest.AgentEnv: "process", "DO": "input.do"}}
	if os.Getenv("FULGUR_TEST_BOX") != "" {
		box, err := sandbox.New(sandbox.Options{View: sandbox.View{Write: []string{filepath.Dir(db)}}, Upstream: "http://127.0.0.1:1", Limits: sandbox.Limits{Memory: 1 << 30, Processes: 300}})
		if err != nil {
			return nil, nil, nil, err
		}
		o.Sandbox, o.Dir = box, filepath.Dir(db)
	}
	var r controller.Runner
	if worker {
		o.Env[runnertest.AgentEnv], o.Workers = "worker", 3
		r, err = NewWorkers(o)
	} else {
		var p *Processes
		p, err = New(o)
		r = unproven{p}
	}
	if err != nil {
		return nil, nil, nil, err
	}
	co := controller.Options{Run: "calc", AgentURL: "http://127.0.0.1:1", LeaseTTL: 500 * time.Millisecond, RunWindow: -1,
		Limits: plan.Limits{Slots: 3, Lost: 3}}
	if told := os.Getenv("FULGUR_TEST_CHAOS"); told != "" { // as one process runs all
		co.Holder, co.Limits.Slots, co.Limits.Lost = "this-process", 10, 5
		if told == "late" {
			co.RunWindow = 0
		}
	}
	c, err := controller.New(co, s, nil, r)
	return s, c, r, err
}

// unproven has no gateway that its agents could reach.
type unproven struct{ *Processes }

func (unproven) Prove(context.Context, string) error { return nil }

// controllerProcess works until it is killed.
func controllerProcess(db string) {
	open := func() (*store.Store, *controller.Controller, controller.Runner, error) {
		return house(context.Background(), db, os.Getenv("FULGUR_TEST_ORPHANS") != "", os.Getenv("FULGUR_TEST_WORKER") != "")
	}
	s, c, _, err := open()
	// One that was killed while it forked has left the store's lock to a process that
	// is about to become an agent, and lets go of it then.
	for tries := 0; err != nil && tries < 100; tries++ {
		time.Sleep(20 * time.Millisecond)
		s, c, _, err = open()
	}
	if err == nil {
		_ = os.Unsetenv("FULGUR_TEST_CONTROLLER")
		if os.Getenv("FULGUR_TEST_CHAOS") != "" {
			go runnertest.TellDone(s, "calc", db+".done")
		} else {
			go tellReported(s, db)
		}
		err = c.Run(context.Background())
	}
	fmt.Fprintln(os.Stderr, err)
	os.Exit(1)
}

// tellReported writes FILE.reported for each rollout whose attempt is on record
// as running: what is killed earlier is begun anew as the same attempt.
func tellReported(s *store.Store, db string) {
	for told := map[fulgur.RolloutID]bool{}; ; time.Sleep(5 * time.Millisecond) {
		running, _ := s.Rollouts(context.Background(), fulgur.RolloutQuery{Run: "calc", States: []fulgur.RolloutState{fulgur.Running}})
		for _, r := range running {
			all, _ := s.Attempts(context.Background(), r.ID)
			if !told[r.ID] && len(all) > 0 && all[len(all)-1].Phase == fulgur.PhaseRunning {
				told[r.ID] = os.WriteFile(filepath.Join(filepath.Dir(db), string(r.ID)+".reported"), []byte("1"), 0o600) == nil
			}
		}
	}
}

func TestControllerIsKilledAndStartedAgain_CL08(t *testing.T) {
	for name, test := range map[string]struct {
		env             string
		orphans, worker bool
	}{
		"processes":                        {"FULGUR_TEST_NOTHING=1", false, false},
		"processes that survive its death": {"FULGUR_TEST_ORPHANS=1", true, false},
		"workers":                          {"FULGUR_TEST_WORKER=1", false, true},
	} {
		t.Run(name, func(t *testing.T) {
			if test.orphans && runtime.GOOS != "linux" {
				t.Skip("daemons are found by their environment, which macOS does not show")
			}
			dir := t.TempDir()
			db := filepath.Join(dir, "store.db")
			var specs []fulgur.RolloutSpec
			for _, id := range []string{"a", "b", "c"} {
				at := filepath.Join(dir, id)
				input, _ := json.Marshal(map[string]string{"do": "again; child " + at + ".child; daemon " + at + ".daemon; pid " + at + ".pid; ignore; hang"})
				specs = append(specs, fulgur.RolloutSpec{ID: fulgur.RolloutID(id), Run: "calc", Input: input})
			}
			runnertest.Record(t, db, specs)

			first := exec.Command(os.Args[0])
			first.Env = append(os.Environ(), "FULGUR_TEST_CONTROLLER="+db, test.env)
			first.Stderr = os.Stderr
			if err := first.Start(); err != nil {
				t.Fatal(err)
			}
			var pids []int
			for _, spec := range specs {
				for _, kind := range []string{".child", ".daemon", ".pid"} {
					pids = append(pids, runnertest.Pid(t, filepath.Join(dir, string(spec.ID)+kind)))
				}
				runnertest.Until(t, string(spec.ID)+" is on record as running", func() bool {
					_, err := os.Stat(filepath.Join(dir, string(spec.ID)+".reported"))
					return err == nil
				})
			}
			_ = first.Process.Kill()
			_ = first.Wait()

			s, c, r, err := house(t.Context(), db, test.orphans, test.worker)
			if err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithCancel(t.Context())
			done := make(chan error, 1)
			go func() { done <- c.Run(ctx) }()
			for _, spec := range specs {
				runnertest.Until(t, string(spec.ID)+" went well in the end", func() bool {
					got, err := s.Rollout(t.Context(), spec.ID)
					return err == nil && got.State == fulgur.Succeeded
				})
				all, err := s.Attempts(t.Context(), spec.ID)
				if err != nil || len(all) != 2 || all[0].Outcome.Reason != plan.ReasonLost || all[0].Outcome.Class != fulgur.OutcomeInfrastructure {
					t.Errorf("attempts of %s: %+v, %v", spec.ID, all, err)
				}
			}
			for i, pid := range pids {
				if !runnertest.Dead(pid) {
					t.Errorf("process %d of the first controller's lives on", i)
				}
			}
			cancel()
			if err := <-done; err != nil {
				t.Error(err)
			}
			_ = r.Close()
			_ = s.Close()
		})
	}
}

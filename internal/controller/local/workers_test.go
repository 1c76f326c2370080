package local

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/fulgur-rl/fulgur"
	"github.com/fulgur-rl/fulgur/internal/controller"
	"github.com/fulgur-rl/fulgur/internal/controller/plan"
	"github.com/fulgur-rl/fulgur/internal/controller/runnertest"
)

func workerOptions(t *testing.T) Options {
	o := options(t)
	o.Env = map[string]string{runnertest.AgentEnv: "worker", "DO": "input.do"}
	o.Workers = 2
	return o
}

func workers(t *testing.T, o Options) *Workers {
	t.Helper()
	r, err := NewWorkers(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = r.Close() })
	return r
}

func TestWorkers(t *testing.T) {
	make := func(t *testing.T, s runnertest.Setup) controller.Runner {
		o := workerOptions(t)
		o.Input = controller.InputMode(s.Input)
		return workers(t, o)
	}
	runnertest.Run(t, runnertest.Variant{
		New:   make,
		Again: func(t *testing.T, s runnertest.Setup, _ controller.Runner) controller.Runner { return make(t, s) },
		Lacks: runnertest.Lacks{Adopt: true, Stdin: true, Grader: true},
	})
}

func TestWorkerProtocol(t *testing.T) {
	for name, test := range map[string]struct {
		do, failure, want string
		cause             plan.Cause
	}{
		"ok":                            {"say x", "", "", 0},
		"not ok":                        {"fail no tools left", "error", "no tools left", plan.CauseAgent},
		"a line that is no answer":      {"nonsense", "protocol", `"hello from a library"`, plan.CauseAgent},
		"an answer for another rollout": {"wrong", "protocol", "no answer to this rollout", plan.CauseAgent},
		"an end without an answer":      {"exit 0", "protocol", "without an answer", plan.CauseAgent},
	} {
		t.Run(name, func(t *testing.T) {
			o := workerOptions(t)
			o.Workers = 1
			r := workers(t, o)
			runnertest.Start(t, r, runnertest.Execution("a", test.do))
			x := runnertest.Exit(t, r, "a")
			if x.Failure != test.failure || !strings.Contains(x.Message, test.want) || x.Cause != test.cause {
				t.Errorf("exit %+v", x)
			}
			// Whatever happened, the next rollout gets a good worker.
			runnertest.Start(t, r, runnertest.Execution("b", ""))
			if x := runnertest.Exit(t, r, "b"); x.Failure != "" || x.Code != 0 {
				t.Errorf("the next one: %+v", x)
			}
		})
	}
}

func TestWorkerIsUsedAgainAndReplacedAfterACrash(t *testing.T) {
	o := workerOptions(t)
	o.Workers, o.Logs = 1, controller.KeepAll
	r := workers(t, o)
	dir := t.TempDir()
	pid := func(id, then string) int {
		runnertest.Start(t, r, runnertest.Execution(id, "pid "+dir+"/"+id+then))
		runnertest.Exit(t, r, id)
		return runnertest.Pid(t, dir+"/"+id)
	}
	a, b, c, d := pid("a", ""), pid("b", "; exit 3"), pid("c", ""), pid("d", "")
	if a != b || b == c || c != d {
		t.Errorf("processes %d %d %d %d: want two, the second after the crash", a, b, c, d)
	}
}

// What a worker does after its answer is no fault of the next rollout's.
func TestWorkerThatTakesNoOtherRollout(t *testing.T) {
	for _, do := range []string{"last", "deaf"} {
		t.Run(do, func(t *testing.T) {
			o := workerOptions(t)
			o.Workers, o.WorkerStart = 1, time.Second
			r := workers(t, o)
			for i, do := range []string{do, "say x", do, do, "say y"} {
				id := fmt.Sprint("r", i)
				runnertest.Start(t, r, runnertest.Execution(id, do))
				if x := runnertest.Exit(t, r, id); x.Failure != "" || x.Code != 0 {
					t.Errorf("rollout %d: %+v", i, x)
				}
			}
		})
	}
}

func TestWorkerStartUpIsOutsideTheRollout(t *testing.T) {
	o := workerOptions(t)
	o.Environ = append(os.Environ(), "FULGUR_TEST_STARTUP=300")
	r := workers(t, o)
	begin := time.Now()
	s := runnertest.Start(t, r, runnertest.Execution("a", "hang"))
	if s.Running {
		t.Error("it is said to run before its worker is up")
	}
	ev := <-r.Events()
	if took := time.Since(begin); ev.Exit != nil || ev.Handle == "" || took < 250*time.Millisecond {
		t.Errorf("event %+v after %s, want that it runs, after its worker's start-up", ev, took)
	}
}

func TestWorkerThatNeverComesUp(t *testing.T) {
	for name, test := range map[string]struct{ env, want string }{
		"it exits":          {"FULGUR_TEST_BROKEN=1", "with code 4 at its start-up"},
		"it reads too late": {"FULGUR_TEST_STARTUP=60000", "had not read its first line"},
	} {
		t.Run(name, func(t *testing.T) {
			o := workerOptions(t)
			o.Environ = append(os.Environ(), test.env)
			o.WorkerStart = 500 * time.Millisecond
			r := workers(t, o)
			for _, id := range []string{"a", "b"} {
				runnertest.Start(t, r, runnertest.Execution(id, ""))
				x := runnertest.Exit(t, r, id)
				if x.Failure != "worker" || x.Cause != plan.CauseTransient || !strings.Contains(x.Message, test.want) {
					t.Errorf("exit %+v", x)
				}
			}
		})
	}
}

func TestMoreRolloutsThanWorkersWait(t *testing.T) {
	r := workers(t, workerOptions(t))
	for _, id := range []string{"a", "b", "c", "d", "e"} {
		runnertest.Start(t, r, runnertest.Execution(id, "sleep 20"))
	}
	if err := r.Stop(t.Context(), plan.Key{Rollout: "e", Attempt: "0"}); err != nil {
		t.Fatal(err)
	}
	ended := map[fulgur.RolloutID]int{}
	for len(ended) < 5 {
		if ev := <-r.Events(); ev.Exit != nil {
			ended[ev.Key.Rollout]++
		}
	}
	for id, n := range ended {
		if n != 1 {
			t.Errorf("%s ended %d times", id, n)
		}
	}
}

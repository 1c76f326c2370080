package trainer

import (
	"fmt"
	"strings"
	"testing"

	"github.com/fulgur-rl/fulgur"
)

// UI-03: why all of a step's rollouts come to nothing is told where it happens, once for
// each reason.
func TestWhyRolloutsComeToNothingIsTold(t *testing.T) {
	rollouts := func(n int, change func(i int, e *ended)) []ended {
		all := make([]ended, n)
		for i := range all {
			all[i].line = RolloutLine{ID: fulgur.RolloutID(fmt.Sprint("r", i)), Class: fulgur.OutcomeOK, Outcome: "ok", Calls: 2}
			change(i, &all[i])
		}
		return all
	}
	fails := func(few int) func(int, *ended) {
		return func(i int, e *ended) {
			if i >= few {
				e.line.Class, e.line.Outcome, e.line.Calls = fulgur.OutcomeAgent, "exit", 0
				e.message = "the agent exited with code 1\nlast lines of its log (a.log):\nTraceback\nKeyError: 'TASK'\x1b[0m"
			}
		}
	}
	tests := func(end func(i int) fulgur.TestsEnd) func(int, *ended) {
		return func(i int, e *ended) {
			g := end(i)
			e.graded = &fulgur.Graded{Tests: &g}
		}
	}
	broken := tests(func(i int) fulgur.TestsEnd {
		return fulgur.TestsEnd{ExitCode: 2, Output: fmt.Sprintf("ERROR: no such file\nno tests ran in 0.0%ds", i)}
	})
	for name, c := range map[string]struct {
		steps [][]ended
		want  []string // parts of what is told, in order
	}{
		"all is well":           {[][]ended{rollouts(8, func(int, *ended) {})}, nil},
		"all agents fail alike": {[][]ended{rollouts(8, fails(0))}, []string{"8 of 8 rollouts ended as agent_failure/exit: the agent exited with code 1; its log ends with: KeyError: 'TASK'[0m; look at `fulgur rollouts show r0`"}},
		"they do so for ever":   {[][]ended{rollouts(8, fails(0)), rollouts(8, fails(0))}, []string{"8 of 8 rollouts"}},
		"most fail alike":       {[][]ended{rollouts(10, fails(2))}, []string{"8 of 10 rollouts ended as agent_failure/exit"}},
		"many fail":             {[][]ended{rollouts(10, fails(3))}, nil},
		"no agent calls the model": {[][]ended{rollouts(4, func(_ int, e *ended) {
			e.line.Outcome, e.line.Calls, e.message = "no_calls", 0, "does it take its address"
		})}, []string{"4 of 4 rollouts ended as ok/no_calls: does it take its address; look"}},
		"two reasons in two steps": {[][]ended{rollouts(8, fails(0)), rollouts(4, func(_ int, e *ended) { e.line.Class, e.line.Outcome = fulgur.OutcomeInfrastructure, "spawn" })}, []string{"agent_failure/exit", "4 of 4 rollouts ended as infrastructure/spawn: nothing says why"}},
		"tests are broken":         {[][]ended{rollouts(8, broken), rollouts(8, broken)}, []string{"reward.tests ended with code 2 for all of 8 rollouts: no tests ran in 0.00s; are they broken? `fulgur rollouts show r0`"}},
		"tests hang":               {[][]ended{rollouts(2, tests(func(int) fulgur.TestsEnd { return fulgur.TestsEnd{ExitCode: -1, TimedOut: true} }))}, []string{"reward.tests had not ended in time for all of 2 rollouts: (they printed nothing)"}},
		"tests pass":               {[][]ended{rollouts(8, tests(func(int) fulgur.TestsEnd { return fulgur.TestsEnd{} }))}, nil},
		"tests fail in other ways": {[][]ended{rollouts(8, tests(func(i int) fulgur.TestsEnd { return fulgur.TestsEnd{ExitCode: 1 + i%2} })), rollouts(8, broken)}, nil},
		"rollouts are flagged": {[][]ended{rollouts(8, func(i int, e *ended) {
			if i > 4 {
				e.line.Flags = []string{"conftest.py (decides how tests run)"}
			}
		})}, []string{"3 of 8 rollouts are flagged: their agents left files that decide how they are graded (conftest.py (decides how tests run)): look at `fulgur rollouts show r5`"}},
	} {
		var said []string
		tr := trainer{o: Options{Observer: func(e Event) {
			if w, ok := e.(Warning); ok {
				said = append(said, w.Message)
			}
		}}}
		for i, s := range c.steps {
			tr.warnCauses(int64(i+1), s)
		}
		if len(said) != len(c.want) {
			t.Errorf("%s: told %q, want %q", name, said, c.want)
			continue
		}
		for i := range said {
			if !strings.Contains(said[i], c.want[i]) {
				t.Errorf("%s: told %q, want %q", name, said[i], c.want[i])
			}
		}
	}
	if c := count(rollouts(4, func(i int, e *ended) { e.line.Flags = make([]string, i%2) }), 1); c.flagged != 2 {
		t.Errorf("%d are counted as flagged", c.flagged)
	}
}

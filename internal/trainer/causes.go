package trainer

import (
	"cmp"
	"regexp"
	"strconv"
	"strings"

	"github.com/fulgur-rl/fulgur"
)

const (
	warnSameEnd  = 0.8 // of a step's rollouts, or an evaluation's
	causeOnLine  = 300 // bytes of a log's line in a warning
	leastToAgree = 2   // rollouts whose tests end alike
)

// causes are why rollouts come to nothing, each told once in a process's life.
type causes struct {
	told       map[string]bool // ways to end
	testsTold  bool            // that they end alike
	testsApart bool            // they have not ended alike for all, or have passed
}

// warnCauses says why rollouts came to nothing where most did for one reason: how their
// agents ended, or how their tests did. It says whether it told of the former. Rollouts
// are those of a step or of an evaluation.
func (t *trainer) warnCauses(step int64, rollouts []ended) bool {
	t.warnFlagged(step, rollouts)
	t.warnTests(step, rollouts)
	ways := map[string]int{}
	for i := range rollouts {
		ways[causeOf(&rollouts[i])]++
	}
	for i := range rollouts {
		e := &rollouts[i]
		cause := causeOf(e)
		if n := ways[cause]; cause == "" || float64(n) < warnSameEnd*float64(len(rollouts)) || t.causes.told[cause] {
			continue
		}
		if t.causes.told == nil {
			t.causes.told = map[string]bool{}
		}
		t.causes.told[cause] = true
		t.warn(step, "same_end/"+cause, "%d of %d rollouts ended as %s: %s; look at `fulgur rollouts show %s`", ways[cause], len(rollouts), cause, cmp.Or(brief(e.message), "nothing says why"), e.line.ID)
		return true
	}
	return false
}

// causeOf is the way in which a rollout came to nothing; "": it did not, as far as its end goes.
func causeOf(e *ended) string {
	if e.line.Class == fulgur.OutcomeOK && (e.line.Outcome != CauseNoCalls || e.line.Calls > 0) {
		return ""
	}
	return string(e.line.Class) + "/" + e.line.Outcome
}

// brief is an outcome's message on one line: what happened, and the last line of the log.
func brief(message string) string {
	lines := strings.Split(strings.TrimSpace(message), "\n")
	first, last := strings.TrimSpace(lines[0]), strings.TrimSpace(lines[len(lines)-1])
	if len(lines) == 1 {
		return cut(first)
	}
	return cut(first) + "; its log ends with: " + cut(last)
}

// cut is the beginning of a line, without what moves a terminal's cursor.
func cut(line string) string {
	line = strings.Map(func(r rune) rune {
		if r < ' ' || r >= 0x7f && r < 0xa0 {
			return -1
		}
		return r
	}, line)
	if len(line) > causeOnLine {
		line = strings.ToValidUTF8(line[:causeOnLine], "") + "…"
	}
	return line
}

// times are what differs between two ends that are the same: how long it took, and where.
var times = regexp.MustCompile(`\d+`)

// warnTests says that tests ended in the same way, and not well, for all rollouts from
// the first on: they may be broken, and then no work of any agent's is worth more.
func (t *trainer) warnTests(step int64, rollouts []ended) {
	c := &t.causes
	if c.testsTold || c.testsApart {
		return
	}
	type end struct {
		code int
		late bool
		last string
	}
	var first *ended
	var same end
	n := 0
	for i := range rollouts {
		g := rollouts[i].graded
		if g == nil || g.Tests == nil {
			continue
		}
		at := end{g.Tests.ExitCode, g.Tests.TimedOut, times.ReplaceAllString(lastLine(g.Tests.Output), "0")}
		if first == nil {
			first, same = &rollouts[i], at
		}
		if at != same || at.code == 0 {
			c.testsApart = true
			return
		}
		n++
	}
	if n < leastToAgree {
		return
	}
	c.testsTold = true
	tests := first.graded.Tests
	what := "had not ended in time"
	if !tests.TimedOut {
		what = "ended with code " + strconv.Itoa(tests.ExitCode)
	}
	t.warn(step, "tests", "reward.tests %s for all of %d rollouts: %s; are they broken? `fulgur rollouts show %s` has what they printed", what, n, cmp.Or(cut(lastLine(tests.Output)), "(they printed nothing)"), first.line.ID)
}

func lastLine(s string) string {
	s = strings.TrimSpace(s)
	return strings.TrimSpace(s[strings.LastIndexByte(s, '\n')+1:])
}

// warnFlagged counts rollouts whose agents left files that decide how they are graded.
func (t *trainer) warnFlagged(step int64, rollouts []ended) {
	n, first := 0, -1
	for i := range rollouts {
		if len(rollouts[i].line.Flags) > 0 {
			if n++; first < 0 {
				first = i
			}
		}
	}
	if n > 0 {
		l := &rollouts[first].line
		t.warn(step, "flagged", "%d of %d rollouts are flagged: their agents left files that decide how they are graded (%s): look at `fulgur rollouts show %s`", n, len(rollouts), cut(l.Flags[0]), l.ID)
	}
}

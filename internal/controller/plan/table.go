package plan

import (
	"fmt"
	"maps"
	"slices"

	"github.com/fulgur-rl/fulgur"
)

// Table says what each way to end leads to: whether another attempt follows,
// and what the last one counts for in training. The zero value has no retries,
// masks infrastructure failures and grades everything else.
type Table struct {
	Retries        int // new attempts after infrastructure failures
	Infrastructure *fulgur.Follow
	Agent          fulgur.Follow
	Reasons        map[string]Rule // over what their class does
}

// Rule is what one reason leads to; nil: as its class.
type Rule struct {
	Retries *int
	Then    *fulgur.Follow
}

// RetriesOf returns how many attempts may have failed before this reason ends
// the rollout.
func (t Table) RetriesOf(reason string) int {
	if r := t.Reasons[reason].Retries; r != nil {
		return *r
	}
	return t.Retries
}

// Follow returns what an outcome that no attempt follows counts for.
func (t Table) Follow(class fulgur.OutcomeClass, reason string) fulgur.Follow {
	if r := t.Reasons[reason].Then; r != nil {
		return *r
	}
	switch class {
	case fulgur.OutcomeAgent:
		return t.Agent
	case fulgur.OutcomeInfrastructure:
		if t.Infrastructure != nil {
			return *t.Infrastructure
		}
		return fulgur.Follow{Mask: true}
	}
	return fulgur.Follow{}
}

// Failures says whether there is a way for an agent to fail that counts for what the agent
// has left.
func (t Table) Failures() bool {
	if byGrade(t.Agent) {
		return true
	}
	for name, rule := range t.Reasons {
		r, known := Find(name)
		if rule.Then != nil && byGrade(*rule.Then) && (!known || r.Class == fulgur.OutcomeAgent || r.Cause == CauseEither) {
			return true
		}
	}
	return false
}

// byGrade says whether what follows is what the grade says.
func byGrade(f fulgur.Follow) bool { return !f.Mask && f.Value == nil }

// Row is a line of the table as people read it.
type Row struct {
	Reason
	Again string // whether another attempt follows
	Then  string // what it counts for if none does
}

// Rows returns the whole table: all known reasons, then those that only the
// table names. lost are the new attempts after the death of a controller.
func (t Table) Rows(lost int) []Row {
	all := Reasons()
	for _, name := range slices.Sorted(maps.Keys(t.Reasons)) {
		if _, ok := Find(name); !ok {
			all = append(all, Reason{name, fulgur.OutcomeInfrastructure, CauseEither, "a word of its runner's"})
		}
	}
	rows := make([]Row, len(all))
	for i, r := range all {
		n := t.RetriesOf(r.Name)
		rows[i] = Row{r, "never", Text(t.Follow(r.Class, r.Name))}
		switch {
		case r.Name == ReasonShutdown:
			rows[i].Again = "always"
		case r.Name == ReasonLost:
			rows[i].Again = fmt.Sprintf("up to %d", lost)
		case r.Retried() && n > 0:
			rows[i].Again = fmt.Sprintf("up to %d", n)
		}
		if r.Cause == CauseEither {
			if rows[i].Again != "never" {
				rows[i].Again += " before its first call"
			}
			if then := Text(t.Follow(fulgur.OutcomeAgent, r.Name)); then != rows[i].Then {
				rows[i].Then += "; after a call: " + then
			}
		}
	}
	return rows
}

// Retried says whether another attempt may follow.
func (r Reason) Retried() bool {
	return r.Class == fulgur.OutcomeInfrastructure && (r.Cause == CauseTransient || r.Cause == CauseEither)
}

// Steered says whether what an agent does can bring the reason about.
func (r Reason) Steered() bool {
	return r.Class == fulgur.OutcomeAgent || r.Cause == CauseEither || r.Name == ReasonNoCalls
}

// Text says in a few words what follows.
func Text(f fulgur.Follow) string {
	switch {
	case f.Mask:
		return "is masked: neither trains nor votes"
	case f.Value != nil:
		return fmt.Sprintf("trains with reward %v", *f.Value)
	}
	return "trains on its grade"
}

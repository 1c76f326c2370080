package cli

import (
	"fmt"
	"io"
	"slices"
	"text/tabwriter"

	"github.com/fulgur-rl/fulgur"
	"github.com/fulgur-rl/fulgur/internal/config"
	"github.com/fulgur-rl/fulgur/internal/controller/plan"
)

// lostAttempts are the new attempts after the death of a controller.
const lostAttempts = 5

// outcomeTable is the run file's table of what each way to end leads to.
func outcomeTable(o config.Outcomes) plan.Table {
	infrastructure := fulgur.Follow(o.Infrastructure.Then)
	t := plan.Table{Retries: o.Infrastructure.Retries, Infrastructure: &infrastructure, Reasons: map[string]plan.Rule{}}
	t.Agent.Value = o.AgentFailure.Reward.Value
	for name, r := range o.Reasons.Rules {
		t.Reasons[name] = plan.Rule{Retries: r.Retries, Then: (*fulgur.Follow)(r.Then)}
	}
	return t
}

// reasonNames are the words that rules may name: all, those that another attempt
// may follow, and those that an agent can bring about.
func reasonNames() (all, retried, steered []string) {
	for _, r := range plan.Reasons() {
		if r.Name == plan.ReasonEnded || r.Name == plan.ReasonShutdown || r.Name == plan.ReasonOrphaned {
			continue // nothing follows from them
		}
		all = append(all, r.Name)
		if r.Retried() && r.Name != plan.ReasonLost {
			retried = append(retried, r.Name)
		}
		if r.Steered() {
			steered = append(steered, r.Name)
		}
	}
	return all, retried, steered
}

// changedRows are those in which a table differs from that of a run file that says
// nothing of outcomes.
func changedRows(t plan.Table) []plan.Row {
	usual := outcomeTable(config.Default().Outcomes).Rows(lostAttempts)
	return slices.DeleteFunc(t.Rows(lostAttempts), func(r plan.Row) bool { return slices.Contains(usual, r) })
}

// printOutcomes prints what each way to end leads to: all of them, or those that the
// run file changes.
func printOutcomes(w io.Writer, t plan.Table, all bool) {
	rows := t.Rows(lostAttempts)
	if !all {
		rows = changedRows(t)
		if len(rows) == 0 {
			fmt.Fprintln(w, "outcomes: as docs/controller.md has them (--outcomes prints them)")
			return
		}
		defer fmt.Fprintln(w, "outcomes: these rows are the run file's; the others are as docs/controller.md has them (--outcomes prints all)")
	}
	tw := tabwriter.NewWriter(w, 0, 8, 2, ' ', 0)
	fmt.Fprintln(tw, "how an attempt ends\tclass\tnew attempts\tthen")
	for _, r := range rows {
		fmt.Fprintf(tw, "%s\t%s\t%s\t%s\n", r.Name, r.Class, r.Again, r.Then)
	}
	_ = tw.Flush()
}

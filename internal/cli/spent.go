package cli

import (
	"cmp"
	"context"
	"errors"

	"github.com/spf13/cobra"

	"github.com/fulgur-rl/fulgur"
	"github.com/fulgur-rl/fulgur/internal/trainer"
)

func (a *app) spentCommand(f *recordFlags) *cobra.Command {
	return &cobra.Command{
		Use: "spent", Short: "what sampled tokens and agent seconds went to: trained, or lost to which cause", Args: runByFlag,
		Long: `A ledger of a run's training rollouts: the tokens that agents sampled and the seconds
that they took, by what became of them. "trained" is what took part in an update; the
rest is lost, by cause: groups with equal rewards (no advantage), masked rollouts, calls
that could not train, earlier attempts that were retried, and rollouts that no step took.
A rollout's seconds, from its creation to its end, are shared out by its tokens.`,
		Example: `  fulgur rollouts spent --run runs/demo
  fulgur rollouts spent --json`,
		RunE: func(c *cobra.Command, _ []string) error { return a.spent(c, *f) },
	}
}

func (a *app) spent(c *cobra.Command, f recordFlags) (err error) {
	rec, err := a.openRecord(c, f)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, rec.Close()) }()
	if rec.lines == nil {
		return fulgur.E(fulgur.KindUnsupported, "sum up run "+string(rec.run), "a server doesn't know what trained: name the trainer's run folder with --run", nil)
	}
	more, err := rec.untold(c.Context())
	if err != nil {
		return err
	}
	lines := make([]trainer.RolloutLine, 0, len(rec.lines))
	for _, l := range rec.lines {
		lines = append(lines, l)
	}
	spent := trainer.Ledger(lines, more...)
	if a.json {
		return a.printJSON(spent)
	}
	a.printSpent(spent)
	return nil
}

// untold finds what no rollout's line tells of: attempts before the last one, and
// training rollouts that no step took.
func (r *record) untold(ctx context.Context) ([]trainer.Spent, error) {
	var out []trainer.Spent
	q := fulgur.RolloutQuery{Run: r.run, Limit: 1000}
	for {
		page, err := r.Rollouts(ctx, q)
		if err != nil {
			return nil, err
		}
		for i := range page {
			ro := &page[i]
			if _, told := r.lines[ro.ID]; !ro.IsTrain || told && (ro.LastAttempt == "0" || ro.LastAttempt == "") {
				continue
			}
			s, err := r.untoldOf(ctx, ro)
			if err != nil {
				return nil, err
			}
			out = append(out, s...)
		}
		if len(page) < q.Limit {
			return out, nil
		}
		q.After = page[len(page)-1].ID
	}
}

func (r *record) untoldOf(ctx context.Context, ro *fulgur.Rollout) ([]trainer.Spent, error) {
	attempts, err := r.Attempts(ctx, ro.ID)
	if err != nil {
		return nil, err
	}
	var out []trainer.Spent
	_, told := r.lines[ro.ID]
	for i := range attempts {
		at := &attempts[i]
		s := trainer.Spent{Rollouts: 1, Cause: "not_taken"}
		switch {
		case at.ID != ro.LastAttempt:
			s.Cause = "earlier_attempt"
			if at.Outcome != nil {
				s.Cause += "_" + cmp.Or(at.Outcome.Reason, string(at.Outcome.Class))
			}
		case told:
			continue
		case ro.Outcome != nil && ro.Outcome.Class != fulgur.OutcomeOK:
			s.Cause += "_" + ro.Outcome.Reason
		case !ro.State.Terminal():
			s.Cause = "still_running"
		}
		calls, err := r.Calls(ctx, ro.ID, at.ID)
		if err != nil {
			return nil, err
		}
		for k := range calls {
			s.Tokens += len(calls[k].SampledIDs)
		}
		if at.StartedAt != nil && at.EndedAt != nil {
			s.Seconds = at.EndedAt.Sub(*at.StartedAt).Seconds()
		}
		out = append(out, s)
	}
	return out, nil
}

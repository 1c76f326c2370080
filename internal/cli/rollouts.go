package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/fulgur-rl/fulgur"
	"github.com/fulgur-rl/fulgur/internal/api/client"
	"github.com/fulgur-rl/fulgur/internal/controller/plan"
	"github.com/fulgur-rl/fulgur/internal/trainer"
)

// recordFlags say which record to look at.
type recordFlags struct{ run, server, key string }

func (f *recordFlags) register(c *cobra.Command) {
	c.PersistentFlags().StringVar(&f.run, "run", "", "the run's folder, or its name below runs/ (default: the newest below runs/); with --server the run's id")
	c.PersistentFlags().StringVar(&f.server, "server", "", "URL of a running fulgur serve, in place of a folder")
	c.PersistentFlags().StringVar(&f.key, "key", "", "the server's key")
}

// runByFlag is for commands without arguments: most others take the run as one.
func runByFlag(c *cobra.Command, args []string) error {
	if len(args) > 0 {
		return fmt.Errorf("name the run by a flag: %s --run %s", c.CommandPath(), args[0])
	}
	return nil
}

// record is an opened record.
type record struct {
	records
	run   fulgur.RunID
	lines map[fulgur.RolloutID]trainer.RolloutLine // what became of each rollout; only a folder has them
	model fs.FS                                    // the run's; nil where it isn't known
	// samples says how the run builds samples; lineages without a limit where that isn't known.
	samples trainer.SamplesConfig
	// table says what each way to end leads to; nil where that isn't known.
	table *plan.Table
}

func (a *app) openRecord(c *cobra.Command, f recordFlags) (*record, error) {
	if f.server != "" {
		if err := checkServer(c.Context(), f.server, f.key); err != nil {
			return nil, err
		}
		cl, err := client.New(f.server, f.key, client.Options{RetryFor: -1})
		if err != nil {
			return nil, usageErr(err)
		}
		return &record{records: cl, run: fulgur.RunID(cmp.Or(f.run, string(fulgur.DefaultRun)))}, nil
	}
	arg := f.run
	if arg == "" {
		newest, err := newestRun("runs")
		if err != nil {
			return nil, err
		}
		arg = newest
	}
	file, dir, err := a.openRun(arg, c)
	if err != nil {
		return nil, err
	}
	lines, err := readRolloutLines(dir)
	if err != nil {
		return nil, err
	}
	r := &record{run: fulgur.RunID(file.Run), lines: make(map[fulgur.RolloutID]trainer.RolloutLine, len(lines))}
	for _, l := range lines {
		r.lines[l.ID] = l
	}
	table := outcomeTable(file.Outcomes)
	r.table = &table
	if r.model, err = modelFiles(file.Model, file.Dir); err != nil {
		r.model = nil // moved since; the record can be read without it
	}
	if err := dir.readJSON(trainer.SamplesFile, &r.samples); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	r.records, err = openRecords(c.Context(), dir)
	return r, err
}

func (a *app) rolloutsCommand() *cobra.Command {
	var f recordFlags
	parent := &cobra.Command{
		Use: "rollouts", Short: "look at rollouts: list, show, tail", GroupID: "look",
		Example: "  fulgur rollouts list --run runs/demo --state failed\n  fulgur rollouts show train-0-17-3-… --run runs/demo",
	}
	f.register(parent)
	var state string
	var limit int
	var before, attempt string
	list := &cobra.Command{
		Use: "list", Short: "one line a rollout: state, reward, why it ended or what it waits for", Args: runByFlag,
		Example: `  fulgur rollouts list --limit 20
  fulgur rollouts list --run runs/demo --state failed
  fulgur rollouts list --state running                    # what each does, and what one that waits waits for
  fulgur rollouts list --before train-0-17-3-…            # the 100 older than that one
  fulgur rollouts list --json | jq -r 'select(.reward == 0) | .id'`,
		RunE: func(c *cobra.Command, _ []string) error {
			return a.listRollouts(c, f, state, limit, fulgur.RolloutID(before))
		},
	}
	list.Flags().StringVar(&state, "state", "", "only these: queuing, running, succeeded or failed")
	list.Flags().IntVar(&limit, "limit", 100, "at most so many, the newest; 0: all")
	list.Flags().StringVar(&before, "before", "", "only those that were created before this one: its id")
	show := &cobra.Command{
		Use: "show ROLLOUT", Short: "a rollout's attempts, calls, tokens, and what trained", Args: cobra.ExactArgs(1),
		Example: `  fulgur rollouts show train-0-17-3-… --run runs/demo      # an id of fulgur rollouts list
  fulgur rollouts show train-0-17-3-… --attempt 0          # what the attempt before it did`,
		RunE: func(c *cobra.Command, args []string) error {
			return a.showRollout(c, f, fulgur.RolloutID(args[0]), fulgur.AttemptID(attempt))
		},
	}
	show.Flags().StringVar(&attempt, "attempt", "", "the calls and events of this attempt: 0, 1, … (default: the last one's, which is what trains)")
	tail := &cobra.Command{
		Use: "tail", Short: "one line whenever a rollout starts, ends or gets its reward, until stopped", Args: runByFlag,
		Example: `  fulgur rollouts tail --run runs/demo
  fulgur rollouts tail --server http://127.0.0.1:8080 --key KEY --json`,
		RunE: func(c *cobra.Command, _ []string) error { return a.tailRollouts(c, f) },
	}
	parent.AddCommand(list, show, tail, a.spentCommand(&f))
	return parent
}

// tailRollouts follows a run that a live process has open.
func (a *app) tailRollouts(c *cobra.Command, f recordFlags) (err error) {
	rec, err := a.openRecord(c, f)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, rec.Close()) }()
	live, ok := rec.records.(*client.Client)
	if !ok {
		return fulgur.E(fulgur.KindConflict, "follow run "+string(rec.run), "it isn't running, so nothing new will come: look at it with `fulgur rollouts list`", nil)
	}
	ctx := c.Context()
	at, err := live.Head(ctx)
	if err != nil {
		return err
	}
	a.say("following run %s; Ctrl-C ends it", rec.run)
	for {
		changes, err := live.Changes(ctx, rec.run, at)
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			return err
		}
		for _, ch := range changes {
			at = ch.Seq
			if ch.Kind != fulgur.ChangeRollout {
				continue
			}
			r, err := live.Rollout(ctx, ch.Rollout)
			if fulgur.KindOf(err) == fulgur.KindNotFound {
				continue // deleted since
			}
			if err == nil {
				err = a.printChanged(&r)
			}
			if ctx.Err() != nil {
				return nil
			}
			if err != nil {
				return err
			}
		}
	}
}

// printChanged prints a rollout's line of rollouts tail.
func (a *app) printChanged(r *fulgur.Rollout) error {
	if a.json {
		return a.printJSON(r)
	}
	end := ""
	if o := r.Outcome; o != nil {
		end = fmt.Sprintf("  %s, %s/%s  %s", count(o.Calls, "call"), o.Class, o.Reason, why(r, trainer.RolloutLine{}))
	}
	_, err := fmt.Fprintf(a.Stdout, "%s  %s  %s  reward %s%s\n", r.UpdatedAt.Local().Format(time.TimeOnly), r.ID, r.State, number(r.Reward), strings.TrimRight(end, " "))
	return err
}

func (a *app) listRollouts(c *cobra.Command, f recordFlags, state string, limit int, before fulgur.RolloutID) (err error) {
	q := fulgur.RolloutQuery{Limit: 1000}
	if state != "" {
		if s := fulgur.RolloutState(state); s.Valid() {
			q.States = []fulgur.RolloutState{s}
		} else {
			return usageErr(fmt.Errorf("--state %s: want queuing, running, succeeded or failed", state))
		}
	}
	rec, err := a.openRecord(c, f)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, rec.Close()) }()
	q.Run = rec.run
	if before != "" {
		if _, err := rec.Rollout(c.Context(), before); err != nil {
			return err
		}
		q.States = nil // it may be of another one
	}
	var all []fulgur.Rollout
	matched := 0
	for {
		page, err := rec.Rollouts(c.Context(), q)
		if err != nil {
			return err
		}
		last := len(page) < q.Limit
		if !last {
			q.After = page[len(page)-1].ID
		}
		// Ids say nothing of the order: pages are in the order of creation.
		if i := slices.IndexFunc(page, func(r fulgur.Rollout) bool { return r.ID == before }); i >= 0 {
			page, last = page[:i], true
		}
		page = slices.DeleteFunc(page, func(r fulgur.Rollout) bool { return state != "" && string(r.State) != state })
		matched += len(page)
		all = append(all, page...)
		if limit > 0 && len(all) > limit {
			all = slices.Clone(all[len(all)-limit:])
		}
		if last {
			break
		}
	}
	if older := matched - len(all); older > 0 {
		a.say("the newest %d of %d rollouts; --before %s shows older ones, --limit 0 all", len(all), matched, all[0].ID)
	}
	if len(all) == 0 {
		a.say("no rollouts of this kind in run %s (--run names another)", rec.run)
	}
	return a.printList(c.Context(), rec, all)
}

// printList prints rollouts, a line each.
func (a *app) printList(ctx context.Context, rec *record, all []fulgur.Rollout) error {
	stand := map[fulgur.RolloutID]*fulgur.Attempt{}
	for i := range all {
		if all[i].State != fulgur.Running {
			continue
		}
		attempts, err := rec.Attempts(ctx, all[i].ID)
		if err != nil && fulgur.KindOf(err) != fulgur.KindNotFound { // deleted since
			return err
		}
		if n := len(attempts); n > 0 {
			stand[all[i].ID] = &attempts[n-1]
		}
	}
	if a.json {
		for i := range all {
			if err := a.printJSON(listedRollout{all[i], stand[all[i].ID]}); err != nil {
				return err
			}
		}
		return nil
	}
	w := tabwriter.NewWriter(a.Stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "ROLLOUT\tSTATE\tREWARD\tADVANTAGE\tCALLS\tENDED\tWHY")
	for i := range all {
		r := &all[i]
		l := rec.lines[r.ID]
		ended, calls := "", ""
		if r.Outcome != nil {
			ended, calls = string(r.Outcome.Class)+"/"+r.Outcome.Reason, fmt.Sprint(r.Outcome.Calls)
		}
		adv := ""
		if l.Part == "train" && l.Masked == "" {
			adv = fmt.Sprintf("%+.2f", l.Advantage)
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\t%s\n", r.ID, r.State, rewardOf(r, l), adv, calls, ended, cmp.Or(stands(r, stand[r.ID]), why(r, l)))
	}
	return w.Flush()
}

// listedRollout is a line of `rollouts list --json`.
type listedRollout struct {
	fulgur.Rollout
	Attempt *fulgur.Attempt `json:"attempt,omitempty"` // the last one, of a rollout that runs
}

// stands says in a few words what a rollout does, or waits for, that has not ended.
func stands(r *fulgur.Rollout, last *fulgur.Attempt) string {
	switch {
	case r.State.Terminal():
		return ""
	case r.State == fulgur.Queuing:
		return "waits for a controller with a free slot"
	case last == nil:
		return "run by a v1 controller"
	case last.Outcome != nil:
		return fmt.Sprintf("waits for another attempt: attempt %s ended as %s/%s: %s", last.ID, last.Outcome.Class, last.Outcome.Reason, firstLine(last.Outcome.Message))
	}
	return fmt.Sprintf("attempt %s: %s", last.ID, phaseText(last))
}

// phaseText is where an attempt stands, with what it waits for.
func phaseText(at *fulgur.Attempt) string {
	switch {
	case at.Why != "":
		return string(at.Phase) + ": " + firstLine(at.Why)
	case at.Phase == fulgur.PhaseWaiting: // short agents are told at their end
		return "opened, and its start is not told yet"
	}
	return string(at.Phase)
}

// why says in a few words how a rollout came to its reward, or to none.
func why(r *fulgur.Rollout, l trainer.RolloutLine) string {
	if r.Outcome != nil && r.Outcome.Class != fulgur.OutcomeOK {
		return cmp.Or(firstLine(r.Outcome.Message), l.Masked)
	}
	if l.Masked != "" && l.Why != "" {
		return l.Masked + ": " + firstLine(l.Why)
	}
	if g := gradedOf(r.Outcome); len(g.Flags) > 0 {
		return "flagged: " + strings.Join(g.Flags, "; ")
	}
	return cmp.Or(l.Masked, l.Why, firstLine(r.Error))
}

func number(v *float64) string {
	if v == nil {
		return "-"
	}
	return fmt.Sprintf("%g", *v)
}

// rewardOf is a rollout's reward, in brackets where it counts for nothing.
func rewardOf(r *fulgur.Rollout, l trainer.RolloutLine) string {
	if r.Reward != nil && (l.Masked != "" || l.ID == "" && r.Outcome != nil && r.Outcome.Class == fulgur.OutcomeInfrastructure) {
		return "(" + number(r.Reward) + ")"
	}
	return number(r.Reward)
}

func firstLine(s string) string {
	s, _, _ = strings.Cut(s, "\n")
	return s
}

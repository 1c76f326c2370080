package cli

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/fulgur-rl/fulgur"
	"github.com/fulgur-rl/fulgur/internal/trainer"
	"github.com/fulgur-rl/fulgur/internal/trainer/data"
	"github.com/fulgur-rl/fulgur/internal/trainer/sample"
)

func (a *app) samplesBuildCommand() *cobra.Command {
	var f sampleFlags
	var out string
	var regrade bool
	c := &cobra.Command{
		Use: "build RUN", Short: "build a run's samples again from its record, and compare with training", Args: cobra.ExactArgs(1),
		Long: `Build the samples of a run's training rollouts again from the recorded calls, and
compare each rollout's hash with the one that training wrote down: they are equal to
the bit, or the command names the rollouts that differ and fails. Then it prints into
how many samples rollouts fell, and why, and what tokens and seconds were spent on.

With other settings (--level, --sample-tokens, --over-long, --replay) the table is what
they would have given; fulgur samples diff shows what changes. --regrade runs the run's
grader again over the record and says which rewards are others now.`,
		Example: `  fulgur samples build runs/demo
  fulgur samples build runs/demo --step 12 --json
  fulgur samples build runs/demo --level call --out calls.jsonl
  fulgur samples build runs/demo --regrade`,
		RunE: func(c *cobra.Command, args []string) error { return a.buildSamples(c, args[0], f, out, regrade) },
	}
	f.register(c)
	c.Flags().StringVar(&out, "out", "", "write the samples to this file too (.jsonl or .parquet)")
	c.Flags().BoolVar(&regrade, "regrade", false, "grade again, and say which rewards differ")
	return c
}

// samplesResult is what `samples build --json` prints.
type samplesResult struct {
	Config        trainer.SamplesConfig `json:"config"`
	AsInTraining  bool                  `json:"as_in_training"` // the configuration
	Rollouts      int                   `json:"rollouts"`
	Samples       int                   `json:"samples"`
	Tokens        int                   `json:"tokens"`
	Trained       int                   `json:"trained"`
	Same          int                   `json:"same"`    // rollouts with the hash that training wrote down
	Differ        []fulgur.RolloutID    `json:"differ"`  // those with another one
	Unknown       int                   `json:"unknown"` // those for which training wrote none
	Gone          int                   `json:"gone"`    // rollouts that are no longer on record, left out of all else
	Fragmentation trainer.Fragmentation `json:"fragmentation"`
	Spent         []trainer.Spent       `json:"spent"`
	Regraded      []regraded            `json:"regraded,omitempty"` // rewards that are others now
}

type regraded struct {
	Rollout fulgur.RolloutID `json:"rollout"`
	Was     *float64         `json:"was"`
	Is      *float64         `json:"is"` // null: the grader failed
	Why     string           `json:"why"`
}

func (a *app) buildSamples(c *cobra.Command, arg string, f sampleFlags, out string, regrade bool) (err error) {
	run, err := a.openSampleRun(c, arg, f)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, run.Close()) }()
	r := samplesResult{Differ: []fulgur.RolloutID{}}
	var changed bool
	if r.Config, changed, err = f.apply(c, run.config); err != nil {
		return err
	}
	r.AsInTraining = !changed
	var grade func(*builtRollout)
	if regrade {
		if grade, err = regrader(run, &r); err != nil {
			return err
		}
	}
	var w *data.SampleWriter
	if out != "" {
		if w, err = data.CreateSamples(out); err != nil {
			return err
		}
	}
	var lines []trainer.RolloutLine
	err = run.each(c.Context(), r.Config.Options(), func(b *builtRollout) error {
		l := b.builtLine()
		lines = append(lines, l)
		r.add(b, l)
		if grade != nil {
			grade(b)
		}
		return writeSamples(w, b)
	})
	if w != nil {
		err = errors.Join(err, w.Close())
	}
	if err != nil {
		return err
	}
	r.Gone = run.gone
	r.Fragmentation, r.Spent = trainer.Fragments(lines), trainer.Ledger(lines)
	if err := a.printBuilt(&r, regrade); err != nil {
		return err
	}
	if r.AsInTraining && len(r.Differ) > 0 {
		return fulgur.E(fulgur.KindConflict, "build samples", fmt.Sprintf(
			"%d of %d rollouts give other samples than in training (first: %s): the record was changed, or another version of fulgur trained", len(r.Differ), r.Rollouts, r.Differ[0]), nil)
	}
	return nil
}

func writeSamples(w *data.SampleWriter, b *builtRollout) error {
	if w == nil {
		return nil
	}
	for i := range b.built.Sequences {
		if err := w.Write(b.labelled(b.built.Sequences[i].Sample())); err != nil {
			return fulgur.E(fulgur.KindExhausted, "write samples", "is there room on the disk?", err)
		}
	}
	return nil
}

func (r *samplesResult) add(b *builtRollout, l trainer.RolloutLine) {
	r.Rollouts++
	r.Samples += l.Samples
	r.Trained += l.Trained
	for i := range b.built.Sequences {
		r.Tokens += b.built.Sequences[i].Len()
	}
	switch b.line.SamplesHash {
	case "":
		r.Unknown++
	case l.SamplesHash:
		r.Same++
	default:
		r.Differ = append(r.Differ, l.ID)
	}
}

// regrader notes the rewards that the run's grader gives otherwise now.
func regrader(run *sampleRun, r *samplesResult) (func(*builtRollout), error) {
	g, err := grader(run.file.Reward)
	if err != nil {
		return nil, err
	}
	if g == nil {
		return nil, fulgur.E(fulgur.KindUnsupported, "grade again", "this run has no built-in grader: its rewards came from the agents or from a command, which the record can't repeat", nil)
	}
	table := outcomeTable(run.file.Outcomes)
	return func(b *builtRollout) {
		if table.Follow(b.line.Class, b.line.Outcome) != (fulgur.Follow{}) {
			return // the configured value, or masked
		}
		x, why, err := g.Grade(b.ro.Input, b.calls)
		now := regraded{Rollout: b.line.ID, Was: b.line.Reward, Why: why}
		if err == nil {
			now.Is = &x
		} else {
			now.Why = err.Error()
		}
		if (now.Was == nil) != (now.Is == nil) || now.Was != nil && *now.Was != *now.Is {
			r.Regraded = append(r.Regraded, now)
		}
	}, nil
}

func (a *app) printBuilt(r *samplesResult, regrade bool) error {
	if a.json {
		return a.printJSON(r)
	}
	fmt.Fprintf(a.Stdout, "%s from %s: %d tokens, %d of them trained (level %s, %s, over long: %s)\n", count(r.Samples, "sample"), count(r.Rollouts, "rollout"),
		r.Tokens, r.Trained, r.Config.Level, limitText(r.Config.MaxTokens), r.Config.OverLong)
	switch {
	case !r.AsInTraining:
		fmt.Fprintf(a.Stdout, "other settings than in training; %d rollouts give the same samples all the same\n", r.Same)
	case len(r.Differ) == 0 && r.Unknown == 0:
		fmt.Fprintf(a.Stdout, "the same as in training, to the bit: %d of %d rollouts\n", r.Same, r.Rollouts)
	default:
		fmt.Fprintf(a.Stdout, "the same as in training: %d of %d rollouts; %d differ, of %d training wrote no hash\n", r.Same, r.Rollouts, len(r.Differ), r.Unknown)
	}
	if r.Gone > 0 {
		fmt.Fprintf(a.Stdout, "%s no longer on record and left out\n", count(r.Gone, "rollout"))
	}
	fmt.Fprintln(a.Stdout)
	a.printFragmentation(r.Fragmentation)
	fmt.Fprintln(a.Stdout)
	a.printSpent(r.Spent)
	if regrade {
		fmt.Fprintf(a.Stdout, "\ngraded again: %d of %d rewards are others now\n", len(r.Regraded), r.Rollouts)
		for _, g := range r.Regraded {
			fmt.Fprintf(a.Stdout, "  %s  %s → %s  %s\n", g.Rollout, number(g.Was), number(g.Is), g.Why)
		}
	}
	return nil
}

func limitText(n int) string {
	if n == 0 {
		return "no limit"
	}
	return fmt.Sprintf("at most %d tokens", n)
}

func (a *app) samplesDiffCommand() *cobra.Command {
	var f sampleFlags
	c := &cobra.Command{
		Use: "diff RUN|FILE [RUN|FILE]", Short: "what other settings, or another set, change", Args: cobra.RangeArgs(1, 2),
		Long: `With one run: the samples as in training beside those that the flags give, rollout by
rollout. With two runs or files of samples (.jsonl, .parquet): the one beside the other;
a rollout is found again by its id. It prints what changed and exits with 0; --json gives
a line for each rollout that changed.`,
		Example: `  fulgur samples diff runs/demo --level call
  fulgur samples diff runs/demo --sample-tokens 4096 --over-long drop
  fulgur samples diff before.jsonl after.parquet`,
		RunE: func(c *cobra.Command, args []string) error { return a.diffSamples(c, args, f) },
	}
	f.register(c)
	return c
}

// rolloutSamples sums up what one rollout's samples are.
type rolloutSamples struct {
	Samples int    `json:"samples"`
	Tokens  int    `json:"tokens"`
	Trained int    `json:"trained"`
	Hash    string `json:"hash"`
}

func sumSamples(samples []fulgur.Sample) rolloutSamples {
	r := rolloutSamples{Samples: len(samples), Hash: sample.Hash(samples)}
	for i := range samples {
		r.Tokens += len(samples[i].Tokens)
		for _, on := range samples[i].Mask {
			if on {
				r.Trained++
			}
		}
	}
	return r
}

// sampleSet is the samples of several rollouts, in order.
type sampleSet struct {
	order []fulgur.RolloutID
	of    map[fulgur.RolloutID]rolloutSamples
}

func (s *sampleSet) put(id fulgur.RolloutID, x rolloutSamples) {
	if s.of == nil {
		s.of = map[fulgur.RolloutID]rolloutSamples{}
	}
	s.order = append(s.order, id)
	s.of[id] = x
}

func (a *app) diffSamples(c *cobra.Command, args []string, f sampleFlags) error {
	var was, is sampleSet
	var err error
	if len(args) == 2 {
		if was, _, err = a.loadSet(c, args[0], f, false); err == nil {
			is, _, err = a.loadSet(c, args[1], f, false)
		}
	} else {
		var changed bool
		if is, changed, err = a.loadSet(c, args[0], f, true); err == nil && !changed {
			return usageErr(errors.New("nothing to compare with: give other settings (--level, --sample-tokens, --over-long, --replay), or a second run or file"))
		}
		if err == nil {
			was, _, err = a.loadSet(c, args[0], f, false)
		}
	}
	if err != nil {
		return err
	}
	return a.printSetDiff(was, is)
}

// loadSet reads a file of samples, or builds a run's: as in training, or with the
// flags.
func (a *app) loadSet(c *cobra.Command, arg string, f sampleFlags, flags bool) (s sampleSet, changed bool, err error) {
	if isSampleFile(arg) {
		by := map[fulgur.RolloutID][]fulgur.Sample{}
		var order []fulgur.RolloutID
		err := data.ReadSamples(arg, func(x data.LabelledSample) error {
			if _, ok := by[x.Rollout]; !ok {
				order = append(order, x.Rollout)
			}
			by[x.Rollout] = append(by[x.Rollout], x.Sample)
			return nil
		})
		for _, id := range order {
			s.put(id, sumSamples(by[id]))
		}
		return s, false, err
	}
	run, err := a.openSampleRun(c, arg, f)
	if err != nil {
		return s, false, err
	}
	defer func() { err = errors.Join(err, run.Close()) }()
	config := run.config
	if flags {
		if config, changed, err = f.apply(c, run.config); err != nil {
			return s, false, err
		}
	}
	err = run.each(c.Context(), config.Options(), func(b *builtRollout) error {
		x := rolloutSamples{Samples: len(b.built.Sequences), Trained: b.built.Trained, Hash: sample.Hash(b.built.Samples())}
		for i := range b.built.Sequences {
			x.Tokens += b.built.Sequences[i].Len()
		}
		s.put(b.line.ID, x)
		return nil
	})
	return s, changed, err
}

// changedRollout is a rollout whose samples differ.
type changedRollout struct {
	Rollout fulgur.RolloutID `json:"rollout"`
	Was     *rolloutSamples  `json:"was"` // null: not there
	Is      *rolloutSamples  `json:"is"`
}

func (a *app) printSetDiff(was, is sampleSet) error {
	ids := slices.Clone(was.order)
	for _, id := range is.order {
		if _, ok := was.of[id]; !ok {
			ids = append(ids, id)
		}
	}
	var changed []changedRollout
	var total [2]rolloutSamples
	for _, id := range ids {
		x, inWas := was.of[id]
		y, inIs := is.of[id]
		for i, s := range []rolloutSamples{x, y} {
			total[i].Samples += s.Samples
			total[i].Tokens += s.Tokens
			total[i].Trained += s.Trained
		}
		if inWas && inIs && x.Hash == y.Hash {
			continue
		}
		d := changedRollout{Rollout: id}
		if inWas {
			d.Was = &x
		}
		if inIs {
			d.Is = &y
		}
		changed = append(changed, d)
	}
	if a.json {
		for _, d := range changed {
			if err := a.printJSON(d); err != nil {
				return err
			}
		}
		return nil
	}
	fmt.Fprintf(a.Stdout, "%d of %s give other samples: %d → %d samples, %d → %d tokens, %d → %d trained\n", len(changed), count(len(ids), "rollout"),
		total[0].Samples, total[1].Samples, total[0].Tokens, total[1].Tokens, total[0].Trained, total[1].Trained)
	if len(changed) == 0 {
		return nil
	}
	w := tabwriter.NewWriter(a.Stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "ROLLOUT\tSAMPLES\tTOKENS\tTRAINED")
	for _, d := range changed {
		x, y := cmp.Or(d.Was, &rolloutSamples{}), cmp.Or(d.Is, &rolloutSamples{})
		fmt.Fprintf(w, "%s\t%d → %d\t%d → %d\t%d → %d\n", d.Rollout, x.Samples, y.Samples, x.Tokens, y.Tokens, x.Trained, y.Trained)
	}
	return w.Flush()
}

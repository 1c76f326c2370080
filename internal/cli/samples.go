package cli

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/fulgur-rl/fulgur"
	"github.com/fulgur-rl/fulgur/internal/trainer"
	"github.com/fulgur-rl/fulgur/internal/trainer/data"
	"github.com/fulgur-rl/fulgur/internal/trainer/sample"
	"github.com/fulgur-rl/fulgur/internal/trainer/trace"
)

// sampleFlags choose how samples are built; what isn't given is as in training.
type sampleFlags struct {
	level, overLong string
	tokens          int
	replay          bool
	step            int64
	rollout         string
	server, key     string
}

func (f *sampleFlags) register(c *cobra.Command) {
	fl := c.Flags()
	fl.StringVar(&f.level, "level", "", "lineage or call: what one sample is made of (default: as in training)")
	fl.IntVar(&f.tokens, "sample-tokens", 0, "most tokens of a sample (default: as in training)")
	fl.StringVar(&f.overLong, "over-long", "", "cut, mask or drop: what becomes of a call that ends behind that (default: as in training)")
	fl.BoolVar(&f.replay, "replay", false, "calls without routed experts for each token don't train (default: as in training)")
	fl.Int64Var(&f.step, "step", 0, "only rollouts of this step")
	fl.StringVar(&f.rollout, "rollout", "", "only this rollout")
	fl.StringVar(&f.server, "server", "", "URL of the fulgur serve that has the run's record, if the run's folder has none")
	fl.StringVar(&f.key, "key", "", "the server's key")
}

// apply returns the configuration with what was given on the command line, and
// whether that is another one.
func (f *sampleFlags) apply(c *cobra.Command, from trainer.SamplesConfig) (trainer.SamplesConfig, bool, error) {
	to := from
	if f.level != "" {
		to.Level = sample.Level(f.level)
	}
	if f.overLong != "" {
		to.OverLong = sample.Limit(f.overLong)
	}
	if c.Flags().Changed("sample-tokens") {
		to.MaxTokens = f.tokens
	}
	if c.Flags().Changed("replay") {
		to.Replay = f.replay
	}
	switch {
	case to.Level != sample.Lineage && to.Level != sample.PerCall:
		return to, false, usageErr(fmt.Errorf("--level %s: want lineage or call", f.level))
	case to.OverLong != sample.Cut && to.OverLong != sample.Mask && to.OverLong != sample.Drop:
		return to, false, usageErr(fmt.Errorf("--over-long %s: want cut, mask or drop", f.overLong))
	case to.MaxTokens < 0:
		return to, false, usageErr(fmt.Errorf("--sample-tokens %d: want 0 (no limit) or more", f.tokens))
	}
	return to, to != from, nil
}

func (a *app) samplesCommand() *cobra.Command {
	c := &cobra.Command{
		Use: "samples", Short: "what rollouts became as training data: build, diff, show, export, import", GroupID: "look",
		Long: `Samples are the training sequences that a rollout's model calls become: tokens, a
mask that says which of them train, log probs and policy versions. They are not kept:
they are built from the record, now as in training, to the bit (docs/samples.md).`,
		Example: `  fulgur samples build runs/demo                    # the same as in training? and what rollouts fell into
  fulgur samples diff runs/demo --level call        # what another setting would change
  fulgur samples show train-0-17-3-… --run runs/demo
  fulgur samples export runs/demo --to samples.parquet`,
	}
	c.AddCommand(a.samplesBuildCommand(), a.samplesDiffCommand(), a.samplesShowCommand(), a.samplesExportCommand(), a.samplesImportCommand())
	return c
}

// sampleRun is a run whose samples can be built again.
type sampleRun struct {
	*record
	file   *runFile
	config trainer.SamplesConfig // as in training
	lines  []trainer.RolloutLine // training rollouts, in order of training
	gone   int                   // of these, those that are no longer on record
}

func (a *app) openSampleRun(c *cobra.Command, arg string, f sampleFlags) (*sampleRun, error) {
	file, dir, err := a.openRun(arg, c)
	if err != nil {
		return nil, err
	}
	s := &sampleRun{file: file}
	if err := dir.readJSON(trainer.SamplesFile, &s.config); errors.Is(err, fs.ErrNotExist) {
		return nil, notFound("build samples of "+string(dir), "the run's folder has no "+trainer.SamplesFile+": no trainer has begun here, or an older one did; train again")
	} else if err != nil {
		return nil, err
	}
	all, err := readRolloutLines(dir)
	if err != nil {
		return nil, err
	}
	for _, l := range all {
		if l.Part == "train" && (f.step == 0 || l.Step == f.step) && (f.rollout == "" || string(l.ID) == f.rollout) {
			s.lines = append(s.lines, l)
		}
	}
	if len(s.lines) == 0 {
		return nil, notFound("build samples of "+string(dir), "no training rollout of this kind is in the run's rollouts.jsonl; `fulgur rollouts list` shows what there is")
	}
	from := recordFlags{run: string(dir)}
	if f.server != "" {
		from = recordFlags{run: file.Run, server: f.server, key: f.key}
	}
	s.record, err = a.openRecord(c, from)
	return s, err
}

// builtRollout is a rollout with what is built of it anew.
type builtRollout struct {
	line  trainer.RolloutLine // as in training
	calls []fulgur.Call
	ro    fulgur.Rollout
	built sample.Built
}

// each builds the rollouts one after the other.
func (s *sampleRun) each(ctx context.Context, o sample.Options, do func(*builtRollout) error) error {
	for _, l := range s.lines {
		b := &builtRollout{line: l}
		var err error
		if b.ro, err = s.Rollout(ctx, l.ID); fulgur.KindOf(err) == fulgur.KindNotFound {
			s.gone++
			continue
		} else if err != nil {
			return err
		}
		if b.ro.LastAttempt != "" {
			if b.calls, err = s.Calls(ctx, l.ID, b.ro.LastAttempt); err != nil {
				return err
			}
		}
		b.built = sample.Build(l.Group, b.calls, o)
		if err := do(b); err != nil {
			return err
		}
	}
	if s.gone == len(s.lines) {
		return notFound("build samples of run "+s.file.Run, "none of its rollouts is on record any more: they were deleted, or the server keeps records for less long (`fulgur serve --keep-records`)")
	}
	return nil
}

// builtLine is the rollout's line as these samples would make it.
func (b *builtRollout) builtLine() trainer.RolloutLine {
	l := b.line
	l.Take(&b.built)
	return l
}

func (b *builtRollout) labelled(s fulgur.Sample) data.LabelledSample {
	return data.LabelledSample{Sample: s, Step: b.line.Step, Reward: b.line.Reward, Advantage: b.line.Advantage, Weight: b.line.Weight}
}

// printFragmentation prints the table of a run.
func (a *app) printFragmentation(f trainer.Fragmentation) {
	w := tabwriter.NewWriter(a.Stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintf(w, "rollouts with samples\t%d\n", f.Rollouts)
	if f.None > 0 {
		fmt.Fprintf(w, "rollouts without\t%d\n", f.None)
	}
	fmt.Fprintf(w, "stayed one sample\t%.0f %%\n", 100*f.Whole)
	fmt.Fprintf(w, "samples a rollout\t%.2f\n", f.PerRollout)
	fmt.Fprintf(w, "most samples of one\t%d\n", f.Most)
	for _, class := range trace.Classes() {
		if n := f.Breaks[string(class)]; n > 0 {
			fmt.Fprintf(w, "lineages broken: %s\t%d\n", plainCause(string(class)), n)
		}
	}
	fmt.Fprintf(w, "tokens prefilled again\t%d\n", f.Again)
	_ = w.Flush() // standard output, as everywhere
}

// printSpent prints what tokens and seconds went to.
func (a *app) printSpent(spent []trainer.Spent) {
	w := tabwriter.NewWriter(a.Stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "SPENT ON\tROLLOUTS\tTOKENS\tAGENT SECONDS\tSHARE")
	tokens := 0
	for _, s := range spent {
		tokens += s.Tokens
	}
	for _, s := range spent {
		fmt.Fprintf(w, "%s\t%d\t%d\t%.1f\t%.1f %%\n", plainCause(s.Cause), s.Rollouts, s.Tokens, s.Seconds, 100*float64(s.Tokens)/float64(max(tokens, 1)))
	}
	_ = w.Flush()
}

// plainCause is a cause or a class as a person reads it.
func plainCause(s string) string { return strings.ReplaceAll(s, "_", " ") }

// printLost prints what of a rollout did not train, and where its lineages broke.
func (a *app) printLost(l *trainer.RolloutLine) {
	line := func(what string, m map[string]int, unit string) {
		if len(m) == 0 {
			return
		}
		var parts []string
		for _, k := range slices.Sorted(maps.Keys(m)) {
			parts = append(parts, fmt.Sprintf("%d %s%s", m[k], unit, plainCause(k)))
		}
		fmt.Fprintf(a.Stdout, "%-7s %s\n", what, strings.Join(parts, ", "))
	}
	line("lost", l.Lost, "tokens: ")
	line("broken", l.Breaks, "× ")
	if len(l.Lost)+len(l.Breaks) > 0 {
		fmt.Fprintf(a.Stdout, "why     fulgur samples show %s\n", l.ID)
	}
}

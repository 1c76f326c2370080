package cli

import (
	"fmt"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/fulgur-rl/fulgur"
	"github.com/fulgur-rl/fulgur/internal/config"
	"github.com/fulgur-rl/fulgur/internal/trainer"
	"github.com/fulgur-rl/fulgur/internal/trainer/stats"
)

func (a *app) reproduceCommand() *cobra.Command {
	var out string
	var seeds int
	var engine engineFlags
	c := &cobra.Command{
		Use: "reproduce DOSSIER", Short: "run a finished run again, and compare", GroupID: "train", Args: cobra.ExactArgs(1),
		Long: `Run a run again from its dossier.json (or its folder), into a new folder, and say
whether the same came out. Model and data must be what they were; another
version of fulgur or of the agent's program is said, and tried.

With one engine worker (--threads 1, then as now), the same kernels and the
synchronous schedule the weights must come out bit for bit; else the score must lie in the other's interval. With
--seeds N the N-1 next seeds are run too, and their spread is printed and kept in
the new dossier. Exit code 1: something else came out.`,
		Example: `  fulgur reproduce runs/demo
  fulgur reproduce dossier.json --seeds 5 --out repeats`,
		RunE: func(c *cobra.Command, args []string) error {
			d, err := readDossier(args[0])
			if err != nil {
				return err
			}
			if seeds < 1 {
				return usageErr(fmt.Errorf("--seeds %d: want at least 1", seeds))
			}
			if !c.Flags().Changed("threads") {
				engine.threads = d.Threads
			}
			return a.reproduce(c, d, out, seeds, engine)
		},
	}
	c.Flags().StringVarP(&out, "out", "o", "", "folder below which the new runs' folders are made (default: the run file's)")
	c.Flags().IntVar(&seeds, "seeds", 1, "how many seeds to run, from the dossier's on")
	engine.register(c)
	return c
}

// reproduction is what reproduce --json prints.
type reproduction struct {
	Same    bool                      `json:"same"`
	Verdict string                    `json:"verdict"`
	Was     outcome                   `json:"was"`
	Runs    []outcome                 `json:"runs"`
	Spread  map[string]stats.Interval `json:"spread,omitempty"`
}

func (a *app) reproduce(c *cobra.Command, d dossier, out string, seeds int, engine engineFlags) error {
	var again dossier
	r := reproduction{Was: d.Outcome}
	for k := range seeds {
		j, err := a.again(d, out, d.Seed+int64(k), engine)
		if err != nil {
			return err
		}
		if k == 0 {
			if err := a.sameInputs(d, j); err != nil {
				return err
			}
		}
		a.say("run %d of %d, seed %d, in %s", k+1, seeds, j.file.Seed, j.dir)
		if _, err := j.run(c.Context()); err != nil {
			return a.finish(result{}, err)
		}
		x, err := readDossier(string(j.dir))
		if err != nil {
			return err
		}
		if k == 0 {
			again = x
			if d.Harness.Hash != x.Harness.Hash {
				a.say("warning: the agent's program is another one than it was (its digest differs)")
			}
		}
		r.Runs = append(r.Runs, x.Outcome)
	}
	r.Same, r.Verdict = verdictOf(d, again)
	if seeds > 1 {
		r.Spread = spread(r.Runs)
		again.Seeds, again.Spread = r.Runs, r.Spread
		if err := runDir(again.Outcome.Run).writeJSON("dossier.json", again, 0o644); err != nil {
			return err
		}
	}
	if err := a.printReproduction(r); err != nil {
		return err
	}
	if !r.Same {
		return &exitError{exitFailed, nil}
	}
	return nil
}

// again is the job of a dossier, with another seed. The environment's settings
// don't count: the dossier has them all.
func (a *app) again(d dossier, out string, seed int64, engine engineFlags) (*trainJob, error) {
	over := []config.Override{{Path: "seed", Value: fmt.Sprint(seed), Source: "the dossier's seed"}}
	if out != "" {
		over = append(over, config.Override{Path: "out", Value: out, Source: "--out"})
	}
	f, _, err := config.Parse([]byte(d.Config), "the dossier's config", variants(), over...)
	if err != nil {
		return nil, usageErr(err)
	}
	if f.Server != "" {
		return nil, fulgur.E(fulgur.KindUnsupported, "reproduce the run", "it ran against the server "+f.Server+"; train it there with `fulgur train`", nil)
	}
	r := &runFile{File: f, Dir: d.Dir, buildEnv: d.BuildEnv}
	dir, err := newRunDir(f.Out, f.Run)
	if err != nil {
		return nil, err
	}
	return &trainJob{app: a, file: r, dir: dir, engine: engine}, nil
}

// sameInputs refuses a run whose model or data is another, and tells of what else
// differs.
func (a *app) sameInputs(d dossier, j *trainJob) error {
	model, data, err := inputDigests(j.file)
	if err != nil {
		return err
	}
	if model.Hash != d.Model.Hash {
		return fulgur.E(fulgur.KindConflict, "reproduce the run", fmt.Sprintf("the model %s is another one than it was: its hash is %.12s…, not %.12s…", d.Model.Name, model.Hash, d.Model.Hash), nil)
	}
	for _, key := range sortedKeys(d.Data) {
		if was, is := d.Data[key], data[key]; was.Hash != is.Hash {
			return fulgur.E(fulgur.KindConflict, "reproduce the run", fmt.Sprintf("data.%s (%s) is another file than it was: its hash is %.12s…, not %.12s…", key, was.Name, is.Hash, was.Hash), nil)
		}
	}
	if v := version(); v != d.Versions.Fulgur {
		a.say("warning: this is fulgur %s, the run was made with %s", v, d.Versions.Fulgur)
	}
	if k := kernelName(j.engine.kernels); k != d.Kernels {
		a.say("warning: kernels are %s, they were %s: the bits may differ", k, d.Kernels)
	}
	return nil
}

// verdictOf says whether the same came out. Only with one worker and the same
// kernels are the bits promised; else the score must lie in the other's interval.
func verdictOf(was, is dossier) (same bool, verdict string) {
	if was.Outcome.Weights == is.Outcome.Weights {
		return true, "the same weights, bit for bit"
	}
	if was.Bitwise && is.Bitwise && was.Kernels == is.Kernels && was.Versions == is.Versions {
		return false, "other weights, though one worker on the same kernels was to give the same bits"
	}
	a, b := score(was.Outcome), score(is.Outcome)
	switch {
	case a == nil || b == nil:
		return false, "other weights, and no score to compare them by (the run has no data.test and no validation)"
	case b.Rate < a.Low || b.Rate > a.High:
		return false, fmt.Sprintf("other weights, and another score: %.3f is not within %.3f to %.3f", b.Rate, a.Low, a.High)
	}
	return true, fmt.Sprintf("other weights (several workers, or a schedule that time steers), and a score within the interval: %.3f in %.3f to %.3f", b.Rate, a.Low, a.High)
}

// score is the score that a run is known by: after training, else the last
// validation.
func score(o outcome) *trainer.Score {
	switch {
	case o.After != nil:
		return &o.After.Sampled
	case o.Validation != nil:
		return &o.Validation.Sampled
	}
	return nil
}

func (a *app) printReproduction(r reproduction) error {
	if a.json {
		return a.printJSON(r)
	}
	w := tabwriter.NewWriter(a.Stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "RUN\tSEED\tWEIGHTS\tSTEPS\tPASS@1\t95 %\tCPU S")
	for i, o := range append([]outcome{r.Was}, r.Runs...) {
		name := "again"
		if i == 0 {
			name = "was"
		} else if i > 1 {
			name = "seed"
		}
		rate, interval := "-", "-"
		if s := score(o); s != nil {
			rate, interval = fmt.Sprintf("%.3f", s.Rate), fmt.Sprintf("%.3f to %.3f", s.Low, s.High)
		}
		fmt.Fprintf(w, "%s\t%d\t%.12s\t%d\t%s\t%s\t%.0f\n", name, o.Seed, o.Weights, o.Steps, rate, interval, o.CPUSeconds)
	}
	for _, name := range sortedKeys(r.Spread) {
		s := r.Spread[name]
		fmt.Fprintf(w, "spread of %s over %d seeds: %.4g, 95 %% %.4g to %.4g\n", name, len(r.Runs), s.Value, s.Low, s.High)
	}
	if err := w.Flush(); err != nil {
		return err
	}
	_, err := fmt.Fprintln(a.Stdout, r.Verdict)
	return err
}

package cli

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/fulgur-rl/fulgur/internal/config"
	"github.com/fulgur-rl/fulgur/internal/trainer"
	"github.com/fulgur-rl/fulgur/internal/trainer/stats"
)

// aspects are what two runs must share for a verdict, each with the keys of the
// run file that belong to it. Everything else may differ: it is listed.
func aspects() []aspect {
	return []aspect{
		{"evaluation", []string{"validation.problems", "validation.runs", "reward", "sampling.max_tokens", "sampling.top_p", "sampling.top_k", "agent.timeout", "outcomes", "audit"}},
		{"filtering", []string{"data.filter", "data.limit", "algorithm.filter", "algorithm.curriculum"}},
		{"grouping", []string{"algorithm.group_size", "algorithm.groups_per_step", "algorithm.minibatches", "algorithm.estimator", "algorithm.normalize_std", "algorithm.samples", "algorithm.sample_tokens", "algorithm.over_long"}},
		{"", []string{"algorithm.learning_rate", "algorithm.adam"}}, // settings of the optimizer, no other objective
		{"loss", []string{"algorithm", "off_policy", "compat"}},
	}
}

type aspect struct {
	name string
	keys []string // a key stands for those below it
}

// contrast is a key in which two runs differ.
type contrast struct {
	Aspect string `json:"aspect"` // evaluation, filtering, grouping, loss, data, or "" for the rest
	Key    string `json:"key"`
	A      string `json:"a"`
	B      string `json:"b"`
}

// comparison is what compare --json prints.
type comparison struct {
	A          string            `json:"a"`
	B          string            `json:"b"`
	Verdict    string            `json:"verdict"` // "" where it is refused
	Refused    []string          `json:"refused,omitempty"`
	Contrasts  []contrast        `json:"differences"`
	Part       string            `json:"part,omitempty"` // the evaluation that is compared
	ScoreA     *stats.Interval   `json:"score_a,omitempty"`
	ScoreB     *stats.Interval   `json:"score_b,omitempty"`
	Difference *stats.Difference `json:"difference,omitempty"`
	Seeds      *seedComparison   `json:"seeds,omitempty"` // of several runs a side, in place of the three above
}

func (a *app) compareCommand() *cobra.Command {
	var vary []string
	c := &cobra.Command{
		Use: "compare A B | A... -- B...", Short: "say whether run B is better than run A, if that can be said", GroupID: "look", Args: cobra.MinimumNArgs(2),
		Long: `Compare two finished runs by the rows of data.test that both were measured on after
training (else by their last validation), paired by row. A verdict is refused
where filtering, grouping, loss or evaluation differ, and what differs is listed:
two numbers that were come by differently say nothing of what is claimed.

With several runs a side (seeds), divided by --, the interval is over the runs: it
holds what another seed would have done. Where both sides have the same seeds they
are compared in pairs. Runs of one side must differ in nothing but the seed.

--vary names what the comparison is about: filtering, grouping or loss may then
differ, and the verdict says so. Evaluation and its data must always be the same.
Exit code 1: no verdict.`,
		Example: `  fulgur compare runs/grpo runs/grpo-2
  fulgur compare runs/ppo runs/cispo --vary loss --json
  fulgur compare --vary loss runs/ppo-1 runs/ppo-2 runs/ppo-3 -- runs/cispo-1 runs/cispo-2 runs/cispo-3`,
		RunE: func(c *cobra.Command, args []string) error {
			for _, v := range vary {
				if !slices.Contains([]string{"filtering", "grouping", "loss"}, v) {
					return usageErr(fmt.Errorf("--vary %s: want filtering, grouping or loss", v))
				}
			}
			of, err := sidesOf(args, c.ArgsLenAtDash())
			if err != nil {
				return usageErr(err)
			}
			r, err := a.compare(c, of, vary)
			if err != nil {
				return err
			}
			if err := a.printComparison(r); err != nil {
				return err
			}
			if r.Verdict == "" {
				return &exitError{exitFailed, nil}
			}
			return nil
		},
	}
	c.Flags().StringSliceVar(&vary, "vary", nil, "what the comparison is about, and may differ: filtering, grouping, loss")
	return c
}

// side is one of the two runs.
type side struct {
	file    *runFile
	dir     runDir
	lines   []trainer.RolloutLine
	hashes  map[string]string // of data and model
	harness string
}

func (a *app) openSide(c *cobra.Command, arg string) (side, error) {
	var s side
	var err error
	if s.file, s.dir, err = a.openRun(arg, c); err != nil {
		return s, err
	}
	if s.lines, err = readRolloutLines(s.dir); err != nil {
		return s, err
	}
	// What the run was made of is in its dossier; a run without one (it is not
	// finished, or older) is looked at as its files are now.
	s.hashes = map[string]string{}
	if d, err := readDossier(string(s.dir)); err == nil {
		s.hashes["model"], s.harness = d.Model.Hash, d.Harness.Hash
		for k, x := range d.Data {
			s.hashes["data."+k] = x.Hash
		}
		return s, nil
	}
	a.say("warning: %s has no dossier: its model and data are taken to be what its files are now", arg)
	model, data, err := inputDigests(s.file)
	s.hashes["model"], s.harness = model.Hash, harnessDigest(c.Context(), s.file, s.dir).Hash
	for k, x := range data {
		s.hashes["data."+k] = x.Hash
	}
	return s, err
}

func (a *app) compare(c *cobra.Command, of [2][]string, vary []string) (comparison, error) {
	r := comparison{A: strings.Join(of[0], " "), B: strings.Join(of[1], " "), Contrasts: []contrast{}}
	var sides [2][]side
	var dirs []runDir
	for k, args := range of {
		for _, arg := range args {
			s, err := a.openSide(c, arg)
			if err != nil {
				return r, err
			}
			if slices.Contains(dirs, s.dir) {
				return r, usageErr(errors.New("name each run once: two are " + string(s.dir)))
			}
			dirs, sides[k] = append(dirs, s.dir), append(sides[k], s)
		}
	}
	part, rows := commonPart(sides)
	r.Contrasts = contrasts(sides[0][0], sides[1][0], part)
	refused := map[string]bool{}
	for _, d := range r.Contrasts {
		if d.Aspect != "" && !slices.Contains(vary, d.Aspect) {
			refused[d.Aspect] = true
		}
	}
	r.Refused = append(sortedKeys(refused), mixed(sides, of, part)...)
	if part == "" {
		r.Refused = append(r.Refused, "no evaluation that all have: a run needs data.test, or a validation")
	}
	if len(r.Refused) > 0 {
		return r, nil
	}
	r.Part = part
	if len(dirs) > 2 {
		return r, r.overSeeds(sides, rows)
	}
	r.overRows(sides[0][0], sides[1][0], rows[0][0], rows[1][0])
	return r, nil
}

// overRows compares one run with another, row by row.
func (r *comparison) overRows(x, y side, a, b measured) {
	scoreA, scoreB, d := stats.Rate(a.rates, a.runs), stats.Rate(b.rates, b.runs), stats.Paired(a.rates, b.rates)
	r.ScoreA, r.ScoreB, r.Difference = &scoreA, &scoreB, &d
	by := fmt.Sprintf("%+.3f (95 %% %+.3f to %+.3f, %d problems, %d better and %d worse)", d.Value, d.Low, d.High, d.Tasks, d.Won, d.Lost)
	r.Verdict = saysOf(d.Interval, by)
	if x.file.Seed != y.file.Seed {
		r.Verdict += "; they have other seeds"
	}
	r.Verdict += ". This is one run of each: the spread over seeds is not in the interval (name several a side, divided by --)"
}

// saysOf says what an interval of B minus A allows to say.
func saysOf(d stats.Interval, by string) string {
	switch {
	case d.Low > 0:
		return "B is better than A by " + by
	case d.High < 0:
		return "B is worse than A: B minus A is " + by
	default:
		return "no difference is shown: B minus A is " + by
	}
}

// measured is an evaluation's pass rate of each row, in the order of the rows.
type measured struct {
	rates []float64
	runs  int
}

// commonPart finds the evaluation that is compared: after training, else the last
// validation. The rows are those that all runs have.
func commonPart(sides [2][]side) (part string, out [2][]measured) {
	for _, p := range []string{"after", "val"} {
		var rates [2][]map[int][]float64
		var rows []int
		first, all := true, true
		for k := range sides {
			for _, s := range sides[k] {
				r := rowRates(s.lines, p)
				rates[k], all = append(rates[k], r), all && len(r) > 0
				if first {
					rows, first = sortedRows(r), false
				}
				rows = slices.DeleteFunc(rows, func(row int) bool { _, ok := r[row]; return !ok })
			}
		}
		if !all {
			continue
		}
		for k := range rates {
			for _, r := range rates[k] {
				m := measured{runs: 1}
				for _, row := range rows {
					m.rates, m.runs = append(m.rates, average(r[row])), len(r[row])
				}
				out[k] = append(out[k], m)
			}
		}
		return p, out
	}
	return "", out
}

// rowRates are the passes (0 or 1) of each row in the last evaluation of a part.
func rowRates(lines []trainer.RolloutLine, part string) map[int][]float64 {
	last := int64(-1)
	for i := range lines {
		if lines[i].Part == part {
			last = max(last, lines[i].Step)
		}
	}
	out := map[int][]float64{}
	for i := range lines {
		l := &lines[i]
		if l.Part != part || l.Step != last {
			continue
		}
		pass := 0.0
		if l.Passes(passReward) {
			pass = 1
		}
		out[l.Row] = append(out[l.Row], pass)
	}
	return out
}

func sortedRows(m map[int][]float64) []int {
	out := make([]int, 0, len(m))
	for k := range m {
		out = append(out, k)
	}
	slices.Sort(out)
	return out
}

func average(v []float64) float64 {
	sum := 0.0
	for _, x := range v {
		sum += x
	}
	return sum / float64(max(1, len(v)))
}

// contrasts lists every key in which the runs differ, with what it belongs to.
func contrasts(a, b side, part string) []contrast {
	var out []contrast
	x, y := flat(a.file.File), flat(b.file.File)
	keys := sortedKeys(x)
	for _, k := range sortedKeys(y) {
		if _, ok := x[k]; !ok {
			keys = append(keys, k)
		}
	}
	slices.Sort(keys)
	for _, k := range keys {
		if x[k] == y[k] || slices.Contains([]string{"run", "out", "listen", "server", "seed"}, k) || strings.HasPrefix(k, "logs.") || strings.HasPrefix(k, "retention.") || strings.HasPrefix(k, "checkpoints.") {
			continue
		}
		if strings.HasPrefix(k, "data.") && (k == "data.train" || k == "data.validation" || k == "data.test") {
			continue // their hashes count
		}
		out = append(out, contrast{aspectOf(k), k, x[k], y[k]})
	}
	for _, k := range []string{"model", "data.train", "data.validation", "data.test"} {
		if a.hashes[k] == b.hashes[k] {
			continue
		}
		of := map[string]string{"data.train": "filtering"}[k]
		if part == "after" && k == "data.test" || part == "val" && k == "data.validation" {
			of = "evaluation"
		}
		out = append(out, contrast{of, k + " (hash)", fmt.Sprintf("%.12s", a.hashes[k]), fmt.Sprintf("%.12s", b.hashes[k])})
	}
	if a.harness != b.harness {
		out = append(out, contrast{"", "agent's program (hash)", fmt.Sprintf("%.12s", a.harness), fmt.Sprintf("%.12s", b.harness)})
	}
	return out
}

// aspectOf is the first aspect that a key belongs to; "" for none.
func aspectOf(key string) string {
	for _, a := range aspects() {
		for _, k := range a.keys {
			if key == k || strings.HasPrefix(key, k+".") {
				return a.name
			}
		}
	}
	return ""
}

// flat is a configuration as one value for each key.
func flat(f *config.File) map[string]string {
	out := map[string]string{}
	var walk func(path string, raw json.RawMessage)
	walk = func(path string, raw json.RawMessage) {
		var m map[string]json.RawMessage
		if json.Unmarshal(raw, &m) == nil && m != nil && len(m) > 0 {
			for k, v := range m {
				walk(strings.TrimPrefix(path+"."+k, "."), v)
			}
			return
		}
		out[path] = string(raw)
	}
	walk("", f.JSON())
	return out
}

func (a *app) printComparison(r comparison) error {
	if a.json {
		return a.printJSON(r)
	}
	w := tabwriter.NewWriter(a.Stdout, 0, 0, 2, ' ', 0)
	if len(r.Contrasts) > 0 {
		fmt.Fprintln(w, "DIFFERS\tKEY\tA\tB")
	}
	for _, d := range r.Contrasts {
		name := d.Aspect
		if name == "" {
			name = "(other)"
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\n", name, d.Key, short(d.A), short(d.B))
	}
	if r.Seeds != nil {
		r.Seeds.print(w, r.Part)
	}
	if r.Difference != nil {
		fmt.Fprintf(w, "\nA  %.3f (%.3f to %.3f)\tB  %.3f (%.3f to %.3f)\t%s\t\n", r.ScoreA.Value, r.ScoreA.Low, r.ScoreA.High, r.ScoreB.Value, r.ScoreB.Low, r.ScoreB.High, r.Part)
	}
	if err := w.Flush(); err != nil {
		return err
	}
	if r.Verdict == "" {
		_, err := fmt.Fprintf(a.Stdout, "no verdict: %s\n", strings.Join(r.Refused, ", "))
		switch varied := slices.ContainsFunc(r.Refused, func(s string) bool { return s == "filtering" || s == "grouping" || s == "loss" }); {
		case err != nil:
		case slices.Contains(r.Refused, "evaluation"):
			a.say("--vary can't help: runs are compared on the same data, measured in the same way")
		case varied:
			a.say("if that is what the comparison is about, name it with --vary")
		}
		return err
	}
	_, err := fmt.Fprintln(a.Stdout, r.Verdict)
	return err
}

// short is a value that fits a table.
func short(s string) string {
	if len(s) > 40 {
		return strings.ToValidUTF8(s[:39], "") + "…"
	}
	return s
}

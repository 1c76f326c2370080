package cli

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/fulgur-rl/fulgur"
	"github.com/fulgur-rl/fulgur/internal/gateway/render"
	"github.com/fulgur-rl/fulgur/internal/report"
	"github.com/fulgur-rl/fulgur/internal/trainer"
	"github.com/fulgur-rl/fulgur/internal/trainer/sample"
	"github.com/fulgur-rl/fulgur/internal/trainer/trace"
)

// How many problems and groups a report shows.
const (
	shownProblems = 12
	shownGroups   = 4
)

func (a *app) reportCommand() *cobra.Command {
	var curve string
	c := &cobra.Command{
		Use: "report RUN", Short: "write a run's HTML report anew", GroupID: "look", Args: cobra.ExactArgs(1),
		Long: `Write a run's HTML report anew from what is on record, and print its path: one
file that needs no network. Training writes it by itself when it ends.`,
		Example: `  fulgur report runs/demo
  fulgur report demo --curve curve.svg`,
		RunE: func(c *cobra.Command, args []string) error {
			r, dir, err := a.openRun(args[0], c)
			if err != nil {
				return err
			}
			var res result
			if err := dir.readJSON("result.json", &res); err != nil && !errors.Is(err, fs.ErrNotExist) {
				return err
			}
			if err := a.writeReport(c.Context(), r, dir, res); err != nil {
				return err
			}
			if curve != "" {
				if err := writeCurve(r, dir, res, curve); err != nil {
					return err
				}
			}
			if a.json {
				return a.printJSON(map[string]string{"report": dir.report()})
			}
			_, err = fmt.Fprintln(a.Stdout, dir.report())
			return err
		},
	}
	c.Flags().StringVar(&curve, "curve", "", "write the learning curve to this SVG file too")
	return c
}

// writeCurve writes the learning curve alone.
func writeCurve(r *runFile, dir runDir, res result, path string) (err error) {
	b := &reportBuilder{file: r, dir: dir, res: res}
	if _, b.state, err = trainer.Last(string(dir)); err != nil {
		return err
	}
	if b.metrics, err = readMetrics(dir); err != nil {
		return err
	}
	b.data.Title, b.data.Target = r.Run, r.Stop.Validation
	b.scores()
	b.curve()
	return writeFile(path, report.CurveSVG(b.data), 0o644)
}

// writeReport builds the report from the run's folder and record.
func (a *app) writeReport(ctx context.Context, r *runFile, dir runDir, res result) error {
	b := &reportBuilder{file: r, dir: dir, res: res}
	if err := b.read(ctx); err != nil {
		return err
	}
	defer b.close()
	var out bytes.Buffer
	if err := report.Write(&out, b.build(ctx)); err != nil {
		return fmt.Errorf("writing the report: %w", err)
	}
	return writeFile(dir.report(), out.Bytes(), 0o644)
}

// reportBuilder turns a run's folder into a report's data.
type reportBuilder struct {
	file *runFile
	dir  runDir
	res  result

	state   trainer.State
	lines   []trainer.RolloutLine
	metrics []map[string]float64
	config  trainer.SamplesConfig
	records records          // nil: transcripts are left out
	render  *render.Renderer // nil: the same
	data    report.Data
}

func (b *reportBuilder) read(ctx context.Context) (err error) {
	if _, b.state, err = trainer.Last(string(b.dir)); err != nil && fulgur.KindOf(err) != fulgur.KindNotFound {
		return err
	}
	if b.lines, err = readRolloutLines(b.dir); err != nil {
		return err
	}
	if b.metrics, err = readMetrics(b.dir); err != nil {
		return err
	}
	if err := b.dir.readJSON(trainer.SamplesFile, &b.config); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	files, err := modelFiles(b.file.Model, b.file.Dir)
	if err != nil {
		return err
	}
	if b.render, err = render.Load(files, render.Options{Now: time.Now}); err != nil {
		return err
	}
	b.records, err = openRecords(ctx, b.dir)
	if fulgur.KindOf(err) == fulgur.KindNotFound {
		b.records, err = nil, nil
	}
	return err
}

func (b *reportBuilder) close() {
	if b.records != nil {
		_ = b.records.Close()
	}
}

func (b *reportBuilder) build(ctx context.Context) report.Data {
	b.data = report.Data{
		Title: b.file.Run, Model: b.file.Model, Program: "fulgur " + version(), Created: time.Now(),
		Reached: b.state.Reached, Target: b.file.Stop.Validation, Rollouts: int(b.state.Rollouts), Updates: int(b.state.Updates),
		Wall: seconds(b.res.WallSeconds), Config: string(b.file.Effective()),
	}
	b.data.Verdict = verdict(b.state, b.file)
	if b.res.CPUSeconds > 0 {
		b.data.CPU = []report.Share{
			{Name: "fulgur: engine, gateway, store, controller, trainer", Time: seconds(b.res.CPUSeconds - b.res.AgentSeconds)},
			{Name: "agents' processes", Time: seconds(b.res.AgentSeconds)},
			{Name: "building the agent, apart", Time: seconds(b.res.BuildSeconds)},
		}
	}
	b.scores()
	b.curve()
	b.outcomes()
	b.data.Warnings = append(b.data.Warnings, auditWarnings(b.lines)...)
	b.transcripts(ctx)
	return b.data
}

func seconds(s float64) time.Duration { return time.Duration(s * float64(time.Second)) }

func verdict(s trainer.State, r *runFile) string {
	switch {
	case s.Reached && r.Stop.Twice:
		return fmt.Sprintf("reached %g in two validations in a row, after step %d", r.Stop.Validation, s.Cursor.Step)
	case s.Reached:
		return fmt.Sprintf("reached %g after step %d", r.Stop.Validation, s.Cursor.Step)
	case r.Stop.Validation > 0:
		return fmt.Sprintf("did not reach %g in %d steps", r.Stop.Validation, s.Cursor.Step)
	}
	return fmt.Sprintf("finished %d steps", s.Cursor.Step)
}

func scoreOf(s trainer.Score) *report.Score {
	if s.Rollouts == 0 {
		return nil
	}
	return &report.Score{Value: s.Rate, Low: s.Low, High: s.High, Problems: s.Rollouts, Reward: fraction(s)}
}

func (b *reportBuilder) scores() {
	if e := b.state.Before; e != nil {
		b.data.Before, b.data.BeforeGreedy = scoreOf(e.Sampled), scoreOf(e.Greedy)
	}
	if e := b.state.After; e != nil {
		b.data.After, b.data.AfterGreedy = scoreOf(e.Sampled), scoreOf(e.Greedy)
	}
}

// curve reads steps and validations from the metrics.
func (b *reportBuilder) curve() {
	groups := b.file.Algorithm.GroupsPerStep
	if b.data.Before != nil { // the start has no validation of its own
		b.data.Validations = append(b.data.Validations, report.Validation{Score: *b.data.Before, Greedy: b.data.BeforeGreedy})
	}
	for _, m := range b.metrics {
		step := int(m["step"])
		_, validated := m["validation/pass@1"]
		if _, ok := m["train/reward"]; ok {
			b.data.Steps = append(b.data.Steps, report.Step{
				Step: step, Reward: m["train/reward"], Groups: groups, Mixed: groups - int(m["groups/unanimous_share"]*float64(groups)+0.5),
				Masked: int(m["rollouts/masked"]), Rollout: seconds(m["time/rollout"]), Update: seconds(m["time/update"]), Validation: seconds(m["time/validation"]),
			})
		}
		if !validated {
			continue
		}
		n := b.file.Validation.Problems
		v := report.Validation{Step: step, Score: report.Score{Value: m["validation/pass@1"], Low: m["validation/pass@1_low"], High: m["validation/pass@1_high"], Problems: n}}
		if g, ok := m["validation/pass@1_greedy"]; ok {
			v.Greedy = &report.Score{Value: g, Low: m["validation/pass@1_greedy_low"], High: m["validation/pass@1_greedy_high"], Problems: n}
		}
		v.Best = b.state.Best != nil && b.state.Best.Step == int64(step)
		b.data.Validations = append(b.data.Validations, v)
	}
}

// outcomes counts how training rollouts ended, what they became, what was lost.
func (b *reportBuilder) outcomes() {
	type key struct{ class, reason string }
	counts := map[key]*report.Outcome{}
	for i := range b.lines {
		l := &b.lines[i]
		if l.Part != "train" {
			continue
		}
		k := key{string(l.Class), l.Outcome}
		if counts[k] == nil {
			counts[k] = &report.Outcome{Class: k.class, Reason: k.reason, Example: string(l.ID)}
		}
		counts[k].Count++
	}
	for _, o := range counts {
		b.data.Outcomes = append(b.data.Outcomes, *o)
	}
	slices.SortFunc(b.data.Outcomes, func(x, y report.Outcome) int { return cmp.Or(y.Count-x.Count, cmp.Compare(x.Reason, y.Reason)) })
	b.samples()
}

// samples tells into what rollouts fell, and what was spent on what.
func (b *reportBuilder) samples() {
	f := trainer.Fragments(b.lines)
	b.data.Samples = report.Fragmentation{Rollouts: f.Rollouts, Single: f.Single, Samples: f.Samples, Again: f.Again}
	for _, class := range trace.Classes() {
		if n := f.Breaks[string(class)]; n > 0 {
			b.data.Samples.Breaks = append(b.data.Samples.Breaks, report.Count{Name: plainCause(string(class)), Count: n})
		}
	}
	for _, s := range trainer.Ledger(b.lines) {
		b.data.Wasted = append(b.data.Wasted, report.Waste{Cause: plainCause(s.Cause), Tokens: s.Tokens, Rollouts: s.Rollouts, Seconds: s.Seconds})
	}
}

// transcripts shows the same problems before and after, and some groups of
// training.
func (b *reportBuilder) transcripts(ctx context.Context) {
	if b.records == nil {
		return
	}
	before, after := map[int]*trainer.RolloutLine{}, map[int]*trainer.RolloutLine{}
	groups := map[fulgur.GroupID][]*trainer.RolloutLine{}
	var order []fulgur.GroupID
	for i := range b.lines {
		l := &b.lines[i]
		switch l.Part {
		case "before":
			before[l.Row] = l
		case "after":
			after[l.Row] = l
		case "train":
			if groups[l.Group] == nil {
				order = append(order, l.Group)
			}
			groups[l.Group] = append(groups[l.Group], l)
		}
	}
	for _, row := range pickRows(before, after) {
		if p, ok := b.problem(ctx, before[row], after[row]); ok {
			b.data.Problems = append(b.data.Problems, p)
		}
	}
	for _, g := range pickGroups(order, groups) {
		b.data.Groups = append(b.data.Groups, b.group(ctx, groups[g]))
	}
}

// pickRows takes problems that were measured twice, first those that turned
// from wrong to right, then the others.
func pickRows(before, after map[int]*trainer.RolloutLine) []int {
	rank := func(row int) int {
		b, a := right(before[row]), right(after[row])
		switch {
		case !b && a:
			return 0
		case b && !a:
			return 1
		case !b:
			return 2
		}
		return 3
	}
	byRank := map[int][]int{}
	for row := range before {
		if after[row] != nil {
			byRank[rank(row)] = append(byRank[rank(row)], row)
		}
	}
	var out []int
	for i, n := range []int{shownProblems - 5, 2, 2, 1} {
		rows := byRank[i]
		slices.Sort(rows)
		out = append(out, rows[:min(n, len(rows))]...)
	}
	return out
}

func right(l *trainer.RolloutLine) bool { return l != nil && l.Reward != nil && *l.Reward >= 1 }

// pickGroups takes mixed groups, spread evenly over the run.
func pickGroups(order []fulgur.GroupID, groups map[fulgur.GroupID][]*trainer.RolloutLine) []fulgur.GroupID {
	var mixed []fulgur.GroupID
	for _, g := range order {
		if slices.ContainsFunc(groups[g], func(l *trainer.RolloutLine) bool { return l.Advantage != 0 }) {
			mixed = append(mixed, g)
		}
	}
	if len(mixed) <= shownGroups {
		return mixed
	}
	var out []fulgur.GroupID
	for i := range shownGroups {
		out = append(out, mixed[i*(len(mixed)-1)/(shownGroups-1)])
	}
	return out
}

func (b *reportBuilder) problem(ctx context.Context, before, after *trainer.RolloutLine) (report.Problem, bool) {
	x, input := b.rollout(ctx, before)
	y, _ := b.rollout(ctx, after)
	if x == nil || y == nil {
		return report.Problem{}, false
	}
	return report.Problem{Text: taskText(input, b.file), Expected: pathText(input, b.file.Reward.Expected), Before: x, After: y}, true
}

func (b *reportBuilder) group(ctx context.Context, lines []*trainer.RolloutLine) report.Group {
	var g report.Group
	for _, l := range lines {
		r, input := b.rollout(ctx, l)
		if r == nil {
			continue
		}
		if g.Text == "" {
			g.Text, g.Step = taskText(input, b.file), int(l.Step)
		}
		g.Rollouts = append(g.Rollouts, *r)
	}
	return g
}

// rollout reads one rollout's samples, token by token.
func (b *reportBuilder) rollout(ctx context.Context, l *trainer.RolloutLine) (*report.Rollout, json.RawMessage) {
	ro, err := b.records.Rollout(ctx, l.ID)
	if err != nil {
		return nil, nil
	}
	calls, err := b.records.Calls(ctx, l.ID, ro.LastAttempt)
	if err != nil {
		return nil, nil
	}
	out := &report.Rollout{ID: string(l.ID), Reward: l.Reward, Outcome: cmp.Or(l.Why, l.Outcome)}
	if l.Part == "train" && l.Masked == "" {
		adv := l.Advantage
		out.Advantage = &adv
	}
	for i := range calls {
		if l.Part != "train" { // shown as they would train
			calls[i].Trainable, calls[i].Untrainable = true, nil
		}
	}
	built := sample.Build(l.Group, calls, b.config.Options())
	for i, s := range built.Samples() {
		texts := b.render.TokenTexts(s.Tokens)
		tokens, whys := make([]report.Token, len(s.Tokens)), built.Sequences[i].Why()
		for j := range s.Tokens {
			why := whys[j]
			t := report.Token{Text: texts[j], ID: s.Tokens[j], LogProb: float64(s.LogProbs[j]), Version: int64(s.Versions[j]),
				Sampled: why != sample.Prompt && why != sample.Observation}
			t.Trained = why == sample.Trained && out.Advantage != nil && l.Advantage != 0
			switch {
			case t.Trained:
				t.Weight = l.Weight
			case t.Sampled && out.Advantage == nil:
				t.Reason = "not a training rollout"
			case t.Sampled && why == sample.Trained:
				t.Reason = "advantage 0: the group's rewards are equal"
			case t.Sampled:
				t.Reason = why
			}
			tokens[j] = t
		}
		out.Samples = append(out.Samples, tokens)
	}
	return out, ro.Input
}

// taskText is what the agent was asked: the first text of its environment map.
func taskText(input json.RawMessage, r *runFile) string {
	names := make([]string, 0, len(r.Agent.Input.Env))
	for n := range r.Agent.Input.Env {
		names = append(names, n)
	}
	slices.Sort(names)
	for _, n := range names {
		if t := pathText(input, r.Agent.Input.Env[n]); t != "" {
			return t
		}
	}
	return string(input)
}

// pathText looks a path such as input.answer up: strings as they are, all else
// as JSON.
func pathText(input json.RawMessage, path string) string {
	v := input
	for p := range strings.SplitSeq(strings.TrimPrefix(strings.TrimPrefix(path, "input"), "."), ".") {
		if p == "" {
			continue
		}
		var m map[string]json.RawMessage
		if json.Unmarshal(v, &m) != nil {
			return ""
		}
		v = m[p]
	}
	var s string
	if json.Unmarshal(v, &s) == nil {
		return s
	}
	return string(v)
}

package cli

import (
	"context"
	"fmt"
	"io"
	"math"
	"os"
	"time"

	"github.com/fulgur-rl/fulgur"
	"github.com/fulgur-rl/fulgur/internal/cli/view"
	"github.com/fulgur-rl/fulgur/internal/trainer"
)

// watcher turns the trainer's events into the terminal view.
type watcher struct {
	view     *view.View
	steps    int
	problems int
	kind     string
	warned   map[string]int // how often each kind of warning came
	hooks    *hooks
	keepCost func() // for a resume, at each checkpoint
}

// watch starts the view of a job.
func (j *trainJob) watch(o trainer.Options) *watcher {
	a := j.app
	w := &watcher{steps: int(o.Steps), problems: len(o.Test), warned: map[string]int{}, keepCost: func() {}}
	w.view = view.New(a.Stderr, view.Options{
		Title: j.file.Run, TTY: isTerminal(a.Stderr), NoColor: a.Getenv("NO_COLOR") != "", Width: terminalWidth(a.Stderr),
	})
	return w
}

func (w *watcher) close() { w.view.Close() }

// phase tells the view of a part of the run, once.
func (w *watcher) phase(name view.PhaseName, note string) {
	if w.kind != string(name) {
		w.kind = string(name)
		w.view.Send(view.Phase{Name: name, Note: note})
	}
}

// observe is the trainer's Observer.
func (w *watcher) observe(e trainer.Event) {
	switch e := e.(type) {
	case trainer.Progress:
		w.progress(e)
	case trainer.StepDone:
		w.view.Send(stepDone(e, w.steps))
	case trainer.Evaluated:
		v := view.Validation{Step: int(e.Step), Problems: e.Sampled.Rollouts, Score: interval(e.Sampled),
			Reward: fraction(e.Sampled), GreedyReward: fraction(e.Greedy), Pass: passReward}
		if e.Part == "before" || e.Part == "after" {
			v.Name = e.Part
		}
		if e.Greedy.Rollouts > 0 {
			g := interval(e.Greedy)
			v.Greedy = &g
		}
		w.view.Send(v)
	case trainer.Checkpointed:
		w.keepCost()
	case trainer.Warning:
		w.warning(e)
	}
	w.hooks.on(e)
}

// say shows a warning.
func (w *watcher) say(text string) { w.view.Send(view.Warning{Text: text}) }

// warning shows a kind of warning the first, second, fourth, eighth … time: what
// stays wrong must not bury the progress.
func (w *watcher) warning(e trainer.Warning) {
	w.warned[e.Code]++
	n := w.warned[e.Code]
	if n&(n-1) != 0 {
		return
	}
	text := e.Message
	if n > 1 {
		text += fmt.Sprintf(" (%d times so far)", n)
	}
	w.view.Send(view.Warning{Text: text})
}

func (w *watcher) progress(e trainer.Progress) {
	label := ""
	switch e.Part {
	case "before":
		w.phase(view.PhaseBefore, fmt.Sprintf("measuring the start on %d problems, sampled and greedy", w.problems))
		label = "before"
	case "after":
		w.phase(view.PhaseAfter, fmt.Sprintf("measuring the result on %d problems, sampled and greedy", w.problems))
		label = "after"
	case "train":
		w.phase(view.PhaseTraining, "rollouts, then updates; mixed groups are those whose rewards differ: only they teach")
	default:
		label = "validation"
	}
	w.view.Send(view.StepProgress{Step: int(e.Step), Steps: w.steps, Label: label, Done: e.Done, Total: e.Total})
}

func interval(s trainer.Score) view.Interval {
	return view.Interval{Value: s.Rate, Low: s.Low, High: s.High}
}

// fraction is the mean reward of a score where that is another number: a score
// counts passes, and a pass rate of 0 says nothing of rewards between 0 and 1.
func fraction(s trainer.Score) *float64 {
	if s.Rollouts == 0 || math.Abs(s.Reward-s.Rate) < 1e-9 {
		return nil
	}
	return &s.Reward
}

func stepDone(e trainer.StepDone, steps int) view.StepDone {
	sampled := 0
	for _, l := range e.Rollouts {
		sampled += l.Sampled
	}
	return view.StepDone{
		Step: int(e.Step), Steps: steps, Reward: e.Reward, Groups: e.Groups, Mixed: e.Groups - e.Unanimous,
		Rollouts: len(e.Rollouts), Masked: e.Masked, Tokens: sampled,
		Rollout: e.Timing.Rollout, Update: e.Timing.Update, Total: e.Timing.Rollout + e.Timing.Update,
	}
}

// isTerminal says whether w is a terminal that may be drawn on.
func isTerminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	if !ok || os.Getenv("TERM") == "dumb" {
		return false
	}
	_, err := terminalSize(f)
	return err == nil
}

// terminalWidth returns the columns of a terminal, or 0.
func terminalWidth(w io.Writer) int {
	f, ok := w.(*os.File)
	if !ok {
		return 0
	}
	n, err := terminalSize(f)
	if err != nil {
		return 0
	}
	return n
}

// result is what a run ends with: result.json, and the line that --json prints.
type result struct {
	Run          string      `json:"run"` // the run's folder
	Reached      bool        `json:"reached"`
	Before       *float64    `json:"before"` // pass@1 at temperature 1 on data.test; null: not measured
	After        *float64    `json:"after"`
	BeforeGreedy *float64    `json:"before_greedy"`
	AfterGreedy  *float64    `json:"after_greedy"`
	BeforeRange  *[2]float64 `json:"before_interval"` // 95 %
	AfterRange   *[2]float64 `json:"after_interval"`
	BeforeReward *float64    `json:"before_reward"` // mean reward at temperature 1
	AfterReward  *float64    `json:"after_reward"`
	WallSeconds  float64     `json:"wall_seconds"`
	CPUSeconds   float64     `json:"cpu_seconds"` // all processes, without the build
	BuildSeconds float64     `json:"build_cpu_seconds"`
	AgentSeconds float64     `json:"agent_cpu_seconds"` // the agents' processes
	Steps        int64       `json:"steps"`
	Updates      int64       `json:"updates"`
	Rollouts     int64       `json:"rollouts"` // training rollouts, each counted once
	Evaluated    int64       `json:"evaluation_rollouts"`
	Tokens       int64       `json:"trained_tokens"`
	BestStep     int64       `json:"best_step"`
	Checkpoint   string      `json:"checkpoint"` // of the best policy
	Report       string      `json:"report"`
	Interrupted  bool        `json:"interrupted,omitempty"`
	Resume       string      `json:"resume,omitempty"`

	stopRule bool
}

// rateOf is a score's rate; nil where nothing was measured.
func rateOf(s trainer.Score) *float64 {
	if s.Rollouts == 0 {
		return nil
	}
	return &s.Rate
}

// newResult puts a result together.
func (j *trainJob) newResult(r trainer.Result, m *meter) result {
	cost := m.spent()
	out := result{
		Run: string(j.dir), Reached: r.Reached, WallSeconds: cost.Wall, CPUSeconds: cost.CPU,
		BuildSeconds: cost.Build, AgentSeconds: cost.Agents, Steps: r.Steps, Updates: r.Updates,
		Rollouts: r.Rollouts, Evaluated: r.Evaluated, Tokens: r.Tokens, Interrupted: r.Interrupted, Resume: r.Resume,
		stopRule: j.stopRule(),
	}
	if e := r.Before; e != nil {
		out.Before, out.BeforeGreedy, out.BeforeRange = &e.Sampled.Rate, rateOf(e.Greedy), &[2]float64{e.Sampled.Low, e.Sampled.High}
		out.BeforeReward = &e.Sampled.Reward
	}
	if e := r.After; e != nil {
		out.After, out.AfterGreedy, out.AfterRange = &e.Sampled.Rate, rateOf(e.Greedy), &[2]float64{e.Sampled.Low, e.Sampled.High}
		out.AfterReward = &e.Sampled.Reward
	}
	if r.Best != nil {
		out.BestStep = r.Best.Step
		out.Checkpoint = j.dir.path("checkpoints", r.Best.Dir)
	}
	return out
}

// conclude writes the report and the result, and says the last words.
func (j *trainJob) conclude(ctx context.Context, r trainer.Result, w *watcher, m *meter) (result, error) {
	if old, ok := j.finished(r); ok {
		w.view.Send(j.lastWords(r, old))
		if r.Reached {
			j.app.say("the run had reached its stop rule: nothing was left to train")
		} else {
			j.app.say("the run had finished: nothing was left to train; `fulgur resume %s --steps N` trains further", j.dir)
		}
		return old, nil
	}
	if _, err := os.Stat(j.dir.config()); err != nil {
		return result{}, fulgur.E(fulgur.KindNotFound, "end the run", "the run's folder "+string(j.dir)+" was deleted or moved while it trained: what it held is lost", err)
	}
	out := j.newResult(r, m)
	if !r.Interrupted {
		if err := j.app.writeReport(ctx, j.file, j.dir, out); err != nil {
			w.view.Send(view.Warning{Text: "no report was written: " + err.Error()})
		} else {
			out.Report = j.dir.report()
		}
		cost := m.spent()
		out.WallSeconds, out.CPUSeconds = cost.Wall, cost.CPU
	}
	w.keepCost()
	if !r.Interrupted {
		if err := j.writeDossier(ctx, r, out); err != nil {
			w.say("no dossier was written: " + err.Error())
		}
		w.hooks.done(ctx, out)
	}
	w.view.Send(j.lastWords(r, out))
	return out, j.dir.writeJSON("result.json", out, 0o644)
}

// finished returns the result of a run that had ended before it was resumed,
// with what it cost then.
func (j *trainJob) finished(r trainer.Result) (result, bool) {
	var old result
	if !j.resume || r.Interrupted || j.dir.readJSON("result.json", &old) != nil {
		return result{}, false
	}
	old.stopRule = j.stopRule()
	return old, !old.Interrupted && old.Steps == r.Steps && old.Updates == r.Updates
}

// stopRule says whether the run is to reach something.
func (j *trainJob) stopRule() bool {
	return j.file.Stop.Validation > 0 && j.file.Validation.Every > 0 && j.file.Data.Validation != ""
}

func (j *trainJob) lastWords(r trainer.Result, out result) view.Done {
	d := view.Done{
		Wall: time.Duration(out.WallSeconds * float64(time.Second)), CPU: time.Duration(out.CPUSeconds * float64(time.Second)),
		Rollouts: int(out.Rollouts), Updates: int(out.Updates),
	}
	switch {
	case r.Interrupted:
		d.Title, d.Next = fmt.Sprintf("interrupted after step %d", r.Steps), r.Resume
		return d
	case r.Reached:
		d.Title = fmt.Sprintf("reached %g in step %d", j.file.Stop.Validation, r.Steps)
	default:
		d.Title = fmt.Sprintf("finished %d steps", r.Steps)
	}
	if r.Before != nil && r.After != nil {
		b, a := interval(r.Before.Sampled), interval(r.After.Sampled)
		d.Before, d.After, d.Problems = &b, &a, r.After.Sampled.Rollouts
		d.BeforeReward, d.AfterReward, d.Pass = fraction(r.Before.Sampled), fraction(r.After.Sampled), passReward
		if d.BeforeReward != nil || d.AfterReward != nil { // both, where one needs it
			d.BeforeReward, d.AfterReward = &r.Before.Sampled.Reward, &r.After.Sampled.Reward
		}
	}
	if out.Report != "" {
		d.Files = append(d.Files, view.File{Name: "report", Path: out.Report})
	}
	if out.Checkpoint != "" {
		d.Files = append(d.Files, view.File{Name: "model", Path: out.Checkpoint})
	}
	d.Next = "fulgur serve --run " + string(j.dir)
	return d
}

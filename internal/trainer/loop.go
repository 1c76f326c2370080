package trainer

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"time"

	"github.com/fulgur-rl/fulgur"
	"github.com/fulgur-rl/fulgur/internal/engine"
	"github.com/fulgur-rl/fulgur/internal/trainer/metrics"
	"github.com/fulgur-rl/fulgur/internal/trainer/schedule"
)

// trainer is one run at work. One goroutine owns it.
type trainer struct {
	o     Options
	state State
	sched schedule.Schedule
	desk  desk
	flow
	resumes   bool  // the sampler goes on with a call that a pause cut off
	saved     int64 // step of the newest checkpoint; -1: none
	final     string
	sinks     metrics.Multi // the run folder's own and the caller's
	own       []metrics.Sink
	rollouts  *metrics.Lines
	maxTokens int
	timing    Timing // of the step at work
	updating  bool   // weights may lie between two steps
	causes    causes
	losses    []string // that the engine computes by itself; nil: not asked yet
}

// Run trains until the schedule, the stop rule or the context ends it. When the
// context ends, it writes a checkpoint at the last finished step and returns the
// result so far with an error of KindCanceled that says how to go on.
func Run(ctx context.Context, o Options) (Result, error) {
	if err := o.fill(); err != nil {
		return Result{}, err
	}
	t := &trainer{o: o, saved: -1}
	parent := ctx
	ctx, release, err := t.lease(parent)
	if err != nil {
		return Result{}, err
	}
	defer release()
	if err := t.open(ctx); err != nil {
		return Result{}, err
	}
	defer t.closeFiles()
	err = t.train(ctx)
	if err == nil {
		return t.result(), nil
	}
	if ctx.Err() != nil && parent.Err() == nil { // the lease was lost: another trainer may write
		return t.result(), context.Cause(ctx)
	}
	ctx = context.WithoutCancel(ctx)
	var unsaved error
	if t.saved != t.state.Cursor.Step && !t.updating {
		save, cancel := context.WithTimeout(ctx, time.Minute)
		defer cancel()
		unsaved = t.checkpoint(save)
	}
	t.leave(ctx) // not before: who is killed while it waits for the store has lost nothing
	if unsaved != nil {
		return t.result(), errors.Join(err, unsaved)
	}
	if parent.Err() == nil {
		return t.result(), err
	}
	r := t.result()
	r.Interrupted, r.Resume = true, "fulgur resume "+o.Dir
	return r, fulgur.E(fulgur.KindCanceled, "train", fmt.Sprintf("stopped after step %d; go on with `%s`", r.Steps, r.Resume), nil)
}

// leave ends the rollouts that are cut off when a run stops: they would be shown as
// running with nothing behind them. What can't be told now, resuming tells.
func (t *trainer) leave(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	_ = t.cutOff(ctx, "interrupted", "the run was stopped while this rollout ran; `fulgur resume` asks for it again")
}

// open loads or begins the run: state, weights, files, schedule, endpoint.
func (t *trainer) open(ctx context.Context) error {
	o := &t.o
	if f, ok := o.Engine.(engine.Freezer); ok && o.Objective.KL.on() {
		if err := f.Freeze(ctx); err != nil { // the start weights, before a checkpoint replaces them
			return err
		}
	}
	if err := t.load(ctx); err != nil {
		return err
	}
	if o.Resume && t.asynchronous() {
		t.state.Branches = append(t.state.Branches, branch{Version: t.state.Version, At: o.Now()})
	}
	if err := t.fitEngine(ctx); err != nil {
		return err
	}
	if err := t.writeSamplesConfig(); err != nil {
		return err
	}
	c := o.Schedule
	c.Order = schedule.Order{Rows: len(o.Train.Rows), Seed: o.Seed}
	c.GroupsPerStep, c.GroupSize, c.Steps, c.Epochs = o.GroupsPerStep, o.GroupSize, o.Steps, o.Epochs
	if o.Curriculum != nil {
		c.Rows = t.epochRows
	}
	var err error
	t.sched, err = schedule.New(c, t.state.Cursor)
	t.flow = flow{began: o.Now(), groups: map[schedule.Group]*batch{}}
	if err != nil {
		return fulgur.E(fulgur.KindInvalid, "start training", err.Error(), nil)
	}
	if err := o.Store.PutRun(ctx, fulgur.Run{ID: o.Run, Model: o.Model, Config: o.Config, Version: t.state.Version}); err != nil {
		return err
	}
	if o.Resume {
		if err := t.cutOff(ctx, "superseded", "the trainer was restarted while this rollout ran; it is asked for again"); err != nil {
			return err
		}
	}
	if err := t.publish(ctx, t.state.Version, true); err != nil {
		return err
	}
	if err := t.openFiles(o.Now()); err != nil {
		return err
	}
	steps := o.Steps
	if o.Epochs > 0 {
		all := int64((o.Epochs*len(o.Train.Rows) + o.GroupsPerStep - 1) / o.GroupsPerStep)
		if steps == 0 || all < steps {
			steps = all
		}
	}
	o.Observer(Started{Run: o.Run, Resumed: t.saved >= 0, Step: t.state.Cursor.Step, Steps: steps, Version: t.state.Version})
	return nil
}

// load takes the state and the weights of the last checkpoint, if the run goes on
// from one, else it sees that the run's name is free.
func (t *trainer) load(ctx context.Context) error {
	o := &t.o
	path, state, err := Last(o.Dir)
	switch {
	case fulgur.KindOf(err) == fulgur.KindNotFound:
		t.state = State{Format: stateFormat, Run: o.Run, ConfigHash: o.ConfigHash, DataHash: o.Train.Hash, Seed: o.Seed}
		if !o.Resume {
			some, err := o.Store.Rollouts(ctx, fulgur.RolloutQuery{Run: o.Run, Limit: 1})
			if err != nil {
				return err
			}
			if len(some) > 0 {
				return fulgur.E(fulgur.KindConflict, "start training", fmt.Sprintf(
					"the store has rollouts of a run %q already; choose another name under `run:`, or `fulgur resume` it from the folder in which it was begun", o.Run), nil)
			}
		}
	case err != nil:
		return err
	case !o.Resume:
		return fulgur.E(fulgur.KindConflict, "start training", fmt.Sprintf("the run folder %s has checkpoints; `fulgur resume %s` goes on, another `out:` starts anew", o.Dir, o.Dir), nil)
	default:
		if err := state.matches(o); err != nil {
			return err
		}
		if err := o.Engine.Load(ctx, path); err != nil {
			return fulgur.E(fulgur.KindOf(err), "resume from "+path, "the checkpoint can't be loaded; remove that folder to resume from the one before it: "+fulgur.PublicMessage(err), err)
		}
		t.state, t.saved, t.final = state, state.Cursor.Step, path
	}
	return nil
}

// openFiles opens the run folder's metrics, cut back to what the state covers.
func (t *trainer) openFiles(now time.Time) error {
	keep := t.state.Cursor.Step
	if t.saved < 0 || t.state.Pending != nil {
		keep--
	}
	fail := func(err error) error {
		return fulgur.E(fulgur.KindExhausted, "open metrics", "the run folder's metrics files can't be written; check permissions and disk space", err)
	}
	lines, err := metrics.OpenLines(filepath.Join(t.o.Dir, "metrics.jsonl"), keep)
	if err != nil {
		return fail(err)
	}
	t.own = append(t.own, lines)
	board, err := metrics.OpenBoard(filepath.Join(t.o.Dir, "tensorboard"), keep, now)
	if err != nil {
		t.closeFiles()
		return fail(err)
	}
	t.own = append(t.own, board)
	if t.rollouts, err = metrics.OpenLines(filepath.Join(t.o.Dir, "rollouts.jsonl"), keep); err != nil {
		t.closeFiles()
		return fail(err)
	}
	t.sinks = append(append(t.sinks, t.own...), t.o.Sinks...)
	t.lookAtFiles(keep, map[string]*metrics.Lines{"metrics.jsonl": lines, "rollouts.jsonl": t.rollouts})
	return nil
}

// lookAtFiles warns of what a resumed run's folder has lost: reports and ledgers
// are made from these files, and what is missing there would look like nothing.
func (t *trainer) lookAtFiles(keep int64, files map[string]*metrics.Lines) {
	for _, name := range slices.Sorted(maps.Keys(files)) {
		f := files[name]
		switch {
		case t.saved < 0 && t.o.Resume && f.Cut > 0:
			t.warn(0, "lost_files", "no checkpoint is left: the run begins again, and what %s held is dropped", name)
		case t.saved >= 0 && keep > 0 && f.Last < keep:
			t.warn(t.state.Cursor.Step, "lost_files", "%s ends at step %d of %d: reports and `fulgur rollouts spent` lack the steps between", name, max(f.Last, 0), keep)
		}
	}
}

func (t *trainer) closeFiles() {
	for _, s := range t.own {
		s.Close() // every record was written through already
	}
	if t.rollouts != nil {
		t.rollouts.Close()
	}
}

// publish makes the engine's weights the ones that are sampled; with hold, the
// run's calls are held meanwhile.
func (t *trainer) publish(ctx context.Context, version fulgur.PolicyVersion, hold bool) error {
	if hold {
		if err := t.hold(ctx); err != nil {
			return err
		}
	}
	endpoints, err := t.o.Engine.Publish(ctx, version)
	if err == nil {
		_, err = again(ctx, func() (struct{}, error) {
			return struct{}{}, t.o.Store.PutEndpoints(ctx, t.o.Run, t.o.Model, endpoints)
		})
		t.resumes = len(endpoints) > 0 && !slices.ContainsFunc(endpoints, func(e fulgur.Endpoint) bool { return e.Kind != fulgur.EndpointTokens })
	}
	if hold {
		err = errors.Join(err, t.release(ctx)) // also when publishing failed
	}
	return err
}

// train is the loop. Before each round the state is that of a finished step.
// Where steps follow one another, a step's rollouts are asked for when the one
// before it is measured and settled; else they go on all the while, and only the
// next update waits.
func (t *trainer) train(ctx context.Context) error {
	if err := t.tell(ctx, schedule.Begin{}); err != nil {
		return err
	}
	if t.state.After != nil {
		if t.over() {
			return nil
		}
		t.state.After = nil // the run was made longer
	}
	if t.state.Before == nil && len(t.o.Test) > 0 {
		e, err := t.evaluate(ctx, "before", t.state.Cursor.Step, t.o.Test)
		if err != nil {
			return err
		}
		t.state.Before = e
		t.pend(e.values("before"), e.Lines)
	}
	for {
		if err := t.validate(ctx); err != nil {
			return err
		}
		if t.over() {
			break
		}
		if err := t.settle(ctx); err != nil {
			return err
		}
		if err := t.oneStep(ctx); err != nil {
			return err
		}
	}
	return t.finishRun(ctx)
}

// oneStep waits for the groups of a step and trains on them.
func (t *trainer) oneStep(ctx context.Context) error {
	start, step := t.o.Now(), t.state.Cursor.Step+1
	t.total = t.o.GroupSize * t.o.GroupsPerStep
	if !t.asynchronous() {
		t.total = t.o.GroupSize * len(t.asked)
	}
	t.o.Observer(StepStarted{Step: step, Rollouts: t.total})
	if err := t.await(ctx, step, true, func() bool { return t.next != nil }); err != nil {
		return err
	}
	u := *t.next
	t.next = nil
	rollouts := t.take(u)
	if err := usableBatch(rollouts); err != nil {
		t.askAnew(rollouts)
		return t.stopped(err, rollouts)
	}
	t.timing.Rollout = t.o.Now().Sub(start)
	t.updating = true
	// An update that has begun is finished: it is short, and half of one can't be kept.
	whole := context.WithoutCancel(ctx)
	if err := t.step(whole, u, rollouts); err != nil {
		return t.stopped(err, rollouts)
	}
	t.flowed(u, rollouts)
	if err := t.tell(whole, schedule.Updated{}); err != nil {
		return err
	}
	t.state.Cursor, t.state.Anew = t.sched.State(), nil
	t.updating = false
	return nil
}

// settle writes out the finished step's metrics, and a checkpoint when it is time.
func (t *trainer) settle(ctx context.Context) error {
	if t.state.Pending == nil && t.saved == t.state.Cursor.Step {
		return nil
	}
	if err := t.flush(); err != nil {
		return err
	}
	step := t.state.Cursor.Step
	best := t.state.Best != nil && t.state.Best.Step == step
	if t.saved == step || best || step%t.o.CheckpointEvery == 0 {
		return t.checkpoint(context.WithoutCancel(ctx))
	}
	return nil
}

// pend adds to what the current step will write.
func (t *trainer) pend(values map[string]float64, lines []RolloutLine) {
	if t.state.Pending == nil {
		t.state.Pending = &pending{Values: map[string]float64{}}
	}
	for name, v := range values {
		if !finite(v) { // JSON has no word for it
			t.warn(t.state.Cursor.Step, "not_finite", "%s is %g; it is left out of the metrics", name, v)
			continue
		}
		t.state.Pending.Values[name] = v
	}
	t.state.Pending.Lines = append(t.state.Pending.Lines, lines...)
}

func (t *trainer) flush() error {
	p := t.state.Pending
	if p == nil {
		return nil
	}
	lines := make([]any, len(p.Lines))
	for i := range p.Lines {
		lines[i] = &p.Lines[i]
	}
	err := t.rollouts.Append(lines...)
	if err == nil {
		err = t.sinks.Write(metrics.Record{Step: t.state.Cursor.Step, At: t.o.Now(), Values: p.Values})
	}
	if err != nil {
		return fulgur.E(fulgur.KindExhausted, "write metrics", "the metrics can't be written; free some disk space, then `fulgur resume`", err)
	}
	t.state.Pending = nil
	return nil
}

// validate measures the current policy when it is time, keeps the best, and
// applies the stop rule.
func (t *trainer) validate(ctx context.Context) error {
	step := t.state.Cursor.Step
	due := t.o.ValidateEvery > 0 && step > 0 && step%t.o.ValidateEvery == 0
	if !due || t.state.Validated != nil && t.state.Validated.Step == step {
		return nil
	}
	e, err := t.evaluate(ctx, "val", step, t.o.Validation)
	if err != nil {
		return err
	}
	t.state.Validated = e
	t.pend(e.values("validation"), e.Lines)
	t.stall(t.state.Best, e)
	if b := t.state.Best; b == nil || e.Sampled.Rate >= b.Score {
		t.state.Best = &Best{Step: step, Score: e.Sampled.Rate, Dir: stepName(step)}
	}
	if t.o.Stop.Validation > 0 && e.Sampled.Rate >= t.o.Stop.Validation {
		t.state.Streak++
	} else {
		t.state.Streak = 0
	}
	need := 1
	if t.o.Stop.Twice {
		need = 2
	}
	t.state.Reached = t.state.Streak >= need
	return nil
}

// finishRun saves the last policy, measures the best one on the test rows, and
// writes what is left.
func (t *trainer) finishRun(ctx context.Context) error {
	step := t.state.Cursor.Step
	// The metrics of this step stay pending in the checkpoint until "after" is
	// known: what a crash repeats then is not in the files twice.
	if t.saved != step || len(t.o.Test) > 0 {
		if err := t.checkpoint(context.WithoutCancel(ctx)); err != nil {
			return err
		}
	}
	if err := t.endOpen(ctx); err != nil { // groups of later steps, where the stop rule ended the run
		return err
	}
	if len(t.o.Test) > 0 {
		version := t.state.Version
		t.updating = true // from here on the engine may hold other weights than the last step's
		if b := t.state.Best; b != nil && b.Step != step {
			if err := t.o.Engine.Load(ctx, filepath.Join(checkpointDir(t.o.Dir), b.Dir)); err != nil {
				return err
			}
			t.state.Version = fulgur.PolicyVersion(b.Step)
			if err := t.publish(ctx, t.state.Version, true); err != nil {
				return err
			}
		}
		e, err := t.evaluate(ctx, "after", step, t.o.Test)
		t.state.Version = version
		if err != nil {
			return err
		}
		t.state.After = e
		t.pend(e.values("after"), e.Lines)
	}
	if err := t.flush(); err != nil {
		return err
	}
	if err := t.checkpoint(context.WithoutCancel(ctx)); err != nil {
		return err
	}
	now := t.o.Now()
	return t.o.Store.PutRun(ctx, fulgur.Run{ID: t.o.Run, Model: t.o.Model, Config: t.o.Config, Version: t.state.Version, EndedAt: &now})
}

func (t *trainer) result() Result {
	s := &t.state
	return Result{Reached: s.Reached, Before: s.Before, After: s.After, Best: s.Best, Steps: s.Cursor.Step, Updates: s.Updates,
		Rollouts: s.Rollouts, Evaluated: s.Evaluated, Tokens: s.Tokens, Timing: s.Timing, Final: t.final}
}

func (t *trainer) warn(step int64, code, format string, args ...any) {
	t.o.Observer(Warning{Step: step, Code: code, Message: fmt.Sprintf(format, args...)})
}

// adam returns the optimizer's parameters in a step.
func (t *trainer) adam(step int64) engine.AdamW {
	a := t.o.Adam
	a.LearningRate = t.o.LearningRate.At(step)
	return a
}

package trainer

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/fulgur-rl/fulgur"
	"github.com/fulgur-rl/fulgur/internal/api/client"
	"github.com/fulgur-rl/fulgur/internal/reward"
	"github.com/fulgur-rl/fulgur/internal/store"
	"github.com/fulgur-rl/fulgur/internal/trainer/schedule"
)

// Store and client are what the trainer talks to, the gateway's routes its gate,
// and the graders of package reward its graders.
var (
	_ Store  = (*store.Store)(nil)
	_ Store  = (*client.Client)(nil)
	_ Gate   = (*client.Client)(nil)
	_ Grader = reward.Grader(nil)
)

func TestRunLearnsAndCountsEachRolloutOnce(t *testing.T) {
	dir := t.TempDir()
	st, e := openStore(t, dir), newBigram(vocab)
	o := options(dir, st, e)
	o.Steps, o.GroupSize, o.GroupsPerStep, o.Test = 20, 6, 4, rows(24)
	o.LearningRate.Start = 1
	var steps []StepDone
	var progress []Progress
	o.Observer = func(ev Event) {
		switch ev := ev.(type) {
		case StepDone:
			steps = append(steps, ev)
		case Progress:
			progress = append(progress, ev)
		case Warning:
			if ev.Code != "unanimous" && ev.Code != "zero_reward" {
				t.Errorf("warning %s: %s", ev.Code, ev.Message)
			}
		}
	}
	r, err := train(t, t.Context(), o, &agents{st: st, gen: e, slots: 4})
	if err != nil {
		t.Fatal(err)
	}
	if r.Before.Sampled.Rate > 0.4 || r.After.Sampled.Rate < 0.9 {
		t.Errorf("pass@1 went from %.2f to %.2f; want at most 0.4 to at least 0.9", r.Before.Sampled.Rate, r.After.Sampled.Rate)
	}
	if want := int64(20 * 24); r.Rollouts != want || r.Steps != 20 {
		t.Errorf("%d steps with %d rollouts, want 20 with %d", r.Steps, r.Rollouts, want)
	}
	if want := int64(2*2*24 + 5*2*6); r.Evaluated != want {
		t.Errorf("%d evaluation rollouts, want %d", r.Evaluated, want)
	}
	if len(steps) != 20 || r.Updates < 20 || r.Updates > 40 {
		t.Errorf("%d steps seen, %d updates", len(steps), r.Updates)
	}
	for _, p := range progress { // case UI-02
		if p.Done > p.Total {
			t.Errorf("progress %d of %d", p.Done, p.Total)
		}
	}
	best, err := BestCheckpoint(dir)
	if err != nil || filepath.Base(best) != r.Best.Dir {
		t.Errorf("best checkpoint %s (%v), want %s", best, err, r.Best.Dir)
	}
	if _, err := os.Stat(filepath.Join(best, "bigram.json")); err != nil {
		t.Error(err)
	}
	if all, _ := Checkpoints(dir); len(all) > o.Keep+1 {
		t.Errorf("%d checkpoints kept, want the last %d and the best", len(all), o.Keep)
	}
}

func TestStopRuleNeedsTheScoreTwiceInARow(t *testing.T) {
	dir := t.TempDir()
	st, e := openStore(t, dir), newBigram(vocab)
	o := options(dir, st, e)
	o.Steps, o.GroupSize, o.GroupsPerStep, o.ValidateEvery, o.Stop = 200, 6, 4, 2, Stop{Validation: 0.9, Twice: true}
	var scores []float64
	o.Observer = func(ev Event) {
		if v, ok := ev.(Evaluated); ok && v.Part == "val" {
			scores = append(scores, v.Sampled.Rate)
		}
	}
	r, err := train(t, t.Context(), o, &agents{st: st, gen: e, slots: 4})
	if err != nil {
		t.Fatal(err)
	}
	n := len(scores)
	if !r.Reached || n < 2 || scores[n-1] < 0.9 || scores[n-2] < 0.9 {
		t.Fatalf("reached %v after %v", r.Reached, scores)
	}
	for i := 1; i < n-1; i++ {
		if scores[i] >= 0.9 && scores[i-1] >= 0.9 {
			t.Errorf("went on after two good validations: %v", scores)
		}
	}
}

func TestInfrastructureFailuresNeitherTrainNorVote(t *testing.T) { // AL-10
	dir := t.TempDir()
	st, e := openStore(t, dir), newBigram(vocab)
	o := options(dir, st, e)
	o.Steps, o.GroupSize, o.GroupsPerStep, o.Test = 2, 6, 4, nil
	zero := 0.0
	o.AgentFailure = &zero
	var seen []StepDone
	warned := false
	o.Observer = func(ev Event) {
		switch ev := ev.(type) {
		case StepDone:
			seen = append(seen, ev)
		case Warning:
			warned = warned || ev.Code == "infrastructure"
		}
	}
	n := 0
	a := &agents{st: st, gen: e, slots: 1, fail: func(r fulgur.Rollout, _ fulgur.AttemptID) *fulgur.AttemptReport {
		n++
		switch n % 6 {
		case 1:
			return &fulgur.AttemptReport{Phase: fulgur.PhaseEnded, Outcome: &fulgur.Outcome{Class: fulgur.OutcomeInfrastructure, Reason: "spawn"}}
		case 2:
			return &fulgur.AttemptReport{Phase: fulgur.PhaseEnded, Outcome: &fulgur.Outcome{Class: fulgur.OutcomeAgent, Reason: "exit"}}
		}
		return nil
	}}
	if _, err := train(t, t.Context(), o, a); err != nil {
		t.Fatal(err)
	}
	if !warned {
		t.Error("no warning for a sixth of the rollouts lost to infrastructure")
	}
	for _, s := range seen {
		if s.Masked != 4 {
			t.Errorf("step %d: %d masked, want 4", s.Step, s.Masked)
		}
		for _, l := range s.Rollouts {
			switch l.Class {
			case fulgur.OutcomeInfrastructure:
				if l.Masked == "" || l.Advantage != 0 || l.Weight != 0 || l.Reward != nil {
					t.Errorf("infrastructure failure takes part: %+v", l)
				}
			case fulgur.OutcomeAgent:
				if l.Masked != "" || l.Reward == nil || *l.Reward != 0 {
					t.Errorf("agent failure without its configured reward: %+v", l)
				}
			}
		}
	}
}

func TestAllInfrastructureStopsWithAClearMessage(t *testing.T) { // AD-10
	dir := t.TempDir()
	st, e := openStore(t, dir), newBigram(vocab)
	o := options(dir, st, e)
	o.Test = nil
	a := &agents{st: st, gen: e, slots: 2, fail: func(fulgur.Rollout, fulgur.AttemptID) *fulgur.AttemptReport {
		return &fulgur.AttemptReport{Phase: fulgur.PhaseEnded, Outcome: &fulgur.Outcome{Class: fulgur.OutcomeInfrastructure, Reason: "spawn"}}
	}}
	_, err := train(t, t.Context(), o, a)
	if !errors.Is(err, &fulgur.Error{Kind: fulgur.KindUnavailable}) || !strings.Contains(err.Error(), "12 × infrastructure: spawn") {
		t.Errorf("got %v", err)
	}
}

func TestNaNLossStopsBeforeTheWeightsChange(t *testing.T) {
	dir := t.TempDir()
	st, e := openStore(t, dir), newBigram(vocab)
	e.failLoss = true
	o := options(dir, st, e)
	o.Test = nil
	_, err := train(t, t.Context(), o, &agents{st: st, gen: e, slots: 2})
	if err == nil || !strings.Contains(err.Error(), "NaN") {
		t.Errorf("got %v", err)
	}
	for _, w := range e.Weights {
		if w != 0 {
			t.Fatal("a weight changed")
		}
	}
	for _, s := range Ledger(rolloutLines(t, dir)) { // had a step been made of it, most would have trained
		if s.Cause != "masked_"+MaskStopped {
			t.Errorf("of a step that made no policy, booked as %s: %+v", s.Cause, s)
		}
	}
}

// WE-02, WE-03: a sampler that holds other weights, or gives log probs of another
// kind, is found before the first update, and stops the run.
func TestASamplerOfAnotherPolicyStopsTheRun(t *testing.T) {
	dir := t.TempDir()
	st, e := openStore(t, dir), newBigram(vocab)
	e.skew = -0.3
	o := options(dir, st, e)
	o.Test = nil
	_, err := train(t, t.Context(), o, &agents{st: st, gen: e, slots: 2})
	if err == nil || !strings.Contains(err.Error(), "differ from the trainer's by 0.3 nats") || !strings.Contains(err.Error(), "fulgur resume") {
		t.Errorf("got %v", err)
	}
	if e.Steps != 0 {
		t.Errorf("%d updates were made", e.Steps)
	}
}

func TestASecondTrainerOfTheRunIsRefused(t *testing.T) { // ST-11
	dir := t.TempDir()
	st, e := openStore(t, dir), newBigram(vocab)
	if err := st.PutRun(t.Context(), fulgur.Run{ID: "r", Model: "m"}); err != nil {
		t.Fatal(err)
	}
	if _, err := st.AcquireLease(t.Context(), "r", "trainer", "other", 1e12); err != nil {
		t.Fatal(err)
	}
	_, err := Run(t.Context(), options(dir, st, e))
	if fulgur.KindOf(err) != fulgur.KindConflict {
		t.Errorf("got %v, want a conflict", err)
	}
}

func TestCancelWritesACheckpointAndSaysHowToGoOn(t *testing.T) {
	dir := t.TempDir()
	st, e := openStore(t, dir), newBigram(vocab)
	o := options(dir, st, e)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	o.Observer = func(ev Event) {
		if p, ok := ev.(Progress); ok && p.Part == "train" && p.Step == 6 && p.Done == 5 {
			cancel()
		}
	}
	r, err := train(t, ctx, o, &agents{st: st, gen: e, slots: 2})
	if fulgur.KindOf(err) != fulgur.KindCanceled || !r.Interrupted || !strings.Contains(r.Resume, dir) {
		t.Fatalf("got %v, %+v", err, r)
	}
	_, s, err := Last(dir)
	if err != nil || s.Cursor.Step != 5 {
		t.Errorf("last checkpoint at step %d (%v), want 5", s.Cursor.Step, err)
	}
	open, err := st.Rollouts(t.Context(), fulgur.RolloutQuery{Run: "r", States: []fulgur.RolloutState{fulgur.Queuing, fulgur.Running}})
	if err != nil || len(open) > 0 {
		t.Errorf("%d rollouts are shown as under way (%v) with nothing behind them", len(open), err)
	}
}

// endings notes what the newest checkpoint was whenever a rollout was ended.
type endings struct {
	*store.Store
	dir   string
	at    []int64
	ended chan struct{} // closed when one was
}

func (e *endings) EndRollout(ctx context.Context, id fulgur.RolloutID, o fulgur.Outcome) (fulgur.Rollout, error) {
	_, s, err := Last(e.dir)
	if err != nil {
		s.Cursor.Step = -1
	}
	if e.at = append(e.at, s.Cursor.Step); len(e.at) == 1 {
		defer close(e.ended)
	}
	return e.Store.EndRollout(ctx, id, o)
}

// A run that is left, or has reached its score, has saved what was done before it
// ends the rollouts that nobody waits for: that may take long, and it may be killed.
func TestWhatWasDoneIsSavedBeforeTheRunIsLeft(t *testing.T) {
	run := func(hangs int64, settle func(*Options, context.CancelFunc)) (*endings, Result) {
		dir := t.TempDir()
		st, e := &endings{Store: openStore(t, dir), dir: dir, ended: make(chan struct{})}, newBigram(vocab)
		o := options(dir, st, e)
		o.CheckpointEvery, o.Test = 100, nil
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		settle(&o, cancel)
		var begun atomic.Int64
		a := &agents{st: st.Store, gen: e, slots: 2, fail: func(r fulgur.Rollout, _ fulgur.AttemptID) *fulgur.AttemptReport {
			if r.IsTrain && begun.Add(1) == hangs {
				<-st.ended
			}
			return nil
		}}
		r, err := train(t, ctx, o, a)
		if err != nil && !r.Interrupted || len(st.at) == 0 {
			t.Fatalf("%v, %d rollouts were ended", err, len(st.at))
		}
		return st, r
	}
	st, r := run(5*12+3, func(o *Options, cancel context.CancelFunc) {
		o.Observer = func(ev Event) {
			if p, ok := ev.(Progress); ok && p.Part == "train" && p.Step == 6 && p.Done == 5 {
				cancel()
			}
		}
	})
	if r.Steps != 5 || slices.Min(st.at) != 5 {
		t.Errorf("interrupted after step %d, rollouts were ended at checkpoints of steps %v", r.Steps, st.at)
	}
	st, r = run(45, func(o *Options, _ context.CancelFunc) {
		o.Schedule = schedule.Config{Mode: schedule.Collocated, MeanStaleness: 2}
		o.ValidateEvery, o.Stop = 2, Stop{Validation: 1e-9}
	})
	if !r.Reached || slices.Min(st.at) != r.Steps {
		t.Errorf("the score was reached at step %d, rollouts were ended at checkpoints of steps %v", r.Steps, st.at)
	}
}

func TestNoControllerIsSaid(t *testing.T) {
	dir := t.TempDir()
	st, e := openStore(t, dir), newBigram(vocab)
	o := options(dir, st, e)
	o.Patience = 20 * time.Millisecond
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	said := ""
	o.Observer = func(ev Event) {
		if w, ok := ev.(Warning); ok && w.Code == "waiting" {
			said = w.Message
			cancel()
		}
	}
	if _, err := Run(ctx, o); fulgur.KindOf(err) != fulgur.KindCanceled || !strings.Contains(said, "controller") {
		t.Errorf("got %v, %q", err, said)
	}
}

func TestEvaluateScoresAndPublishes(t *testing.T) {
	dir := t.TempDir()
	st, e := openStore(t, dir), newBigram(vocab)
	for i := range tasks { // it knows all answers
		e.Weights[i*vocab+i+tasks] = 9
	}
	o := options(dir, st, e)
	stop := (&agents{st: st, gen: e, slots: 2}).start(t.Context(), t)
	ev, err := Evaluate(t.Context(), o, Request{Part: "eval", Number: 1, Rows: rows(12), Version: 3})
	stop()
	if err != nil {
		t.Fatal(err)
	}
	if ev.Greedy.Rate != 1 || ev.Greedy.Rollouts != 12 || ev.Sampled.Rate < 0.8 || len(ev.Lines) != 24 {
		t.Errorf("got %+v", ev)
	}
	eps, err := st.Endpoints(t.Context(), "r", "m")
	if err != nil || len(eps) != 1 || eps[0].Version != 3 {
		t.Errorf("endpoints %v, %v", eps, err)
	}
}

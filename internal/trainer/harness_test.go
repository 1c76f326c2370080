package trainer

import (
	"context"
	"encoding/json"
	"fmt"
	"path/filepath"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/fulgur-rl/fulgur"
	"github.com/fulgur-rl/fulgur/internal/engine"
	"github.com/fulgur-rl/fulgur/internal/store"
	"github.com/fulgur-rl/fulgur/internal/store/sqlite"
	"github.com/fulgur-rl/fulgur/internal/trainer/data"
	"github.com/fulgur-rl/fulgur/internal/trainer/schedule"
)

// The task: a row says a number n below tasks; the agent's first answer must be
// the token n+tasks. Tokens: 0..tasks-1 questions, tasks..2*tasks-1 answers, the
// rest observations.
const (
	tasks = 6
	vocab = 2*tasks + 2
)

type question struct {
	N int `json:"n"`
}

func rows(n int) []data.Row {
	out := make([]data.Row, n)
	for i := range out {
		out[i] = data.Row{Index: i, Input: json.RawMessage(fmt.Sprintf(`{"n":%d}`, i%tasks))}
	}
	return out
}

// firstAnswer grades the first sampled token of the record.
type firstAnswer struct{}

func (firstAnswer) Grade(input json.RawMessage, calls []fulgur.Call) (float64, string, error) {
	var q question
	if err := json.Unmarshal(input, &q); err != nil {
		return 0, "", err
	}
	if len(calls) == 0 || len(calls[0].SampledIDs) == 0 {
		return 0, "no answer", nil
	}
	if calls[0].SampledIDs[0] == int32(q.N+tasks) {
		return 1, "right", nil
	}
	return 0, "wrong", nil
}

// agents is a controller in miniature over the real store: it opens attempts of
// queued rollouts and runs agents of two model calls each.
type agents struct {
	st    *store.Store
	gen   engine.Generator
	slots int
	// fail, if set, says how an attempt ends in place of running.
	fail func(r fulgur.Rollout, attempt fulgur.AttemptID) *fulgur.AttemptReport
	// experts, if set, are the routed experts of a call.
	experts func(c *fulgur.Call) json.RawMessage
}

func (a *agents) run(ctx context.Context, t testing.TB) {
	var wg sync.WaitGroup
	defer wg.Wait()
	work := make(chan fulgur.RolloutID)
	defer close(work)
	for range a.slots {
		wg.Go(func() {
			for id := range work {
				if err := a.attempt(ctx, id); err != nil && ctx.Err() == nil && fulgur.KindOf(err) != fulgur.KindConflict && fulgur.KindOf(err) != fulgur.KindGone {
					t.Errorf("running %s: %v", id, err)
				}
			}
		})
	}
	taken := map[fulgur.RolloutID]bool{}
	for {
		seq, err := a.st.Head(ctx)
		if err != nil {
			return
		}
		open, err := a.st.Rollouts(ctx, fulgur.RolloutQuery{Run: "r", States: []fulgur.RolloutState{fulgur.Queuing, fulgur.Running}, Limit: 10000})
		if err != nil {
			return
		}
		for _, r := range open {
			if !taken[r.ID] {
				taken[r.ID] = true
				select {
				case work <- r.ID:
				case <-ctx.Done():
					return
				}
			}
		}
		if _, err := a.st.Changes(ctx, "r", seq); err != nil {
			return
		}
	}
}

func (a *agents) attempt(ctx context.Context, id fulgur.RolloutID) error {
	// What an earlier process left running is over: a new attempt.
	if all, err := a.st.Attempts(ctx, id); err == nil && len(all) > 0 && all[len(all)-1].Phase != fulgur.PhaseEnded {
		_, err := a.st.ReportAttempt(ctx, id, all[len(all)-1].ID, fulgur.AttemptReport{Phase: fulgur.PhaseEnded, Retry: true,
			Outcome: &fulgur.Outcome{Class: fulgur.OutcomeInfrastructure, Reason: "lost"}})
		if err != nil {
			return err
		}
	}
	for {
		at, err := a.st.OpenAttempt(ctx, id)
		if err != nil {
			return err
		}
		r, err := a.st.ReportAttempt(ctx, id, at.ID, fulgur.AttemptReport{Phase: fulgur.PhaseRunning})
		if err != nil {
			return err
		}
		report := fulgur.AttemptReport{Phase: fulgur.PhaseEnded, Outcome: &fulgur.Outcome{Class: fulgur.OutcomeOK, Reason: "exit"}}
		if a.fail != nil {
			if bad := a.fail(r, at.ID); bad != nil {
				report = *bad
			}
		}
		if report.Outcome.Class == fulgur.OutcomeOK {
			if err := a.converse(ctx, r, at.ID); err != nil {
				return err
			}
		}
		if _, err := a.st.ReportAttempt(ctx, id, at.ID, report); err != nil || !report.Retry {
			return err
		}
	}
}

func (a *agents) converse(ctx context.Context, r fulgur.Rollout, at fulgur.AttemptID) error {
	var q question
	if err := json.Unmarshal(r.Input, &q); err != nil {
		return err
	}
	attempt, _ := strconv.Atoi(string(at))
	prompt := []int32{int32(q.N)}
	for i := range 2 {
		g, err := a.gen.Generate(ctx, engine.GenerateRequest{Prompt: prompt, MaxTokens: 2 - i, Temperature: r.Sampling.Temperature,
			Seed: schedule.Mix(schedule.Mix(r.Seed, uint64(attempt)), uint64(i))}, nil)
		if err != nil {
			return err
		}
		c := fulgur.Call{ID: fulgur.CallID(fmt.Sprintf("%s/%s/%d", r.ID, at, i)), Run: r.Run, Rollout: r.ID, Attempt: at, Index: i,
			Mode: fulgur.ModeTrain, PromptIDs: prompt, Trainable: r.IsTrain, HTTPStatus: 200, Fate: fulgur.FateDelivered, StartedAt: time.Unix(1, 0)}
		if !r.IsTrain {
			c.Mode, c.Untrainable = fulgur.ModeVal, []string{fulgur.UntrainableMode}
		}
		for _, token := range g.Tokens {
			c.SampledIDs = append(c.SampledIDs, token.ID)
			c.LogProbs = append(c.LogProbs, token.LogProb)
		}
		c.Spans = []fulgur.Span{{Start: 0, Version: g.Tokens[0].Version}}
		if a.experts != nil {
			c.RoutedExperts = a.experts(&c)
		}
		if err := a.st.AppendCall(ctx, &c); err != nil {
			return err
		}
		prompt = append(append(append([]int32(nil), prompt...), c.SampledIDs...), vocab-1) // an observation
	}
	return nil
}

func openStore(t testing.TB, dir string) *store.Store {
	t.Helper()
	st, err := store.Open(t.Context(), sqlite.New(filepath.Join(dir, "store.db"), sqlite.Options{}), store.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { st.Close() })
	return st
}

// options of a small run in dir.
func options(dir string, st Store, e engine.Engine) Options {
	return Options{Run: "r", Model: "m", Dir: dir, Seed: 7, Store: st, Engine: e, Grader: firstAnswer{},
		ConfigHash: "config", Train: data.Set{Hash: "data", Rows: rows(13)}, Validation: rows(6), Test: rows(12),
		Steps: 8, GroupSize: 4, GroupsPerStep: 3, Minibatches: 2, Estimator: "grpo",
		Loss: engine.Loss{Name: engine.PPO, ClipLow: 0.2, ClipHigh: 0.28}, Adam: engine.AdamW{Beta1: 0.9, Beta2: 0.98, Eps: 1e-8, ClipNorm: 1},
		LearningRate: LearningRate{Start: 0.6, End: 0.1, Over: 40}, Sampling: fulgur.Sampling{Temperature: 1, MaxTokens: 2},
		ValidateEvery: 4, CheckpointEvery: 3, Keep: 2}
}

// start runs agents until the function that it returns is called.
func (a *agents) start(ctx context.Context, t testing.TB) (stop func()) {
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	var wg sync.WaitGroup
	wg.Go(func() { a.run(ctx, t) })
	return func() {
		cancel()
		wg.Wait()
	}
}

// train runs agents and the trainer until the trainer returns.
func train(t testing.TB, ctx context.Context, o Options, a *agents) (Result, error) {
	t.Helper()
	defer a.start(ctx, t)()
	return Run(ctx, o)
}

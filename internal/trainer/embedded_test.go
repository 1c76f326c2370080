package trainer

import (
	"context"
	"crypto/sha256"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"github.com/fulgur-rl/fulgur"
	"github.com/fulgur-rl/fulgur/internal/engine"
	"github.com/fulgur-rl/fulgur/internal/engine/embedded"
	"github.com/fulgur-rl/fulgur/internal/engine/weights"
	"github.com/fulgur-rl/fulgur/internal/trainer/advantage"
	"github.com/fulgur-rl/fulgur/internal/trainer/loss"
	"github.com/fulgur-rl/fulgur/internal/trainer/sample"
	"github.com/fulgur-rl/fulgur/internal/trainer/schedule"
)

func tinyModel(t *testing.T) *embedded.Engine {
	t.Helper()
	e, err := embedded.New(weights.Config{ModelType: "llama", HiddenSize: 32, Intermediate: 64,
		Layers: 2, Heads: 2, KVHeads: 1, HeadDim: 16, VocabSize: vocab, MaxPositions: 64, NormEps: 1e-5, RopeTheta: 10000, Tied: true}, 5, embedded.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { e.Close() })
	return e
}

// TestEmbeddedEngineLearnsAndResumes runs the loop on the engine of the product:
// the reward goes up, sampler and trainer agree, and a run that is stopped and
// resumed ends with the same bytes.
func TestEmbeddedEngineLearnsAndResumes(t *testing.T) {
	if testing.Short() {
		t.Skip("trains two small models")
	}
	settings := func(o Options) Options {
		o.Steps, o.GroupSize, o.GroupsPerStep, o.ValidateEvery, o.Test = 24, 6, 4, 12, rows(36)
		o.LearningRate = LearningRate{Start: 5e-3}
		if raceDetector {
			o.Steps, o.ValidateEvery, o.Test = 5, 2, rows(6)
		}
		return o
	}
	sum := func(dir string) [32]byte {
		path, _, err := Last(dir)
		if err != nil {
			t.Fatal(err)
		}
		raw, err := os.ReadFile(filepath.Join(path, weights.ModelFile))
		if err != nil {
			t.Fatal(err)
		}
		return sha256.Sum256(raw)
	}
	whole := t.TempDir()
	st, e := openStore(t, whole), tinyModel(t)
	o := settings(options(whole, st, e))
	o.Observer = func(ev Event) {
		if w, ok := ev.(Warning); ok && w.Code == "sampler_difference" {
			t.Error(w.Message)
		}
	}
	r, err := train(t, t.Context(), o, &agents{st: st, gen: e, slots: 2})
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("pass@1 %.2f → %.2f, greedy %.2f → %.2f, %d updates, %v", r.Before.Sampled.Rate, r.After.Sampled.Rate, r.Before.Greedy.Rate, r.After.Greedy.Rate, r.Updates, r.Timing)
	if !raceDetector && r.After.Sampled.Low <= r.Before.Sampled.High {
		t.Errorf("pass@1 went from %.2f to %.2f; the intervals overlap", r.Before.Sampled.Rate, r.After.Sampled.Rate)
	}

	broken := t.TempDir()
	st = openStore(t, broken)
	var g engine.Generator
	for _, stop := range []int64{2, 4, -1} {
		e := tinyModel(t)
		g = e
		o := settings(options(broken, st, e))
		o.Resume = true
		ctx, cancel := context.WithCancel(t.Context())
		o.Observer = func(ev Event) {
			if p, ok := ev.(Progress); ok && p.Part == "train" && p.Step == stop && p.Done == 9 {
				cancel()
			}
		}
		_, err := train(t, ctx, o, &agents{st: st, gen: g, slots: 2})
		cancel()
		if (err == nil) != (stop < 0) {
			t.Fatalf("stop at %d: %v", stop, err)
		}
	}
	if sum(whole) != sum(broken) {
		t.Error("the resumed run's weights differ from the undisturbed one's")
	}
}

// TestEachLossLearnsOnTheEmbeddedEngine takes the losses through the engine of the
// product: those that it computes, and those that go by log probs and a signed
// cross entropy.
func TestEachLossLearnsOnTheEmbeddedEngine(t *testing.T) {
	for name, settle := range map[string]func(*Options){
		"ppo":                     func(*Options) {},
		"ppo, dual clip, KL":      func(o *Options) { o.Objective.DualClip, o.Objective.KL = 3, KL{Coefficient: 0.001, Kind: "k3"} },
		engine.ImportanceSampling: func(o *Options) { o.Loss.Name = engine.ImportanceSampling },
		engine.CISPO:              func(o *Options) { o.Loss.Name = engine.CISPO },
		loss.GSPO:                 func(o *Options) { o.Loss.Name = loss.GSPO },
		"dro and a constant": func(o *Options) {
			o.Loss.Name, o.Objective.Beta, o.Objective.Aggregate, o.Objective.Constant = loss.DRO, 0.01, loss.ByConstant, 2
		},
	} {
		t.Run(name, func(t *testing.T) {
			e := tinyModel(t)
			o := Options{Engine: e, Seed: 3, GroupSize: 8, GroupsPerStep: tasks, Minibatches: 2, Estimator: advantage.GRPO, Steps: 1,
				Loss: engine.Loss{Name: engine.PPO, ClipLow: 0.2, ClipHigh: 0.28}, Adam: engine.AdamW{Beta1: 0.9, Beta2: 0.98, Eps: 1e-8, ClipNorm: 1}, LearningRate: LearningRate{Start: 1e-2}}
			settle(&o)
			if err := o.fill(); err != nil {
				t.Fatal(err)
			}
			tr := &trainer{o: o, maxTokens: 64}
			if err := e.Freeze(t.Context()); err != nil {
				t.Fatal(err)
			}
			rates := make([]float64, 20)
			for step := range rates {
				rates[step] = embeddedStep(t, tr, e, int64(step))
			}
			first, last := (rates[0]+rates[1])/2, (rates[18]+rates[19])/2
			t.Logf("%.2f → %.2f", first, last)
			if last < first+0.2 {
				t.Errorf("the pass rate went from %.2f to %.2f", first, last)
			}
		})
	}
}

// embeddedStep samples a step's rollouts of one call each and updates; it returns
// the pass rate.
func embeddedStep(t *testing.T, tr *trainer, e *embedded.Engine, step int64) float64 {
	t.Helper()
	if _, err := e.Publish(t.Context(), fulgur.PolicyVersion(step)); err != nil {
		t.Fatal(err)
	}
	all := make([]ended, tasks*tr.o.GroupSize)
	var wg sync.WaitGroup
	for i := range all {
		wg.Go(func() {
			n := i % tasks
			prompt := []int32{int32(n)}
			g, err := e.Generate(t.Context(), engine.GenerateRequest{Prompt: prompt, MaxTokens: 2, Temperature: 1, Seed: schedule.Mix(uint64(step), uint64(i))}, nil)
			if err != nil {
				t.Error(err)
				return
			}
			c := fulgur.Call{ID: fulgur.CallID(fmt.Sprint(step, i)), PromptIDs: prompt, Trainable: true, HTTPStatus: 200, Spans: []fulgur.Span{{Version: g.Tokens[0].Version}}}
			for _, token := range g.Tokens {
				c.SampledIDs, c.LogProbs = append(c.SampledIDs, token.ID), append(c.LogProbs, token.LogProb)
			}
			reward := 0.0
			if c.SampledIDs[0] == int32(n+tasks) {
				reward = 1
			}
			b := sample.Build(fulgur.GroupID(fmt.Sprint(n)), []fulgur.Call{c}, sample.Options{})
			all[i] = ended{built: b, line: RolloutLine{ID: fulgur.RolloutID(fmt.Sprint(i)), Group: fulgur.GroupID(fmt.Sprint(n)), Class: fulgur.OutcomeOK,
				Reward: &reward, Sampled: b.Sampled, Trained: b.Trained}}
		})
	}
	wg.Wait()
	tr.state.Version = fulgur.PolicyVersion(step)
	m := measured{values: map[string]float64{}}
	_, batches, err := tr.batches(t.Context(), step+1, all, &m)
	if err == nil {
		err = tr.prepare(t.Context(), step+1, batches, &m)
	}
	for i := range batches {
		if err == nil && len(batches[i].data) > 0 {
			err = tr.update(t.Context(), step+1, &batches[i], &m)
		}
	}
	if err != nil {
		t.Fatal(err)
	}
	passed := 0.0
	for i := range all {
		passed += *all[i].line.Reward
	}
	return passed / float64(len(all))
}

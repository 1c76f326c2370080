package trainer

import (
	"context"
	"crypto/sha256"
	"os"
	"path/filepath"
	"testing"

	"github.com/fulgur-rl/fulgur/internal/engine"
	"github.com/fulgur-rl/fulgur/internal/engine/embedded"
	"github.com/fulgur-rl/fulgur/internal/engine/weights"
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

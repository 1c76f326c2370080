package embedded

import (
	"context"
	"errors"
	"io/fs"
	"math"
	"os"
	"slices"
	"testing"

	"github.com/fulgur-rl/fulgur/internal/engine"
	"github.com/fulgur-rl/fulgur/internal/engine/embedded/kernel"
	"github.com/fulgur-rl/fulgur/internal/engine/weights"
	"github.com/fulgur-rl/fulgur/internal/goldentest"
)

type goldenStats struct {
	Sum    float64   `json:"sum"`
	Norm   float64   `json:"norm"`
	First4 []float64 `json:"first4"`
	Last4  []float64 `json:"last4"`
}

type golden struct {
	Sequences []struct {
		IDs      []int32    `json:"ids"`
		Weights  []float32  `json:"weights"`
		LogProbs []*float64 `json:"logprobs_f64"`
	} `json:"sequences"`
	Logits [][]float64 `json:"logits_seq1_f64"`
	Greedy struct {
		IDs     []int32   `json:"ids"`
		Margins []float64 `json:"margins"`
	} `json:"greedy_after_seq1"`
	Objective float64 `json:"objective_f64"`
	Grad      struct {
		Norm    float64                `json:"norm_all"`
		Tensors map[string]goldenStats `json:"tensors"`
	} `json:"grad_f64"`
	AdamW []struct {
		LR          float64                `json:"lr"`
		Betas       [2]float64             `json:"betas"`
		Eps         float64                `json:"eps"`
		WeightDecay float64                `json:"weight_decay"`
		Clip        float64                `json:"clip"`
		GradNorms   []float64              `json:"grad_norms_f64"`
		Objectives  []float64              `json:"objectives_f64"`
		Objective3  float64                `json:"objective_after3_f64"`
		After1      map[string]goldenStats `json:"after1_f64"`
		After3      map[string]goldenStats `json:"after3_f64"`
		MaxAbs1     float64                `json:"max_abs_f32_f64_after1"`
		MaxAbs3     float64                `json:"max_abs_f32_f64_after3"`
	} `json:"adamw"`
}

func (g *golden) data() []engine.Datum {
	var data []engine.Datum
	for _, s := range g.Sequences {
		n := len(s.IDs) - 1
		d := engine.Datum{Tokens: s.IDs[:n], Targets: s.IDs[1:], Advantages: make([]float32, n), Mask: make([]float32, n)}
		for i, w := range s.Weights[1:] {
			if d.Advantages[i] = w; w != 0 {
				d.Mask[i] = 1
			} else {
				d.Advantages[i] = float32(math.NaN()) // must not be computed with
			}
		}
		data = append(data, d)
	}
	return data
}

func openGolden(t *testing.T, dir, kernels string) *Engine {
	t.Helper()
	e, err := Open(os.DirFS(dir), Options{Kernels: kernels})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { e.Close() })
	return e
}

// TestGoldenEngine compares every variant with PyTorch, on every kernel set of
// this CPU; the tolerances are those of the data's README.
func TestGoldenEngine(t *testing.T) {
	for _, variant := range goldentest.Folders(t, "engine") {
		dir := goldentest.Path(t, "engine", variant)
		var g golden
		goldentest.Load(t, &g, "engine", variant, "golden.json")
		for _, k := range kernel.Available() {
			t.Run(variant+"/"+k.Name(), func(t *testing.T) {
				e := openGolden(t, dir, k.Name())
				goldenForward(t, e, &g)
				goldenGreedy(t, e, &g)
				goldenGradient(t, e, &g, dir)
				for i := range g.AdamW {
					goldenAdamW(t, openGolden(t, dir, k.Name()), &g, i, dir)
				}
			})
		}
	}
}

func goldenForward(t *testing.T, e *Engine, g *golden) {
	lps, err := e.Forward(context.Background(), g.data())
	if err != nil {
		t.Fatal(err)
	}
	tol := goldentest.Tolerance{Abs: 1e-5}
	for i, s := range g.Sequences {
		for j, want := range s.LogProbs[1:] {
			tol.Check(t, "log prob", float64(lps[i][j]), *want)
		}
	}
	// Logits: through the worker, as the losses see them.
	w := newWorker(e.train)
	ids := g.Sequences[1].IDs
	w.reserve(len(ids), len(ids))
	w.forward(ids, []segment{{0, len(ids)}})
	m := e.train
	logits := make([]float32, m.VocabSize)
	for i, want := range g.Logits {
		m.k.Gemm(1, m.VocabSize, m.HiddenSize, w.xnf[i*m.HiddenSize:], 0, 1, m.headPack.fwd, m.HiddenSize, logits, m.VocabSize, false)
		for j, v := range want {
			goldentest.Tolerance{Abs: 2e-5, Rel: 1e-5}.Check(t, "logit", float64(logits[j]), v)
		}
	}
}

func goldenGreedy(t *testing.T, e *Engine, g *golden) {
	got, err := e.Generate(context.Background(), engine.GenerateRequest{Prompt: g.Sequences[1].IDs, MaxTokens: len(g.Greedy.IDs)}, nil)
	if err != nil {
		t.Fatal(err)
	}
	for i, want := range g.Greedy.IDs {
		if g.Greedy.Margins[i] < 1e-3 {
			t.Logf("token %d: margin of %g is a near tie, not compared from here", i, g.Greedy.Margins[i])
			break
		}
		if got.Tokens[i].ID != want {
			t.Fatalf("greedy token %d: got %d, want %d (margin %g)", i, got.Tokens[i].ID, want, g.Greedy.Margins[i])
		}
	}
}

func goldenGradient(t *testing.T, e *Engine, g *golden, dir string) {
	res, err := e.ForwardBackward(context.Background(), g.data(), engine.Loss{Name: engine.CrossEntropy})
	if err != nil {
		t.Fatal(err)
	}
	goldentest.Tolerance{Rel: 1e-5}.Check(t, "objective", -res.Loss, g.Objective)
	norm, err := e.gradNorm(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	goldentest.Tolerance{Rel: 1e-5}.Check(t, "gradient norm", norm, g.Grad.Norm)
	want, _, err := weights.ReadFile(os.DirFS(dir), "grads.safetensors")
	if err != nil {
		t.Fatal(err)
	}
	for _, got := range e.layout.split("", e.grad) {
		x, err := want.Take(got.Name, got.Shape...)
		if err != nil {
			t.Fatal(err)
		}
		var diff, size float64
		for i, v := range x { // the data is of the objective, ours of the loss
			diff += math.Pow(float64(v)+float64(got.Data[i]), 2)
			size += float64(v) * float64(v)
		}
		if !(math.Sqrt(diff) <= 1e-5*math.Sqrt(size)) {
			t.Errorf("gradient of %s: off by %.3g of its norm", got.Name, math.Sqrt(diff/size))
		}
	}
}

// tossUps counts the weights whose gradient is smaller than float32's error in
// it. Adam's first step moves a weight by the learning rate whatever its
// gradient's size, so the sign of such a one is luck, in PyTorch's float32 too, and
// what follows from it differs. Gradients that are exactly 0 are safe.
func tossUps(t *testing.T, e *Engine, dir string) map[string]int {
	t.Helper()
	grads, _, err := weights.ReadFile(os.DirFS(dir), "grads.safetensors")
	if err != nil {
		t.Fatal(err)
	}
	n := map[string]int{}
	for _, x := range grads {
		var sum float64
		for _, v := range x.Data {
			sum += float64(v) * float64(v)
		}
		typical := math.Sqrt(sum / float64(len(x.Data)))
		for _, v := range x.Data {
			if v != 0 && math.Abs(float64(v)) < 5e-6*typical {
				n[x.Name]++
				n[""]++
			}
		}
	}
	return n
}

func goldenAdamW(t *testing.T, e *Engine, g *golden, i int, dir string) {
	ctx, a := context.Background(), g.AdamW[i]
	luck := tossUps(t, e, dir)
	wide := 1.0
	if luck[""] > 0 {
		wide = 10
		t.Logf("weights whose sign is luck: %v", luck)
	}
	for step := range 4 {
		res, err := e.ForwardBackward(ctx, g.data(), engine.Loss{Name: engine.CrossEntropy})
		if err != nil {
			t.Fatal(err)
		}
		if step == 3 {
			goldentest.Tolerance{Rel: 2e-5 * wide}.Check(t, "objective after 3 steps", -res.Loss, a.Objective3)
			break
		}
		goldentest.Tolerance{Rel: 2e-5 * wide}.Check(t, "objective", -res.Loss, a.Objectives[step])
		s, err := e.OptimStep(ctx, engine.AdamW{LearningRate: a.LR, Beta1: a.Betas[0], Beta2: a.Betas[1], Eps: a.Eps, WeightDecay: a.WeightDecay, ClipNorm: a.Clip})
		if err != nil {
			t.Fatal(err)
		}
		rel := 2e-4 * wide
		if step == 0 {
			rel = 1e-5
			checkStats(t, e, a.After1, max(10*a.MaxAbs1, (wide-1)/50*a.LR), a.LR, luck)
		}
		goldentest.Tolerance{Rel: rel}.Check(t, "gradient norm", s.GradNorm, a.GradNorms[step])
	}
	maxAbs := max(10*a.MaxAbs3, (wide-1)/50*a.LR)
	checkStats(t, e, a.After3, maxAbs, 3*a.LR, luck)
	after, _, err := weights.ReadFile(os.DirFS(dir), "after3.safetensors")
	if errors.Is(err, fs.ErrNotExist) || a.Eps != 1e-8 || a.WeightDecay != 0.1 {
		return // the file is an optional part, and of this setting
	}
	if err != nil {
		t.Fatal(err)
	}
	for _, got := range e.layout.split("", e.train.w) {
		x, err := after.Take(got.Name, got.Shape...)
		if err != nil {
			t.Fatal(err)
		}
		for j, v := range x {
			goldentest.Tolerance{Abs: maxAbs}.Check(t, "weight of "+got.Name, float64(got.Data[j]), float64(v))
		}
	}
}

func checkStats(t *testing.T, e *Engine, want map[string]goldenStats, maxAbs, moved float64, luck map[string]int) {
	t.Helper()
	for _, x := range e.layout.split("", e.train.w) {
		w, ok := want[x.Name]
		if !ok {
			t.Errorf("no golden statistics of %s", x.Name)
			continue
		}
		var sum, norm, size float64
		for _, v := range x.Data {
			sum += float64(v)
			norm += float64(v) * float64(v)
			size += math.Abs(float64(v))
		}
		goldentest.Tolerance{Rel: 1e-4}.Check(t, "norm of "+x.Name, math.Sqrt(norm), w.Norm)
		goldentest.Tolerance{Abs: 1e-4*size + 2*moved*float64(luck[x.Name])}.Check(t, "sum of "+x.Name, sum, w.Sum)
		n := len(x.Data)
		got := slices.Concat(x.Data[:4], x.Data[n-4:])
		for i, v := range slices.Concat(w.First4, w.Last4) {
			goldentest.Tolerance{Abs: maxAbs}.Check(t, "an element of "+x.Name, float64(got[i]), v)
		}
	}
}

package embedded

import (
	"context"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/fulgur-rl/fulgur/internal/engine"
	"github.com/fulgur-rl/fulgur/internal/engine/embedded/kernel"
	"github.com/fulgur-rl/fulgur/internal/goldentest"
	"github.com/fulgur-rl/fulgur/internal/trainer/loss"
)

// TestGoldenTinkerLossesOfTheEngine: each position's part of the loss is that of
// another Tinker server, whose clip bounds are ratios; ours are epsilons.
func TestGoldenTinkerLossesOfTheEngine(t *testing.T) {
	type num = goldentest.Float
	type in struct {
		Name       string `json:"loss_fn"`
		LogProbs   []num  `json:"log_probs"`
		Old        []num  `json:"logprobs"`
		Weights    []num  `json:"weights"`
		Advantages []num  `json:"advantages"`
		Config     struct {
			Low  float64 `json:"clip_low_threshold"`
			High float64 `json:"clip_high_threshold"`
		} `json:"loss_fn_config"`
	}
	type out struct {
		Sum  num   `json:"sum"`
		Grad []num `json:"grad_of_sum"`
	}
	for _, c := range goldentest.Cases[in, out](t, "tinker-loss.json") {
		t.Run(c.Name, func(t *testing.T) {
			l := engine.Loss{Name: c.Input.Name, ClipLow: 1 - c.Input.Config.Low, ClipHigh: c.Input.Config.High - 1}
			if err := checkLoss(l); err != nil {
				t.Fatal(err)
			}
			sum := 0.0
			for i, m := range c.Input.Weights {
				if m == 0 {
					continue // never computed with
				}
				adv := float64(m)
				if l.Name != engine.CrossEntropy { // its weights are the advantages
					adv *= float64(c.Input.Advantages[i])
				}
				term := termOf(l, float64(c.Input.LogProbs[i]), float64(c.Input.Old[i]), adv)
				sum += term.loss
				if want := float64(c.Output.Grad[i]); !c.Tolerance.Near(-term.coeff, want) {
					t.Errorf("gradient %d: got %g, want %g", i, -term.coeff, want)
				}
			}
			if !c.Tolerance.Near(sum, float64(c.Output.Sum)) {
				t.Errorf("sum: got %g, want %g", sum, c.Output.Sum)
			}
		})
	}
}

// What the engine has no loss for goes by Forward, the derivative by log prob,
// and a signed cross entropy. For the losses that it has, both ways are equal.
func TestBothWaysOfALossAreEqual(t *testing.T) {
	ctx, data := context.Background(), randomData(21, 5, 101)
	for _, k := range kernel.Available() {
		for _, name := range lossNames {
			t.Run(name+"/"+k.Name(), func(t *testing.T) {
				e := newSmall(t, Options{Kernels: k.Name()})
				direct, err := e.ForwardBackward(ctx, data, engine.Loss{Name: name, ClipLow: .2, ClipHigh: .28})
				if err != nil {
					t.Fatal(err)
				}
				want := slices.Clone(e.grad)
				clear(e.grad)
				lps, err := e.Forward(ctx, data)
				if err != nil {
					t.Fatal(err)
				}
				signed, sum := slices.Clone(data), 0.0
				for i, d := range data {
					s, grad, err := loss.Sequence(name, wide(lps[i]), wide(d.OldLogProbs), wide(d.Advantages), wide(d.Mask), loss.Clip{Low: .2, High: .28})
					if err != nil {
						t.Fatal(err)
					}
					sum += s
					signed[i].Advantages = make([]float32, len(grad))
					for j, g := range grad {
						signed[i].Advantages[j] = float32(-g)
					}
				}
				if math.Abs(sum-direct.Loss) > 1e-5*math.Abs(sum) {
					t.Errorf("loss %g, the trainer's arithmetic gives %g", direct.Loss, sum)
				}
				if _, err := e.ForwardBackward(ctx, signed, engine.Loss{Name: engine.CrossEntropy}); err != nil {
					t.Fatal(err)
				}
				var diff, size float64
				for i, g := range e.grad {
					diff += math.Pow(float64(g-want[i]), 2)
					size += math.Pow(float64(want[i]), 2)
				}
				if size == 0 || math.Sqrt(diff/size) > 1e-6 {
					t.Errorf("gradients differ by %g of their norm", math.Sqrt(diff/size))
				}
			})
		}
	}
}

func wide(x []float32) []float64 {
	out := make([]float64, len(x))
	for i, v := range x {
		out[i] = float64(v)
	}
	return out
}

// AL-06: the same rows in micro-batches of 1, 2 or all, in any order, over any
// number of workers ("ranks" are calls whose gradients add up) give one gradient,
// with every token NaN that is not trained.
func TestAGradientDoesNotDependOnMicroBatches(t *testing.T) {
	r := rand.New(rand.NewPCG(2, 3))
	var data []engine.Datum
	nan := float32(math.NaN())
	for _, n := range []int{10, 100, 300, 1, 57} {
		d := engine.Datum{Tokens: randomIDs(r, n, 101), Targets: randomIDs(r, n, 101)}
		for j := range n {
			on := float32(1)
			if j%3 == 1 {
				on = 0
			}
			d.Mask, d.Advantages, d.OldLogProbs = append(d.Mask, on), append(d.Advantages, float32(r.NormFloat64())/100), append(d.OldLogProbs, -4.6)
			if on == 0 {
				d.Advantages[j], d.OldLogProbs[j] = nan, nan
			}
		}
		data = append(data, d)
	}
	var want []float32
	var loss float64
	for _, c := range []struct{ part, threads int }{{5, 1}, {1, 1}, {2, 2}, {3, 3}, {5, 4}} {
		cfg := smallConfig()
		cfg.MaxPositions = 512
		e, err := New(cfg, 7, Options{Threads: c.threads})
		if err != nil {
			t.Fatal(err)
		}
		sum := 0.0
		for part := range slices.Chunk(data, c.part) {
			part = slices.Clone(part)
			if c.threads > 1 {
				slices.Reverse(part)
			}
			res, err := e.ForwardBackward(t.Context(), part, engine.Loss{Name: engine.PPO, ClipLow: .2, ClipHigh: .28})
			if err != nil {
				t.Fatal(err)
			}
			sum += res.Loss
		}
		if want == nil {
			want, loss = slices.Clone(e.grad), sum
		}
		diff, size := 0.0, 0.0
		for i, g := range e.grad {
			diff += float64(g-want[i]) * float64(g-want[i])
			size += float64(want[i]) * float64(want[i])
		}
		if !(math.Sqrt(diff) <= 1e-6*math.Sqrt(size)) || math.Abs(sum-loss) > 1e-6*math.Abs(loss) {
			t.Errorf("%+v: the gradient differs by %g of its norm, the loss is %g, want %g", c, math.Sqrt(diff/size), sum, loss)
		}
		if err := e.Close(); err != nil {
			t.Error(err)
		}
	}
}

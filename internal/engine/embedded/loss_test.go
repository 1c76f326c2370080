package embedded

import (
	"context"
	"math"
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

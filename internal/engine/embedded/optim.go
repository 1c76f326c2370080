package embedded

import (
	"context"
	"fmt"
	"math"
	"slices"

	"github.com/fulgur-rl/fulgur"
	"github.com/fulgur-rl/fulgur/internal/engine"
	"github.com/fulgur-rl/fulgur/internal/engine/embedded/kernel"
)

// OptimStep implements engine.Engine: AdamW (Loshchilov and Hutter 2019) as
// PyTorch computes it, clipping as torch.nn.utils.clip_grad_norm_ does.
func (e *Engine) OptimStep(ctx context.Context, p engine.AdamW) (engine.Step, error) {
	for _, v := range []float64{p.LearningRate, p.Beta1, p.Beta2, p.Eps, p.WeightDecay, p.ClipNorm} {
		if !(v >= 0) || math.IsInf(v, 0) || p.Beta1 >= 1 || p.Beta2 >= 1 {
			return engine.Step{}, fulgur.E(fulgur.KindInvalid, "optimizer step", fmt.Sprintf("parameters %+v: all must be 0 or more, betas below 1", p), nil)
		}
	}
	if err := ctx.Err(); err != nil {
		return engine.Step{}, fulgur.E(fulgur.KindCanceled, "optimizer step", "stopped before it began", err)
	}
	ctx = context.WithoutCancel(ctx) // all of the step or nothing of it
	norm, err := e.gradNorm(ctx)
	if err != nil {
		return engine.Step{}, err
	}
	if math.IsNaN(norm) || math.IsInf(norm, 0) {
		clear(e.grad)
		return engine.Step{}, fulgur.E(fulgur.KindInternal, "optimizer step",
			fmt.Sprintf("the gradient's norm is %g: the step was left out and no weight changed; lower the learning rate or look at the data", norm), nil)
	}
	c := kernel.AdamStep{Clip: 1, Beta1: float32(p.Beta1), OneMinus1: float32(1 - p.Beta1), Beta2: float32(p.Beta2), OneMinus2: float32(1 - p.Beta2),
		Eps: float32(p.Eps), Keep: float32(1 - p.LearningRate*p.WeightDecay)}
	if p.ClipNorm > 0 {
		c.Clip = float32(min(1, p.ClipNorm/(norm+1e-6)))
	}
	e.step++
	c.Rate = float32(p.LearningRate / (1 - math.Pow(p.Beta1, float64(e.step))))
	c.Correction = float32(1 / math.Sqrt(1-math.Pow(p.Beta2, float64(e.step))))
	err = e.ranges(ctx, func(from, to int) {
		e.k.Adam(e.train.w[from:to], e.grad[from:to], e.m[from:to], e.v[from:to], &c)
		clear(e.grad[from:to])
	})
	if err != nil {
		return engine.Step{}, err
	}
	e.train.pack(true)
	return engine.Step{GradNorm: norm, Step: e.step}, nil
}

// gradNorm returns the gradient's norm: blocks in float32, their sum, in a fixed
// order, in float64.
func (e *Engine) gradNorm(ctx context.Context) (float64, error) {
	const block = 1 << 10
	sums := make([]float64, (e.layout.size+rangeSize-1)/rangeSize)
	err := e.ranges(ctx, func(from, to int) {
		for b := range slices.Chunk(e.grad[from:to], block) {
			sums[from/rangeSize] += float64(e.k.Dot(b, b))
		}
	})
	var sum float64
	for _, s := range sums {
		sum += s
	}
	return math.Sqrt(sum), err
}

// Publish implements engine.Engine: the training weights are copied, and the
// sampler's next step uses the copy.
func (e *Engine) Publish(_ context.Context, version fulgur.PolicyVersion) ([]fulgur.Endpoint, error) {
	e.sampled.Store(e.snapshot(version))
	return []fulgur.Endpoint{{Model: e.opt.Model, Kind: fulgur.EndpointTokens, URL: "inproc:", Version: version}}, nil
}

func (e *Engine) snapshot(version fulgur.PolicyVersion) *published {
	t := e.train
	m := newModel(t.layout, t.k, slices.Clone(t.w), t.cos, t.sin)
	m.pack(false)
	return &published{m, version}
}

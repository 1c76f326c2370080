// Package embedded is the engine in this binary: a decoder of the Llama family
// on the CPU, trained with exact gradients and sampled with continuous batching.
// Results do not depend on the number of threads, and a sampled token does not
// depend on what else is in the batch: design.md says how.
package embedded

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"math/rand/v2"
	"runtime"
	"sync"
	"sync/atomic"

	"github.com/fulgur-rl/fulgur"
	"github.com/fulgur-rl/fulgur/internal/engine"
	"github.com/fulgur-rl/fulgur/internal/engine/embedded/kernel"
	"github.com/fulgur-rl/fulgur/internal/engine/weights"
)

// Options of an engine. The zero value is good.
type Options struct {
	Model      string // name in Info and endpoints; "" is "embedded"
	Threads    int    // workers of training and of sampling; 0: one per CPU
	Kernels    string // "avx512", "avx2", "portable"; "": the best of this CPU
	Context    int    // longest sequence in tokens; 0: what the model says
	MaxRows    int    // tokens that one sampling step computes at most; 0: 256
	CacheBytes int64  // memory of the prefix cache; 0: 256 MiB
	Files      fs.FS  // folder whose tokenizer and chat template go along in Save; nil: the one that was opened
}

// Engine implements engine.Engine, engine.Generator and io.Closer.
type Engine struct {
	opt     Options
	layout  *layout
	k       kernel.Set
	extras  extras
	train   *model
	grad    []float32
	lanes   [][]float32
	m, v    []float32 // Adam's moments
	step    int64
	workers []*worker
	frozen  *model // the reference policy; nil: none

	sampled atomic.Pointer[published]
	gen     *generator
}

// published is a set of weights that is sampled; it never changes.
type published struct {
	*model
	version fulgur.PolicyVersion
}

var (
	_ engine.Engine    = (*Engine)(nil)
	_ engine.Generator = (*Engine)(nil)
)

// Open reads a Hugging Face model folder (config.json, model.safetensors), with
// the optimizer's state if it is there, and publishes the weights as version 0.
func Open(fsys fs.FS, opt Options) (*Engine, error) {
	c, err := weights.ReadConfig(fsys)
	if err != nil {
		return nil, err
	}
	t, _, err := weights.ReadFile(fsys, weights.ModelFile)
	if err != nil {
		return nil, err
	}
	if opt.Files == nil {
		opt.Files = fsys
	}
	e, err := build(c, featuresOf(t), opt)
	if err != nil {
		return nil, err
	}
	if err := errors.Join(e.load(fsys, t), e.extras.keepConfig(fsys)); err != nil {
		return nil, err
	}
	return e.start(), nil
}

// New makes a model of the given shape with random weights, which are a function
// of the seed. qkNorm and biases are off.
func New(c weights.Config, seed uint64, opt Options) (*Engine, error) {
	if err := c.Check(); err != nil {
		return nil, err
	}
	e, err := build(c, features{}, opt)
	if err != nil {
		return nil, err
	}
	e.randomise(seed)
	e.train.pack(true)
	return e.start(), nil
}

func build(c weights.Config, f features, opt Options) (*Engine, error) {
	k, err := kernel.Select(opt.Kernels)
	if err != nil {
		return nil, fulgur.E(fulgur.KindUnsupported, "opening the embedded engine", err.Error(), nil)
	}
	if opt.Model == "" {
		opt.Model = "embedded"
	}
	if opt.Threads <= 0 {
		opt.Threads = runtime.GOMAXPROCS(0)
	}
	if opt.MaxRows <= 0 {
		opt.MaxRows = 256
	}
	if opt.CacheBytes <= 0 {
		opt.CacheBytes = 256 << 20
	}
	x, err := readExtras(opt.Files, c)
	if err != nil {
		return nil, err
	}
	l := newLayout(c, f)
	if opt.Context > 0 {
		l.context = min(opt.Context, l.MaxPositions)
	}
	cos, sin := l.ropeTables()
	buf := func() []float32 { return make([]float32, l.size) }
	e := &Engine{opt: opt, layout: l, k: k, extras: x, train: newModel(l, k, buf(), cos, sin), grad: buf(), m: buf(), v: buf()}
	for range opt.Threads {
		e.workers = append(e.workers, newWorker(e.train))
	}
	return e, nil
}

// start publishes the first weights and starts the sampler.
func (e *Engine) start() *Engine {
	e.sampled.Store(e.snapshot(0))
	e.gen = newGenerator(e)
	return e
}

// Close ends the sampler: running generations end with KindUnavailable.
func (e *Engine) Close() error {
	e.gen.close()
	return nil
}

// randomise draws the start weights: normal, scaled by the width of what a matrix
// reads, and for those that write to the residual stream by its depth too.
func (e *Engine) randomise(seed uint64) {
	r := rand.New(rand.NewPCG(seed, 0x46756c677572))
	l, w := e.layout, e.train.w
	fill := func(m matrix, sd float64) {
		for i, x := 0, m.of(w); i < len(x); i++ {
			x[i] = float32(r.NormFloat64() * sd)
		}
	}
	ones := func(m matrix) {
		for i, x := 0, m.of(w); i < len(x); i++ {
			x[i] = 1
		}
	}
	depth := math.Sqrt(2 * float64(l.Layers))
	width := func(n int) float64 { return 1 / math.Sqrt(float64(n)) }
	fill(l.embed, 0.08)
	for _, y := range l.layers {
		ones(y.norm1)
		ones(y.norm2)
		fill(y.qkv, width(l.HiddenSize))
		fill(y.out, width(l.HiddenSize)/depth)
		fill(y.gateUp, width(l.HiddenSize))
		fill(y.down, width(l.Intermediate)/depth)
	}
	ones(l.norm)
	if !l.Tied {
		fill(l.head, 0.02)
	}
}

// Info describes the engine.
func (e *Engine) Info(context.Context) (engine.Info, error) {
	return engine.Info{Name: "embedded", Model: e.opt.Model, Parameters: e.layout.parameters, VocabSize: e.layout.VocabSize,
		ContextLength: e.layout.context, Kernels: e.k.Name(), Slow: !e.k.Vector(), Threads: e.opt.Threads,
		Losses: lossNames[:], Temperature1: true}, nil
}

// Forward implements engine.Engine.
func (e *Engine) Forward(ctx context.Context, data []engine.Datum) ([][]float32, error) {
	if err := e.check("forward", data, nil); err != nil {
		return nil, err
	}
	j := newJob(data)
	j.all = true
	length := make([]int, len(data))
	index := make([]int, len(data))
	for i := range data {
		index[i], length[i] = i, j.length(i)
	}
	chunks := makeChunks(index, length)
	err := e.parallel(ctx, len(chunks), func(w *worker, c int) error {
		w.run(j, chunks[c], nil)
		return nil
	})
	if err != nil {
		return nil, err
	}
	return j.out, nil
}

func newJob(data []engine.Datum) *job {
	j := &job{data: data, out: make([][]float32, len(data)), part: make([]partial, len(data))}
	for i, d := range data {
		j.out[i] = make([]float32, len(d.Targets))
	}
	return j
}

// ForwardBackward implements engine.Engine.
func (e *Engine) ForwardBackward(ctx context.Context, data []engine.Datum, loss engine.Loss) (engine.Result, error) {
	if err := checkLoss(loss); err != nil {
		return engine.Result{}, err
	}
	if err := e.check("forward-backward", data, &loss); err != nil {
		return engine.Result{}, err
	}
	j := newJob(data)
	j.loss = loss
	length := make([]int, len(data))
	var steep, flat []int // with and without a gradient
	for i := range data {
		length[i] = j.length(i)
		if j.flat(i) {
			flat = append(flat, i)
		} else {
			steep = append(steep, i)
		}
	}
	lanes := makeLanes(makeChunks(steep, length), length, lanesFor(e.layout.size))
	for len(e.lanes) < len(lanes) {
		e.lanes = append(e.lanes, make([]float32, e.layout.size))
	}
	rest := makeChunks(flat, length)
	err := e.parallel(ctx, len(lanes)+len(rest), func(w *worker, i int) error {
		if i >= len(lanes) {
			w.run(j, rest[i-len(lanes)], nil)
			return nil
		}
		clear(e.lanes[i])
		for _, c := range lanes[i] {
			if err := ctx.Err(); err != nil {
				return err
			}
			w.run(j, c, e.lanes[i])
		}
		return nil
	})
	if err != nil {
		return engine.Result{}, err
	}
	return j.result(), e.ranges(context.WithoutCancel(ctx), func(from, to int) {
		for _, lane := range e.lanes[:len(lanes)] {
			e.k.Axpy(e.grad[from:to], lane[from:to], 1)
		}
	})
}

func (j *job) result() engine.Result {
	r := engine.Result{LogProbs: j.out}
	for _, p := range j.part {
		r.Loss += p.loss
		r.KL += p.kl
		r.Entropy += p.entropy
		r.Tokens += p.tokens
		r.Clipped += p.clipped
	}
	return r
}

// parallel calls f for 0 ≤ i < n, each worker taking the next i, and returns the
// first error.
func (e *Engine) parallel(ctx context.Context, n int, f func(w *worker, i int) error) error {
	var next atomic.Int64
	var wg sync.WaitGroup
	errs := make([]error, len(e.workers))
	for t := range min(len(e.workers), n) {
		wg.Go(func() {
			for errs[t] == nil {
				i := int(next.Add(1)) - 1
				if i >= n {
					return
				}
				if errs[t] = ctx.Err(); errs[t] == nil {
					errs[t] = f(e.workers[t], i)
				}
			}
		})
	}
	wg.Wait()
	for _, err := range errs {
		if err != nil {
			return fulgur.E(fulgur.KindCanceled, "computing", "stopped before it was done; nothing was changed", err)
		}
	}
	return nil
}

// rangeSize is the number of parameters that are handled as one piece.
const rangeSize = 1 << 15

// ranges calls f for consecutive ranges of the flat vector, in parallel.
func (e *Engine) ranges(ctx context.Context, f func(from, to int)) error {
	n := e.layout.size
	return e.parallel(ctx, (n+rangeSize-1)/rangeSize, func(_ *worker, i int) error {
		f(i*rangeSize, min(n, (i+1)*rangeSize))
		return nil
	})
}

// check reports data that cannot be computed with.
func (e *Engine) check(op string, data []engine.Datum, loss *engine.Loss) error {
	for i := range data {
		if msg := e.problem(&data[i], loss); msg != "" {
			return fulgur.E(fulgur.KindInvalid, op, fmt.Sprintf("datum %d: %s", i, msg), nil)
		}
	}
	return nil
}

func (e *Engine) problem(d *engine.Datum, loss *engine.Loss) string {
	n := len(d.Tokens)
	old := loss != nil && loss.Name != engine.CrossEntropy
	switch {
	case len(d.Targets) != n:
		return fmt.Sprintf("%d tokens but %d targets", n, len(d.Targets))
	case n > e.layout.context:
		return fmt.Sprintf("%d tokens are more than the context of %d", n, e.layout.context)
	case loss != nil && (len(d.Mask) != n || len(d.Advantages) != n || old && len(d.OldLogProbs) != n):
		return fmt.Sprintf("%d tokens but %d mask, %d advantages, %d old log probs", n, len(d.Mask), len(d.Advantages), len(d.OldLogProbs))
	}
	for t := range n {
		if v := e.layout.VocabSize; uint32(d.Tokens[t]) >= uint32(v) || uint32(d.Targets[t]) >= uint32(v) {
			return fmt.Sprintf("token %d or target %d at position %d is outside the vocabulary of %d", d.Tokens[t], d.Targets[t], t, v)
		}
		if loss == nil || d.Mask[t] == 0 {
			continue
		}
		switch {
		case d.Mask[t] != 1:
			return fmt.Sprintf("mask %g at position %d: 0 or 1 is meant", d.Mask[t], t)
		case !finite(d.Advantages[t]):
			return fmt.Sprintf("advantage %g at position %d is not finite", d.Advantages[t], t)
		case old && !finite(d.OldLogProbs[t]):
			return fmt.Sprintf("old log prob %g at position %d is not finite", d.OldLogProbs[t], t)
		}
	}
	return ""
}

func finite(x float32) bool { return x-x == 0 }

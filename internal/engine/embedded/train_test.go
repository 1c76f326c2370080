package embedded

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/fulgur-rl/fulgur"
	"github.com/fulgur-rl/fulgur/internal/engine"
	"github.com/fulgur-rl/fulgur/internal/engine/embedded/kernel"
)

// randomData are sequences of many lengths with masks, signed advantages and old
// log probs near what an untrained model gives.
func randomData(seed uint64, n, vocab int) []engine.Datum {
	r := rand.New(rand.NewPCG(seed, 1))
	var data []engine.Datum
	for range n {
		k := 1 + r.IntN(90)
		d := engine.Datum{Tokens: randomIDs(r, k, vocab), Targets: randomIDs(r, k, vocab)}
		for range k {
			d.Mask = append(d.Mask, float32(r.IntN(2)))
			d.Advantages = append(d.Advantages, float32(r.NormFloat64()))
			d.OldLogProbs = append(d.OldLogProbs, float32(-math.Log(float64(vocab))+0.3*r.NormFloat64()))
		}
		data = append(data, d)
	}
	return data
}

var adam = engine.AdamW{LearningRate: 1e-2, Beta1: .9, Beta2: .98, Eps: 1e-8, WeightDecay: .01, ClipNorm: 1}

func trainOnce(t testing.TB, e *Engine, lr float64) {
	t.Helper()
	if _, err := e.ForwardBackward(context.Background(), randomData(11, 6, 101), engine.Loss{Name: engine.CrossEntropy}); err != nil {
		t.Fatal(err)
	}
	p := adam
	p.LearningRate = lr
	if _, err := e.OptimStep(context.Background(), p); err != nil {
		t.Fatal(err)
	}
}

// Elementwise finite differences of each loss; TestKernelSetsAgree carries them
// to the other kernel sets.
func TestFiniteDifferences(t *testing.T) {
	for _, name := range lossNames {
		t.Run(name, func(t *testing.T) {
			loss := engine.Loss{Name: name, ClipLow: .2, ClipHigh: .28}
			data := randomData(4, 3, 101)
			for i := range data {
				d := &data[i]
				n := min(24, len(d.Tokens))
				*d = engine.Datum{Tokens: d.Tokens[:n], Targets: d.Targets[:n], Mask: d.Mask[:n], Advantages: d.Advantages[:n], OldLogProbs: d.OldLogProbs[:n]}
			}
			differences(t, newSmall(t, Options{}), data, loss)
		})
	}
}

func differences(t *testing.T, e *Engine, data []engine.Datum, loss engine.Loss) {
	t.Helper()
	ctx := context.Background()
	before, err := e.ForwardBackward(ctx, data, loss)
	if err != nil {
		t.Fatal(err)
	}
	if loss.Name == engine.PPO && before.Clipped == 0 {
		t.Fatal("no position is clipped: the test does not see the clip")
	}
	if loss.Name == engine.CISPO {
		// The weight in front of logp does not move: it is held by old log probs
		// that give the same clipped ratio in cross entropy.
		for i := range data {
			data[i].Advantages = slices.Clone(data[i].Advantages)
			for j, lp := range before.LogProbs[i] {
				q := math.Exp(float64(lp - data[i].OldLogProbs[j]))
				data[i].Advantages[j] *= float32(min(max(q, 1-loss.ClipLow), 1+loss.ClipHigh))
			}
		}
		loss = engine.Loss{Name: engine.CrossEntropy}
	}
	grad := slices.Clone(e.grad)
	r := rand.New(rand.NewPCG(8, 8))
	value := func() float64 {
		e.train.pack(true)
		res, err := e.ForwardBackward(ctx, data, loss)
		if err != nil {
			t.Fatal(err)
		}
		return res.Loss
	}
	for _, x := range e.layout.split("", e.train.w) {
		g := e.layout.split("", grad)[slices.IndexFunc(e.layout.tensors, func(n named) bool { return n.name == x.Name })].Data
		// The largest gradient and two at random.
		most := 0
		for i := range g {
			if math.Abs(float64(g[i])) > math.Abs(float64(g[most])) {
				most = i
			}
		}
		for _, i := range []int{most, r.IntN(len(g)), r.IntN(len(g))} {
			const h = 2e-3
			old := x.Data[i]
			x.Data[i] = old + h
			up := value()
			x.Data[i] = old - h
			down := value()
			x.Data[i] = old
			if got, want := float64(g[i]), (up-down)/(2*h); math.Abs(got-want) > 2e-2*math.Abs(want)+2e-2 {
				t.Errorf("%s %s[%d]: gradient %g, differences %g", e.k.Name(), x.Name, i, got, want)
			}
		}
	}
}

// The same data give the same bits on any number of threads.
func TestTrainingDoesNotDependOnThreads(t *testing.T) {
	ctx := context.Background()
	loss := engine.Loss{Name: engine.PPO, ClipLow: .2, ClipHigh: .28}
	var want []float32
	var wantResult engine.Result
	for _, threads := range []int{1, 2, 3, 8} {
		e := newSmall(t, Options{Threads: threads})
		var res engine.Result
		for step := range 3 {
			var err error
			if res, err = e.ForwardBackward(ctx, randomData(uint64(step), 70, 101), loss); err != nil {
				t.Fatal(err)
			}
			if _, err := e.OptimStep(ctx, adam); err != nil {
				t.Fatal(err)
			}
		}
		if want == nil {
			want, wantResult = e.train.w, res
		}
		if !slices.Equal(want, e.train.w) || res.Loss != wantResult.Loss || res.KL != wantResult.KL || res.Entropy != wantResult.Entropy {
			t.Fatalf("%d threads give other bits than one", threads)
		}
	}
}

// Metrics against their definitions, from Forward's log probs.
func TestResult(t *testing.T) {
	ctx := context.Background()
	e := newSmall(t, Options{})
	data := randomData(21, 9, 101)
	lps, err := e.Forward(ctx, data)
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range lossNames {
		l := engine.Loss{Name: name, ClipLow: .2, ClipHigh: .3}
		res, err := e.ForwardBackward(ctx, data, l)
		if err != nil {
			t.Fatal(err)
		}
		var loss, kl float64
		tokens, clipped := 0, 0
		for i, d := range data {
			for j, m := range d.Mask {
				if m == 0 {
					if res.LogProbs[i][j] != 0 {
						t.Fatalf("%s: log prob of a masked position is %g", name, res.LogProbs[i][j])
					}
					continue
				}
				if res.LogProbs[i][j] != lps[i][j] {
					t.Fatalf("%s: log prob %g, Forward says %g", name, res.LogProbs[i][j], lps[i][j])
				}
				lp, a, old := float64(lps[i][j]), float64(d.Advantages[j]), float64(d.OldLogProbs[j])
				q := math.Exp(lp - old)
				c := min(max(q, .8), 1.3)
				tokens++
				switch name {
				case engine.CrossEntropy:
					loss -= a * lp
					continue
				case engine.ImportanceSampling:
					loss -= q * a
				case engine.PPO:
					loss -= min(q*a, c*a)
					if c*a < q*a {
						clipped++
					}
				case engine.CISPO:
					loss -= c * a * lp
				}
				kl += old - lp
			}
		}
		if math.Abs(res.Loss-loss) > 1e-4 || math.Abs(res.KL-kl) > 1e-4 || res.Tokens != tokens || res.Clipped != clipped {
			t.Errorf("%s: got loss %g kl %g tokens %d clipped %d, want %g %g %d %d", name, res.Loss, res.KL, res.Tokens, res.Clipped, loss, kl, tokens, clipped)
		}
		if h := res.Entropy / float64(tokens); h < 3 || h > math.Log(101) {
			t.Errorf("%s: entropy of a token is %g", name, h)
		}
	}
}

// Saving and going on gives the same bits as going on; a broken checkpoint is
// told and changes nothing.
func TestSaveAndResume(t *testing.T) {
	ctx := context.Background()
	dir := filepath.Join(t.TempDir(), "a", "checkpoint")
	run := func(e *Engine, from, to int) {
		for step := from; step < to; step++ {
			if _, err := e.ForwardBackward(ctx, randomData(uint64(step), 9, 101), engine.Loss{Name: engine.CrossEntropy}); err != nil {
				t.Fatal(err)
			}
			if _, err := e.OptimStep(ctx, adam); err != nil {
				t.Fatal(err)
			}
		}
	}
	e := newSmall(t, Options{})
	run(e, 0, 3)
	if err := e.Save(ctx, dir); err != nil {
		t.Fatal(err)
	}
	if err := e.Save(ctx, dir); fulgur.KindOf(err) != fulgur.KindConflict {
		t.Fatalf("saving over a checkpoint: %v", err)
	}
	run(e, 3, 6)
	opened, err := Open(os.DirFS(dir), Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer opened.Close()
	loaded := newSmall(t, Options{})
	if err := loaded.Load(ctx, dir); err != nil {
		t.Fatal(err)
	}
	for name, x := range map[string]*Engine{"opened": opened, "loaded": loaded} {
		run(x, 3, 6)
		if !slices.Equal(x.train.w, e.train.w) || !slices.Equal(x.m, e.m) || x.step != 6 {
			t.Errorf("%s: resumed weights differ", name)
		}
	}
	checkBroken(t, loaded, dir)
}

func checkBroken(t *testing.T, e *Engine, dir string) {
	ctx := context.Background()
	want := slices.Clone(e.train.w)
	for name, spoil := range map[string]func(b []byte) []byte{
		"model.safetensors":     func(b []byte) []byte { return b[:len(b)-5] },
		"config.json":           func(b []byte) []byte { return []byte(strings.Replace(string(b), "56", "64", 1)) },
		"optimizer.safetensors": func(b []byte) []byte { return b[:7] },
	} {
		path := filepath.Join(dir, name)
		b, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, spoil(slices.Clone(b)), 0o644); err != nil {
			t.Fatal(err)
		}
		if err := e.Load(ctx, dir); fulgur.KindOf(err) != fulgur.KindInvalid {
			t.Errorf("spoilt %s: %v", name, err)
		}
		if !slices.Equal(want, e.train.w) {
			t.Errorf("spoilt %s: weights changed", name)
		}
		if err := os.WriteFile(path, b, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if err := e.Load(ctx, t.TempDir()); fulgur.KindOf(err) != fulgur.KindNotFound {
		t.Errorf("an empty folder: %v", err)
	}
}

// All kernel sets learn the same: after some steps their weights agree.
func TestKernelSetsAgree(t *testing.T) {
	ctx := context.Background()
	var want []float32
	for _, k := range kernel.Available() {
		e := newSmall(t, Options{Kernels: k.Name()})
		if _, err := e.ForwardBackward(ctx, randomData(3, 20, 101), engine.Loss{Name: engine.PPO, ClipLow: .2, ClipHigh: .2}); err != nil {
			t.Fatal(err)
		}
		if want == nil {
			want = e.grad
		}
		var diff, size float64
		for i, v := range want {
			diff += math.Pow(float64(v-e.grad[i]), 2)
			size += float64(v) * float64(v)
		}
		if math.Sqrt(diff/size) > 1e-5 {
			t.Errorf("%s: gradient off by %g", k.Name(), math.Sqrt(diff/size))
		}
	}
}

// A step that cannot be made leaves everything as it was.
func TestBadSteps(t *testing.T) {
	ctx := context.Background()
	e := newSmall(t, Options{})
	want := slices.Clone(e.train.w)
	data := randomData(1, 2, 101)
	huge := data[0]
	huge.OldLogProbs = slices.Repeat([]float32{-500}, len(huge.Tokens))
	if _, err := e.ForwardBackward(ctx, []engine.Datum{huge}, engine.Loss{Name: engine.ImportanceSampling}); err != nil {
		t.Fatal(err)
	}
	if _, err := e.OptimStep(ctx, adam); fulgur.KindOf(err) != fulgur.KindInternal {
		t.Fatalf("a gradient that is not finite: %v", err)
	}
	if !slices.Equal(want, e.train.w) || e.step != 0 {
		t.Fatal("weights changed")
	}
	canceled, cancel := context.WithCancel(ctx)
	cancel()
	if _, err := e.ForwardBackward(canceled, data, engine.Loss{Name: engine.CrossEntropy}); fulgur.KindOf(err) != fulgur.KindCanceled {
		t.Fatalf("a canceled context: %v", err)
	}
	if s, err := e.OptimStep(ctx, adam); err != nil || s.GradNorm != 0 {
		t.Fatalf("the gradient was not left as it was: %+v %v", s, err)
	}
}

func TestMakeLanesIsBalanced(t *testing.T) {
	length := make([]int, 64)
	index := make([]int, 64)
	for i := range length {
		index[i], length[i] = i, 60+i*3
	}
	chunks := makeChunks(index, length)
	lanes := makeLanes(chunks, length, 8)
	seen := 0
	for _, l := range lanes {
		for _, c := range l {
			seen += len(c)
		}
	}
	if seen != 64 || len(lanes) != 8 {
		t.Fatal(fmt.Sprint(lanes))
	}
}

// The frozen copy is what the weights were, and serves no other pass.
func TestFrozenWeightsStay(t *testing.T) {
	ctx, data := t.Context(), randomData(4, 3, 101)
	e := newSmall(t, Options{})
	if _, err := e.ForwardFrozen(ctx, data); err == nil {
		t.Error("there is a reference policy that nobody asked for")
	}
	start, err := e.Forward(ctx, data)
	if err != nil {
		t.Fatal(err)
	}
	if err := e.Freeze(ctx); err != nil {
		t.Fatal(err)
	}
	if _, err := e.ForwardBackward(ctx, data, engine.Loss{Name: engine.ImportanceSampling}); err != nil {
		t.Fatal(err)
	}
	if _, err := e.OptimStep(ctx, engine.AdamW{LearningRate: 0.01, Beta1: .9, Beta2: .99, Eps: 1e-8}); err != nil {
		t.Fatal(err)
	}
	frozen, err := e.ForwardFrozen(ctx, data)
	if err != nil {
		t.Fatal(err)
	}
	now, err := e.Forward(ctx, data)
	if err != nil {
		t.Fatal(err)
	}
	if !slices.EqualFunc(frozen, start, slices.Equal) || slices.EqualFunc(now, start, slices.Equal) {
		t.Error("the frozen weights have moved, or the others have not")
	}
}

func TestWeightsThatAreNoNumbersAreRefused(t *testing.T) {
	ctx, dir := t.Context(), filepath.Join(t.TempDir(), "c")
	e := newSmall(t, Options{})
	before := slices.Clone(e.train.w)
	e.train.w[len(e.train.w)/2] = float32(math.NaN())
	if err := e.Save(ctx, dir); err != nil {
		t.Fatal(err)
	}
	copy(e.train.w, before)
	if err := e.Load(ctx, dir); fulgur.KindOf(err) != fulgur.KindInvalid || !strings.Contains(err.Error(), "NaN at place") {
		t.Errorf("loading it: %v", err)
	}
	if !slices.Equal(e.train.w, before) {
		t.Error("the engine's weights have changed")
	}
	if _, err := Open(os.DirFS(dir), Options{}); fulgur.KindOf(err) != fulgur.KindInvalid {
		t.Errorf("opening it: %v", err)
	}
}

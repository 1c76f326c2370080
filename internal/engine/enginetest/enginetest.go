// Package enginetest is the conformance suite of engine.Engine and
// engine.Generator: what the trainer and the gateway rely on, seen from outside.
package enginetest

import (
	"context"
	"errors"
	"math"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/fulgur-rl/fulgur"
	"github.com/fulgur-rl/fulgur/internal/engine"
)

// Factory makes an engine with its generator: a new one at each call, always with
// the same weights, published as version 0, with a context of at least 64 tokens
// and room for tens of steps in a second. It closes them at the end of the test.
type Factory func(t *testing.T) (engine.Engine, engine.Generator)

// Run runs the suite.
func Run(t *testing.T, make Factory) {
	for _, c := range []struct {
		name string
		f    func(t *testing.T, s *subject)
	}{
		{"the description is complete", testInfo},
		{"forward and forward-backward agree", testForward},
		{"positions without mask are not computed with", testMask},
		{"bad data is refused and leaves the gradient", testBadData},
		{"each loss it names can be computed", testLosses},
		{"training lowers the loss", testLearning},
		{"a step clears the gradient", testStepClears},
		{"gradients of calls add up", testAccumulation},
		{"weights are sampled from publication on", testPublish},
		{"a saved state is loaded back", testSaveLoad},
		{"sampler and trainer agree", testAgreement},
	} {
		t.Run(c.name, func(t *testing.T) {
			e, g := make(t)
			info, err := e.Info(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			c.f(t, &subject{make, e, g, info})
		})
	}
	RunGenerator(t, func(t *testing.T) (engine.Generator, engine.Info) {
		e, g := make(t)
		info, err := e.Info(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return g, info
	})
}

// RunGenerator runs the part of the suite that needs no engine. Of the
// description, the size of the vocabulary and the context's length (64 or more)
// are looked at.
func RunGenerator(t *testing.T, make func(t *testing.T) (engine.Generator, engine.Info)) {
	for _, c := range []struct {
		name string
		f    func(t *testing.T, s *subject)
	}{
		{"a seed fixes the tokens", testSeed},
		{"a generation ends as asked", testEnds},
		{"tokens are emitted in order", testEmit},
		{"a caller that leaves is let go", testCancel},
		{"bad requests are refused", testBadRequests},
	} {
		t.Run(c.name, func(t *testing.T) {
			g, info := make(t)
			c.f(t, &subject{Generator: g, info: info})
		})
	}
}

type subject struct {
	make Factory
	engine.Engine
	engine.Generator
	info engine.Info
}

var (
	crossEntropy = engine.Loss{Name: engine.CrossEntropy}
	adam         = engine.AdamW{LearningRate: 3e-3, Beta1: .9, Beta2: .95, Eps: 1e-8, ClipNorm: 1}
)

// data makes n sequences; the same seed makes the same.
func (s *subject) data(seed uint64, n int) []engine.Datum {
	r := rand.New(rand.NewPCG(seed, 99))
	var data []engine.Datum
	for range n {
		var d engine.Datum
		for range 2 + r.IntN(40) {
			d.Tokens = append(d.Tokens, int32(r.IntN(s.info.VocabSize)))
			d.Targets = append(d.Targets, int32(r.IntN(s.info.VocabSize)))
			d.Mask = append(d.Mask, float32(r.IntN(2)))
			d.Advantages = append(d.Advantages, 0.5+r.Float32())
			d.OldLogProbs = append(d.OldLogProbs, float32(-math.Log(float64(s.info.VocabSize))))
		}
		d.Mask[0] = 1
		data = append(data, d)
	}
	return data
}

func (s *subject) prompt(n int) []int32 {
	var p []int32
	for i := range n {
		p = append(p, int32((i*7+3)%s.info.VocabSize))
	}
	return p
}

func (s *subject) backward(t *testing.T, data []engine.Datum, l engine.Loss) engine.Result {
	t.Helper()
	r, err := s.ForwardBackward(t.Context(), data, l)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func (s *subject) optim(t *testing.T) engine.Step {
	t.Helper()
	st, err := s.OptimStep(t.Context(), adam)
	if err != nil {
		t.Fatal(err)
	}
	return st
}

func (s *subject) generate(t *testing.T, req engine.GenerateRequest) engine.Generation {
	t.Helper()
	g, err := s.Generate(t.Context(), req, nil)
	if err != nil {
		t.Fatal(err)
	}
	return g
}

func testInfo(t *testing.T, s *subject) {
	i := s.info
	if i.Name == "" || i.Model == "" || i.Parameters <= 0 || i.VocabSize <= 0 || i.ContextLength < 64 || i.Threads < 1 || len(i.Losses) == 0 {
		t.Fatalf("%+v", i)
	}
}

func testForward(t *testing.T, s *subject) {
	data := s.data(1, 5)
	lps, err := s.Forward(t.Context(), data)
	if err != nil {
		t.Fatal(err)
	}
	r := s.backward(t, data, crossEntropy)
	var loss float64
	tokens := 0
	for i, d := range data {
		if len(lps[i]) != len(d.Targets) || len(r.LogProbs[i]) != len(d.Targets) {
			t.Fatalf("datum %d: %d and %d log probs for %d targets", i, len(lps[i]), len(r.LogProbs[i]), len(d.Targets))
		}
		for j, m := range d.Mask {
			want := lps[i][j] * m
			if math.Abs(float64(r.LogProbs[i][j]-want)) > 1e-5 {
				t.Fatalf("datum %d position %d: log prob %g, forward says %g", i, j, r.LogProbs[i][j], want)
			}
			if m == 1 {
				tokens++
				loss -= float64(d.Advantages[j]) * float64(lps[i][j])
			}
		}
	}
	if r.Tokens != tokens || math.Abs(r.Loss-loss) > 1e-3 {
		t.Fatalf("loss %g of %d tokens, want %g of %d", r.Loss, r.Tokens, loss, tokens)
	}
}

func testMask(t *testing.T, s *subject) {
	data := s.data(2, 4)
	want := s.backward(t, data, engine.Loss{Name: engine.PPO, ClipLow: .2, ClipHigh: .2})
	norm := s.optim(t).GradNorm
	e, g := s.make(t)
	other := &subject{s.make, e, g, s.info}
	for i := range data {
		for j, m := range data[i].Mask {
			if m == 0 {
				data[i].Advantages[j], data[i].OldLogProbs[j] = float32(math.NaN()), float32(math.Inf(1))
			}
		}
	}
	got := other.backward(t, data, engine.Loss{Name: engine.PPO, ClipLow: .2, ClipHigh: .2})
	if d := cmp.Diff(want, got); d != "" {
		t.Fatal(d)
	}
	if n := other.optim(t).GradNorm; n != norm {
		t.Fatalf("gradient norm %g, want %g", n, norm)
	}
}

func testBadData(t *testing.T, s *subject) {
	ctx := t.Context()
	s.backward(t, s.data(3, 2), crossEntropy)
	spoil := map[string]func(d *engine.Datum){
		"a target too few":        func(d *engine.Datum) { d.Targets = d.Targets[1:] },
		"a mask too short":        func(d *engine.Datum) { d.Mask = d.Mask[1:] },
		"advantages too short":    func(d *engine.Datum) { d.Advantages = nil },
		"old log probs too short": func(d *engine.Datum) { d.OldLogProbs = nil },
		"an id above":             func(d *engine.Datum) { d.Tokens[0] = int32(s.info.VocabSize) },
		"an id below":             func(d *engine.Datum) { d.Targets[0] = -1 },
		"an infinite advantage":   func(d *engine.Datum) { d.Advantages[0] = float32(math.Inf(1)) },
		"an old log prob NaN":     func(d *engine.Datum) { d.OldLogProbs[0] = float32(math.NaN()) },
		"a mask between 0 and 1":  func(d *engine.Datum) { d.Mask[0] = .5 },
		"longer than the context": func(d *engine.Datum) {
			n := s.info.ContextLength + 1
			zero := make([]float32, n)
			*d = engine.Datum{Tokens: make([]int32, n), Targets: make([]int32, n), Mask: zero, Advantages: zero, OldLogProbs: zero}
		},
	}
	for name, f := range spoil {
		data := s.data(4, 3)
		f(&data[2])
		if _, err := s.ForwardBackward(ctx, data, engine.Loss{Name: engine.PPO, ClipLow: .2, ClipHigh: .2}); fulgur.KindOf(err) != fulgur.KindInvalid {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := s.ForwardBackward(ctx, s.data(4, 1), engine.Loss{Name: "no such loss"}); err == nil {
		t.Error("a loss of no known name was taken")
	}
	norm := s.optim(t).GradNorm
	e, g := s.make(t)
	clean := &subject{s.make, e, g, s.info}
	clean.backward(t, s.data(3, 2), crossEntropy)
	if want := clean.optim(t).GradNorm; norm != want {
		t.Fatalf("refused data changed the gradient: norm %g, want %g", norm, want)
	}
}

func testLosses(t *testing.T, s *subject) {
	for _, name := range s.info.Losses {
		s.backward(t, s.data(5, 2), engine.Loss{Name: name, ClipLow: .2, ClipHigh: .2})
		if n := s.optim(t).GradNorm; !(n > 0) {
			t.Errorf("%s: gradient norm %g", name, n)
		}
	}
}

func testLearning(t *testing.T, s *subject) {
	data := s.data(6, 4)
	first, last := 0.0, 0.0
	for i := range 25 {
		last = s.backward(t, data, crossEntropy).Loss
		if i == 0 {
			first = last
		}
		if st := s.optim(t); st.Step != int64(i+1) {
			t.Fatalf("step %d calls itself %d", i+1, st.Step)
		}
	}
	if !(last < 0.9*first) {
		t.Fatalf("loss went from %g to %g in 25 steps", first, last)
	}
}

func testStepClears(t *testing.T, s *subject) {
	s.backward(t, s.data(7, 2), crossEntropy)
	s.optim(t)
	if n := s.optim(t).GradNorm; n != 0 {
		t.Fatalf("the gradient's norm is %g after a step", n)
	}
}

func testAccumulation(t *testing.T, s *subject) {
	a, b := s.data(8, 3), s.data(9, 3)
	s.backward(t, a, crossEntropy)
	s.backward(t, b, crossEntropy)
	got := s.optim(t).GradNorm
	e, g := s.make(t)
	one := &subject{s.make, e, g, s.info}
	one.backward(t, slices.Concat(a, b), crossEntropy)
	if want := one.optim(t).GradNorm; math.Abs(got-want) > 1e-4*want {
		t.Fatalf("norm of two calls %g, of one %g", got, want)
	}
}

func testPublish(t *testing.T, s *subject) {
	req := engine.GenerateRequest{Prompt: s.prompt(12), MaxTokens: 8}
	before := s.generate(t, req)
	for range 5 {
		s.backward(t, s.data(10, 3), crossEntropy)
		s.optim(t)
	}
	if d := cmp.Diff(before.Tokens, s.generate(t, req).Tokens); d != "" {
		t.Fatalf("weights were sampled before they were published: %s", d)
	}
	eps, err := s.Publish(t.Context(), 3)
	if err != nil {
		t.Fatal(err)
	}
	for _, ep := range eps {
		if ep.Version != 3 {
			t.Errorf("endpoint %+v", ep)
		}
	}
	after := s.generate(t, req)
	if before.Tokens[0].Version != 0 || after.Tokens[0].Version != 3 {
		t.Fatalf("versions %d and %d", before.Tokens[0].Version, after.Tokens[0].Version)
	}
	if before.Tokens[0].LogProb == after.Tokens[0].LogProb {
		t.Fatal("the published weights are not sampled")
	}
	s.agree(t, req.Prompt, after)
}

func testSaveLoad(t *testing.T, s *subject) {
	ctx, dir := t.Context(), filepath.Join(t.TempDir(), "state")
	step := func(x *subject, seed uint64) engine.Result {
		r := x.backward(t, x.data(seed, 3), crossEntropy)
		x.optim(t)
		return r
	}
	step(s, 11)
	if err := s.Save(ctx, dir); err != nil {
		t.Fatal(err)
	}
	if err := s.Save(ctx, dir); err == nil {
		t.Error("a folder that exists was written over")
	}
	step(s, 12)
	want := step(s, 13)
	e, g := s.make(t)
	other := &subject{s.make, e, g, s.info}
	if err := other.Load(ctx, dir); err != nil {
		t.Fatal(err)
	}
	step(other, 12)
	if d := cmp.Diff(want, step(other, 13)); d != "" {
		t.Fatalf("training went on differently: %s", d)
	}
	if err := other.Load(ctx, filepath.Join(dir, "none")); err == nil {
		t.Error("a folder that is not there was loaded")
	}
}

// agree compares a generation's log probs with the trainer's.
func (s *subject) agree(t *testing.T, prompt []int32, g engine.Generation) {
	t.Helper()
	seq := slices.Clone(prompt)
	for _, tok := range g.Tokens {
		seq = append(seq, tok.ID)
	}
	lps, err := s.Forward(t.Context(), []engine.Datum{{Tokens: seq[:len(seq)-1], Targets: seq[1:]}})
	if err != nil {
		t.Fatal(err)
	}
	for i, tok := range g.Tokens {
		if want := lps[0][len(prompt)-1+i]; math.Abs(float64(want-tok.LogProb)) > 1e-4 {
			t.Fatalf("token %d: the sampler's log prob is %g, the trainer's %g", i, tok.LogProb, want)
		}
	}
}

func testAgreement(t *testing.T, s *subject) {
	for _, temperature := range []float64{0, 1} {
		req := engine.GenerateRequest{Prompt: s.prompt(20), MaxTokens: 20, Temperature: temperature, Seed: 4}
		s.agree(t, req.Prompt, s.generate(t, req))
	}
}

func testSeed(t *testing.T, s *subject) {
	req := engine.GenerateRequest{Prompt: s.prompt(9), MaxTokens: 20, Temperature: 1, Seed: 1}
	a, b := s.generate(t, req), s.generate(t, req)
	if d := cmp.Diff(a.Tokens, b.Tokens); d != "" {
		t.Fatal(d)
	}
	req.Seed = 2
	if cmp.Equal(a.Tokens, s.generate(t, req).Tokens) {
		t.Fatal("another seed gave the same tokens")
	}
}

func testEnds(t *testing.T, s *subject) {
	req := engine.GenerateRequest{Prompt: s.prompt(9), MaxTokens: 10, Temperature: 1, Seed: 1}
	g := s.generate(t, req)
	if len(g.Tokens) != 10 || g.FinishReason != "length" {
		t.Fatalf("%d tokens, %q", len(g.Tokens), g.FinishReason)
	}
	req.StopIDs = []int32{g.Tokens[4].ID}
	first := slices.IndexFunc(g.Tokens, func(tok engine.Token) bool { return tok.ID == req.StopIDs[0] })
	if s := s.generate(t, req); len(s.Tokens) != first+1 || s.FinishReason != "stop" {
		t.Fatalf("%d tokens, %q; the stop token is number %d", len(s.Tokens), s.FinishReason, first)
	}
	room := s.generate(t, engine.GenerateRequest{Prompt: s.prompt(s.info.ContextLength - 3), Temperature: 1})
	if len(room.Tokens) != 3 || room.FinishReason != "length" {
		t.Fatalf("%d tokens where the context has room for 3, %q", len(room.Tokens), room.FinishReason)
	}
}

func testEmit(t *testing.T, s *subject) {
	req := engine.GenerateRequest{Prompt: s.prompt(5), MaxTokens: 10, Temperature: 1}
	var got []engine.Token
	g, err := s.Generate(t.Context(), req, func(tok engine.Token) error { got = append(got, tok); return nil })
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(g.Tokens, got); d != "" {
		t.Fatal(d)
	}
	enough := errors.New("enough")
	n := 0
	g, err = s.Generate(t.Context(), req, func(engine.Token) error {
		if n++; n == 3 {
			return enough
		}
		return nil
	})
	if !errors.Is(err, enough) || len(g.Tokens) != 3 || n != 3 {
		t.Fatalf("%d tokens, %d emitted, %v", len(g.Tokens), n, err)
	}
}

func testCancel(t *testing.T, s *subject) {
	ctx, cancel := context.WithCancel(t.Context())
	n := 0
	start := time.Now()
	g, err := s.Generate(ctx, engine.GenerateRequest{Prompt: s.prompt(5), Temperature: 1}, func(engine.Token) error {
		if n++; n == 2 {
			cancel()
		}
		return nil
	})
	if !errors.Is(err, context.Canceled) || len(g.Tokens) < 2 || g.FinishReason != "" {
		t.Fatalf("%d tokens, %q, %v", len(g.Tokens), g.FinishReason, err)
	}
	if d := time.Since(start); d > 10*time.Second {
		t.Errorf("it took %v", d)
	}
	if _, err := s.Generate(ctx, engine.GenerateRequest{Prompt: s.prompt(5)}, nil); !errors.Is(err, context.Canceled) {
		t.Errorf("a call that was canceled before it began: %v", err)
	}
	s.generate(t, engine.GenerateRequest{Prompt: s.prompt(5), MaxTokens: 2}) // it goes on
}

func testBadRequests(t *testing.T, s *subject) {
	for name, c := range map[string]struct {
		req  engine.GenerateRequest
		kind fulgur.Kind
	}{
		"no prompt":            {engine.GenerateRequest{}, fulgur.KindInvalid},
		"an id above":          {engine.GenerateRequest{Prompt: []int32{int32(s.info.VocabSize)}}, fulgur.KindInvalid},
		"an id below":          {engine.GenerateRequest{Prompt: []int32{-1}}, fulgur.KindInvalid},
		"no room":              {engine.GenerateRequest{Prompt: s.prompt(s.info.ContextLength)}, fulgur.KindContextFull},
		"negative temperature": {engine.GenerateRequest{Prompt: []int32{1}, Temperature: -1}, fulgur.KindInvalid},
		"temperature NaN":      {engine.GenerateRequest{Prompt: []int32{1}, Temperature: math.NaN()}, fulgur.KindInvalid},
		"top-p above 1":        {engine.GenerateRequest{Prompt: []int32{1}, TopP: 1.5}, fulgur.KindInvalid},
		"negative top-k":       {engine.GenerateRequest{Prompt: []int32{1}, TopK: -1}, fulgur.KindInvalid},
		"negative max tokens":  {engine.GenerateRequest{Prompt: []int32{1}, MaxTokens: -1}, fulgur.KindInvalid},
	} {
		if _, err := s.Generate(t.Context(), c.req, nil); fulgur.KindOf(err) != c.kind {
			t.Errorf("%s: %v", name, err)
		}
	}
}

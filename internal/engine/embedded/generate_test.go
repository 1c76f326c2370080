package embedded

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/fulgur-rl/fulgur"
	"github.com/fulgur-rl/fulgur/internal/engine"
	"github.com/fulgur-rl/fulgur/internal/engine/embedded/kernel"
	"github.com/fulgur-rl/fulgur/internal/engine/weights"
)

// smallConfig is a model whose sizes fit no panel width: grouped heads, odd
// vocabulary.
func smallConfig() weights.Config {
	return weights.Config{ModelType: "llama", VocabSize: 101, HiddenSize: 40, Layers: 2, Heads: 4, KVHeads: 2, HeadDim: 12, Intermediate: 56,
		MaxPositions: 160, NormEps: 1e-5, RopeTheta: 1e4, Tied: true}
}

func newSmall(t testing.TB, opt Options) *Engine {
	t.Helper()
	e, err := New(smallConfig(), 7, opt)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { e.Close() })
	return e
}

func randomIDs(r *rand.Rand, n, vocab int) []int32 {
	ids := make([]int32, n)
	for i := range ids {
		ids[i] = int32(r.IntN(vocab))
	}
	return ids
}

func generate(t testing.TB, e *Engine, req engine.GenerateRequest) engine.Generation {
	t.Helper()
	g, err := e.Generate(context.Background(), req, nil)
	if err != nil {
		t.Fatal(err)
	}
	return g
}

// together runs all requests at once and returns their results.
func together(t *testing.T, e *Engine, reqs []engine.GenerateRequest) []engine.Generation {
	t.Helper()
	out := make([]engine.Generation, len(reqs))
	errs := make([]error, len(reqs))
	var wg sync.WaitGroup
	for i := range reqs {
		wg.Go(func() { out[i], errs[i] = e.Generate(context.Background(), reqs[i], nil) })
	}
	wg.Wait()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
	return out
}

func mixedRequests(n int) []engine.GenerateRequest {
	r := rand.New(rand.NewPCG(5, 6))
	shared := randomIDs(r, 50, 101)
	var reqs []engine.GenerateRequest
	for i := range n {
		req := engine.GenerateRequest{Prompt: randomIDs(r, 1+r.IntN(70), 101), MaxTokens: 1 + r.IntN(30), Temperature: float64(i%3) * 0.6, Seed: uint64(i)}
		switch i % 4 {
		case 1: // a group
			req.Prompt = shared
		case 2: // the same beginning
			req.Prompt = append(shared[:33:33], req.Prompt...)
		case 3:
			req.TopK, req.TopP = 5*(i%2), 0.9
		}
		reqs = append(reqs, req)
	}
	return reqs
}

// A call's tokens and log probs have the same bits alone and among others, with
// the prefix cache and without, on one thread and on more, and however the
// prompt is cut up.
func TestGenerateDoesNotDependOnTheBatch(t *testing.T) {
	reqs := mixedRequests(40)
	for _, k := range kernel.Available() {
		t.Run(k.Name(), func(t *testing.T) {
			alone := newSmall(t, Options{Kernels: k.Name(), Threads: 1})
			var want []engine.Generation
			for i, req := range reqs {
				if _, err := alone.Publish(context.Background(), 0); err != nil { // drops the cache
					t.Fatal(err)
				}
				g := generate(t, alone, req)
				if g.CachedTokens != 0 {
					t.Fatalf("call %d found %d tokens after a publication", i, g.CachedTokens)
				}
				want = append(want, g)
			}
			for _, opt := range []Options{{Threads: 1}, {Threads: 3, MaxRows: 24}, {Threads: 2, MaxRows: 7, CacheBytes: 1 << 17}} {
				opt.Kernels = k.Name()
				e := newSmall(t, opt)
				for round := range 2 { // the second finds prompts in the cache
					got := together(t, e, reqs)
					for i := range got {
						if d := cmp.Diff(want[i].Tokens, got[i].Tokens); d != "" || got[i].FinishReason != want[i].FinishReason {
							t.Fatalf("threads %d, rows %d, round %d, call %d: %s", opt.Threads, opt.MaxRows, round, i, d)
						}
					}
				}
			}
		})
	}
}

// The sampler's log probs are the trainer's at temperature 1, and of the
// tempered distribution otherwise.
func TestSamplerAndTrainerAgree(t *testing.T) {
	for _, k := range kernel.Available() {
		t.Run(k.Name(), func(t *testing.T) {
			e := newSmall(t, Options{Kernels: k.Name()})
			reqs := mixedRequests(24)
			for i := range reqs {
				reqs[i].Temperature = float64(i % 2) // 0: greedy, of temperature 1 too
			}
			for i, g := range together(t, e, reqs) {
				seq := append([]int32(nil), reqs[i].Prompt...)
				for _, tok := range g.Tokens {
					seq = append(seq, tok.ID)
				}
				lps, err := e.Forward(context.Background(), []engine.Datum{{Tokens: seq[:len(seq)-1], Targets: seq[1:]}})
				if err != nil {
					t.Fatal(err)
				}
				for j, tok := range g.Tokens {
					if want := lps[0][len(reqs[i].Prompt)-1+j]; math.Abs(float64(tok.LogProb-want)) > 1e-4 {
						t.Fatalf("call %d token %d: sampler %g, trainer %g", i, j, tok.LogProb, want)
					}
				}
			}
		})
	}
}

// Sampled frequencies are those of the distribution, cut as asked.
func TestSamplingDistribution(t *testing.T) {
	k := kernel.Available()[0]
	logits := []float32{0.5, 2, -1, 1.5, 0}
	softmax := func(temp float64) []float64 {
		p, sum := make([]float64, len(logits)), 0.0
		for i, v := range logits {
			p[i] = math.Exp(float64(v) / temp)
			sum += p[i]
		}
		for i := range p {
			p[i] /= sum
		}
		return p
	}
	for name, c := range map[string]struct {
		req  engine.GenerateRequest
		keep []int
	}{
		"temperature 1":                  {engine.GenerateRequest{Temperature: 1}, []int{0, 1, 2, 3, 4}},
		"temperature 0.5":                {engine.GenerateRequest{Temperature: 0.5}, []int{0, 1, 2, 3, 4}},
		"greedy":                         {engine.GenerateRequest{}, []int{1}},
		"the two most likely":            {engine.GenerateRequest{Temperature: 1, TopK: 2}, []int{1, 3}},
		"top-p that needs two":           {engine.GenerateRequest{Temperature: 1, TopP: 0.6}, []int{1, 3}},
		"top-p that needs one":           {engine.GenerateRequest{Temperature: 1, TopP: 0.1}, []int{1}},
		"top-p after top-k renormalises": {engine.GenerateRequest{Temperature: 1, TopK: 2, TopP: 0.6}, []int{1}},
	} {
		t.Run(name, func(t *testing.T) {
			temp := max(c.req.Temperature, 1e-9)
			if c.req.Temperature == 0 {
				temp = 1
			}
			p, mass := softmax(temp), 0.0
			for _, i := range c.keep {
				mass += p[i]
			}
			const n = 40000
			count := make([]int, len(logits))
			var pick picker
			prob := make([]float32, len(logits))
			for i := range n {
				s := pick.sample(k, logits, prob, &c.req, i)
				count[s.id]++
				if math.Abs(float64(s.lp)-math.Log(p[s.id])) > 1e-5 {
					t.Fatalf("log prob of %d is %g, want %g", s.id, s.lp, math.Log(p[s.id]))
				}
			}
			want := make([]float64, len(logits))
			for _, i := range c.keep {
				want[i] = p[i] / mass
			}
			for i := range count {
				if f := float64(count[i]) / n; math.Abs(f-want[i]) > 4*math.Sqrt(want[i]*(1-want[i])/n) {
					t.Errorf("token %d: frequency %g, want %g", i, f, want[i])
				}
			}
		})
	}
}

func TestGroupPrefillsItsPromptOnce(t *testing.T) {
	e := newSmall(t, Options{MaxRows: 16})
	prompt := randomIDs(rand.New(rand.NewPCG(1, 1)), 100, 101)
	var reqs []engine.GenerateRequest
	for i := range 16 {
		reqs = append(reqs, engine.GenerateRequest{Prompt: prompt, MaxTokens: 5, Temperature: 1, Seed: uint64(i)})
	}
	cached := 0
	for _, g := range together(t, e, reqs) {
		if g.CachedTokens > len(prompt)-10 { // a few tokens are not worth waiting for
			cached++
		}
	}
	if cached != 15 {
		t.Fatalf("%d of 16 calls found the prompt in the cache, want 15", cached)
	}
}

func TestTurnsOfARolloutKeepTheirPrefix(t *testing.T) {
	e := newSmall(t, Options{})
	seq := randomIDs(rand.New(rand.NewPCG(2, 2)), 40, 101)
	for turn := range 3 {
		g := generate(t, e, engine.GenerateRequest{Prompt: seq, MaxTokens: 9, Temperature: 1, Seed: uint64(turn)})
		if turn > 0 && g.CachedTokens < len(seq)-6 {
			t.Fatalf("turn %d: %d of %d prompt tokens cached", turn, g.CachedTokens, len(seq))
		}
		for _, tok := range g.Tokens {
			seq = append(seq, tok.ID)
		}
		seq = append(seq, 1, 2, 3, 4) // what a tool said
	}
}

// WE-01: after an update, log probs of a prompt are those of a fresh engine.
func TestPublishDropsThePrefixCache(t *testing.T) {
	ctx := context.Background()
	e := newSmall(t, Options{})
	req := engine.GenerateRequest{Prompt: randomIDs(rand.New(rand.NewPCG(3, 3)), 60, 101), MaxTokens: 20}
	before := generate(t, e, req)
	trainOnce(t, e, 0.05)
	same := generate(t, e, req)
	if d := cmp.Diff(before.Tokens, same.Tokens); d != "" {
		t.Fatalf("training weights were sampled before they were published: %s", d)
	}
	if _, err := e.Publish(ctx, 5); err != nil {
		t.Fatal(err)
	}
	after := generate(t, e, req)
	if after.CachedTokens != 0 || after.Tokens[0].Version != 5 || before.Tokens[0].Version != 0 {
		t.Fatalf("after the publication: %d tokens cached, version %d", after.CachedTokens, after.Tokens[0].Version)
	}
	fresh := newSmall(t, Options{})
	trainOnce(t, fresh, 0.05)
	if _, err := fresh.Publish(ctx, 5); err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(generate(t, fresh, req).Tokens, after.Tokens); d != "" {
		t.Fatalf("a fresh engine differs: %s", d)
	}
}

// A generation that runs over a publication goes on with the new weights. The
// model is slow enough to be overtaken.
func TestPublishDuringAGeneration(t *testing.T) {
	ctx := context.Background()
	c := smallConfig()
	c.HiddenSize, c.Intermediate, c.MaxPositions = 256, 1024, 4000
	e, err := New(c, 1, Options{Kernels: "portable"})
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	n := 0
	enough := errors.New("enough")
	var versions []fulgur.PolicyVersion
	_, err = e.Generate(ctx, engine.GenerateRequest{Prompt: []int32{1, 2, 3}, Temperature: 1}, func(tok engine.Token) error {
		versions = append(versions, tok.Version)
		if n++; n == 10 {
			if _, err := e.Publish(ctx, 1); err != nil {
				return err
			}
			// Nothing that starts now may see version 0.
			if g := generate(t, e, engine.GenerateRequest{Prompt: []int32{4}, MaxTokens: 3}); g.Tokens[0].Version != 1 {
				return fmt.Errorf("a later call was sampled from version %d", g.Tokens[0].Version)
			}
		}
		if tok.Version == 1 {
			return enough
		}
		return nil
	})
	if !errors.Is(err, enough) || versions[0] != 0 {
		t.Fatalf("%v, versions %v", err, versions)
	}
}

func TestManyCallsWithinLittleMemory(t *testing.T) {
	e := newSmall(t, Options{CacheBytes: 1 << 18, MaxRows: 32})
	var reqs []engine.GenerateRequest
	r := rand.New(rand.NewPCG(9, 9))
	for i := range 300 {
		reqs = append(reqs, engine.GenerateRequest{Prompt: randomIDs(r, 40+r.IntN(40), 101), MaxTokens: 8, Temperature: 1, Seed: uint64(i)})
	}
	for i, g := range together(t, e, reqs) {
		if len(g.Tokens) != 8 || g.FinishReason != "length" {
			t.Fatalf("call %d: %d tokens, %q", i, len(g.Tokens), g.FinishReason)
		}
	}
	if err := e.Close(); err != nil { // the cache is the scheduler's while it runs
		t.Fatal(err)
	}
	if c := e.gen.cache; c.total > c.limit {
		t.Fatalf("the cache holds %d bytes, its limit is %d", c.total, c.limit)
	}
	if _, err := e.Generate(context.Background(), reqs[0], nil); fulgur.KindOf(err) != fulgur.KindUnavailable {
		t.Fatalf("a closed engine says %v", err)
	}
}

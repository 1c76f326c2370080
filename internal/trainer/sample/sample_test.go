package sample

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/fulgur-rl/fulgur"
	"github.com/fulgur-rl/fulgur/internal/trainer/trace"
)

// call makes a trainable call; log prob of a token t is -t/1000.
func call(prompt, sampled []int32) fulgur.Call {
	c := fulgur.Call{Rollout: "r", PromptIDs: prompt, SampledIDs: sampled, Trainable: true, Spans: []fulgur.Span{{Version: 3}}}
	for _, t := range sampled {
		c.LogProbs = append(c.LogProbs, -float32(t)/1000)
	}
	return c
}

func numbered(calls ...fulgur.Call) []fulgur.Call {
	for i := range calls {
		calls[i].ID, calls[i].Index = fulgur.CallID(fmt.Sprint(i)), i
	}
	return calls
}

func ids(x ...int32) []int32 { return x }

func join(parts ...[]int32) []int32 { return slices.Concat(parts...) }

func masks(b Built) (out []string) {
	for _, s := range b.Samples() {
		m := ""
		for i, on := range s.Mask {
			if on {
				m += fmt.Sprint(s.Tokens[i], " ")
			} else {
				m += fmt.Sprintf("(%d) ", s.Tokens[i])
			}
		}
		out = append(out, m[:len(m)-1])
	}
	return out
}

func TestLineagesBecomeSamples(t *testing.T) {
	lost := map[string]map[string]int{ // tokens, where some are lost
		"AD-05, AD-06: an auxiliary call does not train, nor what the harness wrote": {fulgur.UntrainableAuxiliary: 1},
		"AD-08: a call without log probs is context, the others train":               {fulgur.UntrainableLogProbs: 1},
		"AD-08: nor one with too few, which takes nobody else's away":                {fulgur.UntrainableLogProbs: 2},
		"an aborted call at the end is left out, but counts in T":                    {fulgur.UntrainableAborted: 1},
		"AL-13: a sentinel log prob masks its call":                                  {fulgur.UntrainableLogProbs: 1},
	}
	a1, a2, a3 := ids(1, 2), ids(1, 2, 11, 3), ids(1, 2, 11, 3, 12, 4)
	b1, b2 := ids(7, 8), ids(7, 8, 21, 9)
	untrainable := call(ids(1, 2, 11, 3), ids(12))
	untrainable.Trainable, untrainable.Untrainable = false, []string{fulgur.UntrainableAborted}
	auxiliary := call(ids(5, 5), ids(6))
	auxiliary.Auxiliary = "title"
	for name, c := range map[string]struct {
		calls   []fulgur.Call
		want    []string
		sampled int
	}{
		"AD-01: a sub-agent's calls interleave with its parent's": {
			numbered(call(a1, ids(11)), call(b1, ids(21)), call(a2, ids(12)), call(b2, ids(22)), call(a3, ids(13))),
			[]string{"(1) (2) 11 (3) 12 (4) 13", "(7) (8) 21 (9) 22"}, 5},
		"the same in any order of arrival": {
			numbered(call(a3, ids(13)), call(b2, ids(22)), call(a2, ids(12)), call(b1, ids(21)), call(a1, ids(11))),
			[]string{"(1) (2) 11 (3) 12 (4) 13", "(7) (8) 21 (9) 22"}, 5},
		"AD-02: dropped reasoning splits, and what is replayed is context": {
			numbered(call(ids(1), ids(50, 51, 60)), call(ids(1, 60, 2), ids(61))),
			[]string{"(1) 50 51 60", "(1) (60) (2) 61"}, 4},
		"AD-03: the separator behind the end-of-turn token is not sampled": {
			numbered(call(ids(1, 2), ids(3, 100)), call(ids(1, 2, 3, 100, 10, 9), ids(4))),
			[]string{"(1) (2) 3 100 (10) (9) 4"}, 3},
		"AD-05, AD-06: an auxiliary call does not train, nor what the harness wrote": {
			numbered(call(a1, ids(11)), auxiliary, call(ids(1, 2, 11, 90, 91), ids(12))),
			[]string{"(1) (2) 11 (90) (91) 12"}, 2},
		"AD-07: no call, no sample": {nil, nil, 0},
		"AD-08: a call without log probs is context, the others train": {
			func() []fulgur.Call {
				x := numbered(call(a1, ids(11)), call(a2, ids(12)), call(a3, ids(13)))
				x[1].LogProbs = x[1].LogProbs[:0]
				return x
			}(), []string{"(1) (2) 11 (3) (12) (4) 13"}, 3},
		"AD-08: nor one with too few, which takes nobody else's away": {
			func() []fulgur.Call {
				x := numbered(call(a1, ids(11)), call(a2, ids(12, 15)), call(join(a2, ids(12, 15, 4)), ids(13)))
				x[1].LogProbs = x[1].LogProbs[:1]
				return x
			}(), []string{"(1) (2) 11 (3) (12) (15) (4) 13"}, 4},
		"AD-13: compaction opens a new lineage": {
			numbered(call(ids(1, 2), ids(11)), call(ids(1, 2, 11, 3), ids(12)), call(ids(1, 2, 11, 3, 12, 4), ids(30)), call(ids(1, 30, 5), ids(13)), call(ids(1, 30, 5, 13, 6), ids(14))),
			[]string{"(1) (2) 11 (3) 12 (4) 30", "(1) (30) (5) 13 (6) 14"}, 5},
		"AD-14: branches train the shared turn once": {
			numbered(call(a1, ids(11)), call(join(a1, ids(11, 3)), ids(12)), call(join(a1, ids(11, 4)), ids(13))),
			[]string{"(1) (2) 11 (3) 12", "(1) (2) (11) (4) 13"}, 3},
		"two conversations that went alike are two samples": {
			numbered(call(a1, ids(11)), call(a1, ids(11)), call(a2, ids(12)), call(a2, ids(12)), call(a3, ids(13))),
			[]string{"(1) (2) 11 (3) 12", "(1) (2) 11 (3) 12 (4) 13"}, 5},
		"two answers to one prompt both train": {
			numbered(call(a1, ids(11)), call(a1, ids(12)), call(ids(1, 2, 12, 5), ids(13))),
			[]string{"(1) (2) 11", "(1) (2) 12 (5) 13"}, 3},
		"an aborted call at the end is left out, but counts in T": {
			numbered(call(a1, ids(11)), untrainable), []string{"(1) (2) 11"}, 2},
		"AL-13: a sentinel log prob masks its call": {
			func() []fulgur.Call {
				x := numbered(call(a1, ids(11)), call(a2, ids(12)))
				x[1].LogProbs[0] = -9999
				return x
			}(), []string{"(1) (2) 11"}, 2},
	} {
		t.Run(name, func(t *testing.T) {
			b := Build("g", c.calls, Options{})
			got := masks(b)
			slices.Sort(got)
			slices.Sort(c.want)
			if diff := cmp.Diff(c.want, got); diff != "" {
				t.Errorf("samples (-want +got):\n%s", diff)
			}
			if b.Sampled != c.sampled {
				t.Errorf("T is %d, want %d", b.Sampled, c.sampled)
			}
			if diff := cmp.Diff(lost[name], b.Lost); diff != "" {
				t.Errorf("what does not train, by reason: %s", diff)
			}
			for _, s := range b.Samples() { // AD-03: a log prob is 0 where nothing trains, and nowhere else
				for j, on := range s.Mask {
					if on != (s.LogProbs[j] != 0) && s.Tokens[j] != 11 { // 11 may be shared: then it has its own
						t.Errorf("token %d: trains %v, log prob %g", s.Tokens[j], on, s.LogProbs[j])
					}
				}
			}
		})
	}
}

func TestWhyATokenTrainsOrNot(t *testing.T) {
	calls := numbered(call(ids(1), ids(11)), call(ids(1, 11, 2), ids(12)), call(ids(1, 11, 2, 12, 3), ids(13)), call(ids(1, 11, 4), ids(14)))
	calls[1].Trainable, calls[1].Untrainable = false, []string{fulgur.UntrainableSampling}
	b := Build("g", calls, Options{})
	want := [][]string{
		{Prompt, Trained, Observation, Untrainable + fulgur.UntrainableSampling, Observation, Trained},
		{Prompt, Shared, Observation, Trained},
	}
	for i := range want {
		if diff := cmp.Diff(want[i], b.Sequences[i].Why()); diff != "" {
			t.Error(diff)
		}
	}
}

func TestVersionsFollowSpans(t *testing.T) { // AS-05
	c := call(ids(1), ids(2, 3, 4))
	c.Spans = []fulgur.Span{{Start: 0, Version: 4}, {Start: 2, Version: 5}}
	b := Build("g", numbered(c), Options{})
	if diff := cmp.Diff([]fulgur.PolicyVersion{-1, 4, 4, 5}, b.Samples()[0].Versions); diff != "" {
		t.Error(diff)
	}
}

func TestOverLongIsCutAtACallsBorder(t *testing.T) { // AD-11
	calls := numbered(call(ids(1), ids(11)), call(ids(1, 11, 2), ids(12)), call(ids(1, 11, 2, 12, 3), ids(13, 14)))
	b := Build("g", calls, Options{MaxTokens: 6})
	if diff := cmp.Diff([]string{"(1) 11 (2) 12"}, masks(b)); diff != "" {
		t.Error(diff)
	}
	if b.Reasons[2] != OverLong || b.Sampled != 4 {
		t.Errorf("reasons %q, T %d", b.Reasons, b.Sampled)
	}
}

// forest draws calls of random conversations that branch, restart and repeat.
func forest(r *rand.Rand) []fulgur.Call {
	var calls []fulgur.Call
	next := int32(1000)
	fresh := func(n int) (out []int32) {
		for range n {
			out = append(out, next)
			next++
		}
		return out
	}
	for range 1 + r.IntN(30) {
		prompt := ids(int32(r.IntN(3)))
		if len(calls) > 0 && r.IntN(4) > 0 {
			p := calls[r.IntN(len(calls))]
			prompt = join(p.PromptIDs, p.SampledIDs)
			if r.IntN(8) == 0 {
				prompt = prompt[:1+r.IntN(len(prompt))]
			}
		}
		for range r.IntN(3) {
			prompt = append(prompt[:len(prompt):len(prompt)], int32(r.IntN(4)))
		}
		c := call(prompt, fresh(1+r.IntN(4)))
		if r.IntN(6) == 0 {
			c.Trainable, c.Untrainable = false, []string{"why"}
		}
		calls = append(calls, c)
	}
	r.Shuffle(len(calls), func(i, j int) { calls[i], calls[j] = calls[j], calls[i] })
	return numbered(calls...)
}

func TestEachSampledTokenTrainsAtMostOnce(t *testing.T) {
	for seed := range uint64(150) {
		calls := forest(rand.New(rand.NewPCG(seed, 1)))
		before := fmt.Sprint(calls)
		b := Build("g", calls, Options{})
		if fmt.Sprint(calls) != before {
			t.Fatal("the calls were changed")
		}
		if diff := cmp.Diff(b, Build("g", calls, Options{}), cmp.AllowUnexported(Turn{}, Built{})); diff != "" { // AD-09
			t.Fatalf("building twice differs:\n%s", diff)
		}
		// Every sampled token has an id of its own.
		trained := map[int32]int{}
		if Hash(b.Samples()) != b.Hash() {
			t.Fatal("views and samples have other hashes")
		}
		for i, s := range b.Samples() {
			why := b.Sequences[i].Why()
			if n := len(s.Tokens); len(s.Mask) != n || len(s.LogProbs) != n || len(s.Versions) != n || len(why) != n {
				t.Fatal("lengths differ")
			}
			for j, on := range s.Mask {
				if on != (why[j] == Trained) {
					t.Fatalf("mask %v, reason %s", on, why[j])
				}
				if !on {
					continue
				}
				trained[s.Tokens[j]]++
				if want := -float32(s.Tokens[j]) / 1000; s.LogProbs[j] != want || s.Versions[j] != 3 {
					t.Fatalf("token %d has log prob %g, version %d", s.Tokens[j], s.LogProbs[j], s.Versions[j])
				}
			}
		}
		sampled := 0
		for _, c := range calls {
			sampled += len(c.SampledIDs)
			for _, id := range c.SampledIDs {
				want := 0
				if c.Trainable {
					want = 1
				}
				if trained[id] != want {
					t.Fatalf("seed %d: token %d trains %d times, want %d", seed, id, trained[id], want)
				}
			}
		}
		if b.Sampled != sampled {
			t.Fatalf("T is %d, want %d", b.Sampled, sampled)
		}
	}
}

func TestOrderOfArrivalDoesNotChangeWhatTrains(t *testing.T) {
	set := func(b Built) map[string]bool {
		out := map[string]bool{}
		for _, s := range b.Samples() {
			for j, on := range s.Mask {
				if on { // a token with its whole context
					out[fmt.Sprint(s.Tokens[:j+1])] = true
				}
			}
		}
		return out
	}
	for seed := range uint64(60) {
		r := rand.New(rand.NewPCG(seed, 2))
		calls := forest(r)
		want := set(Build("g", calls, Options{}))
		shuffled := slices.Clone(calls)
		r.Shuffle(len(shuffled), func(i, j int) { shuffled[i], shuffled[j] = shuffled[j], shuffled[i] })
		if diff := cmp.Diff(want, set(Build("g", shuffled, Options{}))); diff != "" {
			t.Fatalf("seed %d:\n%s", seed, diff)
		}
	}
}

func TestParentIsTheLongestExactPrefix(t *testing.T) {
	for seed := range uint64(100) {
		calls := forest(rand.New(rand.NewPCG(seed, 3)))
		f := trace.Build(calls)
		for i, c := range calls {
			want, length := trace.NoParent, 0
			for j, p := range calls {
				h := join(p.PromptIDs, p.SampledIDs)
				if j != i && len(h) > length && len(h) <= len(c.PromptIDs) && slices.Equal(h, c.PromptIDs[:len(h)]) {
					want, length = j, len(h)
				}
			}
			if f.Parent[i] != want {
				t.Fatalf("seed %d: parent of %d is %d, want %d", seed, i, f.Parent[i], want)
			}
		}
	}
}

func TestNotFiniteLogProbsMaskTheirCallOnly(t *testing.T) {
	for _, bad := range []float32{float32(math.NaN()), float32(math.Inf(-1))} {
		calls := numbered(call(ids(1), ids(11)), call(ids(1, 11, 2), ids(12)))
		calls[0].LogProbs[0] = bad
		b := Build("g", calls, Options{})
		if diff := cmp.Diff([]string{"(1) (11) (2) 12"}, masks(b)); diff != "" {
			t.Error(diff)
		}
		if b.Samples()[0].LogProbs[1] != 0 {
			t.Error("a log prob that is not finite reached the sample")
		}
	}
}

func BenchmarkBuild(b *testing.B) {
	var calls []fulgur.Call
	prompt := make([]int32, 200)
	for i := range 30 {
		c := call(prompt, make([]int32, 100))
		calls = append(calls, c)
		prompt = join(prompt, c.SampledIDs, make([]int32, 430))
		prompt[len(prompt)-1] = int32(i)
	}
	for b.Loop() {
		Build("g", calls, Options{})
	}
}

package trainer

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/fulgur-rl/fulgur"
	"github.com/fulgur-rl/fulgur/internal/engine"
	"github.com/fulgur-rl/fulgur/internal/trainer/sample"
)

// rolloutOf makes an ended rollout whose conversation is cut into pieces of so
// many sampled tokens each, every piece a sample of its own.
func rolloutOf(id int, advantage float64, pieces ...int) ended {
	var calls []fulgur.Call
	token := int32(100)
	for i, n := range pieces {
		c := fulgur.Call{ID: fulgur.CallID(fmt.Sprint(id, "/", i)), Trainable: true, PromptIDs: []int32{int32(i), 1}}
		for range n {
			c.SampledIDs = append(c.SampledIDs, token)
			c.LogProbs = append(c.LogProbs, -1)
			token++
		}
		calls = append(calls, c)
	}
	e := ended{built: sample.Build("g", calls, sample.Options{})}
	e.line = RolloutLine{ID: fulgur.RolloutID(fmt.Sprint(id)), Advantage: advantage, Sampled: e.built.Sampled, Trained: e.built.Trained}
	return e
}

// splitted splits as a run does by default, and prepares the engine's data.
func splitted(t *testing.T, rollouts []ended, parts int, seed uint64) []minibatch {
	t.Helper()
	b, err := split(rollouts, parts, seed, 0, Objective{})
	if err != nil {
		t.Fatal(err)
	}
	tr := trainer{o: Options{Loss: engine.Loss{Name: engine.PPO}}}
	if err := tr.prepare(t.Context(), 1, b, &measured{}); err != nil {
		t.Fatal(err)
	}
	return b
}

// mass sums the absolute weights of the tokens that a mini-batch trains.
func mass(m minibatch) (total float64) {
	for _, d := range m.data {
		for i, a := range d.Advantages {
			if d.Mask[i] != 0 {
				total += math.Abs(float64(a))
			}
		}
	}
	return total
}

func TestEachRolloutHasOneShareWhateverItsSplit(t *testing.T) { // AL-01
	split1 := splitted(t, []ended{rolloutOf(0, 1, 50, 100), rolloutOf(1, -1, 30, 30, 30), rolloutOf(2, 1, 40)}, 1, 0)
	if len(split1) != 1 || len(split1[0].data) != 6 || math.Abs(mass(split1[0])-1) > 1e-6 {
		t.Errorf("%d samples with mass %g, want 6 with mass 1", len(split1[0].data), mass(split1[0]))
	}
	for pieces := range 5 {
		lengths := make([]int, pieces+1)
		for i := range lengths {
			lengths[i] = 60 / (pieces + 1)
		}
		b := splitted(t, []ended{rolloutOf(0, 2, lengths...), rolloutOf(1, 0, 7)}, 1, 0)
		if got := mass(b[0]); math.Abs(got-1) > 1e-6 { // |A|/R = 2/2: the rollout without advantage counts in R
			t.Errorf("%d pieces: mass %g, want 1", pieces+1, got)
		}
	}
}

func TestMaskedTokensAreNotMadeUpByTheRest(t *testing.T) {
	e := rolloutOf(0, 1, 10)
	e.line.Sampled = 40 // 30 more were sampled by calls that do not train
	b := splitted(t, []ended{e}, 1, 0)
	if got := mass(b[0]); math.Abs(got-0.25) > 1e-6 {
		t.Errorf("mass %g, want a quarter", got)
	}
}

func TestMinibatchesAreWholeRolloutsAndAsManyAsAskedFor(t *testing.T) { // AL-08, AL-12
	for seed := range uint64(100) {
		r := rand.New(rand.NewPCG(seed, 1))
		rollouts := make([]ended, 8+r.IntN(20))
		masked := 0
		for i := range rollouts {
			lengths := make([]int, 1+r.IntN(4))
			for k := range lengths {
				lengths[k] = 1 + r.IntN(9)
			}
			rollouts[i] = rolloutOf(i, float64(r.IntN(3)-1), lengths...)
			if r.IntN(6) == 0 {
				rollouts[i].line.Masked = maskInfrastructure
				masked++
			}
		}
		parts := 1 + r.IntN(4)
		batches := splitted(t, rollouts, parts, seed)
		if len(batches) != parts {
			t.Fatalf("%d mini-batches, want %d", len(batches), parts)
		}
		total := 0
		for _, b := range batches {
			total += b.rollouts
			want := 0.0
			if b.rollouts > 0 {
				want = float64(b.live) / float64(b.rollouts)
			}
			if math.Abs(mass(b)-want) > 1e-5 {
				t.Fatalf("seed %d: mass %g, want %g", seed, mass(b), want)
			}
		}
		if total != len(rollouts)-masked {
			t.Fatalf("%d rollouts in mini-batches, want %d", total, len(rollouts)-masked)
		}
		// The same seed cuts the same way.
		again := splitted(t, rollouts, parts, seed)
		for i := range batches {
			if batches[i].rollouts != again[i].rollouts || mass(batches[i]) != mass(again[i]) {
				t.Fatal("split is not a function of its arguments")
			}
		}
	}
}

func TestDatumPredictsTheNextToken(t *testing.T) {
	s := sample.Sequence{Prompt: []int32{1, 2, 3, 4}, Answer: []int32{5}, Turns: []sample.Turn{{Start: 2, Len: 2, LogProbs: []float32{-3, -4}, Why: sample.Trained}, {Start: 4, Len: 1, Why: sample.Shared}}}
	d := datum(&s)
	if !slices.Equal(d.Tokens, []int32{1, 2, 3}) || !slices.Equal(d.Targets, []int32{2, 3, 4}) || !slices.Equal(d.Mask, []float32{0, 1, 1}) ||
		!slices.Equal(d.OldLogProbs, []float32{0, -3, -4}) {
		t.Errorf("got %+v", d)
	}
}

func TestFailuresCountInTheScore(t *testing.T) { // AL-11
	one, zero := 1.0, 0.0
	line := func(reward *float64, class fulgur.OutcomeClass, masked string) ended {
		return ended{line: RolloutLine{Reward: reward, Class: class, Masked: masked}}
	}
	ok := fulgur.OutcomeOK
	s := score([]ended{line(&one, ok, ""), line(&one, ok, ""), line(nil, fulgur.OutcomeInfrastructure, maskInfrastructure), line(&one, ok, ""),
		line(&zero, ok, ""), line(&zero, ok, ""), line(&zero, fulgur.OutcomeAgent, ""), line(&zero, ok, "")}, 1)
	if s.Rollouts != 8 || s.Passes != 3 || s.Rate != 3./8 || s.Reward != 3./8 || s.AgentFailures != 1 || s.Infrastructure != 1 {
		t.Errorf("got %+v", s)
	}
	caught := []ended{line(&one, ok, maskAudit), line(&one, ok, "")} // graded before the audit has masked it
	s = score(caught, 1)
	if s.repeated(caught, 2, 1); s.Passes != 1 || s.Reward != 0.5 || s.AgentFailures != 1 || s.Infrastructure != 0 || s.Repeats.Pass.Value != 0.5 {
		t.Errorf("with a shortcut: %+v", s)
	}
}

func TestWilson(t *testing.T) {
	for _, c := range []struct {
		passes, n int
		low, high float64
	}{{0, 0, 0, 1}, {0, 10, 0, 0.2775}, {10, 10, 0.7225, 1}, {180, 200, 0.8506, 0.9344}, {15, 30, 0.3315, 0.6685}} {
		low, high := Wilson(c.passes, c.n)
		if math.Abs(low-c.low) > 1e-4 || math.Abs(high-c.high) > 1e-4 {
			t.Errorf("%d of %d: %.4f to %.4f, want %.4f to %.4f", c.passes, c.n, low, high, c.low, c.high)
		}
	}
}

func TestLearningRateGoesDownLinearlyAndStays(t *testing.T) {
	l := LearningRate{Start: 4e-4, End: 4e-5, Over: 200}
	for step, want := range map[int64]float64{1: 4e-4, 101: 2.2e-4, 201: 4e-5, 900: 4e-5} {
		if got := l.At(step); math.Abs(got-want) > 1e-12 {
			t.Errorf("step %d: %g, want %g", step, got, want)
		}
	}
	if (LearningRate{Start: 1}).At(5) != 1 {
		t.Error("a constant rate is not")
	}
}

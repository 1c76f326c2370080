package trainer

import (
	"math"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/fulgur-rl/fulgur"
	"github.com/fulgur-rl/fulgur/internal/trainer/sample"
)

func TestLedgerSharesOutTokensAndSeconds(t *testing.T) {
	lines := []RolloutLine{
		{Part: "train", Trained: 30, Lost: map[string]int{"aborted": 10}, Advantage: 1, Weight: 0.1, Seconds: 8},
		{Part: "train", Trained: 20, Seconds: 4}, // a group of equal rewards
		{Part: "train", Trained: 5, Lost: map[string]int{"aborted": 5}, Masked: "infrastructure", Seconds: 3},
		{Part: "train", Seconds: 1},
		{Part: "val", Trained: 1000, Seconds: 1000},
	}
	want := []Spent{{"trained", 1, 30, 6}, {"no_advantage", 1, 20, 4}, {"masked_infrastructure", 1, 10, 3}, {"call_aborted", 1, 10, 2}, {"no_calls", 1, 0, 1}}
	got := Ledger(lines)
	if diff := cmp.Diff(want[:2], got[:2]); diff != "" || len(got) != len(want) {
		t.Errorf("%v\n%s", got, diff)
	}
	if got := Ledger(lines[3:], Spent{"no_calls", 2, 7, 0.5}); len(got) != 1 || got[0] != (Spent{"no_calls", 3, 7, 1.5}) {
		t.Errorf("more: %v", got)
	}
}

func TestLedgerLosesNothing(t *testing.T) {
	for seed := range uint64(100) {
		r := rand.New(rand.NewPCG(seed, 1))
		var lines []RolloutLine
		tokens, seconds := 0, 0.0
		for range r.IntN(20) {
			l := RolloutLine{Part: "train", Trained: r.IntN(3) * r.IntN(50), Seconds: r.Float64(), Advantage: float64(r.IntN(2))}
			for range r.IntN(3) {
				if l.Lost == nil {
					l.Lost = map[string]int{}
				}
				l.Lost[[]string{"aborted", "over_long", "late"}[r.IntN(3)]] = 1 + r.IntN(9)
			}
			if r.IntN(5) == 0 {
				l.Masked = "grader_failed"
			}
			tokens += l.Trained
			for _, n := range l.Lost {
				tokens += n
			}
			seconds += l.Seconds
			lines = append(lines, l)
		}
		for _, s := range Ledger(lines) {
			tokens -= s.Tokens
			seconds -= s.Seconds
		}
		if tokens != 0 || math.Abs(seconds) > 1e-9 {
			t.Fatalf("seed %d: %d tokens and %g seconds are missing", seed, tokens, seconds)
		}
	}
}

func TestFragmentsOfARun(t *testing.T) {
	one, three := RolloutLine{Part: "train", Samples: 1, Sampled: 10}, RolloutLine{Part: "train", Samples: 3, Sampled: 20, Again: 7, Breaks: map[string]int{"compaction": 2}}
	got := Fragments([]RolloutLine{one, three, one, {Part: "train"}, {Part: "val", Samples: 9}})
	want := Fragmentation{Rollouts: 3, None: 1, Single: 2, Samples: 5, Whole: 2.0 / 3, PerRollout: 5.0 / 3, Most: 3, Breaks: map[string]int{"compaction": 2}, Again: 7, Sampled: 40}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

// AD-10: a batch that gives nothing shows its rollouts one by one, with the reasons.
func TestABatchWithoutATokenShowsItsRollouts(t *testing.T) {
	calls := map[string][]fulgur.Call{
		"r-errors": {{Untrainable: []string{fulgur.UntrainableError}}, {Untrainable: []string{fulgur.UntrainableError}}},
		"r-no-ids": {{Trainable: true}},
		"r-long":   {{Trainable: true, PromptIDs: make([]int32, 90), SampledIDs: make([]int32, 20), LogProbs: make([]float32, 20)}},
		"r-none":   nil,
	}
	var rollouts []ended
	for _, id := range []fulgur.RolloutID{"r-errors", "r-no-ids", "r-long", "r-none"} {
		e := ended{line: RolloutLine{ID: id, Part: "train", Class: fulgur.OutcomeOK, Calls: len(calls[string(id)])}}
		e.built = sample.Build("g", calls[string(id)], sample.Options{MaxTokens: 100})
		e.line.Take(&e.built)
		rollouts = append(rollouts, e)
	}
	err := usableBatch(rollouts)
	if fulgur.KindOf(err) != fulgur.KindInvalid {
		t.Fatal(err)
	}
	for _, want := range []string{"2 × error", "r-errors  2      0     2 × error", "r-no-ids  1      0     1 × missing_token_ids", "r-long    1      0     1 × over_long", "r-none    0      0     -"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%q is not in:\n%v", want, err)
		}
	}
}

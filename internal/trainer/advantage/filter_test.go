package advantage

import (
	"math"
	"slices"
	"testing"
)

func TestFilterLooksAtRewardsAsGiven(t *testing.T) { // AL-14
	members := slices.Concat(group("equal", 0, 0, 0), group("mixed", 0, 1, 0), group("few", 0, 1, 1), group("none", math.NaN()))
	members[6].Masked, members[7].Masked = true, true // of few: one is left
	for name, c := range map[string]struct {
		f    Filter
		want map[string]Verdict
	}{
		"off":           {Filter{}, map[string]Verdict{"equal": Kept, "mixed": Kept, "few": Kept, "none": Kept}},
		"equal rewards": {Filter{Equal: true}, map[string]Verdict{"equal": EqualRewards, "mixed": Kept, "few": EqualRewards, "none": EqualRewards}},
		"both":          {Filter{Equal: true, Valid: 2}, map[string]Verdict{"equal": EqualRewards, "mixed": Kept, "few": TooFewValid, "none": TooFewValid}},
	} {
		got := c.f.Judge(members)
		for g, want := range c.want {
			if got[g] != want {
				t.Errorf("%s: group %s is %q, want %q", name, g, got[g], want)
			}
		}
	}
}

func TestCurriculumPrefersRowsThatAreSometimesSolved(t *testing.T) {
	var c Curriculum
	always, never, half := c.Add(Passes{}, 8, 8), c.Add(Passes{}, 0, 8), c.Add(Passes{}, 4, 8)
	if !(c.Weight(half) == 1 && c.Weight(always) < 0.5 && math.Abs(c.Weight(never)-c.Weight(always)) < 1e-12 && c.Weight(Passes{}) == 1) {
		t.Errorf("weights %g %g %g", c.Weight(half), c.Weight(always), c.Weight(never))
	}
	for range 100 {
		never = c.Add(never, 0, 8)
	}
	if c.Weight(never) != 0.1 {
		t.Errorf("a row that is never solved weighs %g", c.Weight(never))
	}
	c.Decay = 0.5 // what is learned late counts soon
	for range 4 {
		never = c.Add(never, 4, 8)
	}
	if w := c.Weight(never); w < 0.3 {
		t.Errorf("a row that is solved by now weighs %g", w)
	}
}

func TestMoreEstimators(t *testing.T) {
	classes := group("a", 1, 0, 0, 0)
	classes[0].Class, classes[1].Class = "ok", "ok"
	classes[2].Class, classes[3].Class = "agent_failure", "agent_failure"
	batch := slices.Concat(group("a", 1, 1), group("b", 0, 0), group("c", 0.5))
	calls := func(discount float64, rewards ...[]float64) (out []Member) {
		for _, r := range rewards {
			total := 0.0
			for _, x := range r {
				total += x
			}
			out = append(out, Member{Group: "a", Reward: total, Calls: r})
		}
		return out
	}
	for name, c := range map[string]struct {
		e        Estimator
		members  []Member
		discount float64
		want     []float64
		calls    [][]float64
	}{
		// The others' classes: ok has 0, failures have 0; for the second: ok has 1.
		"a class has one vote": {ClassLOO, classes, 1, []float64{1, -0.5, -0.25, -0.25}, nil},
		"REINFORCE++ compares with the batch, groups of equals and of one too": {Reinforce, batch, 1,
			[]float64{1, 1, -1, -1, 0}, nil},
		"its baseline form compares in the group": {Baseline, slices.Concat(group("a", 1, 0), group("b", 3, 3)), 1,
			[]float64{0.5 / math.Sqrt(0.5/3), -0.5 / math.Sqrt(0.5/3), 0, 0}, nil},
		"a reward at the end, discounted, keeps its sign in every call": {DrGRPO, calls(0.5, []float64{0, 0, 1}, []float64{0, 0}), 0.5,
			nil, [][]float64{{0.125, 0.25, 0.5}, {-0.25, -0.5}}},
		"without a discount every call has the rollout's": {RLOO, calls(1, []float64{0, 1}, []float64{0}), 1,
			[]float64{1, -1}, [][]float64{{1, 1}, {-1}}},
		"what a call earns counts for it and those before": {DrGRPO, calls(1, []float64{1, 0}, []float64{0, 0}), 1,
			[]float64{0.25, -0.25}, [][]float64{{0.5, 0}, {-0.5, 0}}},
	} {
		t.Run(name, func(t *testing.T) {
			r, err := Compute(c.e, c.members, c.discount)
			if err != nil {
				t.Fatal(err)
			}
			for i, want := range c.want {
				if c.e == Reinforce { // in units of the batch's deviation
					want *= 0.5 / math.Sqrt(0.25)
				}
				if math.Abs(r.Advantages[i]-want) > 1e-6 {
					t.Fatalf("got %v, want %v", r.Advantages, c.want)
				}
			}
			for i, want := range c.calls {
				if !slices.EqualFunc(r.Calls[i], want, func(x, y float64) bool { return math.Abs(x-y) < 1e-9 }) {
					t.Fatalf("got %v, want %v", r.Calls, c.calls)
				}
			}
		})
	}
	if _, err := Compute(PassK, calls(1, []float64{1, 0}, []float64{0, 0}), 1); err == nil {
		t.Error("pass@k takes rewards of calls")
	}
	nan := group("a", 1, 0)
	nan[0].Calls = []float64{math.NaN(), 1}
	if r, err := Compute(GRPO, nan, 1); err != nil || r.NotFinite != 1 || r.Alone != 1 {
		t.Errorf("a call's NaN: %+v, %v", r, err)
	}
}

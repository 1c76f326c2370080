package advantage

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"
)

func group(name string, rewards ...float64) (out []Member) {
	for _, r := range rewards {
		out = append(out, Member{Group: name, Reward: r, Tokens: 10})
	}
	return out
}

func TestCompute(t *testing.T) {
	nan := math.NaN()
	masked := group("a", 1, 1, 0, 0)
	masked[1].Masked = true
	for name, c := range map[string]struct {
		e       Estimator
		members []Member
		want    []float64
	}{
		"AL-02: a masked member does not vote":            {GRPONoStd, masked, []float64{2. / 3, 0, -1. / 3, -1. / 3}},
		"AL-03: one vote per rollout, whatever its split": {GRPONoStd, group("a", 1, 0), []float64{0.5, -0.5}},
		"AL-04: a group of one gets 0":                    {GRPO, group("a", 5), []float64{0}},
		"AL-04: also under RLOO":                          {RLOO, group("a", 5), []float64{0}},
		"AL-09: a NaN reward is excluded":                 {GRPONoStd, group("a", 1, nan, 0, 1), []float64{1. / 3, 0, -2. / 3, 1. / 3}},
		"equal rewards give exactly 0":                    {GRPO, group("a", 0.7, 0.7, 0.7, 0.7, 0.7, 0.7, 0.7), make([]float64, 7)},
		"GRPO divides by the deviation":                   {GRPO, group("a", 1, 0), []float64{0.5 / (math.Sqrt(0.5) + 1e-6), -0.5 / (math.Sqrt(0.5) + 1e-6)}},
		"RLOO takes the others' mean":                     {RLOO, group("a", 1, 0, 0.5), []float64{0.75, -0.75, 0}},
		"pass@k: only the best":                           {PassK, group("a", 1, 0, 0), []float64{1 / (math.Sqrt(1./3) + 1e-6), 0, 0}},
		"pass@k: a tie for the best gives 0":              {PassK, group("a", 1, 1, 0), []float64{0, 0, 0}},
		"OPO with equal lengths is the mean baseline":     {OPO, group("a", 1, 0), []float64{0.5, -0.5}},
	} {
		t.Run(name, func(t *testing.T) {
			r, err := Compute(c.e, c.members, 1)
			if err != nil {
				t.Fatal(err)
			}
			for i := range c.want {
				if math.Abs(r.Advantages[i]-c.want[i]) > 1e-12 || c.want[i] == 0 && r.Advantages[i] != 0 {
					t.Fatalf("got %v, want %v", r.Advantages, c.want)
				}
			}
		})
	}
}

func TestCounts(t *testing.T) {
	members := slices.Concat(group("a", 1, 1), group("b", 0, 1), group("c", 3), group("d", math.NaN(), math.Inf(1)))
	r, err := Compute(GRPO, members, 1)
	if err != nil {
		t.Fatal(err)
	}
	if r.Groups != 3 || r.Unanimous != 1 || r.Alone != 1 || r.NotFinite != 2 {
		t.Errorf("got %+v", r)
	}
}

func TestUnknownEstimatorIsRefused(t *testing.T) {
	if _, err := Compute("x", group("a", 0, 1), 1); err == nil {
		t.Error("no error")
	}
}

func TestEstimatorsOnRandomGroups(t *testing.T) {
	for seed := range uint64(200) {
		r := rand.New(rand.NewPCG(seed, 1))
		var members []Member
		for g := range 1 + r.IntN(5) {
			for range 1 + r.IntN(8) {
				members = append(members, Member{Group: string(rune('a' + g)), Reward: float64(r.IntN(3)), Masked: r.IntN(5) == 0, Tokens: 1 + r.IntN(9)})
			}
		}
		for _, e := range Estimators() {
			a, err := Compute(e, members, 1)
			if err != nil {
				t.Fatal(err)
			}
			// Order does not matter, masked members change nothing, all is finite.
			order := r.Perm(len(members))
			other := make([]Member, len(members))
			for i, j := range order {
				other[i] = members[j]
				if other[i].Masked {
					other[i].Reward = math.NaN()
				}
			}
			b, err := Compute(e, other, 1)
			if err != nil {
				t.Fatal(err)
			}
			for i, j := range order {
				x, y := b.Advantages[i], a.Advantages[j]
				if e == PassK { // the first of equals differs with the order, but a tie gives 0
					x, y = math.Abs(x), math.Abs(y)
				}
				if math.Abs(x-y) > 1e-9 || math.IsNaN(x) || members[j].Masked && y != 0 {
					t.Fatalf("%s, seed %d: %g against %g", e, seed, x, y)
				}
			}
		}
	}
}

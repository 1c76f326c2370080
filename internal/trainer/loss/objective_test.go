package loss

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"
)

// forest makes random rollouts of random rows, with NaN wherever nothing trains.
func forest(r *rand.Rand, rollouts int) (rows []Row, logp [][]float32) {
	nan := float32(math.NaN())
	for k := range rollouts {
		a, sampled := float64(r.IntN(5)-2), 0
		first := len(rows)
		for range 1 + r.IntN(4) {
			n := 1 + r.IntN(9)
			row := Row{Rollout: k, Mask: make([]float32, n), Advantages: make([]float64, n), Sampled: make([]float32, n),
				Proximal: make([]float32, n), Reference: make([]float32, n)}
			now := make([]float32, n)
			for j := range n {
				if j > 0 && r.IntN(3) == 0 {
					row.Advantages[j], row.Sampled[j], row.Proximal[j], row.Reference[j], now[j] = math.NaN(), nan, nan, nan, nan
					continue
				}
				sampled++
				row.Mask[j], row.Advantages[j] = 1, a
				for _, x := range []*float32{&row.Sampled[j], &row.Proximal[j], &row.Reference[j], &now[j]} {
					*x = float32(-1 + 0.3*r.NormFloat64())
				}
			}
			rows, logp = append(rows, row), append(logp, now)
		}
		for i := first; i < len(rows); i++ {
			rows[i].Coefficient, _ = Coefficient(ByRollout, Totals{Rollouts: rollouts}, sampled, 0)
		}
	}
	return rows, logp
}

var specs = []Spec{
	{Name: PPO, Clip: Clip{Low: .2, High: .28}}, {Name: PPO, Clip: Clip{Low: .2, High: .28, Dual: 3}, KL: "k3", KLCoefficient: .1},
	{Name: ImportanceSampling}, {Name: CISPO, Clip: Clip{Low: .2, High: .28}, KL: "k2", KLCoefficient: .1},
	{Name: GSPO, Clip: Clip{Low: .01, High: .02}}, {Name: DRO, Beta: .1, KL: "k1", KLCoefficient: .1},
}

// The gradient is what a small change of a log prob does to the loss. GSPO's and
// CISPO's stop a gradient on purpose.
func TestGradientsAreDerivatives(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	rows, logp := forest(r, 6)
	for _, s := range specs {
		if s.Name == GSPO || s.Name == CISPO {
			continue
		}
		at, err := s.Evaluate(rows, logp)
		if err != nil {
			t.Fatal(err)
		}
		for i := range rows {
			for j := range logp[i] {
				if rows[i].Mask[j] == 0 {
					if at.Grad[i][j] != 0 {
						t.Errorf("%s: a masked token has the gradient %g", s.Name, at.Grad[i][j])
					}
					continue
				}
				const h = 1.0 / 1024
				was := logp[i][j]
				logp[i][j] = was + h
				up, _ := s.Evaluate(rows, logp)
				logp[i][j] = was - h
				down, _ := s.Evaluate(rows, logp)
				logp[i][j] = was
				if got := (up.Loss - down.Loss) / (2 * h); math.Abs(got-at.Grad[i][j]) > 1e-3*rows[i].Coefficient*4 {
					t.Errorf("%+v: row %d, token %d: %g by differences, %g as returned", s, i, j, got, at.Grad[i][j])
				}
			}
		}
	}
}

// AL-01, AL-06: rollouts may be split over calls and rows come in any order, and a
// NaN under a mask (all of them are NaN here) reaches nothing.
func TestNoOrderAndNoSplitChangesALoss(t *testing.T) {
	for seed := range uint64(50) {
		r := rand.New(rand.NewPCG(seed, 9))
		rows, logp := forest(r, 2+r.IntN(5))
		Correct(rows, Correction{By: []string{CorrectToken, CorrectSequence, CorrectNone}[seed%3], Truncate: 1.2, Low: .5, High: 2})
		for _, s := range specs {
			whole, err := s.Evaluate(rows, logp)
			if err != nil || math.IsNaN(whole.Loss) {
				t.Fatal(whole.Loss, err)
			}
			order := r.Perm(len(rows))
			mixed, lp := make([]Row, len(rows)), make([][]float32, len(rows))
			for i, k := range order {
				mixed[i], lp[i] = rows[k], logp[k]
			}
			other, _ := s.Evaluate(mixed, lp)
			sum := 0.0
			for k := range 8 { // one call per rollout
				var part []Row
				var l [][]float32
				for i := range rows {
					if rows[i].Rollout == k {
						part, l = append(part, rows[i]), append(l, logp[i])
					}
				}
				e, _ := s.Evaluate(part, l)
				sum += e.Loss
			}
			if math.Abs(whole.Loss-other.Loss) > 1e-12 || math.Abs(whole.Loss-sum) > 1e-12 {
				t.Errorf("%s: %g, in another order %g, rollout by rollout %g", s.Name, whole.Loss, other.Loss, sum)
			}
			for i, k := range order {
				for j := range other.Grad[i] {
					if math.Abs(other.Grad[i][j]-whole.Grad[k][j]) > 1e-12 { // sums in another order
						t.Fatalf("%s: the order changes a gradient: %g and %g", s.Name, other.Grad[i][j], whole.Grad[k][j])
					}
				}
			}
		}
	}
}

// A rollout that is one row and the same tokens as several rows are the same to a
// loss, by rollout's ratios and corrections too.
func TestASplitRolloutIsTheSameRollout(t *testing.T) {
	r := rand.New(rand.NewPCG(5, 6))
	rows, logp := forest(r, 1)
	var one Row
	var all []float32
	for i, x := range rows {
		one.Mask, one.Advantages, all = append(one.Mask, x.Mask...), append(one.Advantages, x.Advantages...), append(all, logp[i]...)
		one.Sampled, one.Proximal, one.Reference = append(one.Sampled, x.Sampled...), append(one.Proximal, x.Proximal...), append(one.Reference, x.Reference...)
		one.Coefficient = x.Coefficient
	}
	joined := []Row{one}
	for _, by := range []string{CorrectNone, CorrectToken, CorrectSequence} {
		c := Correction{By: by, Truncate: 2, Low: .1, High: 10}
		a, b := Correct(rows, c), Correct(joined, c)
		if math.Abs(a.Ratio-b.Ratio) > 1e-12 || math.Abs(a.Effective-b.Effective) > 1e-12 || a.Tokens != b.Tokens || a.Masked != b.Masked {
			t.Errorf("%s: drift %+v and %+v", by, a, b)
		}
		for _, s := range specs {
			x, _ := s.Evaluate(rows, logp)
			y, _ := s.Evaluate(joined, [][]float32{all})
			if math.Abs(x.Loss-y.Loss) > 1e-12 {
				t.Errorf("%s by %s: %g and %g", s.Name, by, x.Loss, y.Loss)
			}
		}
	}
}

func TestCorrect(t *testing.T) {
	row := func(rollout int, ratios ...float64) Row {
		r := Row{Rollout: rollout}
		for _, q := range ratios {
			r.Mask, r.Advantages = append(r.Mask, 1), append(r.Advantages, 1)
			r.Sampled, r.Proximal = append(r.Sampled, -1), append(r.Proximal, float32(-1+math.Log(q)))
		}
		return r
	}
	for name, c := range map[string]struct {
		c         Correction
		want      [][]float64
		cut, gone int
	}{
		"token: the ratio, cut from above":                                         {Correction{By: CorrectToken, Truncate: 2.01}, [][]float64{{0.5, 2}, {2.01}, {1}}, 1, 0},
		"sequence: the product over the rollout":                                   {Correction{By: CorrectSequence, Truncate: 2.5}, [][]float64{{2.5, 2.5}, {2.5}, {1}}, 3, 0},
		"a band masks tokens, and keeps weight 1 of the rest without a correction": {Correction{By: CorrectNone, Low: .8, High: 2.1}, [][]float64{{0, 1}, {0}, {1}}, 0, 2},
		"a band by sequence looks at the geometric mean":                           {Correction{By: CorrectSequence, Low: .9, High: 1.5}, [][]float64{{0, 0}, {0}, {1}}, 0, 3},
	} {
		rows := []Row{row(0, 0.5, 2), row(0, 4), row(1, 1)}
		d := Correct(rows, c.c)
		for i := range rows {
			for j, w := range c.want[i] {
				if math.Abs(rows[i].Importance[j]-w) > 1e-6 {
					t.Errorf("%s: weights %v, want %v", name, rows[i].Importance, c.want[i])
				}
			}
		}
		if d.Truncated != c.cut || d.Masked != c.gone || d.Tokens != 4 || math.Abs(d.Ratio-7.5/4) > 1e-6 {
			t.Errorf("%s: %+v", name, d)
		}
	}
}

func TestAggregations(t *testing.T) {
	total := Totals{Rollouts: 4, Tokens: 1000, Sequences: 8, Constant: 48}
	for name, want := range map[string]float64{ByRollout: 1. / 200, ByToken: 1. / 1000, BySequence: 1. / 160, ByConstant: 1. / 192} {
		if got, err := Coefficient(name, total, 50, 20); err != nil || math.Abs(got-want) > 1e-15 {
			t.Errorf("%s: %g, want %g (%v)", name, got, want, err)
		}
	}
	if _, err := Coefficient("mean", total, 1, 1); err == nil {
		t.Error("an unknown aggregation is taken")
	}
}

// What an engine computes by itself is what Evaluate does.
func TestWeightedRowsAreWhatEvaluateComputes(t *testing.T) {
	rows, logp := forest(rand.New(rand.NewPCG(8, 8)), 5)
	Correct(rows, Correction{By: CorrectToken, Truncate: 1.1, Low: .7, High: 3})
	for _, s := range specs {
		if !s.Plain() {
			continue
		}
		e, err := s.Evaluate(rows, logp)
		if err != nil {
			t.Fatal(err)
		}
		sum := 0.0
		for i := range rows {
			a, mask := rows[i].Weighted()
			l, grad, err := Sequence(s.Name, wide(logp[i]), wide(s.Old(&rows[i])), wide(a), wide(mask), s.Clip)
			if err != nil {
				t.Fatal(err)
			}
			sum += l
			if !slices.EqualFunc(grad, e.Grad[i], func(x, y float64) bool { return math.Abs(x-y) < 1e-7 }) {
				t.Errorf("%s: gradients %v and %v", s.Name, grad, e.Grad[i])
			}
		}
		if math.Abs(sum-e.Loss) > 1e-6 {
			t.Errorf("%s: %g and %g", s.Name, sum, e.Loss)
		}
	}
}

func wide(x []float32) []float64 {
	out := make([]float64, len(x))
	for i, v := range x {
		out[i] = float64(v)
	}
	return out
}

// Near the reference policy k3 is the reference's; far off it keeps its pull.
func TestDivergence(t *testing.T) {
	for _, kind := range []string{"k1", "k2", "k3"} {
		for _, d := range []float64{-2.5, -1, 0, 0.3, 4} {
			v, g, err := Divergence(kind, -3+d, -3)
			want, grad, _ := KLOf(kind, -3+d, -3)
			if err != nil || math.Abs(v-want) > 1e-12 || math.Abs(g-grad) > 1e-12 {
				t.Errorf("%s at %g: %g and %g, want %g and %g", kind, d, v, g, want, grad)
			}
		}
	}
	last := 0.0
	for y := range 40 {
		v, g, _ := Divergence("k3", -1-float64(y), -1)
		if v < last || g > 0 || g < -13 || y > 0 && g == 0 {
			t.Errorf("%d nats off: %g with the gradient %g", y, v, g)
		}
		last = v
		if up, g, _ := Divergence("k3", -1+float64(y), -1); up < 0 || g < 0 || y > 0 && g < 0.6 {
			t.Errorf("%d nats above: %g with the gradient %g", y, up, g)
		}
	}
	if _, _, err := Divergence("k4", 0, 0); err == nil {
		t.Error("k4 is taken")
	}
}

package loss

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"
)

// Batch is the input of the reference's policy losses; tables are [rows][tokens].
type Batch struct {
	LogProbs, Old, Advantages, Mask [][]float64
	Importance                      [][]float64 // off-policy correction weights; nil: none
}

// Config of a reference loss; names are verl's.
type Config struct {
	Mode      string // vanilla, gspo, cispo, gpg, reinforce, dro, dppo_tv, dppo_kl, sapo, geo_mean, kl_cov, clip_cov
	Clip      Clip
	Aggregate string // see Aggregate
	Global    Global

	Beta            float64 // dro
	CovRatio        float64 // kl_cov, clip_cov: share of the tokens that are picked
	KLCoef          float64 // kl_cov
	CovLow, CovHigh float64 // clip_cov: covariances that may be picked
	// Round is applied to the dual bound, to reproduce the type of the advantages
	// where it is narrower than that of the log probs; nil: float64.
	Round func(float64) float64
	// Pick orders n eligible tokens for clip_cov, which picks at random; nil: in order.
	Pick func(n int) []int
}

// Result is a loss with its gradient with respect to the log probs.
type Result struct {
	Loss    float64
	Grad    [][]float64
	Metrics map[string]float64
}

// cell is one token's part: the loss before aggregation, its derivative, and
// whether the upper or the dual bound applied.
type cell struct{ loss, grad, clipped, lower float64 }

// Reference computes a batch's loss as verl's core_algos does (commit
// 1dda039b9c63), with its habits: a masked token's derivative is multiplied by 0,
// so that a NaN there becomes a NaN of the gradient. It is what compat: v1 and
// tests are held to; engines sum PerToken over trained tokens.
func Reference(b Batch, c Config) (Result, error) {
	switch {
	case c.Mode == "vanilla" && !(c.Clip.Dual > 1):
		return Result{}, fmt.Errorf("the dual clip is at %g times the advantage: want more than 1", c.Clip.Dual)
	case c.Mode == "dro" && !(c.Beta > 0):
		return Result{}, fmt.Errorf("the loss dro has the beta %g: want more than 0", c.Beta)
	}
	if c.Mode == "geo_mean" {
		return geoMean(b, c), nil
	}
	cells, kl, err := tokens(b, c)
	if err != nil {
		return Result{}, err
	}
	if c.Mode == "gspo" || c.Mode == "sapo" {
		c.Aggregate = "seq-mean-token-mean"
	}
	losses := pick(cells, func(x cell) float64 { return x.loss })
	if b.Importance != nil {
		for i, row := range losses {
			for j := range row {
				row[j] *= b.Importance[i][j]
			}
		}
	}
	loss, coef, err := Aggregate(c.Aggregate, losses, b.Mask, c.Global)
	if err != nil {
		return Result{}, err
	}
	r := Result{Loss: loss, Grad: make([][]float64, len(cells)), Metrics: map[string]float64{}}
	for i, row := range cells {
		r.Grad[i] = make([]float64, len(row))
		for j, x := range row {
			r.Grad[i][j] = coef[i][j] * x.grad
			if b.Importance != nil {
				r.Grad[i][j] *= b.Importance[i][j]
			}
		}
	}
	if c.Mode != "gpg" {
		r.Metrics["actor/ppo_kl"] = maskedMean(kl, b.Mask)
	}
	if !slices.Contains([]string{"gpg", "reinforce", "dro", "kl_cov"}, c.Mode) {
		r.Metrics["actor/pg_clipfrac"] = maskedMean(pick(cells, func(x cell) float64 { return x.clipped }), b.Mask)
		if c.Mode != "clip_cov" {
			r.Metrics["actor/pg_clipfrac_lower"] = maskedMean(pick(cells, func(x cell) float64 { return x.lower }), b.Mask)
		}
	}
	return r, nil
}

func sum(x []float64) (s float64) {
	for _, v := range x {
		s += v
	}
	return s
}

func pick(cells [][]cell, f func(cell) float64) [][]float64 {
	out := make([][]float64, len(cells))
	for i, row := range cells {
		out[i] = make([]float64, len(row))
		for j, x := range row {
			out[i][j] = f(x)
		}
	}
	return out
}

func maskedMean(x, mask [][]float64) float64 {
	total, n := 0.0, 0.0
	for i, row := range mask {
		for j, m := range row {
			if m != 0 {
				total += x[i][j]
				n += m
			}
		}
	}
	return total / (n + 1e-8)
}

// tokens computes every token's part, and its estimate of the KL divergence from
// old to current: k1, for kl_cov its absolute value.
func tokens(b Batch, c Config) (cells [][]cell, kl [][]float64, err error) {
	cells, kl = make([][]cell, len(b.LogProbs)), make([][]float64, len(b.LogProbs))
	var chosen map[[2]int]bool
	if c.Mode == "kl_cov" || c.Mode == "clip_cov" {
		chosen = covariant(b, c)
	}
	for i, row := range b.LogProbs {
		cells[i], kl[i] = make([]cell, len(row)), make([]float64, len(row))
		sequence := 0.0
		for j := range row {
			sequence += (row[j] - b.Old[i][j]) * b.Mask[i][j]
		}
		sequence /= max(sum(b.Mask[i]), 1)
		for j, logp := range row {
			d, a := logp-b.Old[i][j], b.Advantages[i][j]
			kl[i][j] = -clamp(d, -20, 20)
			x := &cells[i][j]
			switch c.Mode {
			case "vanilla":
				*x = vanilla(d, a, c.Clip, c.Round)
			case "gspo":
				kl[i][j] = -d
				*x = gspo(sequence+(logp-logp), a, c.Clip) // an infinite log prob is a NaN there
			case "cispo":
				q := math.Exp(clamp(d, -20, 20))
				k := clamp(q, 1-c.Clip.Low, 1+c.Clip.High)
				*x = cell{loss: -k * a * logp, grad: -k * a, clipped: is(q != k)}
			case "gpg", "reinforce":
				kl[i][j] = -d
				*x = cell{loss: -a * logp, grad: -a}
			case "dro":
				kl[i][j] = -d
				*x = cell{loss: -(a*logp - c.Beta/2*d*d), grad: -(a - c.Beta*d)}
			case "dppo_tv", "dppo_kl":
				*x = dppo(c.Mode, logp, b.Old[i][j], a, c.Clip)
			case "sapo":
				*x = sapo(d, a)
			case "kl_cov":
				kl[i][j] = math.Abs(d)
				*x = cell{loss: -a * math.Exp(d), grad: -a * math.Exp(d)}
				if chosen[[2]int{i, j}] {
					x.loss += c.KLCoef * math.Abs(d)
					x.grad += c.KLCoef * sign(d)
				}
			case "clip_cov":
				kl[i][j] = -d
				*x = clipped(d, a, c.Clip)
				x.clipped = 0
				if chosen[[2]int{i, j}] {
					*x = cell{loss: 0 * x.loss, grad: 0 * x.grad, clipped: 1}
				}
			default:
				return nil, nil, fmt.Errorf("no loss %q", c.Mode)
			}
		}
	}
	return cells, kl, nil
}

func is(b bool) float64 {
	if b {
		return 1
	}
	return 0
}

func sign(x float64) float64 { return is(x > 0) - is(x < 0) }

// clamp keeps a NaN.
func clamp(x, low, high float64) float64 { return min(max(x, low), high) }

// exp corrects math.Exp by one Newton step where that helps: a ratio that lies
// exactly on a clip bound must not fall behind it by the last bit.
func exp(d float64) float64 {
	q := math.Exp(d)
	if math.Abs(d) < 1 {
		q += q * (d - math.Log(q))
	}
	return q
}

// vanilla is clipped PPO with a dual clip; the log ratio is clamped to ±20, and
// beyond it, or at a NaN, no gradient passes.
func vanilla(d, a float64, c Clip, round func(float64) float64) cell {
	q := exp(clamp(d, -20, 20))
	free, bound := -a*q, -a*clamp(q, 1-c.Low, 1+c.High)
	x := cell{loss: max(free, bound), clipped: is(bound > free)}
	most := -a * c.Dual
	if round != nil {
		most = round(most)
	}
	capped := a < 0 && x.loss > most
	if capped {
		x.loss, x.lower = most, 1
	}
	switch {
	case !(math.Abs(d) <= 20):
	case math.IsNaN(a) || free >= bound && !capped:
		x.grad = -a * q
	}
	return x
}

// clipped is clipped PPO without a dual clip or a bound of the log ratio.
func clipped(d, a float64, c Clip) cell {
	q := exp(d)
	free, bound := -a*q, -a*clamp(q, 1-c.Low, 1+c.High)
	x := cell{loss: max(free, bound), clipped: is(bound > free)}
	if x.grad = free; free < bound {
		x.grad = 0 * free // NaN where the ratio is infinite
	}
	return x
}

// gspo has one ratio for the whole sequence (Zheng et al. 2025, eq. 7, with the
// gradient through each token).
func gspo(s, a float64, c Clip) cell {
	q := math.Exp(min(s, 10))
	free, bound := -a*q, -a*clamp(q, 1-c.Low, 1+c.High)
	x := cell{loss: max(free, bound), clipped: is(bound > free)}
	if s <= 10 && !(free < bound) { // no gradient passes at a NaN of s
		x.grad = free
	}
	return x
}

// dppo masks tokens whose probability has moved too far the way that the
// advantage pushes.
func dppo(mode string, logp, old, a float64, c Clip) cell {
	p, was := math.Exp(logp), math.Exp(old)
	var keep bool
	switch {
	case mode == "dppo_tv" && a > 0:
		keep = p-was <= c.High
	case mode == "dppo_tv":
		keep = p-was >= -c.Low
	default:
		const tiny = 1e-8
		kl := was*(old-logp) + (1-was)*math.Log((1-was+tiny)/(1-p+tiny))
		keep = a > 0 && (kl <= c.High || p <= was) || !(a > 0) && (kl <= c.Low || p >= was)
	}
	q := math.Exp(clamp(logp-old, -20, 20))
	w := min(q, c.Dual) * is(keep)
	return cell{loss: -a * w * logp, grad: -a * w, clipped: is(!keep), lower: is(keep && q > c.Dual)}
}

// sapo has a soft gate in place of the clip; temperatures 1 and 1.05.
func sapo(d, a float64) cell {
	tau := 1.05
	if a > 0 {
		tau = 1
	}
	q := math.Exp(clamp(d, -20, 20))
	gate := 1 / (1 + math.Exp(-tau*(q-1)))
	x := cell{loss: -a * 4 / tau * gate}
	if math.Abs(d) <= 20 {
		x.grad = -a * 4 * gate * (1 - gate) * q
	}
	return x
}

// geoMean clips the log ratio and takes one geometric mean per row; a plain mean
// over all rows, empty ones too.
func geoMean(b Batch, c Config) Result {
	r := Result{Grad: make([][]float64, len(b.LogProbs)), Metrics: map[string]float64{}}
	kl, up, down := make([][]float64, len(b.LogProbs)), make([][]float64, len(b.LogProbs)), make([][]float64, len(b.LogProbs))
	rows := float64(len(b.LogProbs))
	for i, row := range b.LogProbs {
		n := len(row)
		r.Grad[i], kl[i], up[i], down[i] = make([]float64, n), make([]float64, n), make([]float64, n), make([]float64, n)
		t := max(sum(b.Mask[i]), 1e-8) // counted in float32, where the 1e-8 that is added is lost
		log, mean, importance := 0.0, 0.0, 0.0
		free := make([]bool, n) // of the clip; where it holds no gradient passes, not even a NaN
		for j, logp := range row {
			d, a, m := logp-b.Old[i][j], b.Advantages[i][j], b.Mask[i][j]
			s, cut := sign(a), clamp(d, -c.Clip.Low, c.Clip.High)
			x := s * min(s*d, s*cut)
			log += x * m / t
			mean += a * m / t
			if b.Importance != nil {
				importance += math.Log(b.Importance[i][j]+1e-10) * m / t
			}
			kl[i][j], up[i][j], down[i][j] = -d, is(d != cut && a > 0), is(d != cut && a < 0)
			r.Grad[i][j] = s * s * m / t
			free[j] = !(s*d > s*cut)
		}
		l := -mean * math.Exp(log) * math.Exp(importance)
		r.Loss += l / rows
		for j := range r.Grad[i] {
			if r.Grad[i][j] *= l / rows; !free[j] {
				r.Grad[i][j] = 0
			}
		}
	}
	r.Metrics["actor/ppo_kl"] = maskedMean(kl, b.Mask)
	r.Metrics["actor/pg_clipfrac"] = maskedMean(up, b.Mask)
	r.Metrics["actor/pg_clipfrac_lower"] = maskedMean(down, b.Mask)
	return r
}

// covariant picks the tokens whose advantage and log prob move together most
// (kl_cov), or some of those within bounds (clip_cov).
func covariant(b Batch, c Config) map[[2]int]bool {
	meanA, meanLog, n := mean(b.Advantages, b.Mask), mean(b.LogProbs, b.Mask), 0
	type token struct {
		at  [2]int
		cov float64
	}
	var all []token
	for i, row := range b.Mask {
		for j, m := range row {
			if m == 0 {
				continue
			}
			n++
			t := token{[2]int{i, j}, (b.Advantages[i][j] - meanA) * (b.LogProbs[i][j] - meanLog)}
			if c.Mode == "clip_cov" {
				x := clipped(b.LogProbs[i][j]-b.Old[i][j], b.Advantages[i][j], c.Clip)
				if x.clipped != 0 || !(t.cov > c.CovLow && t.cov < c.CovHigh) {
					continue
				}
			}
			all = append(all, t)
		}
	}
	if c.Mode == "kl_cov" {
		slices.SortStableFunc(all, func(x, y token) int { return -cmp.Compare(x.cov, y.cov) })
	} else if c.Pick != nil {
		shuffled := make([]token, len(all))
		for i, k := range c.Pick(len(all)) {
			shuffled[i] = all[k]
		}
		all = shuffled
	}
	k := min(len(all), max(1, int(c.CovRatio*float64(n))))
	chosen := map[[2]int]bool{}
	for _, t := range all[:k] {
		chosen[t.at] = true
	}
	return chosen
}

// RolloutWeights divides advantages by max(1, T·rows), T the trained tokens of a
// rollout over all its rows: v1's per-rollout normalisation. Round reproduces the
// type it is computed in; nil: float64.
func RolloutWeights(advantages, mask [][]float64, rollouts []string, rows int, round func(float64) float64) [][]float64 {
	if round == nil {
		round = func(x float64) float64 { return x }
	}
	t := map[string]float64{}
	for i, row := range mask {
		t[rollouts[i]] += round(sum(row))
	}
	out := make([][]float64, len(advantages))
	for i, row := range advantages {
		out[i] = make([]float64, len(row))
		for j, a := range row {
			out[i][j] = round(a / round(max(1, round(t[rollouts[i]]*float64(rows)))))
		}
	}
	return out
}

// KL returns estimates of the KL divergence of a reference policy from the
// current one, per token, and their gradient with respect to the log probs
// (Schulman, "Approximating KL divergence"): k1 (kl), abs, k2 (mse), k3
// (low_var_kl). A "+" behind the name has the value of the base and k2's gradient.
func KL(name string, logp, ref []float64) (value, grad []float64, err error) {
	value, grad = make([]float64, len(logp)), make([]float64, len(logp))
	for i := range logp {
		if value[i], grad[i], err = KLOf(name, logp[i], ref[i]); err != nil {
			return nil, nil, err
		}
	}
	return value, grad, nil
}

// KLOf is KL of one token.
func KLOf(name string, logp, ref float64) (value, grad float64, err error) {
	d := logp - ref
	base, straight := strings.CutSuffix(name, "+")
	switch base {
	case "k1", "kl":
		value, grad = d, 1
	case "abs":
		value, grad = math.Abs(d), sign(d)
	case "k2", "mse":
		value, grad = d*d/2, d
	case "k3", "low_var_kl":
		y := clamp(-d, -20, 20)
		raw := math.Exp(y) - y - 1
		if value = clamp(raw, -10, 10); value == raw && y == -d {
			grad = 1 - math.Exp(y)
		}
	default:
		return 0, 0, fmt.Errorf("no KL estimate %q", name)
	}
	if straight {
		value, grad = value+d*d/2-d*d/2, d // as it is computed there: NaN where it overflows
	}
	return value, grad, nil
}

// Entropy returns the entropy in nats of a row of logits, and its gradient.
func Entropy(logits []float64) (h float64, grad []float64) {
	top, z := slices.Max(logits), 0.0
	for _, x := range logits {
		z += math.Exp(x - top)
	}
	log := top + math.Log(z)
	grad = make([]float64, len(logits))
	mean := 0.0
	for _, x := range logits {
		mean += math.Exp(x-log) * x
	}
	for i, x := range logits {
		grad[i] = -math.Exp(x-log) * (x - mean)
	}
	return log - mean, grad
}

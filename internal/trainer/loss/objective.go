package loss

import (
	"fmt"
	"math"
)

// GSPO is a loss with one ratio for a whole rollout, the geometric mean over its
// trained tokens: -min(q A, clip(q) A) at each of them, with the gradient of each
// token through its own log prob (Zheng et al. 2025, the token form). The names of
// the other losses are in loss.go.
const GSPO = "gspo"

// The ways to add a mini-batch's tokens up.
const (
	ByRollout  = "rollout"  // 1 / (T R): each rollout has one share, each of its tokens the same part of it
	ByToken    = "token"    // 1 / ΣT: each token counts the same, so long rollouts count more
	BySequence = "sequence" // 1 / (N t): each training sequence has one share; a rollout that was split has several
	ByConstant = "constant" // 1 / (R C): a sum over tokens over a constant, so length is not looked at (Dr. GRPO)
)

// Totals of a mini-batch, over its unmasked rollouts, those with advantage 0
// included.
type Totals struct {
	Rollouts  int     // R
	Tokens    int     // ΣT: sampled in the rollouts' own conversations, trainable or not
	Sequences int     // N
	Constant  float64 // C, for ByConstant
}

// Coefficient returns what each trained token of a sequence is multiplied by. T is
// the number of tokens sampled in its rollout's own conversation, trainable or not;
// t the sequence's number of trained ones. By rollout, the weights of T tokens sum
// to one share of R, however many samples they became, and what is masked is not
// made up by the rest.
func Coefficient(aggregate string, total Totals, sampled, trained int) (float64, error) {
	over := 0.0
	switch aggregate {
	case ByRollout, "":
		over = float64(sampled) * float64(total.Rollouts)
	case ByToken:
		over = float64(total.Tokens)
	case BySequence:
		over = float64(total.Sequences) * float64(trained)
	case ByConstant:
		over = float64(total.Rollouts) * total.Constant
	default:
		return 0, fmt.Errorf("no aggregation %q", aggregate)
	}
	if over <= 0 {
		return 0, nil
	}
	return 1 / over, nil
}

// Row is one training sequence; all slices have one length, and a position whose
// Mask is 0 is never computed with.
type Row struct {
	Rollout     int       // which rollout of the mini-batch it is of: rows of one share what is measured by rollout
	Mask        []float32 // 0 or 1
	Advantages  []float64 // without any weight
	Coefficient float64   // of each token
	Sampled     []float32 // log probs of the policy that sampled
	Proximal    []float32 // of the policy at the start of the step; nil: the one that sampled
	Reference   []float32 // of the frozen reference policy; nil without a KL term
	Importance  []float64 // what corrects for the sampler; 0 masks a token; nil: 1 throughout
}

// old is what the ratio of a loss is against.
func (r *Row) old(name string) []float32 {
	if r.Proximal == nil || name == ImportanceSampling {
		return r.Sampled
	}
	return r.Proximal
}

// trains says whether position j counts.
func (r *Row) trains(j int) bool {
	return r.Mask[j] != 0 && (r.Importance == nil || r.Importance[j] != 0)
}

func (r *Row) importance(j int) float64 {
	if r.Importance == nil {
		return 1
	}
	return r.Importance[j]
}

// Spec is a run's whole loss.
type Spec struct {
	Name string  // a loss of single tokens, or gspo
	Clip Clip    // Dual: ppo and gspo
	Beta float64 // dro
	// KL adds KLCoefficient times an estimate of the divergence from the reference
	// policy to each trained token, whatever its advantage; "": none.
	KL            string // k1, k2, k3, as for Divergence
	KLCoefficient float64
	// Reference computes ppo as v1's trainer does: its dual clip is 3 unless set, and
	// a log ratio beyond ±20 has no gradient.
	Reference bool
}

// Plain says whether an engine's own loss of that name is all of it.
func (s Spec) Plain() bool {
	switch s.Name {
	case PPO, ImportanceSampling, CISPO:
		return !(s.Reference && s.Name == PPO) && s.Clip.Dual == 0 && (s.KL == "" || s.KLCoefficient == 0)
	}
	return false
}

// Weighted returns a row's advantages times everything that is constant during an
// update, for a loss that is Plain, and the mask of what trains.
func (r *Row) Weighted() (advantages, mask []float32) {
	advantages, mask = make([]float32, len(r.Mask)), make([]float32, len(r.Mask))
	for j := range r.Mask {
		if r.trains(j) {
			mask[j] = 1
			advantages[j] = float32(r.Advantages[j] * r.Coefficient * r.importance(j))
		}
	}
	return advantages, mask
}

// Old returns what an engine's ratio is against.
func (s Spec) Old(r *Row) []float32 { return r.old(s.Name) }

// Evaluated is a mini-batch's loss.
type Evaluated struct {
	Loss      float64
	Grad      [][]float64 // d Loss / d log prob; 0 where nothing trains
	Tokens    int
	Clipped   int     // tokens whose gradient the clip took away
	KL        float64 // sum over tokens of old - current
	Reference float64 // sum over tokens of the estimated divergence from the reference policy
}

// Evaluate returns the loss and its gradient at the given log probs, [row][position].
// It is a sum over tokens: rows may be split over calls as long as those of one
// rollout stay together. A log ratio is clamped to ±20 before it is exponentiated,
// and unlike in the reference a token beyond that keeps its gradient.
func (s Spec) Evaluate(rows []Row, logp [][]float32) (Evaluated, error) {
	e := Evaluated{Grad: make([][]float64, len(rows))}
	mean := map[int]float64{}
	if s.Name == GSPO {
		mean = meanRatio(rows, logp, func(r *Row) []float32 { return r.old(s.Name) })
	}
	for i := range rows {
		r := &rows[i]
		old := r.old(s.Name)
		e.Grad[i] = make([]float64, len(r.Mask))
		for j := range r.Mask {
			if !r.trains(j) {
				continue
			}
			x := float64(logp[i][j])
			d := x - float64(old[j])
			term, err := s.term(x, d, r.Advantages[j], mean[r.Rollout])
			if err != nil {
				return Evaluated{}, err
			}
			w := r.Coefficient * r.importance(j)
			e.Loss += w * term.Loss
			e.Grad[i][j] = w * term.Grad
			e.Tokens++
			e.KL -= d
			if term.Clipped {
				e.Clipped++
			}
			if r.Reference == nil || s.KL == "" {
				continue
			}
			value, grad, err := Divergence(s.KL, x, float64(r.Reference[j]))
			if err != nil {
				return Evaluated{}, err
			}
			e.Reference += value
			e.Loss += s.KLCoefficient * r.Coefficient * value
			e.Grad[i][j] += s.KLCoefficient * r.Coefficient * grad
		}
	}
	return e, nil
}

// k3Most is where k3 goes on as a straight line: at a value of about 10.
const k3Most = 2.61

// Divergence estimates the KL divergence of a reference policy from the current one
// at a token, and its gradient: k1, k2 or k3 as KLOf has them. Unlike in the
// reference arithmetic, k3 keeps its pull where it is large: with y the log prob of
// the reference less the current one, it is a straight line behind y = 2.61, so
// that a token which has become impossible is pulled back, and by no more than 13.
func Divergence(kind string, logp, ref float64) (value, grad float64, err error) {
	if kind != "k3" {
		return KLOf(kind, logp, ref)
	}
	y := ref - logp
	at := min(y, k3Most)
	slope := math.Exp(at) - 1
	return slope - at + slope*(y-at), -slope, nil
}

// term is one token's loss; d is its log ratio, mean that of its rollout.
func (s Spec) term(logp, d, advantage, mean float64) (Term, error) {
	if s.Reference && s.Name == PPO {
		c := s.Clip
		if c.Dual == 0 {
			c.Dual = 3
		}
		x := vanilla(d, advantage, c, nil)
		return Term{Loss: x.loss, Grad: x.grad, Clipped: x.clipped != 0 || x.lower != 0}, nil
	}
	d = clamp(d, -safety, safety)
	switch s.Name {
	case GSPO:
		return PerToken(PPO, mean, 0, advantage, s.Clip)
	case DRO:
		return PerToken(DRO, logp, logp-d, advantage, Clip{High: s.Beta})
	}
	return PerToken(s.Name, logp, logp-d, advantage, s.Clip)
}

// meanRatio returns each rollout's mean log ratio over its trained tokens.
func meanRatio(rows []Row, logp [][]float32, old func(*Row) []float32) map[int]float64 {
	sums, n := map[int]float64{}, map[int]float64{}
	for i := range rows {
		r := &rows[i]
		o := old(r)
		for j := range r.Mask {
			if r.trains(j) {
				sums[r.Rollout] += float64(logp[i][j]) - float64(o[j])
				n[r.Rollout]++
			}
		}
	}
	for k := range sums {
		sums[k] = clamp(sums[k]/n[k], -safety, safety)
	}
	return sums
}

// The levels of Correction.
const (
	CorrectNone     = "none"
	CorrectToken    = "token"
	CorrectSequence = "sequence"
)

// Correction says how tokens that another policy has sampled are weighted: with
// q = proximal/sampled of a token, or the product of a rollout's, by min(q,
// Truncate) (truncated importance sampling, Yao et al. 2025), and what leaves the
// band [Low, High] trains nothing (IcePop, Zhao et al. 2025).
type Correction struct {
	By        string  // none, token or sequence
	Truncate  float64 // 0: not
	Low, High float64 // of a token's q, by sequence of the geometric mean of its rollout's; High 0: no band
}

// On says whether it changes anything.
func (c Correction) On() bool { return c.By == CorrectToken || c.By == CorrectSequence || c.High > 0 }

// Drift says how far the policy at the start of a step is from the ones that
// sampled, over the tokens that train, before any of them is masked.
type Drift struct {
	Tokens   int
	Ratio    float64 // mean of q; 1 in expectation whatever the policies, so a bias of it is a mistake
	KL       float64 // mean of q - 1 - ln q: estimates the divergence of sampler from trainer, nats
	Distance float64 // mean of |ln q|
	// Bounded and BoundedKL are Ratio and KL with no q counted for more than 10: a
	// single token that has become likely moves a mean of q by thousands.
	Bounded, BoundedKL float64
	Farthest           float64 // largest |ln q|
	Truncated          int     // tokens whose weight was cut
	Masked             int     // tokens that left the band
	Effective          float64 // effective sample size of the weights, as a share of the tokens; 1 without a correction
}

// Correct sets the rows' Importance by their Proximal and Sampled log probs, and
// measures the drift.
func Correct(rows []Row, c Correction) Drift {
	const most = 10
	var d Drift
	sum := map[int]float64{}
	for i := range rows {
		rows[i].Importance = nil
	}
	each := func(f func(r *Row, j int, q float64)) {
		for i := range rows {
			r := &rows[i]
			if r.Proximal == nil {
				continue
			}
			for j := range r.Mask {
				if r.Mask[j] != 0 {
					f(r, j, float64(r.Proximal[j])-float64(r.Sampled[j]))
				}
			}
		}
	}
	count := map[int]float64{}
	each(func(r *Row, _ int, q float64) {
		d.Tokens++
		cut := clamp(q, -safety, safety)
		ratio, k3 := math.Exp(cut), math.Exp(cut)-1-cut
		d.Ratio, d.KL = d.Ratio+ratio, d.KL+k3
		d.Bounded += min(ratio, most)
		d.BoundedKL += min(k3, most)
		d.Distance += math.Abs(q)
		d.Farthest = max(d.Farthest, math.Abs(q))
		sum[r.Rollout] += q
		count[r.Rollout]++
	})
	if d.Tokens == 0 {
		return d
	}
	n := float64(d.Tokens)
	d.Ratio, d.KL, d.Distance, d.Effective = d.Ratio/n, d.KL/n, d.Distance/n, 1
	d.Bounded, d.BoundedKL = d.Bounded/n, d.BoundedKL/n
	if !c.On() {
		return d
	}
	for i := range rows {
		rows[i].Importance = make([]float64, len(rows[i].Mask))
		for j := range rows[i].Mask {
			rows[i].Importance[j] = 1
		}
	}
	total, square := 0.0, 0.0
	each(func(r *Row, j int, q float64) {
		w, inside := 1.0, q
		if c.By == CorrectSequence {
			q, inside = sum[r.Rollout], sum[r.Rollout]/count[r.Rollout]
		}
		if c.By == CorrectToken || c.By == CorrectSequence {
			w = math.Exp(clamp(q, -safety, safety))
			if c.Truncate > 0 && w > c.Truncate {
				w = c.Truncate
				d.Truncated++
			}
		}
		if ratio := math.Exp(clamp(inside, -safety, safety)); c.High > 0 && !(ratio >= c.Low && ratio <= c.High) {
			w = 0
			d.Masked++
		}
		r.Importance[j] = w
		total += w
		square += w * w
	})
	if d.Effective = 0; square > 0 {
		d.Effective = total * total / square / n
	}
	return d
}

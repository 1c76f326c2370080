package trainer

import (
	"fmt"
	"math"
	"slices"

	"github.com/fulgur-rl/fulgur/internal/trainer/advantage"
	"github.com/fulgur-rl/fulgur/internal/trainer/loss"
)

// What v1's trainer does between rows and the loss, for compat: v1: marked rows
// go, the rest is cut to whole mini-batches (rows of equal-reward groups first,
// then any), the advantage is taken over the rollouts that are left by the first
// row of each, and each row is weighted by tokens times rows. It computes in
// bfloat16 as v1's does; golden step.json holds it to the bit.

// v1Row is one training sequence.
type v1Row struct {
	rollout, group string
	score          float64 // the reward, rounded to bfloat16
	at             int     // the token that the reward sits on
	marked         bool    // cut by a limit: it is not trained on
	mask           []float64
	old, sampled   []float64 // log probs; nil without a correction
}

// v1Config has the settings under v1's names.
type v1Config struct {
	miniBatch    int // rows of an optimizer step: ppo_mini_batch_size × rollout.n
	maxUpdates   int // max_ppo_update_times; 0: no limit
	estimator    string
	std          bool
	gamma        float64
	rolloutLevel bool
	correction   *loss.CorrectionConfig
	bypass       bool // the sampler's log probs stand for the old policy's; no weights
}

// v1Cut says which rows can stay.
type v1Cut struct {
	rows     []int // those that are not marked
	drop     int   // how many of them have to go
	equal    []int // of groups whose scores are all equal: these go first
	nothing  bool  // fewer rows than a mini-batch: no update is made
	eligible int   // how many the random pick chooses from; 0: it is not needed
}

func v1Plan(rows []v1Row, c v1Config) v1Cut {
	var cut v1Cut
	groups := map[string][]int{}
	var order []string
	for i, r := range rows {
		if r.marked {
			continue
		}
		cut.rows = append(cut.rows, i)
		if groups[r.group] == nil {
			order = append(order, r.group)
		}
		groups[r.group] = append(groups[r.group], i)
	}
	keep := len(cut.rows) / c.miniBatch * c.miniBatch
	if c.maxUpdates > 0 {
		keep = min(keep, c.miniBatch*c.maxUpdates)
	}
	cut.drop, cut.nothing = len(cut.rows)-keep, keep == 0
	if cut.drop == 0 {
		return cut
	}
	for _, g := range order {
		first := rows[groups[g][0]].score
		far := func(i int) bool { return !(math.Abs(rows[i].score-first) <= 1e-8+1e-5*math.Abs(first)) }
		if !slices.ContainsFunc(groups[g], far) {
			cut.equal = append(cut.equal, groups[g]...)
		}
	}
	slices.Sort(cut.equal)
	if more := cut.drop - len(cut.equal); more > 0 {
		cut.eligible = len(cut.rows) - len(cut.equal)
	}
	return cut
}

// v1Keep drops rows at random where the plan leaves a choice. shuffle returns a
// permutation of n things.
func v1Keep(cut v1Cut, shuffle func(n int) []int) []int {
	gone := map[int]bool{}
	drop := func(from []int, n int) {
		for _, k := range shuffle(len(from))[:n] {
			gone[from[k]] = true
		}
	}
	drop(cut.equal, min(cut.drop, len(cut.equal)))
	rest := slices.DeleteFunc(slices.Clone(cut.rows), func(i int) bool { return gone[i] })
	drop(rest, cut.drop-len(gone))
	return slices.DeleteFunc(rest, func(i int) bool { return gone[i] })
}

// v1Weighed is a batch ready for the loss; tables are [kept rows][tokens].
type v1Weighed struct {
	advantages, weights, mask [][]float64
	importance                [][]float64 // nil: none
	normalized                bool
	metrics                   map[string]float64
}

// v1Weigh gives the rows that are kept their weights. What v1 refuses is refused:
// rewards that differ within a rollout or are not finite, a rollout whose first
// row has no token left, an advantage that differs within a row.
func v1Weigh(rows []v1Row, cut v1Cut, kept []int, c v1Config) (v1Weighed, error) {
	out := v1Weighed{normalized: !c.bypass}
	ids := make([]string, len(kept))
	first := map[string]int{}
	var order []int // first rows
	for k, i := range kept {
		r := rows[i]
		ids[k] = r.rollout
		out.mask = append(out.mask, r.mask)
		f, seen := first[r.rollout]
		switch {
		case !c.rolloutLevel: // nothing is checked there
		case math.IsNaN(r.score) || math.IsInf(r.score, 0):
			return out, fmt.Errorf("rollout %s has the reward %g", r.rollout, r.score)
		case seen && (rows[f].score != r.score || rows[f].group != r.group):
			return out, fmt.Errorf("the rows of rollout %s have different rewards or groups", r.rollout)
		case !seen:
			first[r.rollout] = i
			order = append(order, k)
		}
	}
	if c.correction != nil && !c.bypass {
		old, sampled := make([][]float64, len(kept)), make([][]float64, len(kept))
		for k, i := range kept {
			old[k], sampled[k] = rows[i].old, rows[i].sampled
		}
		corrected, err := loss.ReferenceCorrection(old, sampled, out.mask, *c.correction)
		if err != nil {
			return out, err
		}
		out.mask, out.importance = corrected.Mask, corrected.Weights
	}
	if err := out.estimate(rows, kept, order, c); err != nil {
		return out, err
	}
	out.weights = out.advantages
	if out.normalized {
		out.weights = loss.RolloutWeights(out.advantages, out.mask, ids, len(kept), advantage.Rounding(c.estimator))
	}
	out.measure(rows, cut, kept, c)
	return out, nil
}

// estimate fills in the advantages: by the first rows of the rollouts, or by all.
func (w *v1Weighed) estimate(rows []v1Row, kept, order []int, c v1Config) error {
	if !c.rolloutLevel {
		order = make([]int, len(kept))
		for k := range kept {
			order[k] = k
		}
	}
	var b advantage.Batch
	for _, k := range order {
		r := rows[kept[k]]
		rewards := make([]float64, len(r.mask))
		if r.score != 0 {
			rewards[r.at] = r.score
		}
		b.Rewards, b.Mask, b.Index = append(b.Rewards, rewards), append(b.Mask, w.mask[k]), append(b.Index, r.group)
	}
	round := advantage.Rounding(c.estimator)
	std := c.std || c.estimator == "grpo_vectorized" // which is never told
	values, _, err := advantage.Reference(b, advantage.Config{Estimator: c.estimator, Std: std, Gamma: c.gamma, Round: advantage.BFloat16})
	if err != nil {
		return err
	}
	scalar := map[string]float64{}
	for n, k := range order {
		for j := range values[n] {
			values[n][j] = round(values[n][j])
		}
		if c.rolloutLevel {
			id := rows[kept[k]].rollout
			a, err := constant(values[n], w.mask[k])
			if err != nil {
				return fmt.Errorf("rollout %s: %w", id, err)
			}
			scalar[id] = a
		}
	}
	w.advantages = values
	if !c.rolloutLevel {
		return nil
	}
	w.advantages = make([][]float64, len(kept))
	for k, i := range kept {
		w.advantages[k] = make([]float64, len(w.mask[k]))
		for j, m := range w.mask[k] {
			w.advantages[k][j] = scalar[rows[i].rollout] * m
		}
	}
	return nil
}

// constant returns the value that all trained tokens of a row share.
func constant(values, mask []float64) (float64, error) {
	at := slices.IndexFunc(mask, func(m float64) bool { return m != 0 })
	if at < 0 {
		return 0, fmt.Errorf("its first row has no token left to train on")
	}
	a := values[at]
	for j, m := range mask {
		if m != 0 && !(math.Abs(values[j]-a) <= 1e-8+1e-5*math.Abs(a)) {
			return 0, fmt.Errorf("the advantage is not one number: %g and %g", a, values[j])
		}
	}
	return a, nil
}

// measure counts under v1's names.
func (w *v1Weighed) measure(rows []v1Row, cut v1Cut, kept []int, c v1Config) {
	perRollout, groups := map[string]int{}, map[string][]float64{}
	for _, i := range kept {
		perRollout[rows[i].rollout]++
		groups[rows[i].group] = append(groups[rows[i].group], rows[i].score)
	}
	most, several, flat := 0, 0, 0
	for _, n := range perRollout {
		most = max(most, n)
		if n > 1 {
			several++
		}
	}
	for _, scores := range groups {
		if slices.Max(scores) == slices.Min(scores) {
			flat++
		}
	}
	same := min(cut.drop, len(cut.equal))
	w.metrics = map[string]float64{
		"training/n_sample_collected": float64(len(rows)), "training/n_sample_dropped/marked": float64(len(rows) - len(cut.rows)),
		"training/n_sample_dropped/same_reward": float64(same), "training/n_sample_dropped/random": float64(cut.drop - same),
		"training/n_sample_trained": float64(len(kept)), "critic/n_transition_after_dropping": float64(len(kept)),
		"training/n_groups": float64(len(groups)), "training/n_zero_adv_groups": float64(flat),
	}
	if c.rolloutLevel {
		const level = "training/rollout_level_advantage/"
		w.metrics[level+"n_rows"], w.metrics[level+"n_rollouts"] = float64(len(kept)), float64(len(perRollout))
		w.metrics[level+"n_multi_row_rollouts"], w.metrics[level+"max_rows_per_rollout"] = float64(several), float64(most)
	}
}

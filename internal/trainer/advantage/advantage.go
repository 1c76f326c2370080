// Package advantage turns the rewards of a batch of rollouts into advantages: one
// number in and one number out per rollout, before samples exist, so that no
// split of a rollout into samples can change them. It also holds the token-level
// estimators of the reference (Reference), which golden data checks.
package advantage

import (
	"fmt"
	"math"
)

// Estimator names a formula. Within a group, with n voting members, reward s,
// mean μ and standard deviation σ (n-1):
type Estimator string

// The estimators, by their names in the run file.
const (
	GRPO      Estimator = "grpo"                         // (s-μ)/(σ+1e-6); DeepSeekMath, eq. 21
	GRPONoStd Estimator = "grpo_no_std"                  // s-μ; the run file's grpo with normalize_std: false
	DrGRPO    Estimator = "dr_grpo"                      // s-μ ("Understanding R1-Zero-like training": no length or std bias; the loss has its constant part)
	RLOO      Estimator = "rloo"                         // s - mean of the others = (s-μ)n/(n-1); Ahmadian et al. 2024
	ClassLOO  Estimator = "class_loo"                    // s - mean over outcome classes of the others' mean in each: a class has one vote, so that many alike failures do not move the baseline
	OPO       Estimator = "opo"                          // s - Σ(T s)/ΣT: the length-weighted baseline; T as Member.Tokens; Hao et al. 2025
	PassK     Estimator = "pass_at_k"                    // the best member only: (best - second)/(σ+1e-6); Chen et al. 2025
	Reinforce Estimator = "reinforce_plus_plus"          // (s - mean of the batch)/σ of the batch; Hu 2025
	Baseline  Estimator = "reinforce_plus_plus_baseline" // s-μ over the batch's σ of it; Hu 2025
)

// Estimators lists the names that Compute takes.
func Estimators() []Estimator {
	return []Estimator{GRPO, GRPONoStd, DrGRPO, RLOO, ClassLOO, OPO, PassK, Reinforce, Baseline}
}

// Member is one rollout of the batch.
type Member struct {
	Group  string
	Reward float64
	Masked bool   // neither trains nor votes
	Tokens int    // T; only OPO looks at it
	Class  string // how the rollout ended; only ClassLOO looks at it
	// Calls are rewards of single calls, in order, the rollout's own added to the
	// last one; nil: Reward is all there is, and counts for each call alike.
	Calls []float64
}

// Result of Compute.
type Result struct {
	Advantages []float64 // per member; 0 for one that does not vote; with Calls the mean of the calls' advantages
	// Calls has an advantage per call of the members that have Calls; else nil.
	Calls     [][]float64
	NotFinite int // unmasked members whose reward is NaN or infinite: excluded as if masked
	Groups    int // groups with at least one voter
	Unanimous int // groups of two or more voters with equal rewards
	Alone     int // groups with one voter
}

// epsilon keeps the division by σ finite. Equal rewards never get here: they give
// exactly 0, not rounding errors times 1e6 (golden case grpo_equal_rewards_float32).
const epsilon = 1e-6

// Compute returns one advantage per member. Masked members and rewards that are
// not finite do not vote. A member that has nothing to be compared with gets 0:
// in a group with one voter or equal rewards; REINFORCE++ compares with the batch.
//
// Where members have Calls, the return of a call is its reward plus discount times
// the next call's, and is compared with the others' returns at the same distance
// from their end (one that is shorter counts as if nothing had been rewarded
// before); what divides is of the whole rewards. With a discount of 1 and a reward
// at the end only, every call has the rollout's advantage. discount 0 counts as 1.
func Compute(e Estimator, members []Member, discount float64) (Result, error) {
	if discount == 0 {
		discount = 1
	}
	r := Result{Advantages: make([]float64, len(members)), Calls: make([][]float64, len(members))}
	groups := map[string][]int{}
	var order []string
	var voters []int
	for i, m := range members {
		switch {
		case m.Masked:
			continue
		case !finite(m):
			r.NotFinite++
			continue
		}
		if _, ok := groups[m.Group]; !ok {
			order = append(order, m.Group)
		}
		groups[m.Group] = append(groups[m.Group], i)
		voters = append(voters, i)
	}
	r.Groups = len(order)
	c := computing{e: e, members: members, discount: discount, out: &r}
	for _, g := range order {
		in := groups[g]
		switch {
		case len(in) == 1:
			r.Alone++
		case c.equal(in):
			r.Unanimous++
		case e == Reinforce:
			continue
		default:
			if err := c.group(in); err != nil {
				return Result{}, err
			}
		}
	}
	if e == Reinforce && len(voters) > 1 && !c.equal(voters) {
		if err := c.group(voters); err != nil {
			return Result{}, err
		}
	}
	if e == Reinforce || e == Baseline {
		c.scale(voters)
	}
	return r, nil
}

func finite(m Member) bool {
	ok := func(x float64) bool { return !math.IsNaN(x) && !math.IsInf(x, 0) }
	for _, x := range m.Calls {
		if !ok(x) {
			return false
		}
	}
	return ok(m.Reward)
}

type computing struct {
	e        Estimator
	members  []Member
	discount float64
	out      *Result
}

// at returns a member's return at a distance from its end, in calls.
func (c *computing) at(i, distance int) float64 {
	calls := c.members[i].Calls
	if calls == nil {
		return c.members[i].Reward
	}
	sum := 0.0
	for k := max(0, len(calls)-1-distance); k < len(calls); k++ {
		sum += calls[k] * math.Pow(c.discount, float64(k-(len(calls)-1-distance)))
	}
	return sum
}

// length is the number of calls whose advantages differ.
func (c *computing) length(i int) int { return max(1, len(c.members[i].Calls)) }

func (c *computing) longest(in []int) (n int) {
	for _, i := range in {
		n = max(n, c.length(i))
	}
	return n
}

func (c *computing) equal(in []int) bool {
	for d := range c.longest(in) {
		for _, i := range in[1:] {
			if c.at(i, d) != c.at(in[0], d) {
				return false
			}
		}
	}
	return true
}

// group writes the advantages of one group of at least two voters.
func (c *computing) group(in []int) error {
	n := float64(len(in))
	mean := 0.0
	for _, i := range in {
		mean += c.members[i].Reward / n
	}
	v := 0.0
	for _, i := range in {
		d := c.members[i].Reward - mean
		v += d * d / (n - 1)
	}
	scale := 1.0
	switch c.e {
	case GRPO:
		scale = 1 / (math.Sqrt(v) + epsilon)
	case PassK:
		for _, i := range in {
			if c.members[i].Calls != nil {
				return fmt.Errorf("%s knows the rollouts' rewards only, not those of single calls", PassK)
			}
		}
		best, second := bestTwo(c.members, in)
		c.out.Advantages[best] = (c.members[best].Reward - second) / (math.Sqrt(v) + epsilon)
		return nil
	}
	for d := range c.longest(in) {
		values := make([]float64, len(in))
		for k, i := range in {
			values[k] = c.at(i, d)
		}
		base, err := c.baselines(in, values)
		if err != nil {
			return err
		}
		for k, i := range in {
			if d >= c.length(i) {
				continue
			}
			a := (values[k] - base[k]) * scale
			c.out.Advantages[i] += a / float64(c.length(i))
			if calls := c.members[i].Calls; calls != nil {
				if c.out.Calls[i] == nil {
					c.out.Calls[i] = make([]float64, len(calls))
				}
				c.out.Calls[i][len(calls)-1-d] = a
			}
		}
	}
	return nil
}

// baselines returns what each member's value is compared with.
func (c *computing) baselines(in []int, values []float64) ([]float64, error) {
	n, sum := float64(len(in)), 0.0
	for _, v := range values {
		sum += v
	}
	out := make([]float64, len(in))
	switch c.e {
	case GRPO, GRPONoStd, DrGRPO, Baseline, Reinforce:
		for k := range out {
			out[k] = sum / n
		}
	case RLOO:
		for k, v := range values {
			out[k] = (sum - v) / (n - 1)
		}
	case ClassLOO:
		for k := range out {
			out[k] = c.classes(in, values, k)
		}
	case OPO:
		weighted, tokens := 0.0, 0.0
		for k, i := range in {
			weighted += float64(c.members[i].Tokens) * values[k]
			tokens += float64(c.members[i].Tokens)
		}
		if tokens == 0 {
			weighted, tokens = sum, n
		}
		for k := range out {
			out[k] = weighted / tokens
		}
	default:
		return nil, fmt.Errorf("no estimator %q; there are %v", c.e, Estimators())
	}
	return out, nil
}

// classes is the mean, over the outcome classes of the members other than k, of
// the mean of their values.
func (c *computing) classes(in []int, values []float64, k int) float64 {
	var names []string // in order, so that equal data gives equal bits
	sum, n := map[string]float64{}, map[string]float64{}
	for j, i := range in {
		if j == k {
			continue
		}
		class := c.members[i].Class
		if n[class] == 0 {
			names = append(names, class)
		}
		sum[class] += values[j]
		n[class]++
	}
	total := 0.0
	for _, class := range names {
		total += sum[class] / n[class]
	}
	return total / float64(len(names))
}

// scale divides by the deviation of the voters' advantages over the batch, each
// with one vote.
func (c *computing) scale(voters []int) {
	n, v := float64(len(voters)), 0.0
	for _, i := range voters {
		v += c.out.Advantages[i] * c.out.Advantages[i] / max(1, n-1) // their mean is 0
	}
	if v == 0 {
		return
	}
	by := 1 / math.Sqrt(v+1e-8)
	for _, i := range voters {
		c.out.Advantages[i] *= by
		for k := range c.out.Calls[i] {
			c.out.Calls[i][k] *= by
		}
	}
}

// bestTwo returns the first of the best members and the second best reward.
func bestTwo(members []Member, in []int) (best int, second float64) {
	best, second = in[0], math.Inf(-1)
	for _, i := range in[1:] {
		switch s := members[i].Reward; {
		case s > members[best].Reward:
			best, second = i, members[best].Reward
		case s > second:
			second = s
		}
	}
	return best, second
}

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

// The estimators.
const (
	GRPO      Estimator = "grpo"                 // (s-μ)/(σ+1e-6); DeepSeekMath, eq. 21
	GRPONoStd Estimator = "grpo_no_std"          // s-μ
	DrGRPO    Estimator = "dr_grpo"              // s-μ ("Understanding R1-Zero-like training": no length or std bias; the loss has its constant part)
	RLOO      Estimator = "rloo"                 // s - mean of the others = (s-μ)n/(n-1); Ahmadian et al. 2024
	OPO       Estimator = "opo"                  // s - Σ(T s)/ΣT: the length-weighted baseline; T as Member.Tokens
	PassK     Estimator = "pass_k"               // the best member only: (best - second)/(σ+1e-6)
	Reinforce Estimator = "reinforce++_baseline" // s-μ, whitened over the batch, one vote per rollout
)

// Estimators lists the names that Compute takes.
func Estimators() []Estimator {
	return []Estimator{GRPO, GRPONoStd, DrGRPO, RLOO, OPO, PassK, Reinforce}
}

// Member is one rollout of the batch.
type Member struct {
	Group  string
	Reward float64
	Masked bool // neither trains nor votes
	Tokens int  // T; only OPO looks at it
}

// Result of Compute.
type Result struct {
	Advantages []float64 // per member; 0 for one that does not vote
	NotFinite  int       // unmasked members whose reward is NaN or infinite: excluded as if masked
	Groups     int       // groups with at least one voter
	Unanimous  int       // groups of two or more voters with equal rewards: all advantages are exactly 0
	Alone      int       // groups with one voter: advantage 0
}

// epsilon keeps the division by σ finite. Equal rewards never get here: they give
// exactly 0, not rounding errors times 1e6 (golden case grpo_equal_rewards_float32).
const epsilon = 1e-6

// Compute returns one advantage per member. Masked members and rewards that are
// not finite do not vote. A group with one voter gets 0: it has nothing to be
// compared with.
func Compute(e Estimator, members []Member) (Result, error) {
	r := Result{Advantages: make([]float64, len(members))}
	groups := map[string][]int{}
	var order []string
	for i, m := range members {
		if m.Masked {
			continue
		}
		if math.IsNaN(m.Reward) || math.IsInf(m.Reward, 0) {
			r.NotFinite++
			continue
		}
		if _, ok := groups[m.Group]; !ok {
			order = append(order, m.Group)
		}
		groups[m.Group] = append(groups[m.Group], i)
	}
	r.Groups = len(order)
	var voters []int
	for _, g := range order {
		in := groups[g]
		voters = append(voters, in...)
		switch {
		case len(in) == 1:
			r.Alone++
		case equal(members, in):
			r.Unanimous++
		default:
			if err := inGroup(e, members, in, r.Advantages); err != nil {
				return Result{}, err
			}
		}
	}
	if e == Reinforce {
		whiten(r.Advantages, voters)
	}
	return r, nil
}

func equal(members []Member, in []int) bool {
	for _, i := range in[1:] {
		if members[i].Reward != members[in[0]].Reward {
			return false
		}
	}
	return true
}

// inGroup writes the advantages of one group of at least two voters.
func inGroup(e Estimator, members []Member, in []int, out []float64) error {
	n := float64(len(in))
	mean := 0.0
	for _, i := range in {
		mean += members[i].Reward / n
	}
	v := 0.0
	for _, i := range in {
		d := members[i].Reward - mean
		v += d * d / (n - 1)
	}
	std := math.Sqrt(v)
	switch e {
	case GRPO:
		for _, i := range in {
			out[i] = (members[i].Reward - mean) / (std + epsilon)
		}
	case GRPONoStd, DrGRPO, Reinforce:
		for _, i := range in {
			out[i] = members[i].Reward - mean
		}
	case RLOO:
		for _, i := range in {
			out[i] = (members[i].Reward - mean) * n / (n - 1)
		}
	case OPO:
		sum, tokens := 0.0, 0.0
		for _, i := range in {
			sum += float64(members[i].Tokens) * members[i].Reward
			tokens += float64(members[i].Tokens)
		}
		if tokens == 0 {
			sum, tokens = mean, 1
		}
		for _, i := range in {
			out[i] = members[i].Reward - sum/tokens
		}
	case PassK:
		best, second := bestTwo(members, in)
		out[best] = (members[best].Reward - second) / (std + epsilon)
	default:
		return fmt.Errorf("no estimator %q; there are %v", e, Estimators())
	}
	return nil
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

// whiten divides by the standard deviation over the voters and takes the mean
// off, each voter with one vote. Equal values stay as they are.
func whiten(a []float64, voters []int) {
	n := float64(len(voters))
	if n < 2 {
		return
	}
	mean, v := 0.0, 0.0
	for _, i := range voters {
		mean += a[i] / n
	}
	for _, i := range voters {
		v += (a[i] - mean) * (a[i] - mean) / (n - 1)
	}
	if v == 0 {
		return
	}
	for _, i := range voters {
		if a[i] != 0 { // a member of a unanimous group carries no signal and stays exactly 0
			a[i] = (a[i] - mean) / math.Sqrt(v+1e-8)
		}
	}
}

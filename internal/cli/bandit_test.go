package cli

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/fulgur-rl/fulgur"
	"github.com/fulgur-rl/fulgur/internal/config"
	"github.com/fulgur-rl/fulgur/internal/controller/plan"
	"github.com/fulgur-rl/fulgur/internal/trainer/advantage"
)

// The actions of the bandit: one that solves the task in half of the tries, one
// that never does, and one that brings its end about in another way than failing.
const (
	solve = iota
	fail
	escape
	actions
)

// bandit trains a softmax policy on one problem, with the real table of outcomes,
// the real judge and the real estimator, and returns how likely escape is in the end.
func bandit(t *testing.T, table plan.Table, exit plan.Exit, seed uint64) float64 {
	t.Helper()
	rng := rand.New(rand.NewPCG(seed, 7))
	logits := [actions]float64{math.Log(0.1), math.Log(0.6), math.Log(0.3)} // most of a group fails
	probs := func() (p [actions]float64) {
		sum := 0.0
		for i, l := range logits {
			p[i] = math.Exp(l)
			sum += p[i]
		}
		for i := range p {
			p[i] /= sum
		}
		return p
	}
	draw := func(p [actions]float64) int {
		x := rng.Float64()
		for a := range p {
			if x -= p[a]; x < 0 {
				return a
			}
		}
		return escape
	}
	// play is one rollout with its attempts: what the last one did is what trains.
	play := func(p [actions]float64) (action int, m advantage.Member) {
		for before := (plan.History{}); ; before.Failures++ {
			action = draw(p)
			facts := plan.Facts{Calls: 2, Before: before, Limits: plan.Limits{Table: table}}
			if action == escape {
				facts.Exit = exit
			}
			v := plan.Judge(facts)
			if v.Retry {
				continue
			}
			switch f := table.Follow(v.Outcome.Class, v.Outcome.Reason); {
			case f.Mask:
				m.Masked = true
			case f.Value != nil:
				m.Reward = *f.Value
			case action == solve && rng.IntN(2) == 0:
				m.Reward = 1
			}
			return action, m
		}
	}
	const groups, size, rate = 8, 8, 0.15
	for range 50 {
		p := probs()
		var members []advantage.Member
		var did []int
		for i := range groups * size {
			action, m := play(p)
			m.Group = fmt.Sprint(i / size)
			members, did = append(members, m), append(did, action)
		}
		r, err := advantage.Compute(advantage.GRPO, members, 1)
		if err != nil {
			t.Fatal(err)
		}
		voters := 0
		for _, m := range members {
			if !m.Masked {
				voters++
			}
		}
		var gradient [actions]float64 // of Σ A log π, each rollout A / R
		for i, a := range did {
			if members[i].Masked {
				continue
			}
			for b := range gradient {
				gradient[b] += r.Advantages[i] * (map[bool]float64{true: 1}[a == b] - p[b]) / float64(voters)
			}
		}
		for b := range logits {
			logits[b] += rate * gradient[b]
		}
	}
	return probs()[escape]
}

// An agent that can exhaust its memory, be evicted or run into a deadline learns
// nothing by it: with the default outcomes the action does not become more likely
// over 50 steps of GRPO in groups that mostly fail. Where it is masked, or gets a
// second try, it does.
func TestExhaustionIsNothingToLearn(t *testing.T) {
	defaults := outcomeTable(config.Default().Outcomes)
	masks := outcomeTable(config.Default().Outcomes)
	masks.Agent = fulgur.Follow{Mask: true}
	for name, c := range map[string]struct {
		table plan.Table
		exit  plan.Exit
		rises bool
	}{
		"memory":                         {defaults, plan.Failed(plan.ReasonMemory, ""), false},
		"processes":                      {defaults, plan.Failed(plan.ReasonProcesses, ""), false},
		"disk":                           {defaults, plan.Failed(plan.ReasonDisk, ""), false},
		"killed by the machine's memory": {defaults, plan.Exit{Code: -1, Signal: "killed"}, false},
		"eviction":                       {defaults, plan.Failed(plan.ReasonEvicted, ""), false},
		"the Job's deadline":             {defaults, plan.Failed(plan.ReasonDeadline, ""), false},
		"memory that is masked":          {masks, plan.Failed(plan.ReasonMemory, ""), true},
		"memory that gets a second try":  {defaults, plan.Exit{Code: -1, Failure: plan.ReasonMemory + "?", Cause: plan.CauseTransient}, true},
	} {
		t.Run(name, func(t *testing.T) {
			for seed := range uint64(5) {
				p := bandit(t, c.table, c.exit, seed)
				if rises := p > 0.3; rises != c.rises {
					t.Errorf("seed %d: from 0.300 to %.3f", seed, p)
				}
			}
		})
	}
}

package trainer

import (
	"context"
	"encoding/json"
	"fmt"
	"math"
	"slices"

	"github.com/fulgur-rl/fulgur"
	"github.com/fulgur-rl/fulgur/internal/engine"
	"github.com/fulgur-rl/fulgur/internal/trainer/advantage"
	"github.com/fulgur-rl/fulgur/internal/trainer/loss"
)

// Objective says how rewards and advantages become a loss, beside the estimator
// and the loss's name and clip. The zero value is one share per rollout and nothing
// else.
type Objective struct {
	DualClip  float64 // a negative advantage costs at most so many times itself; 0: off
	Beta      float64 // dro: what the square of the log ratio weighs
	Aggregate string  // as loss.Coefficient has it; "": by rollout
	Constant  float64 // tokens, where it is by a constant
	// VoteBySample gives each training sequence a vote in its group's baseline, so
	// that a rollout which was split has several: what this project is compared with.
	VoteBySample bool
	KL           KL
	Correction   loss.Correction
	Band         Band
	Discount     float64 // of a call's return per call after it; 0 and 1: none
	// CallRewards reads rewards of single calls from the attempts' events of type
	// fulgur.EventCallReward.
	CallRewards bool
	V1          bool // v1's own rows, drops, advantages and weights, in its arithmetic
	replay      bool // Options.Samples.Replay
}

// KL pulls the policy towards the one that the run has started from.
type KL struct {
	Coefficient float64 // 0: off
	Kind        string  // k1, k2, k3
	InReward    bool    // taken off each rollout's reward; else a term of the loss
}

func (k KL) on() bool     { return k.Coefficient != 0 }
func (k KL) inLoss() bool { return k.on() && !k.InReward }

// Band is where the sampler must stay to the trainer; outside the run stops.
type Band struct {
	RatioLow, RatioHigh float64 // of the mean ratio; RatioHigh 0: not looked at
	KL                  float64 // nats a token at most; 0: not looked at
}

// perCall says whether the calls of a rollout may differ in advantage.
func (o *Objective) perCall() bool { return o.CallRewards || o.Discount != 0 && o.Discount != 1 }

// spec is the loss of an options' objective.
func (o *Options) spec() loss.Spec {
	s := loss.Spec{Name: o.Loss.Name, Clip: loss.Clip{Low: o.Loss.ClipLow, High: o.Loss.ClipHigh, Dual: o.Objective.DualClip}, Beta: o.Objective.Beta,
		Reference: o.Objective.V1}
	if k := o.Objective.KL; k.inLoss() {
		s.KL, s.KLCoefficient = k.Kind, k.Coefficient
	}
	return s
}

// check refuses what can't be computed.
func (o *Options) checkObjective() error {
	bad := func(msg string) error { return fulgur.E(fulgur.KindInvalid, "start training", msg, nil) }
	b := &o.Objective
	if _, ok := o.Engine.(engine.Freezer); b.KL.on() && !ok {
		return fulgur.E(fulgur.KindUnsupported, "start training", "algorithm.kl needs an engine that keeps a frozen copy of the start weights; this one does not: set the coefficient to 0", nil)
	}
	switch {
	case b.Aggregate == loss.ByConstant && b.Constant <= 0:
		return bad("to aggregate by a constant, say how many tokens it is")
	case b.DualClip != 0 && b.DualClip <= 1:
		return bad("the dual clip must be above 1")
	case b.Discount < 0 || b.Discount > 1:
		return bad("the discount must be from 0 to 1")
	case b.V1 && b.perCall():
		return bad("compat v1 has no rewards of single calls and no discount")
	}
	return nil
}

// GroupFilter makes Options.Filter of a filter.
func GroupFilter(f advantage.Filter) func([]RolloutLine) string {
	return func(group []RolloutLine) string {
		members := make([]advantage.Member, len(group))
		for i := range group {
			members[i].Masked = group[i].Masked != "" || group[i].Reward == nil
			if group[i].Reward != nil {
				members[i].Reward = *group[i].Reward
			}
		}
		return string(f.Judge(members)[""])
	}
}

// ownCalls lists the calls of an agent's own conversation.
func ownCalls(calls []fulgur.Call) (out []fulgur.CallID) {
	for i := range calls {
		if c := &calls[i]; c.Auxiliary == "" && len(c.SampledIDs) > 0 {
			out = append(out, c.ID)
		}
	}
	return out
}

// score makes a rollout's reward what its advantage is computed from: with rewards
// of single calls, and less the divergence from the reference policy.
func (e *ended) score(m *advantage.Member, o Objective) {
	m.Reward -= e.penalty
	if !o.perCall() || len(e.calls) == 0 {
		return
	}
	m.Calls = make([]float64, len(e.calls))
	copy(m.Calls, e.callRewards)
	m.Calls[len(m.Calls)-1] += m.Reward
	m.Reward = 0
	for _, r := range m.Calls {
		m.Reward += r
	}
}

// events reads what an attempt has recorded beside its calls; a store may have it.
type events interface {
	Events(ctx context.Context, id fulgur.RolloutID, a fulgur.AttemptID) ([]fulgur.Event, error)
}

// readCallRewards reads the rewards of single calls. One that names no call of the
// rollout, or is no finite number, is counted and left out. A rollout that took a
// shortcut has the reward of that, and no other.
func (t *trainer) readCallRewards(ctx context.Context, step int64, rollouts []ended) error {
	st, ok := t.o.Store.(events)
	if !ok {
		return fulgur.E(fulgur.KindUnsupported, "read rewards of calls", "this store gives no events: leave reward.calls out", nil)
	}
	bad := 0
	for i := range rollouts {
		e := &rollouts[i]
		if a := e.line.Audited; e.masked() || len(e.calls) == 0 || a == AuditZero || a == AuditFail {
			continue
		}
		all, err := again(ctx, func() ([]fulgur.Event, error) { return st.Events(ctx, e.line.ID, e.attempt) })
		if err != nil {
			return err
		}
		e.callRewards = make([]float64, len(e.calls))
		for _, ev := range all {
			if ev.Type != fulgur.EventCallReward {
				continue
			}
			k, v := callReward(ev.Data, e.calls)
			if k < 0 {
				bad++
				continue
			}
			e.callRewards[k] += v
			e.line.CallRewards = e.callRewards
		}
	}
	if bad > 0 {
		t.warn(step, "call_rewards", "%d rewards of calls were left out: each names a call of its rollout by id or by number from 0, and a finite value, as {\"call\": 0, \"value\": 0.5}", bad)
	}
	return nil
}

// callReward reads an event's call and value; -1 if it has none.
func callReward(data json.RawMessage, calls []fulgur.CallID) (int, float64) {
	var d struct {
		Call  json.RawMessage `json:"call"`
		Value *float64        `json:"value"`
	}
	if json.Unmarshal(data, &d) != nil || d.Value == nil || !usable(*d.Value) {
		return -1, 0
	}
	var index *int // null is no number
	if json.Unmarshal(d.Call, &index) == nil && index != nil && *index >= 0 && *index < len(calls) {
		return *index, *d.Value
	}
	var id fulgur.CallID
	if json.Unmarshal(d.Call, &id) != nil {
		return -1, 0
	}
	return slices.Index(calls, id), *d.Value
}

// penalties sets what the divergence of the sampler from the reference policy
// costs each rollout: the coefficient times the sum over its trained tokens.
func (t *trainer) penalties(ctx context.Context, rollouts []ended, m *measured) error {
	var data []engine.Datum
	var of []int
	for i := range rollouts {
		if rollouts[i].masked() {
			continue
		}
		for _, d := range rollouts[i].datums(t.o.Objective.replay) {
			data, of = append(data, d), append(of, i)
		}
	}
	ref, err := t.o.Engine.(engine.Freezer).ForwardFrozen(ctx, data)
	if err != nil {
		return err
	}
	sum, tokens := 0.0, 0.0
	for k, d := range data {
		for j, mask := range d.Mask {
			if mask == 0 {
				continue
			}
			v, _, err := loss.Divergence(t.o.Objective.KL.Kind, float64(d.OldLogProbs[j]), float64(ref[k][j]))
			if err != nil {
				return fulgur.E(fulgur.KindInvalid, "take the divergence off the rewards", err.Error(), nil)
			}
			rollouts[of[k]].penalty += t.o.Objective.KL.Coefficient * v
			sum += v
			tokens++
		}
	}
	m.values["policy/reference_kl"] = sum / max(1, tokens)
	return nil
}

// staleness measures how many versions the tokens that train are behind.
func staleness(rollouts []ended, current fulgur.PolicyVersion, values map[string]float64) {
	sum, n, oldest := 0.0, 0.0, 0.0
	for i := range rollouts {
		if rollouts[i].masked() {
			continue
		}
		for _, s := range rollouts[i].built.Sequences {
			for k := range s.Turns {
				t := &s.Turns[k]
				if !t.Trains() {
					continue
				}
				t.Versions(func(from, to int, v fulgur.PolicyVersion) {
					age := max(0, float64(current-v))
					sum, oldest = sum+age*float64(to-from), max(oldest, age)
					n += float64(to - from)
				})
			}
		}
	}
	values["policy/staleness"], values["policy/staleness_max"] = sum/max(1, n), oldest
}

// outside says in words why a drift is outside the band; "": it is inside.
func (b Band) outside(d loss.Drift) string {
	switch {
	case d.Tokens == 0:
		return ""
	case math.IsNaN(d.Ratio) || math.IsNaN(d.KL):
		return "their ratio is not a number"
	case b.RatioHigh > 0 && !(d.Bounded >= b.RatioLow && d.Bounded <= b.RatioHigh):
		return fmt.Sprintf("the mean ratio of their probabilities is %.3g, outside %g to %g", d.Bounded, b.RatioLow, b.RatioHigh)
	case b.KL > 0 && d.BoundedKL > b.KL:
		return fmt.Sprintf("their divergence is %.3g nats a token, above %g", d.BoundedKL, b.KL)
	}
	return ""
}

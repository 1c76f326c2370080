package trainer

import (
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/fulgur-rl/fulgur"
	"github.com/fulgur-rl/fulgur/internal/engine"
	"github.com/fulgur-rl/fulgur/internal/trainer/advantage"
	"github.com/fulgur-rl/fulgur/internal/trainer/loss"
	"github.com/fulgur-rl/fulgur/internal/trainer/schedule"
)

// minibatch is what one optimizer step trains on.
type minibatch struct {
	data     []engine.Datum
	rollouts int // R: unmasked ones, with advantage 0 too
	live     int // those with an advantage and a token to train
	tokens   int
	samples  int
	older    []bool // per datum: an earlier policy than the one at the start of the step sampled some of it
}

// assign writes advantages into the lines of a step's rollouts.
func assign(e advantage.Estimator, rollouts []ended) (advantage.Result, error) {
	members := make([]advantage.Member, len(rollouts))
	for i := range rollouts {
		l := &rollouts[i].line
		members[i] = advantage.Member{Group: string(l.Group), Masked: l.Masked != "" || l.Reward == nil, Tokens: l.Sampled}
		if l.Reward != nil {
			members[i].Reward = *l.Reward
		}
	}
	r, err := advantage.Compute(e, members)
	if err != nil {
		return r, fulgur.E(fulgur.KindInvalid, "compute advantages", err.Error(), nil)
	}
	for i, a := range r.Advantages {
		rollouts[i].line.Advantage = a
	}
	return r, nil
}

// split cuts a step's unmasked rollouts into mini-batches of whole rollouts, in a
// shuffled order that is a function of the seed, and weighs their tokens. The
// rollouts come in the order in which they were asked for, which no crash changes.
func split(rollouts []ended, parts int, seed uint64, current fulgur.PolicyVersion) []minibatch {
	var unmasked []int
	for i := range rollouts {
		if !rollouts[i].masked() {
			unmasked = append(unmasked, i)
		}
	}
	order := schedule.Shuffle(len(unmasked), seed)
	out := make([]minibatch, 0, parts)
	for k := range parts {
		part := order[k*len(order)/parts : (k+1)*len(order)/parts]
		m := minibatch{rollouts: len(part)}
		for _, j := range part {
			e := &rollouts[unmasked[j]]
			e.line.Weight = loss.Weight(e.line.Advantage, e.line.Sampled, m.rollouts)
			if e.line.Weight == 0 || e.line.Trained == 0 {
				continue
			}
			m.live++
			m.tokens += e.line.Trained
			m.samples += len(e.built.Samples)
			for _, s := range e.built.Samples {
				m.data = append(m.data, datum(s, e.line.Weight))
				m.older = append(m.older, older(s, current))
			}
		}
		out = append(out, m)
	}
	return out
}

// older says whether an earlier policy sampled a token that trains.
func older(s fulgur.Sample, current fulgur.PolicyVersion) bool {
	for i, v := range s.Versions {
		if s.Mask[i] && v >= 0 && v < current {
			return true
		}
	}
	return false
}

// datum shapes a sample for the engine: position i holds token i and predicts
// token i+1. What lies behind the last trained token is left out.
func datum(s fulgur.Sample, weight float64) engine.Datum {
	n := len(s.Tokens) - 1
	for n > 0 && !s.Mask[n] {
		n--
	}
	d := engine.Datum{Tokens: s.Tokens[:n], Targets: s.Tokens[1 : n+1], OldLogProbs: s.LogProbs[1 : n+1],
		Advantages: make([]float32, n), Mask: make([]float32, n)}
	for i := range n {
		if s.Mask[i+1] {
			d.Mask[i], d.Advantages[i] = 1, float32(weight)
		}
	}
	return d
}

// usableBatch says, in words for people, why nothing of a step can train.
func usableBatch(rollouts []ended) error {
	masked, ends := map[string]int{}, map[string]int{}
	trained, unmasked, untrained := 0, 0, map[string]int{}
	for i := range rollouts {
		l := &rollouts[i].line
		if l.Masked != "" {
			masked[strings.TrimSuffix(l.Masked+": "+l.Outcome, ": ")]++
			continue
		}
		unmasked++
		ends[strings.TrimSuffix(string(l.Class)+"/"+l.Outcome, "/")]++
		trained += l.Trained
		for why, n := range l.Untrained {
			untrained[why] += n
		}
	}
	switch {
	case unmasked == 0:
		return fulgur.E(fulgur.KindUnavailable, "train on a step's rollouts", fmt.Sprintf(
			"none of the %d rollouts can be used (%s); look at one with `fulgur rollouts show %s`, mend the cause, then `fulgur resume`",
			len(rollouts), counts(masked), rollouts[0].line.ID), nil)
	case trained == 0:
		detail := "the agents made no model call, and ended " + counts(ends)
		if len(untrained) > 0 {
			detail = "calls that do not train, by reason: " + counts(untrained)
		}
		return fulgur.E(fulgur.KindInvalid, "train on a step's rollouts", fmt.Sprintf(
			"the %d rollouts hold no token to train on: %s; look at one with `fulgur rollouts show %s`",
			len(rollouts), detail, rollouts[0].line.ID), nil)
	}
	return nil
}

func counts(m map[string]int) string {
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.SortFunc(keys, func(a, b string) int {
		if m[a] != m[b] {
			return m[b] - m[a]
		}
		return strings.Compare(a, b)
	})
	parts := make([]string, len(keys))
	for i, k := range keys {
		parts[i] = fmt.Sprintf("%d × %s", m[k], k)
	}
	return strings.Join(parts, ", ")
}

func finite(x float64) bool { return !math.IsNaN(x) && !math.IsInf(x, 0) }

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
	"github.com/fulgur-rl/fulgur/internal/trainer/sample"
	"github.com/fulgur-rl/fulgur/internal/trainer/schedule"
)

// minibatch is what one optimizer step trains on: training sequences as the engine
// takes them, and the same as the loss sees them.
type minibatch struct {
	data     []engine.Datum // their advantages, masks and old log probs are set by prepare
	rows     []loss.Row
	older    []bool // per row: an earlier policy than the one at the start of the step sampled some of it
	fresh    bool   // its ratios are 1: it is the step's first, and no other policy than its own is looked at
	rollouts int    // R: unmasked ones, with advantage 0 too
	live     int    // those with something to train
	tokens   int
	samples  int
}

func (b *minibatch) add(d engine.Datum, r loss.Row, older bool) {
	b.data, b.rows, b.older = append(b.data, d), append(b.rows, r), append(b.older, older)
}

// assign writes advantages into the lines of a step's rollouts.
func assign(e advantage.Estimator, o Objective, rollouts []ended) (advantage.Result, error) {
	var members []advantage.Member
	at := make([]int, len(rollouts)) // of each rollout's first vote
	for i := range rollouts {
		l := &rollouts[i].line
		m := advantage.Member{Group: string(l.Group), Masked: l.Masked != "" || l.Reward == nil, Tokens: l.Sampled, Class: string(l.Class)}
		if l.Reward != nil {
			m.Reward = *l.Reward
		}
		rollouts[i].score(&m, o)
		votes := 1
		if o.VoteBySample {
			votes = max(1, len(rollouts[i].built.Sequences))
		}
		at[i] = len(members)
		members = append(members, slices.Repeat([]advantage.Member{m}, votes)...)
	}
	r, err := advantage.Compute(e, members, o.Discount)
	if err != nil {
		return r, fulgur.E(fulgur.KindInvalid, "compute advantages", err.Error(), nil)
	}
	for i, k := range at {
		rollouts[i].line.Advantage, rollouts[i].advantages = r.Advantages[k], r.Calls[k]
	}
	return r, nil
}

// split cuts a step's rollouts that train into mini-batches of whole rollouts, in a
// shuffled order that is a function of the seed, and weighs their tokens. The
// rollouts come in the order in which they were asked for, which no crash changes.
func split(rollouts []ended, parts int, seed uint64, current fulgur.PolicyVersion, o Objective) ([]minibatch, error) {
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
		total := loss.Totals{Rollouts: len(part), Constant: o.Constant}
		for _, j := range part {
			e := &rollouts[unmasked[j]]
			total.Tokens += e.line.Sampled
			total.Sequences += len(e.built.Sequences)
		}
		for _, j := range part {
			if err := m.take(&rollouts[unmasked[j]], unmasked[j], total, current, o); err != nil {
				return nil, err
			}
		}
		out = append(out, m)
	}
	return out, nil
}

// take adds a rollout's samples, if it has something to train: an advantage, or a
// pull towards the reference policy.
func (b *minibatch) take(e *ended, index int, total loss.Totals, current fulgur.PolicyVersion, o Objective) error {
	flat := e.line.Advantage == 0 && !slices.ContainsFunc(e.advantages, func(a float64) bool { return a != 0 })
	if e.line.Trained == 0 || flat && !o.KL.inLoss() {
		return nil
	}
	b.live++
	b.tokens += e.line.Trained
	b.samples += len(e.built.Sequences)
	for k, d := range e.datums(o.replay) {
		s := &e.built.Sequences[k]
		w, err := loss.Coefficient(o.Aggregate, total, e.line.Sampled, s.Trained())
		if err != nil {
			return fulgur.E(fulgur.KindInvalid, "weigh a step's tokens", err.Error(), nil)
		}
		if k == 0 {
			e.line.Weight = e.line.Advantage * w
		}
		r := loss.Row{Rollout: index, Mask: d.Mask, Sampled: d.OldLogProbs, Coefficient: w, Advantages: e.perToken(s, len(d.Mask))}
		b.add(d, r, older(s, current))
	}
	return nil
}

// perToken returns the advantage of each target of a sample: the rollout's, or that
// of the call that sampled it.
func (e *ended) perToken(s *sample.Sequence, n int) []float64 {
	out := make([]float64, n)
	for j := range out {
		out[j] = e.line.Advantage
	}
	if e.advantages == nil {
		return out
	}
	for i := range s.Turns {
		t := &s.Turns[i]
		k := slices.Index(e.calls, t.Call)
		for j := t.Start - 1; k >= 0 && j < min(t.Start+t.Len-1, n); j++ {
			out[j] = e.advantages[k]
		}
	}
	return out
}

// older says whether an earlier policy sampled a token that trains.
func older(s *sample.Sequence, current fulgur.PolicyVersion) (found bool) {
	for i := range s.Turns {
		if t := &s.Turns[i]; t.Trains() {
			t.Versions(func(_, _ int, v fulgur.PolicyVersion) { found = found || v >= 0 && v < current })
		}
	}
	return found
}

// datums returns the samples as the engine takes them, with what it is to replay.
// They are built once: a divergence that is taken off the reward looks at them first.
func (e *ended) datums(replay bool) []engine.Datum {
	if e.data == nil {
		e.data = make([]engine.Datum, len(e.built.Sequences))
		for k := range e.data {
			s := &e.built.Sequences[k]
			e.data[k] = datum(s)
			if replay && s.Experts != nil {
				e.data[k].Experts = s.Experts[1 : 1+len(e.data[k].Tokens)] // a token's row is of the pass before it
			}
		}
	}
	return e.data
}

// datum shapes a sample for the engine: position i holds token i and predicts
// token i+1. What lies behind the last trained token is left out.
func datum(s *sample.Sequence) engine.Datum {
	n := 0
	for i := range s.Turns {
		if t := &s.Turns[i]; t.Trains() {
			n = t.Start + t.Len - 1
		}
	}
	tokens := s.Tokens()
	d := engine.Datum{Tokens: tokens[:n], Targets: tokens[1 : n+1], OldLogProbs: make([]float32, n), Mask: make([]float32, n)}
	for i := range s.Turns {
		t := &s.Turns[i]
		for j := t.Start - 1; j < min(t.Start+t.Len-1, n); j++ {
			if t.LogProbs != nil {
				d.OldLogProbs[j] = t.LogProbs[j+1-t.Start]
			}
			if t.Trains() {
				d.Mask[j] = 1
			}
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
			how := l.Outcome
			if l.Class == fulgur.OutcomeOK { // it ended well: that is not why
				how = ""
			}
			masked[strings.TrimSuffix(l.Masked+": "+how, ": ")]++
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
			"none of the %d rollouts can be used (%s); look at one with `fulgur rollouts show %s`, mend the cause, then `fulgur resume`, which runs them anew\n%s",
			len(rollouts), counts(masked), rollouts[0].line.ID, table(rollouts)), nil)
	case trained == 0:
		detail := "the agents made no model call, and ended " + counts(ends)
		if len(untrained) > 0 {
			detail = "calls that do not train, by reason: " + counts(untrained)
		}
		return fulgur.E(fulgur.KindInvalid, "train on a step's rollouts", fmt.Sprintf(
			"the %d rollouts hold no token to train on: %s; look at one with `fulgur rollouts show %s`, mend the cause, then `fulgur resume`, which runs them anew\n%s",
			len(rollouts), detail, rollouts[0].line.ID, table(rollouts)), nil)
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

// mostReward is the largest absolute reward: its square, and a group's sum of
// squares, are still numbers in 32 bits. What is beyond is no reward but an
// accident of a grader, and would make the advantages of its group infinite or 0.
const mostReward = 1e18

func usable(reward float64) bool { return finite(reward) && math.Abs(reward) <= mostReward }

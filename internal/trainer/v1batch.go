package trainer

import (
	"fmt"
	"slices"

	"github.com/fulgur-rl/fulgur"
	"github.com/fulgur-rl/fulgur/internal/engine"
	"github.com/fulgur-rl/fulgur/internal/trainer/advantage"
	"github.com/fulgur-rl/fulgur/internal/trainer/loss"
	"github.com/fulgur-rl/fulgur/internal/trainer/sample"
	"github.com/fulgur-rl/fulgur/internal/trainer/schedule"
)

// v1Completed is a rollout as v1's manager reads it: of the calls with equal
// prompts only the last counts, before those that failed are taken out.
func v1Completed(e *ended, index int, calls []fulgur.Call) sample.V1Completed {
	out := sample.V1Completed{ID: string(e.line.ID), DataID: string(e.line.Group), Index: index, Reward: e.line.Reward}
	same := map[uint64][]int{} // calls by the hash of their prompt
	hash := func(ids []int32) (h uint64) {
		for _, id := range ids {
			h = h*1099511628211 ^ uint64(uint32(id))
		}
		return h
	}
	for i := range calls {
		h := hash(calls[i].PromptIDs)
		same[h] = append(same[h], i)
	}
	for i := range calls {
		c := &calls[i]
		later := slices.ContainsFunc(same[hash(c.PromptIDs)], func(k int) bool { return k > i && slices.Equal(calls[k].PromptIDs, c.PromptIDs) })
		if later || c.Error != "" || c.HTTPStatus >= 400 || len(c.SampledIDs) == 0 {
			continue
		}
		v := sample.V1Call{Prompt: c.PromptIDs, Response: c.SampledIDs}
		for _, x := range c.LogProbs {
			v.LogProbs = append(v.LogProbs, float64(x))
		}
		out.Calls = append(out.Calls, v)
	}
	return out
}

// v1Batches makes the step's mini-batches as v1's trainer does: by rows, not by
// rollouts. Rollouts that did not fail by their agent's fault stay masked.
func (t *trainer) v1Batches(rollouts []ended, seed uint64, m *measured) ([]minibatch, error) {
	bad := func(err error) error {
		return fulgur.E(fulgur.KindInvalid, "weigh a step's tokens as v1 does", err.Error(), err)
	}
	var completed []sample.V1Completed
	index := map[string]int{}
	for i := range rollouts {
		if e := &rollouts[i]; !e.masked() {
			completed = append(completed, v1Completed(e, i, e.recorded))
			index[string(e.line.ID)] = i
			e.line.Advantage = 0
		}
	}
	built, err := sample.V1Build(completed, sample.V1Options{Trajectory: true, MaxPrompt: t.maxTokens, MaxResponse: t.maxTokens})
	if err != nil {
		return nil, bad(err)
	}
	c := v1Config{miniBatch: max(1, t.o.GroupsPerStep/t.o.Minibatches) * t.o.GroupSize, std: true, gamma: 1, rolloutLevel: true}
	c.estimator, err = v1Estimator(t.o.Estimator)
	if err != nil {
		return nil, bad(err)
	}
	c.std = t.o.Estimator != advantage.GRPONoStd && t.o.Estimator != advantage.DrGRPO
	rows := make([]v1Row, len(built.Rows))
	for i, r := range built.Rows {
		rows[i] = v1Row{rollout: r.Rollout, group: r.DataID, score: float64(r.Score), at: len(r.Response) - 1, marked: r.Drop, mask: make([]float64, len(r.Response))}
		for j, on := range r.Mask {
			if on {
				rows[i].mask[j] = 1
			}
		}
	}
	cut := v1Plan(rows, c)
	if cut.nothing {
		t.warn(t.state.Cursor.Step+1, "v1_no_update", "%d rows are fewer than a mini-batch of %d: v1 makes no update of this step", len(cut.rows), c.miniBatch)
		return nil, nil
	}
	draws := uint64(0)
	kept := v1Keep(cut, func(n int) []int { draws++; return schedule.Shuffle(n, schedule.Mix(seed, draws)) })
	w, err := v1Weigh(rows, cut, kept, c)
	if err != nil {
		return nil, bad(err)
	}
	for k, v := range w.metrics {
		m.values[k] = v
	}
	var out []minibatch
	for k, i := range kept {
		if k%c.miniBatch == 0 {
			out = append(out, minibatch{})
		}
		b, r := &out[len(out)-1], &built.Rows[i]
		d, row := v1Datum(r, w.weights[k])
		row.Rollout = index[r.Rollout]
		if l := &rollouts[row.Rollout].line; l.Advantage == 0 {
			at := slices.IndexFunc(w.mask[k], func(x float64) bool { return x != 0 })
			l.Advantage, l.Weight = w.advantages[k][at], w.weights[k][at]
		}
		b.rollouts, b.live, b.samples = b.rollouts+1, b.live+1, b.samples+1
		stale := slices.ContainsFunc(rollouts[row.Rollout].built.Sequences, func(s sample.Sequence) bool { return older(&s, t.state.Version) })
		b.add(d, row, stale || r.LogProbs == nil) // without the sampler's log probs there is nothing to compare
	}
	return out, nil
}

// v1Datum shapes a row for the engine: the first response token is predicted at the
// prompt's last position.
func v1Datum(r *sample.V1Row, weights []float64) (engine.Datum, loss.Row) {
	all := slices.Concat(r.Prompt, r.Response)
	n, at := len(all)-1, len(r.Prompt)-1
	d := engine.Datum{Tokens: all[:n], Targets: all[1:], OldLogProbs: make([]float32, n), Mask: make([]float32, n)}
	row := loss.Row{Coefficient: 1, Advantages: make([]float64, n)}
	for j, on := range r.Mask {
		if p := at + j; on && p >= 0 {
			d.Mask[p], row.Advantages[p] = 1, weights[j]
			if r.LogProbs != nil {
				d.OldLogProbs[p] = r.LogProbs[j]
			}
		}
	}
	row.Mask, row.Sampled = d.Mask, d.OldLogProbs
	return d, row
}

// v1Estimator returns v1's name of an estimator.
func v1Estimator(e advantage.Estimator) (string, error) {
	switch e {
	case advantage.GRPO, advantage.GRPONoStd, advantage.DrGRPO:
		return "grpo", nil
	case advantage.PassK:
		return "grpo_passk", nil
	case advantage.RLOO, advantage.OPO, advantage.Reinforce, advantage.Baseline:
		return string(e), nil
	}
	return "", fmt.Errorf("v1 has no estimator %s", e)
}

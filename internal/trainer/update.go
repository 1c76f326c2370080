package trainer

import (
	"context"
	"fmt"
	"math"
	"slices"

	"github.com/fulgur-rl/fulgur"
	"github.com/fulgur-rl/fulgur/internal/engine"
	"github.com/fulgur-rl/fulgur/internal/trainer/advantage"
	"github.com/fulgur-rl/fulgur/internal/trainer/loss"
	"github.com/fulgur-rl/fulgur/internal/trainer/schedule"
)

// measured sums what the optimizer steps of one training step measured.
type measured struct {
	updates, tokens, clipped int
	loss, kl, entropy, norm  float64
	reference                float64 // sum over tokens of the divergence from the reference policy, in the loss
	mismatch, mismatchTokens float64 // |log prob of trainer - of sampler| before the first update
	worst                    float64
	known                    []loss.Row         // whose log probs at the step's start are known before the first update
	values                   map[string]float64 // more, by the names of metrics
}

func (m *measured) into(d *StepDone) {
	d.Updates, d.Tokens, d.Loss = m.updates, m.tokens, m.loss
	if m.tokens > 0 {
		d.KL, d.ClipShare = m.kl/float64(m.tokens), float64(m.clipped)/float64(m.tokens)
		if m.reference != 0 {
			m.values["policy/reference_kl"] = m.reference / float64(m.tokens)
		}
	}
	if m.updates > 0 {
		d.GradNorm = m.norm / float64(m.updates)
	}
}

// batches turns a step's rollouts into weighted mini-batches.
func (t *trainer) batches(ctx context.Context, step int64, rollouts []ended, m *measured) (advantage.Result, []minibatch, error) {
	o := &t.o.Objective
	lost := 0
	for i := range rollouts {
		if m := rollouts[i].line.Masked; m == maskNotFinite || m == maskRange {
			lost++
		}
	}
	if share := float64(lost) / float64(len(rollouts)); share > stopNotFinite {
		return advantage.Result{}, nil, fulgur.E(fulgur.KindInvalid, fmt.Sprintf("train step %d", step), fmt.Sprintf(
			"%d of %d rewards can't be used (NaN, infinite, or beyond ±%g); the weights are as they were. Mend the grader, then `fulgur resume %s`", lost, len(rollouts), mostReward, t.o.Dir), nil)
	}
	staleness(rollouts, t.state.Version, m.values)
	if o.CallRewards {
		if err := t.readCallRewards(ctx, step, rollouts); err != nil {
			return advantage.Result{}, nil, err
		}
	}
	if o.KL.on() && o.KL.InReward {
		if err := t.penalties(ctx, rollouts, m); err != nil {
			return advantage.Result{}, nil, err
		}
	}
	adv, err := assign(t.o.Estimator, *o, rollouts)
	if err != nil {
		return adv, nil, err
	}
	seed := schedule.Mix(t.o.Seed, uint64(step))
	if o.V1 {
		b, err := t.v1Batches(rollouts, seed, m)
		return adv, b, err
	}
	b, err := split(rollouts, t.o.Minibatches, seed, t.state.Version, *o)
	return adv, b, err
}

// prepare fills in what the step's updates are against: the log probs of the
// policy at its start where the sampler's do not stand for them, those of the
// reference policy, the correction for the sampler, and the engine's data.
func (t *trainer) prepare(ctx context.Context, step int64, batches []minibatch, m *measured) error {
	full := make([]*minibatch, 0, len(batches))
	stale := false
	for i := range batches {
		if b := &batches[i]; len(b.data) > 0 {
			full = append(full, b)
			stale = stale || slices.Contains(b.older, true)
		}
	}
	if len(full) == 0 {
		return nil
	}
	o, spec := &t.o.Objective, t.o.spec()
	if o.KL.inLoss() {
		err := forward(ctx, full, t.o.Engine.(engine.Freezer).ForwardFrozen, func(r *loss.Row, logp []float32) { r.Reference = logp })
		if err != nil {
			return err
		}
	}
	// The ratio of a loss is to the policy at the step's start, which is not the
	// sampler where it is of an earlier version: a forward pass gives its log probs.
	// The first mini-batch needs none, unless its weights do: its own pass is made
	// by that policy.
	asked := full
	switch {
	case o.Correction.On() || o.V1:
	case stale && spec.Name != loss.ImportanceSampling:
		full[0].fresh = true
		asked = full[1:]
	default:
		asked = nil
	}
	if len(asked) > 0 {
		if err := forward(ctx, asked, t.o.Engine.Forward, func(r *loss.Row, logp []float32) { r.Proximal = logp }); err != nil {
			return err
		}
	}
	for _, b := range asked {
		m.compare(b)
		m.known = append(m.known, b.rows...)
	}
	if len(asked) == len(full) {
		drift := loss.Correct(m.known, o.Correction)
		at := 0
		for _, b := range asked {
			at += copy(b.rows, m.known[at:])
		}
		if err := t.apart(step, drift, m); err != nil {
			return err
		}
	}
	for _, b := range full {
		for k := range b.rows {
			r, d := &b.rows[k], &b.data[k]
			d.Advantages, d.Mask = r.Weighted()
			d.OldLogProbs = spec.Old(r)
		}
	}
	return nil
}

// forward has a policy's log probs of mini-batches computed in one pass.
func forward(ctx context.Context, batches []*minibatch, pass func(context.Context, []engine.Datum) ([][]float32, error), set func(*loss.Row, []float32)) error {
	var data []engine.Datum
	var rows []*loss.Row
	for _, b := range batches {
		data = append(data, b.data...)
		for k := range b.rows {
			rows = append(rows, &b.rows[k])
		}
	}
	logps, err := pass(ctx, data)
	if err == nil && len(logps) != len(rows) {
		err = fulgur.E(fulgur.KindInternal, "forward", fmt.Sprintf("the engine gave log probs of %d sequences for %d", len(logps), len(rows)), nil)
	}
	if err != nil {
		return err
	}
	for i, r := range rows {
		set(r, logps[i])
	}
	return nil
}

// apart records how far sampler and trainer are apart at the step's start, and
// stops the run where they have left the band, or are under one policy.
func (t *trainer) apart(step int64, d loss.Drift, m *measured) error {
	if err := t.mismatched(step, m); err != nil {
		return err
	}
	return t.drifted(step, d, m)
}

// drifted records how far sampler and trainer are apart, and stops the run where
// they have left the band.
func (t *trainer) drifted(step int64, d loss.Drift, m *measured) error {
	m.values["policy/ratio"], m.values["policy/sampler_kl"] = d.Ratio, d.KL
	m.values["policy/log_ratio_abs"], m.values["policy/log_ratio_max"] = d.Distance, d.Farthest
	if c := t.o.Objective.Correction; c.On() {
		n := math.Max(1, float64(d.Tokens))
		m.values["off_policy/truncated_share"], m.values["off_policy/masked_share"] = float64(d.Truncated)/n, float64(d.Masked)/n
		m.values["off_policy/effective_share"] = d.Effective
	}
	if why := t.o.Objective.Band.outside(d); why != "" {
		return fulgur.E(fulgur.KindInternal, fmt.Sprintf("train step %d", step), fmt.Sprintf(
			"the policy that sampled is too far from the one that trains: %s; the weights are as they were. Look for a sampler with other weights or another temperature, then `fulgur resume %s`; "+
				"a lower off_policy.max_staleness or learning rate, or a wider off_policy.stop, %s", why, t.o.Dir, t.anew()), nil)
	}
	return nil
}

// anew says how other settings are had after a stop: a resumed run keeps its own.
func (t *trainer) anew() string {
	model := ""
	if t.final != "" {
		model = " --set model=" + t.final
	}
	return "needs a new run, for a resume keeps the settings: `fulgur train RUN.yaml" + model + " --set …`"
}

// mismatched stops the run where the engines differ under one policy.
func (t *trainer) mismatched(step int64, m *measured) error {
	if x := m.mismatch / max(1, m.mismatchTokens); x > stopMismatch {
		return fulgur.E(fulgur.KindInternal, fmt.Sprintf("train step %d", step), fmt.Sprintf(
			"the sampler's log probs differ from the trainer's by %.2g nats on average under the same weights; the weights are as they were. "+
				"Look for a sampler with other weights, or log probs of another temperature, then `fulgur resume %s`", x, t.o.Dir), nil)
	}
	return nil
}

// update makes one optimizer step.
func (t *trainer) update(ctx context.Context, step int64, b *minibatch, m *measured) error {
	r, err := t.gradient(ctx, b, m)
	if err != nil {
		return err
	}
	if !finite(r.Loss) {
		return fulgur.E(fulgur.KindInternal, fmt.Sprintf("train step %d", step), fmt.Sprintf(
			"the loss is %g; no checkpoint has what led to it. If the log probs are at fault, mend their source, then `fulgur resume %s`; a lower learning_rate %s", r.Loss, t.o.Dir, t.anew()), nil)
	}
	if m.updates == 0 && b.rows[0].Proximal == nil {
		// What the pass has computed are the log probs at the step's start.
		start := minibatch{rows: slices.Clone(b.rows), older: b.older}
		for i := range start.rows {
			start.rows[i].Proximal = r.LogProbs[i]
		}
		m.compare(&start)
		if err := t.apart(step, loss.Correct(append(start.rows, m.known...), loss.Correction{}), m); err != nil {
			return err
		}
	}
	s, err := t.o.Engine.OptimStep(ctx, t.adam(step))
	if err != nil {
		return err
	}
	m.updates++
	m.tokens += r.Tokens
	m.clipped += r.Clipped
	m.loss += r.Loss
	m.kl += r.KL
	m.entropy += r.Entropy
	m.norm += s.GradNorm
	t.state.Updates++
	return nil
}

// gradient has the engine add a mini-batch's gradient: by its own loss where that
// says all of it, else by log probs, our derivative, and a signed cross entropy.
func (t *trainer) gradient(ctx context.Context, b *minibatch, m *measured) (engine.Result, error) {
	spec := t.o.spec()
	if t.losses == nil {
		info, err := t.o.Engine.Info(ctx)
		if err != nil {
			return engine.Result{}, err
		}
		t.losses = append(info.Losses, engine.CrossEntropy)
	}
	if b.fresh && spec.Plain() {
		// At a ratio of 1 the gradient is the advantage's alone.
		r, err := t.o.Engine.ForwardBackward(ctx, b.data, engine.Loss{Name: engine.CrossEntropy})
		r.Loss, r.KL, r.Clipped = 0, 0, 0
		for _, d := range b.data {
			for _, a := range d.Advantages {
				r.Loss -= float64(a)
			}
		}
		return r, err
	}
	if spec.Plain() && (len(t.losses) == 1 || slices.Contains(t.losses, spec.Name)) {
		r, err := t.o.Engine.ForwardBackward(ctx, b.data, t.o.Loss)
		if err == nil && len(r.LogProbs) != len(b.data) {
			err = fulgur.E(fulgur.KindInternal, "forward-backward", fmt.Sprintf("the engine gave log probs of %d sequences for %d", len(r.LogProbs), len(b.data)), nil)
		}
		return r, err
	}
	now := make([][]float32, len(b.rows))
	if m.updates == 0 && b.rows[0].Proximal != nil { // nothing has changed since
		for i := range b.rows {
			now[i] = b.rows[i].Proximal
		}
	} else {
		var err error
		if now, err = t.o.Engine.Forward(ctx, b.data); err != nil {
			return engine.Result{}, err
		}
	}
	rows := b.rows
	if b.fresh {
		rows = slices.Clone(rows)
		for i := range rows {
			rows[i].Proximal = now[i]
		}
	}
	e, err := spec.Evaluate(rows, now)
	if err != nil {
		return engine.Result{}, fulgur.E(fulgur.KindInvalid, "compute the loss", err.Error(), nil)
	}
	if !finite(e.Loss) {
		return engine.Result{Loss: e.Loss}, nil
	}
	signed := slices.Clone(b.data)
	for i := range signed {
		signed[i].Advantages = make([]float32, len(e.Grad[i]))
		for j, g := range e.Grad[i] {
			signed[i].Advantages[j] = float32(-g)
		}
	}
	r, err := t.o.Engine.ForwardBackward(ctx, signed, engine.Loss{Name: engine.CrossEntropy})
	r.Loss, r.LogProbs, r.Tokens, r.Clipped, r.KL = e.Loss, now, e.Tokens, e.Clipped, e.KL
	m.reference += e.Reference
	return r, err
}

// compare measures how far the trainer's log probs at the step's start are from the
// sampler's: where they are of one policy, this is the engines' error.
func (m *measured) compare(b *minibatch) {
	for i, r := range b.rows {
		if b.older[i] {
			continue
		}
		for j, mask := range r.Mask {
			if mask != 0 {
				x := math.Abs(float64(r.Proximal[j] - r.Sampled[j]))
				m.mismatch += x
				m.mismatchTokens++
				m.worst = max(m.worst, x)
			}
		}
	}
}

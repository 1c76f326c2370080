package trainer

import (
	"context"
	"fmt"
	"math"
	"slices"

	"github.com/fulgur-rl/fulgur"
	"github.com/fulgur-rl/fulgur/internal/trainer/advantage"
	"github.com/fulgur-rl/fulgur/internal/trainer/schedule"
)

// Shares and numbers from which on a warning is given (case UI-03).
const (
	warnZeroSteps      = 3    // steps in a row without any reward
	warnInfrastructure = 0.1  // of a step's rollouts
	warnAgents         = 0.5  // of a step's rollouts
	warnUnanimous      = 0.8  // of a step's groups
	warnUntrained      = 0.2  // of a step's calls
	warnMismatch       = 0.02 // nats: mean difference of log probs between sampler and trainer under one policy
	stopMismatch       = 0.2  // nats: the sampler does not hold the policy that is trained (cases WE-02, WE-03)
)

// rollOut runs the rollouts of the groups and hands the schedule its events.
func (t *trainer) rollOut(ctx context.Context, groups []schedule.Group) ([]ended, schedule.Update, error) {
	start := t.o.Now()
	step := t.state.Cursor.Step + 1
	var asks []ask
	for _, g := range groups {
		for k := range t.o.GroupSize {
			asks = append(asks, ask{row: t.o.Train.Rows[g.Row], train: true,
				key: fulgur.RolloutKey{Run: t.o.Run, Part: "train", Epoch: g.Epoch, Row: g.Row, K: k}})
		}
	}
	t.o.Observer(StepStarted{Step: step, Rollouts: len(asks)})
	all, err := t.collect(ctx, step, asks)
	if err != nil {
		return nil, schedule.Update{}, err
	}
	if err := usableBatch(all); err != nil {
		return nil, schedule.Update{}, err
	}
	var update schedule.Update
	for _, g := range groups {
		for _, e := range t.sched.Handle(0, schedule.Complete{Group: g}) {
			if u, ok := e.(schedule.Update); ok {
				update = u
			}
		}
	}
	t.timing.Rollout = t.o.Now().Sub(start)
	return all, update, nil
}

// step makes the optimizer steps of one training step and publishes the result.
func (t *trainer) step(ctx context.Context, u schedule.Update, rollouts []ended) error {
	start := t.o.Now()
	adv, err := assign(t.o.Estimator, rollouts)
	if err != nil {
		return err
	}
	done := StepDone{Step: u.Step, Groups: adv.Groups, Unanimous: adv.Unanimous, LearningRate: t.o.LearningRate.At(u.Step)}
	m := measured{}
	for _, batch := range split(rollouts, t.o.Minibatches, schedule.Mix(t.o.Seed, uint64(u.Step)), t.state.Version) {
		if len(batch.data) == 0 {
			continue // nothing but equal rewards: no gradient, so no step
		}
		if err := t.update(ctx, u.Step, batch, &m); err != nil {
			return err
		}
		done.Samples += batch.samples
	}
	version := t.state.Version + 1
	if err := t.publish(ctx, version); err != nil {
		return err
	}
	t.state.Version = version
	t.timing.Update = t.o.Now().Sub(start)
	m.into(&done)
	t.record(&done, adv, rollouts, &m)
	return nil
}

// measured sums what the optimizer steps of one training step measured.
type measured struct {
	updates, tokens, clipped int
	loss, kl, entropy, norm  float64
	mismatch, mismatchTokens float64 // |log prob of trainer - of sampler| before the first update
	worst                    float64
}

func (m *measured) into(d *StepDone) {
	d.Updates, d.Tokens, d.Loss = m.updates, m.tokens, m.loss
	if m.tokens > 0 {
		d.KL, d.ClipShare = m.kl/float64(m.tokens), float64(m.clipped)/float64(m.tokens)
	}
	if m.updates > 0 {
		d.GradNorm = m.norm / float64(m.updates)
	}
}

// update makes one optimizer step.
func (t *trainer) update(ctx context.Context, step int64, b minibatch, m *measured) error {
	r, err := t.o.Engine.ForwardBackward(ctx, b.data, t.o.Loss)
	if err != nil {
		return err
	}
	if !finite(r.Loss) {
		return fulgur.E(fulgur.KindInternal, fmt.Sprintf("train step %d", step), fmt.Sprintf(
			"the loss is %g; the weights are as they were. Lower learning_rate or check the log probs, then `fulgur resume %s`", r.Loss, t.o.Dir), nil)
	}
	if m.updates == 0 {
		m.compare(b, r.LogProbs)
		if x := m.mismatch / max(1, m.mismatchTokens); x > stopMismatch {
			return fulgur.E(fulgur.KindInternal, fmt.Sprintf("train step %d", step), fmt.Sprintf(
				"the sampler's log probs differ from the trainer's by %.2g nats on average under the same weights; the weights are as they were. "+
					"Look for a sampler with other weights, or log probs of another temperature, then `fulgur resume %s`", x, t.o.Dir), nil)
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

// compare measures how far the trainer's log probs are from the sampler's before
// anything was updated: where they are of one policy, this is the engines' error.
func (m *measured) compare(b minibatch, logps [][]float32) {
	if len(logps) != len(b.data) {
		return
	}
	for i, d := range b.data {
		if b.older[i] {
			continue
		}
		for j, mask := range d.Mask {
			if mask != 0 && j < len(logps[i]) {
				x := math.Abs(float64(logps[i][j] - d.OldLogProbs[j]))
				m.mismatch += x
				m.mismatchTokens++
				m.worst = max(m.worst, x)
			}
		}
	}
}

// record counts the step, tells the observer, warns, and puts the metrics aside
// for settle.
func (t *trainer) record(done *StepDone, adv advantage.Result, rollouts []ended, m *measured) {
	c := count(rollouts, t.o.Pass)
	done.Version, done.Rollouts = t.state.Version, c.lines
	done.Reward, done.PassRate, done.Masked = c.reward, c.passRate, c.masked
	done.Timing = t.timing
	t.state.Timing.add(t.timing)
	t.timing = Timing{}
	done.Total = t.state.Timing
	t.state.Rollouts += int64(len(rollouts))
	t.state.Tokens += int64(done.Tokens)
	n := float64(len(rollouts))
	values := map[string]float64{
		"train/reward": done.Reward, "train/pass_rate": done.PassRate, "train/loss": done.Loss,
		"train/grad_norm": done.GradNorm, "train/learning_rate": done.LearningRate, "train/clip_share": done.ClipShare,
		"train/kl": done.KL, "train/updates": float64(done.Updates), "train/tokens": float64(done.Tokens), "train/samples": float64(done.Samples),
		"rollouts/total": float64(t.state.Rollouts), "rollouts/masked": float64(c.masked), "rollouts/agent_failures": float64(c.agent),
		"rollouts/infrastructure_share": float64(c.infrastructure) / n, "rollouts/reward_not_finite": float64(c.notFinite),
		"rollouts/calls": float64(c.calls) / n, "rollouts/sampled_tokens": float64(c.sampled) / n,
		"rollouts/samples": float64(c.samples) / n, "rollouts/untrained_calls": float64(c.untrained),
		"groups/unanimous_share": float64(adv.Unanimous) / max(1, float64(adv.Groups)), "groups/alone": float64(adv.Alone),
		"policy/version": float64(t.state.Version), "policy/updates": float64(t.state.Updates),
		"time/rollout": done.Timing.Rollout.Seconds(), "time/update": done.Timing.Update.Seconds(),
	}
	if m.mismatchTokens > 0 {
		values["policy/sampler_difference"] = m.mismatch / m.mismatchTokens
		values["policy/sampler_difference_max"] = m.worst
	}
	if m.entropy != 0 {
		values["train/entropy"] = m.entropy / float64(m.tokens)
	}
	for outcome, k := range c.outcomes {
		values["outcomes/"+outcome] = float64(k)
	}
	t.pend(values, c.lines)
	t.o.Observer(*done)
	t.warnings(done.Step, adv, &c, m, len(rollouts))
}

// counted sums a step's rollouts.
type counted struct {
	lines                                    []RolloutLine
	reward, passRate                         float64
	masked, agent, infrastructure, notFinite int
	calls, sampled, samples, untrained       int
	outcomes                                 map[string]int
}

func count(rollouts []ended, pass float64) counted {
	c := counted{outcomes: map[string]int{}}
	voters := 0
	for i := range rollouts {
		l := rollouts[i].line
		c.lines = append(c.lines, l)
		name := string(l.Class)
		if l.Class != fulgur.OutcomeOK && l.Outcome != "" {
			name += "_" + l.Outcome
		}
		c.outcomes[name]++
		switch {
		case l.Class == fulgur.OutcomeAgent:
			c.agent++
		case l.Class == fulgur.OutcomeInfrastructure || l.Masked == maskGrader:
			c.infrastructure++
		}
		if l.Masked == maskNotFinite {
			c.notFinite++
		}
		if l.Masked != "" {
			c.masked++
		} else if l.Reward != nil {
			voters++
			c.reward += *l.Reward
			if *l.Reward >= pass {
				c.passRate++
			}
		}
		c.calls += l.Calls
		c.sampled += l.Sampled
		c.samples += l.Samples
		for _, k := range l.Untrained {
			c.untrained += k
		}
	}
	if voters > 0 {
		c.reward /= float64(voters)
		c.passRate /= float64(voters)
	}
	return c
}

// warnings tells of training that looks alive while little is learned.
func (t *trainer) warnings(step int64, adv advantage.Result, c *counted, m *measured, rollouts int) {
	if c.reward == 0 && c.passRate == 0 {
		t.state.Zeros++
	} else {
		t.state.Zeros = 0
	}
	n := float64(rollouts)
	if t.state.Zeros >= warnZeroSteps {
		t.warn(step, "zero_reward", "no rollout of the last %d steps got a reward: check the grader and the agent's answers with `fulgur rollouts show %s`", t.state.Zeros, c.lines[0].ID)
	}
	if share := float64(c.infrastructure) / n; share > warnInfrastructure {
		t.warn(step, "infrastructure", "%.0f %% of the rollouts failed through no fault of the agent and were left out", 100*share)
	}
	if share := float64(c.agent) / n; share > warnAgents {
		i := slices.IndexFunc(c.lines, func(l RolloutLine) bool { return l.Class == fulgur.OutcomeAgent })
		t.warn(step, "agents", "%d of %d agents failed (%s): `fulgur rollouts show %s` says how", c.agent, rollouts, c.lines[i].Outcome, c.lines[i].ID)
	}
	if c.notFinite > 0 {
		t.warn(step, "reward_not_finite", "%d rewards are NaN or infinite; their rollouts were left out", c.notFinite)
	}
	// Groups that all pass are what training is for; those that fail alike are not.
	if share := float64(adv.Unanimous) / max(1, float64(adv.Groups)); share > warnUnanimous && c.passRate < 0.5 {
		t.warn(step, "unanimous", "in %.0f %% of the groups all rewards are equal: they teach nothing; other problems or a larger group_size would", 100*share)
	}
	if 2*adv.Alone > adv.Groups {
		t.warn(step, "groups_of_one", "%d of %d groups have one member left: nothing to be compared with", adv.Alone, adv.Groups)
	}
	if c.calls > 0 && float64(c.untrained) > warnUntrained*float64(c.calls) {
		t.warn(step, "untrained_calls", "%d of %d calls do not train; rollouts.jsonl has the reasons", c.untrained, c.calls)
	}
	if m.mismatchTokens > 0 && m.mismatch/m.mismatchTokens > warnMismatch {
		t.warn(step, "sampler_difference", "the sampler's log probs differ from the trainer's by %.3f nats on average under the same weights: temperature, top-p or weights do not agree", m.mismatch/m.mismatchTokens)
	}
}

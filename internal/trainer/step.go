package trainer

import (
	"context"
	"errors"
	"maps"
	"slices"

	"github.com/fulgur-rl/fulgur"
	"github.com/fulgur-rl/fulgur/internal/trainer/advantage"
	"github.com/fulgur-rl/fulgur/internal/trainer/schedule"
	"github.com/fulgur-rl/fulgur/internal/trainer/trace"
)

// Shares and numbers from which on a warning is given (case UI-03).
const (
	warnZeroSteps      = 3    // steps in a row without any reward
	warnInfrastructure = 0.1  // of a step's rollouts
	warnAgents         = 0.5  // of a step's rollouts
	warnUnanimous      = 0.8  // of a step's groups
	warnUntrained      = 0.2  // of a step's calls
	warnFragmented     = 0.5  // of a step's rollouts
	warnRatio          = 0.2  // off 1, which the mean ratio of any two policies is expected to be
	warnRatioSteps     = 5    // steps in a row on one side: a few stale tokens move one step's mean by chance
	warnMismatch       = 0.02 // nats: mean difference of log probs between sampler and trainer under one policy
	stopNotFinite      = 0.5  // of a step's rewards (case AL-09)
	stopMismatch       = 0.2  // nats: the sampler does not hold the policy that is trained (cases WE-02, WE-03)
)

// step makes the optimizer steps of one training step and publishes the result.
func (t *trainer) step(ctx context.Context, u schedule.Update, rollouts []ended) (err error) {
	start := t.o.Now()
	if u.Hold && t.asynchronous() {
		if err := t.hold(ctx); err != nil {
			return err
		}
		stop := t.keepHeld(ctx)
		defer func() {
			stop()
			err = errors.Join(err, t.release(ctx))
		}()
	}
	m := measured{values: map[string]float64{}}
	adv, batches, err := t.batches(ctx, u.Step, rollouts, &m)
	if err != nil {
		return err
	}
	done := StepDone{Step: u.Step, Groups: adv.Groups, Unanimous: adv.Unanimous, LearningRate: t.o.LearningRate.At(u.Step)}
	if err := t.prepare(ctx, u.Step, batches, &m); err != nil {
		return err
	}
	for i := range batches {
		if len(batches[i].data) == 0 {
			continue // nothing but equal rewards: no gradient, so no step
		}
		if err := t.update(ctx, u.Step, &batches[i], &m); err != nil {
			return err
		}
		done.Samples += batches[i].samples
	}
	version := t.state.Version + 1
	if err := t.publish(ctx, version, u.Hold && !t.asynchronous()); err != nil {
		return err
	}
	t.state.Version = version
	t.timing.Update = t.o.Now().Sub(start)
	m.into(&done)
	t.record(&done, adv, rollouts, &m)
	return nil
}

// record counts the step, tells the observer, warns, and puts the metrics aside
// for settle.
func (t *trainer) record(done *StepDone, adv advantage.Result, rollouts []ended, m *measured) {
	c := count(rollouts, t.o.Pass)
	t.passed(c.lines)
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
		"rollouts/total": float64(t.state.Rollouts), "rollouts/masked": float64(c.masked), "rollouts/agent_failures": float64(c.agent), "rollouts/flagged": float64(c.flagged),
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
	maps.Copy(values, m.values)
	maps.Copy(values, audited(c.lines))
	for outcome, k := range c.outcomes {
		values["outcomes/"+outcome] = float64(k)
	}
	measureSamples(values, c.lines)
	t.watchOutcomes(done.Step, slices.Concat(c.lines, t.dropped), values) // most that a filter drops have failed alike
	t.pend(values, c.lines)
	t.o.Observer(*done)
	told := t.warnCauses(done.Step, rollouts)
	t.warnings(done.Step, adv, &c, m, len(rollouts), told)
}

// counted sums a step's rollouts.
type counted struct {
	lines                                    []RolloutLine
	reward, passRate                         float64
	masked, agent, infrastructure, notFinite int
	flagged                                  int // left files that decide how they are graded
	silent                                   int // agents that reported no reward
	calls, sampled, samples, untrained       int
	outcomes                                 map[string]int
}

func count(rollouts []ended, pass float64) counted {
	c := counted{outcomes: map[string]int{}}
	voters := 0
	for i := range rollouts {
		l := rollouts[i].line
		c.lines = append(c.lines, l)
		c.outcomes[way(&l)]++
		switch {
		case l.Class == fulgur.OutcomeAgent:
			c.agent++
		case l.Class == fulgur.OutcomeInfrastructure || l.Masked == maskGrader:
			c.infrastructure++
		}
		if l.Masked == maskNotFinite || l.Masked == maskRange {
			c.notFinite++
		}
		if len(l.Flags) > 0 {
			c.flagged++
		}
		if l.Why == whyNoReward {
			c.silent++
		}
		if l.Masked != "" {
			c.masked++
		} else if l.Reward != nil {
			voters++
			c.reward += *l.Reward
		}
		if l.Passes(pass) {
			c.passRate++
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

// warnings tells of training that looks alive while little is learned. told: warnCauses
// has said how agents fail.
func (t *trainer) warnings(step int64, adv advantage.Result, c *counted, m *measured, rollouts int, told bool) {
	if c.reward == 0 && c.passRate == 0 && !t.o.Objective.CallRewards {
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
	if share := float64(c.agent) / n; share > warnAgents && !told {
		i := slices.IndexFunc(c.lines, func(l RolloutLine) bool { return l.Class == fulgur.OutcomeAgent })
		t.warn(step, "agents", "%d of %d agents failed (%s): `fulgur rollouts show %s` says how", c.agent, rollouts, c.lines[i].Outcome, c.lines[i].ID)
	}
	if c.notFinite > 0 {
		i := slices.IndexFunc(c.lines, func(l RolloutLine) bool { return l.Masked == maskNotFinite || l.Masked == maskRange })
		t.warn(step, "reward_not_finite", "%d rewards can't be used (NaN, infinite, or beyond ±%g); their rollouts were left out: `fulgur rollouts show %s`", c.notFinite, mostReward, c.lines[i].ID)
	}
	if c.silent > 0 {
		i := slices.IndexFunc(c.lines, func(l RolloutLine) bool { return l.Why == whyNoReward })
		t.warn(step, "no_reward", "%d of %d agents reported no reward, which counts as that of a failure (outcomes.agent_failure.reward): `fulgur rollouts show %s`", c.silent, rollouts, c.lines[i].ID)
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
	t.warnFragments(step, c.lines)
	switch r, ok := m.values["policy/ratio"]; {
	case ok && r > 1+warnRatio:
		t.state.OffRatio = max(t.state.OffRatio, 0) + 1
	case ok && r < 1-warnRatio:
		t.state.OffRatio = min(t.state.OffRatio, 0) - 1
	default:
		t.state.OffRatio = 0
	}
	if n := max(t.state.OffRatio, -t.state.OffRatio); n >= warnRatioSteps {
		t.warn(step, "ratio", "for %d steps the trainer's probabilities have been off the sampler's, now %.2f times them on average, where 1 is expected: does the sampler hold the weights that it says, and sample at this temperature?", n, m.values["policy/ratio"])
	}
	if m.mismatchTokens > 0 && m.mismatch/m.mismatchTokens > warnMismatch {
		t.warn(step, "sampler_difference", "the sampler's log probs differ from the trainer's by %.3f nats on average under the same weights: temperature, top-p or weights do not agree", m.mismatch/m.mismatchTokens)
	}
}

// warnFragments tells of histories that break where the conversation went on, which
// is a harness's or a template's doing: more samples, and their beginnings read again.
func (t *trainer) warnFragments(step int64, lines []RolloutLine) {
	broken, samples, classes := 0, 0, map[string]int{}
	var example fulgur.RolloutID
	for i := range lines {
		l := &lines[i]
		samples += l.Samples
		n := 0
		for class, k := range l.Breaks {
			if c := trace.Class(class); c != trace.Compaction && c != trace.NewConversation {
				n += k
				classes[class] += k
			}
		}
		if n > 0 {
			broken, example = broken+1, l.ID
		}
	}
	if share := float64(broken) / float64(len(lines)); share > warnFragmented {
		t.warn(step, "fragmented", "in %.0f %% of the rollouts the history broke where the conversation went on (%s), %.1f samples a rollout: `fulgur samples show %s` has the texts, docs/samples.md what helps",
			100*share, counts(classes), float64(samples)/float64(len(lines)), example)
	}
}

package config

import "slices"

func (c *checker) algorithm() {
	a := c.f.Algorithm
	if a.GroupSize < 2 {
		c.fail("algorithm.group_size", "%s compares the rollouts of a group: want at least 2", a.Estimator)
	}
	if a.Minibatches > a.GroupsPerStep {
		if key := "algorithm.minibatches"; c.wrote(key) {
			c.fail(key, "%d groups cannot be divided over %d optimizer steps: at most %d (algorithm.groups_per_step)", a.GroupsPerStep, a.Minibatches, a.GroupsPerStep)
		} else {
			c.fail("algorithm.groups_per_step", "%d cannot be divided over the %d optimizer steps of a step, which are the default: add algorithm.minibatches: %d, or more groups", a.GroupsPerStep, a.Minibatches, a.GroupsPerStep)
		}
	}
	if a.Estimator != "grpo" {
		c.noEffect("algorithm.normalize_std", "with estimator "+a.Estimator)
	}
	if a.Loss != "ppo" && a.Loss != "cispo" && a.Loss != "gspo" {
		c.noEffect("algorithm.clip", "with loss "+a.Loss)
	}
	if a.Loss == "ppo" && a.Clip[0] >= 1 {
		c.warn("algorithm.clip", "the low bound is 1 - %g: the ratio is never clipped from below", a.Clip[0])
	}
	lr := a.LearningRate
	if lr.Start == 0 && lr.End == 0 {
		c.fail("algorithm.learning_rate", "0 learns nothing")
	}
	if max(lr.Start, lr.End) > 0.1 {
		c.warn("algorithm.learning_rate", "%g is far above what AdamW takes for any model (1e-6 to 1e-3): the policy will most likely be destroyed", max(lr.Start, lr.End))
	}
	if lr.Over == 0 && lr.End != lr.Start {
		c.warn("algorithm.learning_rate", "end has no effect without over")
	}
	for _, b := range []struct {
		path  string
		value float64
	}{{"algorithm.adam.beta1", a.Adam.Beta1}, {"algorithm.adam.beta2", a.Adam.Beta2}} {
		if b.value >= 1 {
			c.fail(b.path, "want less than 1, got %g", b.value)
		}
	}
	s := c.f.Sampling
	if s.Temperature == 0 {
		c.fail("sampling.temperature", "greedy rollouts of one row are all the same: want more than 0")
	}
	if s.TopP == 0 {
		c.fail("sampling.top_p", "want more than 0; 1 is off")
	}
	if s.TopP < 1 || s.TopK > 0 {
		path := "sampling.top_p"
		if s.TopK > 0 {
			path = "sampling.top_k"
		}
		c.warn(path, "tokens are drawn from a cut distribution, and their log probs are of the whole one: updates are biased")
	}
}

// objective looks at how advantages become a loss.
func (c *checker) objective() {
	a := c.f.Algorithm
	v1 := slices.Contains(c.f.Compat, "v1")
	if a.Loss != "ppo" && a.Loss != "gspo" {
		c.noEffect("algorithm.dual_clip", "with loss "+a.Loss)
	} else if a.DualClip != 0 && a.DualClip <= 1 {
		c.fail("algorithm.dual_clip", "want more than 1, or 0 for none, got %g", a.DualClip)
	}
	if a.Loss != "dro" {
		c.noEffect("algorithm.dro_beta", "with loss "+a.Loss)
	}
	if a.Loss == "gspo" && a.Clip[1] > 0.1 {
		c.warn("algorithm.clip", "gspo's ratio is a mean over a rollout and moves little: bounds of 3e-4 to 0.01 are usual, at %g it is hardly ever clipped", a.Clip[1])
	}
	if a.Aggregate != "constant" {
		c.noEffect("algorithm.constant_tokens", "with aggregate "+a.Aggregate)
	} else if a.ConstantTokens == 0 {
		c.fail("algorithm.constant_tokens", "missing: the tokens that aggregate constant divides by, such as sampling.max_tokens times the calls of a rollout")
	}
	if a.Estimator == "dr_grpo" && a.Aggregate == "rollout" && !v1 {
		c.warn("algorithm.estimator", "dr_grpo takes the length out of the loss too: that is aggregate: constant; by rollout a token of a long rollout weighs less")
	}
	if a.KL.Coefficient == 0 {
		c.noEffect("algorithm.kl.kind", "with coefficient 0")
		c.noEffect("algorithm.kl.in", "with coefficient 0")
	}
	perCall := a.Discount != 1 || c.f.Reward.Calls
	if a.Estimator == "pass_at_k" && perCall {
		c.fail("algorithm.estimator", "pass_at_k knows the rewards of whole rollouts only: leave algorithm.discount and reward.calls out")
	}
	if a.Vote == "sample" && a.Estimator == "pass_at_k" {
		c.fail("algorithm.vote", "pass_at_k compares rollouts: samples of the best one would tie with each other")
	}
	f := a.Filter
	if !f.EqualRewards && f.Valid == 0 {
		c.noEffect("algorithm.filter.refills", "without equal_rewards or valid")
	} else if f.Refills == 0 {
		c.warn("algorithm.filter", "has no effect with refills: 0, no group can be replaced")
	}
	if f.Valid > a.GroupSize {
		c.fail("algorithm.filter.valid", "%d of a group of %d can never count", f.Valid, a.GroupSize)
	}
	if !v1 {
		return
	}
	if perCall {
		c.fail("compat", "v1 has no rewards of single calls and no discount: leave reward.calls and algorithm.discount out")
	}
	if a.Estimator == "class_loo" {
		c.fail("compat", "v1 has no estimator class_loo")
	}
	if a.Loss != "ppo" {
		c.warn("compat", "v1's own loss is ppo (per_rollout_mean); %s is computed in Fulgur's arithmetic", a.Loss)
	}
	c.noEffect("algorithm.aggregate", "with compat v1: its weights are by rows")
	c.noEffect("algorithm.vote", "with compat v1")
	c.noEffect("algorithm.samples", "with compat v1: its rows are merged from neighbours")
	c.noEffect("algorithm.over_long", "with compat v1: its rows are cut, and those with a long prompt dropped")
	c.noEffect("algorithm.replay", "with compat v1: its rows carry no experts")
}

// Correction returns off_policy.correction with auto resolved: tokens of older
// policies are what the asynchronous schedules make, and without a correction calc
// has been seen to collapse at the default staleness (docs/schedules.md).
func (f *File) Correction() string {
	switch {
	case f.OffPolicy.Correction != "auto":
		return f.OffPolicy.Correction
	case f.Schedule.Mode == "synchronous", f.Algorithm.Loss == "importance_sampling", slices.Contains(f.Compat, "v1"):
		return "none"
	}
	return "token"
}

// offPolicy looks at what corrects for a sampler that is not the trained policy.
func (c *checker) offPolicy() {
	o, correction := c.f.OffPolicy, c.f.Correction()
	switch {
	case correction == "none":
		c.noEffect("off_policy.truncate", "without a correction")
	case o.Truncate == 0:
		c.warn("off_policy.truncate", "without a limit a single unlikely token, or rollout, can outweigh all others")
	}
	if c.f.Algorithm.Loss == "importance_sampling" && correction != "none" {
		c.warn("off_policy.correction", "loss importance_sampling has the sampler in its ratio already: tokens are corrected twice")
	}
	if b := o.Mask; b[1] > 0 && (b[0] > 1 || b[1] < 1) {
		c.warn("off_policy.mask", "[%g, %g] leaves out a ratio of 1: tokens of the newest policy train nothing", b[0], b[1])
	}
	if b := o.Stop.Ratio; b[1] > 0 && (b[0] > 1 || b[1] < 1) {
		c.fail("off_policy.stop.ratio", "[%g, %g] does not hold 1, which the mean ratio of one policy is: the run would stop at once", b[0], b[1])
	}
}

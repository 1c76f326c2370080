package cli

import (
	"slices"

	"github.com/fulgur-rl/fulgur/internal/config"
	"github.com/fulgur-rl/fulgur/internal/engine"
	"github.com/fulgur-rl/fulgur/internal/trainer"
	"github.com/fulgur-rl/fulgur/internal/trainer/advantage"
	"github.com/fulgur-rl/fulgur/internal/trainer/loss"
	"github.com/fulgur-rl/fulgur/internal/trainer/sample"
)

// compatAlgorithm computes drops, advantages, weights and the loss as v1 does.
const compatAlgorithm = "v1"

// curriculumDecay is what a row's next group takes off the weight of what is known
// of it: the policy has moved on.
const curriculumDecay = 0.3

// estimator maps the run file's names to a formula.
func estimator(a config.Algorithm) advantage.Estimator {
	if a.Estimator == string(advantage.GRPO) && !a.NormalizeStd {
		return advantage.GRPONoStd
	}
	return advantage.Estimator(a.Estimator)
}

// objective maps the run file's keys about losses to the trainer's options.
func objective(o *trainer.Options, f *config.File) {
	a, p := f.Algorithm, f.OffPolicy
	o.Estimator = estimator(a)
	o.Loss = engine.Loss{Name: a.Loss, ClipLow: a.Clip[0], ClipHigh: a.Clip[1]}
	o.Objective = trainer.Objective{
		DualClip: a.DualClip, Beta: a.DROBeta, Aggregate: a.Aggregate, Constant: float64(a.ConstantTokens), VoteBySample: a.Vote == "sample",
		KL:         trainer.KL{Coefficient: a.KL.Coefficient, Kind: a.KL.Kind, InReward: a.KL.In == "reward"},
		Correction: loss.Correction{By: f.Correction(), Truncate: p.Truncate, Low: p.Mask[0], High: p.Mask[1]},
		Band:       trainer.Band{RatioLow: p.Stop.Ratio[0], RatioHigh: p.Stop.Ratio[1], KL: p.Stop.KL},
		Discount:   a.Discount, CallRewards: f.Reward.Calls, V1: slices.Contains(f.Compat, compatAlgorithm),
	}
	if a.Curriculum == "pass_rate" {
		o.Curriculum = &advantage.Curriculum{Decay: curriculumDecay}
	}
	o.MaxTokens = a.SampleTokens
	o.Samples = sample.Options{Level: sample.Level(a.Samples), OverLong: sample.Limit(a.OverLong), Replay: a.Replay}
	if a.Loss != loss.PPO && a.Loss != loss.GSPO {
		o.Objective.DualClip = 0
	}
	if f := (advantage.Filter{Equal: a.Filter.EqualRewards, Valid: a.Filter.Valid}); f != (advantage.Filter{}) {
		o.Filter = trainer.GroupFilter(f)
		o.Schedule.Refills = a.Filter.Refills
	}
}

package cli

import (
	"github.com/fulgur-rl/fulgur/internal/config"
	"github.com/fulgur-rl/fulgur/internal/engine"
	"github.com/fulgur-rl/fulgur/internal/reward"
	"github.com/fulgur-rl/fulgur/internal/trainer/advantage"
)

// variants names what this build offers. A new engine, runner, estimator, loss
// or grader is one line here and one where it is made.
func variants() config.Variants {
	return config.Variants{
		"engine":              {"embedded"},
		"runner.kind":         {"local"},
		"runner.sandbox":      {"auto", "none"},
		"schedule.mode":       {"synchronous"},
		"algorithm.estimator": {string(advantage.GRPO), string(advantage.DrGRPO), string(advantage.RLOO)},
		"algorithm.loss":      {engine.PPO, engine.ImportanceSampling, engine.CISPO},
		"reward.builtin":      reward.Names(),
	}
}

// estimator maps the run file's names to a formula.
func estimator(a config.Algorithm) advantage.Estimator {
	if a.Estimator == string(advantage.GRPO) && !a.NormalizeStd {
		return advantage.GRPONoStd
	}
	return advantage.Estimator(a.Estimator)
}

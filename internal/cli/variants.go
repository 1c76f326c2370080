package cli

import (
	"strings"

	"github.com/fulgur-rl/fulgur"
	"github.com/fulgur-rl/fulgur/internal/config"
	"github.com/fulgur-rl/fulgur/internal/reward"
	"github.com/fulgur-rl/fulgur/internal/store"
	"github.com/fulgur-rl/fulgur/internal/store/postgres"
	"github.com/fulgur-rl/fulgur/internal/store/sqlite"
)

// variants names what this build offers. A new engine, runner, estimator, loss
// or grader is one line here and one where it is made.
func variants() config.Variants {
	reasons, retried, steered := reasonNames()
	return config.Variants{
		"outcomes.reasons": reasons, "outcomes.reasons.retries": retried, "outcomes.reasons.agent": steered,
		"engine":         {"embedded"},
		"runner.kind":    runnerNames(),
		"runner.sandbox": {"auto", "bubblewrap", "none"},
		"reward.builtin": reward.Names(),
		"compat":         {compatAlgorithm, compatAgents},
	}
}

// storeDriver maps --store's URLs to a database.
func storeDriver(url string, power bool) (store.Driver, error) {
	scheme, path, _ := strings.Cut(url, ":")
	switch {
	case scheme == "sqlite" && path != "":
		return sqlite.New(path, sqlite.Options{Power: power}), nil
	case scheme == "postgres" || scheme == "postgresql":
		return postgres.New(url), nil
	}
	return nil, usageErr(fulgur.E(fulgur.KindUnsupported, "open store "+scheme, "want sqlite:PATH, sqlite::memory: or postgres://USER:PASSWORD@HOST/DATABASE", nil))
}

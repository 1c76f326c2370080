package cli

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"strings"

	"github.com/fulgur-rl/fulgur"
	"github.com/fulgur-rl/fulgur/internal/config"
	"github.com/fulgur-rl/fulgur/internal/gateway"
	"github.com/fulgur-rl/fulgur/internal/trainer"
)

// frozenEndpoints are the run file's models besides the policy, with the keys of
// their servers.
func frozenEndpoints(f *config.File) ([]fulgur.Endpoint, error) {
	var out []fulgur.Endpoint
	for i, m := range f.Models {
		ep := fulgur.Endpoint{Model: m.Name, Kind: fulgur.EndpointChat, URL: strings.TrimSuffix(m.URL, "/")}
		if m.KeyEnv != "" {
			if ep.Key = os.Getenv(m.KeyEnv); ep.Key == "" {
				return nil, usageErr(fulgur.E(fulgur.KindInvalid, "read the run file",
					fmt.Sprintf("models[%d].key_env: the variable %s is empty: set it to the key of %s", i, m.KeyEnv, m.URL), nil))
			}
		}
		out = append(out, ep)
	}
	return out, nil
}

// frozenKeys are those keys: no agent gets a variable that holds one.
func frozenKeys(f *config.File) []string {
	var out []string
	for _, m := range f.Models {
		if key := os.Getenv(m.KeyEnv); m.KeyEnv != "" && key != "" {
			out = append(out, key)
		}
	}
	return out
}

// registry keeps what a run is, and where its models are.
type registry interface {
	PutRun(ctx context.Context, r fulgur.Run) error
	PutEndpoints(ctx context.Context, run fulgur.RunID, model string, eps []fulgur.Endpoint) error
}

// registerModels tells a run's record where its models besides the policy are.
// It runs before the trainer, which makes the record where there is none.
func registerModels(ctx context.Context, st registry, o trainer.Options, f *config.File) error {
	eps, err := frozenEndpoints(f)
	if err != nil || len(eps) == 0 {
		return err
	}
	for i, ep := range eps {
		err := st.PutEndpoints(ctx, o.Run, ep.Model, eps[i:i+1])
		if fulgur.KindOf(err) == fulgur.KindNotFound {
			if err = st.PutRun(ctx, fulgur.Run{ID: o.Run, Model: o.Model, Config: o.Config}); err == nil {
				err = st.PutEndpoints(ctx, o.Run, ep.Model, eps[i:i+1])
			}
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// defaultRules are the rules for the calls of runs that no run file describes:
// a run file's defaults.
func defaultRules() gateway.Rules {
	var r gateway.Rules
	_ = json.Unmarshal(config.Default().JSON(), &r) // the keys are the same: a test holds them to it
	return r
}

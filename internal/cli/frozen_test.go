package cli

import (
	"encoding/json"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/fulgur-rl/fulgur/internal/config"
	"github.com/fulgur-rl/fulgur/internal/gateway"
)

// The gateway reads the run file's keys from a run's record: every key of a rule
// must arrive there.
func TestRulesReachTheGateway(t *testing.T) {
	f := config.Default()
	f.Sampling.Enforce = "force"
	f.Models = []config.FrozenModel{{Name: "judge", URL: "http://h/v1", KeyEnv: "K", Agents: true}}
	f.Auxiliary = append(f.Auxiliary, config.AuxiliaryRule{Name: "a", Model: "b", OtherModel: true, NoTools: true, System: "c",
		MaxTokens: 3, Header: "d", Route: "judge", Train: true})
	var got gateway.Rules
	if err := json.Unmarshal(f.JSON(), &got); err != nil {
		t.Fatal(err)
	}
	want := gateway.Rules{Models: []gateway.FrozenModel{{Name: "judge", Agents: true}}, Auxiliary: []gateway.AuxiliaryRule{
		{Name: "title", NoTools: true, System: "^You are a title generator"}, {Name: "other-model", OtherModel: true},
		{Name: "a", Model: "b", OtherModel: true, NoTools: true, System: "c", MaxTokens: 3, Header: "d", Route: "judge", Train: true}}}
	want.Sampling.Enforce = "force"
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	if r := defaultRules(); len(r.Auxiliary) != 2 {
		t.Errorf("%+v", r)
	}
}

func TestKeysOfFrozenModels(t *testing.T) {
	t.Setenv("FROZEN_TEST_KEY", "sk-1")
	f := config.Default()
	f.Models = []config.FrozenModel{{Name: "judge", URL: "http://h/v1/", KeyEnv: "FROZEN_TEST_KEY"}, {Name: "open", URL: "http://o/v1"}}
	eps, err := frozenEndpoints(f)
	if err != nil || len(eps) != 2 || eps[0].Key != "sk-1" || eps[0].URL != "http://h/v1" || eps[1].Key != "" {
		t.Errorf("%+v %v", eps, err)
	}
	if diff := cmp.Diff([]string{"sk-1"}, frozenKeys(f)); diff != "" {
		t.Error(diff)
	}
	f.Models[1].KeyEnv = "FROZEN_TEST_NOT_SET"
	if _, err := frozenEndpoints(f); err == nil {
		t.Error("an empty variable is no key")
	}
}

package api_test

import (
	"context"
	"strings"
	"testing"

	"github.com/fulgur-rl/fulgur"
	"github.com/fulgur-rl/fulgur/internal/api"
)

type noEvents struct{}

func (noEvents) Events(context.Context, fulgur.RolloutID, fulgur.AttemptID) ([]fulgur.Event, error) {
	return nil, nil
}

// What an agent posts, a trainer in Python has to be able to read.
func TestAgentsEventsAreNotNestedTooDeep(t *testing.T) {
	b := api.NewEventBudget(api.EventLimits{}, noEvents{}, nil)
	agent := fulgur.Identity{Scope: fulgur.ScopeAttempt, Rollout: "r", Attempt: "0"}
	nested := func(n int) string { return strings.Repeat("[", n) + strings.Repeat("]", n) }
	for is, c := range map[string]struct {
		who  fulgur.Identity
		data string
		kind fulgur.Kind
	}{
		"500 deep":                         {agent, nested(500), ""},
		"501 deep":                         {agent, nested(501), fulgur.KindTooLarge},
		"objects":                          {agent, strings.Repeat(`{"a":[`, 300) + strings.Repeat("]}", 300), fulgur.KindTooLarge},
		"many beside each other":           {agent, "[" + strings.Repeat("[],", 5000) + "1]", ""},
		"brackets in a text":               {agent, `["` + strings.Repeat("[", 5000) + `"]`, ""},
		"of whom has the server's own key": {fulgur.Identity{Scope: fulgur.ScopeServer}, nested(5000), ""},
	} {
		if err := b.Take(t.Context(), c.who, "note", []byte(c.data)); fulgur.KindOf(err) != c.kind {
			t.Errorf("%s: %v", is, err)
		}
	}
}

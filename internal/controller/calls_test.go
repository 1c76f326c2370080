package controller

import (
	"context"
	"errors"
	"testing"

	"github.com/fulgur-rl/fulgur"
	"github.com/fulgur-rl/fulgur/internal/controller/plan"
)

// recorded is a store that knows an attempt's calls.
type recorded struct {
	Store
	calls []fulgur.Call
	err   error
}

func (r recorded) Calls(context.Context, fulgur.RolloutID, fulgur.AttemptID) ([]fulgur.Call, error) {
	return r.calls, r.err
}

// What the gateway has forgotten, or nobody could ask it for, is on record: also that
// there was no call, by which an eviction is no fault of the agent's.
func TestCallsOfAnAttemptThatTheGatewayDoesNotKnow(t *testing.T) {
	full := fulgur.Call{HTTPStatus: 400, Error: "too long", Untrainable: []string{fulgur.UntrainableContext}}
	for name, test := range map[string]struct {
		store              recorded
		known              fulgur.Activity
		n                  int
		upstream, overflow string
	}{
		"none":                      {recorded{}, fulgur.Activity{Calls: -1}, 0, "", ""},
		"nobody knows":              {recorded{err: errors.New("away")}, fulgur.Activity{Calls: -1}, -1, "", ""},
		"the last one failed":       {recorded{calls: []fulgur.Call{{HTTPStatus: 200}, {HTTPStatus: 502}}}, fulgur.Activity{}, 2, "it was answered with status 502", ""},
		"the last one did not fit":  {recorded{calls: []fulgur.Call{{HTTPStatus: 200}, full}}, fulgur.Activity{}, 2, "", "too long"},
		"one before it did not fit": {recorded{calls: []fulgur.Call{full, {HTTPStatus: 200}}}, fulgur.Activity{}, 2, "", ""},
		"the gateway knows":         {recorded{}, fulgur.Activity{Calls: 3, Overflow: "too long"}, 3, "", "too long"},
	} {
		c := &Controller{store: test.store}
		if n, upstream, overflow := c.calls(t.Context(), plan.Key{}, test.known); n != test.n || upstream != test.upstream || overflow != test.overflow {
			t.Errorf("%s: %d, %q, %q", name, n, upstream, overflow)
		}
	}
}

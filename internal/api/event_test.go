package api_test

import (
	"context"
	"io"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"github.com/fulgur-rl/fulgur"
	"github.com/fulgur-rl/fulgur/internal/api"
)

type noEvents struct{}

func (noEvents) Events(context.Context, fulgur.RolloutID, fulgur.AttemptID) ([]fulgur.Event, error) {
	return nil, nil
}

// An agent's bodies are bounded, in size and in number, before they are held; whoever has
// the server's key has no such limits.
func TestAgentsBodiesAreBounded(t *testing.T) {
	var refused []string
	b := api.NewEventBudget(api.EventLimits{}, noEvents{}, func(why string) { refused = append(refused, why) })
	agent := fulgur.Identity{Scope: fulgur.ScopeAttempt, Rollout: "r", Attempt: "0"}
	read := func(who fulgur.Identity, n int, chunked bool) (func(), error) {
		r := httptest.NewRequest("POST", "/", strings.NewReader(strings.Repeat("x", n)))
		if chunked {
			r.ContentLength = -1
		}
		leave, err := b.Read(httptest.NewRecorder(), r, who)
		if err == nil {
			if got, err := io.ReadAll(r.Body); err != nil || len(got) != n {
				t.Errorf("%d of %d bytes, %v", len(got), n, err)
			}
		}
		return leave, err
	}
	for _, chunked := range []bool{false, true} {
		if _, err := read(agent, 2<<20+1, chunked); fulgur.KindOf(err) != fulgur.KindTooLarge {
			t.Error(err)
		}
	}
	var leaves []func()
	for range 16 {
		leave, err := read(agent, 100, false)
		if err != nil {
			t.Fatal(err)
		}
		leaves = append(leaves, leave)
	}
	if _, err := read(agent, 100, false); fulgur.KindOf(err) != fulgur.KindUnavailable {
		t.Errorf("the 17th at once: %v", err)
	}
	for who, n := range map[fulgur.Identity]int{{Scope: fulgur.ScopeAttempt, Rollout: "other", Attempt: "0"}: 100, {Scope: fulgur.ScopeServer}: 3 << 20} {
		if _, err := read(who, n, false); err != nil {
			t.Errorf("%+v: %v", who, err)
		}
	}
	for _, leave := range leaves {
		leave()
	}
	if _, err := read(agent, 2<<20, true); err != nil {
		t.Error(err)
	}
	if want := []string{"size", "size", "concurrency"}; !slices.Equal(refused, want) {
		t.Errorf("refused %v, want %v", refused, want)
	}
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

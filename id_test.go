package fulgur_test

import (
	"errors"
	"fmt"
	"regexp"
	"testing"

	"github.com/fulgur-rl/fulgur"
)

func TestRolloutIDsAreLegalShortAndDistinct(t *testing.T) {
	legal := regexp.MustCompile(`^[a-z0-9-]{1,40}$`)
	seen := map[fulgur.RolloutID]fulgur.RolloutKey{}
	for _, run := range []fulgur.RunID{"calc", "Upper/…", ""} {
		for _, part := range []string{"train", "val", "UPPER_x", "été"} {
			for _, n := range []int{0, 1, 99, 1234567890, 987654321012} {
				for refill := range 2 {
					k := fulgur.RolloutKey{Run: run, Part: part, Epoch: n, Row: n + 1, K: n % 8, Refill: refill}
					id := fulgur.NewRolloutID(k)
					if !legal.MatchString(string(id)) {
						t.Errorf("%+v: id %q is not legal", k, id)
					}
					if o, ok := seen[id]; ok {
						t.Errorf("%+v and %+v have one id %q", k, o, id)
					}
					seen[id] = k
					if fulgur.NewRolloutID(k) != id {
						t.Errorf("%+v: two ids", k)
					}
				}
			}
		}
	}
}

func TestRolloutStates(t *testing.T) {
	all := []fulgur.RolloutState{fulgur.Queuing, fulgur.Running, fulgur.Succeeded, fulgur.Failed}
	legal := map[string]bool{"queuing running": true, "queuing failed": true, "running succeeded": true, "running failed": true}
	for _, a := range all {
		for _, b := range all {
			if got := a.CanBecome(b); got != legal[string(a)+" "+string(b)] {
				t.Errorf("%s → %s: %v", a, b, got)
			}
		}
	}
}

func TestMessagesAreComparedInNormalForm(t *testing.T) {
	call := func(args string) fulgur.Message {
		return fulgur.Message{Role: "assistant", ToolCalls: []fulgur.ToolCall{{ID: "a", Name: "calc", Arguments: args}}}
	}
	for name, c := range map[string]struct {
		a, b fulgur.Message
		same bool
	}{
		"arguments with other spaces and key order": {call(`{"x":1,"y":[2, 3]}`), call(`{"y": [2,3], "x": 1}`), true},
		"another value":                                 {call(`{"x":1}`), call(`{"x":2}`), false},
		"big integers keep their digits":                {call(`{"x":12345678901234567890}`), call(`{"x":12345678901234567891}`), false},
		"arguments that are no JSON, compared as bytes": {call(`{"x":`), call(`{"x": `), false},
		"another role":                                  {fulgur.Message{Role: "user", Content: "a"}, fulgur.Message{Role: "tool", Content: "a"}, false},
		"ids of calls do not count":                     {fulgur.Message{Role: "tool", Content: "a", ToolCallID: "1"}, fulgur.Message{Role: "tool", Content: "a", ToolCallID: "2"}, true},
	} {
		if got := c.a.Same(c.b); got != c.same {
			t.Errorf("%s: Same = %v", name, got)
		}
	}
}

func TestErrorsTellTheirKind(t *testing.T) {
	err := fmt.Errorf("starting: %w", fulgur.E(fulgur.KindConflict, "open attempt", "the last attempt still runs", errors.New("secret detail")))
	if fulgur.KindOf(err) != fulgur.KindConflict || !errors.Is(err, &fulgur.Error{Kind: fulgur.KindConflict}) {
		t.Errorf("kind of %v", err)
	}
	if got := fulgur.PublicMessage(err); got != "the last attempt still runs" {
		t.Errorf("public message %q", got)
	}
	if fulgur.KindOf(errors.New("x")) != fulgur.KindInternal || fulgur.KindOf(nil) != "" {
		t.Error("kinds of foreign errors")
	}
}

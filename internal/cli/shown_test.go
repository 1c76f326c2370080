package cli

import (
	"testing"

	"github.com/fulgur-rl/fulgur"
)

// A call shows what no earlier call has shown, and all of another conversation.
func TestShownMessages(t *testing.T) {
	say := func(role, text string) fulgur.Message { return fulgur.Message{Role: role, Content: text} }
	reply := fulgur.Message{Role: "assistant", Content: "two", Reasoning: "hm"}
	calls := []fulgur.Call{
		{Messages: []fulgur.Message{say("system", "s"), say("user", "one")}, Reply: &reply},
		{Messages: []fulgur.Message{say("system", "sub-agent")}},
	}
	for name, test := range map[string]struct {
		msgs []fulgur.Message
		want int
	}{
		"goes on, without the reasoning": {[]fulgur.Message{say("system", "s"), say("user", "one"), say("assistant", "two"), say("user", "three")}, 3},
		"another conversation":           {[]fulgur.Message{say("system", "other"), say("user", "one"), say("user", "two"), say("user", "three"), say("user", "four")}, 0},
		"rewritten":                      {[]fulgur.Message{say("system", "s"), say("user", "ONE"), say("assistant", "two")}, 0},
		"a shorter one":                  {[]fulgur.Message{say("user", "x")}, 0},
		"the sub-agent goes on":          {[]fulgur.Message{say("system", "sub-agent"), say("user", "x")}, 1},
	} {
		if got := shown(calls, test.msgs); got != test.want {
			t.Errorf("%s: %d, want %d", name, got, test.want)
		}
	}
}

package cli

import (
	"testing"

	"github.com/fulgur-rl/fulgur"
	"github.com/fulgur-rl/fulgur/internal/trainer"
	"github.com/fulgur-rl/fulgur/internal/trainer/trace"
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

// A break names a token only where there is one on both sides.
func TestShownBreak(t *testing.T) {
	for want, x := range map[string]shownBreak{
		"token 7 differs from call 2: expected 5, got 6; 3 tokens prefilled again": {Nearest: 2, Position: 7, Expected: 5, Got: 6, Again: 3},
		"its prompt ends at token 7, where call 2 has 5; 0 tokens prefilled again": {Nearest: 2, Position: 7, Expected: 5, Got: -1},
		"it shares no token with an earlier call":                                  {Nearest: trace.NoParent, Expected: -1, Got: 6},
	} {
		if got := x.where(); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}

// What is said of a rollout that did not train says so, and why.
func TestWhatBecameOfARollout(t *testing.T) {
	line := trainer.RolloutLine{Part: "train", Step: 1, Samples: 2, Trained: 37, Sampled: 37, Advantage: 0.5, Why: "right"}
	for want, change := range map[string]func(l *trainer.RolloutLine){
		"trained step 1, advantage +0.500, 2 samples, 37 of 37 sampled tokens, weight +0 a token  right":           func(*trainer.RolloutLine) {},
		"untrained step 1: masked (infrastructure), so none of its 37 sampled tokens trained":                      func(l *trainer.RolloutLine) { l.Masked, l.Why = "infrastructure", "" },
		"untrained step 1 made no policy: it stopped the run (step_stopped), and nothing of it has trained  right": func(l *trainer.RolloutLine) { l.Masked = trainer.MaskStopped },
		"measured step 1 (val), 37 sampled tokens; nothing of it trains  right":                                    func(l *trainer.RolloutLine) { l.Part = "val" },
	} {
		l := line
		change(&l)
		if got := becameOf(&l); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}

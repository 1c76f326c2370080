package trainer

import (
	"encoding/json"
	"testing"

	"github.com/fulgur-rl/fulgur"
)

// half grades everything with one half.
type half struct{}

func (half) Grade(json.RawMessage, []fulgur.Call) (float64, string, error) { return 0.5, "half", nil }

// What each way to end counts for in training, and that evaluations leave nothing
// out but what is not the agent's fault.
func TestWhatOutcomesCountFor(t *testing.T) {
	minus, zero := -1.0, 0.0
	table := func(class fulgur.OutcomeClass, reason string) fulgur.Follow {
		switch reason {
		case "timeout":
			return fulgur.Follow{Mask: true}
		case "no_calls", "node":
			return fulgur.Follow{Value: &minus}
		case "lost":
			return fulgur.Follow{}
		}
		return map[fulgur.OutcomeClass]fulgur.Follow{fulgur.OutcomeAgent: {Value: &zero}, fulgur.OutcomeInfrastructure: {Mask: true}}[class]
	}
	const ok, agent, infra = fulgur.OutcomeOK, fulgur.OutcomeAgent, fulgur.OutcomeInfrastructure
	for name, c := range map[string]struct {
		part   string
		class  fulgur.OutcomeClass
		reason string
		reward float64
		masked string
	}{
		"ok":                                 {"train", ok, "ok", 0.5, ""},
		"a failure":                          {"train", agent, "exit", 0, ""},
		"a failure that is masked":           {"train", agent, "timeout", 0, maskOutcome},
		"no calls, with a value":             {"train", ok, "no_calls", -1, ""},
		"infrastructure":                     {"train", infra, "upstream", 0, maskInfrastructure},
		"infrastructure with a value":        {"train", infra, "node", -1, ""},
		"infrastructure that is graded":      {"train", infra, "lost", 0.5, ""},
		"a masked failure in an evaluation":  {"val", agent, "timeout", 0, ""},
		"infrastructure in an evaluation":    {"val", infra, "node", 0, maskInfrastructure},
		"what has a value, in an evaluation": {"val", ok, "no_calls", 0.5, ""},
	} {
		t.Run(name, func(t *testing.T) {
			tr := &trainer{o: Options{Grader: half{}, AgentFailure: &zero, Follow: table}}
			line := RolloutLine{Part: c.part, Class: c.class, Outcome: c.reason}
			tr.grade(&line, fulgur.Rollout{LastAttempt: "0"}, nil)
			if line.Masked != c.masked || line.Masked == "" && (line.Reward == nil || *line.Reward != c.reward) {
				t.Errorf("masked %q, reward %v (%s)", line.Masked, number(line.Reward), line.Why)
			}
		})
	}
}

func number(v *float64) any {
	if v == nil {
		return nil
	}
	return *v
}

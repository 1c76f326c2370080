package trainer

import (
	"testing"

	"github.com/fulgur-rl/fulgur"
)

// What follows a shortcut: the strongest action of what was found surely.
func TestAuditActions(t *testing.T) {
	call := func(command string) []fulgur.Call {
		return []fulgur.Call{{ID: "c", Reply: &fulgur.Message{ToolCalls: []fulgur.ToolCall{{Name: "bash", Arguments: `{"command":"` + command + `"}`}}}}}
	}
	minus := -1.0
	for name, c := range map[string]struct {
		actions  map[string]string
		command  string
		failure  *float64
		reward   float64
		masked   string
		audited  string
		class    fulgur.OutcomeClass
		findings int
	}{
		"nothing is looked for":              {nil, "git reflog", nil, 1, "", "", fulgur.OutcomeOK, 0},
		"a detector that is off":             {map[string]string{"git_history": AuditOff}, "git reflog", nil, 1, "", "", fulgur.OutcomeOK, 0},
		"a flag changes nothing":             {map[string]string{"git_history": AuditFlag}, "git reflog", nil, 1, "", AuditFlag, fulgur.OutcomeOK, 1},
		"zero":                               {map[string]string{"git_history": AuditZero}, "git reflog", nil, 0, "", AuditZero, fulgur.OutcomeOK, 1},
		"mask":                               {map[string]string{"git_history": AuditMask}, "git reflog", nil, 1, maskAudit, AuditMask, fulgur.OutcomeOK, 1},
		"fail, with a configured reward":     {map[string]string{"git_history": AuditFail}, "git reflog", &minus, -1, "", AuditFail, fulgur.OutcomeAgent, 1},
		"the strongest of two":               {map[string]string{"git_history": AuditFlag, "download": AuditFail}, "git reflog; curl https://example.org", nil, 0, "", AuditFail, fulgur.OutcomeAgent, 2},
		"a trace has no consequence":         {map[string]string{"git_history": AuditFail}, "git log -3", nil, 1, "", "", fulgur.OutcomeOK, 1},
		"honest work":                        {map[string]string{"git_history": AuditFail, "download": AuditFail}, "git status", nil, 1, "", "", fulgur.OutcomeOK, 0},
		"an action that isn't known is none": {map[string]string{"git_history": "shout"}, "git reflog", nil, 1, "", "", fulgur.OutcomeOK, 0},
	} {
		t.Run(name, func(t *testing.T) {
			one := 1.0
			line := RolloutLine{Class: fulgur.OutcomeOK, Reward: &one}
			r := fulgur.Rollout{LastAttempt: "0", Reward: &one}
			got := Audit{Actions: c.actions}.apply(&line, r, call(c.command), nil, c.failure)
			if *line.Reward != c.reward || line.Masked != c.masked || line.Audited != c.audited || line.Class != c.class || len(line.Audit) != c.findings {
				t.Errorf("got %+v, reward %g", line, *line.Reward)
			}
			if changed := c.reward != 1; changed != (got != nil) || changed && got.Value != c.reward {
				t.Errorf("on record comes %+v", got)
			}
		})
	}
}

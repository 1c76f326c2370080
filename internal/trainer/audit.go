package trainer

import (
	"cmp"
	"slices"

	"github.com/fulgur-rl/fulgur"
	"github.com/fulgur-rl/fulgur/internal/audit"
)

// What follows a finding, weakest first. The strongest of a rollout's findings counts.
const (
	AuditOff  = "off"  // not looked for
	AuditFlag = "flag" // kept with the rollout and counted
	AuditZero = "zero" // the reward becomes 0
	AuditMask = "mask" // the rollout neither trains nor votes
	AuditFail = "fail" // it counts as a failure of the agent
)

// maskAudit is why a rollout is masked whose calls show a shortcut.
const maskAudit = "audit"

// Audit says what shortcuts are looked for in a rollout's calls, and what follows.
type Audit struct {
	Actions map[string]string // by detector; one that is missing is off. nil: no audit
	Options audit.Options
}

// strength orders actions.
func strength(action string) int {
	for i, a := range []string{AuditFlag, AuditZero, AuditMask, AuditFail} {
		if a == action {
			return i + 1
		}
	}
	return 0
}

// audit looks at an ended rollout after it was graded and before it trains: it
// writes what was found into the line, applies what is to follow, and returns the
// reward that is to be put on record (nil: what is there counts). Findings below
// audit.Sure are kept and have no consequence.
func (a Audit) apply(line *RolloutLine, r fulgur.Rollout, calls []fulgur.Call, reward *fulgur.Reward, failure *float64) *fulgur.Reward {
	action := ""
	if a.Actions == nil {
		return reward
	}
	for _, f := range audit.Scan(calls, a.Options) {
		does := a.Actions[f.Detector]
		if strength(does) == 0 && f.Detector != audit.NotFollowed {
			continue
		}
		line.Audit = append(line.Audit, f)
		if f.Confidence >= audit.Sure && strength(does) > strength(action) {
			action = does
		}
	}
	line.Audited = action
	if action == AuditMask {
		line.Masked = cmp.Or(line.Masked, maskAudit)
		return reward
	}
	switch line.Masked {
	case "", maskNotFinite, maskRange: // what it was worth before is no matter any more
	default:
		return reward
	}
	value := 0.0
	switch action {
	case AuditFail:
		line.Class, line.Outcome = fulgur.OutcomeAgent, "audit"
		if failure != nil {
			value = *failure
		}
	case AuditZero:
	default:
		return reward
	}
	line.Reward, line.Masked, line.Why = &value, "", "a shortcut was found: "+audit.Flagged(line.Audit)[0]
	if r.LastAttempt == "" || r.Reward != nil && *r.Reward == value {
		return nil
	}
	return &fulgur.Reward{AttemptKey: fulgur.AttemptKey{Rollout: r.ID, Attempt: r.LastAttempt}, Value: value, Source: "audit"}
}

// audited counts the rollouts of a step in which a detector was sure, by
// detector, and by what followed.
func audited(lines []RolloutLine) map[string]float64 {
	out := map[string]float64{}
	for i := range lines {
		for _, d := range audit.Flagged(lines[i].Audit) {
			out["audit/"+d]++
		}
		if slices.ContainsFunc(lines[i].Audit, func(f audit.Finding) bool { return f.Detector == audit.NotFollowed }) {
			out["audit/"+audit.NotFollowed]++
		}
		if a := lines[i].Audited; a != "" && a != AuditFlag {
			out["audit/action_"+a]++
		}
	}
	return out
}

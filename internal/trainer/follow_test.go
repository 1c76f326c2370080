package trainer

import (
	"encoding/json"
	"fmt"
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

// What an agent posts, of which it must be able to make no way out of having
// failed, and what that counts for where failures are graded.
func TestNothingThatAnAgentPostsMasksItsFailure(t *testing.T) {
	const ok, agent, infra = fulgur.OutcomeOK, fulgur.OutcomeAgent, fulgur.OutcomeInfrastructure
	minus := -1.0
	ctx, st := t.Context(), openStore(t, t.TempDir())
	if err := st.PutRun(ctx, fulgur.Run{ID: "r"}); err != nil {
		t.Fatal(err)
	}
	n := 0
	for name, c := range map[string]struct {
		graded bool // by reward.command, which failures are not
		class  fulgur.OutcomeClass
		data   string // of a reward event; "": none
		reward float64
		masked string
		why    string
	}{
		"a text, and the run grades":                {true, agent, `{"value":"high"}`, -1, "", whyFailed},
		"a number, and the run grades":              {true, agent, `{"value":1}`, -1, "", whyFailed},
		"nothing, and the run grades":               {true, agent, "", -1, "", whyFailed},
		"a text":                                    {false, agent, `{"value":"high"}`, -1, "", whyFailed},
		"more than a reward can be":                 {false, agent, `{"value":1e300}`, -1, "", whyFailed},
		"its reward, which is what it is graded by": {false, agent, `{"value":0.5}`, 0.5, "", "reported by the agent"},
		"nothing":                {false, agent, "", -1, "", whyFailed},
		"went well, with a text": {false, ok, `{"value":"high"}`, 0, maskNotFinite, whyNoNumber},
		"went well, with more than a reward can be":  {false, ok, `{"value":1e300}`, 0, maskRange, "the reward 1e+300 is beyond ±1e+18 (reported by the agent)"},
		"went well, with nothing":                    {false, ok, "", -1, "", whyNoReward},
		"went well, with a text, and the run grades": {true, ok, `{"value":"high"}`, 0, maskGrader, "reward.command gave no reward"},
		// AL-10: where it is to be graded and nothing has done so, it is no failure of the agent's.
		"infrastructure, and the run grades": {true, infra, `{"value":1}`, 0, maskInfrastructure, "there is nothing that it could be graded by"},
		"infrastructure, with nothing":       {false, infra, "", 0, maskInfrastructure, "there is nothing that it could be graded by"},
	} {
		t.Run(name, func(t *testing.T) {
			source := map[bool]fulgur.RewardSource{true: fulgur.RewardsGraded, false: fulgur.RewardsAgent}[c.graded]
			n++
			id := fulgur.RolloutID(fmt.Sprint("x", n))
			if _, err := st.CreateRollouts(ctx, []fulgur.RolloutSpec{{ID: id, Run: "r", Input: []byte("{}"), IsTrain: true, Rewards: source}}); err != nil {
				t.Fatal(err)
			}
			at, err := st.OpenAttempt(ctx, id)
			if err != nil {
				t.Fatal(err)
			}
			if c.data != "" {
				if _, err := st.AppendEvent(ctx, fulgur.Event{Rollout: id, Attempt: at.ID, Type: fulgur.EventReward, Data: []byte(c.data)}); err != nil {
					t.Fatal(err)
				}
			}
			r, err := st.ReportAttempt(ctx, id, at.ID, fulgur.AttemptReport{Phase: fulgur.PhaseEnded, Outcome: &fulgur.Outcome{Class: c.class, Reason: "exit"}})
			if err != nil {
				t.Fatal(err)
			}
			graded := func(fulgur.OutcomeClass, string) fulgur.Follow { return fulgur.Follow{} }
			tr := &trainer{o: Options{Store: st, Graded: c.graded, AgentFailure: &minus, Follow: graded}}
			e, reward := tr.finish(1, ask{key: fulgur.RolloutKey{Part: "train"}, train: true}, r, nil)
			if reward, err = tr.posted(ctx, &e, reward); err != nil {
				t.Fatal(err)
			}
			l := &e.line
			if l.Masked != c.masked || l.Why != c.why || c.masked == "" && (l.Reward == nil || *l.Reward != c.reward) {
				t.Errorf("masked %q, reward %v (%s)", l.Masked, number(l.Reward), l.Why)
			}
			if recorded := c.masked == "" && c.reward != 0.5; (reward != nil) != recorded || recorded && reward.Value != c.reward {
				t.Errorf("on record comes %+v", reward)
			}
		})
	}
}

package trainer

import (
	"encoding/json"
	"testing"

	"github.com/fulgur-rl/fulgur"
)

// The audit comes after the grader and before advantages: a masked rollout does
// not vote, a zeroed one does, with 0.
func TestAuditStandsBetweenGraderAndAdvantage(t *testing.T) {
	calls := func(command string) []fulgur.Call {
		args, err := json.Marshal(map[string]string{"command": command})
		if err != nil {
			t.Fatal(err)
		}
		return []fulgur.Call{{ID: "c", Trainable: true, PromptIDs: []int32{0}, SampledIDs: []int32{tasks}, LogProbs: []float32{-1},
			Reply: &fulgur.Message{ToolCalls: []fulgur.ToolCall{{Name: "bash", Arguments: string(args)}}}}}
	}
	tr := &trainer{o: Options{Grader: firstAnswer{}, Audit: Audit{Actions: map[string]string{"git_history": AuditMask, "download": AuditZero}}}}
	finish := func(command string) (ended, *fulgur.Reward) {
		r := fulgur.Rollout{LastAttempt: "0", State: fulgur.Succeeded}
		r.Input = json.RawMessage(`{"n":0}`)
		return tr.finish(3, ask{train: true}, r, calls(command))
	}
	honest, reward := finish("ls")
	if *honest.line.Reward != 1 || honest.line.Masked != "" || reward == nil || reward.Value != 1 {
		t.Errorf("honest: %+v, %+v", honest.line, reward)
	}
	masked, _ := finish("git reflog")
	if masked.line.Masked != maskAudit || masked.line.Audited != AuditMask || len(masked.line.Audit) != 1 {
		t.Errorf("masked: %+v", masked.line)
	}
	zeroed, reward := finish("wget https://example.org/fix.patch")
	if *zeroed.line.Reward != 0 || zeroed.line.Masked != "" || reward == nil || reward.Value != 0 || reward.Source != "audit" {
		t.Errorf("zeroed: %+v, %+v", zeroed.line, reward)
	}
	tr.o.Grader = given(1e300) // a reward beyond all measure is no way around what follows
	if e, _ := finish("wget https://example.org/fix.patch"); e.line.Masked != "" || e.line.Reward == nil || *e.line.Reward != 0 {
		t.Errorf("zeroed, and graded out of range: %+v", e.line)
	}
	tr.o.Audit.Actions["download"] = AuditFail
	line := RolloutLine{Class: fulgur.OutcomeInfrastructure, Outcome: "node", Masked: maskInfrastructure}
	if tr.o.Audit.apply(&line, fulgur.Rollout{}, calls("wget https://example.org/fix.patch"), nil, nil); line.Class != fulgur.OutcomeInfrastructure || line.Reward != nil || line.Audited != AuditFail {
		t.Errorf("failed, and its node was lost: %+v", line)
	}
	got := audited([]RolloutLine{honest.line, masked.line, zeroed.line})
	if got["audit/git_history"] != 1 || got["audit/download"] != 1 || got["audit/action_mask"] != 1 || got["audit/action_zero"] != 1 || len(got) != 4 {
		t.Errorf("counted %v", got)
	}
}

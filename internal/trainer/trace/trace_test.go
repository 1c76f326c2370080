package trace

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/fulgur-rl/fulgur"
)

func TestBreaksAreClassified(t *testing.T) {
	msg := func(role, text string) fulgur.Message { return fulgur.Message{Role: role, Content: text} }
	sys, user, obs := msg("system", "s"), msg("user", "u"), msg("tool", "o")
	answer := msg("assistant", "a")
	thought := answer
	thought.Reasoning = "hm"
	tool := fulgur.Message{Role: "assistant", ToolCalls: []fulgur.ToolCall{{Name: "f", Arguments: `{"a": 1}`}}}
	rewritten := fulgur.Message{Role: "assistant", ToolCalls: []fulgur.ToolCall{{Name: "f", Arguments: `{"a":1}`}}}
	first := func(reply fulgur.Message) fulgur.Call {
		return fulgur.Call{PromptIDs: []int32{1, 2}, SampledIDs: []int32{3, 4}, Messages: []fulgur.Message{sys, user}, Reply: &reply}
	}
	next := func(ids []int32, m ...fulgur.Message) fulgur.Call {
		return fulgur.Call{PromptIDs: ids, SampledIDs: []int32{9}, Messages: m}
	}
	for name, c := range map[string]struct {
		calls []fulgur.Call
		want  Break
	}{
		"the answer's text came back as other tokens": {
			[]fulgur.Call{first(answer), next([]int32{1, 2, 3, 5, 6}, sys, user, answer, obs)}, Break{1, 0, 3, 4, 5, Retokenisation}},
		"the template writes an earlier turn in another way": {
			[]fulgur.Call{first(answer), next([]int32{1, 7, 3, 4, 6}, sys, user, answer, obs)}, Break{1, 0, 1, 2, 7, Template}},
		"reasoning was dropped": {
			[]fulgur.Call{first(thought), next([]int32{1, 2, 4, 6}, sys, user, answer, obs)}, Break{1, 0, 2, 3, 4, ReasoningDropped}},
		"a tool call was written in another way": {
			[]fulgur.Call{first(tool), next([]int32{1, 2, 3, 8, 6}, sys, user, rewritten, obs)}, Break{1, 0, 3, 4, 8, ToolReserialised}},
		"the harness changed the user's turn": {
			[]fulgur.Call{first(answer), next([]int32{1, 2, 8, 8}, sys, user, msg("assistant", "b"), obs)}, Break{1, 0, 2, 3, 8, Rewritten}},
		"a summary took the place of the history": {
			[]fulgur.Call{{PromptIDs: []int32{1, 2, 3, 4, 5}, SampledIDs: []int32{6}, Messages: []fulgur.Message{sys, user, answer, obs, answer, obs}, Reply: &answer},
				next([]int32{1, 2, 9}, sys, user, msg("user", "summary"))}, Break{1, 0, 2, 3, 9, Compaction}},
		"another conversation": {
			[]fulgur.Call{first(answer), next([]int32{5, 6}, msg("system", "t"), msg("user", "v"))}, Break{1, NoParent, 0, -1, 5, NewConversation}},
	} {
		t.Run(name, func(t *testing.T) {
			f := Build(c.calls)
			if diff := cmp.Diff([]Break{c.want}, f.Breaks); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestCallsWithoutTokensAreSkippedWithAReason(t *testing.T) { // ST-01
	f := Build([]fulgur.Call{{SampledIDs: []int32{1}}, {SampledIDs: []int32{2}}, {PromptIDs: []int32{1}}})
	if diff := cmp.Diff([]string{SkipNoPrompt, SkipNoPrompt, SkipNoSampled}, f.Skipped); diff != "" {
		t.Error(diff)
	}
	if len(f.Roots) != 0 || len(f.Breaks) != 0 {
		t.Errorf("roots %v, breaks %v", f.Roots, f.Breaks)
	}
}

func TestManyCallsTakeLinearTime(t *testing.T) {
	const n = 10000
	calls := make([]fulgur.Call, n)
	history := []int32{1}
	for i := range calls {
		// Each starts anew every hundred calls, so prompts stay short.
		if i%100 == 0 {
			history = []int32{int32(i)}
		}
		calls[i] = fulgur.Call{PromptIDs: history, SampledIDs: []int32{int32(i)}}
		history = append(history[:len(history):len(history)], int32(i), -1)
	}
	f := Build(calls)
	if len(f.Roots) != n/100 {
		t.Errorf("%d roots, want %d", len(f.Roots), n/100)
	}
}

package trace

import "github.com/fulgur-rl/fulgur"

// Class says why a lineage broke.
type Class string

// The classes.
const (
	Template         Class = "template"          // same messages, other tokens before the answer: the chat template is not compositional
	Retokenisation   Class = "retokenisation"    // the answer's text came back as other tokens
	ReasoningDropped Class = "reasoning_dropped" // the history came back without the reasoning
	ToolReserialised Class = "tool_reserialised" // a tool call came back with arguments written differently
	Rewritten        Class = "history_rewritten" // the harness changed an earlier turn
	Compaction       Class = "compaction"        // a shorter history that starts alike took the place of a longer one
	NewConversation  Class = "new_conversation"  // nothing but perhaps a system prompt is shared
)

// Break is a place where a new lineage starts although calls came before.
type Break struct {
	Call     int   // the call that starts the new lineage
	Nearest  int   // the earlier call with the longest common beginning; NoParent if no token is shared
	Position int   // the first token of the call's prompt that differs from the nearest history
	Expected int32 // the token there in the nearest history; -1 at its end
	Got      int32 // the token there in the prompt; -1 at its end
	Class    Class
}

func classify(calls []fulgur.Call, i, nearest, common int) Break {
	b := Break{Call: i, Nearest: nearest, Position: common, Expected: -1, Got: -1}
	c := &calls[i]
	if common < len(c.PromptIDs) {
		b.Got = c.PromptIDs[common]
	}
	if nearest == NoParent {
		b.Class = NewConversation
		return b
	}
	p := &calls[nearest]
	if k := common - len(p.PromptIDs); k < 0 {
		b.Expected = p.PromptIDs[common]
	} else if k < len(p.SampledIDs) {
		b.Expected = p.SampledIDs[k]
	}
	if len(p.Messages) > 0 && len(c.Messages) > 0 {
		b.Class = byMessages(p, c, common)
	} else {
		b.Class = byTokens(p, c, common)
	}
	return b
}

// byMessages compares conversations turn by turn.
func byMessages(p, c *fulgur.Call, common int) Class {
	history := p.Messages
	if p.Reply != nil {
		history = append(history[:len(history):len(history)], *p.Reply)
	}
	for k, was := range history {
		if k >= len(c.Messages) {
			return shorter(history, c.Messages)
		}
		now := c.Messages[k]
		if was.Same(now) {
			if textOfToolsDiffers(was, now) {
				return ToolReserialised
			}
			continue
		}
		if was.Reasoning != "" && now.Reasoning == "" {
			was.Reasoning = ""
			if was.Same(now) {
				return ReasoningDropped
			}
		}
		return shorter(history, c.Messages)
	}
	if common >= len(p.PromptIDs) {
		return Retokenisation
	}
	return Template
}

// shorter tells the three ways apart in which a history can be another one.
func shorter(was, now []fulgur.Message) Class {
	same := 0
	for same < len(was) && same < len(now) && was[same].Same(now[same]) {
		same++
	}
	beyondSystem := false
	for _, m := range was[:same] {
		beyondSystem = beyondSystem || m.Role != "system" && m.Role != "developer"
	}
	switch {
	case len(now) < len(was) && same > 0 && (beyondSystem || len(was)-len(now) > 1):
		return Compaction
	case beyondSystem:
		return Rewritten
	}
	return NewConversation
}

func textOfToolsDiffers(a, b fulgur.Message) bool {
	for i := range a.ToolCalls {
		if a.ToolCalls[i].Arguments != b.ToolCalls[i].Arguments {
			return true
		}
	}
	return false
}

// byTokens is the best that can be said of calls without messages.
func byTokens(p, c *fulgur.Call, common int) Class {
	switch {
	case common >= len(p.PromptIDs):
		return Retokenisation
	case 2*common < len(p.PromptIDs):
		return NewConversation
	case len(c.PromptIDs) < len(p.PromptIDs):
		return Compaction
	}
	return Rewritten
}

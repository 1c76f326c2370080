package trace

import (
	"strings"

	"github.com/fulgur-rl/fulgur"
)

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

// Classes are all of them, in the order in which tables show them.
func Classes() []Class {
	return []Class{Template, Retokenisation, ReasoningDropped, ToolReserialised, Rewritten, Compaction, NewConversation}
}

// Break is a place where a new lineage starts although calls came before.
type Break struct {
	Call     int   // the call that starts the new lineage
	Nearest  int   // the latest earlier call with the longest common beginning; NoParent if no token is shared
	Position int   // the first token of the call's prompt that differs from the nearest history
	Expected int32 // the token there in the nearest history; -1 at its end
	Got      int32 // the token there in the prompt; -1 at its end
	Class    Class
	// Again is the number of prompt tokens that a prefix cache would have held had
	// the call continued the nearest history: 0 for a new conversation.
	Again int
}

func newBreak(calls []fulgur.Call, i, nearest, common int) Break {
	b := Break{Call: i, Nearest: nearest, Position: common, Expected: -1, Got: -1, Class: NewConversation}
	c := &calls[i]
	if common < len(c.PromptIDs) {
		b.Got = c.PromptIDs[common]
	}
	if nearest == NoParent {
		return b
	}
	p := &calls[nearest]
	if h := history(p, common, common+1); len(h) > 0 {
		b.Expected = h[0]
	}
	if len(p.Messages) > 0 && len(c.Messages) > 0 {
		b.Class = byMessages(p, c, common)
	} else {
		b.Class = byTokens(p, c, common)
	}
	if b.Class != NewConversation {
		b.Again = min(len(c.PromptIDs), len(p.PromptIDs)+len(p.SampledIDs)) - common
	}
	return b
}

// history copies tokens from to to of a call's prompt and answer, as far as they go.
func history(c *fulgur.Call, from, to int) []int32 {
	var out []int32
	n := len(c.PromptIDs)
	to = min(to, n+len(c.SampledIDs))
	if from < n {
		out = append(out, c.PromptIDs[from:min(to, n)]...)
	}
	if to > n && from < to {
		out = append(out, c.SampledIDs[max(from-n, 0):to-n]...)
	}
	return out
}

// Sides are the texts around a break.
type Sides struct {
	Before   string // what both share last
	Expected string // how the nearest history goes on
	Got      string // how the prompt goes on
}

// Sides decodes up to n tokens before the break and n on each side of it. decode
// gives the text of tokens.
func (b Break) Sides(calls []fulgur.Call, decode func([]int32) string, n int) Sides {
	prompt := calls[b.Call].PromptIDs
	text := func(ids []int32) string {
		if len(ids) == 0 {
			return ""
		}
		return decode(ids)
	}
	s := Sides{Before: text(prompt[max(0, b.Position-n):b.Position]), Got: text(prompt[b.Position:min(len(prompt), b.Position+n)])}
	if b.Nearest != NoParent {
		s.Expected = text(history(&calls[b.Nearest], b.Position, b.Position+n))
	}
	return s
}

// ByText is the break's class when the calls have no messages to compare, but
// texts: the same text in other tokens is a retokenisation, or the template's
// doing where it was in the prompt. Otherwise it is the class as it stands.
func (b Break) ByText(calls []fulgur.Call, decode func([]int32) string) Class {
	if b.Nearest == NoParent || len(calls[b.Call].Messages) > 0 && len(calls[b.Nearest].Messages) > 0 {
		return b.Class
	}
	p, c := &calls[b.Nearest], &calls[b.Call]
	was := decode(history(p, 0, len(p.PromptIDs)+len(p.SampledIDs)))
	switch {
	case !strings.HasPrefix(decode(c.PromptIDs), was):
		return b.Class
	case b.Position >= len(p.PromptIDs):
		return Retokenisation
	}
	return Template
}

// byMessages compares conversations turn by turn.
func byMessages(p, c *fulgur.Call, common int) Class {
	turns := p.Messages
	if p.Reply != nil {
		turns = append(turns[:len(turns):len(turns)], *p.Reply)
	}
	reasoned := false
	for k, was := range turns {
		if k >= len(c.Messages) {
			return shorter(p, turns, c.Messages)
		}
		now := c.Messages[k]
		reasoned = reasoned || was.Reasoning != ""
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
		return shorter(p, turns, c.Messages)
	}
	// The harness changed nothing: it is the template or the tokenizer.
	switch {
	case reasoned && leftOut(history(p, common, common+lookAhead), c.PromptIDs[common:]):
		return ReasoningDropped
	case common >= len(p.PromptIDs):
		return Retokenisation
	}
	return Template
}

// lookAhead is how many tokens of a history are searched for what was left out.
const lookAhead = 8192

// leftOut says whether the prompt goes on with a later part of the history, as if
// something between had been left out: sixteen tokens of it, or all that are left
// but for two (a separator may differ).
func leftOut(was, now []int32) bool {
	for skip := 1; skip < len(was); skip++ {
		rest := was[skip:]
		want := min(16, len(rest))
		if len(now) > 0 && rest[0] == now[0] && same(rest[:want], now) >= max(1, want-2) {
			return true
		}
	}
	return false
}

// shorter tells the three ways apart in which a history can be another one.
func shorter(p *fulgur.Call, was, now []fulgur.Message) Class {
	alike := 0
	for alike < len(was) && alike < len(now) && was[alike].Same(now[alike]) {
		alike++
	}
	beyondSystem := false
	for _, m := range was[:alike] {
		beyondSystem = beyondSystem || !isSystem(m)
	}
	switch {
	case len(now) < len(was) && beyondSystem:
		return Compaction
	case beyondSystem:
		return Rewritten
	case len(now) < len(was) && quotes(p, was[alike:], now[alike:]):
		return Compaction
	}
	return NewConversation
}

func isSystem(m fulgur.Message) bool { return m.Role == "system" || m.Role == "developer" }

// quotes says whether a new beginning stems from a longer history: it keeps one
// of its later turns, or repeats the answer that summed it up.
func quotes(p *fulgur.Call, was, now []fulgur.Message) bool {
	for _, n := range now {
		if isSystem(n) {
			continue
		}
		if p.Reply != nil && len(p.Reply.Content) >= 16 && strings.Contains(n.Content, strings.TrimSpace(p.Reply.Content)) {
			return true
		}
		for _, w := range was {
			if !isSystem(w) && w.Same(n) {
				return true
			}
		}
	}
	return false
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

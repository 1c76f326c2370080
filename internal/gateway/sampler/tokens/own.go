package tokens

import (
	"bytes"
	"slices"
	"strings"

	"github.com/fulgur-rl/fulgur"
)

// What dialects read stands in the memory of the request's body: kept as it is, a few
// words would hold a body of up to 64 MiB for as long as their conversation is known.

const (
	// maxShared is how large a list of tools may be, in bytes, to be kept once for all
	// attempts: those of a run have mostly the same one.
	maxShared = 256 << 10
	// sharedLists is how many such lists are.
	sharedLists = 16
)

// own returns k in memory of its own, but for what an earlier conversation of its attempt
// has too: each turn sends all that was said before again.
func (k Known) own(earlier []Known) Known {
	var base []fulgur.Message
	for i := len(earlier) - 1; i >= 0 && base == nil; i-- {
		if b := earlier[i].Messages; len(b) > 0 && len(k.Messages) > 0 && equal(&b[0], &k.Messages[0]) {
			base = b
		}
	}
	k.Messages = ownMessages(k.Messages, base)
	return k
}

// ownMessages clones messages, but for those that stand at the same place in base.
func ownMessages(msgs, base []fulgur.Message) []fulgur.Message {
	out := make([]fulgur.Message, len(msgs))
	for i := range msgs {
		m := &msgs[i]
		if i < len(base) && equal(&base[i], m) {
			out[i] = base[i]
			continue
		}
		out[i] = fulgur.Message{Role: strings.Clone(m.Role), Content: strings.Clone(m.Content), Reasoning: strings.Clone(m.Reasoning),
			ToolCallID: strings.Clone(m.ToolCallID), Name: strings.Clone(m.Name), ToolCalls: slices.Clone(m.ToolCalls)}
		for j, c := range m.ToolCalls {
			out[i].ToolCalls[j] = fulgur.ToolCall{ID: strings.Clone(c.ID), Name: strings.Clone(c.Name), Arguments: strings.Clone(c.Arguments)}
		}
	}
	return out
}

func ownTools(tools []fulgur.Tool) []fulgur.Tool {
	out := slices.Clone(tools)
	for i := range out {
		t := &out[i]
		t.Name, t.Description, t.Schema, t.Raw = strings.Clone(t.Name), strings.Clone(t.Description), bytes.Clone(t.Schema), bytes.Clone(t.Raw)
	}
	return out
}

// equal says whether two messages are the same to the letter.
func equal(a, b *fulgur.Message) bool {
	return a.Role == b.Role && a.Content == b.Content && a.Reasoning == b.Reasoning && a.ToolCallID == b.ToolCallID && a.Name == b.Name &&
		slices.Equal(a.ToolCalls, b.ToolCalls)
}

// toolsLocked are tools in memory of their own, which all attempts share where they can.
func (m *memory) toolsLocked(tools []fulgur.Tool) []fulgur.Tool {
	if len(tools) == 0 {
		return nil
	}
	for _, known := range m.tools {
		if sameTools(known, tools) {
			return known
		}
	}
	tools = ownTools(tools)
	if sizeOfTools(tools) <= maxShared {
		if len(m.tools) == sharedLists {
			m.tools = slices.Delete(m.tools, 0, 1)
		}
		m.tools = append(m.tools, tools)
	}
	return tools
}

func sizeOfTools(tools []fulgur.Tool) (n int) {
	for i := range tools {
		t := &tools[i]
		n += len(t.Name) + len(t.Description) + len(t.Schema) + len(t.Raw)
	}
	return n
}

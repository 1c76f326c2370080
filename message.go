package fulgur

import "encoding/json"

// Message is the normal form of a turn of a conversation, used to render
// prompts and to recognise what a harness sends back: a string is one text
// block, null = "" = absent, cache marks are gone.
type Message struct {
	Role       string     `json:"role"`                   // system, developer, user, assistant, tool
	Content    string     `json:"content"`                // text blocks joined
	Reasoning  string     `json:"reasoning,omitempty"`    // reasoning_content, thinking
	ToolCalls  []ToolCall `json:"tool_calls,omitempty"`   //
	ToolCallID string     `json:"tool_call_id,omitempty"` // of a tool message
	Name       string     `json:"name,omitempty"`
}

// ToolCall is a call that the model asked for.
type ToolCall struct {
	ID   string `json:"id,omitempty"`
	Name string `json:"name"`
	// Arguments is the text of the arguments as it was sampled or sent; for
	// comparison it counts by JSON value.
	Arguments string `json:"arguments"`
}

// Tool is a tool that the harness offers. Schema is the raw bytes of its JSON
// Schema: key order reaches the chat template.
type Tool struct {
	Name        string          `json:"name"`
	Description string          `json:"description,omitempty"`
	Schema      json.RawMessage `json:"schema,omitempty"`
	// Raw is the tool as the harness wrote it, for templates that print it whole.
	Raw json.RawMessage `json:"raw,omitempty"`
}

// Same says whether two messages are the same turn: equal but for the ids of
// tool calls, with tool arguments compared by JSON value.
func (m Message) Same(o Message) bool {
	if m.Role != o.Role || m.Content != o.Content || m.Reasoning != o.Reasoning || len(m.ToolCalls) != len(o.ToolCalls) {
		return false
	}
	for i, c := range m.ToolCalls {
		d := o.ToolCalls[i]
		if c.Name != d.Name || !sameJSON(c.Arguments, d.Arguments) {
			return false
		}
	}
	return true
}

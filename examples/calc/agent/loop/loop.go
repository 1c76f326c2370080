// Package loop is the harness of the calc agent: it owns the conversation,
// offers the model a calculator, runs it, feeds the results back, and decides
// when to stop. It knows an OpenAI-compatible server and nothing of training.
package loop

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
)

// System is the agent's system message.
const System = "Use the tool, then say Answer: N"

// Tools is the tool list as it is sent: one calculator that does one operation a call.
const Tools = `[{"type":"function","function":{"name":"calc","description":"one operation per call","parameters":{"type":"object","properties":{"expression":{"type":"string"}},"required":["expression"]}}}]`

// Limits of a conversation where the environment sets none: four events take
// at most eight calculations and an answer, the rest is for mistakes.
const (
	DefaultMaxCalls  = 12
	DefaultMaxTokens = 48
)

// BadCall is what the agent answers a message that looks like a tool call but
// was not recognised as one by the server.
const BadCall = "error: bad call"

// Chat asks the model for the next message of a conversation. Messages are the
// JSON objects of the chat completions API, the result is the assistant's
// message as the server wrote it.
type Chat func(ctx context.Context, messages []json.RawMessage) (json.RawMessage, error)

// Message is what the agent looks at in a message.
type Message struct {
	Role       string     `json:"role"`
	Content    string     `json:"content"`
	ToolCalls  []ToolCall `json:"tool_calls,omitempty"`
	ToolCallID string     `json:"tool_call_id,omitempty"`
}

// ToolCall is a call that the model asks for.
type ToolCall struct {
	ID       string   `json:"id"`
	Type     string   `json:"type"`
	Function Function `json:"function"`
}

// Function is a tool's name with the JSON text of its arguments.
type Function struct {
	Name      string `json:"name"`
	Arguments string `json:"arguments"`
}

// Start is the conversation's beginning.
func Start(question string) []Message {
	return []Message{{Role: "system", Content: System}, {Role: "user", Content: question}}
}

// Run holds the conversation: it calls the model at most maxCalls times and
// returns the text of its last message. A message without a tool call is the
// final answer. Running out of calls is no error: the answer is then whatever
// the last message said.
func Run(ctx context.Context, chat Chat, question string, maxCalls int) (string, error) {
	var messages []json.RawMessage
	add := func(ms ...Message) error {
		for _, m := range ms {
			b, err := json.Marshal(m)
			if err != nil {
				return fmt.Errorf("writing a message: %w", err)
			}
			messages = append(messages, b)
		}
		return nil
	}
	if err := add(Start(question)...); err != nil {
		return "", err
	}
	for n := 1; ; n++ {
		raw, err := chat(ctx, messages)
		if err != nil {
			return "", err
		}
		var m Message
		if err := json.Unmarshal(raw, &m); err != nil {
			return "", fmt.Errorf("the server's message is not one of the chat completions API: %w", err)
		}
		feedback := Next(m)
		if len(feedback) == 0 || n >= maxCalls {
			return m.Content, nil
		}
		messages = append(messages, raw) // as it came: the server may recognise it by its bytes
		if err := add(feedback...); err != nil {
			return "", err
		}
	}
}

// Next is what the agent answers the assistant's message: the results of its
// tool calls, or nothing when the message is final.
func Next(m Message) []Message {
	var out []Message
	for _, c := range m.ToolCalls {
		out = append(out, Message{Role: "tool", Content: result(c.Function), ToolCallID: c.ID})
	}
	if len(out) == 0 && strings.Contains(m.Content, "<tool_call>") {
		out = append(out, Message{Role: "user", Content: BadCall})
	}
	return out
}

func result(f Function) string {
	if f.Name != "calc" {
		return "error: no such tool"
	}
	var a struct {
		Expression *string `json:"expression"`
	}
	if json.Unmarshal([]byte(f.Arguments), &a) != nil || a.Expression == nil {
		return BadCall
	}
	return Calc(*a.Expression)
}

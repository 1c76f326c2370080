package anthropic

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/fulgur-rl/fulgur"
)

// block is one block of a message's content.
type block struct {
	Type      string          `json:"type"`
	Text      string          `json:"text"`
	Thinking  string          `json:"thinking"`
	ID        string          `json:"id"` // of a tool_use
	Name      string          `json:"name"`
	Input     json.RawMessage `json:"input"`
	ToolUseID string          `json:"tool_use_id"` // of a tool_result
	Content   json.RawMessage `json:"content"`     // of a tool_result: string or blocks
}

// billing begins the block that Claude Code puts before its system prompt, for
// Anthropic's servers and no model. A part of it changes with every request:
// left in, no two calls of a conversation would share a token.
const billing = "x-anthropic-billing-header:"

// blocks reads the blocks of the field what: a string is one of text, null is none.
func blocks(what string, raw json.RawMessage) ([]block, error) {
	switch {
	case len(raw) == 0 || string(raw) == "null":
		return nil, nil
	case raw[0] == '"':
		b := []block{{Type: "text"}}
		return b, json.Unmarshal(raw, &b[0].Text)
	case raw[0] != '[':
		return nil, errors.New(what + " must be a string or a list of blocks")
	}
	var list []block
	if err := json.Unmarshal(raw, &list); err != nil {
		return nil, errors.New(what + ": " + typeMessage(err))
	}
	return list, nil
}

// text joins the text blocks of content that may hold no others.
func (r *reader) text(raw json.RawMessage) (string, error) {
	list, err := blocks("content", raw)
	if len(list) == 1 && list[0].Type == "text" {
		return list[0].Text, err
	}
	var b strings.Builder
	for _, k := range list {
		if k.Type == "text" {
			b.WriteString(k.Text)
		} else {
			r.foreign(k.Type)
		}
	}
	return b.String(), err
}

// foreign notes a block that is no text.
func (r *reader) foreign(typ string) {
	if typ == "" {
		r.fail("content: a block has no type")
		return
	}
	r.relay("a content block of type " + typ)
}

// system makes the first message of the system prompt, if there is one.
func (r *reader) system(raw json.RawMessage) {
	list, err := blocks("system", raw)
	if err != nil {
		r.fail(err.Error())
	}
	var b strings.Builder
	for _, k := range list {
		if k.Type != "text" {
			r.foreign(k.Type)
			continue
		}
		if strings.HasPrefix(k.Text, billing) {
			_, k.Text, _ = strings.Cut(k.Text, "\n")
		}
		b.WriteString(k.Text)
	}
	if b.Len() > 0 {
		r.add(fulgur.Message{Role: "system", Content: b.String()})
	}
}

func (r *reader) add(m fulgur.Message) { r.req.Messages = append(r.req.Messages, m) }

// message adds the normal form of one message. What can be read of a bad one
// still counts.
func (r *reader) message(m *message) error {
	switch m.Role {
	case "user":
		return r.user(m.Content)
	case "assistant":
		return r.assistant(m.Content)
	case "system": // Claude Code puts them in the middle
		text, err := r.text(m.Content)
		r.add(fulgur.Message{Role: "system", Content: text})
		return err
	case "":
		return errors.New("role is missing")
	}
	return fmt.Errorf("role must be user, assistant or system, not %q", m.Role)
}

// user adds a tool message for each tool result, and a user message for the
// text between them, in order.
func (r *reader) user(raw json.RawMessage) error {
	list, err := blocks("content", raw)
	var text strings.Builder
	said := len(list) == 0 // there is a user message to add
	flush := func() {
		if said {
			r.add(fulgur.Message{Role: "user", Content: text.String()})
		}
		text.Reset()
		said = false
	}
	for i, k := range list {
		switch k.Type {
		case "text":
			said = true
			text.WriteString(k.Text)
		case "tool_result":
			flush()
			out, rerr := r.text(k.Content)
			if rerr == nil && k.ToolUseID == "" {
				rerr = errors.New("tool_use_id is missing")
			}
			if err == nil && rerr != nil {
				err = fmt.Errorf("content[%d]: %w", i, rerr)
			}
			r.add(fulgur.Message{Role: "tool", ToolCallID: k.ToolUseID, Content: out})
		case "tool_use":
			if err == nil {
				err = fmt.Errorf("content[%d]: a tool_use block belongs to the assistant", i)
			}
		default:
			said = true
			r.foreign(k.Type)
		}
	}
	flush()
	return err
}

// assistant adds an assistant's turn.
func (r *reader) assistant(raw json.RawMessage) error {
	list, err := blocks("content", raw)
	m := fulgur.Message{Role: "assistant"}
	for i, k := range list {
		switch k.Type {
		case "text":
			m.Content += k.Text
		case "thinking":
			m.Reasoning += k.Thinking
		case "redacted_thinking": // no one but Anthropic can read it
		case "tool_use":
			args, ok := arguments(k.Input)
			if err == nil && (k.Name == "" || !ok) {
				err = fmt.Errorf("content[%d]: a tool_use block needs a name, and an input that is an object", i)
			}
			m.ToolCalls = append(m.ToolCalls, fulgur.ToolCall{ID: k.ID, Name: k.Name, Arguments: args})
		case "tool_result":
			if err == nil {
				err = fmt.Errorf("content[%d]: a tool_result block belongs to the user", i)
			}
		default:
			r.foreign(k.Type)
		}
	}
	r.add(m)
	return err
}

// invalidKey is the one key of the object that stands for arguments that are no
// JSON object. The name is Anthropic's own advice
// (https://platform.claude.com/docs/en/agents-and-tools/tool-use/fine-grained-tool-streaming).
// Its SDKs fail on such input and take the whole answer with them; wrapped, the
// tool's own check of its input tells the model what is wrong (Claude Code
// 2.1.332: InputValidationError as the result), and when the turn comes back it
// is recognised as what was sampled.
const invalidKey = "INVALID_JSON"

// appendInput appends the arguments of a tool call as an object.
func appendInput(dst []byte, args string) []byte {
	if strings.TrimSpace(args) == "" {
		return append(dst, "{}"...)
	}
	if isObject(args) {
		if _, wrapped := unwrap([]byte(args)); !wrapped { // what looks wrapped is wrapped once more
			return append(dst, args...)
		}
	}
	dst = append(dst, `{"`+invalidKey+`":`...)
	dst = appendString(dst, args)
	return append(dst, '}')
}

// arguments is the inverse of appendInput. Clients write the object anew, so
// its spacing says nothing: one form for all keeps prompts the same.
func arguments(input json.RawMessage) (string, bool) {
	if len(input) == 0 {
		return "{}", true
	}
	if s, ok := unwrap(input); ok {
		return s, true
	}
	var b bytes.Buffer
	if json.Compact(&b, input) != nil {
		return string(input), false
	}
	return b.String(), input[0] == '{'
}

func unwrap(input []byte) (string, bool) {
	if !bytes.Contains(input, []byte(invalidKey)) {
		return "", false
	}
	var m map[string]json.RawMessage
	var s string
	if json.Unmarshal(input, &m) != nil || len(m) != 1 || len(m[invalidKey]) == 0 || m[invalidKey][0] != '"' || json.Unmarshal(m[invalidKey], &s) != nil {
		return "", false
	}
	return s, true
}

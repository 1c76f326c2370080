// Package openaichat is the dialect of OpenAI's Chat Completions API
// (https://platform.openai.com/docs/api-reference/chat), with vLLM's additions
// for token ids.
package openaichat

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/fulgur-rl/fulgur"
	"github.com/fulgur-rl/fulgur/internal/gateway/call"
	"github.com/fulgur-rl/fulgur/internal/gateway/chatwire"
	"github.com/fulgur-rl/fulgur/internal/gateway/dialect"
)

// Name is the dialect's name, and that of the wire format it can relay.
const Name = "openai-chat"

// Dialect is the chat completions dialect. The zero value will do; New's reads
// lists of tools faster.
type Dialect struct{ tools *toolLists }

// New returns a Dialect that remembers the lists of tools that it has read: a
// harness sends the same tens of kilobytes with each call.
func New() Dialect { return Dialect{&toolLists{known: map[string]toolList{}}} }

var _ dialect.Dialect = Dialect{}

// Name implements dialect.Dialect.
func (Dialect) Name() string { return Name }

// Paths implements dialect.Dialect.
func (Dialect) Paths() []string { return []string{"openai/v1/chat/completions"} }

func invalid(msg string) *fulgur.Error {
	return fulgur.E(fulgur.KindInvalid, "read chat completions request", msg, nil)
}

// Parse implements dialect.Dialect. Content is a string or text blocks; null,
// "" and absent are one; unknown fields are ignored.
func (d Dialect) Parse(body []byte) (*call.Request, error) {
	var w chatwire.Request
	body, refusal, err := chatwire.ReadObject(body, &w)
	if refusal != "" {
		return nil, invalid(refusal)
	}
	req := &call.Request{Body: body, Dialect: Name, N: 1, Members: w.Members}
	if err != nil {
		if said := chatwire.Unread(body); said != "" {
			return nil, invalid(said)
		}
		req.Invalid = invalid(typeMessage(err))
		// What could be read still counts: a relaying sampler goes on with it.
	}
	d.fill(req, &w)
	return req, nil
}

func typeMessage(err error) string {
	var t *json.UnmarshalTypeError
	if errors.As(err, &t) {
		return fmt.Sprintf("The field %q has the wrong type: got a JSON %s", t.Field, t.Value)
	}
	return "The request body is not a chat completions request"
}

func (d Dialect) fill(req *call.Request, w *chatwire.Request) {
	req.Model = w.Model
	req.Stream = w.Stream != nil && *w.Stream
	req.IncludeUsage = w.StreamOptions != nil && w.StreamOptions.IncludeUsage
	req.LogProbs = w.LogProbs != nil && *w.LogProbs
	req.TokenIDs = w.ReturnTokenIDs != nil && *w.ReturnTokenIDs
	if w.TopLogProbs != nil {
		req.TopLogProbs = *w.TopLogProbs
	}
	if w.N != nil {
		req.N = *w.N
		if req.N < 1 {
			setInvalid(req, invalid("n must be at least 1"))
		}
	}
	req.Wishes = wishes(w)
	var err error
	if req.Wishes.Stop, err = chatwire.StopList(w.Stop); err != nil {
		setInvalid(req, invalid(err.Error()))
	}
	if req.Wishes.Temperature != nil && *req.Wishes.Temperature < 0 {
		setInvalid(req, invalid("temperature must be at least 0"))
	}
	if req.Wishes.MaxTokens != nil && *req.Wishes.MaxTokens < 1 {
		setInvalid(req, invalid("max_tokens must be at least 1"))
	}
	toolChoice(req, w.ToolChoice)
	if f := w.ResponseFormat; f != nil && f.Type != "" && f.Type != "text" {
		req.Constrained = append(req.Constrained, "response_format "+f.Type)
	}
	tools := d.tools.read(w.Tools)
	req.Tools, req.Relayed = tools.tools, append(req.Relayed, tools.relayed...)
	if tools.invalid != nil {
		setInvalid(req, tools.invalid)
	}
	if len(w.Messages) == 0 {
		setInvalid(req, invalid("messages must be a list with at least one message"))
	}
	req.Messages = make([]fulgur.Message, 0, len(w.Messages))
	for i := range w.Messages {
		m, relayed, err := message(&w.Messages[i])
		if err != nil {
			setInvalid(req, invalid(fmt.Sprintf("messages[%d]: %v", i, err)))
		}
		if relayed != "" {
			req.Relayed = append(req.Relayed, relayed)
		}
		req.Messages = append(req.Messages, m)
	}
}

// setInvalid keeps the first complaint.
func setInvalid(req *call.Request, err *fulgur.Error) {
	if req.Invalid == nil {
		req.Invalid = err
	}
}

func wishes(w *chatwire.Request) call.Wishes {
	out := call.Wishes{Temperature: w.Temperature, TopP: w.TopP, TopK: w.TopK, Seed: w.Seed, MaxTokens: w.MaxTokens}
	if w.MaxCompletionTokens != nil {
		out.MaxTokens = w.MaxCompletionTokens
	}
	out.Others = w.Altering()
	return out
}

func toolChoice(req *call.Request, raw json.RawMessage) {
	if len(raw) == 0 || string(raw) == "null" {
		return
	}
	var word string
	if json.Unmarshal(raw, &word) == nil {
		req.ToolChoice = word
		if word != "" && word != "auto" && word != "none" {
			req.Constrained = append(req.Constrained, "tool_choice "+word)
		}
		return
	}
	var named struct {
		Type     string `json:"type"`
		Function struct {
			Name string `json:"name"`
		} `json:"function"`
	}
	if json.Unmarshal(raw, &named) != nil {
		setInvalid(req, invalid("tool_choice must be a word or an object"))
		return
	}
	req.ToolChoice = "function " + named.Function.Name
	req.Constrained = append(req.Constrained, "tool_choice "+req.ToolChoice)
}

// message gives a message's normal form, and names what in it only a relaying
// upstream can take.
func message(m *chatwire.Message) (fulgur.Message, string, error) {
	out := fulgur.Message{Role: m.Role, ToolCallID: m.ToolCallID, Name: m.Name, Reasoning: m.ReasoningContent}
	if out.Reasoning == "" {
		out.Reasoning = m.Reasoning
	}
	if m.Role == "" {
		return out, "", errors.New("role is missing")
	}
	for _, c := range m.ToolCalls {
		out.ToolCalls = append(out.ToolCalls, fulgur.ToolCall{ID: c.ID, Name: c.Function.Name, Arguments: c.Function.Arguments})
	}
	if text, ok := m.Text(); ok {
		out.Content = text
		return out, "", nil
	}
	text, relayed, err := Content(m.Content)
	out.Content = text
	return out, relayed, err
}

// Content gives the text of a message's content: a string, a list of text
// blocks, or null. relayed names the first block that is not text.
func Content(raw json.RawMessage) (text, relayed string, err error) {
	raw = bytes.TrimSpace(raw)
	switch {
	case len(raw) == 0 || string(raw) == "null":
		return "", "", nil
	case raw[0] == '"':
		text, err = chatwire.Unquote(raw)
		return text, "", err
	case raw[0] != '[':
		return "", "", errors.New("content must be a string, a list of blocks, or null")
	}
	var blocks []chatwire.Block
	if err := json.Unmarshal(raw, &blocks); err != nil {
		return "", "", errors.New("content blocks must be objects with a type")
	}
	var b strings.Builder
	for _, k := range blocks {
		switch k.Type {
		case "text", "input_text", "output_text":
			b.WriteString(k.Text)
		case "refusal":
			b.WriteString(k.Refusal)
		default:
			if relayed == "" {
				relayed = "a content block of type " + k.Type
			}
		}
	}
	return b.String(), relayed, nil
}

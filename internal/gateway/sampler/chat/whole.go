package chat

import (
	"encoding/json"

	"github.com/fulgur-rl/fulgur/internal/gateway/chatwire"
)

// The unstreamed forms of answers, as they are put on record for streamed ones.
type (
	wholeAnswer struct {
		ID        string         `json:"id"`
		Object    string         `json:"object"`
		Created   int64          `json:"created"`
		Model     string         `json:"model"`
		Choices   [1]any         `json:"choices"` // wholeChat or wholeText
		Usage     map[string]int `json:"usage,omitempty"`
		PromptIDs []int32        `json:"prompt_token_ids,omitempty"` // of chat completions
	}
	wholeChat struct {
		Index    int           `json:"index"`
		Message  wholeMessage  `json:"message"`
		LogProbs *chatLogProbs `json:"logprobs"`
		Finish   string        `json:"finish_reason"`
		TokenIDs []int32       `json:"token_ids,omitempty"`
	}
	wholeText struct {
		Index     int           `json:"index"`
		Text      string        `json:"text"`
		LogProbs  *textLogProbs `json:"logprobs"`
		Finish    string        `json:"finish_reason"`
		TokenIDs  []int32       `json:"token_ids,omitempty"`
		PromptIDs []int32       `json:"prompt_token_ids,omitempty"`
	}
	wholeMessage struct {
		Role      string          `json:"role"`
		Content   *string         `json:"content"`
		Reasoning string          `json:"reasoning_content,omitempty"`
		ToolCalls []wholeToolCall `json:"tool_calls,omitempty"`
	}
	wholeToolCall struct {
		ID       string        `json:"id"`
		Type     string        `json:"type"`
		Function wholeFunction `json:"function"`
	}
	wholeFunction struct {
		Name      string `json:"name"`
		Arguments string `json:"arguments"`
	}
	chatLogProbs struct {
		Content []chatLogProb `json:"content"`
	}
	chatLogProb struct {
		LogProb json.RawMessage `json:"logprob"`
	}
	textLogProbs struct {
		TokenLogProbs []json.RawMessage `json:"token_logprobs"`
	}
)

// whole writes the streamed answer as an unstreamed one, for the record.
func (t *tee) whole() []byte {
	r := t.res
	out := wholeAnswer{ID: t.head.ID, Created: t.head.Created, Model: t.head.Model}
	probs := make([]json.RawMessage, len(r.LogProbs))
	for i, p := range r.LogProbs {
		probs[i] = chatwire.AppendFloat32(nil, p)
	}
	if t.wire == WireText {
		c := wholeText{Text: t.acc.reply.Content, Finish: r.Finish, TokenIDs: r.SampledIDs, PromptIDs: r.PromptIDs}
		if t.acc.logs {
			c.LogProbs = &textLogProbs{probs}
		}
		out.Object, out.Choices[0] = "text_completion", c
	} else {
		c := wholeChat{Message: t.message(), Finish: r.Finish, TokenIDs: r.SampledIDs}
		if t.acc.logs {
			c.LogProbs = &chatLogProbs{}
			for _, p := range probs {
				c.LogProbs.Content = append(c.LogProbs.Content, chatLogProb{p})
			}
		}
		out.Object, out.Choices[0], out.PromptIDs = "chat.completion", c, r.PromptIDs
	}
	if u := r.Usage; u != nil {
		out.Usage = map[string]int{"prompt_tokens": u.PromptTokens, "completion_tokens": u.CompletionTokens, "total_tokens": u.PromptTokens + u.CompletionTokens}
	}
	b, err := json.Marshal(out)
	if err != nil {
		return nil // strings and finite numbers only: can't happen
	}
	return b
}

func (t *tee) message() wholeMessage {
	reply := &t.acc.reply
	m := wholeMessage{Role: "assistant", Reasoning: reply.Reasoning}
	if reply.Content != "" || len(reply.ToolCalls) == 0 {
		m.Content = &reply.Content
	}
	for _, c := range reply.ToolCalls {
		m.ToolCalls = append(m.ToolCalls, wholeToolCall{c.ID, "function", wholeFunction{c.Name, c.Arguments}})
	}
	return m
}

package chat

import (
	"strconv"

	"github.com/fulgur-rl/fulgur/internal/gateway/chatwire"
)

// whole writes the streamed answer as an unstreamed one, for the record. By hand: many
// streams end together, while others wait for their next token.
func (t *tee) whole() []byte {
	r, reply := t.res, &t.acc.reply
	b := make([]byte, 0, 512+len(reply.Content)*9/8+len(reply.Reasoning)*9/8+7*len(r.PromptIDs)+7*len(r.SampledIDs)+26*len(r.LogProbs))
	object := "chat.completion"
	if t.wire == WireText {
		object = "text_completion"
	}
	b = append(b, `{"id":`...)
	b = chatwire.AppendString(b, t.head.ID)
	b = append(append(append(b, `,"object":"`...), object...), `","created":`...)
	b = strconv.AppendInt(b, t.head.Created, 10)
	b = append(b, `,"model":`...)
	b = chatwire.AppendString(b, t.head.Model)
	b = append(b, `,"choices":[{"index":0,`...)
	if t.wire == WireText {
		b = append(b, `"text":`...)
		b = chatwire.AppendString(b, reply.Content)
	} else {
		b = t.appendMessage(b)
	}
	b = append(b, `,"logprobs":`...)
	b = t.appendLogProbs(b)
	b = append(b, `,"finish_reason":`...)
	b = chatwire.AppendString(b, r.Finish)
	if len(r.SampledIDs) > 0 {
		b = append(b, `,"token_ids":`...)
		b = chatwire.AppendIDs(b, r.SampledIDs)
	}
	prompt := func() {
		if len(r.PromptIDs) > 0 {
			b = append(b, `,"prompt_token_ids":`...)
			b = chatwire.AppendIDs(b, r.PromptIDs)
		}
	}
	if t.wire == WireText {
		prompt()
	}
	b = append(b, "}]"...)
	if u := r.Usage; u != nil {
		b = append(b, `,"usage":{"prompt_tokens":`...)
		b = strconv.AppendInt(b, int64(u.PromptTokens), 10)
		b = append(b, `,"completion_tokens":`...)
		b = strconv.AppendInt(b, int64(u.CompletionTokens), 10)
		b = append(b, `,"total_tokens":`...)
		b = strconv.AppendInt(b, int64(u.PromptTokens+u.CompletionTokens), 10)
		b = append(b, '}')
	}
	if t.wire != WireText {
		prompt()
	}
	return append(b, '}')
}

func (t *tee) appendMessage(b []byte) []byte {
	reply := &t.acc.reply
	b = append(b, `"message":{"role":"assistant","content":`...)
	if reply.Content == "" && len(reply.ToolCalls) > 0 {
		b = append(b, "null"...)
	} else {
		b = chatwire.AppendString(b, reply.Content)
	}
	if reply.Reasoning != "" {
		b = append(b, `,"reasoning_content":`...)
		b = chatwire.AppendString(b, reply.Reasoning)
	}
	return append(chatwire.AppendToolCalls(b, reply.ToolCalls), '}')
}

// appendLogProbs has of a chat's tokens the log prob alone.
func (t *tee) appendLogProbs(b []byte) []byte {
	if !t.acc.logs {
		return append(b, "null"...)
	}
	front, back := `{"content":[`, "]}"
	if t.wire == WireText {
		front = `{"token_logprobs":[`
	}
	b = append(b, front...)
	for i, p := range t.res.LogProbs {
		if i > 0 {
			b = append(b, ',')
		}
		if t.wire == WireText {
			b = chatwire.AppendFloat32(b, p)
			continue
		}
		b = append(b, `{"logprob":`...)
		b = chatwire.AppendFloat32(b, p)
		b = append(b, '}')
	}
	return append(b, back...)
}

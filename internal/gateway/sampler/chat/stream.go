package chat

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"

	"github.com/fulgur-rl/fulgur/internal/gateway/call"
	"github.com/fulgur-rl/fulgur/internal/gateway/chatwire"
	"github.com/fulgur-rl/fulgur/internal/gateway/dialect/sse"
)

var (
	errBroken       = errors.New("upstream's stream ended before its answer did")
	errUpstreamSaid = errors.New("upstream's stream carries an error")
)

// stream relays a streamed answer, and makes a result of it. began: a piece of
// it has been passed on, so it can't be tried again.
func (s *Sampler) stream(resp *http.Response, o *call.Order, res *call.Result, emit func(call.Delta) error, alive func()) (began bool, err error) {
	res.Status, res.ContentType, res.Wire = resp.StatusCode, "", Wire
	t := &tee{acc: newAccumulator(res, o), res: res, emit: emit}
	var parser sse.Parser
	buf := make([]byte, 32<<10)
	for !t.done {
		n, rerr := resp.Body.Read(buf)
		alive()
		if err := parser.Feed(buf[:n], t.event); err != nil {
			t.acc.end()
			return t.began, err
		}
		if rerr == io.EOF && !t.done {
			if res.Finish == "" {
				t.acc.end()
				return t.began, errBroken
			}
			break // a server that forgets [DONE]
		}
		if rerr != nil && !t.done {
			t.acc.end()
			return t.began, rerr
		}
	}
	t.acc.end()
	if res.Finish == "" {
		return t.began, errBroken
	}
	res.Raw, res.Relayed = t.whole(o), true
	return t.began, nil
}

// tee passes chunks on and reads them.
type tee struct {
	acc   *accumulator
	res   *call.Result
	emit  func(call.Delta) error
	began bool
	done  bool
	head  chatwire.Answer // of the first chunk
}

func (t *tee) event(ev sse.Event) error {
	if string(ev.Data) == "[DONE]" {
		t.done = true
		return nil
	}
	data := chatwire.Finite(ev.Data)
	var a chatwire.Answer
	if !json.Valid(data) {
		return fmt.Errorf("%w: an event that is not JSON", errUpstreamSaid)
	}
	_ = json.Unmarshal(data, &a) // fields of a wrong type are as good as missing
	if len(a.Error) > 0 && string(a.Error) != "null" {
		return fmt.Errorf("%w: %.300s", errUpstreamSaid, a.Error)
	}
	if t.head.ID == "" {
		t.head = chatwire.Answer{ID: a.ID, Created: a.Created, Model: a.Model}
	}
	t.acc.head(&a)
	last := false
	for i := range a.Choices {
		c := &a.Choices[i]
		last = last || c.FinishReason != ""
		if c.Index == 0 {
			t.acc.choice(c, c.Delta, false)
		}
	}
	usageOnly := len(a.Choices) == 0 && len(a.Usage) > 0 && string(a.Usage) != "null"
	t.began = true
	return t.emit(call.Delta{Raw: data, Wire: Wire, Last: last, UsageOnly: usageOnly})
}

// whole writes the streamed answer as an unstreamed one, for the record.
func (t *tee) whole(o *call.Order) []byte {
	r := t.res
	type function struct {
		Name      string `json:"name"`
		Arguments string `json:"arguments"`
	}
	type toolCall struct {
		ID       string   `json:"id"`
		Type     string   `json:"type"`
		Function function `json:"function"`
	}
	type message struct {
		Role      string     `json:"role"`
		Content   *string    `json:"content"`
		Reasoning string     `json:"reasoning_content,omitempty"`
		ToolCalls []toolCall `json:"tool_calls,omitempty"`
	}
	type logProb struct {
		LogProb json.RawMessage `json:"logprob"`
	}
	type logProbs struct {
		Content []logProb `json:"content"`
	}
	type choice struct {
		Index    int       `json:"index"`
		Message  message   `json:"message"`
		LogProbs *logProbs `json:"logprobs"`
		Finish   string    `json:"finish_reason"`
		TokenIDs []int32   `json:"token_ids,omitempty"`
	}
	m := message{Role: "assistant", Reasoning: t.acc.reply.Reasoning}
	if t.acc.reply.Content != "" || len(t.acc.reply.ToolCalls) == 0 {
		m.Content = &t.acc.reply.Content
	}
	for _, c := range t.acc.reply.ToolCalls {
		m.ToolCalls = append(m.ToolCalls, toolCall{c.ID, "function", function{c.Name, c.Arguments}})
	}
	c := choice{Message: m, Finish: r.Finish, TokenIDs: r.SampledIDs}
	if t.acc.logs {
		c.LogProbs = &logProbs{}
		for _, p := range r.LogProbs {
			c.LogProbs.Content = append(c.LogProbs.Content, logProb{chatwire.AppendFloat32(nil, p)})
		}
	}
	out := map[string]any{"id": t.head.ID, "object": "chat.completion", "created": t.head.Created, "model": t.head.Model, "choices": []choice{c}}
	if r.Usage != nil {
		out["usage"] = map[string]int{"prompt_tokens": r.Usage.PromptTokens, "completion_tokens": r.Usage.CompletionTokens,
			"total_tokens": r.Usage.PromptTokens + r.Usage.CompletionTokens}
	}
	if len(r.PromptIDs) > 0 {
		out["prompt_token_ids"] = r.PromptIDs
	}
	b, err := json.Marshal(out)
	if err != nil {
		return nil // strings and finite numbers only: can't happen
	}
	return b
}

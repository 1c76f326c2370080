package chat

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math"
	"strconv"

	"github.com/fulgur-rl/fulgur"
	"github.com/fulgur-rl/fulgur/internal/gateway/call"
	"github.com/fulgur-rl/fulgur/internal/gateway/chatwire"
)

// answer takes a whole answer into the result. Whatever it is, the client gets
// it; what could not be read of it is left out of the record.
func (x *exchange) answer(status int, ctype string, raw []byte) {
	res := x.res
	res.Status, res.ContentType, res.Raw, res.Wire, res.Experts = status, ctype, raw, x.wire, nil
	if status >= 300 {
		res.Fault = fmt.Sprintf("upstream answered with status %d", status)
	}
	clean := chatwire.Finite(raw) // NaN is not JSON: nothing that is not finite goes on
	if !json.Valid(clean) {
		if res.Fault == "" {
			res.Fault = "upstream's answer is not JSON"
		}
		if isJSON(ctype) || ctype == "" {
			res.ContentType = "text/plain; charset=utf-8" // what claims to be JSON and is not breaks clients
		}
		return
	}
	clean, res.Experts = chatwire.TakeExperts(clean)
	res.Raw = clean
	if t := bytes.TrimSpace(clean); len(t) == 0 || t[0] != '{' {
		if res.Fault == "" {
			res.Fault = "upstream's answer is not an object"
		}
		return
	}
	var a chatwire.Answer
	_ = json.Unmarshal(clean, &a) // fields of a wrong type are as good as missing
	acc := newAccumulator(res, x.o)
	acc.head(&a)
	for i := range a.Choices {
		c := &a.Choices[i]
		if c.Index != 0 {
			continue
		}
		acc.choice(c, c.Message, true)
	}
	acc.end()
	if len(a.Choices) == 0 && res.Fault == "" {
		res.Fault = "upstream's answer has no choices"
	}
}

// maxTools bounds the tool calls of one reply.
const maxTools = 1024

func isJSON(ctype string) bool { return bytes.HasPrefix([]byte(ctype), []byte("application/json")) }

// accumulator makes a result of answers and chunks. Token ids are taken from
// every chunk, not from those with text: a tool parser holds text back.
type accumulator struct {
	res   *call.Result
	o     *call.Order
	reply fulgur.Message
	seen  bool
	logs  bool // log probs were there
}

func newAccumulator(res *call.Result, o *call.Order) *accumulator {
	res.PromptIDs, res.SampledIDs, res.LogProbs, res.TokenTexts, res.Spans, res.Reply, res.Usage = nil, nil, nil, nil, nil, nil, nil
	res.Finish, res.Stopped = "", ""
	return &accumulator{res: res, o: o, reply: fulgur.Message{Role: "assistant"}}
}

func (a *accumulator) head(w *chatwire.Answer) {
	if ids := idList(w.PromptTokenIDs); len(ids) > 0 && len(a.res.PromptIDs) == 0 {
		a.res.PromptIDs = ids
	}
	if u := bytes.TrimSpace(w.Usage); len(u) > 0 && u[0] == '{' {
		var v chatwire.Usage
		if json.Unmarshal(u, &v) == nil {
			a.res.Usage = &fulgur.Usage{PromptTokens: v.PromptTokens, CompletionTokens: v.CompletionTokens}
			if v.PromptTokensDetails != nil {
				a.res.Usage.CachedTokens = v.PromptTokensDetails.CachedTokens
			}
		}
	}
}

func (a *accumulator) choice(c *chatwire.Choice, m *chatwire.Message, whole bool) {
	a.seen = true
	if len(a.res.PromptIDs) == 0 {
		a.res.PromptIDs = idList(c.PromptTokenIDs)
	}
	a.res.SampledIDs = append(a.res.SampledIDs, idList(c.TokenIDs)...)
	if c.LogProbs != nil {
		a.logProbs(c.LogProbs)
	}
	if c.FinishReason != "" {
		a.res.Finish = c.FinishReason
	}
	if len(c.StopReason) > 0 && c.StopReason[0] == '"' {
		_ = json.Unmarshal(c.StopReason, &a.res.Stopped) // valid JSON string by then
	}
	a.reply.Content += c.Text
	if m == nil {
		return
	}
	var text string
	if len(m.Content) > 0 && m.Content[0] == '"' {
		_ = json.Unmarshal(m.Content, &text) // valid JSON string by then
	}
	a.reply.Content += text
	a.reply.Reasoning += m.ReasoningContent
	if m.ReasoningContent == "" {
		a.reply.Reasoning += m.Reasoning
	}
	for i, t := range m.ToolCalls {
		at := t.Index
		if whole { // no index there
			at = i
		}
		for len(a.reply.ToolCalls) <= at && at < maxTools {
			a.reply.ToolCalls = append(a.reply.ToolCalls, fulgur.ToolCall{})
		}
		if at < 0 || at >= maxTools {
			continue
		}
		k := &a.reply.ToolCalls[at]
		if t.ID != "" {
			k.ID = t.ID
		}
		k.Name += t.Function.Name
		k.Arguments += t.Function.Arguments
	}
}

// logProbs takes those of chat completions, or of text completions.
func (a *accumulator) logProbs(l *chatwire.LogProbs) {
	a.logs = a.logs || len(l.Content)+len(l.TokenLogProbs) > 0
	for _, p := range l.Content {
		a.res.LogProbs = append(a.res.LogProbs, logProb(p.LogProb))
		if a.o.LogProbs {
			a.res.TokenTexts = append(a.res.TokenTexts, p.Token)
		}
	}
	for i, p := range l.TokenLogProbs {
		a.res.LogProbs = append(a.res.LogProbs, logProb(p))
		if a.o.LogProbs && i < len(l.Tokens) {
			a.res.TokenTexts = append(a.res.TokenTexts, l.Tokens[i])
		}
	}
}

func (a *accumulator) end() {
	if a.seen {
		a.res.Reply = &a.reply
	}
	if len(a.res.SampledIDs) > 0 {
		a.res.Spans = []fulgur.Span{{Start: 0, Version: a.o.Endpoint.Version}}
	}
}

// idList reads a list of token ids; nil if it is anything else.
func idList(raw json.RawMessage) []int32 {
	raw = bytes.TrimSpace(raw)
	if len(raw) < 2 || raw[0] != '[' {
		return nil
	}
	body := raw[1 : len(raw)-1]
	out := make([]int32, 0, bytes.Count(body, []byte{','})+1)
	for len(body) > 0 {
		field := body
		if i := bytes.IndexByte(body, ','); i >= 0 {
			field, body = body[:i], body[i+1:]
		} else {
			body = nil
		}
		field = bytes.TrimSpace(field)
		if len(field) == 0 && len(out) == 0 && body == nil {
			return out
		}
		v := int32(0)
		if len(field) == 0 || len(field) > 9 {
			return nil
		}
		for _, c := range field {
			if c < '0' || c > '9' {
				return nil
			}
			v = v*10 + int32(c-'0')
		}
		out = append(out, v)
	}
	return out
}

// logProb reads a log prob; NaN is one that is missing or no number.
func logProb(raw json.RawMessage) float32 {
	v, err := strconv.ParseFloat(string(bytes.TrimSpace(raw)), 64)
	if err != nil {
		return float32(math.NaN())
	}
	return float32(v)
}

package chat

import (
	"fmt"
	"strings"

	"github.com/fulgur-rl/fulgur"
	"github.com/fulgur-rl/fulgur/internal/gateway/call"
	"github.com/fulgur-rl/fulgur/internal/gateway/chatwire"
	"github.com/fulgur-rl/fulgur/internal/gateway/sampler"
)

// answer takes a whole answer into the result. Whatever it is, the client gets
// it; what could not be read of it is left out of the record.
func (x *exchange) answer(status int, ctype string, raw []byte) {
	res := x.res
	res.Status, res.ContentType, res.Raw, res.Wire, res.Experts = status, ctype, raw, x.wire, nil
	if status >= 300 {
		res.Fault = fmt.Sprintf("upstream answered with status %d", status)
		if said := sampler.Said(raw); said != "" {
			res.Fault += ": " + front(said, maxSaid)
		}
	}
	a, ok := chatwire.Take(raw, x.o.LogProbs)
	switch {
	case !ok:
		if res.Fault == "" {
			res.Fault = "upstream's answer is not JSON"
		}
		if isJSON(ctype) || ctype == "" {
			res.ContentType = "text/plain; charset=utf-8" // what claims to be JSON and is not breaks clients
		}
		return
	case !a.Object && res.Fault == "":
		res.Fault = "upstream's answer is not an object"
	case len(a.Choices) == 0 && res.Fault == "":
		res.Fault = "upstream's answer has no choices"
	}
	res.Raw, res.Experts = a.Body, a.Experts
	acc := newAccumulator(res, x.o)
	acc.head(&a)
	for i := range a.Choices {
		if c := &a.Choices[i]; c.Index == 0 {
			acc.choice(c, true)
		}
	}
	acc.end()
	if res.Fault == "" && !acc.seen {
		res.Fault = "upstream's answer has no choice with index 0"
	}
}

// maxSaid bounds what of an upstream's message is in a record's error; the whole is
// in its response.
const maxSaid = 300

// front is the first n bytes of s, or a few less: no character is cut.
func front(s string, n int) string {
	if len(s) <= n {
		return s
	}
	return strings.ToValidUTF8(s[:n], "") + "…"
}

// maxTools bounds the tool calls of one reply.
const maxTools = 1024

func isJSON(ctype string) bool { return strings.HasPrefix(ctype, "application/json") }

// accumulator makes a result of answers and chunks. Token ids are taken from
// every chunk, not from those with text: a tool parser holds text back.
type accumulator struct {
	res   *call.Result
	o     *call.Order
	reply fulgur.Message
	seen  bool
	logs  bool // log probs were there

	// What grows by pieces, until the end: the reply's content, its reasoning, and the
	// arguments of its tool calls.
	text, mind []byte
	arguments  [][]byte
}

func newAccumulator(res *call.Result, o *call.Order) *accumulator {
	res.PromptIDs, res.SampledIDs, res.LogProbs, res.TokenTexts, res.Spans, res.Reply, res.Usage = nil, nil, nil, nil, nil, nil, nil
	res.Finish, res.Stopped = "", ""
	return &accumulator{res: res, o: o, reply: fulgur.Message{Role: "assistant"}}
}

func (a *accumulator) head(w *chatwire.Answer) {
	if len(w.PromptIDs) > 0 && len(a.res.PromptIDs) == 0 {
		a.res.PromptIDs = w.PromptIDs
	}
	if w.Usage != nil {
		a.res.Usage = w.Usage
	}
}

func (a *accumulator) choice(c *chatwire.Choice, whole bool) {
	a.seen = true
	if len(a.res.PromptIDs) == 0 {
		a.res.PromptIDs = c.PromptIDs
	}
	a.res.SampledIDs = append(a.res.SampledIDs, c.TokenIDs...)
	a.res.LogProbs = append(a.res.LogProbs, c.LogProbs...)
	a.res.TokenTexts = append(a.res.TokenTexts, c.Tokens...)
	a.logs = a.logs || len(c.LogProbs) > 0
	if c.Finish != "" {
		a.res.Finish = c.Finish
	}
	if c.Stopped != "" {
		a.res.Stopped = c.Stopped
	}
	if whole {
		a.reply.Content += c.Text
		a.reply.Reasoning += c.Reasoning
	} else {
		a.text = append(a.text, c.Text...)
		a.mind = append(a.mind, c.Reasoning...)
	}
	for i, t := range c.ToolCalls {
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
		if whole {
			k.Arguments += t.Function.Arguments
			continue
		}
		for len(a.arguments) <= at {
			a.arguments = append(a.arguments, nil)
		}
		a.arguments[at] = append(a.arguments[at], t.Function.Arguments...)
	}
}

func (a *accumulator) end() {
	a.reply.Content += string(a.text)
	a.reply.Reasoning += string(a.mind)
	for i := range a.arguments {
		a.reply.ToolCalls[i].Arguments += string(a.arguments[i])
	}
	a.text, a.mind, a.arguments = nil, nil, nil
	if a.seen {
		reply := a.reply // a copy: the reply is kept for long, and must not keep request and answer with it
		a.res.Reply = &reply
	}
	if len(a.res.SampledIDs) > 0 {
		a.res.Spans = []fulgur.Span{{Start: 0, Version: a.o.Endpoint.Version}}
	}
}

package tokens

import (
	"errors"
	"hash/fnv"
	"strings"

	"github.com/fulgur-rl/fulgur/internal/engine"
	"github.com/fulgur-rl/fulgur/internal/gateway/call"
)

// errStopped ends a generation at a stop string.
var errStopped = errors.New("a stop string was sampled")

// later is an optional interface of a Reply: a token that need not be read before
// Finish, which is cheaper for all of them at once.
type later interface{ Later(id int32) }

// writer takes sampled tokens into the result and shows what they say.
type writer struct {
	r     Renderer
	o     *call.Order
	res   *call.Result
	emit  func(call.Delta) error
	reply Reply
	later later    // reply, if nothing is to be shown before its end
	ids   []string // of the reply's tool calls

	stops   []string
	held    string // text that may be the start of a stop string
	text    strings.Builder
	stopped bool
	first   bool
}

func newWriter(r Renderer, o *call.Order, res *call.Result, emit func(call.Delta) error) *writer {
	tools := o.Tools
	if o.ToolChoice == "none" {
		tools = nil
	}
	w := &writer{r: r, o: o, res: res, emit: emit, stops: o.Sampling.Stop, first: true}
	if o.Prompt != nil {
		w.reply = &rawReply{r: r, stop: r.StopIDs()}
	} else {
		w.reply = r.Reply(tools)
	}
	if !w.needed() {
		w.later, _ = w.reply.(later)
	}
	return w
}

// needed says whether tokens must be seen as they come.
func (w *writer) needed() bool { return w.emit != nil || len(w.stops) > 0 }

// token takes one sampled token.
func (w *writer) token(t engine.Token) error {
	w.res.Spans = call.AddSpan(w.res.Spans, len(w.res.SampledIDs), t.Version)
	w.res.SampledIDs = append(w.res.SampledIDs, t.ID)
	w.res.LogProbs = append(w.res.LogProbs, t.LogProb)
	tok := call.Token{ID: t.ID, LogProb: t.LogProb}
	if w.o.LogProbs {
		tok.Text = w.r.Decode([]int32{t.ID})
		w.res.TokenTexts = append(w.res.TokenTexts, tok.Text)
	}
	if w.later != nil {
		w.later.Later(t.ID)
		return nil
	}
	d := w.reply.Feed(t.ID)
	d.Tokens = []call.Token{tok}
	return w.show(d)
}

// show passes a piece on, up to a stop string.
func (w *writer) show(d call.Delta) error {
	if len(w.stops) > 0 {
		d.Text = w.cut(d.Text)
	}
	w.name(d.Tools)
	if w.emit != nil {
		if w.first {
			d.PromptIDs, w.first = w.res.PromptIDs, false
		}
		if err := w.emit(d); err != nil {
			return err
		}
	}
	if w.stopped {
		return errStopped
	}
	return nil
}

// cut returns the text that can be shown: none from a stop string on, and
// nothing yet that may turn out to be the start of one.
func (w *writer) cut(text string) string {
	all := w.held + text
	w.held = ""
	at := -1
	for _, s := range w.stops {
		if i := strings.Index(all, s); i >= 0 && (at < 0 || i < at) {
			at, w.res.Stopped = i, s
		}
	}
	if at >= 0 {
		w.stopped = true
		all = all[:at]
	} else {
		n := 0
		for _, s := range w.stops {
			for k := min(len(s)-1, len(all)); k > n; k-- {
				if strings.HasSuffix(all, s[:k]) {
					n = k
				}
			}
		}
		w.held = all[len(all)-n:]
		all = all[:len(all)-n]
	}
	w.text.WriteString(all)
	return all
}

// name gives tool calls the ids by which results refer to them: nine letters
// and digits (some chat templates take nothing else), the same in each run.
func (w *writer) name(tools []call.ToolDelta) {
	for i := range tools {
		t := &tools[i]
		if t.Name != "" {
			t.ID = w.id(t.Index)
		}
	}
}

func (w *writer) id(index int) string {
	for i := len(w.ids); i <= index; i++ {
		h := fnv.New64a()
		who := string(w.o.Rollout)
		if who == "" {
			who = string(w.o.Call)
		}
		_, _ = h.Write([]byte(who))
		_, _ = h.Write([]byte{0, byte(w.o.Index), byte(w.o.Index >> 8), byte(i), byte(i >> 8)})
		const alphabet = "0123456789abcdefghijklmnopqrstuvwxyz"
		id, v := make([]byte, 9), h.Sum64()
		for j := range id {
			id[j] = alphabet[v%36]
			v /= 36
		}
		w.ids = append(w.ids, string(id))
	}
	return w.ids[index]
}

// finish reads the whole reply and, if all went well, shows what was held back.
func (w *writer) finish(reason string, good bool) error {
	rest, msg, malformed := w.reply.Finish(reason)
	var err error
	if !w.stopped {
		rest.Text, w.held = w.held+rest.Text, ""
		if len(w.stops) > 0 {
			rest.Text = w.cut(rest.Text) // the very end can still complete a stop string
			if !w.stopped {
				w.text.WriteString(w.held)
				rest.Text, w.held = rest.Text+w.held, ""
			}
		}
		if good && (rest.Text != "" || rest.Reasoning != "" || len(rest.Tools) > 0) {
			w.stops, w.stopped = nil, false
			err = w.show(rest)
		}
	}
	if len(w.o.Sampling.Stop) > 0 {
		msg.Content = w.text.String()
	}
	msg.Role = "assistant"
	for i := range msg.ToolCalls {
		msg.ToolCalls[i].ID = w.id(i)
	}
	if w.res.Stopped != "" {
		reason = "stop" // also where the last token's text completed a stop string
	}
	w.res.Reply, w.res.Malformed, w.res.Finish = &msg, malformed, reason
	if reason == "stop" && len(msg.ToolCalls) > 0 {
		w.res.Finish = "tool_calls"
	}
	return err
}

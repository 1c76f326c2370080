package gateway

import (
	"context"
	"net/http"
	"time"

	"github.com/fulgur-rl/fulgur"
	"github.com/fulgur-rl/fulgur/internal/gateway/call"
	"github.com/fulgur-rl/fulgur/internal/gateway/dialect"
)

// rejoin answers a call that repeats one of its attempt which has not been
// delivered, if it does. It is no call of its own: no pause holds it, nothing
// new goes upstream.
func (g *Gateway) rejoin(w http.ResponseWriter, r *http.Request, d dialect.Dialect, t target, req *call.Request, start time.Time) (joined, broken bool) {
	if t.rollout == "" {
		return false, false
	}
	s, settle := g.retries.attach(attemptKey{t.rollout, t.attempt}, req.Body, saysRetry(r.Header))
	if s == nil {
		return false, false
	}
	g.m.joined.Inc()
	f := &flow{g: g, w: w, d: d, t: t, req: req, start: start, id: s.gen.f.id, seat: s}
	return true, f.wait(r.Context(), settle)
}

// wait waits for another client's generation, with signs of life, and answers
// from it. settle: it is finished, and this flow has to put it on record.
func (f *flow) wait(client context.Context, settle bool) bool {
	f.open()
	defer f.ans.stop()
	defer f.seat.leave()
	defer context.AfterFunc(client, f.seat.leave)()
	gen := f.seat.gen
	if settle {
		gen.f.settle(client, gen.out, false)
		close(gen.done)
	}
	f.ans.hold()
	select {
	case <-gen.done:
	case <-client.Done():
		return true
	}
	f.ans.release()
	out := *gen.out
	if !out.admitted || out.err != nil {
		return f.deliver(client, &out, nil)
	}
	res := *out.res
	out.res = &res
	if good(&res) && f.ans.out != nil { // its events went to another: it gets one that says all
		res.Relayed = false
		_ = f.ans.delta(deltaOf(&res)) // what fails is noticed at the end
	}
	return f.deliver(client, &out, f.body(&res, &fulgur.Call{}))
}

// deltaOf makes one piece of a whole answer.
func deltaOf(res *call.Result) call.Delta {
	d := call.Delta{PromptIDs: res.PromptIDs, Tokens: make([]call.Token, len(res.SampledIDs))}
	for i, id := range res.SampledIDs {
		t := &d.Tokens[i]
		t.ID = id
		if i < len(res.LogProbs) {
			t.LogProb = res.LogProbs[i]
		}
		if i < len(res.TokenTexts) {
			t.Text = res.TokenTexts[i]
		}
	}
	if res.Reply != nil {
		d.Text, d.Reasoning = res.Reply.Content, res.Reply.Reasoning
		for i, c := range res.Reply.ToolCalls {
			d.Tools = append(d.Tools, call.ToolDelta{Index: i, ID: c.ID, Name: c.Name, Arguments: c.Arguments})
		}
	}
	return d
}

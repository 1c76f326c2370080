package gateway

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/fulgur-rl/fulgur"
	"github.com/fulgur-rl/fulgur/internal/gateway/call"
	"github.com/fulgur-rl/fulgur/internal/gateway/dialect"
)

// flow is one call on its way through the gateway.
type flow struct {
	g       *Gateway
	w       http.ResponseWriter
	d       dialect.Dialect
	t       target
	req     *call.Request
	start   time.Time
	id      fulgur.CallID
	index   int
	attempt *attempt // nil: plain serving
	meta    dialect.Meta
	ans     *answer
	leave   func() // ends the flight; a slow reader of the last bytes holds up no drain
}

// run holds, samples, records and answers. True: break the connection.
func (f *flow) run(client context.Context) bool {
	g := f.g
	f.meta = dialect.Meta{ID: string(f.id), Created: f.start.Unix(), Model: f.t.model}
	if f.req.Model != "" {
		f.meta.Model = f.req.Model // what the client asked for is what it expects to read
	}
	var out dialect.Stream
	if f.req.Stream {
		out = f.d.Stream(f.req, f.meta)
	}
	f.ans = newAnswer(f.w, &g.o, out)
	defer f.ans.stop()
	ctx, cancel := context.WithCancelCause(client)
	defer cancel(nil)
	fl, err := f.enter(ctx, func(cause error) {
		cancel(cause)
		f.ans.unblock()
	})
	if err != nil {
		if f.attempt != nil {
			f.attempt.end()
		}
		return f.unadmitted(client, err)
	}
	f.leave = sync.OnceFunc(func() {
		g.gates.leave(fl)
		g.m.inflight.Dec()
		if f.attempt != nil {
			f.attempt.end()
		}
	})
	defer f.leave()
	g.m.inflight.Inc()
	ep, done, err := g.admit(ctx, f.t, f.id) // behind the gate: a hold ends with other endpoints
	if err != nil {
		return f.unadmitted(client, err)
	}
	dec := decide(f.req, &f.t, f.index, &g.o)
	g.m.force(dec.forced)
	o := f.order(ep, dec)
	var emit func(call.Delta) error
	if out != nil {
		emit = f.ans.delta
	}
	res, err := g.o.Samplers[ep.Kind].Sample(ctx, o, emit)
	done(res, err)
	return f.finish(client, ctx, o, dec, res, err)
}

// enter lets the call through the run's gate, with signs of life while it is held.
func (f *flow) enter(ctx context.Context, abort func(error)) (*flight, error) {
	held := false
	fl, err := f.g.gates.enter(ctx, f.t.run, f.g.o.HoldLimit, func() {
		held = true
		f.g.m.held.Inc()
		f.ans.hold()
		if f.attempt != nil {
			f.attempt.hold()
		}
	}, abort)
	if held {
		f.g.m.held.Dec()
		f.ans.release()
		if f.attempt != nil {
			f.attempt.release()
		}
	}
	return fl, err
}

// unadmitted answers a call that never reached an upstream; there is nothing to record.
func (f *flow) unadmitted(client context.Context, err error) bool {
	if client.Err() != nil {
		f.g.m.refused.WithLabelValues(string(fulgur.KindCanceled)).Inc()
		f.came("")
		return true
	}
	f.came(ownFault(err))
	f.ans.stop()
	if f.ans.isStarted() {
		f.ans.fail(failureOf(err))
		return true
	}
	f.g.refuse(f.w, f.d, f.t.v1, err)
	return false
}

// came notes on the attempt what came of the call, before the client knows.
func (f *flow) came(fault string) {
	if f.attempt != nil {
		f.attempt.came(fault)
	}
}

// fault is how the model server or the gateway failed a recorded call; "" if it
// was answered, refused for the caller's fault, or left by the client.
func fault(c *fulgur.Call, res *call.Result, err error) string {
	switch {
	case c.HTTPStatus >= 500:
		if c.Error != "" {
			return c.Error
		}
		return fmt.Sprintf("it was answered with status %d", c.HTTPStatus)
	case c.Fate != fulgur.FateLeft && err == nil && res.Status < 300:
		return res.Fault // broken in the middle
	}
	return ""
}

// finish records the call, then writes what is left of the answer.
func (f *flow) finish(client, ctx context.Context, o *call.Order, dec decision, res *call.Result, err error) bool {
	left := client.Err() != nil || f.ans.failed()
	aborted := errors.Is(context.Cause(ctx), errAborted)
	c := f.record(o, dec, res, err, left, aborted)
	var body []byte
	if err == nil {
		body = f.body(res, c)
	}
	if rerr := f.keep(ctx, c); rerr != nil {
		f.g.m.lost.Inc()
		f.g.o.Log.Error("call could not be recorded", "call", c.ID, "rollout", c.Rollout, "err", rerr)
		err := fulgur.E(lossKind(rerr), "record call", "The call could not be put on record, so its answer is withheld: try again", rerr)
		f.came(ownFault(err))
		return f.broke(err)
	}
	f.came(fault(c, res, err))
	f.leave()
	f.g.m.done(c, c.Latency)
	f.g.o.Log.Debug("call", "call", c.ID, "rollout", c.Rollout, "attempt", c.Attempt, "status", c.HTTPStatus,
		"fate", c.Fate, "sampled", len(c.SampledIDs), "untrainable", c.Untrainable, "latency", c.Latency)
	switch {
	case left:
		return true
	case aborted && err != nil:
		return f.broke(fulgur.E(fulgur.KindUnavailable, "sample call", "The model was updated in the middle of the call: try again", err))
	case err != nil:
		return f.broke(err)
	case !good(res) && f.ans.isStarted():
		return f.broke(fulgur.E(fulgur.KindUpstream, "sample call", "Upstream model server failed: "+res.Fault, nil))
	case good(res) && f.ans.out != nil:
		return f.ans.close(res) != nil
	}
	if res.RetryAfter != "" && !f.t.v1 && !f.ans.isStarted() {
		f.w.Header().Set("Retry-After", res.RetryAfter)
	}
	return f.ans.whole(res.Status, contentType(f.t.v1, res), body) != nil
}

// good says whether the upstream answered what was asked.
func good(res *call.Result) bool { return res.Status < 300 && res.Fault == "" }

func lossKind(err error) fulgur.Kind {
	if fulgur.KindOf(err) == fulgur.KindExhausted {
		return fulgur.KindExhausted
	}
	return fulgur.KindInternal
}

// broke tells the client of a failure. True: by breaking the connection.
func (f *flow) broke(err error) bool {
	fail := failureOf(err)
	if f.ans.isStarted() {
		f.ans.fail(fail)
		return true
	}
	setRetry(f.w.Header(), fulgur.KindOf(err))
	return f.ans.whole(fail.Status, "application/json", f.g.errorBody(f.d, f.t.v1, fail)) != nil
}

func contentType(v1 bool, res *call.Result) string {
	if res.ContentType == "" || v1 {
		return "application/json"
	}
	return res.ContentType
}

// body makes the unstreamed answer, and notes it on the record.
func (f *flow) body(res *call.Result, c *fulgur.Call) []byte {
	if res.Raw != nil && res.ContentType != "" && !isJSONType(res.ContentType) {
		if f.t.v1 { // v1 has {} in its place; the text is kept beside it
			c.Response = json.RawMessage("{}")
			c.Error = strings.ToValidUTF8(string(res.Raw[:min(len(res.Raw), 4096)]), "\ufffd")
			return c.Response
		}
		c.Response, _ = json.Marshal(string(res.Raw)) // a string can't fail
		return res.Raw
	}
	b := f.d.AppendAnswer(make([]byte, 0, 1024), f.req, f.meta, res)
	c.Response = b
	return b
}

func isJSONType(t string) bool {
	t, _, _ = strings.Cut(t, ";")
	return strings.EqualFold(strings.TrimSpace(t), "application/json")
}

// record makes the call's record.
func (f *flow) record(o *call.Order, dec decision, res *call.Result, err error, left, aborted bool) *fulgur.Call {
	c := &fulgur.Call{
		ID: f.id, Run: f.t.run, Rollout: f.t.rollout, Attempt: f.t.attempt, Index: f.index, Mode: f.t.mode,
		Dialect: f.d.Name(), Model: f.req.Model, Stream: f.req.Stream, Endpoint: o.Endpoint,
		Request: f.req.Body, Sent: res.Sent, Messages: f.req.Messages, Tools: f.req.Tools, Reply: res.Reply,
		PromptIDs: res.PromptIDs, SampledIDs: res.SampledIDs, LogProbs: res.LogProbs, Spans: res.Spans, RoutedExperts: res.Experts,
		Sampling: res.Sampling, Usage: res.Usage, FinishReason: res.Finish, HTTPStatus: res.Status, Error: res.Fault,
		Fate: fulgur.FateDelivered, Retries: res.Retries, StartedAt: f.start, Latency: time.Since(f.start),
		Auxiliary: f.t.auxiliary,
	}
	c.Endpoint.Key = ""
	switch {
	case left:
		c.Fate, c.HTTPStatus = fulgur.FateLeft, fulgur.KindCanceled.HTTPStatus()
	case err != nil:
		c.Fate, c.HTTPStatus = fulgur.FateRefused, fulgur.KindOf(err).HTTPStatus()
		if aborted {
			c.HTTPStatus = fulgur.KindUnavailable.HTTPStatus()
		}
	case res.Status >= 400:
		c.Fate = fulgur.FateRefused
	}
	if err != nil && c.Error == "" {
		c.Error = err.Error()
	}
	c.Untrainable = judge(o, res, err, dec, c)
	if !finite(c.LogProbs) {
		c.LogProbs = nil // JSON has no NaN; the answer's own words are in Response
	}
	c.Trainable = len(c.Untrainable) == 0
	return c
}

// keep puts the record into the store, whatever has become of the client.
func (f *flow) keep(ctx context.Context, c *fulgur.Call) error {
	ctx, cancel := detached(ctx)
	defer cancel()
	if f.t.rollout != "" {
		return f.g.o.Records.AppendCall(ctx, c)
	}
	if f.g.o.RecordPlain != nil {
		return f.g.o.RecordPlain(ctx, c)
	}
	return nil
}

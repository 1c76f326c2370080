package gateway

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/fulgur-rl/fulgur"
	"github.com/fulgur-rl/fulgur/internal/gateway/call"
	"github.com/fulgur-rl/fulgur/internal/gateway/dialect"
	"github.com/fulgur-rl/fulgur/internal/gateway/sampler"
)

// flow is one client's call on its way through the gateway.
type flow struct {
	g       *Gateway
	w       http.ResponseWriter
	d       dialect.Dialect
	t       target
	req     *call.Request
	start   time.Time
	id      fulgur.CallID
	index   int
	attempt *attempt // nil: plain serving, and a retry that joins
	meta    dialect.Meta
	ans     *answer
	seat    *seat
	flight  *flight // nil: not at an upstream
	held    bool    // a pause has held it
	leave   func()  // ends the flight; a slow reader of the last bytes holds up no drain
}

// ending is how a generation came out.
type ending struct {
	admitted bool // it reached an upstream: there is something to record
	aborted  bool // a drain cut it off for good
	order    *call.Order
	decision decision
	res      *call.Result // nil only if it was not admitted
	err      error
	took     time.Duration
	body     []byte // the unstreamed answer in the first client's dialect
	lost     error  // it could not be put on record, so the answer is withheld
}

// whole says whether there is an answer as it was asked for.
func (o *ending) whole() bool { return o.admitted && o.err == nil && good(o.res) }

// settled tells the sampler that the result is on record, or will not be for long.
func (o *ending) settled() {
	if o.res != nil && o.res.Settled != nil {
		o.res.Settled()
	}
}

// open starts the answer.
func (f *flow) open() {
	f.meta = dialect.Meta{ID: string(f.id), Created: f.start.Unix(), Model: f.t.model}
	if f.req.Model != "" {
		f.meta.Model = f.req.Model // what the client asked for is what it expects to read
	}
	var out dialect.Stream
	if f.req.Stream {
		out = f.d.Stream(f.req, f.meta)
	}
	f.ans = newAnswer(f.w, &f.g.o, out)
}

// run holds, samples, records and answers. The generation outlives its client
// for a moment, for a retry may join it: its context is its own. True: break the
// connection.
func (f *flow) run(client context.Context) bool {
	g := f.g
	f.open()
	defer f.ans.stop()
	ctx, cancel := context.WithCancelCause(context.WithoutCancel(client))
	defer cancel(nil)
	f.seat = g.retries.begin(f, cancel)
	defer f.seat.leave()
	defer context.AfterFunc(client, f.seat.leave)()
	f.leave = sync.OnceFunc(func() {
		f.land()
		if f.attempt != nil {
			f.attempt.end()
		}
	})
	defer f.leave()
	out := f.sample(ctx)
	out.took = time.Since(f.start)
	gen := f.seat.gen
	defer out.settled()
	left, keep := g.retries.end(gen, out)
	if keep {
		return true // somebody may still come for it
	}
	if out.admitted {
		f.settle(ctx, out, left)
	}
	out.settled()
	close(gen.done)
	f.leave()
	return f.deliver(client, out, out.body)
}

// land notes that nothing of the call is at an upstream any more.
func (f *flow) land() {
	if f.flight != nil {
		f.g.gates.leave(f.flight)
		f.g.m.inflight.Dec()
		f.flight = nil
	}
}

// sample has the call answered: in one go, or going on after each pause that
// cut it off (PauseRequest.Partial).
func (f *flow) sample(ctx context.Context) *ending {
	out := &ending{}
	for {
		again, err := f.round(ctx, out)
		if out.err = err; !again {
			if f.flight != nil && !out.aborted {
				f.g.gates.answered(f.flight)
			}
			return out
		}
		f.g.gates.suspend(f.flight)
		f.land()
	}
}

// round waits for the gate and has the call sampled until it ends or is cut off.
// again: it is to go on after the pause.
func (f *flow) round(ctx context.Context, out *ending) (again bool, err error) {
	g := f.g
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	f.flight, err = f.enter(ctx, func(cause error) {
		cancel(cause)
		if cause == errAborted { // what is to go on is not taken from a slow reader
			f.ans.unblock()
		}
	})
	if err != nil {
		return false, err
	}
	g.m.inflight.Inc()
	if !f.seat.admitted() {
		return false, context.Cause(ctx)
	}
	ep, done, err := g.admit(ctx, f.t, f.id) // behind the gate: a hold ends with other endpoints
	if err != nil {
		return false, err
	}
	before := out.res
	if !out.admitted {
		out.admitted, out.decision = true, decide(f.req, &f.t, f.index, &g.o)
		g.m.force(out.decision.forced)
		out.order = f.order(ep, out.decision)
	} else {
		o := *out.order
		o.Endpoint, o.Resume = ep, before
		out.order = &o
	}
	var emit func(call.Delta) error
	if f.ans.out != nil {
		emit = f.pass
	}
	out.res, err = g.o.Samplers[ep.Kind].Sample(ctx, out.order, emit)
	done(out.res, err)
	if before != nil {
		out.res.Retries += before.Retries
	}
	cause := context.Cause(ctx)
	out.aborted = err != nil && (errors.Is(cause, errAborted) || errors.Is(cause, errSuspended))
	return out.aborted && cause == errSuspended && sampler.Resumes(g.o.Samplers[ep.Kind]), err
}

// pass passes a piece of the answer on. A client that can't be written to has
// left; what that means for the generation is not for the sampler to decide.
func (f *flow) pass(d call.Delta) error {
	if f.ans.delta(d) != nil {
		f.seat.leave()
	}
	return nil
}

// enter lets the call through the run's gate, with signs of life while it is held.
func (f *flow) enter(ctx context.Context, abort func(error)) (*flight, error) {
	held := false
	fl, err := f.g.gates.enter(ctx, f.t.run, f.g.o.HoldLimit, func() {
		held, f.held = true, true
		f.g.m.held.Inc()
		f.ans.hold()
		f.req.Fold(f.d.Parse)
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
		f.came("", "")
		return true
	}
	f.came(ownFault(err), "")
	f.ans.stop()
	if f.ans.isStarted() {
		f.ans.fail(failureOf(err))
		return true
	}
	f.g.refuse(f.w, f.d, f.t.v1, err)
	return false
}

// came notes on the attempt what came of the call, before the client knows.
func (f *flow) came(fault, overflow string) {
	if f.attempt != nil {
		f.attempt.came(fault, overflow)
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

// settle puts a generation on record. left: no client waits for it any more.
func (f *flow) settle(ctx context.Context, out *ending, left bool) {
	c := f.record(out, left)
	if out.err == nil {
		out.body = f.body(out.res, c)
	}
	ctx, cancel := detached(ctx) // whatever has become of the client
	defer cancel()
	f.markLate(ctx, c)
	if err := f.keep(ctx, c); err != nil {
		f.g.m.lost.Inc()
		f.g.o.Log.Error("call could not be recorded", "call", c.ID, "rollout", c.Rollout, "err", err)
		out.lost = fulgur.E(lossKind(err), "record call", "The call could not be put on record, so its answer is withheld: try again", err)
		f.came(ownFault(out.lost), "")
		return
	}
	overflow := ""
	if contextFull(out.res, out.err) {
		overflow = c.Error
	}
	f.came(fault(c, out.res, out.err), overflow)
	f.g.m.done(c, c.Latency)
	if !f.g.o.Log.Enabled(ctx, slog.LevelDebug) {
		return
	}
	f.g.o.Log.Debug("call", "call", c.ID, "rollout", c.Rollout, "attempt", c.Attempt, "status", c.HTTPStatus,
		"fate", c.Fate, "sampled", len(c.SampledIDs), "untrainable", c.Untrainable, "latency", c.Latency)
}

// deliver writes what is left of the answer. body is its unstreamed form.
func (f *flow) deliver(client context.Context, out *ending, body []byte) bool {
	res, err := out.res, out.err
	if !out.admitted {
		return f.unadmitted(client, err)
	}
	if !f.seat.lastBytes() {
		return true
	}
	broken, told := true, false
	defer func() { f.seat.wrote(told) }()
	switch {
	case out.lost != nil:
		return f.broke(out.lost)
	case out.aborted:
		return f.broke(fulgur.E(fulgur.KindUnavailable, "sample call", "The model was updated in the middle of the call: try again", err))
	case err != nil:
		return f.broke(err)
	case f.denied(res):
		return f.broke(fulgur.E(fulgur.KindUpstream, "sample call", "Upstream model server does not take the gateway's key: set the key of its endpoint", nil))
	case f.senseless(res), !good(res) && f.ans.isStarted():
		return f.broke(fulgur.E(fulgur.KindUpstream, "sample call", "Upstream model server failed: "+res.Fault, nil))
	case good(res) && f.ans.out != nil:
		broken = f.ans.close(res) != nil
	default:
		if res.RetryAfter != "" && !f.t.v1 && !f.ans.isStarted() {
			f.w.Header().Set("Retry-After", res.RetryAfter)
		}
		broken = f.ans.whole(res.Status, contentType(f.t.v1, res), body) != nil
	}
	told = !broken
	return broken
}

// good says whether the upstream answered what was asked.
func good(res *call.Result) bool { return res.Status < 300 && res.Fault == "" }

// senseless says whether a stream was asked for, and the upstream's status is no
// error's, but what came is no answer: an HTML page, JSON that is cut off.
// Passed on, as an unstreamed call's is, it would be a stream without events,
// which clients take for an empty answer.
func (f *flow) senseless(res *call.Result) bool {
	return !good(res) && res.Status < 400 && f.ans.out != nil && !f.t.v1
}

// denied says whether the upstream refused the gateway's own key: as an answer
// to the agent, whose key is another, it would send people the wrong way, and
// some harnesses repeat a 401 for minutes. v1 passes it on.
func (f *flow) denied(res *call.Result) bool {
	return !f.t.v1 && (res.Status == http.StatusUnauthorized || res.Status == http.StatusForbidden)
}

// markLate marks a call that ended after its attempt: the trainer may have read
// the rollout before. v1 knows no ends of attempts.
func (f *flow) markLate(ctx context.Context, c *fulgur.Call) {
	if !c.Trainable || f.t.rollout == "" || f.t.v1 {
		return
	}
	r, err := f.g.o.Directory.Rollout(ctx, f.t.rollout)
	if err == nil && (r.State.Terminal() || r.LastAttempt != "" && r.LastAttempt != f.t.attempt) {
		c.Trainable, c.Untrainable = false, append(c.Untrainable, fulgur.UntrainableLate)
	}
}

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
func (f *flow) record(out *ending, left bool) *fulgur.Call {
	o, res, err := out.order, out.res, out.err
	f.req.Unfold()
	c := &fulgur.Call{
		ID: f.id, Run: f.t.run, Rollout: f.t.rollout, Attempt: f.t.attempt, Index: f.index, Mode: f.t.mode,
		Dialect: f.d.Name(), Model: f.req.Model, Stream: f.req.Stream, Endpoint: o.Endpoint,
		Request: f.req.Body, Sent: res.Sent, Messages: f.req.Messages, Tools: f.req.Tools, Reply: res.Reply,
		PromptIDs: res.PromptIDs, SampledIDs: res.SampledIDs, LogProbs: res.LogProbs, Spans: res.Spans, RoutedExperts: res.Experts,
		Sampling: res.Sampling, Usage: res.Usage, FinishReason: res.Finish, HTTPStatus: res.Status, Error: res.Fault,
		Fate: fulgur.FateDelivered, Retries: res.Retries, Joined: f.g.retries.joins(f.seat.gen), StartedAt: f.start, Latency: out.took,
		Auxiliary: f.t.auxiliary,
	}
	c.Endpoint.Key = ""
	switch {
	case left:
		c.Fate, c.HTTPStatus = fulgur.FateLeft, fulgur.KindCanceled.HTTPStatus()
	case err != nil:
		c.Fate, c.HTTPStatus = fulgur.FateRefused, fulgur.KindOf(err).HTTPStatus()
		if out.aborted {
			c.HTTPStatus = fulgur.KindUnavailable.HTTPStatus()
		}
	case f.denied(res), f.senseless(res):
		c.Fate, c.HTTPStatus = fulgur.FateRefused, fulgur.KindUpstream.HTTPStatus()
	case res.Status >= 400:
		c.Fate = fulgur.FateRefused
	}
	if err != nil && c.Error == "" {
		c.Error = err.Error()
	}
	c.Untrainable = judge(o, res, err, out.decision, c, f.g.o.Vocabulary)
	if !finite(c.LogProbs) {
		c.LogProbs = nil // JSON has no NaN; the answer's own words are in Response
	}
	c.Trainable = len(c.Untrainable) == 0
	return c
}

// keep puts the record into the store.
func (f *flow) keep(ctx context.Context, c *fulgur.Call) error {
	if f.t.rollout != "" {
		return f.g.o.Records.AppendCall(ctx, c)
	}
	if f.g.o.RecordPlain != nil {
		return f.g.o.RecordPlain(ctx, c)
	}
	return nil
}

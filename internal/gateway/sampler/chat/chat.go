// Package chat is the sampler that asks an OpenAI-compatible server. A call of a
// dialect that the server speaks itself (chat and text completions) is relayed:
// the client's bytes with the gateway's own fields spliced in, the server's bytes
// back, streamed or not. A call of any other dialect is asked as a chat
// completion that is written of its normal form, and read back into pieces that
// its dialect writes. Records are made of what the server says of itself: vLLM's
// token ids, its log probs, its usage, its routed experts.
package chat

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	"github.com/fulgur-rl/fulgur"
	"github.com/fulgur-rl/fulgur/internal/gateway/call"
	"github.com/fulgur-rl/fulgur/internal/gateway/sampler"
)

// The formats that this sampler relays, by the names of their dialects.
const (
	Wire     = "openai-chat"
	WireText = "openai-completions"
)

// maxAnswer is the largest answer taken, streamed or not.
const maxAnswer = 256 << 20

// Options configure a Sampler.
type Options struct {
	Retry  sampler.Retry
	Client *http.Client // nil: sampler.NewClient
	// RoutedExperts: training calls ask for them (R3).
	RoutedExperts bool
}

// Sampler implements sampler.Sampler.
type Sampler struct {
	retry    sampler.Retry
	client   *http.Client
	experts  bool
	contexts contexts
	leaving  departures
	reading  turnstile
}

var _ sampler.Sampler = (*Sampler)(nil)

// New returns a sampler. It holds no goroutine; Close drops idle connections.
func New(o Options) *Sampler {
	if o.Client == nil {
		o.Client = sampler.NewClient()
	}
	return &Sampler{retry: o.Retry.Defaults(), client: o.Client, experts: o.RoutedExperts, reading: newTurnstile()}
}

// Close drops idle connections.
func (s *Sampler) Close() error {
	s.client.CloseIdleConnections()
	return nil
}

// errSilent ends a try whose server says nothing for too long.
var errSilent = errors.New("the model server was silent for too long")

func op(o *call.Order) string { return "relay call " + string(o.Call) }

// exchange is one call on its way to a server and back.
type exchange struct {
	s    *Sampler
	o    *call.Order
	res  *call.Result
	emit func(call.Delta) error
	body []byte // what is sent
	// wire is the format that is relayed; "": the call is converted.
	wire string
	path string
	gone func() // of a call that was held: it has been sent; else nil
}

// Sample implements sampler.Sampler.
func (s *Sampler) Sample(ctx context.Context, o *call.Order, emit func(call.Delta) error) (*call.Result, error) {
	x := &exchange{s: s, o: o, res: &call.Result{Status: 200, Sampling: o.Sampling}, emit: emit, path: "/chat/completions"}
	var err error
	switch o.Dialect {
	case WireText:
		x.wire, x.path = WireText, "/completions"
		x.body, err = s.splice(o)
	case Wire:
		x.wire = Wire
		x.body, err = s.splice(o)
	default:
		o.Unfold()
		x.body, err = s.convert(ctx, o)
	}
	if err != nil {
		return x.res, err
	}
	x.res.Sent = x.body
	x.res.Sampling.Seed = 0 // the server's own
	if o.Wishes.Seed != nil {
		x.res.Sampling.Seed = uint64(*o.Wishes.Seed)
	}
	if o.Held {
		x.gone = s.leaving.begin()
		defer x.gone()
	}
	return x.res, x.run(ctx)
}

// run makes tries until one is an answer, or no more are allowed.
func (x *exchange) run(ctx context.Context) error {
	start := time.Now()
	for {
		again, after, err := x.try(ctx, x.s.retry.Limit(time.Since(start)))
		if !again || ctx.Err() != nil {
			return err
		}
		wait, more := x.s.retry.Pause(x.res.Retries+1, time.Since(start), after)
		if !more {
			return err
		}
		why := err
		if why == nil {
			why = fmt.Errorf("status %d", x.res.Status)
		}
		x.s.retry.Tell(x.res.Retries+1, x.o.Endpoint.URL, wait, why)
		if werr := sampler.Wait(ctx, wait); werr != nil {
			return fulgur.E(fulgur.KindCanceled, op(x.o), "The call was cancelled", werr)
		}
		x.res.Retries++
	}
}

// try makes one try, whose answer must start within limit. again: it failed,
// harmed nothing, and another may not, when the server has been left alone for as
// long as it asked. When it returns, nothing of it runs on: its connection is
// closed, by which servers know that nobody waits for the generation.
func (x *exchange) try(ctx context.Context, limit time.Duration) (again bool, after time.Duration, err error) {
	x.res.Fault = ""
	tryCtx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	watch := watchSilence(limit, func() { cancel(errSilent) })
	defer watch.stop()
	resp, err := x.post(tryCtx)
	if err != nil {
		return true, 0, x.failure(ctx, tryCtx, err)
	}
	defer resp.Body.Close()
	if x.gone != nil {
		x.gone()
		x.s.leaving.wait(tryCtx)
	}
	if resp.StatusCode < 200 {
		// 101 would end HTTP for the client as well, and what is below is no status.
		return true, 0, x.failure(ctx, tryCtx, fmt.Errorf("upstream answered with status %d, which ends no request", resp.StatusCode))
	}
	ctype := resp.Header.Get("Content-Type")
	if x.emit != nil && resp.StatusCode < 300 && strings.HasPrefix(ctype, "text/event-stream") {
		again, err := x.streamed(ctx, tryCtx, resp, func() { watch.heard(x.s.retry.Try) })
		return again, 0, err
	}
	turn := x.s.reading.enter(tryCtx, resp)
	defer func() {
		if again || err != nil || turn == nil {
			turn.end()
		} else {
			x.res.Settled = turn.end
		}
	}()
	raw, err := readAll(resp)
	turn.read()
	if err != nil {
		return true, 0, x.failure(ctx, tryCtx, err)
	}
	if len(raw) > maxAnswer {
		return false, 0, fulgur.E(fulgur.KindUpstream, op(x.o), "Upstream model server's answer is too long", nil)
	}
	x.res.RetryAfter = resp.Header.Get("Retry-After")
	again, after = sampler.Retryable(resp.StatusCode), sampler.RetryAfter(resp.Header)
	x.answer(resp.StatusCode, ctype, raw)
	if x.wire == "" {
		if err := x.converted(raw); err != nil {
			return again, after, err
		}
	}
	if x.emit != nil && x.res.Status < 300 && x.res.Fault == "" {
		return false, 0, x.emit(pieces(x.res)) // a server that does not stream: one piece
	}
	return again, after, nil
}

// readAll reads an answer, up to one byte more than is allowed. Where its size is
// told, it is read into memory of that size: growing costs as much again.
func readAll(resp *http.Response) ([]byte, error) {
	return call.ReadAll(io.LimitReader(resp.Body, maxAnswer+1), int(min(max(resp.ContentLength, 0), sizeTrusted)))
}

// sizeTrusted is the most memory that an answer gets before it is there.
const sizeTrusted = 8 << 20

func (x *exchange) post(ctx context.Context) (*http.Response, error) {
	if x.gone != nil {
		ctx = traced(ctx, x.gone)
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, strings.TrimRight(x.o.Endpoint.URL, "/")+x.path, bytes.NewReader(x.body))
	if err != nil {
		return nil, err
	}
	req.Header.Set("Content-Type", "application/json")
	if x.o.Endpoint.Key != "" {
		req.Header.Set("Authorization", "Bearer "+x.o.Endpoint.Key)
	}
	return x.s.client.Do(req)
}

// converted makes of a whole answer what the client's dialect can write: an
// error is one of ours, for the server's has another shape.
func (x *exchange) converted(raw []byte) error {
	r := x.res
	r.Raw, r.Wire, r.ContentType = nil, "", ""
	switch {
	case r.Status >= 300:
		return sampler.StatusError("ask "+x.o.Endpoint.URL, r.Status, raw)
	case r.Fault != "":
		return fulgur.E(fulgur.KindUpstream, op(x.o), "Upstream model server sent what is no chat completion", errors.New(r.Fault))
	}
	return nil
}

// pieces is a whole reply as one piece of a stream.
func pieces(r *call.Result) call.Delta {
	m := r.Reply
	d := call.Delta{Text: m.Content, Reasoning: m.Reasoning, PromptIDs: r.PromptIDs, Tokens: tokensOf(r.SampledIDs, r.LogProbs, r.TokenTexts)}
	for i, c := range m.ToolCalls {
		d.Tools = append(d.Tools, call.ToolDelta{Index: i, ID: c.ID, Name: c.Name, Arguments: c.Arguments})
	}
	return d
}

// failure names why a try brought no answer: by the call's own end first.
func (x *exchange) failure(ctx, try context.Context, err error) error {
	if cause := context.Cause(ctx); cause != nil {
		return fulgur.E(fulgur.KindCanceled, op(x.o), "The call was cancelled", cause)
	}
	x.res.Fault = err.Error()
	if errors.Is(context.Cause(try), errSilent) || sampler.IsTimeout(err) {
		x.res.Fault = errSilent.Error()
		return fulgur.E(fulgur.KindTimeout, op(x.o), "Upstream model server timed out", err)
	}
	return fulgur.E(fulgur.KindUpstream, op(x.o), "Upstream model server request failed", err)
}

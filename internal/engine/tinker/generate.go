package tinker

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strings"
	"time"

	"github.com/fulgur-rl/fulgur"
	"github.com/fulgur-rl/fulgur/internal/engine"
	"github.com/fulgur-rl/fulgur/internal/engine/wire"
)

// generator is one endpoint. It is safe for concurrent use.
type generator struct {
	s       *server
	src     source
	version fulgur.PolicyVersion
}

var _ engine.Generator = (*generator)(nil)

// defaultTokens is the limit of tokens where neither the caller nor the server
// gives one: no Tinker server but VeRL samples without.
const defaultTokens = 4096

var errLate = errors.New("the Tinker server gave no result in time")

// Generate implements engine.Generator. The tokens are emitted when all are
// there. Log probs are NaN where they are not those of the temperature: servers
// give them at temperature 1, whatever is sampled at.
func (g *generator) Generate(ctx context.Context, req engine.GenerateRequest, emit func(engine.Token) error) (engine.Generation, error) {
	var out engine.Generation
	if err := g.check(req); err != nil {
		return out, err
	}
	if ctx.Err() != nil {
		return out, context.Cause(ctx)
	}
	limited, cancel := context.WithTimeoutCause(ctx, g.s.c.o.Total, errLate)
	defer cancel()
	seq, retries, err := g.sample(limited, req)
	out.Retries = retries
	if err != nil {
		return out, g.wrap(ctx, err)
	}
	known := req.Temperature == 0 || req.Temperature == 1
	for i, id := range seq.Tokens {
		if ctx.Err() != nil {
			return out, context.Cause(ctx)
		}
		t := engine.Token{ID: id, LogProb: float32(math.NaN()), Version: g.version}
		if known && i < len(seq.LogProbs) {
			t.LogProb = seq.LogProbs[i]
		}
		out.Tokens = append(out.Tokens, t)
		if emit != nil {
			if err := emit(t); err != nil {
				return out, err
			}
		}
	}
	if ctx.Err() != nil {
		return out, context.Cause(ctx)
	}
	out.FinishReason, out.CachedTokens = seq.StopReason, seq.cached
	return out, nil
}

// check refuses what no server may be sent.
func (g *generator) check(req engine.GenerateRequest) error {
	const op = "generating"
	o := g.s.c.o
	n := len(req.Prompt)
	switch {
	case n == 0:
		return fulgur.E(fulgur.KindInvalid, op, "the prompt has no tokens", nil)
	case o.ContextLength > 0 && n >= o.ContextLength:
		return fulgur.E(fulgur.KindContextFull, op, fmt.Sprintf("This model's maximum context length is %d tokens; the prompt is too long with %d. Shorten the conversation", o.ContextLength, n), nil)
	case !(req.Temperature >= 0) || math.IsInf(req.Temperature, 0) || !(req.TopP >= 0 && req.TopP <= 1) || req.TopK < 0 || req.MaxTokens < 0:
		return fulgur.E(fulgur.KindInvalid, op, fmt.Sprintf("temperature %g, top_p %g, top_k %d, max_tokens %d: none may be negative, top_p not above 1",
			req.Temperature, req.TopP, req.TopK, req.MaxTokens), nil)
	}
	for i, id := range req.Prompt {
		if id < 0 || o.VocabSize > 0 && int(id) >= o.VocabSize {
			return fulgur.E(fulgur.KindInvalid, op, fmt.Sprintf("token %d at position %d is outside the vocabulary of %d", id, i, o.VocabSize), nil)
		}
	}
	return nil
}

// params are a request's, as the wire has them.
func params(req engine.GenerateRequest) wire.SamplingParams {
	p := wire.SamplingParams{MaxTokens: req.MaxTokens, Seed: seed31(req.Seed), Temperature: req.Temperature, TopK: -1, TopP: 1, Stop: req.StopIDs}
	if req.TopK > 0 {
		p.TopK = req.TopK
	}
	if req.TopP > 0 {
		p.TopP = req.TopP
	}
	if p.Stop == nil {
		p.Stop = []int32{} // null would be the model's own end of text
	}
	return p
}

// seed31 folds a seed into 31 bits: SkyRL's JAX backend takes an int32, and fails
// a whole batch over a larger one. Seeds that fit stay as they are.
func seed31(seed uint64) int64 {
	return int64((seed ^ seed>>31 ^ seed>>62) & math.MaxInt32)
}

// maxTokens is the limit to ask for.
func (g *generator) maxTokens(ctx context.Context, req engine.GenerateRequest) (int, error) {
	limit := g.s.c.o.ContextLength
	if limit == 0 && req.MaxTokens > 0 {
		return req.MaxTokens, nil
	}
	if limit == 0 {
		var err error
		if limit, err = g.s.contextLength(ctx, g.src); err != nil {
			return 0, err
		}
	}
	room := limit - len(req.Prompt)
	switch {
	case limit == 0:
		return defaultTokens, nil
	case room < 1:
		return 0, fulgur.E(fulgur.KindContextFull, "generating", fmt.Sprintf("This model's maximum context length is %d tokens; the prompt is too long with %d. Shorten the conversation", limit, len(req.Prompt)), nil)
	case req.MaxTokens == 0:
		return room, nil
	}
	return min(room, req.MaxTokens), nil
}

// sequence is a result, with what its answer tells beside.
type sequence struct {
	wire.Sequence
	cached int
}

// sample asks for one sequence, in bounded tries. A try is repeated with the same
// name while the server may not have taken it, and with another once it has lost it.
func (g *generator) sample(ctx context.Context, req engine.GenerateRequest) (sequence, int, error) {
	var t *ticket
	for try := 1; ; try++ {
		seq, again, err := g.try(ctx, req, &t)
		if err == nil || !again || try >= g.s.c.o.Tries {
			return seq, try - 1, err
		}
		if werr := g.s.c.pause(ctx, try, err); werr != nil {
			return seq, try - 1, errors.Join(werr, err)
		}
	}
}

// try makes one try; again says that another may help. It clears t when the next
// one needs another name.
func (g *generator) try(ctx context.Context, req engine.GenerateRequest, t **ticket) (_ sequence, again bool, err error) {
	if req.MaxTokens, err = g.maxTokens(ctx, req); err != nil {
		return sequence{}, transient(err), err
	}
	if *t == nil {
		name, err := g.s.ticket(ctx, g.src)
		if err != nil {
			return sequence{}, transient(err), err
		}
		*t = &name
	}
	q := wire.SampleRequest{Type: "sample", SamplingSessionID: (*t).session, SeqID: (*t).seq, NumSamples: 1, Prompt: wire.Text(req.Prompt), Params: params(req)}
	submit, cancel := context.WithTimeout(ctx, requestLimit)
	a, err := g.s.do(submit, "asample", q, map[string]string{"X-Tinker-Sampling-Backpressure": "1"})
	cancel()
	var sub wire.Submitted
	if err == nil {
		if err = read("asample", a, &sub); err == nil && sub.RequestID == "" {
			err = &badAnswer{errors.New("the answer to asample has no request_id")}
		}
	}
	switch {
	case lost(err): // restarted, or lapsed; or what is to be sampled is not there
		old := **t
		g.s.forget(old)
		*t = nil
		return sequence{}, !old.fresh, err
	case statusOf(err) == 409: // the name is taken by another request
		*t = nil
		return sequence{}, true, err
	case err != nil:
		return sequence{}, transient(err), err
	}
	seq, err := g.await(ctx, sub.RequestID)
	if err != nil && !lost(err) {
		if transient(err) || ctx.Err() != nil {
			g.s.cancel(ctx, sub.RequestID)
		}
		return seq, false, err
	}
	if err != nil { // the server has lost the result or the request: ask anew
		*t = nil
	}
	return seq, err != nil, err
}

// await waits for a result. Each wait is bounded by Poll; failures of the server
// in between are borne with up to Tries times in a row.
func (g *generator) await(ctx context.Context, request string) (sequence, error) {
	q := wire.RetrieveRequest{RequestID: request}
	failures := 0
	for n := 0; ; n++ {
		start := time.Now()
		poll, cancel := context.WithTimeout(ctx, g.s.c.o.Poll)
		a, err := g.s.do(poll, "retrieve_future", q, map[string]string{"Accept": wire.Protobuf + ", " + wire.JSON,
			"X-Tinker-Request-Iteration": fmt.Sprint(n), "X-Tinker-Request-Type": "Sample"})
		waited := poll.Err() != nil
		cancel()
		switch {
		case ctx.Err() != nil && err != nil:
			return sequence{}, context.Cause(ctx)
		case err == nil:
			f, err := wire.ReadFuture(a.contentType, a.body)
			if err != nil {
				return sequence{}, &badAnswer{err}
			}
			if !f.Pending {
				return result(f)
			}
			failures = 0
		case waited, statusOf(err) == 408: // not done yet
			failures = 0
		case statusOf(err) == 400 && failures == 0, // of SkyRL a failed request, of a proxy noise
			transient(err) && failures+1 < g.s.c.o.Tries:
			failures++
			if werr := g.s.c.pause(ctx, failures, err); werr != nil {
				return sequence{}, werr
			}
			continue
		case statusOf(err) == 400: // the request was checked before: it is not at fault
			return sequence{}, failed(wire.Failure{Message: detailOf(err)})
		default:
			return sequence{}, err
		}
		// Waiting is the server's part: one that answers at once is not to be asked in a tight loop.
		if rest := min(g.s.c.o.Backoff, g.s.c.o.Poll) - time.Since(start); rest > 0 {
			if err := wait(ctx, rest); err != nil {
				return sequence{}, err
			}
		}
	}
}

// result takes the one sequence of an answer.
func result(f wire.Future) (sequence, error) {
	switch {
	case f.Failed != nil:
		return sequence{}, failed(*f.Failed)
	case len(f.Sample.Sequences) != 1:
		return sequence{}, &badAnswer{fmt.Errorf("%d sequences where 1 was asked for", len(f.Sample.Sequences))}
	}
	return sequence{f.Sample.Sequences[0], f.Sample.CacheHitTokens}, nil
}

// failed is the error of a request that the server took and could not do.
func failed(f wire.Failure) error {
	switch {
	case tooLong(f.Message):
		return fulgur.E(fulgur.KindContextFull, "sample", f.Message, nil)
	case f.Category == "user":
		return fulgur.E(fulgur.KindInvalid, "sample", f.Message, nil)
	}
	return fulgur.E(fulgur.KindUpstream, "sample", "The model server failed to sample", errors.New(f.Message))
}

// tooLong reads vLLM's words for a prompt beyond its context, which VeRL and SkyRL pass on.
func tooLong(msg string) bool {
	return strings.Contains(msg, "maximum context length") || strings.Contains(msg, "max_model_len")
}

// wrap makes an error one that crosses the package's boundary.
func (g *generator) wrap(ctx context.Context, err error) error {
	op := "sample " + g.src.String() + " at " + g.s.at.base
	if cause := context.Cause(ctx); cause != nil {
		kind := fulgur.KindCanceled
		if errors.Is(cause, context.DeadlineExceeded) {
			kind = fulgur.KindTimeout
		}
		return fulgur.E(kind, op, "The call was cancelled", cause)
	}
	var own *fulgur.Error
	if errors.As(err, &own) {
		return err
	}
	e := &errorStatus{}
	if !errors.As(err, &e) {
		if errors.Is(err, errLate) || errors.Is(err, context.DeadlineExceeded) {
			return fulgur.E(fulgur.KindTimeout, op, "The model server gave no answer in time", err)
		}
		return fulgur.E(fulgur.KindUpstream, op, "The model server's answer can't be had or read", err)
	}
	switch e.status {
	case 400, 422:
		if tooLong(e.detail) {
			return fulgur.E(fulgur.KindContextFull, op, e.detail, err)
		}
		return fulgur.E(fulgur.KindInvalid, op, "The model server refused the request: "+e.detail, err)
	case 402:
		return fulgur.E(fulgur.KindUnavailable, op, "The model server's account is paused: settle its bill, then try again", err)
	case 401, 403:
		return fulgur.E(fulgur.KindUpstream, op, "The model server refused the endpoint's key: give the endpoint one that it takes", err)
	case 404, 410:
		return fulgur.E(fulgur.KindUpstream, op, "The model server does not have what the endpoint names: check its base_model or model_path", err)
	case 413:
		return fulgur.E(fulgur.KindTooLarge, op, "The model server finds the request too large: shorten the conversation", err)
	case 408, 504:
		return fulgur.E(fulgur.KindTimeout, op, "The model server timed out", err)
	case 429, 503:
		return fulgur.E(fulgur.KindUnavailable, op, "The model server is overloaded: try again", err)
	}
	return fulgur.E(fulgur.KindUpstream, op, "The model server failed", err)
}

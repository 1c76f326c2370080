// Package tokens is the sampler that asks for tokens: it renders messages into
// the model's tokens, reusing the exact ones of a conversation it knows, has
// them continued by an engine.Generator (in process, or behind vLLM's
// completions API), and reads the reply from what was sampled. Every record it
// makes is exact by construction.
package tokens

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"

	"github.com/fulgur-rl/fulgur"
	"github.com/fulgur-rl/fulgur/internal/engine"
	"github.com/fulgur-rl/fulgur/internal/gateway/call"
	"github.com/fulgur-rl/fulgur/internal/gateway/sampler"
)

// Options configure a Sampler.
type Options struct {
	Renderer Renderer
	// Local is the generator of endpoints whose URL starts with "inproc:"; nil if
	// there is none. Others are reached over HTTP.
	Local engine.Generator
	// Protocols open the generators of endpoints that speak another protocol than
	// vLLM's completions, by the name that their URL begins with: "tinker" for
	// tinker+https://…
	Protocols map[string]Open
	// ContextLength is the model's, in tokens; 0: unknown, and the upstream says.
	ContextLength int
	// Vocabulary is the number of the model's ids: an answer with others is not gone
	// on from, since no server takes them in a prompt. 0: not known.
	Vocabulary int
	// History is "deployed" (default) or "sampled": which tokens of a known
	// conversation are reused.
	History string
	// Records rebuilds what is known of an attempt after a restart; nil: it does not.
	Records History
	// Known bounds the conversations kept in memory, over all attempts; 0: 4096.
	Known int
	Retry sampler.Retry
}

// Open gives the generator of an endpoint, for one call.
type Open func(ep fulgur.Endpoint) (engine.Generator, error)

// History reads the recorded calls of an attempt, in order.
type History interface {
	Calls(ctx context.Context, id fulgur.RolloutID, attempt fulgur.AttemptID) ([]fulgur.Call, error)
}

// Sampler implements sampler.Sampler.
type Sampler struct {
	o      Options
	known  *memory
	first  openings
	client *http.Client
}

var _ sampler.Sampler = (*Sampler)(nil)

// New returns a sampler. It holds no goroutine; Close drops idle connections.
func New(o Options) *Sampler {
	if o.History == "" {
		o.History = "deployed"
	}
	if o.Known == 0 {
		o.Known = 4096
	}
	return &Sampler{o: o, known: newMemory(o.Known, o.Records), client: sampler.NewClient()}
}

// Close drops idle connections.
func (s *Sampler) Close() error {
	s.client.CloseIdleConnections()
	return nil
}

func op(o *call.Order) string { return "sample call " + string(o.Call) }

// unreadable says what of a request can't be turned into tokens.
func unreadable(o *call.Order) error {
	switch {
	case o.Invalid != nil:
		return o.Invalid
	case len(o.Relayed) > 0:
		return fulgur.E(fulgur.KindUnsupported, op(o), "This model takes text only and can't do what the request has: "+o.Relayed[0]+". Leave it out", nil)
	}
	return nil
}

// refuse says what of a request can't be done with tokens.
func refuse(o *call.Order) error {
	if err := unreadable(o); err != nil {
		return err
	}
	switch {
	case len(o.Constrained) > 0:
		return fulgur.E(fulgur.KindUnsupported, op(o), "This model can't be forced ("+strings.Join(o.Constrained, ", ")+"): leave it out", nil)
	case o.N > 1:
		return fulgur.E(fulgur.KindUnsupported, op(o), "n must be 1: ask again for another answer", nil)
	case o.TopLogProbs > 0:
		return fulgur.E(fulgur.KindUnsupported, op(o), "The log probs of other tokens are not offered by this model: ask for those of the sampled ones only", nil)
	}
	return nil
}

// Sample implements sampler.Sampler.
func (s *Sampler) Sample(ctx context.Context, o *call.Order, emit func(call.Delta) error) (*call.Result, error) {
	res := &call.Result{Status: 200, Sampling: o.Sampling}
	o.Unfold()
	if err := refuse(o); err != nil {
		return res, err
	}
	prompt, err := s.prompt(ctx, o)
	if err != nil {
		return res, err
	}
	res.PromptIDs, res.Broke = prompt.IDs, prompt.Broke
	req := engine.GenerateRequest{
		Prompt:      prompt.IDs,
		MaxTokens:   o.Sampling.MaxTokens,
		Temperature: o.Sampling.Temperature,
		TopP:        o.Sampling.TopP,
		TopK:        o.Sampling.TopK,
		StopIDs:     s.o.Renderer.StopIDs(),
		Seed:        o.Sampling.Seed,
		CacheKey:    string(o.Group),
	}
	if room := s.o.ContextLength - len(prompt.IDs); s.o.ContextLength > 0 {
		if room < 1 {
			return res, fulgur.E(fulgur.KindContextFull, op(o), fmt.Sprintf(
				"This model's maximum context length is %d tokens; the prompt is too long with %d. Shorten the conversation",
				s.o.ContextLength, len(prompt.IDs)), nil)
		}
		if req.MaxTokens == 0 || req.MaxTokens > room {
			req.MaxTokens = room
		}
	}
	res.Sampling.MaxTokens = req.MaxTokens
	gen, err := s.generator(o.Endpoint)
	if err != nil {
		return res, err
	}
	return s.generate(ctx, gen, o, req, res, emit)
}

func (s *Sampler) generator(ep fulgur.Endpoint) (engine.Generator, error) {
	scheme, _, _ := strings.Cut(ep.URL, "://")
	if name, _, ok := strings.Cut(scheme, "+"); ok {
		open := s.o.Protocols[name]
		if open == nil {
			return nil, fulgur.E(fulgur.KindUnavailable, "find engine", "The endpoint's protocol "+name+" is not offered here: "+
				"give its address with http:// or https:// if it speaks vLLM's completions", nil)
		}
		return open(ep)
	}
	if !strings.HasPrefix(ep.URL, "inproc:") {
		return NewRemote(s.client, ep, s.o.Retry), nil
	}
	if s.o.Local == nil {
		return nil, fulgur.E(fulgur.KindUnavailable, "find engine", "The model's engine is not in this process: register its address", nil)
	}
	return s.o.Local, nil
}

// generate runs the generation and reads the reply as it comes.
func (s *Sampler) generate(ctx context.Context, gen engine.Generator, o *call.Order, req engine.GenerateRequest, res *call.Result, emit func(call.Delta) error) (*call.Result, error) {
	w := newWriter(s.o.Renderer, o, res, emit)
	var out engine.Generation
	if o.Resume != nil {
		req, out.FinishReason = w.resume(o.Resume, req)
	}
	var each func(engine.Token) error
	if w.needed() {
		each = w.token
	}
	var err error
	if out.FinishReason == "" {
		out, err = gen.Generate(ctx, req, each)
	}
	if each == nil {
		n := len(out.Tokens)
		res.SampledIDs, res.LogProbs = slices.Grow(res.SampledIDs, n), slices.Grow(res.LogProbs, n)
		for _, t := range out.Tokens {
			if e := w.token(t); e != nil && err == nil {
				err = e
			}
		}
	}
	res.Retries = out.Retries
	if errors.Is(err, errStopped) {
		err, out.FinishReason = nil, "stop"
	}
	res.Usage = &fulgur.Usage{PromptTokens: len(res.PromptIDs), CompletionTokens: len(res.SampledIDs), CachedTokens: min(out.CachedTokens, len(res.PromptIDs))}
	if err == nil && out.FinishReason == "" {
		err = fulgur.E(fulgur.KindUpstream, op(o), "The model stopped in the middle of the answer: try again", nil)
	}
	if ferr := w.finish(out.FinishReason, err == nil); err == nil {
		err = ferr
	}
	if err != nil {
		res.Finish = ""
		res.Fault = err.Error()
		return res, wrap(ctx, o, err)
	}
	if o.Prompt != nil {
		return res, nil // no conversation goes on from it
	}
	if call.Outside(res.SampledIDs, s.o.Vocabulary) {
		return res, nil
	}
	s.known.add(o, Known{Messages: o.Messages, Tools: o.Tools, PromptIDs: res.PromptIDs, SampledIDs: res.SampledIDs, Reply: *res.Reply})
	return res, nil
}

func wrap(ctx context.Context, o *call.Order, err error) error {
	if cause := context.Cause(ctx); cause != nil {
		return fulgur.E(fulgur.KindCanceled, op(o), "The call was cancelled", cause)
	}
	var e *fulgur.Error
	if errors.As(err, &e) {
		return err
	}
	return fulgur.E(fulgur.KindInternal, op(o), "The model failed to answer", err)
}

// prompt renders an order's messages, on top of what is known of its attempt.
func (s *Sampler) prompt(ctx context.Context, o *call.Order) (Prompt, error) {
	if r := o.Resume; r != nil && len(r.SampledIDs) > 0 {
		return Prompt{IDs: r.PromptIDs, Broke: r.Broke}, nil
	}
	if o.Prompt != nil {
		return s.rawPrompt(o)
	}
	tools := o.Tools
	known, ok, err := s.known.find(ctx, o)
	if err != nil {
		return Prompt{}, err
	}
	if ok {
		p, err := s.o.Renderer.Extend(known, o.Messages, tools, s.o.History)
		return p, renderError(o, err)
	}
	ids, err := s.first.render(s.o.Renderer, o.Messages, tools)
	return Prompt{IDs: ids}, renderError(o, err)
}

func renderError(o *call.Order, err error) error {
	if err == nil {
		return nil
	}
	var e *fulgur.Error
	if errors.As(err, &e) {
		return err
	}
	return fulgur.E(fulgur.KindInvalid, op(o), "The model's chat template does not take these messages: "+err.Error(), err)
}

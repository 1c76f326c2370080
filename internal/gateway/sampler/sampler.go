// Package sampler is the contract of the places where calls go: an
// OpenAI-compatible chat server (chat), or whatever turns tokens into tokens
// (tokens). A sampler never sees a dialect.
//
// A new sampler is one package, one line of wiring, and testdata; it passes
// samplertest.
package sampler

import (
	"context"

	"github.com/fulgur-rl/fulgur/internal/gateway/call"
)

// Sampler answers calls. It is safe for concurrent use.
type Sampler interface {
	// Sample works on one order. With emit, it streams: emit gets each piece in
	// order from the calling goroutine, and an error from it ends the call.
	//
	// The result is never nil: after an error it holds what there was until
	// then. An answer of the upstream that tells of an error (a status of 400 or
	// more) is a result, not an error. When ctx ends, what runs upstream is
	// cancelled at once, and Sample returns with ctx's error.
	//
	// Errors are *fulgur.Error: KindInvalid and KindUnsupported for what can't be
	// asked, KindContextFull, KindUpstream, KindTimeout, KindCanceled.
	Sample(ctx context.Context, o *call.Order, emit func(call.Delta) error) (*call.Result, error)
}

// Counter is a sampler that knows how many tokens the prompt of an order has.
type Counter interface {
	// Count returns that number. Errors are Sample's.
	Count(ctx context.Context, o *call.Order) (int, error)
}

// Resumer is a sampler that can go on with an answer that was cut off.
type Resumer interface {
	// Resumes says that an order's Resume is honoured.
	Resumes() bool
}

// Resumes says whether a sampler can go on with an answer that was cut off.
func Resumes(s Sampler) bool {
	r, ok := s.(Resumer)
	return ok && r.Resumes()
}

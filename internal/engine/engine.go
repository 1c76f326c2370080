// Package engine is the contract between the trainer and what holds the policy:
// forward, forward-backward, optimizer step, publish, save and load, with the
// semantics of the Tinker API, and a Generator that turns tokens into tokens.
// Variants: embedded (in this binary, on the CPU), later tinker and verl.
package engine

import (
	"context"

	"github.com/fulgur-rl/fulgur"
)

// Engine holds one policy and its optimizer. The training loop calls it from
// one goroutine. An Engine that must be closed implements io.Closer.
type Engine interface {
	// Info says what the engine holds and can do.
	Info(ctx context.Context) (Info, error)

	// Forward returns the log prob of each target of each datum under the
	// current training weights at temperature 1; nothing changes. Output i has
	// the length of data[i].Targets. Mask, Advantages and OldLogProbs are not
	// looked at.
	Forward(ctx context.Context, data []Datum) ([][]float32, error)

	// ForwardBackward adds the gradient of the loss, a plain sum over all
	// masked positions of all data, to the engine's gradient. One call carries
	// all data of one optimizer step; the engine splits it as it likes. A
	// position with Mask 0 is never computed with: a NaN there changes nothing.
	// Bad data (lengths that differ, ids out of range, too long, not finite
	// under the mask) is KindInvalid and leaves the gradient as it was.
	ForwardBackward(ctx context.Context, data []Datum, loss Loss) (Result, error)

	// OptimStep applies one AdamW step with the gradient and clears it. A norm
	// that is not finite is KindInternal and changes no weight.
	OptimStep(ctx context.Context, p AdamW) (Step, error)

	// Publish makes the current training weights the ones that are sampled,
	// under the given version, and returns where: once it has returned, no
	// token is sampled from older weights by a call that starts later.
	Publish(ctx context.Context, version fulgur.PolicyVersion) ([]fulgur.Endpoint, error)

	// Save writes weights (a Hugging Face folder) and optimizer state to dir,
	// which must not exist: it is written beside and renamed, so it is whole or
	// absent. Load reads both back; a folder without optimizer state (a
	// pretrained model) starts a fresh optimizer.
	Save(ctx context.Context, dir string) error
	Load(ctx context.Context, dir string) error
}

// Freezer is an Engine that can keep a copy of its weights as the reference policy
// of a KL term.
type Freezer interface {
	Engine

	// Freeze keeps a copy of the current training weights, in place of an
	// earlier one.
	Freeze(ctx context.Context) error

	// ForwardFrozen is Forward under the copy; without one it is KindInvalid.
	ForwardFrozen(ctx context.Context, data []Datum) ([][]float32, error)
}

// Info describes an engine and its policy.
type Info struct {
	Name          string // "embedded"
	Model         string // the model's name or folder
	Parameters    int64
	VocabSize     int
	ContextLength int      // tokens, prompt and answer
	Kernels       string   // "avx512", "avx2", "portable"
	Slow          bool     // no vector kernels: expect about a twentieth of the speed
	Threads       int      // workers of forward-backward
	Losses        []string // names that ForwardBackward takes
	Temperature1  bool     // Forward's log probs are of temperature 1 only
	Replay        bool     // a mixture of experts that takes Datum.Experts
}

// Datum is one training sequence, shaped as Tinker's: position i holds
// Tokens[i] as input and predicts Targets[i]. All slices have one length n.
// Usually Tokens = sequence[:n], Targets = sequence[1:n+1].
type Datum struct {
	Tokens      []int32
	Targets     []int32
	Advantages  []float32 // per token, already times its weight
	OldLogProbs []float32 // what the ratio is against; not looked at by cross_entropy
	Mask        []float32 // 0 or 1
	// Experts are to be taken again by an engine that replays (Info.Replay): what the
	// pass with input Tokens[i] chose at sampling, layer by layer; nil: the engine
	// chooses. nil as a whole: none is replayed.
	Experts [][]uint16
}

// Loss names, as Tinker's. With q = exp(logp - old), A = advantage, summed over
// the masked positions:
const (
	CrossEntropy       = "cross_entropy"       // -A logp
	ImportanceSampling = "importance_sampling" // -q A
	PPO                = "ppo"                 // -min(q A, clip(q, 1-lo, 1+hi) A)
	CISPO              = "cispo"               // -stop(clip(q, 1-lo, 1+hi)) A logp
)

// Loss is a loss with its clip bounds, given as epsilons: the ratio is clipped
// to [1-ClipLow, 1+ClipHigh].
type Loss struct {
	Name     string
	ClipLow  float64
	ClipHigh float64
}

// Result is what ForwardBackward measured, before the update.
type Result struct {
	Loss     float64     // the plain sum
	LogProbs [][]float32 // of the targets, current weights; 0 where the mask is 0
	Tokens   int         // masked positions
	Clipped  int         // positions whose gradient the clip took away
	KL       float64     // sum over masked positions of old - current
	Entropy  float64     // sum over masked positions of the entropy, nats; 0 if not measured
}

// AdamW are the parameters of one step: decoupled decay on every tensor,
// denominators sqrt(v)/sqrt(1-beta2^t) + Eps (PyTorch's AdamW).
type AdamW struct {
	LearningRate float64
	Beta1        float64
	Beta2        float64
	Eps          float64
	WeightDecay  float64
	ClipNorm     float64 // gradient norm is clipped to this; 0: off
}

// Step is what OptimStep measured.
type Step struct {
	GradNorm float64 // before clipping
	Step     int64   // number of steps made, this one counted
}

// Generator turns tokens into tokens. It is safe for concurrent use: calls are
// batched together.
type Generator interface {
	// Generate samples after req.Prompt until a stop token, MaxTokens or the
	// context's end. emit, if not nil, gets each token as it comes, from one
	// goroutine, in order; an error from it ends the generation. Generate
	// returns within one decoding step of ctx's end, with what was sampled so
	// far and ctx's error.
	Generate(ctx context.Context, req GenerateRequest, emit func(Token) error) (Generation, error)
}

// GenerateRequest asks for one sampled continuation.
type GenerateRequest struct {
	Prompt      []int32
	MaxTokens   int     // 0: as many as the context has room for
	Temperature float64 // 0: greedy (ties: lowest id)
	TopP        float64 // 0 or 1: off
	TopK        int     // 0: off
	StopIDs     []int32 // a sampled one ends the generation and is part of the result
	// Seed fixes the random numbers of this call: the same request with the
	// same weights gives the same tokens, whatever else is in the batch.
	Seed uint64
	// CacheKey groups the calls that share prompts, such as the rollouts of one
	// dataset row; a hint for the prefix cache.
	CacheKey string
}

// Token is one sampled token.
type Token struct {
	ID      int32
	LogProb float32 // at the sampling temperature, before top-p and top-k; temperature 1 for greedy
	Version fulgur.PolicyVersion
}

// Generation is a finished generation.
type Generation struct {
	Tokens       []Token
	FinishReason string // "stop", "length"; "" if it was cut off
	CachedTokens int    // of the prompt, found in the prefix cache
	Retries      int    // tries after the first, where the model is behind a server
}

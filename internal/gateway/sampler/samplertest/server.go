package samplertest

import (
	"context"
	"net/http"

	"github.com/fulgur-rl/fulgur"
	"github.com/fulgur-rl/fulgur/internal/engine"
	"github.com/fulgur-rl/fulgur/internal/engine/serve"
	"github.com/fulgur-rl/fulgur/internal/gateway"
	"github.com/fulgur-rl/fulgur/internal/gateway/dialect"
	"github.com/fulgur-rl/fulgur/internal/gateway/dialect/openaichat"
	"github.com/fulgur-rl/fulgur/internal/gateway/dialect/openaicompletions"
	"github.com/fulgur-rl/fulgur/internal/gateway/sampler"
	"github.com/fulgur-rl/fulgur/internal/gateway/sampler/tokens"
)

// TokenServer serves a generator as the model "policy", over token ids.
func TokenServer(gen engine.Generator) http.Handler {
	return serve.New(gen, serve.Options{Model: "policy", Key: "up", ContextLength: ContextLen, VocabSize: VocabSize})
}

// ChatServer serves a generator as the chat model "policy": a gateway that
// stands behind another one.
func ChatServer(gen engine.Generator) http.Handler {
	tok := tokens.New(tokens.Options{Renderer: Bytes{}, Local: gen, ContextLength: ContextLen})
	return gateway.New(gateway.Options{Directory: nobody{}, Models: nobody{}, Dialects: []dialect.Dialect{openaichat.Dialect{}, openaicompletions.Dialect{}},
		Samplers: map[fulgur.EndpointKind]sampler.Sampler{fulgur.EndpointTokens: tok}, Model: "policy", Plain: true})
}

// nobody is a directory without rollouts, and with one model.
type nobody struct{}

func (nobody) Identify(context.Context, string) (fulgur.Identity, error) {
	return fulgur.Identity{}, fulgur.E(fulgur.KindDenied, "identify", "unknown credential", nil)
}

func (nobody) Rollout(context.Context, fulgur.RolloutID) (fulgur.Rollout, error) {
	return fulgur.Rollout{}, fulgur.E(fulgur.KindNotFound, "find rollout", "there are none", nil)
}

func (nobody) Run(context.Context, fulgur.RunID) (fulgur.Run, error) {
	return fulgur.Run{Model: "policy"}, nil
}

func (nobody) Endpoints(context.Context, fulgur.RunID, string) ([]fulgur.Endpoint, error) {
	return []fulgur.Endpoint{{Model: "policy", Kind: fulgur.EndpointTokens, URL: "inproc:"}}, nil
}

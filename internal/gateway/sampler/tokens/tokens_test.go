package tokens_test

import (
	"net/http/httptest"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/fulgur-rl/fulgur"
	"github.com/fulgur-rl/fulgur/internal/gateway/sampler"
	"github.com/fulgur-rl/fulgur/internal/gateway/sampler/samplertest"
	"github.com/fulgur-rl/fulgur/internal/gateway/sampler/tokens"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestInProcess(t *testing.T) {
	samplertest.Run(t, func(t *testing.T, gen *samplertest.Script) (sampler.Sampler, fulgur.Endpoint) {
		s := tokens.New(tokens.Options{Renderer: samplertest.Bytes{}, Local: gen, ContextLength: samplertest.ContextLen})
		return s, fulgur.Endpoint{Model: "policy", Kind: fulgur.EndpointTokens, URL: "inproc:"}
	})
}

// The same suite over HTTP, to engine/serve: the same records.
func TestRemote(t *testing.T) {
	samplertest.Run(t, func(t *testing.T, gen *samplertest.Script) (sampler.Sampler, fulgur.Endpoint) {
		srv := httptest.NewServer(samplertest.TokenServer(gen))
		s := tokens.New(tokens.Options{Renderer: samplertest.Bytes{}, ContextLength: samplertest.ContextLen,
			Retry: sampler.Retry{Backoff: time.Millisecond, Try: 5 * time.Second}})
		t.Cleanup(func() {
			_ = s.Close()
			srv.Close()
		})
		return s, fulgur.Endpoint{Model: "policy", Kind: fulgur.EndpointTokens, URL: srv.URL + "/v1", Key: "up"}
	})
}

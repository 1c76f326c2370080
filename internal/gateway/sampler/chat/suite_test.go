package chat_test

import (
	"net/http/httptest"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/fulgur-rl/fulgur"
	"github.com/fulgur-rl/fulgur/internal/gateway/sampler"
	"github.com/fulgur-rl/fulgur/internal/gateway/sampler/chat"
	"github.com/fulgur-rl/fulgur/internal/gateway/sampler/samplertest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestSuite(t *testing.T) {
	samplertest.Run(t, func(t *testing.T, gen *samplertest.Script) (sampler.Sampler, fulgur.Endpoint) {
		srv := httptest.NewServer(samplertest.ChatServer(gen))
		s := chat.New(chat.Options{Retry: sampler.Retry{Backoff: time.Millisecond, Try: 5 * time.Second}})
		t.Cleanup(func() {
			_ = s.Close()
			srv.Close()
		})
		return s, fulgur.Endpoint{Model: "policy", Kind: fulgur.EndpointChat, URL: srv.URL + "/v1/"}
	})
}

package cluster

import (
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/fulgur-rl/fulgur"
	"github.com/fulgur-rl/fulgur/internal/controller/plan"
)

// The relay beside an agent adds a key that the agent's container does not hold,
// and its running on does not hold up the attempt's end.
func TestRelayAddsTheKey(t *testing.T) {
	h := build(t)
	bin := program(t)
	var mu sync.Mutex
	var keys []string
	gateway := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		keys = append(keys, r.Header.Get("Authorization"))
	}))
	t.Cleanup(gateway.Close)
	h.model.url = gateway.URL // what agents are given
	o := h.options(shell)
	o.RelayImage, o.RelayCommand, o.Gateway = hostImage, []string{bin}, gateway.URL
	h.control(o, plan.Limits{})
	env := filepath.Join(h.share, "env")
	h.rollouts(map[fulgur.RolloutID]map[string]string{"a": in("env >" + env + "; ls -d /fulgur-relay >>" + env +
		"; curl -fsS --retry 20 --retry-delay 1 --retry-connrefused -H \"Authorization: Bearer $OPENAI_API_KEY\" $OPENAI_BASE_URL/models; curl -s -o /dev/null -w %{http_code} http://127.0.0.1:41457/api/elsewhere >" + h.share + "/code")})
	if r := h.ended("a"); r.State != fulgur.Succeeded {
		t.Errorf("outcome %+v", *r.Outcome)
	}
	h.empty()
	text, err := os.ReadFile(env)
	if err != nil {
		t.Fatal(err)
	}
	mu.Lock()
	defer mu.Unlock()
	if len(keys) != 1 || !strings.HasPrefix(keys[0], "Bearer ") || len(keys[0]) < 20 {
		t.Fatalf("the gateway was asked with %q", keys)
	}
	key := strings.TrimPrefix(keys[0], "Bearer ")
	if strings.Contains(string(text), key) || !strings.Contains(string(text), "OPENAI_API_KEY=the-relay-adds-the-key\n") || strings.Contains(string(text), "\n/fulgur-relay\n") {
		t.Errorf("the agent has:\n%s", text)
	}
	if code, err := os.ReadFile(filepath.Join(h.share, "code")); err != nil || string(code) != "403" {
		t.Errorf("another path is answered with %q, %v", code, err)
	}
}

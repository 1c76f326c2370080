package gateway_test

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/goleak"

	"github.com/fulgur-rl/fulgur"
	"github.com/fulgur-rl/fulgur/internal/gateway"
	"github.com/fulgur-rl/fulgur/internal/gateway/dialect"
	"github.com/fulgur-rl/fulgur/internal/gateway/dialect/openaichat"
	"github.com/fulgur-rl/fulgur/internal/gateway/sampler"
	"github.com/fulgur-rl/fulgur/internal/gateway/sampler/chat"
	"github.com/fulgur-rl/fulgur/internal/gateway/sampler/samplertest"
	"github.com/fulgur-rl/fulgur/internal/gateway/sampler/tokens"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// book is what the gateway needs of a store, in memory.
type book struct {
	mu        sync.Mutex
	creds     map[string]fulgur.Identity
	rollouts  map[fulgur.RolloutID]fulgur.Rollout
	endpoints []fulgur.Endpoint            // of the policy
	models    map[string][]fulgur.Endpoint // of others
	config    json.RawMessage              // of the run
	calls     []fulgur.Call
	fail      error // of AppendCall
}

func (b *book) Identify(_ context.Context, secret string) (fulgur.Identity, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	id, ok := b.creds[secret]
	if !ok {
		return id, fulgur.E(fulgur.KindDenied, "identify", "unknown credential", nil)
	}
	return id, nil
}

func (b *book) Rollout(_ context.Context, id fulgur.RolloutID) (fulgur.Rollout, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	r, ok := b.rollouts[id]
	if !ok {
		return r, fulgur.E(fulgur.KindNotFound, "rollout", "no such rollout", nil)
	}
	return r, nil
}

func (b *book) Run(_ context.Context, id fulgur.RunID) (fulgur.Run, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return fulgur.Run{ID: id, Model: "policy", Config: b.config}, nil
}

func (b *book) Endpoints(_ context.Context, run fulgur.RunID, model string) ([]fulgur.Endpoint, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if model != "policy" && b.models != nil {
		return slices.Concat(b.models[model], b.models[string(run)+"/"+model]), nil
	}
	return append([]fulgur.Endpoint(nil), b.endpoints...), nil
}

func (b *book) AppendCall(_ context.Context, c *fulgur.Call) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.fail != nil {
		return b.fail
	}
	if _, err := json.Marshal(c); err != nil {
		return err // what is on record can be read
	}
	b.calls = append(b.calls, *c)
	c.Seq = fulgur.Seq(len(b.calls))
	return nil
}

func (b *book) Calls(_ context.Context, id fulgur.RolloutID, at fulgur.AttemptID) ([]fulgur.Call, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	var out []fulgur.Call
	for _, c := range b.calls {
		if c.Rollout == id && c.Attempt == at {
			out = append(out, c)
		}
	}
	return out, nil
}

func (b *book) all() []fulgur.Call {
	b.mu.Lock()
	defer b.mu.Unlock()
	return append([]fulgur.Call(nil), b.calls...)
}

func (b *book) last(t *testing.T) fulgur.Call {
	t.Helper()
	all := b.all()
	if len(all) == 0 {
		t.Fatal("no call is on record")
	}
	return all[len(all)-1]
}

const (
	serverKey = "server-key"
	agentKey  = "agent-key"
)

func newBook(ep ...fulgur.Endpoint) *book {
	if len(ep) == 0 {
		ep = []fulgur.Endpoint{{Model: "policy", Kind: fulgur.EndpointTokens, URL: "inproc:"}}
	}
	b := &book{creds: map[string]fulgur.Identity{}, rollouts: map[fulgur.RolloutID]fulgur.Rollout{}, endpoints: ep}
	b.rollout("r1", true, agentKey)
	return b
}

// rollout adds one with a running attempt "0" and its credential.
func (b *book) rollout(id fulgur.RolloutID, train bool, key string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.rollouts[id] = fulgur.Rollout{RolloutSpec: fulgur.RolloutSpec{ID: id, Run: "run", IsTrain: train, Group: "g",
		Sampling: &fulgur.Sampling{Temperature: 1, MaxTokens: 64}}}
	b.creds[key] = fulgur.Identity{Scope: fulgur.ScopeAttempt, Run: "run", Rollout: id, Attempt: "0"}
}

func (b *book) end(key string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	id := b.creds[key]
	id.Ended = true
	b.creds[key] = id
}

// house is a gateway on a real listener.
type house struct {
	*book
	g   *gateway.Gateway
	gen *samplertest.Script
	url string
}

func newHouse(t *testing.T, change ...func(*gateway.Options, *book)) *house {
	t.Helper()
	h := &house{book: newBook(), gen: &samplertest.Script{Reply: samplertest.Say(fulgur.Message{Content: "hello 北"})}}
	tok := tokens.New(tokens.Options{Renderer: samplertest.Bytes{}, Local: h.gen, ContextLength: samplertest.ContextLen, Records: h.book,
		Retry: sampler.Retry{Backoff: time.Millisecond}})
	ch := chat.New(chat.Options{Retry: sampler.Retry{Backoff: time.Millisecond, Try: 5 * time.Second}})
	o := gateway.Options{Directory: h.book, Models: h.book, Records: h.book, Dialects: []dialect.Dialect{openaichat.Dialect{}},
		Samplers:  map[fulgur.EndpointKind]sampler.Sampler{fulgur.EndpointTokens: tok, fulgur.EndpointChat: ch},
		ServerKey: serverKey, Plain: true}
	for _, c := range change {
		c(&o, h.book)
	}
	h.g = gateway.New(o)
	srv := httptest.NewServer(h.g)
	h.url = srv.URL
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		if err := h.g.Close(ctx); err != nil {
			t.Error(err)
		}
		srv.Close()
		_ = tok.Close()
		_ = ch.Close()
		http.DefaultClient.CloseIdleConnections()
	})
	return h
}

type reply struct {
	status int
	header http.Header
	body   string
	err    error // of reading the body
}

func (r reply) code() string {
	var e struct {
		Error struct {
			Code string `json:"code"`
		} `json:"error"`
	}
	_ = json.Unmarshal([]byte(r.body), &e)
	return e.Error.Code
}

func post(t *testing.T, ctx context.Context, url, key, body string) reply {
	t.Helper()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	if key != "" {
		req.Header.Set("Authorization", "Bearer "+key)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return reply{err: err}
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	return reply{resp.StatusCode, resp.Header, string(b), err}
}

func (h *house) chat(t *testing.T, key, body string) reply {
	t.Helper()
	return post(t, t.Context(), h.url+"/openai/v1/chat/completions", key, body)
}

// counters are what a gateway has counted, by name and label values.
func counters(t *testing.T, reg *prometheus.Registry) map[string]float64 {
	t.Helper()
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]float64{}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			key := strings.TrimPrefix(f.GetName(), "fulgur_gateway_")
			for _, l := range m.GetLabel() {
				key += " " + l.GetValue()
			}
			got[key] = m.GetCounter().GetValue()
		}
	}
	return got
}

const hi = `{"model":"policy","messages":[{"role":"user","content":"hi"}]}`
const hiStream = `{"model":"policy","stream":true,"messages":[{"role":"user","content":"hi"}]}`

// eventually waits for a condition that another goroutine brings about.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	deadline := time.Now().Add(5 * time.Second)
	for !ok() {
		if time.Now().After(deadline) {
			t.Fatalf("not after 5 s: %s", what)
		}
		time.Sleep(2 * time.Millisecond)
	}
}

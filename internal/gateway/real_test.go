package gateway_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/openai/openai-go/v3"
	"github.com/openai/openai-go/v3/option"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/fulgur-rl/fulgur"
	"github.com/fulgur-rl/fulgur/internal/engine/embedded"
	"github.com/fulgur-rl/fulgur/internal/engine/serve"
	"github.com/fulgur-rl/fulgur/internal/gateway"
	"github.com/fulgur-rl/fulgur/internal/gateway/call"
	"github.com/fulgur-rl/fulgur/internal/gateway/dialect"
	"github.com/fulgur-rl/fulgur/internal/gateway/dialect/openaichat"
	"github.com/fulgur-rl/fulgur/internal/gateway/render"
	"github.com/fulgur-rl/fulgur/internal/gateway/sampler"
	"github.com/fulgur-rl/fulgur/internal/gateway/sampler/tokens"
	"github.com/fulgur-rl/fulgur/internal/store"
	"github.com/fulgur-rl/fulgur/internal/store/sqlite"
)

const calcModel = "../../examples/calc/model"

// realHouse is a gateway on the embedded engine with the demo's model, the real
// renderer and a SQLite store.
type realHouse struct {
	store  *store.Store
	tokens *tokens.Sampler
	url    string
	ep     fulgur.Endpoint
}

func newRealHouse(t testing.TB, remote bool) *realHouse {
	t.Helper()
	ctx := t.Context()
	fsys := os.DirFS(calcModel)
	eng, err := embedded.Open(fsys, embedded.Options{Model: "calc", Threads: 1})
	if err != nil {
		t.Fatal(err)
	}
	info, err := eng.Info(ctx)
	if err != nil {
		t.Fatal(err)
	}
	ren, err := render.Load(fsys, render.Options{})
	if err != nil {
		t.Fatal(err)
	}
	st, err := store.Open(ctx, sqlite.New(filepath.Join(t.TempDir(), "store.db"), sqlite.Options{}), store.Options{})
	if err != nil {
		t.Fatal(err)
	}
	h := &realHouse{store: st, ep: fulgur.Endpoint{Model: "calc", Kind: fulgur.EndpointTokens, URL: "inproc:", Version: 4}}
	opt := tokens.Options{Renderer: tokens.FromRender(ren), Local: eng, ContextLength: info.ContextLength, Records: st}
	var es *httptest.Server
	if remote {
		es = httptest.NewServer(serve.New(eng, serve.Options{Model: "calc", Key: "up", ContextLength: info.ContextLength, VocabSize: info.VocabSize}))
		h.ep.URL, h.ep.Key, opt.Local = es.URL+"/v1", "up", nil
	}
	if _, err := eng.Publish(ctx, 4); err != nil {
		t.Fatal(err)
	}
	if err := st.PutRun(ctx, fulgur.Run{ID: "run", Model: "calc"}); err != nil {
		t.Fatal(err)
	}
	if err := st.PutEndpoints(ctx, "run", "calc", []fulgur.Endpoint{h.ep}); err != nil {
		t.Fatal(err)
	}
	tok := tokens.New(opt)
	h.tokens = tok
	g := gateway.New(gateway.Options{Directory: st, Models: st, Records: st, Dialects: []dialect.Dialect{openaichat.Dialect{}},
		Samplers: map[fulgur.EndpointKind]sampler.Sampler{fulgur.EndpointTokens: tok}, ServerKey: serverKey, Metrics: prometheus.NewRegistry()})
	srv := httptest.NewServer(g)
	h.url = srv.URL
	t.Cleanup(func() {
		srv.Close()
		_ = tok.Close()
		if es != nil {
			es.Close()
		}
		if err := st.Close(); err != nil {
			t.Error(err)
		}
		if err := eng.Close(); err != nil {
			t.Error(err)
		}
		http.DefaultClient.CloseIdleConnections()
	})
	return h
}

// open makes a rollout with a running attempt, and returns its credential.
func (h *realHouse) open(t testing.TB, id fulgur.RolloutID) string {
	t.Helper()
	spec := fulgur.RolloutSpec{ID: id, Run: "run", IsTrain: true, Seed: 11, Input: []byte(`{}`), Sampling: &fulgur.Sampling{Temperature: 1, MaxTokens: 48}}
	if _, err := h.store.CreateRollouts(t.Context(), []fulgur.RolloutSpec{spec}); err != nil {
		t.Fatal(err)
	}
	at, err := h.store.OpenAttempt(t.Context(), id)
	if err != nil {
		t.Fatal(err)
	}
	return at.Credential
}

// converse plays three turns as a harness does: whatever the model says goes
// back in, and each tool call gets a result.
func converse(t testing.TB, client openai.Client, stream bool) {
	t.Helper()
	p := params(openai.UserMessage("Ann has 19 jars. Ann gets 5 more. How many jars?"))
	for range 3 {
		var msg openai.ChatCompletionMessage
		if stream {
			s := client.Chat.Completions.NewStreaming(t.Context(), p)
			acc := openai.ChatCompletionAccumulator{}
			for s.Next() {
				if !acc.AddChunk(s.Current()) {
					t.Fatalf("chunk refused: %s", s.Current().RawJSON())
				}
			}
			if s.Err() != nil {
				t.Fatal(s.Err())
			}
			msg = acc.Choices[0].Message
		} else {
			c, err := client.Chat.Completions.New(t.Context(), p)
			if err != nil {
				t.Fatal(err)
			}
			msg = c.Choices[0].Message
		}
		p.Messages = append(p.Messages, msg.ToParam())
		for _, c := range msg.ToolCalls {
			p.Messages = append(p.Messages, openai.ToolMessage("24", c.ID))
		}
		if len(msg.ToolCalls) == 0 {
			p.Messages = append(p.Messages, openai.UserMessage("go on"))
		}
	}
}

// The whole house: the same conversation in process and over HTTP, streamed and
// not, gives the same records, each turn on the exact tokens of the one before.
func TestRealModel(t *testing.T) {
	var records [][]fulgur.Call
	for _, remote := range []bool{false, true} {
		h := newRealHouse(t, remote)
		for _, stream := range []bool{false, true} {
			id := fulgur.RolloutID(fmt.Sprintf("r-%t", stream))
			key := h.open(t, id)
			converse(t, openai.NewClient(option.WithBaseURL(h.url+"/openai/v1/"), option.WithAPIKey(key)), stream)
			calls, err := h.store.Calls(t.Context(), id, "0")
			if err != nil {
				t.Fatal(err)
			}
			records = append(records, calls)
		}
	}
	for i, calls := range records {
		if len(calls) != 3 {
			t.Fatalf("%d calls on record", len(calls))
		}
		for j, c := range calls {
			first := records[0][j]
			if !c.Trainable || c.Version() != 4 || c.Endpoint.Key != "" {
				t.Errorf("variant %d, call %d: version %d, untrainable %v, key %q", i, j, c.Version(), c.Untrainable, c.Endpoint.Key)
			}
			if diff := cmp.Diff(first.SampledIDs, c.SampledIDs); diff != "" {
				t.Errorf("variant %d, call %d samples other tokens:\n%s", i, j, diff)
			}
			if diff := cmp.Diff(first.PromptIDs, c.PromptIDs); diff != "" {
				t.Errorf("variant %d, call %d has another prompt:\n%s", i, j, diff)
			}
			if diff := cmp.Diff(first.LogProbs, c.LogProbs); diff != "" {
				t.Errorf("variant %d, call %d has other log probs:\n%s", i, j, diff)
			}
			if j == 0 || calls[j-1].Reply.Content == "" && len(calls[j-1].Reply.ToolCalls) == 0 {
				continue
			}
			before := append(append([]int32(nil), calls[j-1].PromptIDs...), calls[j-1].SampledIDs...)
			if len(c.PromptIDs) < len(before) || !cmp.Equal(before, c.PromptIDs[:len(before)]) {
				t.Errorf("variant %d, call %d does not go on from the tokens before", i, j)
			}
		}
	}
}

// A call of the real model that is cut off at any of its tokens goes on to the
// answer that an uncut one gives: greedy, in process and over HTTP.
func TestRealModelGoesOn(t *testing.T) {
	for _, remote := range []bool{false, true} {
		h := newRealHouse(t, remote)
		o := call.Order{Request: &call.Request{N: 1, Messages: []fulgur.Message{{Role: "user", Content: "Ann has 19 jars. Ann gets 5 more. How many jars?"}}},
			Call: "c", Endpoint: h.ep, Sampling: fulgur.Sampling{MaxTokens: 48}}
		want, err := h.tokens.Sample(t.Context(), &o, nil)
		if err != nil || len(want.SampledIDs) < 2 {
			t.Fatalf("%+v %v", want, err)
		}
		for cut := range len(want.SampledIDs) {
			ctx, cancel := context.WithCancel(t.Context())
			errCut := errors.New("cut")
			n := 0
			before, err := h.tokens.Sample(ctx, &o, func(d call.Delta) error {
				if n += len(d.Tokens); n > cut {
					return errCut
				}
				return nil
			})
			cancel()
			if !errors.Is(err, errCut) {
				t.Fatal(err)
			}
			rest := o
			rest.Resume = before
			got, err := h.tokens.Sample(t.Context(), &rest, nil)
			if err != nil {
				t.Fatal(err)
			}
			near := cmp.Comparer(func(a, b float32) bool { return math.Abs(float64(a-b)) < 1e-4 })
			if d := cmp.Diff(want.SampledIDs, got.SampledIDs); d != "" || !cmp.Equal(want.LogProbs, got.LogProbs, near) || got.Finish != want.Finish || !got.Reply.Same(*want.Reply) {
				t.Errorf("remote %t, cut after %d: %q %q\n%s", remote, len(before.SampledIDs), want.Reply, got.Reply, d)
			}
		}
	}
}

// BenchmarkCall is a small call all the way: HTTP, credential, render, sample,
// parse, record. ns/op is wall time of one caller; see cpu-µs/call.
func BenchmarkCall(b *testing.B) {
	h := newRealHouse(b, false)
	key := h.open(b, "bench")
	body := `{"model":"calc","max_tokens":1,"messages":[{"role":"system","content":"You are a helpful assistant with a calculator."},{"role":"user","content":"Ann has 19 jars. Ann gets 5 more. How many jars?"}],` +
		`"tools":[{"type":"function","function":{"name":"calc","description":"integer arithmetic","parameters":{"type":"object","properties":{"a":{"type":"integer"},"op":{"type":"string"},"b":{"type":"integer"}},"required":["a","op","b"]}}}]}`
	client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 16}}
	defer client.CloseIdleConnections()
	before := cpuTime(b)
	b.ResetTimer()
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range b.N/8 + 1 {
				req, err := http.NewRequest(http.MethodPost, h.url+"/openai/v1/chat/completions", strings.NewReader(body))
				if err != nil {
					b.Error(err)
					return
				}
				req.Header.Set("Authorization", "Bearer "+key)
				resp, err := client.Do(req)
				if err != nil {
					b.Error(err)
					return
				}
				var buf [4096]byte
				n, _ := resp.Body.Read(buf[:])
				resp.Body.Close()
				if resp.StatusCode != 200 {
					b.Errorf("%d %s", resp.StatusCode, buf[:n])
					return
				}
			}
		})
	}
	wg.Wait()
	b.StopTimer()
	b.ReportMetric(float64((cpuTime(b)-before).Microseconds())/float64((b.N/8+1)*8), "cpu-µs/call")
}

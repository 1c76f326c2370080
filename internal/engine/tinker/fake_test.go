package tinker_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/fulgur-rl/fulgur"
	"github.com/fulgur-rl/fulgur/internal/engine"
	"github.com/fulgur-rl/fulgur/internal/engine/tinker"
	"github.com/fulgur-rl/fulgur/internal/engine/wire"
)

// fake is a Tinker server in front of a generator. Routes, bodies and statuses
// are those of the recordings in testdata.
type fake struct {
	gen     engine.Generator
	json    bool          // the old wire: results as JSON
	cancels bool          // offers cancel_future
	once    bool          // VeRL: a result is handed out once
	wait    time.Duration // of retrieve_future before it says try_again
	// before, if not nil, may answer a request in the server's place.
	before func(w http.ResponseWriter, verb string, body []byte) bool

	mu      sync.Mutex
	n       int
	session map[string]bool
	sampler map[string]bool
	futures map[string]*future
	seen    []request
}

type request struct {
	Verb string
	Body []byte
	Key  string
}

type future struct {
	cancel context.CancelFunc
	done   chan struct{}
	out    engine.Generation
	err    error
}

func newFake(gen engine.Generator) *fake {
	return &fake{gen: gen, wait: 100 * time.Millisecond, session: map[string]bool{}, sampler: map[string]bool{}, futures: map[string]*future{}}
}

// verbs lists the requests so far, retrieve_future only once in a row.
func (f *fake) verbs() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	var out []string
	for _, r := range f.seen {
		out = append(out, r.Verb)
	}
	return slices.Compact(out)
}

// samples lists the requests to sample so far.
func (f *fake) samples(t *testing.T) []wire.SampleRequest {
	t.Helper()
	f.mu.Lock()
	defer f.mu.Unlock()
	var out []wire.SampleRequest
	for _, r := range f.seen {
		if r.Verb != "asample" {
			continue
		}
		var q wire.SampleRequest
		if err := json.Unmarshal(r.Body, &q); err != nil {
			t.Fatal(err)
		}
		out = append(out, q)
	}
	return out
}

// restart forgets all that the server had given an id.
func (f *fake) restart() {
	f.mu.Lock()
	defer f.mu.Unlock()
	clear(f.session)
	clear(f.sampler)
	clear(f.futures)
}

// start serves the fake; the client of it ends with the test.
func (f *fake) start(t *testing.T, o tinker.Options) (*tinker.Client, string) {
	t.Helper()
	srv := httptest.NewServer(f)
	if o.Backoff == 0 {
		o.Backoff = time.Millisecond
	}
	c := tinker.New(o)
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
		srv.Close()
		f.mu.Lock()
		defer f.mu.Unlock()
		for _, p := range f.futures {
			p.cancel()
			<-p.done
		}
	})
	return c, "tinker+" + srv.URL
}

func (f *fake) id(kind string) string {
	f.n++
	return fmt.Sprintf("%s_%04x", kind, f.n)
}

func fail(w http.ResponseWriter, status int, detail string) {
	w.Header().Set("Content-Type", wire.JSON)
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(map[string]string{"detail": detail})
}

func (f *fake) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	verb, ok := strings.CutPrefix(r.URL.Path, "/api/v1/")
	body, err := io.ReadAll(r.Body)
	if !ok || err != nil {
		fail(w, 404, "Not Found")
		return
	}
	f.mu.Lock()
	f.seen = append(f.seen, request{verb, body, r.Header.Get("X-API-Key")})
	f.mu.Unlock()
	if f.before != nil && f.before(w, verb, body) {
		return
	}
	var q struct {
		SessionID string `json:"session_id"`
		BaseModel string `json:"base_model"`
		ModelPath string `json:"model_path"`
		RequestID string `json:"request_id"`
	}
	if r.Method == http.MethodPost {
		if err := json.Unmarshal(body, &q); err != nil {
			fail(w, 422, err.Error())
			return
		}
	}
	if verb == "retrieve_future" {
		f.retrieve(w, r, q.RequestID)
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	w.Header().Set("Content-Type", wire.JSON)
	switch {
	case verb == "client/config":
		_, _ = io.WriteString(w, `{"pjwt_auth_enabled":false}`)
	case verb == "client/dynamic_config" && f.cancels:
		_, _ = io.WriteString(w, `{"refresh_interval_sec":300,"sample_cancel_enabled":true}`)
	case verb == "create_session":
		id := f.id("session")
		f.session[id] = true
		fmt.Fprintf(w, `{"type":"create_session","info_message":null,"warning_message":null,"error_message":null,"session_id":%q}`, id)
	case verb == "session_heartbeat" && f.session[q.SessionID]:
		_, _ = io.WriteString(w, `{"type":"session_heartbeat"}`)
	case verb == "create_sampling_session" && f.session[q.SessionID]:
		if (q.BaseModel == "") == (q.ModelPath == "") {
			fail(w, 400, "Exactly one of base_model or model_path must be provided")
			return
		}
		id := f.id("sampling")
		f.sampler[id] = true
		fmt.Fprintf(w, `{"type":"create_sampling_session","sampling_session_id":%q}`, id)
	case verb == "session_heartbeat", verb == "create_sampling_session":
		fail(w, 404, "Session not found")
	case verb == "get_server_capabilities":
		_, _ = io.WriteString(w, `{"supported_models":[{"model_name":"tiny","max_context_length":80}]}`)
	case verb == "asample":
		f.sample(w, body)
	case verb == "cancel_future" && f.cancels && f.futures[q.RequestID] != nil:
		f.futures[q.RequestID].cancel()
		_, _ = io.WriteString(w, `{}`)
	default:
		fail(w, 404, "Not Found")
	}
}

func (f *fake) sample(w http.ResponseWriter, body []byte) {
	var q wire.SampleRequest
	switch err := json.Unmarshal(body, &q); {
	case err != nil:
		fail(w, 422, err.Error())
		return
	case !f.sampler[q.SamplingSessionID]:
		fail(w, 404, "Sampling session not found")
		return
	case q.Params.MaxTokens <= 0:
		fail(w, 400, "max_tokens is currently required")
		return
	}
	req := engine.GenerateRequest{MaxTokens: q.Params.MaxTokens, Temperature: q.Params.Temperature, StopIDs: q.Params.Stop, Seed: uint64(q.Params.Seed)}
	for _, c := range q.Prompt.Chunks {
		req.Prompt = append(req.Prompt, c.Tokens...)
	}
	ctx, cancel := context.WithCancel(context.Background())
	p := &future{cancel: cancel, done: make(chan struct{})}
	f.n++
	id := fmt.Sprint(f.n)
	f.futures[id] = p
	go func() {
		defer close(p.done)
		p.out, p.err = f.gen.Generate(ctx, req, nil)
	}()
	fmt.Fprintf(w, `{"future_id":%q,"status":"pending","request_id":%q}`, id, id)
}

func (f *fake) retrieve(w http.ResponseWriter, r *http.Request, id string) {
	f.mu.Lock()
	p := f.futures[id]
	f.mu.Unlock()
	if p == nil {
		fail(w, 404, "Future not found")
		return
	}
	select {
	case <-p.done:
	case <-r.Context().Done():
		return
	case <-time.After(f.wait):
		w.Header().Set("Content-Type", wire.JSON)
		fmt.Fprintf(w, `{"type":"try_again","request_id":%q,"queue_state":"active"}`, id)
		return
	}
	if f.once {
		f.mu.Lock()
		delete(f.futures, id)
		f.mu.Unlock()
	}
	if p.err != nil {
		fail(w, 400, p.err.Error())
		return
	}
	if f.json {
		w.Header().Set("Content-Type", wire.JSON)
		_, _ = w.Write(sampleJSON(p.out))
		return
	}
	w.Header().Set("Content-Type", wire.Protobuf)
	_, _ = w.Write(sampleProto(p.out))
}

func sampleJSON(g engine.Generation) []byte {
	ids, lps := []int32{}, []float32{}
	for _, t := range g.Tokens {
		ids, lps = append(ids, t.ID), append(lps, t.LogProb)
	}
	b, err := json.Marshal(map[string]any{"prompt_logprobs": nil, "sequences": []map[string]any{{"stop_reason": g.FinishReason, "tokens": ids, "logprobs": lps}}})
	if err != nil {
		panic(err)
	}
	return b
}

func sampleProto(g engine.Generation) []byte {
	var q, ids, lps []byte
	for _, t := range g.Tokens {
		ids = protowire.AppendFixed32(ids, uint32(t.ID))
		lps = protowire.AppendFixed32(lps, math.Float32bits(t.LogProb))
	}
	if g.FinishReason == wire.StopReasonLength {
		q = protowire.AppendVarint(protowire.AppendTag(q, 1, protowire.VarintType), 1)
	}
	q = protowire.AppendBytes(protowire.AppendTag(q, 2, protowire.BytesType), ids)
	q = protowire.AppendBytes(protowire.AppendTag(q, 3, protowire.BytesType), lps)
	return protowire.AppendBytes(protowire.AppendTag(nil, 1, protowire.BytesType), q)
}

// dice samples ids below vocab from its seed alone.
type dice struct{ vocab int }

func (d dice) Generate(ctx context.Context, req engine.GenerateRequest, _ func(engine.Token) error) (engine.Generation, error) {
	r := rand.New(rand.NewPCG(req.Seed, 1))
	var out engine.Generation
	for range req.MaxTokens {
		if ctx.Err() != nil {
			return out, ctx.Err()
		}
		id := int32(r.IntN(d.vocab))
		out.Tokens = append(out.Tokens, engine.Token{ID: id, LogProb: float32(-math.Log(float64(d.vocab)))})
		if slices.Contains(req.StopIDs, id) {
			out.FinishReason = wire.StopReasonStop
			return out, nil
		}
	}
	out.FinishReason = wire.StopReasonLength
	return out, nil
}

func open(t *testing.T, c *tinker.Client, url string) engine.Generator {
	t.Helper()
	g, err := c.Generator(fulgur.Endpoint{Model: "tiny", Kind: fulgur.EndpointTokens, URL: url, Key: "tml-key", Version: 5})
	if err != nil {
		t.Fatal(err)
	}
	return g
}

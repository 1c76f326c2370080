package gateway_test

import (
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/fulgur-rl/fulgur"
	"github.com/fulgur-rl/fulgur/internal/engine"
	"github.com/fulgur-rl/fulgur/internal/gateway"
	"github.com/fulgur-rl/fulgur/internal/gateway/sampler"
	"github.com/fulgur-rl/fulgur/internal/gateway/sampler/chat"
	"github.com/fulgur-rl/fulgur/internal/gateway/sampler/samplertest"
)

// GW-12, GW-13: tries are bounded; a call that failed for good is on record
// with their number; what another try can't help is not tried again.
func TestUpstreamFails(t *testing.T) {
	for is, c := range map[string]struct {
		answer http.HandlerFunc
		hits   int64
		status int
		says   string
		fate   fulgur.Fate
	}{
		"always 503": {func(w http.ResponseWriter, r *http.Request) {
			http.Error(w, `{"error":"busy"}`, http.StatusServiceUnavailable)
		}, 6, 503, "busy", fulgur.FateRefused},
		"503 for longer than a call waits": {func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Retry-After", "77")
			http.Error(w, `{"error":"busy"}`, http.StatusServiceUnavailable)
		}, 1, 503, "busy", fulgur.FateRefused},
		"GW-18 an HTML error": {func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Type", "text/html")
			w.WriteHeader(http.StatusBadGateway)
			_, _ = io.WriteString(w, "<html>bad gateway</html>")
		}, 6, 502, "<html>bad gateway</html>", fulgur.FateRefused},
		"always dropped": {func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }, 6, 502, "Upstream model server request failed", fulgur.FateRefused},
		"422 is not retried": {func(w http.ResponseWriter, r *http.Request) {
			http.Error(w, `{"detail":"x"}`, http.StatusUnprocessableEntity)
		}, 1, 422, "detail", fulgur.FateRefused},
	} {
		t.Run(is, func(t *testing.T) {
			h, u := chatHouse(t, c.answer)
			for _, body := range []string{hi, hiStream} {
				u.hits.Store(0)
				got := h.chat(t, agentKey, body)
				if got.status != c.status || !strings.Contains(got.body, c.says) || u.hits.Load() != c.hits {
					t.Errorf("%d %s after %d hits", got.status, got.body, u.hits.Load())
				}
				if wait := got.header.Get("Retry-After"); c.status == 503 && c.hits == 1 && wait != "77" {
					t.Errorf("Retry-After is %q, want the upstream's", wait)
				}
				r := h.last(t)
				if r.Fate != c.fate || r.HTTPStatus != c.status || r.Retries != int(c.hits)-1 || r.Error == "" || r.Trainable {
					t.Errorf("record: %+v", r)
				}
			}
		})
	}
	t.Run("GW-13 it hangs", func(t *testing.T) {
		for _, body := range []string{hi, hiStream} {
			h, u := chatHouse(t, waits(nil), func(o *gateway.Options, _ *book) {
				o.Samplers[fulgur.EndpointChat] = chat.New(chat.Options{Retry: sampler.Retry{Tries: 3, Backoff: time.Millisecond, Try: 150 * time.Millisecond}})
			})
			got := h.chat(t, agentKey, body)
			// The SDKs' own tries on top of these would be three times as many. On a busy
			// machine a try may end before the upstream has seen it.
			if n := u.hits.Load(); got.status != 504 || got.header.Get("X-Should-Retry") != "false" || n > 3 {
				t.Errorf("%d %s %v after %d tries", got.status, got.body, got.header, n)
			}
			if r := h.last(t); r.HTTPStatus != 504 || r.Fate != fulgur.FateRefused || r.Retries != 2 || r.Error == "" || r.Trainable {
				t.Errorf("record: %+v", r)
			}
		}
	})
	t.Run("GW-12 connection refused", func(t *testing.T) {
		h, u := chatHouse(t, jsonAnswer(goodAnswer))
		u.Close()
		got := h.chat(t, agentKey, hi)
		r := h.last(t)
		if got.status != 502 || got.code() != "upstream" || r.Retries != 5 || !strings.Contains(r.Error, "refused") || r.Latency <= 0 {
			t.Errorf("%d %s, record %+v", got.status, got.body, r)
		}
		v1 := post(t, t.Context(), h.url+"/proxy/rollout/r1/attempt/0/mode/train/openai/v1/chat/completions", serverKey, hi)
		if v1.status != 502 || v1.body != `{"detail":"Upstream model server request failed"}` {
			t.Errorf("v1: %d %s", v1.status, v1.body)
		}
	})
	t.Run("fails, then answers", func(t *testing.T) {
		var n atomic.Int64
		h, _ := chatHouse(t, func(w http.ResponseWriter, r *http.Request) {
			if n.Add(1) == 1 {
				http.Error(w, "{}", http.StatusInternalServerError)
				return
			}
			jsonAnswer(goodAnswer)(w, r)
		})
		if got := h.chat(t, agentKey, hi); got.status != 200 || h.last(t).Retries != 1 || !h.last(t).Trainable {
			t.Errorf("%d, record %+v", got.status, h.last(t))
		}
	})
}

// GW-23: what does not fit the model's context is not tried again, is told to the
// client as the server told it, and is on record as that.
func TestContextFull(t *testing.T) {
	for is, said := range map[string]string{
		"the prompt (vLLM)":               `{"error":{"message":"This model's maximum context length is 1024 tokens. However, your prompt contains at least 1025 input tokens","type":"BadRequestError","code":400}}`,
		"prompt and max_tokens (vLLM)":    `{"error":{"message":"max_tokens=5000 cannot be greater than max_model_len=1024. Please request fewer output tokens.","code":400}}`,
		"the prompt (SGLang)":             `{"object":"error","message":"The input (2000 tokens) is longer than the model's context length (1024 tokens).","code":400}`,
		"the prompt (OpenAI's code only)": `{"error":{"message":"too many tokens","code":"context_length_exceeded"}}`,
	} {
		t.Run(is, func(t *testing.T) {
			h, u := chatHouse(t, func(w http.ResponseWriter, _ *http.Request) {
				w.Header().Set("Content-Type", "application/json")
				w.WriteHeader(http.StatusBadRequest)
				_, _ = io.WriteString(w, said)
			})
			for _, body := range []string{hi, hiStream} {
				u.hits.Store(0)
				got := h.chat(t, agentKey, body)
				r := h.last(t)
				if got.status != 400 || got.body != said || u.hits.Load() != 1 {
					t.Errorf("%d %s after %d tries", got.status, got.body, u.hits.Load())
				}
				if r.Trainable || r.Untrainable[0] != fulgur.UntrainableContext || !strings.Contains(r.Error, "status 400: ") || string(r.Response) != said {
					t.Errorf("record: %v, %q, %s", r.Untrainable, r.Error, r.Response)
				}
			}
		})
	}
	t.Run("another 400", func(t *testing.T) {
		h, _ := chatHouse(t, func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(http.StatusBadRequest)
			_, _ = io.WriteString(w, `{"error":"temperature must be non-negative"}`)
		})
		h.chat(t, agentKey, hi)
		if r := h.last(t); r.Untrainable[0] != fulgur.UntrainableError || !strings.Contains(r.Error, "400: temperature must") {
			t.Errorf("record: %v, %q", r.Untrainable, r.Error)
		}
	})
	t.Run("the gateway's own sampler", func(t *testing.T) {
		h := newHouse(t)
		got := h.chat(t, agentKey, `{"messages":[{"role":"user","content":"`+strings.Repeat("x", 5000)+`"}]}`)
		if r := h.last(t); got.status != 400 || got.code() != "context_length_exceeded" || h.gen.Calls() != 0 || r.Untrainable[0] != fulgur.UntrainableContext {
			t.Errorf("%d %s, record %v", got.status, got.body, r.Untrainable)
		}
		if a, _ := h.g.Activity(t.Context(), "r1", "0"); a.Overflow != h.last(t).Error || a.Overflow == "" {
			t.Errorf("activity %+v", a)
		}
		h.chat(t, agentKey, hi)
		if a, _ := h.g.Activity(t.Context(), "r1", "0"); a.Overflow != "" {
			t.Errorf("after a call that fits: %+v", a)
		}
	})
}

// GW-22: v1's trainer resumes, deletes the models and registers them anew. A call
// in the gap waits for them; one that finds none at all is told so.
func TestModelsRegisteredAnew(t *testing.T) {
	h := newHouse(t, func(o *gateway.Options, _ *book) { o.ModelGap = 2 * time.Second })
	set := func(list []fulgur.Endpoint) {
		h.mu.Lock()
		defer h.mu.Unlock()
		h.endpoints = list
	}
	eps := slices.Clone(h.endpoints)
	var stop atomic.Bool
	var wg sync.WaitGroup
	for i := range 4 {
		wg.Go(func() {
			for n := 0; !stop.Load(); n++ {
				if got := h.chat(t, agentKey, []string{hi, hiStream}[(i+n)%2]); got.status != 200 || got.err != nil {
					t.Errorf("%d %s %v", got.status, got.body, got.err)
				}
			}
		})
	}
	eventually(t, "calls are made", func() bool { return len(h.all()) > 4 })
	for i := range 10 {
		set(nil)
		time.Sleep(20 * time.Millisecond)
		eps[0].Version = fulgur.PolicyVersion(i)
		set(slices.Clone(eps))
		time.Sleep(20 * time.Millisecond)
	}
	stop.Store(true)
	wg.Wait()
	h = newHouse(t, func(o *gateway.Options, _ *book) { o.ModelGap = 50 * time.Millisecond })
	h.chat(t, agentKey, hi)
	h.mu.Lock()
	h.endpoints = nil
	h.mu.Unlock()
	if got := h.chat(t, agentKey, hi); got.status != 503 || !strings.Contains(got.body, "No servers available") {
		t.Errorf("behind the gap: %d %s", got.status, got.body)
	}
}

// GW-22 within a pause that holds: an update takes the endpoints away for as long
// as it takes.
func TestModelsRegisteredAnewInAPause(t *testing.T) {
	h := newHouse(t, func(o *gateway.Options, _ *book) { o.ModelGap = 20 * time.Millisecond })
	eps := h.endpoints
	h.pause(t, fulgur.PauseRequest{Owner: "x"})
	h.mu.Lock()
	h.endpoints = nil
	h.mu.Unlock()
	got := make(chan reply)
	go func() { got <- h.chat(t, agentKey, hi) }()
	eventually(t, "it is held", func() bool { return h.held(t) == 1 })
	h.mu.Lock()
	h.endpoints = eps
	h.mu.Unlock()
	h.resume(t)
	if r := <-got; r.status != 200 {
		t.Errorf("%d %s", r.status, r.body)
	}
}

// AS-02, WE-06: an upstream that neither answers nor notices that it is aborted holds
// up neither a drain nor the client, and the call is on record.
func TestDrainOfADeafUpstream(t *testing.T) {
	deaf := make(chan struct{})
	h, u := chatHouse(t, func(http.ResponseWriter, *http.Request) { <-deaf })
	t.Cleanup(func() { close(deaf) }) // before the server's own
	got := make(chan reply, 2)
	for _, body := range []string{hi, hiStream} {
		go func() { got <- h.chat(t, agentKey, body) }()
	}
	eventually(t, "both are at the upstream", func() bool { return u.hits.Load() == 2 })
	start := time.Now()
	p := h.pause(t, fulgur.PauseRequest{Owner: "x", Drain: 100 * time.Millisecond})
	if p.Aborted != 2 || p.InFlight != 0 || p.Drained < 100*time.Millisecond || time.Since(start) > 3*time.Second {
		t.Errorf("%+v after %v", p, time.Since(start))
	}
	for range 2 {
		if r := <-got; r.status != 503 || r.code() != "unavailable" {
			t.Errorf("%d %s", r.status, r.body)
		}
	}
	for _, c := range h.all() {
		if c.Trainable || c.Untrainable[0] != fulgur.UntrainableAborted {
			t.Errorf("record: %v", c.Untrainable)
		}
	}
	h.resume(t)
}

// AS-03 over HTTP: once a pause has drained nothing is at the upstream, and nothing
// comes before the resume; each call is answered.
func TestCallsThatRaceAPause(t *testing.T) {
	var at, came atomic.Int64
	h, _ := chatHouse(t, func(w http.ResponseWriter, r *http.Request) {
		at.Add(1)
		defer at.Add(-1)
		came.Add(1)
		time.Sleep(2 * time.Millisecond)
		jsonAnswer(goodAnswer)(w, r)
	})
	const n, rounds = 100, 5
	for range rounds {
		var wg sync.WaitGroup
		for i := range n {
			wg.Go(func() {
				time.Sleep(time.Duration(i) * 200 * time.Microsecond)
				if got := h.chat(t, agentKey, []string{hi, hiStream}[i%2]); got.status != 200 || got.err != nil {
					t.Errorf("%d %s %v", got.status, got.body, got.err)
				}
			})
		}
		time.Sleep(10 * time.Millisecond)
		p := h.pause(t, fulgur.PauseRequest{Owner: "x", Drain: 5 * time.Second})
		if before := came.Load(); p.Aborted != 0 || p.InFlight != 0 || at.Load() != 0 {
			t.Errorf("%+v, %d at the upstream", p, at.Load())
		} else if time.Sleep(30 * time.Millisecond); came.Load() != before {
			t.Errorf("%d calls reached the upstream of a drained run", came.Load()-before)
		}
		h.resume(t)
		wg.Wait()
	}
	if all := h.all(); len(all) != n*rounds {
		t.Errorf("%d calls on record, want %d", len(all), n*rounds)
	}
}

// AS-04, the other half: a model server's own 429 has not the header and the body of
// a pause, is on record as a failed call, and is counted as one.
func TestAModelServersOwn429(t *testing.T) {
	reg := prometheus.NewRegistry()
	h, _ := chatHouse(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		w.Header().Set("Retry-After", "60")
		w.Header().Set("X-Agl-Paused", "true") // of no meaning there
		w.WriteHeader(http.StatusTooManyRequests)
		_, _ = io.WriteString(w, `{"error":{"message":"busy"}}`)
	}, func(o *gateway.Options, _ *book) { o.Metrics = reg })
	h.pause(t, fulgur.PauseRequest{Owner: "x", Refuse: true})
	if got := h.chat(t, agentKey, hi); got.status != 429 || got.code() != "gateway_paused" || len(h.all()) != 0 {
		t.Errorf("%d %s, %d on record", got.status, got.body, len(h.all()))
	}
	h.resume(t)
	got := h.chat(t, agentKey, hi)
	if got.status != 429 || got.header.Get("X-Agl-Paused") != "" || got.header.Get("Retry-After") != "60" || !strings.Contains(got.body, "busy") {
		t.Errorf("%d %v %s", got.status, got.header, got.body)
	}
	if c := h.last(t); c.HTTPStatus != 429 || c.Fate != fulgur.FateRefused || !strings.Contains(c.Error, "429: busy") {
		t.Errorf("record: %+v", c)
	}
	counted := counters(t, reg)
	if counted["refused_total paused"] != 1 || counted["calls_total openai-chat refused train 429"] != 1 {
		t.Errorf("counted: %v", counted)
	}
}

// GW-26 over HTTP/2: the calls of two rollouts are mixed on one connection.
func TestNoCrossingOverHTTP2(t *testing.T) {
	h := newHouse(t)
	h.gen.Reply = func(req engine.GenerateRequest) []int32 {
		return samplertest.Answer(fulgur.Message{Content: samplertest.Bytes{}.Decode(req.Prompt)})
	}
	srv := httptest.NewUnstartedServer(h.g)
	srv.EnableHTTP2 = true
	srv.StartTLS()
	defer srv.Close()
	client := srv.Client()
	defer client.CloseIdleConnections()
	var wg sync.WaitGroup
	for _, id := range []fulgur.RolloutID{"a", "b"} {
		h.rollout(id, true, "key-"+string(id))
		for w := range 4 {
			wg.Go(func() {
				for i := range 50 {
					stream := strconv.FormatBool((i+w)%2 == 0)
					req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, srv.URL+"/openai/v1/chat/completions",
						strings.NewReader(`{"stream":`+stream+`,"messages":[{"role":"user","content":"I am `+string(id)+`."}]}`))
					if err != nil {
						t.Error(err)
						return
					}
					req.Header.Set("Authorization", "Bearer key-"+string(id))
					resp, err := client.Do(req)
					if err != nil {
						t.Error(err)
						return
					}
					_, err = io.Copy(io.Discard, resp.Body)
					resp.Body.Close()
					if err != nil || resp.StatusCode != 200 || resp.ProtoMajor != 2 {
						t.Errorf("%s %v %v", resp.Proto, resp.Status, err)
					}
				}
			})
		}
	}
	wg.Wait()
	if n := len(h.all()); n != 400 {
		t.Errorf("%d calls on record", n)
	}
	for _, c := range h.all() {
		if c.Messages[0].Content != "I am "+string(c.Rollout)+"." {
			t.Errorf("a call of %q is on record for %s", c.Messages[0].Content, c.Rollout)
		}
	}
}

// GW-14: a server closes its connections while they are idle, around the moment at
// which the next call is sent. No call fails, and each is one generation.
func TestServerClosesIdleConnections(t *testing.T) {
	h, u := chatHouse(t, func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		conn, _, err := http.NewResponseController(w).Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		// It says nothing of closing, as uvicorn.
		fmt.Fprintf(conn, "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", len(goodAnswer), goodAnswer)
		time.AfterFunc(time.Duration(rand.IntN(1000))*time.Microsecond, func() {
			if c, ok := conn.(*net.TCPConn); ok {
				_ = c.SetLinger(0) // by a reset
			}
			_ = conn.Close()
		})
	})
	const n = 200
	for range n {
		if got := h.chat(t, agentKey, hi); got.status != 200 {
			t.Errorf("%d %s", got.status, got.body)
		}
		time.Sleep(time.Duration(rand.IntN(1000)) * time.Microsecond)
	}
	if all := h.all(); len(all) != n || u.hits.Load() != n {
		t.Errorf("%d calls on record, %d generations, want %d", len(all), u.hits.Load(), n)
	}
}

package gateway_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"os"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/fulgur-rl/fulgur"
	"github.com/fulgur-rl/fulgur/internal/engine"
	"github.com/fulgur-rl/fulgur/internal/gateway"
	"github.com/fulgur-rl/fulgur/internal/gateway/call"
	"github.com/fulgur-rl/fulgur/internal/gateway/sampler"
	"github.com/fulgur-rl/fulgur/internal/gateway/sampler/samplertest"
	"github.com/fulgur-rl/fulgur/internal/gateway/sampler/tokens"
)

// Soak (FULGUR_LONG; FULGUR_SOAK says how long, 1m by default): 200 concurrent
// streams with pauses, cancels, retries, slow readers and upstream faults. At
// the end of each of four parts nothing is in flight, there are as many records
// as generations, what clients saw whole is on record once; goroutines and
// memory do not grow from part to part.
func TestSoak(t *testing.T) {
	if os.Getenv("FULGUR_LONG") == "" {
		t.Skip("FULGUR_LONG=1 runs it (make test-long)")
	}
	whole := time.Minute
	if d, err := time.ParseDuration(os.Getenv("FULGUR_SOAK")); err == nil {
		whole = d
	}
	s := newSoak(t)
	type level struct {
		heap       uint64
		goroutines int
	}
	var levels []level
	for part := range 4 {
		s.part(t, whole/4)
		var m runtime.MemStats
		runtime.GC()
		runtime.GC()
		runtime.ReadMemStats(&m)
		levels = append(levels, level{m.HeapAlloc, runtime.NumGoroutine()})
		t.Logf("part %d: %d generations, %d records, %d whole answers, heap %d KiB, %d goroutines, clients %s", part, s.orders.Load(), len(s.fates), len(s.seen),
			m.HeapAlloc>>10, runtime.NumGoroutine(), s.counts.String())
		if t.Failed() {
			return
		}
	}
	first, last := levels[1], levels[3]        // the first part fills caches
	if last.goroutines > first.goroutines+20 { // some connections idle or close just then; a leak is of thousands of calls
		t.Errorf("goroutines grew from %d to %d", first.goroutines, last.goroutines)
	}
	if last.heap > first.heap+first.heap/4+4<<20 {
		t.Errorf("memory grew from %d to %d bytes", first.heap, last.heap)
	}
}

const soakClients = 200

type soak struct {
	g      *gateway.Gateway
	url    string
	client *http.Client
	orders atomic.Int64 // generations that were ordered
	counts tally
	base   int // goroutines before the first call

	mu    sync.Mutex
	fates map[string]fulgur.Fate // of the records of this part, by call
	seen  map[string]bool        // whole answers of this part, by call
}

// tally counts what clients met.
type tally struct {
	mu sync.Mutex
	m  map[string]int
}

func (c *tally) add(what string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.m[what]++
}

func (c *tally) get(what string) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.m[what]
}

func (c *tally) String() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return fmt.Sprint(c.m)
}

// soakBook is a book that keeps no calls, and has a token engine for the one
// run and a chat server for the other.
type soakBook struct {
	*book
	s    *soak
	chat string
}

func (b soakBook) Endpoints(_ context.Context, run fulgur.RunID, _ string) ([]fulgur.Endpoint, error) {
	if run == "chat" {
		return []fulgur.Endpoint{{Model: "policy", Kind: fulgur.EndpointChat, URL: b.chat + "/v1"}}, nil
	}
	return []fulgur.Endpoint{{Model: "policy", Kind: fulgur.EndpointTokens, URL: "inproc:"}}, nil
}

func (b soakBook) AppendCall(_ context.Context, c *fulgur.Call) error {
	b.s.mu.Lock()
	defer b.s.mu.Unlock()
	id := string(c.ID)
	if _, twice := b.s.fates[id]; twice {
		return errors.New("this call is on record already")
	}
	if c.Trainable && c.Fate != fulgur.FateDelivered {
		return errors.New("what nobody saw is to train")
	}
	b.s.fates[id] = c.Fate
	return nil
}

func (b soakBook) Calls(context.Context, fulgur.RolloutID, fulgur.AttemptID) ([]fulgur.Call, error) {
	return nil, nil
}

// counted counts orders of new generations.
type counted struct {
	sampler.Sampler
	n *atomic.Int64
}

func (c counted) Sample(ctx context.Context, o *call.Order, emit func(call.Delta) error) (*call.Result, error) {
	if o.Resume == nil {
		c.n.Add(1)
	}
	return c.Sampler.Sample(ctx, o, emit)
}

func (c counted) Resumes() bool { return sampler.Resumes(c.Sampler) }

// soakEngine samples for about a second, and now and then dies in the middle.
type soakEngine struct{}

func (soakEngine) Generate(ctx context.Context, req engine.GenerateRequest, emit func(engine.Token) error) (engine.Generation, error) {
	var out engine.Generation
	n := 5 + rand.IntN(40)
	for i := range n {
		if rand.IntN(1000) == 0 {
			return out, fulgur.E(fulgur.KindUpstream, "generate", "the engine died", nil)
		}
		select {
		case <-ctx.Done():
			return out, ctx.Err()
		case <-time.After(time.Duration(rand.IntN(40)) * time.Millisecond):
		}
		t := engine.Token{ID: 'x', LogProb: -1}
		if i == n-1 {
			t.ID = samplertest.EndOfTurn
		}
		out.Tokens = append(out.Tokens, t)
		if emit != nil {
			if err := emit(t); err != nil {
				return out, err
			}
		}
	}
	out.FinishReason = "stop"
	return out, nil
}

// soakServer is a chat server that streams, refuses, breaks off and resets.
func soakServer(w http.ResponseWriter, r *http.Request) {
	_, _ = io.Copy(io.Discard, r.Body)
	switch rand.IntN(30) {
	case 0:
		http.Error(w, `{"error":{"message":"busy"}}`, http.StatusServiceUnavailable)
		return
	case 1:
		http.Error(w, `{"error":{"message":"no"}}`, http.StatusBadRequest)
		return
	case 2:
		panic(http.ErrAbortHandler)
	}
	w.Header().Set("Content-Type", "text/event-stream")
	rc := http.NewResponseController(w)
	n := 5 + rand.IntN(40)
	for i := range n {
		if rand.IntN(1000) == 0 {
			panic(http.ErrAbortHandler)
		}
		end := "null"
		if i == n-1 {
			end = `"stop"`
		}
		fmt.Fprintf(w, `data: {"id":"s","choices":[{"index":0,"delta":{"content":"x"},"finish_reason":%s,"token_ids":[120],"logprobs":{"content":[{"token":"x","logprob":-1}]}}],"prompt_token_ids":[1]}`+"\n\n", end)
		if rc.Flush() != nil {
			return
		}
		select {
		case <-r.Context().Done():
			return
		case <-time.After(time.Duration(rand.IntN(40)) * time.Millisecond):
		}
	}
	fmt.Fprint(w, "data: [DONE]\n\n")
}

func newSoak(t *testing.T) *soak {
	t.Helper()
	s := &soak{client: &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: soakClients}}, counts: tally{m: map[string]int{}}}
	up := httptest.NewServer(http.HandlerFunc(soakServer))
	b := soakBook{newBook(), s, up.URL}
	for i := range soakClients {
		id := fmt.Sprintf("soak-%d", i)
		b.rollout(fulgur.RolloutID(id), true, id)
		if i%2 == 0 {
			who := b.creds[id]
			who.Run = "chat"
			b.creds[id] = who
		}
	}
	h := newHouse(t, func(o *gateway.Options, _ *book) {
		o.Directory, o.Models, o.Records = b, b, b
		tok := tokens.New(tokens.Options{Renderer: samplertest.Bytes{}, Local: soakEngine{}, ContextLength: samplertest.ContextLen})
		o.Samplers = map[fulgur.EndpointKind]sampler.Sampler{
			fulgur.EndpointTokens: counted{tok, &s.orders},
			fulgur.EndpointChat:   counted{o.Samplers[fulgur.EndpointChat], &s.orders},
		}
		o.RetryGrace, o.RetryKeep = 200*time.Millisecond, 400*time.Millisecond
		o.KeepAlive, o.SpaceAfter, o.WriteTimeout = 50*time.Millisecond, 100*time.Millisecond, time.Second
	})
	s.g, s.url, s.base = h.g, h.url, runtime.NumGoroutine()
	t.Cleanup(func() { s.client.CloseIdleConnections(); up.Close() })
	return s
}

// part lets all clients work for d, and then looks at what is left of it.
func (s *soak) part(t *testing.T, d time.Duration) {
	s.mu.Lock()
	s.fates, s.seen = map[string]fulgur.Fate{}, map[string]bool{}
	s.mu.Unlock()
	s.orders.Store(0)
	ctx, cancel := context.WithTimeout(t.Context(), d)
	defer cancel()
	var clients, pausers sync.WaitGroup
	for i := range soakClients {
		clients.Go(func() {
			for n := 0; ctx.Err() == nil; n++ {
				s.one(t.Context(), fmt.Sprintf("soak-%d", i), n)
			}
		})
	}
	for _, run := range []fulgur.RunID{"run", "chat"} {
		pausers.Go(func() { s.pauses(t, ctx, run) })
	}
	pausers.Wait()
	clients.Wait()
	s.client.CloseIdleConnections()
	eventually(t, "nothing is in flight, held or waited for", func() bool {
		running, kept := s.g.Orphans()
		for _, run := range []fulgur.RunID{"run", "chat"} {
			p, err := s.g.PauseState(t.Context(), run)
			if err != nil || p.InFlight+p.Held > 0 {
				return false
			}
		}
		return running+kept == 0
	})
	for wait := time.Now(); runtime.NumGoroutine() > s.base+10 && time.Since(wait) < 20*time.Second; { // until idle connections are closed
		time.Sleep(50 * time.Millisecond)
	}
	if n := runtime.NumGoroutine(); n > s.base+10 {
		t.Errorf("%d goroutines are left of %d clients; there were %d before them", n, soakClients, s.base)
	}
	if n := s.counts.get("a bad end that looks good"); n > 0 {
		t.Errorf("%d streams ended as if they were whole", n)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if int(s.orders.Load()) != len(s.fates) {
		t.Errorf("%d generations, %d records", s.orders.Load(), len(s.fates))
	}
	for id := range s.seen {
		if s.fates[id] != fulgur.FateDelivered {
			t.Errorf("a client saw all of call %s, its record says %q", id, s.fates[id])
		}
	}
}

// pauses pauses a run again and again: drained, aborted, in the middle, refused.
func (s *soak) pauses(t *testing.T, ctx context.Context, run fulgur.RunID) {
	for ctx.Err() == nil {
		select {
		case <-ctx.Done():
			return
		case <-time.After(time.Duration(500+rand.IntN(1500)) * time.Millisecond):
		}
		req := fulgur.PauseRequest{Owner: "soak", Drain: time.Duration(1+rand.IntN(1000)) * time.Millisecond, Partial: rand.IntN(2) == 0, Refuse: rand.IntN(4) == 0}
		p, err := s.g.PauseCalls(t.Context(), run, req)
		if err != nil || p.InFlight != 0 {
			t.Errorf("drain: %+v %v", p, err)
		}
		time.Sleep(time.Duration(rand.IntN(400)) * time.Millisecond)
		if p, _ = s.g.PauseState(t.Context(), run); p.InFlight != 0 {
			t.Errorf("after the drain: %+v", p)
		}
		if _, err := s.g.ResumeCalls(t.Context(), run, "soak"); err != nil {
			t.Error(err)
		}
	}
}

// one makes one call, in one of the ways that clients have.
func (s *soak) one(ctx context.Context, key string, n int) {
	body := fmt.Sprintf(`{"model":"policy","stream":%t,"messages":[{"role":"user","content":"%d"}]}`, rand.IntN(4) > 0, n)
	way := rand.IntN(10)
	if way < 3 { // it leaves, and most of the time comes back
		short, cancel := context.WithTimeout(ctx, time.Duration(rand.IntN(800))*time.Millisecond)
		s.ask(short, key, body, 0)
		cancel()
		if way == 0 {
			return
		}
		time.Sleep(time.Duration(rand.IntN(600)) * time.Millisecond)
	}
	slow := time.Duration(0)
	if way == 9 {
		slow = 20 * time.Millisecond
	}
	s.ask(ctx, key, body, slow)
}

// ask makes a request and reads its answer, slowly if asked to, and notes an
// answer that came whole.
func (s *soak) ask(ctx context.Context, key, body string, slow time.Duration) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, s.url+"/openai/v1/chat/completions", strings.NewReader(body))
	if err != nil {
		panic(err)
	}
	req.Header.Set("Authorization", "Bearer "+key)
	resp, err := s.client.Do(req)
	if err != nil {
		s.counts.add("no answer")
		return
	}
	defer resp.Body.Close()
	r := bufio.NewReaderSize(resp.Body, 512)
	var text strings.Builder
	for err == nil {
		var line string
		line, err = r.ReadString('\n')
		text.WriteString(line)
		time.Sleep(slow)
	}
	all := text.String()
	done := strings.HasSuffix(all, "data: [DONE]\n\n") || !strings.HasPrefix(resp.Header.Get("Content-Type"), "text/event-stream")
	if err != io.EOF || resp.StatusCode != 200 || !done {
		s.counts.add(fmt.Sprintf("%d broken=%t", resp.StatusCode, err != io.EOF))
		if err == io.EOF && resp.StatusCode == 200 {
			s.counts.add("a bad end that looks good")
		}
		if resp.StatusCode == http.StatusTooManyRequests {
			time.Sleep(100 * time.Millisecond)
		}
		return
	}
	s.counts.add("whole")
	if _, id, ok := strings.Cut(all, `"id":"chatcmpl-`); ok {
		id, _, _ = strings.Cut(id, `"`)
		id = strings.Clone(id) // not the whole answer with it
		s.mu.Lock()
		defer s.mu.Unlock()
		s.seen[id] = true
	}
}

package gateway_test

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/fulgur-rl/fulgur"
	"github.com/fulgur-rl/fulgur/internal/engine"
	"github.com/fulgur-rl/fulgur/internal/gateway"
	"github.com/fulgur-rl/fulgur/internal/gateway/sampler/samplertest"
)

// An attempt above its number of calls at once gets a clear 429 that says when
// to come back; another attempt does not notice, nor does the server key.
func TestConcurrencyLimit(t *testing.T) {
	h := newHouse(t, func(o *gateway.Options, _ *book) { o.MaxConcurrent = 2 })
	h.rollout("r2", true, "other-key")
	gate := make(chan struct{})
	var busy sync.WaitGroup
	busy.Add(2)
	h.gen.Reply = func(req engine.GenerateRequest) []int32 {
		if strings.Contains(samplertest.Bytes{}.Decode(req.Prompt), "slow") {
			busy.Done()
			<-gate
		}
		return samplertest.Answer(fulgur.Message{Content: "ok"})
	}
	var wg sync.WaitGroup
	for range 2 {
		wg.Go(func() {
			if got := h.chat(t, agentKey, `{"messages":[{"role":"user","content":"slow"}]}`); got.status != 200 {
				t.Errorf("%d %s", got.status, got.body)
			}
		})
	}
	busy.Wait()
	got := h.chat(t, agentKey, hi)
	if got.status != 429 || got.code() != "rate_limit_exceeded" || got.header.Get("Retry-After") != "1" || !strings.Contains(got.body, "2 calls under way") {
		t.Errorf("the third one: %d %s %v", got.status, got.body, got.header)
	}
	for key, path := range map[string]string{"other-key": "/openai/v1/chat/completions", serverKey: "/proxy/rollout/r1/attempt/0/mode/train/openai/v1/chat/completions"} {
		if got := post(t, t.Context(), h.url+path, key, hi); got.status != 200 {
			t.Errorf("%s: %d %s", key, got.status, got.body)
		}
	}
	close(gate)
	wg.Wait()
	if got := h.chat(t, agentKey, hi); got.status != 200 {
		t.Errorf("behind them: %d %s", got.status, got.body)
	}
}

func TestRateLimit(t *testing.T) {
	h := newHouse(t, func(o *gateway.Options, _ *book) { o.MaxRate, o.Burst = 0.01, 3 })
	for i := range 4 {
		got := h.chat(t, agentKey, hi)
		if want := map[bool]int{true: 200, false: 429}[i < 3]; got.status != want {
			t.Errorf("request %d: %d %s", i, got.status, got.body)
		}
		if i == 3 && (got.code() != "rate_limit_exceeded" || got.header.Get("Retry-After") != "100") {
			t.Errorf("%s %v", got.body, got.header)
		}
	}
	h = newHouse(t, func(o *gateway.Options, _ *book) { o.MaxRate, o.Burst = -1, 1 })
	for range 5 {
		if got := h.chat(t, agentKey, hi); got.status != 200 {
			t.Errorf("without a limit: %d %s", got.status, got.body)
		}
	}
}

func TestHeaderLimit(t *testing.T) {
	h := newHouse(t, func(o *gateway.Options, _ *book) { o.MaxHeader = 4096 })
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, h.url+"/openai/v1/chat/completions", strings.NewReader(hi))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+agentKey)
	req.Header.Set("X-Long", strings.Repeat("x", 5000))
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if b, _ := io.ReadAll(resp.Body); resp.StatusCode != 413 || !strings.Contains(string(b), "headers") {
		t.Errorf("%d %s", resp.StatusCode, b)
	}
}

// GW-24: a client that writes its whole request before it reads gets the answer of
// a refusal, however large the request.
func TestLargeRequestsAreRefusedClearly(t *testing.T) {
	h := newHouse(t, func(o *gateway.Options, _ *book) { o.MaxBody, o.MaxRate, o.Burst = 5<<20, 0.001, 1 })
	h.rollout("r2", true, "ended-key")
	h.end("ended-key")
	h.chat(t, agentKey, hi) // the one that its rate has room for
	body := `{"messages":[{"role":"user","content":"` + strings.Repeat("x", 4<<20) + `"}]}`
	for is, c := range map[string]struct {
		key, body string
		status    int
	}{
		"above the limit":            {serverKey, body + body, 413},
		"without a key":              {"", body, 401},
		"of an attempt that is over": {"ended-key", body, 410},
		"above its rate":             {agentKey, body, 429},
	} {
		t.Run(is, func(t *testing.T) {
			conn, err := net.Dial("tcp", strings.TrimPrefix(h.url, "http://"))
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			if _, err := fmt.Fprintf(conn, "POST /proxy/rollout/%s/attempt/0/mode/train/openai/v1/chat/completions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer %s\r\nContent-Length: %d\r\n\r\n%s",
				map[bool]string{true: "r2", false: "r1"}[c.key == "ended-key"], c.key, len(c.body), c.body); err != nil {
				t.Fatalf("writing: %v", err)
			}
			resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
			if err != nil {
				t.Fatal(err)
			}
			defer resp.Body.Close()
			if b, _ := io.ReadAll(resp.Body); resp.StatusCode != c.status || len(b) == 0 {
				t.Errorf("%d %s", resp.StatusCode, b)
			}
		})
	}
}

// What a client only announces takes no memory: some hundred connections that
// promise 64 MB each and send nothing would end the server otherwise.
func TestAnnouncedBodies(t *testing.T) {
	const clients, most = 32, 32 << 20
	h := newHouse(t, func(o *gateway.Options, _ *book) { o.ReadTimeout = 200 * time.Millisecond })
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	var wg sync.WaitGroup
	for range clients {
		wg.Go(func() {
			conn, err := net.Dial("tcp", strings.TrimPrefix(h.url, "http://"))
			if err != nil {
				t.Error(err)
				return
			}
			defer conn.Close()
			fmt.Fprintf(conn, "POST /openai/v1/chat/completions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer %s\r\nContent-Length: %d\r\n\r\n{", agentKey, 64<<20-1)
			if resp, err := http.ReadResponse(bufio.NewReader(conn), nil); err != nil || resp.StatusCode != 400 {
				t.Errorf("%v %v", resp, err)
			}
		})
	}
	wg.Wait()
	runtime.ReadMemStats(&after)
	if took := after.TotalAlloc - before.TotalAlloc; took > most {
		t.Errorf("%d clients that announced 64 MB each took %d MB", clients, took>>20)
	}
}

// Bodies that never end, by size or by time, end by a limit and leave nothing
// on record.
func TestEndlessBodies(t *testing.T) {
	for is, c := range map[string]struct {
		limit  func(o *gateway.Options, _ *book)
		head   string
		write  func(w io.Writer) error
		status int
		says   string
	}{
		"without an end": {func(o *gateway.Options, _ *book) { o.MaxBody = 1 << 20 }, "Transfer-Encoding: chunked", func(w io.Writer) error {
			block := strings.Repeat("x", 1<<16)
			for range 64 {
				if _, err := fmt.Fprintf(w, "%x\r\n%s\r\n", len(block), block); err != nil {
					return nil // refused in the middle
				}
			}
			return nil
		}, 413, "larger than"},
		"slow-loris": {func(o *gateway.Options, _ *book) { o.ReadTimeout = 100 * time.Millisecond }, "Transfer-Encoding: chunked", func(w io.Writer) error {
			_, err := io.WriteString(w, "1\r\n{\r\n")
			return err // and then nothing
		}, 400, "did not arrive within"},
		"slow-loris that tells a length": {func(o *gateway.Options, _ *book) { o.ReadTimeout = 100 * time.Millisecond }, "Content-Length: 100", func(w io.Writer) error {
			_, err := io.WriteString(w, "{")
			return err
		}, 400, "did not arrive within"},
	} {
		t.Run(is, func(t *testing.T) {
			h := newHouse(t, c.limit)
			conn, err := net.Dial("tcp", strings.TrimPrefix(h.url, "http://"))
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			fmt.Fprintf(conn, "POST /openai/v1/chat/completions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer %s\r\n%s\r\n\r\n", agentKey, c.head)
			if err := c.write(conn); err != nil {
				t.Fatal(err)
			}
			resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
			if err != nil {
				t.Fatal(err)
			}
			defer resp.Body.Close()
			if b, _ := io.ReadAll(resp.Body); resp.StatusCode != c.status || !strings.Contains(string(b), c.says) {
				t.Errorf("%d %s", resp.StatusCode, b)
			}
			if n := len(h.all()); n != 0 {
				t.Errorf("%d calls on record", n)
			}
		})
	}
}

// waiting makes the model wait at prompts that say "slow"; started tells of each.
func (h *house) waiting() (started chan struct{}, goOn func()) {
	started, gate := make(chan struct{}, 16), make(chan struct{})
	h.gen.Reply = func(req engine.GenerateRequest) []int32 {
		if strings.Contains(samplertest.Bytes{}.Decode(req.Prompt), "slow") {
			started <- struct{}{}
			<-gate
		}
		return samplertest.Answer(fulgur.Message{Content: "ok"})
	}
	return started, func() { close(gate) }
}

// Bodies are bounded over all calls, and the room comes back when they end.
func TestAllBodiesTogether(t *testing.T) {
	h := newHouse(t, func(o *gateway.Options, _ *book) { o.MaxBodies = 1000 })
	agentKey := serverKey // who has it has no share, only all have
	started, goOn := h.waiting()
	large := `{"messages":[{"role":"user","content":"` + strings.Repeat("x", 800) + `"}]}`
	var wg sync.WaitGroup
	wg.Go(func() {
		if got := h.chat(t, agentKey, strings.Replace(large, "x", "slow", 1)); got.status != 200 {
			t.Errorf("%d %s", got.status, got.body)
		}
	})
	<-started
	if got := h.chat(t, agentKey, large); got.status != 503 || got.header.Get("Retry-After") == "" || !strings.Contains(got.body, "try again") {
		t.Errorf("beside it: %d %s %v", got.status, got.body, got.header)
	}
	if got := h.chat(t, agentKey, hi); got.status != 200 {
		t.Errorf("a small one beside it: %d %s", got.status, got.body)
	}
	goOn()
	wg.Wait()
	if got := h.chat(t, agentKey, large); got.status != 200 {
		t.Errorf("behind it: %d %s", got.status, got.body)
	}
}

// One attempt's uploads, of as many connections as it likes, leave room for others. That
// it is refused is its own doing: no fault of the gateway, for which it would be run again.
func TestOneAttemptsBodies(t *testing.T) {
	const most, half, clients = 1 << 20, 60 << 10, 32
	h := newHouse(t, func(o *gateway.Options, _ *book) { o.MaxBodies = most })
	h.rollout("r2", true, "other-key")
	var conns []net.Conn
	for range clients {
		conn, err := net.Dial("tcp", strings.TrimPrefix(h.url, "http://"))
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		conns = append(conns, conn)
		fmt.Fprintf(conn, "POST /openai/v1/chat/completions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer %s\r\nContent-Length: %d\r\n\r\n%s",
			agentKey, 2*half, strings.Repeat(" ", half))
	}
	wait := func(what string, is func() bool) {
		t.Helper()
		for end := time.Now().Add(5 * time.Second); !is(); time.Sleep(time.Millisecond) {
			if time.Now().After(end) {
				t.Fatalf("%s: %d bytes are held", what, h.g.Bodies())
			}
		}
	}
	// What it may hold, a fifth of all, are three such halves.
	wait("three of them", func() bool { return h.g.Bodies() == 3*half })
	large := hi + strings.Repeat(" ", most/8)
	if got := h.chat(t, "other-key", large); got.status != 200 {
		t.Errorf("another attempt beside it: %d %s", got.status, got.body)
	}
	statuses := map[int]int{}
	for _, conn := range conns {
		_, _ = io.WriteString(conn, strings.Repeat(" ", half))
		resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
		if err != nil {
			t.Fatal(err)
		}
		b, _ := io.ReadAll(resp.Body)
		_ = resp.Body.Close()
		if statuses[resp.StatusCode]++; resp.StatusCode == 429 && (resp.Header.Get("Retry-After") != "1" || !strings.Contains(string(b), "wait for one to end")) {
			t.Errorf("%v %s", resp.Header, b)
		}
	}
	if statuses[429] < clients-3 {
		t.Errorf("answers by status: %v", statuses)
	}
	a, err := h.g.Activity(t.Context(), "r1", "0")
	if err != nil || a.Upstream != "" || a.Refused == 0 || !strings.Contains(a.Refusal, "wait for one") {
		t.Errorf("%+v, %v", a, err)
	}
	wait("none", func() bool { return h.g.Bodies() == 0 })
	if got := h.chat(t, agentKey, large); got.status != 200 {
		t.Errorf("behind it: %d %s", got.status, got.body)
	}
}

// A call that ends behind its attempt does not train: the trainer may have read
// the rollout before.
func TestALateCallDoesNotTrain(t *testing.T) {
	h := newHouse(t)
	started, goOn := h.waiting()
	var wg sync.WaitGroup
	wg.Go(func() {
		if got := h.chat(t, agentKey, `{"messages":[{"role":"user","content":"slow"}]}`); got.status != 200 {
			t.Errorf("%d %s", got.status, got.body)
		}
	})
	<-started
	h.book.mu.Lock()
	r := h.book.rollouts["r1"]
	r.State = fulgur.Succeeded
	h.book.rollouts["r1"] = r
	h.book.mu.Unlock()
	goOn()
	wg.Wait()
	calls, err := h.book.Calls(t.Context(), "r1", "0")
	if err != nil || len(calls) != 1 || calls[0].Trainable || !slices.Contains(calls[0].Untrainable, fulgur.UntrainableLate) {
		t.Errorf("calls %+v, %v", calls, err)
	}
}

// What became no call is told with the attempt's activity.
func TestRefusedRequestsAreCounted(t *testing.T) {
	h := newHouse(t)
	for _, body := range []string{`{"n":2,"messages":[{"role":"user","content":"x"}]}`, `{`, hi} {
		h.chat(t, agentKey, body)
	}
	a, err := h.g.Activity(t.Context(), "r1", "0")
	if err != nil || a.Refused != 2 || a.Calls != 1 || !strings.Contains(a.Refusal, "Invalid JSON") {
		t.Errorf("%+v, %v", a, err)
	}
}

// A body that is compressed is told apart from one that is broken.
func TestCompressedRequests(t *testing.T) {
	h := newHouse(t)
	for enc, status := range map[string]int{"gzip": 400, "zstd": 400, "identity": 200} {
		got := ask(t, http.MethodPost, h.url+"/openai/v1/chat/completions", agentKey, hi, "Content-Encoding", enc)
		if got.status != status || status == 400 && !strings.Contains(got.body, "send it as plain JSON") {
			t.Errorf("%s: %d %s", enc, got.status, got.body)
		}
	}
}

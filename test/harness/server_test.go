package harness

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/fulgur-rl/fulgur"
	"github.com/fulgur-rl/fulgur/internal/api/client"
)

// needHarness skips tests that need other people's software installed, and
// tells where: run.sh sets the variable and installs.
func needHarness(t *testing.T, all bool) {
	t.Helper()
	switch v := os.Getenv("FULGUR_HARNESS"); {
	case v == "":
		t.Skip("FULGUR_HARNESS=1 runs it (make test-harness): it installs packages")
	case all && v != "all":
		t.Skip("FULGUR_HARNESS=all runs it (make test-harness HARNESS=all)")
	}
}

var build struct {
	sync.Once
	path string
	err  error
}

// binary builds fulgur once for all tests; HARNESS_BINARY names one to test in
// its place.
func binary(t *testing.T) string {
	t.Helper()
	if path := os.Getenv("HARNESS_BINARY"); path != "" {
		return path
	}
	build.Do(func() {
		dir, err := os.MkdirTemp("", "fulgur-harness-")
		if err != nil {
			build.err = err
			return
		}
		build.path = filepath.Join(dir, "fulgur")
		c := exec.Command("go", "build", "-o", build.path, "./cmd/fulgur")
		c.Dir = filepath.Join("..", "..")
		if out, err := c.CombinedOutput(); err != nil {
			build.err = fmt.Errorf("%w\n%s", err, out)
		}
	})
	if build.err != nil {
		t.Fatal(build.err)
	}
	return build.path
}

func TestMain(m *testing.M) {
	code := m.Run()
	if build.path != "" {
		_ = os.RemoveAll(filepath.Dir(build.path))
	}
	os.Exit(code)
}

const serverKey = "server-key"

// gateway is a running fulgur serve.
type gateway struct {
	*client.Client
	url string
}

// startGateway starts fulgur serve for the scripted model's name, with the
// built-in model's tokenizer and template, and ends it with the test. The scripted
// model is asked by harnesses alone: each of its answers must be on record.
func startGateway(t *testing.T, args ...string) *gateway {
	t.Helper()
	dir := t.TempDir()
	c := exec.Command(binary(t), append([]string{"serve", "--listen", "127.0.0.1:0", "--key", serverKey, "--model", modelName,
		"--model-dir", "builtin:calc", "--store", "sqlite:" + filepath.Join(dir, "fulgur.db"), "--probe=false"}, args...)...)
	c.Env = slices.DeleteFunc(os.Environ(), func(v string) bool { return strings.HasPrefix(v, "FULGUR_") })
	stderr := filepath.Join(dir, "stderr")
	log, err := os.Create(stderr)
	if err != nil {
		t.Fatal(err)
	}
	c.Stderr = log
	out, err := c.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = c.Process.Signal(syscall.SIGTERM)
		if err := c.Wait(); err != nil {
			t.Errorf("fulgur serve ended with %v", err)
		}
		_ = log.Close()
		if t.Failed() {
			b, _ := os.ReadFile(stderr)
			t.Logf("fulgur serve said:\n%s", b)
		}
	})
	line, err := bufio.NewReader(out).ReadString('\n')
	url, ok := strings.CutPrefix(strings.TrimSpace(line), "listening on ")
	if err != nil || !ok {
		t.Fatalf("fulgur serve said %q, %v", line, err)
	}
	cl, err := client.New(url, serverKey, client.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cl.Close() })
	return &gateway{Client: cl, url: url}
}

// use sends the gateway's calls to the scripted model.
func (g *gateway) use(t *testing.T, m *model, kind fulgur.EndpointKind) {
	t.Helper()
	err := g.PutEndpoints(t.Context(), fulgur.DefaultRun, modelName, []fulgur.Endpoint{{Model: modelName, Kind: kind, URL: m.URL, Version: modelVersion}})
	if err != nil {
		t.Fatal(err)
	}
}

// open makes a rollout and opens its first attempt.
func (g *gateway) open(t *testing.T, id fulgur.RolloutID) fulgur.OpenedAttempt {
	t.Helper()
	_, err := g.CreateRollouts(t.Context(), []fulgur.RolloutSpec{{ID: id, Run: fulgur.DefaultRun, Input: []byte(`{}`), IsTrain: true}})
	if err != nil {
		t.Fatal(err)
	}
	a, err := g.OpenAttempt(t.Context(), id)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

// calls reads what is on record of a rollout, once it is all there.
func (g *gateway) calls(t *testing.T, id fulgur.RolloutID) []fulgur.Call {
	t.Helper()
	cs, err := g.Calls(t.Context(), id, "")
	if err != nil {
		t.Fatal(err)
	}
	return cs
}

// pause is a pause in the middle of a task: it begins while the first reply is
// being sampled, so that the call after it is held, and ends a span after that.
type pause struct {
	gate *gateway
	span time.Duration

	once sync.Once
	done chan struct{} // nil until it has begun
	held int           // the most calls held at once
	err  error
}

// begin starts it once, and returns when no new call passes.
func (p *pause) begin(ctx context.Context) {
	p.once.Do(func() {
		p.done = make(chan struct{})
		_, p.err = p.gate.PauseCalls(ctx, fulgur.DefaultRun, fulgur.PauseRequest{Owner: "test", Lease: time.Minute, Reason: "a test's pause"})
		if p.err != nil {
			close(p.done)
			return
		}
		go func() {
			defer close(p.done)
			p.watch(ctx)
			_, p.err = p.gate.ResumeCalls(ctx, fulgur.DefaultRun, "test")
		}()
	})
}

// watch returns when a call has been held for the span, or after a minute.
func (p *pause) watch(ctx context.Context) {
	var since time.Time
	for end := time.Now().Add(time.Minute); time.Now().Before(end) && ctx.Err() == nil; time.Sleep(50 * time.Millisecond) {
		s, err := p.gate.PauseState(ctx, fulgur.DefaultRun)
		if err != nil || s.Held == 0 {
			continue
		}
		p.held = max(p.held, s.Held)
		if since.IsZero() {
			since = time.Now()
		}
		if time.Since(since) >= p.span {
			return
		}
	}
}

// check waits for its end and fails the test unless it held calls.
func (p *pause) check(t *testing.T) {
	t.Helper()
	p.once.Do(func() {}) // from here on it can't begin
	if p.done == nil {
		t.Error("the pause never began: no call came")
		return
	}
	if <-p.done; p.held == 0 || p.err != nil {
		t.Errorf("the pause held %d calls, %v", p.held, p.err)
	}
}

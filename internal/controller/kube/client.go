package kube

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/time/rate"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/fulgur-rl/fulgur"
)

// client speaks the few sentences of the Kubernetes API that the runner needs.
// How to find and trust the cluster is client-go's; why the rest is not,
// docs/design/0004 says.
type client struct {
	base  string
	http  *http.Client
	ns    string
	log   *slog.Logger
	limit *rate.Limiter
	sent  atomic.Int64

	mu       sync.Mutex
	failures int           // in a row, of the API server
	next     time.Time     // while it is broken: when the next request may go
	mended   chan struct{} // closed when it answers again
}

const (
	// While the API server is broken all requests together are at most one in
	// brokenFirst, and after some failures one in brokenMost.
	brokenFirst = time.Second
	brokenMost  = 15 * time.Second

	requestLimit = 30 * time.Second
)

// connect finds the cluster.
func connect(kubeconfig, contextName, namespace string, qps float64) (*client, error) {
	const op = "find the Kubernetes cluster"
	cfg, err := restConfig(kubeconfig, contextName)
	if err != nil {
		return nil, fulgur.E(fulgur.KindInvalid, op, "no kubeconfig leads to one: set runner.kubernetes.kubeconfig or KUBECONFIG, or run inside the cluster", err)
	}
	h, err := rest.HTTPClientFor(cfg)
	if err != nil {
		return nil, fulgur.E(fulgur.KindInvalid, op, "its credentials cannot be read", err)
	}
	host := cfg.Host
	if !strings.Contains(host, "://") {
		host = "https://" + host
	}
	return newClient(strings.TrimRight(host, "/"), h, namespace, qps), nil
}

func newClient(base string, h *http.Client, namespace string, qps float64) *client {
	if namespace == "" {
		namespace = "default"
	}
	if qps <= 0 {
		qps = 50
	}
	return &client{base: base, http: h, ns: namespace, log: slog.New(slog.DiscardHandler), limit: rate.NewLimiter(rate.Limit(qps), int(2*qps)+1), mended: make(chan struct{})}
}

func restConfig(kubeconfig, contextName string) (*rest.Config, error) {
	rules := clientcmd.NewDefaultClientConfigLoadingRules()
	if kubeconfig != "" {
		rules.ExplicitPath = kubeconfig
	} else if os.Getenv("KUBECONFIG") == "" {
		if cfg, err := rest.InClusterConfig(); err == nil {
			return cfg, nil
		}
		if home, err := os.UserHomeDir(); err == nil {
			if _, err := os.Stat(filepath.Join(home, ".kube", "config")); err != nil {
				return nil, err
			}
		}
	}
	return clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, &clientcmd.ConfigOverrides{CurrentContext: contextName}).ClientConfig()
}

// apiError is a refusal.
type apiError struct {
	status  int
	reason  metav1.StatusReason
	message string
	after   time.Duration // Retry-After
}

func (e *apiError) Error() string {
	return fmt.Sprintf("the API server answered %d %s: %s", e.status, e.reason, e.message)
}

// statusOf is the HTTP status of a refusal, 0 for any other error.
func statusOf(err error) int {
	var e *apiError
	if errors.As(err, &e) {
		return e.status
	}
	return 0
}

// broken says whether an error is the API server's own, so that trying again is
// all there is to do.
func broken(err error) bool {
	s := statusOf(err)
	return (s == 0 || s == http.StatusTooManyRequests || s >= 500) && !webhookFailed(err)
}

// webhookFailed says whether it is an admission webhook that does not answer: the API
// server does, and what it asks no webhook about goes on.
func webhookFailed(err error) bool {
	var e *apiError
	return errors.As(err, &e) && e.status >= 500 && strings.Contains(e.message, "failed calling webhook")
}

// path is the address of a resource of the namespace: "batch/v1/jobs", "v1/pods/x".
func (c *client) path(resource string) string {
	group, rest, _ := strings.Cut(resource, "/")
	if group == "v1" {
		return "/api/v1/namespaces/" + url.PathEscape(c.ns) + "/" + rest
	}
	version, rest, _ := strings.Cut(rest, "/")
	return "/apis/" + group + "/" + version + "/namespaces/" + url.PathEscape(c.ns) + "/" + rest
}

// call makes one request, and reads its answer into out if that is not nil.
func (c *client) call(ctx context.Context, method, path string, q url.Values, in, out any) error {
	ctx, done := context.WithTimeout(ctx, requestLimit)
	defer done()
	resp, err := c.send(ctx, method, path, q, in)
	if err != nil {
		return err
	}
	defer func() { _ = resp.Body.Close() }()
	if out == nil {
		_, _ = io.Copy(io.Discard, io.LimitReader(resp.Body, 1<<20))
		return nil
	}
	if b, ok := out.(*[]byte); ok {
		*b, err = io.ReadAll(io.LimitReader(resp.Body, 1<<20))
		return err
	}
	if err := json.NewDecoder(resp.Body).Decode(out); err != nil {
		err = fmt.Errorf("reading the answer to %s %s: %w", method, path, err)
		c.failed(c.seen(), 0)
		return err
	}
	return nil
}

// send makes one request and returns an answer of status 2xx. The caller closes
// its body.
func (c *client) send(ctx context.Context, method, path string, q url.Values, in any) (*http.Response, error) {
	var body io.Reader
	if in != nil {
		raw, err := json.Marshal(in)
		if err != nil {
			return nil, err
		}
		body = bytes.NewReader(raw)
	}
	at := c.base + path
	if len(q) > 0 {
		at += "?" + q.Encode()
	}
	req, err := http.NewRequestWithContext(ctx, method, at, body)
	if err != nil {
		return nil, err
	}
	req.Header.Set("Accept", "application/json")
	req.Header.Set("User-Agent", "fulgur")
	switch {
	case method == http.MethodPatch:
		req.Header.Set("Content-Type", "application/merge-patch+json")
	case in != nil:
		req.Header.Set("Content-Type", "application/json")
	}
	before, err := c.turn(ctx)
	if err != nil {
		return nil, err
	}
	c.sent.Add(1)
	resp, err := c.http.Do(req)
	if err != nil {
		if ctx.Err() == nil || errors.Is(ctx.Err(), context.DeadlineExceeded) {
			c.failed(before, 0)
		}
		return nil, err
	}
	if resp.StatusCode < 300 {
		c.worked()
		return resp, nil
	}
	defer func() { _ = resp.Body.Close() }()
	e := &apiError{status: resp.StatusCode, message: http.StatusText(resp.StatusCode)}
	var s metav1.Status
	raw, _ := io.ReadAll(io.LimitReader(resp.Body, 64<<10))
	if json.Unmarshal(raw, &s) == nil && s.Message != "" {
		e.reason, e.message = s.Reason, s.Message
	}
	if n, err := strconv.Atoi(resp.Header.Get("Retry-After")); err == nil {
		e.after = time.Duration(min(n, 60)) * time.Second
	}
	if broken(e) {
		c.failed(before, e.after)
	} else {
		c.worked()
	}
	return nil, e
}

// turn waits until a request may go: within the rate, and while the API server is
// broken one at a time, further and further apart. It returns the failures that
// were known by then.
func (c *client) turn(ctx context.Context) (int, error) {
	for {
		c.mu.Lock()
		n, now := c.failures, time.Now()
		if n == 0 {
			c.mu.Unlock()
			return 0, c.limit.Wait(ctx)
		}
		if !c.next.After(now) { // this one tries; the others wait for what it finds
			c.next = now.Add(interval(n + 1))
			c.mu.Unlock()
			return n, nil
		}
		at, mended := c.next, c.mended
		c.mu.Unlock()
		t := time.NewTimer(at.Sub(now))
		select {
		case <-t.C:
		case <-mended:
		case <-ctx.Done():
			t.Stop()
			return n, context.Cause(ctx)
		}
		t.Stop()
	}
}

// interval is the time between requests after n failures in a row.
func interval(n int) time.Duration {
	d := min(brokenFirst<<min(max(n-1, 0), 10), brokenMost)
	return d + time.Duration(rand.Int64N(int64(d/4)+1))
}

func (c *client) seen() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.failures
}

// failed notes a failure of the API server. One of a request that went out before
// an earlier failure was known says nothing new.
func (c *client) failed(before int, after time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if before != c.failures {
		return
	}
	if c.failures++; c.failures == 1 {
		c.log.Warn("the API server does not answer; what is wanted of it waits", "server", c.base)
	}
	c.next = time.Now().Add(max(interval(c.failures), after))
}

func (c *client) worked() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.failures > 0 {
		c.log.Info("the API server answers again", "server", c.base, "failures", c.failures)
		c.failures = 0
		close(c.mended)
		c.mended = make(chan struct{})
	}
}

// persist tries until the API server answers or ctx ends; a refusal is an answer.
func (c *client) persist(ctx context.Context, method, path string, q url.Values, in, out any) error {
	for {
		err := c.call(ctx, method, path, q, in, out)
		if err == nil || !broken(err) || ctx.Err() != nil {
			return err
		}
		if !pause(ctx, 100*time.Millisecond) { // turn does the waiting
			return err
		}
	}
}

// pause waits, and says whether ctx is still good.
func pause(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}

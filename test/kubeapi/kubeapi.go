// Package kubeapi is how tests ask a real API server: with the administrator's rights,
// in a namespace of the test's own. The typed clients would take every contributor's
// vet and test a minute to build.
package kubeapi

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

// Patience is how long anything may take on a busy machine.
const Patience = 90 * time.Second

// Space is a namespace.
type Space struct {
	Name string

	t    testing.TB
	base string
	http *http.Client
}

// Open connects to the cluster of a kubeconfig and makes a namespace, which goes at
// the test's end.
func Open(t testing.TB, kubeconfig string) *Space {
	t.Helper()
	cfg, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		t.Fatal(err)
	}
	cl, err := rest.HTTPClientFor(cfg)
	if err != nil {
		t.Fatal(err)
	}
	s := &Space{Name: "t-" + strings.ToLower(rand.Text()[:10]), t: t, base: cfg.Host, http: cl}
	s.Do(http.MethodPost, "/api/v1/namespaces", &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: s.Name}}, nil)
	t.Cleanup(func() { // without waiting: what is in it goes in the background
		_ = s.Call(context.Background(), http.MethodDelete, "/api/v1/namespaces/"+s.Name, nil, nil)
	})
	s.Until("the namespace has its service account", func() bool {
		return s.Call(t.Context(), http.MethodGet, s.Core("serviceaccounts/default"), nil, nil) == nil
	})
	return s
}

// Core is the path of something in the namespace, such as pods/NAME.
func (s *Space) Core(what string) string { return "/api/v1/namespaces/" + s.Name + "/" + what }

// Batch is the same of the Jobs' API.
func (s *Space) Batch(what string) string { return "/apis/batch/v1/namespaces/" + s.Name + "/" + what }

// Call makes one request. out is nil, a pointer to what the answer is read into, or a
// *[]byte for the answer as it is.
func (s *Space) Call(ctx context.Context, method, path string, in, out any) error {
	var body io.Reader
	if in != nil {
		raw, err := json.Marshal(in)
		if err != nil {
			return err
		}
		body = bytes.NewReader(raw)
	}
	req, err := http.NewRequestWithContext(ctx, method, s.base+path, body)
	if err != nil {
		return err
	}
	req.Header.Set("User-Agent", "fulgur-test")
	req.Header.Set("Content-Type", "application/json")
	if method == http.MethodPatch {
		req.Header.Set("Content-Type", "application/merge-patch+json")
	}
	resp, err := s.http.Do(req)
	if err != nil {
		return err
	}
	defer func() { _ = resp.Body.Close() }()
	raw, err := io.ReadAll(resp.Body)
	switch {
	case err != nil:
		return err
	case resp.StatusCode >= 300:
		return fmt.Errorf("%s %s: %s: %s", method, path, resp.Status, raw)
	}
	switch out := out.(type) {
	case nil:
		return nil
	case *[]byte:
		*out = raw
		return nil
	}
	return json.Unmarshal(raw, out)
}

// Do is Call; its failure is the test's.
func (s *Space) Do(method, path string, in, out any) {
	s.t.Helper()
	if err := s.Call(s.t.Context(), method, path, in, out); err != nil {
		s.t.Fatal(err)
	}
}

// Watch reads a watch of a collection; the caller closes it.
func (s *Space) Watch(ctx context.Context, path string) (io.ReadCloser, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, s.base+path+"?watch=1", nil)
	if err != nil {
		return nil, err
	}
	resp, err := s.http.Do(req)
	if err != nil {
		return nil, err
	}
	return resp.Body, nil
}

// Until waits for a condition that others bring about.
func (s *Space) Until(what string, ok func() bool) {
	s.t.Helper()
	s.Within(Patience, what, ok)
}

// Within is Until with another patience.
func (s *Space) Within(d time.Duration, what string, ok func() bool) {
	s.t.Helper()
	for end := time.Now().Add(d); !ok(); time.Sleep(50 * time.Millisecond) {
		if time.Now().After(end) {
			s.t.Fatalf("not true after %s: %s", d, what)
		}
	}
}

// Ready waits for a node to be Ready and free of taints.
func (s *Space) Ready(node string) {
	s.t.Helper()
	s.Until(node+" is ready", func() bool {
		var n corev1.Node
		if err := s.Call(s.t.Context(), http.MethodGet, "/api/v1/nodes/"+node, nil, &n); err != nil || len(n.Spec.Taints) > 0 {
			return false
		}
		for _, c := range n.Status.Conditions {
			if c.Type == corev1.NodeReady {
				return c.Status == corev1.ConditionTrue
			}
		}
		return false
	})
}

// Health answers as fulgur's gateway does; under /held as behind a proxy that
// buffers, and the model call of an agent.
func Health(w http.ResponseWriter, r *http.Request) {
	path, held := strings.CutPrefix(r.URL.Path, "/held")
	switch path {
	case "/healthz", "/chat/completions":
	case "/healthz/stream":
		for i := range 4 {
			time.Sleep(150 * time.Millisecond)
			_, _ = fmt.Fprintf(w, "data: %d\n\n", i)
			if !held {
				_ = http.NewResponseController(w).Flush()
			}
		}
	default:
		http.NotFound(w, r)
	}
}

// Package kubelet holds the tests that need the real kubelet, with containerd, runc
// and pods that have a network: ends as it tells them, memory limits, and the
// NetworkPolicy of a run, which an enforcer of the test's own makes true or leaves
// alone. run.sh (make test-kubelet) starts the node and runs them; FULGUR_KUBELET
// is its folder.
package kubelet

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"runtime/debug"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/fulgur-rl/fulgur/internal/controller/kube"
	"github.com/fulgur-rl/fulgur/internal/controller/plan"
	"github.com/fulgur-rl/fulgur/internal/controller/runnertest"
)

const (
	agentImage = "fulgur.test/agent:1" // this test binary
	probeImage = "localhost/fulgur:devel"

	// patience is how long anything may take on a busy machine.
	patience = 90 * time.Second
)

func TestMain(m *testing.M) {
	word, arg, _ := strings.Cut(os.Getenv("DO"), " ")
	switch word {
	case "eat":
		eat()
	case "dial":
		dial(strings.Fields(arg))
	case "world":
		fmt.Fprintln(os.Stderr, world(strings.Fields(arg)))
		os.Exit(1)
	}
	runnertest.Main()
	os.Exit(m.Run())
}

// eat takes memory until there is none.
func eat() {
	debug.SetGCPercent(-1)
	var all [][]byte
	for range 1024 {
		b := make([]byte, 1<<20)
		for i := 0; i < len(b); i += 4096 {
			b[i] = 1
		}
		all = append(all, b)
	}
	fmt.Fprintln(os.Stderr, "nothing stopped me at", len(all), "MiB")
	os.Exit(7)
}

// node is the node, and a namespace of the test's own on it.
type node struct {
	t    *testing.T
	dir  string
	ns   string
	api  string // the API server's address
	http *http.Client
}

// open waits for the node and makes a namespace.
func open(t *testing.T) *node {
	t.Helper()
	dir := os.Getenv("FULGUR_KUBELET")
	if dir == "" {
		t.Skip("make test-kubelet starts a node and runs this")
	}
	cfg, err := clientcmd.BuildConfigFromFlags("", filepath.Join(dir, "kube/kubeconfig"))
	if err != nil {
		t.Fatal(err)
	}
	cl, err := rest.HTTPClientFor(cfg)
	if err != nil {
		t.Fatal(err)
	}
	n := &node{t: t, dir: dir, ns: "t-" + strings.ToLower(rand.Text()[:10]), api: cfg.Host, http: cl}
	n.until("the node is ready", func() bool {
		var o corev1.Node
		if n.call(t.Context(), http.MethodGet, "/api/v1/nodes/node-1", nil, &o) != nil || len(o.Spec.Taints) > 0 {
			return false
		}
		for _, c := range o.Status.Conditions {
			if c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue {
				return true
			}
		}
		return false
	})
	if err := n.call(t.Context(), http.MethodPost, "/api/v1/namespaces", map[string]any{"metadata": map[string]any{"name": n.ns}}, nil); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { // without waiting: what is in it goes in the background
		_ = n.call(context.Background(), http.MethodDelete, "/api/v1/namespaces/"+n.ns, nil, nil)
	})
	n.until("the namespace has its service account", func() bool {
		return n.call(t.Context(), http.MethodGet, n.core("serviceaccounts/default"), nil, nil) == nil
	})
	return n
}

func (n *node) core(what string) string { return "/api/v1/namespaces/" + n.ns + "/" + what }

// call makes one request to the API server, with the administrator's rights.
func (n *node) call(ctx context.Context, method, path string, in, out any) error {
	var body io.Reader
	if in != nil {
		raw, err := json.Marshal(in)
		if err != nil {
			return err
		}
		body = strings.NewReader(string(raw))
	}
	req, err := http.NewRequestWithContext(ctx, method, n.api+path, body)
	if err != nil {
		return err
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := n.http.Do(req)
	if err != nil {
		return err
	}
	defer func() { _ = resp.Body.Close() }()
	raw, err := io.ReadAll(resp.Body)
	if err != nil {
		return err
	}
	if resp.StatusCode >= 300 {
		return fmt.Errorf("%s %s: %s: %s", method, path, resp.Status, raw)
	}
	if out == nil {
		return nil
	}
	return json.Unmarshal(raw, out)
}

// until waits for a condition that others bring about.
func (n *node) until(what string, ok func() bool) {
	n.t.Helper()
	for end := time.Now().Add(patience); !ok(); time.Sleep(50 * time.Millisecond) {
		if time.Now().After(end) {
			n.t.Fatalf("not true after %s: %s", patience, what)
		}
	}
}

// options are a runner's whose agent is this test binary.
func (n *node) options() kube.Options {
	return kube.Options{Kubeconfig: filepath.Join(n.dir, "kube/kubeconfig"), Namespace: n.ns, Run: "calc", Scope: n.ns,
		Image: agentImage, Env: map[string]string{runnertest.AgentEnv: "process", "DO": "input.do"}, Grace: time.Second, QPS: 200,
		Log: slog.New(slog.NewTextHandler(n.t.Output(), &slog.HandlerOptions{Level: slog.LevelInfo}))}
}

func (n *node) runner(o kube.Options) *kube.Runner {
	n.t.Helper()
	r, err := kube.New(o)
	if err != nil {
		n.t.Fatal(err)
	}
	n.t.Cleanup(func() { _ = r.Close() })
	return r
}

// What the kubelet says of a container's end is told as what it was.
func TestEnds(t *testing.T) {
	n := open(t)
	o := n.options()
	o.Memory = 64 << 20
	r := n.runner(o)
	for name, test := range map[string]struct {
		do   string
		want func(plan.Exit) bool
	}{
		"ok":     {"", func(x plan.Exit) bool { return x.Code == 0 && x.Failure == "" && x.Cause == plan.CauseAgent }},
		"exit":   {"say the last words; exit 3", func(x plan.Exit) bool { return x.Code == 3 && strings.Contains(x.Tail, "the last words") }},
		"oom":    {"eat", func(x plan.Exit) bool { return x.Failure == plan.ReasonMemory && x.Cause == plan.CauseAgent }},
		"secret": {"env OPENAI_API_KEY; exit 4", func(x plan.Exit) bool { return x.Code == 4 && strings.Contains(x.Tail, "OPENAI_API_KEY=[credential]") }},
	} {
		begin := time.Now()
		runnertest.Start(t, r, runnertest.Execution(name, test.do))
		x := runnertest.ExitWithin(t, r, name, patience)
		t.Logf("%s: %s %+v", name, time.Since(begin).Round(time.Millisecond), x)
		if !test.want(x) {
			t.Errorf("%s: exit %+v", name, x)
		}
	}
}

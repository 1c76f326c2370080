// Package kubelet holds the tests that need the real kubelet, with containerd, runc
// and pods that have a network: ends as it tells them, memory limits, and the
// NetworkPolicy of a run, which an enforcer of the test's own makes true or leaves
// alone. run.sh (make test-kubelet) starts the node and runs them; FULGUR_TEST_KUBELET
// is its folder.
package kubelet

import (
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"runtime/debug"
	"strings"
	"testing"
	"time"

	"github.com/fulgur-rl/fulgur/internal/controller/kube"
	"github.com/fulgur-rl/fulgur/internal/controller/plan"
	"github.com/fulgur-rl/fulgur/internal/controller/runnertest"
	"github.com/fulgur-rl/fulgur/test/kubeapi"
)

const (
	agentImage = "fulgur.test/agent:1" // this test binary
	probeImage = "localhost/fulgur:devel"

	patience = kubeapi.Patience
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
	*kubeapi.Space
	t   *testing.T
	dir string
	ns  string
}

// open waits for the node and makes a namespace.
func open(t *testing.T) *node {
	t.Helper()
	dir := os.Getenv("FULGUR_TEST_KUBELET")
	if dir == "" {
		t.Skip("make test-kubelet starts a node and runs this")
	}
	space := kubeapi.Open(t, filepath.Join(dir, "kube/kubeconfig"))
	n := &node{Space: space, t: t, dir: dir, ns: space.Name}
	n.Ready("node-1")
	return n
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

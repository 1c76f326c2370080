// Package cluster holds the tests that need a Kubernetes cluster: the runner of
// Jobs on a real control plane, and the node of test/kube that they run on.
// test/kube/run.sh (make test-kube) starts that cluster and runs them; FULGUR_KUBE
// is its folder.
package cluster

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/fulgur-rl/fulgur/internal/controller/runnertest"
)

// hostImage is an image that the test's nodes have: the machine's own files.
const hostImage = "kubebox.test/host:1"

// patience is how long anything may take on a busy machine.
const patience = 90 * time.Second

func TestMain(m *testing.M) {
	runnertest.Main()
	if text := os.Getenv(orderEnv); text != "" {
		fmt.Fprintln(os.Stderr, controllerProcess(text))
		os.Exit(1)
	}
	os.Exit(m.Run())
}

// box is the cluster, and a namespace of the test's own in it.
type box struct {
	t   *testing.T
	dir string // the cluster's
	ns  string
	api *api
	// share is a folder that test and agents see under one path, if the agents' template mounts it.
	share string
}

// open connects to the cluster and makes a namespace. At the test's end there
// must be no Job and no pod left in it, unless the test says so by leave.
func open(t *testing.T) *box {
	t.Helper()
	dir := os.Getenv("FULGUR_KUBE")
	if dir == "" {
		t.Skip("make test-kube starts a cluster and runs this")
	}
	cfg, err := clientcmd.BuildConfigFromFlags("", filepath.Join(dir, "kubeconfig"))
	if err != nil {
		t.Fatal(err)
	}
	cl, err := rest.HTTPClientFor(cfg)
	if err != nil {
		t.Fatal(err)
	}
	b := &box{t: t, dir: dir, ns: "t-" + strings.ToLower(rand.Text()[:10]), api: &api{base: cfg.Host, http: cl}, share: t.TempDir()}
	if err := os.Chmod(b.share, 0o777); err != nil {
		t.Fatal(err)
	}
	b.create("/api/v1/namespaces", &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: b.ns}}, nil)
	t.Cleanup(func() {
		// Without waiting: what is in it goes in the background.
		_ = b.api.call(context.Background(), http.MethodDelete, "/api/v1/namespaces/"+b.ns, nil, nil)
	})
	b.until("the namespace has its service account", func() bool {
		return b.api.call(t.Context(), http.MethodGet, b.core("serviceaccounts/default"), nil, nil) == nil
	})
	return b
}

// until waits for a condition that others bring about.
func (b *box) until(what string, ok func() bool) {
	b.t.Helper()
	b.within(patience, what, ok)
}

func (b *box) within(d time.Duration, what string, ok func() bool) {
	b.t.Helper()
	for end := time.Now().Add(d); !ok(); time.Sleep(50 * time.Millisecond) {
		if time.Now().After(end) {
			b.t.Fatalf("not true after %s: %s", d, what)
		}
	}
}

func (b *box) pods() []corev1.Pod {
	b.t.Helper()
	var l corev1.PodList
	b.get(b.core("pods"), &l)
	return l.Items
}

func (b *box) jobs() []batchv1.Job {
	b.t.Helper()
	var l batchv1.JobList
	b.get(b.batch("jobs"), &l)
	return l.Items
}

// empty waits until no Job and no pod is left in the namespace.
func (b *box) empty() {
	b.t.Helper()
	b.until("no Job and no pod is left", func() bool { return len(b.jobs()) == 0 && len(b.pods()) == 0 })
}

// down takes a part of the cluster away with SIGKILL until up is called.
func (b *box) down(part string) (up func()) {
	b.t.Helper()
	mark := filepath.Join(b.dir, part+".down")
	if err := os.WriteFile(mark, nil, 0o600); err != nil {
		b.t.Fatal(err)
	}
	up = func() {
		if err := os.Remove(mark); err != nil && !errors.Is(err, fs.ErrNotExist) {
			b.t.Error(err)
		}
	}
	b.t.Cleanup(up)
	text, err := os.ReadFile(filepath.Join(b.dir, part+".pid"))
	if err != nil {
		b.t.Fatal(err)
	}
	pid, err := strconv.Atoi(string(text))
	if err != nil {
		b.t.Fatal(err)
	}
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		b.t.Fatal(err)
	}
	return up
}

// answers waits until the API server serves again.
func (b *box) answers() {
	b.t.Helper()
	b.until("the API server answers", func() bool {
		return b.api.call(b.t.Context(), http.MethodGet, "/readyz", nil, nil) == nil
	})
}

// ready waits for a node to be Ready and free of taints.
func (b *box) ready(node string) {
	b.t.Helper()
	b.until(node+" is ready", func() bool {
		var n corev1.Node
		if err := b.api.call(b.t.Context(), http.MethodGet, "/api/v1/nodes/"+node, nil, &n); err != nil || len(n.Spec.Taints) > 0 {
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

// annotate sets an annotation of a pod, which the test's node acts on.
func (b *box) annotate(pod, name, value string) {
	b.t.Helper()
	patch := json.RawMessage(fmt.Sprintf(`{"metadata":{"annotations":{%q:%q}}}`, name, value))
	if err := b.api.call(b.t.Context(), http.MethodPatch, b.core("pods/"+pod), patch, nil); err != nil {
		b.t.Fatal(err)
	}
}

func (b *box) core(what string) string  { return "/api/v1/namespaces/" + b.ns + "/" + what }
func (b *box) batch(what string) string { return "/apis/batch/v1/namespaces/" + b.ns + "/" + what }

func (b *box) get(path string, out any) {
	b.t.Helper()
	if err := b.api.call(b.t.Context(), http.MethodGet, path, nil, out); err != nil {
		b.t.Fatal(err)
	}
}

func (b *box) create(path string, in, out any) {
	b.t.Helper()
	if err := b.api.call(b.t.Context(), http.MethodPost, path, in, out); err != nil {
		b.t.Fatal(err)
	}
}

func (b *box) remove(path string) {
	b.t.Helper()
	if err := b.api.call(b.t.Context(), http.MethodDelete, path, nil, nil); err != nil {
		b.t.Fatal(err)
	}
}

// api asks the API server, with the administrator's rights. The typed clients
// would take every contributor's vet and test a minute to build.
type api struct {
	base string
	http *http.Client
}

// call makes one request. out is nil, a pointer to what the answer is read into,
// or a *[]byte for the answer as it is.
func (a *api) call(ctx context.Context, method, path string, in, out any) error {
	var body io.Reader
	if in != nil {
		raw, err := json.Marshal(in)
		if err != nil {
			return err
		}
		body = bytes.NewReader(raw)
	}
	req, err := http.NewRequestWithContext(ctx, method, a.base+path, body)
	if err != nil {
		return err
	}
	req.Header.Set("User-Agent", "cluster.test")
	req.Header.Set("Content-Type", "application/json")
	if method == http.MethodPatch {
		req.Header.Set("Content-Type", "application/merge-patch+json")
	}
	resp, err := a.http.Do(req)
	if err != nil {
		return err
	}
	defer func() { _ = resp.Body.Close() }()
	raw, err := io.ReadAll(resp.Body)
	switch {
	case err != nil:
		return err
	case resp.StatusCode == http.StatusNotFound:
		return fmt.Errorf("%s %s: %w", method, path, errAbsent)
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

var errAbsent = errors.New("not found")

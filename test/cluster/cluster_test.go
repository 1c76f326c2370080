// Package cluster holds the tests that need a Kubernetes cluster: the runner of
// Jobs on a real control plane, and the node of test/kube that they run on.
// test/kube/run.sh (make test-kube) starts that cluster and runs them; FULGUR_TEST_KUBE
// is its folder.
package cluster

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"

	"github.com/fulgur-rl/fulgur/internal/controller/runnertest"
	"github.com/fulgur-rl/fulgur/test/kubeapi"
)

// hostImage is an image that the test's nodes have: the machine's own files.
const hostImage = "kubebox.test/host:1"

// patience is how long anything may take on a busy machine.
const patience = kubeapi.Patience

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
	*kubeapi.Space
	t   *testing.T
	dir string // the cluster's
	ns  string
	// share is a folder that test and agents see under one path, if the agents' template mounts it.
	share string
}

// open connects to the cluster and makes a namespace. At the test's end there
// must be no Job and no pod left in it, unless the test says so by leave.
func open(t *testing.T) *box {
	t.Helper()
	dir := os.Getenv("FULGUR_TEST_KUBE")
	if dir == "" {
		t.Skip("make test-kube starts a cluster and runs this")
	}
	space := kubeapi.Open(t, filepath.Join(dir, "kubeconfig"))
	b := &box{Space: space, t: t, dir: dir, ns: space.Name, share: t.TempDir()}
	if err := os.Chmod(b.share, 0o777); err != nil {
		t.Fatal(err)
	}
	return b
}

func (b *box) pods() []corev1.Pod {
	b.t.Helper()
	var l corev1.PodList
	b.get(b.Core("pods"), &l)
	return l.Items
}

func (b *box) jobs() []batchv1.Job {
	b.t.Helper()
	var l batchv1.JobList
	b.get(b.Batch("jobs"), &l)
	return l.Items
}

// empty waits until no Job and no pod is left in the namespace.
func (b *box) empty() {
	b.t.Helper()
	b.Until("no Job and no pod is left", func() bool { return len(b.jobs()) == 0 && len(b.pods()) == 0 })
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
	b.Until("the API server answers", func() bool {
		return b.Call(b.t.Context(), http.MethodGet, "/readyz", nil, nil) == nil
	})
}

// annotate sets an annotation of a pod, which the test's node acts on.
func (b *box) annotate(pod, name, value string) {
	b.t.Helper()
	patch := json.RawMessage(fmt.Sprintf(`{"metadata":{"annotations":{%q:%q}}}`, name, value))
	if err := b.Call(b.t.Context(), http.MethodPatch, b.Core("pods/"+pod), patch, nil); err != nil {
		b.t.Fatal(err)
	}
}

func (b *box) get(path string, out any) {
	b.t.Helper()
	b.Do(http.MethodGet, path, nil, out)
}

func (b *box) create(path string, in, out any) {
	b.t.Helper()
	b.Do(http.MethodPost, path, in, out)
}

func (b *box) remove(path string) {
	b.t.Helper()
	b.Do(http.MethodDelete, path, nil, nil)
}

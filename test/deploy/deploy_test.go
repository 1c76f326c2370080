// Package deploy_test installs deploy/ in a real control plane and lets the example
// train there. run.sh says how.
package deploy_test

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/kustomize/api/krusty"
	"sigs.k8s.io/kustomize/kyaml/filesys"
)

// patience is how long anything may take on a busy machine.
const patience = 6 * time.Minute

func TestCalcTrainsFromTheBase(t *testing.T) {
	dir := os.Getenv("FULGUR_TEST_KUBE")
	if dir == "" {
		t.Skip("needs a cluster: make test-deploy starts one and runs this")
	}
	config, err := clientcmd.BuildConfigFromFlags("", filepath.Join(dir, "kubeconfig"))
	if err != nil {
		t.Fatal(err)
	}
	k, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	ctx := t.Context()
	before, err := os.Stat(filepath.Join(dir, "audit.log"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		for _, ns := range []string{"fulgur", "fulgur-agents"} {
			_ = k.CoreV1().Namespaces().Delete(context.Background(), ns, metav1.DeleteOptions{})
		}
	})
	// What docs/deploy.md says, step by step.
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "fulgur"}}
	if _, err := k.CoreV1().Namespaces().Create(ctx, ns, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	key := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "fulgur-server"}, StringData: map[string]string{"key": "the-server-key"}}
	if _, err := k.CoreV1().Secrets("fulgur").Create(ctx, key, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	apply(t, k.CoreV1().RESTClient(), "../../deploy/testdata/kubebox")

	var job *batchv1.Job
	for end := time.Now().Add(patience); ; time.Sleep(500 * time.Millisecond) {
		if job, err = k.BatchV1().Jobs("fulgur").Get(ctx, "fulgur-trainer", metav1.GetOptions{}); err != nil {
			t.Fatal(err)
		}
		if job.Status.Succeeded > 0 {
			break
		}
		if time.Now().After(end) || job.Status.Failed > 6 {
			for _, what := range []string{"fulgur-gateway", "fulgur-controller", "fulgur-trainer"} {
				t.Logf("%s:\n%s", what, logs(t, k, what))
			}
			t.Fatalf("the trainer has not ended well: %+v", job.Status)
		}
	}
	if said := logs(t, k, "fulgur-trainer"); !strings.Contains(said, "finished 1 steps") {
		t.Errorf("the trainer said:\n%s", said)
	}
	// The agents were Jobs, in the other namespace, and are gone.
	for end := time.Now().Add(patience); ; time.Sleep(500 * time.Millisecond) {
		jobs, err := k.BatchV1().Jobs("fulgur-agents").List(ctx, metav1.ListOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if len(jobs.Items) == 0 {
			break
		}
		if time.Now().After(end) {
			t.Fatalf("%d Jobs are left", len(jobs.Items))
		}
	}
	audit, err := os.ReadFile(filepath.Join(dir, "audit.log"))
	if err != nil {
		t.Fatal(err)
	}
	made := 0
	for line := range bytes.Lines(audit[before.Size():]) {
		if !bytes.Contains(line, []byte("system:serviceaccount:fulgur:fulgur-controller")) {
			continue
		}
		if bytes.Contains(line, []byte(`"code":403`)) {
			t.Errorf("the controller lacks a right: %s", line)
		}
		if bytes.Contains(line, []byte(`"verb":"create"`)) && bytes.Contains(line, []byte("/namespaces/fulgur-agents/jobs")) {
			made++
		}
	}
	if made < 10 { // 8 to train, 2 and 2 to validate
		t.Errorf("the controller made %d Jobs", made)
	}
	doctor(t, k)
}

// doctor has the controller's pod look at the cluster, with the controller's rights, as
// `kubectl exec` into it would.
func doctor(t *testing.T, k *kubernetes.Clientset) {
	t.Helper()
	d, err := k.AppsV1().Deployments("fulgur").Get(t.Context(), "fulgur-controller", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	const name = "fulgur-doctor"
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"app.kubernetes.io/name": name}}, Spec: d.Spec.Template.Spec}
	pod.Spec.RestartPolicy = corev1.RestartPolicyNever
	pod.Spec.Containers[0].Args = []string{"doctor", "/etc/fulgur/run.yaml"}
	if _, err := k.CoreV1().Pods("fulgur").Create(t.Context(), pod, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	for end := time.Now().Add(patience); ; time.Sleep(500 * time.Millisecond) {
		if pod, err = k.CoreV1().Pods("fulgur").Get(t.Context(), name, metav1.GetOptions{}); err != nil {
			t.Fatal(err)
		}
		if pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed || time.Now().After(end) {
			break
		}
	}
	said := logs(t, k, name)
	for _, want := range []string{"system:serviceaccount:fulgur:fulgur-controller has the", "node node-1: gateway", "can be had, on"} {
		if !strings.Contains(said, want) {
			t.Errorf("%q is not in what doctor says", want)
		}
	}
	if pod.Status.Phase != corev1.PodSucceeded {
		t.Errorf("%s", pod.Status.Phase)
	}
	t.Logf("doctor:\n%s", said)
}

// apply is `kubectl apply --server-side -k`.
func apply(t *testing.T, c rest.Interface, dir string) {
	t.Helper()
	m, err := krusty.MakeKustomizer(krusty.MakeDefaultOptions()).Run(filesys.MakeFsOnDisk(), dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range m.Resources() {
		y, err := r.AsYAML()
		if err != nil {
			t.Fatal(err)
		}
		id := r.GetGvk()
		path := "/apis/" + id.Group + "/" + id.Version
		if id.Group == "" {
			path = "/api/" + id.Version
		}
		if ns := r.GetNamespace(); ns != "" && id.Kind != "Namespace" {
			path += "/namespaces/" + ns
		}
		plural := strings.ToLower(id.Kind) + "s"
		plural = strings.Replace(plural, "policys", "policies", 1)
		err = c.Patch(types.ApplyPatchType).AbsPath(path, plural, r.GetName()).Param("fieldManager", "test").Param("force", "true").Param("fieldValidation", "Strict").
			Body(y).Do(t.Context()).Error()
		if err != nil {
			t.Fatalf("%s %s: %v", id.Kind, r.GetName(), err)
		}
	}
}

// logs are the ends of the logs of an app's pods.
func logs(t *testing.T, k *kubernetes.Clientset, app string) string {
	t.Helper()
	pods, err := k.CoreV1().Pods("fulgur").List(t.Context(), metav1.ListOptions{LabelSelector: "app.kubernetes.io/name=" + app})
	if err != nil {
		t.Fatal(err)
	}
	var out strings.Builder
	for _, p := range pods.Items {
		lines := int64(40)
		b, err := k.CoreV1().Pods("fulgur").GetLogs(p.Name, &corev1.PodLogOptions{TailLines: &lines}).Do(t.Context()).Raw()
		fmt.Fprintf(&out, "%s (%s): %s %v\n", p.Name, p.Status.Phase, b, err)
	}
	return out.String()
}

package kube

import (
	"crypto/rand"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/fulgur-rl/fulgur/internal/controller/plan"
	"github.com/fulgur-rl/fulgur/internal/controller/runnertest"
)

// BenchmarkJobs is 200 no-op Jobs, by this runner and by kubectl, on the cluster of
// FULGUR_TEST_KUBE (test/kube/run.sh --with go test -run ^$ -bench Jobs -benchtime 1x …).
func BenchmarkJobs(b *testing.B) {
	dir := os.Getenv("FULGUR_TEST_KUBE")
	kubectl, err := exec.LookPath("kubectl")
	if dir == "" || err != nil {
		b.Skip("test/kube/run.sh --with starts a cluster; kubectl is what this is compared with")
	}
	const n = 200
	config := filepath.Join(dir, "kubeconfig")
	run := func(stdin string, args ...string) {
		b.Helper()
		cmd := exec.Command(kubectl, append([]string{"--kubeconfig", config}, args...)...)
		cmd.Stdin = strings.NewReader(stdin)
		if out, err := cmd.CombinedOutput(); err != nil {
			b.Fatalf("kubectl %v: %v\n%s", args, err, out)
		}
	}
	space := func() string {
		ns := "b-" + strings.ToLower(rand.Text()[:10])
		run("", "create", "namespace", ns)
		b.Cleanup(func() { run("", "delete", "namespace", ns, "--wait=false") })
		for end := time.Now().Add(time.Minute); exec.Command(kubectl, "--kubeconfig", config, "-n", ns, "get", "serviceaccount", "default").Run() != nil && time.Now().Before(end); {
			time.Sleep(50 * time.Millisecond)
		}
		return ns
	}
	const image = "kubebox.test/host:1"
	for b.Loop() {
		ns := space()
		c, err := connect(config, "", ns, 0)
		if err != nil {
			b.Fatal(err)
		}
		r, err := newRunner(Options{Image: image, Command: []string{"true"}, Scope: ns, Grace: time.Second}, c)
		if err != nil {
			b.Fatal(err)
		}
		begin := time.Now()
		for i := range n {
			if _, err := r.Start(b.Context(), runnertest.Execution(fmt.Sprint("j", i), "")); err != nil {
				b.Fatal(err)
			}
		}
		for left := n; left > 0; {
			if ev := <-r.Events(); ev.Exit != nil {
				if ev.Exit.Code != 0 || ev.Exit.Failure != "" {
					b.Errorf("%s: %+v", ev.Key.Rollout, *ev.Exit)
				}
				left--
				r.Acknowledge([]plan.Key{ev.Key})
			}
		}
		ours := time.Since(begin)
		for end := time.Now().Add(time.Minute); time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
			r.mu.Lock()
			left := len(r.byName)
			r.mu.Unlock()
			if left == 0 {
				break
			}
		}
		requests := r.c.sent.Load()
		if err := r.Close(); err != nil {
			b.Error(err)
		}

		ns = space()
		var all strings.Builder
		for i := range n {
			fmt.Fprintf(&all, "apiVersion: batch/v1\nkind: Job\nmetadata: {name: j%d}\nspec: {backoffLimit: 0, template: {spec: {restartPolicy: Never, containers: [{name: agent, image: %q, command: ['true']}]}}}\n---\n", i, image)
		}
		begin = time.Now()
		run(all.String(), "-n", ns, "apply", "-f", "-")
		run("", "-n", ns, "wait", "--for=condition=complete", "--timeout=300s", "job", "--all")
		theirs := time.Since(begin)
		b.ReportMetric(ours.Seconds(), "fulgur-s")
		b.ReportMetric(theirs.Seconds(), "kubectl-s")
		b.ReportMetric(ours.Seconds()/theirs.Seconds(), "ratio")
		b.ReportMetric(float64(requests)/n, "requests/job")
	}
}

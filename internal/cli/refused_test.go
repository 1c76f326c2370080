package cli

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// forbidding is the kubeconfig of a cluster that lets this user list no Jobs.
func forbidding(t *testing.T) string {
	t.Helper()
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusForbidden)
		_, _ = io.WriteString(w, `{"kind":"Status","code":403,"reason":"Forbidden","message":"jobs.batch is forbidden"}`)
	}))
	t.Cleanup(s.Close)
	file := filepath.Join(t.TempDir(), "kubeconfig")
	text := fmt.Sprintf(`{apiVersion: v1, kind: Config, current-context: c, clusters: [{name: c, cluster: {server: %q}}], users: [{name: u, user: {}}], contexts: [{name: c, context: {cluster: c, user: u}}]}`, s.URL)
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

// A controller that cannot go on is no process that lives and does nothing: train ends,
// so does a controller of a run file; one of all runs tries again, and /healthz says so.
func TestControllerThatIsRefused(t *testing.T) {
	t.Parallel()
	const cause = "jobs.batch is forbidden"
	flags := []string{"--set", "runner.kind=kubernetes", "--set", "runner.image=x", "--set", "runner.kubernetes.isolation=none", "--set", "runner.kubernetes.kubeconfig=" + forbidding(t)}
	start(t, tinyDir(t), nil, append([]string{"train", "run.yaml"}, flags...)...).ends(30*time.Second, exitFailed, cause)

	server := start(t, t.TempDir(), nil, "serve", "--listen", "127.0.0.1:0", "--key", "K", "--model-dir", "builtin:calc")
	env := []string{"FULGUR_SERVER=" + server.says("listening on "), "FULGUR_KEY=K"}
	dir := tinyDir(t)
	early := start(t, dir, env, append([]string{"controller", "run.yaml"}, flags...)...)
	early.notes("running the agents of ") // it waits for the run
	trains := start(t, dir, env, append([]string{"train", "run.yaml"}, flags...)...)
	early.ends(30*time.Second, exitFailed, cause)
	all := start(t, t.TempDir(), env, "controller", "--dir", dir, "--listen", "127.0.0.1:0")
	metrics := strings.TrimSpace(all.notes("metrics at "))
	all.notes("are not run here: ")
	waitFor(t, "/healthz says so", func() bool {
		resp, err := http.Get(strings.Replace(metrics, "/metrics", "/healthz", 1))
		if err != nil {
			return false
		}
		defer resp.Body.Close()
		text, _ := io.ReadAll(resp.Body)
		return resp.StatusCode == http.StatusServiceUnavailable && strings.Contains(string(text), cause)
	})
	start(t, dir, env, append([]string{"controller", "run.yaml"}, flags...)...).ends(30*time.Second, exitFailed, cause)
	all.signal(os.Interrupt)
	all.ends(20*time.Second, exitOK)
	trains.signal(os.Interrupt)
	trains.ends(20*time.Second, exitInterrupted)
}

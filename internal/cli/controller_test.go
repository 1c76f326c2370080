package cli

import (
	"io"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"
)

// A controller without a run file runs the agents of two runs that come later, and
// tells what they did.
func TestControllerOfAllRuns(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("trains two runs: left out by -short, make test runs it")
	}
	server := start(t, t.TempDir(), nil, "serve", "--listen", "127.0.0.1:0", "--key", "K", "--model-dir", "builtin:calc")
	env := []string{"FULGUR_SERVER=" + server.says("listening on "), "FULGUR_KEY=K"}
	dir := tinyDir(t)
	ctl := start(t, t.TempDir(), env, "controller", "--dir", dir, "--slots", "3", "--listen", "127.0.0.1:0")
	metrics := strings.TrimSpace(ctl.notes("metrics at "))
	one := start(t, dir, env, "train", "run.yaml", "--set", "run=one")
	two := start(t, dir, env, "train", "run.yaml", "--set", "run=two", "--set", "runner.slots=2")
	ctl.notes("running the agents of one")
	ctl.notes("running the agents of two")
	resp, err := http.Get(metrics)
	if err != nil {
		t.Fatal(err)
	}
	text, err := io.ReadAll(resp.Body)
	_ = resp.Body.Close()
	if err != nil || !strings.Contains(string(text), `fulgur_controller_queued{run="one",runner="local"}`) {
		t.Errorf("metrics, %v:\n%s", err, text)
	}
	one.ends(time.Minute, exitOK)
	two.ends(time.Minute, exitOK)
	ctl.notes("run one has ended")
	ctl.signal(os.Interrupt)
	ctl.ends(20*time.Second, exitOK)
}

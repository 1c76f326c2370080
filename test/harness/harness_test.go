// Package harness tries the real binary with other people's software: agents on
// their SDKs in training, the SDKs and harnesses that people ship at fulgur serve
// with a scripted model behind it, and Agent Lightning v1's own client, controllers
// and rollout manager. run.sh runs it; run/ holds a script for each harness.
package harness

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"
)

// cli runs the binary in dir and returns its standard output.
func cli(t *testing.T, dir string, args ...string) string {
	t.Helper()
	return command(t, dir, binary(t), args...)
}

func command(t *testing.T, dir, name string, args ...string) string {
	t.Helper()
	c := exec.Command(name, args...)
	c.Dir = dir
	var stderr strings.Builder
	c.Stderr = &stderr
	began := time.Now()
	out, err := c.Output()
	if err != nil {
		t.Fatalf("%s %s: %v\n%s%s", filepath.Base(name), strings.Join(args, " "), err, out, &stderr)
	}
	t.Logf("%s %s: %s\n%s", filepath.Base(name), args[0], time.Since(began).Round(100*time.Millisecond), &stderr)
	return string(out)
}

// rollout is what the tests read of `fulgur rollouts list --json`.
type rollout struct {
	ID      string   `json:"id"`
	Reward  *float64 `json:"reward"`
	Outcome struct {
		Class, Reason, Message string
		Calls                  int
	} `json:"outcome"`
}

func rollouts(t *testing.T, dir string, want int) []rollout {
	t.Helper()
	var all []rollout
	for line := range strings.Lines(cli(t, dir, "rollouts", "list", "--run", "calc", "--limit", "0", "--json")) {
		var r rollout
		if err := json.Unmarshal([]byte(line), &r); err != nil {
			t.Fatal(err)
		}
		if r.Outcome.Class != "ok" || r.Outcome.Calls == 0 || r.Reward == nil {
			t.Errorf("rollout %s: %+v", r.ID, r)
		}
		all = append(all, r)
	}
	if len(all) != want {
		t.Errorf("%d rollouts, want %d", len(all), want)
	}
	return all
}

// TestPythonAgents trains the Python agent as examples/calc/run.yaml documents
// it, with the SDK that its build line installs; that environment then runs the
// agent's own tests, and an agent of Agent Lightning v1.
func TestPythonAgents(t *testing.T) {
	needHarness(t, false)
	root, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	runFile := filepath.Join(root, "examples", "calc", "run.yaml")
	b, err := os.ReadFile(runFile)
	if err != nil {
		t.Fatal(err)
	}
	line := regexp.MustCompile(`(?m)^# agent: \{build: (\[.*?calc-python.*?\]), command: (\[.*?\]), worker: true, input: .*\}$`).FindStringSubmatch(string(b))
	if line == nil {
		t.Fatal("examples/calc/run.yaml documents no Python worker")
	}
	small := []string{"train", runFile, "--set", "validation.every=0", "--set", "data.test=", "--set", "algorithm.group_size=4", "--set", "algorithm.groups_per_step=4"}

	dir := t.TempDir()
	cli(t, dir, append(small, "--set", "steps=3", "--set", "agent.build="+line[1], "--set", "agent.command="+line[2], "--set", "agent.worker=true")...)
	rollouts(t, dir, 3*16)

	python := filepath.Join(dir, "runs", "calc", "venv", "bin", "python")
	command(t, filepath.Join(root, "examples", "calc-python"), python, "test_agent.py")

	t.Run("an agent of Agent Lightning v1", func(t *testing.T) {
		script := filepath.Join(root, "test", "harness", "agl_agent.py")
		dir := t.TempDir()
		cli(t, dir, append(small, "--set", "steps=1", "--set", "agent.build=[]", "--set", fmt.Sprintf("agent.command=[%q, %q]", python, script),
			"--set", "reward.builtin=", "--set", "reward.expected=", "--set", "reward.from=agent",
			"--set", "compat=[v1-agents]")...) // it knows no name of the model: what it asks for under any name is its own
		for _, r := range rollouts(t, dir, 16) {
			if r.Reward != nil && *r.Reward != 0.5 && *r.Reward != 0.25 {
				t.Errorf("rollout %s: reward %g is not the agent's", r.ID, *r.Reward)
			}
		}
	})
}

package kubelet

import (
	"bufio"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	batchv1 "k8s.io/api/batch/v1"

	"github.com/fulgur-rl/fulgur"
	"github.com/fulgur-rl/fulgur/internal/api/client"
)

// gradedJob is the Job of agents that have the system's programs.
const gradedJob = `
apiVersion: batch/v1
kind: Job
metadata: {name: "{{ job_name }}"}
spec:
  template:
    spec:
      {% if input.user %}securityContext: {runAsUser: 1000, runAsNonRoot: true}{% endif %}
      containers:
      - name: agent
        image: fulgur.test/agent:1
        command: [/usr/bin/sh, -c, 'eval "$DO"']
        env: [{name: DO, value: {{ input.do | yaml_escape }}}]
        volumeMounts:
        - {name: usr, mountPath: /usr, readOnly: true}
        - {name: lib, mountPath: /lib, readOnly: true}
        - {name: lib64, mountPath: /lib64, readOnly: true}
      volumes:
      - {name: usr, hostPath: {path: /usr}}
      - {name: lib, hostPath: {path: /usr/lib}}
      - {name: lib64, hostPath: {path: /usr/lib64}}
`

const gradedRun = `version: 1
run: fix
model: builtin:calc
data: {train: train.jsonl}
agent: {command: [unused], workspace: true, timeout: 20s}
outcomes: {agent_failure: {reward: graded}}
runner:
  kind: kubernetes
  job_template: job.yaml
  namespace: %s
  slots: 4
  kubernetes: {probe_image: "localhost/fulgur:devel", prepull: 0}
reward:
  command: [/usr/bin/python3, grade.py]
  tests: [/usr/bin/python3, -m, pytest, -q, -p, "no:cacheprovider"]
  pristine: pristine
  paths: [calc.py, "lib/**"]
  timeout: %s
  withhold: [input.answer]
`

const gradedTests = `import os, socket, urllib.request, urllib.error
from calc import add

def test_add():
    assert add(1, 2) == 3

def test_alone():
    assert not [n for n in os.environ if "KEY" in n or n in ("DO", "FULGUR_ROLLOUT_ID")], os.environ
    assert not os.path.exists("/var/run/secrets") and not os.path.exists("/fulgur-copy") and not os.path.exists("/fulgur-relay")
    for address in (("1.1.1.1", 443), ("10.8.0.3", 53)):
        try:
            socket.create_connection(address, 1)
        except OSError:
            continue
        assert False, address

def test_gateway():
    for path in ("/api/v2/runs", "/api/v2/rollouts/honest/attempts/0/artifacts", "/v1/models"):
        try:
            urllib.request.urlopen("%s" + path, timeout=5)
        except urllib.error.HTTPError as e:
            assert e.code in (401, 404), (path, e.code)
        else:
            assert False, path
`

// graderScript believes the exit code and the count of tests together.
const graderScript = `import json, sys
x = json.load(sys.stdin)
assert x["input"]["answer"] == "hidden"
print(x, file=sys.stderr)
print(1.0 if x["tests"]["exit_code"] == 0 and "3 passed" in x["tests"]["output"] else 0.0)
`

// program is a fulgur that runs beside the test.
type program struct {
	*exec.Cmd
	mu    sync.Mutex
	lines []string
}

func startFulgur(t *testing.T, n *node, dir string, args ...string) *program {
	t.Helper()
	p := &program{Cmd: exec.Command(filepath.Join(n.dir, "fulgur"), args...)}
	p.Dir = dir
	out, err := p.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	p.Stdout = p.Stderr // what it says, and what it notes
	if err := p.Start(); err != nil {
		t.Fatal(err)
	}
	read := make(chan struct{})
	go func() {
		defer close(read)
		for s := bufio.NewScanner(out); s.Scan(); {
			p.mu.Lock()
			p.lines = append(p.lines, s.Text())
			p.mu.Unlock()
		}
	}()
	t.Cleanup(func() {
		_ = p.Process.Kill()
		<-read
		_ = p.Wait()
		if t.Failed() {
			t.Logf("%s:\n%s", args[0], strings.Join(p.lines, "\n"))
		}
	})
	return p
}

// says waits for a line, and returns what stands behind the mark.
func (p *program) says(t *testing.T, mark string) string {
	t.Helper()
	for end := time.Now().Add(patience); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		p.mu.Lock()
		for _, l := range p.lines {
			if _, after, ok := strings.Cut(l, mark); ok {
				p.mu.Unlock()
				return strings.Fields(after + " ")[0]
			}
		}
		p.mu.Unlock()
	}
	t.Fatalf("%s does not say %q", p.Path, mark)
	return ""
}

// TestGrader has a server, a controller, and agents on a real node leave honest and other
// work: what is in their workspaces comes out by the artifact route, is laid over
// the pristine copy, and tested in a pod that holds nothing.
func TestGrader(t *testing.T) {
	n := open(t)
	n.startWorld()
	n.enforce()
	dir := t.TempDir()
	server := startFulgur(t, n, dir, "serve", "--listen", "10.9.9.1:0", "--key", "K", "--store", "sqlite:store.db")
	url := server.says(t, "listening on ")
	for name, text := range map[string]string{
		"run.yaml": fmt.Sprintf(gradedRun, n.ns, "15s"), "job.yaml": gradedJob, "train.jsonl": `{"do": "true", "answer": "hidden"}` + "\n", "grade.py": graderScript,
		"pristine/calc.py": "def add(a, b): return a - b\n", "pristine/tests/test_calc.py": fmt.Sprintf(gradedTests, url),
	} {
		name = filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(name, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	c, err := client.New(url, "K", client.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	if err := c.PutRun(t.Context(), fulgur.Run{ID: "fix", Model: "m"}); err != nil {
		t.Fatal(err)
	}
	work := []struct {
		id, do string
		user   bool
		reward float64
		flag   string
		reason string // of an agent that failed, and is graded all the same
	}{
		{"honest", "umask 077; echo 'def add(a, b): return a + b' >calc.py", false, 1, "", ""},
		{"another-user", "umask 077; echo 'def add(a, b): return a + b' >calc.py", true, 1, "", ""},
		{"nothing", "true", false, 0, "", ""},
		{"conftest", `printf 'import pytest\n@pytest.hookimpl(hookwrapper=True)\ndef pytest_runtest_makereport(item, call):\n    o = yield\n    o.get_result().outcome = "passed"\n' >conftest.py`, false, 0, "conftest.py", ""},
		{"sitecustomize", "mkdir lib; echo 'import os' >sitecustomize.py; cp sitecustomize.py lib", false, 0, "sitecustomize.py", ""},
		{"shim", "mkdir lib; printf '#!/usr/bin/sh\\necho 3 passed\\n' >lib/python3; chmod +x lib/python3", false, 0, "stands in for a program", ""},
		{"link", "ln -s /etc/passwd calc.py", false, 0, "no regular file", ""},
		{"large", "/usr/bin/truncate -s 300M calc.py", false, 0, "larger", ""},
		{"hang", "echo 'import time; time.sleep(1000)' >calc.py", false, 0, "", ""},
		{"early-exit", "echo 'import os; print(\"3 passed\"); os._exit(1)' >calc.py", false, 0, "", ""},
		{"exits-3", "echo 'def add(a, b): return a + b' >calc.py; exit 3", false, 1, "", "exit"},
		{"is-late", "echo 'def add(a, b): return a + b' >calc.py; /usr/bin/sleep 1000", false, 1, "", "timeout"},
	}
	specs := make([]fulgur.RolloutSpec, 0, len(work)+1)
	add := func(id, do string, user bool) {
		input, err := json.Marshal(map[string]any{"do": do, "answer": "hidden", "user": user})
		if err != nil {
			t.Fatal(err)
		}
		specs = append(specs, fulgur.RolloutSpec{ID: fulgur.RolloutID(id), Run: "fix", Input: input, Withhold: []string{"input.answer"}})
	}
	for _, w := range work {
		add(w.id, w.do, w.user)
	}
	if _, err := c.CreateRollouts(t.Context(), specs); err != nil {
		t.Fatal(err)
	}
	control := []string{"controller", "run.yaml", "--server", url, "--key", "K"}
	controller := startFulgur(t, n, dir, control...)
	ended := func(id fulgur.RolloutID) fulgur.Rollout {
		t.Helper()
		var r fulgur.Rollout
		n.Until("the end of "+string(id), func() bool {
			var err error
			if r, err = c.Rollout(t.Context(), id); err != nil {
				t.Fatal(err)
			}
			return r.State.Terminal()
		})
		return r
	}
	begin := time.Now()
	for _, w := range work {
		r := ended(fulgur.RolloutID(w.id))
		class := fulgur.OutcomeOK
		if w.reason != "" {
			class = fulgur.OutcomeAgent
		}
		if r.Outcome == nil || r.Outcome.Class != class || w.reason != "" && r.Outcome.Reason != w.reason || r.Reward == nil || *r.Reward != w.reward {
			t.Errorf("%s: %+v, reward %v, want %g", w.id, r.Outcome, r.Reward, w.reward)
			continue
		}
		if m := r.Outcome.Message; w.flag != "" && (!strings.Contains(m, "flagged: ") || !strings.Contains(m, w.flag)) || w.flag == "" && strings.Contains(m, "flagged") {
			t.Errorf("%s: %q, want the flag %q", w.id, m, w.flag)
		}
		kept := 0 // retention.attempts: failed
		if w.reason != "" || w.id == "large" {
			kept = 1
		}
		n.Until("what is left of "+w.id, func() bool {
			left, err := c.Artifacts(t.Context(), fulgur.AttemptKey{Rollout: r.ID, Attempt: "0"})
			return err == nil && len(left) == kept
		})
	}
	t.Logf("%d rollouts in %s", len(work), time.Since(begin).Round(time.Millisecond))

	// A controller that is killed while tests run: the next one removes their Job, and
	// grades what was left once.
	specs = specs[:0]
	add("killed", "echo 'import time; time.sleep(8)\ndef add(a, b): return a + b' >calc.py", false)
	if _, err := c.CreateRollouts(t.Context(), specs); err != nil {
		t.Fatal(err)
	}
	tests := func() (names []string) {
		var jobs batchv1.JobList
		if err := n.Call(t.Context(), http.MethodGet, "/apis/batch/v1/namespaces/"+n.ns+"/jobs?labelSelector=fulgur/tests", nil, &jobs); err != nil {
			t.Fatal(err)
		}
		for _, j := range jobs.Items {
			names = append(names, j.Name)
		}
		return names
	}
	var first []string
	n.Until("its tests run", func() bool { first = tests(); return len(first) == 1 })
	if err := controller.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	startFulgur(t, n, dir, control...)
	n.Until("the tests run again", func() bool { again := tests(); return len(again) == 1 && again[0] != first[0] })
	if r := ended("killed"); r.Reward == nil || *r.Reward != 1 {
		t.Errorf("killed: %+v, reward %v", r.Outcome, r.Reward)
	}
	attempts, err := c.Attempts(t.Context(), "killed")
	events, err2 := c.Events(t.Context(), "killed", "")
	if err != nil || err2 != nil || len(attempts) != 1 || len(events) != 1 {
		t.Errorf("%d attempts, %+v, %v, %v", len(attempts), events, err, err2)
	}
	n.Until("no Job of tests is left", func() bool { return len(tests()) == 0 })
}

// TestTrainGrader trains on what a program says: server, store and controller are one
// process, and the tests' image is one in which nothing is but the agent.
func TestTrainGrader(t *testing.T) {
	n := open(t)
	n.startWorld()
	n.enforce()
	data, err := filepath.Abs("../../examples/calc/data")
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	file := filepath.Join(dir, "run.yaml")
	if err := os.WriteFile(file, fmt.Appendf(nil, `version: 1
run: calc
model: builtin:calc
data: {train: %[1]s/train.jsonl}
steps: 1
sampling: {max_tokens: 48}
listen: 10.9.9.1:0
agent: {command: [/usr/bin/agent], workspace: true, input: {env: {QUESTION: input.question}}}
runner: {kind: kubernetes, image: "localhost/fulgur-calc-agent:devel", namespace: %[2]s, slots: 4, kubernetes: {probe_image: "localhost/fulgur:devel"}}
reward:
  command: [/usr/bin/python3, -c, "import json, sys; x = json.load(sys.stdin); print(0.25 if x['tests']['exit_code'] > 0 and x['input']['answer'] else 1)"]
  tests: [/usr/bin/agent] # without a question it ends at once, and not well
  withhold: [input.answer]
algorithm: {group_size: 2, groups_per_step: 2}
validation: {every: 0}
out: %[3]s/runs
`, data, n.ns, dir), 0o600); err != nil {
		t.Fatal(err)
	}
	fulgurPath := filepath.Join(n.dir, "fulgur")
	out, err := exec.CommandContext(t.Context(), fulgurPath, "train", file).CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	list, err := exec.CommandContext(t.Context(), fulgurPath, "rollouts", "list", "--run", filepath.Join(dir, "runs/calc"), "--json").Output()
	if err != nil {
		t.Fatal(err)
	}
	all := 0
	for d := json.NewDecoder(strings.NewReader(string(list))); d.More(); all++ {
		var r fulgur.Rollout
		if err := d.Decode(&r); err != nil {
			t.Fatal(err)
		}
		if r.State != fulgur.Succeeded || r.Reward == nil || *r.Reward != 0.25 {
			t.Errorf("%s: %s, reward %v, %+v", r.ID, r.State, r.Reward, r.Outcome)
		}
	}
	if all < 4 {
		t.Errorf("%d rollouts\n%s", all, out)
	}
}

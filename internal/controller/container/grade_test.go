package container

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/fulgur-rl/fulgur/internal/controller"
	"github.com/fulgur-rl/fulgur/internal/controller/grade"
	"github.com/fulgur-rl/fulgur/internal/controller/runnertest"
)

// graderScript believes the exit code and the count of tests together.
const graderScript = `import json, sys
x = json.load(sys.stdin)
assert x["input"]["answer"] == "hidden"
print(x, file=sys.stderr)
print(1.0 if x["tests"]["exit_code"] == 0 and "2 passed" in x["tests"]["output"] else 0.0)
`

// What agents leave in their workspaces is tested in a container of its own, which
// has no network, and none of the agent's variables.
func TestGrader(t *testing.T) {
	o := options(t)
	const python = "/usr/bin/python3" // of the system, which the image has by a mount
	if exec.Command(python, "-m", "pytest", "--version").Run() != nil {
		t.Fatal("the system's python3 has no pytest: make test-container installs it")
	}
	dir := t.TempDir()
	for name, text := range map[string]string{
		"grade.py": graderScript, "pristine/calc.py": "def add(a, b): return a - b\n",
		"pristine/tests/test_calc.py": "import os, socket\nfrom calc import add\ndef test_add(): assert add(1, 2) == 3\n" +
			"def test_alone(): assert [n for _, n in socket.if_nameindex()] == ['lo'] and 'OPENAI_API_KEY' not in os.environ and 'DO' not in os.environ\n",
	} {
		name = filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(name, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	for _, d := range []string{"/usr", "/lib", "/lib64"} {
		if _, err := os.Stat(d); err == nil {
			o.Mounts = append(o.Mounts, d+":"+d+":ro")
		}
	}
	o.Command, o.Workspace = []string{"/usr/bin/sh", "-c", `eval "$DO"`}, true
	o.Grading = &grade.Options{Command: []string{python, "grade.py"}, Dir: dir, Pristine: filepath.Join(dir, "pristine"), Paths: []string{"calc.py"}, Size: 1 << 20, Timeout: 60e9,
		Tests: []string{python, "-m", "pytest", "-q", "-p", "no:cacheprovider"}}
	r := runner(t, o)
	if !r.Grades() {
		t.Fatal("it has no grader")
	}
	for name, test := range map[string]struct {
		script string
		reward float64
		flag   string
		limit  int64
	}{
		"an honest fix":          {"echo 'def add(a, b): return a + b' > calc.py", 1, "", 0},
		"a conftest.py":          {"printf 'import pytest\n@pytest.hookimpl(hookwrapper=True)\ndef pytest_runtest_makereport(item, call):\n    o = yield\n    o.get_result().outcome = \"passed\"\n' > conftest.py", 0, "conftest.py", 0},
		"nothing":                {"true", 0, "", 0},
		"a link to this machine": {"ln -s /etc/passwd calc.py", 0, "no regular file", 0},
		"a hang in the tests":    {"echo 'import time; time.sleep(1000)' > calc.py", 0, "", 3e9},
	} {
		t.Run(name, func(t *testing.T) {
			r.grader.Timeout = 60e9
			if test.limit > 0 {
				r.grader.Timeout = 3e9
			}
			e := runnertest.Execution(strings.ReplaceAll(name, " ", "-"), test.script)
			e.Env["OPENAI_API_KEY"] = "sk-of-the-attempt"
			runnertest.Start(t, r, e)
			if x := runnertest.Exit(t, r, string(e.Key.Rollout)); x.Code != 0 || x.Failure != "" {
				t.Fatalf("exit %+v", x)
			}
			g, err := r.Grade(t.Context(), controller.Grading{Key: e.Key, Input: []byte(`{"answer": "hidden"}`)})
			if err != nil {
				t.Fatal(err)
			}
			if g.Reward != test.reward {
				t.Errorf("reward %g, want %g", g.Reward, test.reward)
			}
			if flags := strings.Join(g.Flags, "\n"); !strings.Contains(flags, test.flag) || test.flag == "" && flags != "" {
				t.Errorf("flags %q, want %q", flags, test.flag)
			}
			if left, _ := filepath.Glob(filepath.Join(o.State, "grading", "*")); len(left) > 0 {
				t.Errorf("left: %v", left)
			}
		})
	}
	out, err := exec.Command(o.Program, "ps", "--all", "--filter", "label="+labelScope+"="+r.scope, "--format", "{{.Names}}").Output()
	if err != nil || strings.Contains(string(out), "-tests-") {
		t.Errorf("containers of tests are left: %s, %v", out, err)
	}
}

// Tests get devices and how programs run, but no variable, network or folder that
// can be written.
func TestTestArguments(t *testing.T) {
	r := &Runner{Options: Options{Image: "img", Extra: []string{"--gpus=all", "--env=KEY=1", "--network=host", "--privileged"}, Mounts: []string{"/a:/a:ro", "/b:/b"}},
		client: &client{}, grader: &grade.Grader{Options: grade.Options{Tests: []string{"make", "test"}}}}
	got := r.testArguments("n", "/w")
	for _, no := range []string{"--env=KEY=1", "--network=host", "--privileged", "/b:/b"} {
		if slices.Contains(got, no) {
			t.Errorf("%s is among %q", no, got)
		}
	}
	if tail := strings.Join(got[len(got)-5:], " "); !strings.HasSuffix(tail, "--entrypoint make img test") || !slices.Contains(got, "--gpus=all") || !slices.Contains(got, "/a:/a:ro") {
		t.Errorf("arguments %q", got)
	}
	if i := slices.Index(got, "--network"); i < 0 || got[i+1] != "none" {
		t.Errorf("it has a network: %q", got)
	}
}

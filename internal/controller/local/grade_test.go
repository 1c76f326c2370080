package local

import (
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/fulgur-rl/fulgur/internal/controller"
	"github.com/fulgur-rl/fulgur/internal/controller/grade"
	"github.com/fulgur-rl/fulgur/internal/controller/runnertest"
	"github.com/fulgur-rl/fulgur/internal/controller/sandbox"
)

// graderScript takes nobody's word: the tests' own summary has to count three, and
// the exit code has to fit.
const graderScript = `import json, sys
x = json.load(sys.stdin)
assert x["input"]["answer"] == "hidden"
out = x["tests"]["output"]
print("graded", x["applied"], out[-300:], file=sys.stderr)
print("a line of its own")
print(1.0 if x["tests"]["exit_code"] == 0 and "3 passed" in out else 0.0)
`

// work holds what agents do in an empty workspace, and what that is worth.
var work = map[string]struct {
	script string
	reward float64
	flag   string
}{
	"an honest fix":         {"echo 'def add(a, b): return a + b' > calc.py", 1, ""},
	"nothing":               {"true", 0, ""},
	"a wrong fix":           {"echo 'def add(a, b): return 3' > calc.py", 0, ""},
	"a conftest.py":         {`printf 'import pytest\n@pytest.hookimpl(hookwrapper=True)\ndef pytest_runtest_makereport(item, call):\n    o = yield\n    r = o.get_result()\n    r.outcome = "passed"\n' > conftest.py`, 0, "conftest.py"},
	"a sitecustomize.py":    {`echo 'import os; print("3 passed"); os._exit(0)' > sitecustomize.py`, 0, "sitecustomize.py"},
	"a shim on PATH":        {`mkdir bin; for p in python3 pytest bin/python3 bin/pytest; do printf '#!/bin/sh\necho 3 passed\n' > $p; chmod +x $p; done`, 0, "stands in for a program"},
	"other tests":           {`mkdir tests; printf 'def test_a(): pass\ndef test_b(): pass\ndef test_c(): pass\n' > tests/test_calc.py`, 0, ""},
	"a fix and a conftest":  {`echo 'def add(a, b): return a + b' > calc.py; echo > conftest.py`, 1, "conftest.py"},
	"an early exit":         {`echo 'import os; os._exit(0)' > calc.py`, 0, ""},
	"a link to the answers": {`ln -s /etc/passwd calc.py`, 0, "no regular file"},
	"too much":              {`head -c 2000000 /dev/zero > calc.py`, 0, "more than reward.size"},
	"tests that hang":       {`echo 'import time; time.sleep(100)' > calc.py`, 0, ""},
}

// gradingOptions are a runner's whose agents' work is graded with real pytest.
func gradingOptions(t *testing.T) Options {
	t.Helper()
	if testing.Short() {
		t.Skip("runs pytest a dozen times")
	}
	if exec.Command("python3", "-m", "pytest", "--version").Run() != nil {
		if os.Getenv("FULGUR_TEST_SANDBOX") != "" {
			t.Fatal("python3 has no pytest, and graders are what is to be tested")
		}
		t.Skip("python3 with pytest is not here: make test-sandbox installs it and runs this")
	}
	dir := t.TempDir()
	for name, text := range map[string]string{
		"grade.py": graderScript, "pristine/calc.py": "def add(a, b): return a - b\n",
		"pristine/tests/test_calc.py": "from calc import add\ndef test_a(): assert add(1, 2) == 3\ndef test_b(): assert add(5, 5) == 10\ndef test_c(): assert add(0, 4) == 4\n",
	} {
		name = filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(name, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	o := options(t)
	o.Command, o.Workspace = []string{"/bin/sh", "-c", `eval "$DO"`}, true
	o.Env = map[string]string{"DO": "input.do"}
	o.Grading = &grade.Options{Command: []string{"python3", "grade.py"}, Tests: []string{"python3", "-m", "pytest", "-q", "-p", "no:cacheprovider"}, Dir: dir,
		Pristine: filepath.Join(dir, "pristine"), Paths: []string{"**/*.py", "bin/**"}, Size: 1 << 20, Timeout: 20e9}
	return o
}

func grades(t *testing.T, o Options, only ...string) {
	o.Grading.Paths = []string{"calc.py", "lib/**"}
	r := processes(t, o)
	if !r.Grades() {
		t.Fatal("it has no grader")
	}
	for name, test := range work {
		if len(only) > 0 && !slices.Contains(only, name) {
			continue
		}
		t.Run(name, func(t *testing.T) {
			if name == "tests that hang" {
				r.grading.Timeout = 2e9
				defer func() { r.grading.Timeout = 60e9 }()
			} else {
				r.grading.Timeout = 60e9
			}
			e := runnertest.Execution(strings.ReplaceAll(name, " ", "-"), test.script)
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
}

func TestGrader(t *testing.T) {
	grades(t, gradingOptions(t), "an honest fix", "a conftest.py", "tests that hang")
}

func TestSandboxedGrader(t *testing.T) {
	o := gradingOptions(t)
	shared := t.TempDir()
	o = boxed(t, o, shared, sandbox.Limits{})
	box := func(read ...string) *sandbox.Box {
		b, err := sandbox.New(sandbox.Options{View: sandbox.View{Read: read}, Limits: sandbox.Limits{Memory: 1 << 30, Processes: 300, File: 1 << 20}})
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	o.Grading.TestBox, o.Grading.Box = box(), box(o.Grading.Dir)
	grades(t, o)
}

func TestGraderThatFailsSaysWhy(t *testing.T) {
	for name, test := range map[string]struct{ script, want string }{
		"no number":   {"echo done", `printed no number on its last line, but "done"`},
		"no finite":   {"echo nan", "printed no number"},
		"nothing":     {"true", "printed no number"},
		"a bad end":   {"echo missing >&2; exit 3", "ended with exit status 3\nlast lines of what it printed on standard error:\nmissing"},
		"it hangs":    {"sleep 100", "took longer than reward.timeout"},
		"it is right": {"cat > /dev/null; echo; echo ' 0.25 '", ""},
	} {
		t.Run(name, func(t *testing.T) {
			o := options(t)
			o.Command, o.Workspace = []string{"/bin/true"}, true
			o.Grading = &grade.Options{Command: []string{"/bin/sh", "-c", test.script}, Timeout: 1e9}
			r := processes(t, o)
			e := runnertest.Execution("a", "")
			runnertest.Start(t, r, e)
			runnertest.Exit(t, r, "a")
			g, err := r.Grade(t.Context(), controller.Grading{Key: e.Key, Input: []byte(`{}`)})
			switch {
			case test.want == "" && (err != nil || g.Reward != 0.25):
				t.Errorf("%+v, %v", g, err)
			case test.want != "" && (err == nil || !strings.Contains(err.Error(), test.want)):
				t.Errorf("error %v", err)
			}
			if _, err := r.Grade(t.Context(), controller.Grading{Key: e.Key, Input: []byte(`{}`)}); err == nil {
				t.Error("what was left is graded twice")
			}
		})
	}
}

// Programs that grade carry the runner's mark, by which they are ended with it; what sweeps
// after agents leaves them alone.
func TestGraderIsMarked(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("processes are found by their environment, which macOS does not show")
	}
	o := options(t)
	o.Command, o.Workspace = []string{"/bin/true"}, true
	o.Grading = &grade.Options{Command: []string{"/bin/sh", "-c", "cat > /dev/null; sleep 1.5; echo 1"}}
	r := processes(t, o)
	e := runnertest.Execution("a", "")
	runnertest.Start(t, r, e)
	runnertest.Exit(t, r, "a")
	type result struct {
		controller.Grade
		err error
	}
	done := make(chan result, 1)
	go func() {
		g, err := r.Grade(t.Context(), controller.Grading{Key: e.Key, Input: []byte(`{}`)})
		done <- result{g, err}
	}()
	runnertest.Until(t, "it is marked", func() bool { return len(marked(func(m string) bool { return m == r.graders() })) > 0 })
	if g := <-done; g.err != nil || g.Reward != 1 {
		t.Errorf("%+v", g)
	}
}

package local

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/fulgur-rl/fulgur/internal/controller"
	"github.com/fulgur-rl/fulgur/internal/controller/plan"
	"github.com/fulgur-rl/fulgur/internal/controller/runnertest"
	"github.com/fulgur-rl/fulgur/internal/controller/sandbox"
)

// boxed puts a runner's options into a sandbox that sees this test's program
// and one shared folder.
func boxed(t testing.TB, o Options, shared string, l sandbox.Limits) Options {
	t.Helper()
	if _, err := exec.LookPath("bwrap"); err != nil {
		if os.Getenv("FULGUR_TEST_SANDBOX") != "" {
			t.Fatal("bubblewrap is not here, and the sandbox is what is to be tested")
		}
		t.Skip("bubblewrap is not here: make test-sandbox installs it and runs this")
	}
	b, err := sandbox.New(sandbox.Options{View: sandbox.View{Write: []string{shared}}, Limits: l, Upstream: "http://127.0.0.1:1"})
	if err != nil {
		t.Fatal(err)
	}
	o.Sandbox, o.Dir = b, shared
	return o
}

// sandboxed is the suite's variant in a sandbox.
func sandboxed(t *testing.T, lacks runnertest.Lacks, make func(*testing.T, Options) controller.Runner, base func(*testing.T) Options) runnertest.Variant {
	shared := t.TempDir()
	n := func(t *testing.T, s runnertest.Setup) controller.Runner {
		o := boxed(t, base(t), shared, sandbox.Limits{Memory: 2 << 30, Processes: 500, File: 1 << 30})
		o.Input = InputMode(s.Input)
		return make(t, o)
	}
	lacks.Adopt, lacks.Pids = true, true
	return runnertest.Variant{
		New: n, Again: func(t *testing.T, s runnertest.Setup, _ controller.Runner) controller.Runner { return n(t, s) }, Lacks: lacks,
		Dir: func(t *testing.T) string {
			dir, err := os.MkdirTemp(shared, "")
			if err != nil {
				t.Fatal(err)
			}
			return dir
		},
	}
}

func TestSandboxedProcesses(t *testing.T) {
	runnertest.Run(t, sandboxed(t, runnertest.Lacks{}, func(t *testing.T, o Options) controller.Runner { return processes(t, o) }, options))
}

func TestSandboxedWorkers(t *testing.T) {
	runnertest.Run(t, sandboxed(t, runnertest.Lacks{Stdin: true}, func(t *testing.T, o Options) controller.Runner { return workers(t, o) }, workerOptions))
}

func TestLimitsAreToldApart(t *testing.T) {
	for name, test := range map[string]struct {
		script string
		l      sandbox.Limits
		want   string
	}{
		"an exit code of its own":       {"exit 3", sandbox.Limits{Memory: 1 << 30}, ""},
		"memory":                        {`python3 -c "x = bytearray(200 << 20)"; python3 -c "x = bytearray(200 << 20)"`, sandbox.Limits{Memory: 100 << 20}, plan.ReasonMemory},
		"processes":                     {`i=0; while [ $i -lt 60 ]; do sleep 5 & i=$((i+1)); done; wait`, sandbox.Limits{Processes: 20}, plan.ReasonProcesses},
		"a file that is too large":      {"head -c 3000000 /dev/zero > f", sandbox.Limits{File: 1 << 20}, plan.ReasonDisk},
		"a private folder that is full": {"for i in 1 2 3; do head -c 700000 /dev/zero > /tmp/f$i || exit 1; done", sandbox.Limits{File: 1 << 20}, plan.ReasonDisk},
		"cpu time":                      {"while :; do :; done", sandbox.Limits{CPU: 1e9}, plan.ReasonCPU},
	} {
		t.Run(name, func(t *testing.T) {
			o := options(t)
			o.Command = []string{"/bin/sh", "-c", test.script}
			r := processes(t, boxed(t, o, t.TempDir(), test.l))
			runnertest.Start(t, r, runnertest.Execution("a", ""))
			x := runnertest.Exit(t, r, "a")
			if x.Failure != test.want || x.Cause != plan.CauseAgent {
				t.Errorf("exit %+v, want %q", x, test.want)
			}
			if test.want != "" && !strings.Contains(x.Message, "runner.limits") {
				t.Error(x.Message)
			}
		})
	}
}

func TestProgramThatTheSandboxDoesNotShowIsNotStarted(t *testing.T) {
	dir := t.TempDir()
	script := filepath.Join(dir, "agent.sh")
	if err := os.WriteFile(script, []byte("#!"+filepath.Join(dir, "interpreter")+"\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("/bin/sh", filepath.Join(dir, "interpreter")); err != nil {
		t.Fatal(err)
	}
	o := options(t)
	o.Command = []string{script}
	r := processes(t, boxed(t, o, t.TempDir(), sandbox.Limits{}))
	runnertest.Start(t, r, runnertest.Execution("a", ""))
	if x := runnertest.Exit(t, r, "a"); x.Failure != plan.ReasonSpawn || !strings.Contains(x.Message, "runner.read") {
		t.Errorf("exit %+v", x)
	}
}

package local

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/fulgur-rl/fulgur/internal/controller"
	"github.com/fulgur-rl/fulgur/internal/controller/plan"
	"github.com/fulgur-rl/fulgur/internal/controller/runnertest"
	"github.com/fulgur-rl/fulgur/internal/controller/sandbox"
)

// boxed puts a runner's options into a sandbox that sees this test's program
// and one shared folder.
func boxed(t testing.TB, o Options, shared string, l sandbox.Limits) Options {
	t.Helper()
	needBwrap(t)
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
		o.Input, o.Grading, o.Workspace = controller.InputMode(s.Input), s.Grading, s.Grading != nil
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
	runnertest.Run(t, sandboxed(t, runnertest.Lacks{Stdin: true, Grader: true}, func(t *testing.T, o Options) controller.Runner { return workers(t, o) }, workerOptions))
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

// boxedController runs an agent with a whole tree in a sandbox, until it is killed.
func boxedController(dir string) {
	b, err := sandbox.New(sandbox.Options{View: sandbox.View{Write: []string{dir}}, Upstream: "http://127.0.0.1:1"})
	if err == nil {
		var r *Processes
		r, err = New(Options{Command: []string{os.Args[0]}, Dir: dir, Sandbox: b, Env: map[string]string{runnertest.AgentEnv: "process", "DO": "input.do"}})
		if err == nil {
			_ = os.Unsetenv("FULGUR_TEST_BOXED")
			_, err = r.Start(context.Background(), runnertest.Execution("a", "child "+dir+"/child; daemon "+dir+"/daemon; beat "+dir+"/pid.beat; pid "+dir+"/pid; hang"))
			time.Sleep(time.Minute)
		}
	}
	fmt.Fprintln(os.Stderr, err)
	os.Exit(1)
}

func TestKilledControllerTakesTheSandboxWithIt(t *testing.T) {
	needBwrap(t)
	dir := t.TempDir()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), "FULGUR_TEST_BOXED="+dir)
	cmd.Stderr = os.Stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	files := []string{dir + "/pid", dir + "/child", dir + "/daemon"}
	for _, f := range files {
		runnertest.Pid(t, f)
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait()
	for _, f := range files {
		size := func() int64 { st, _ := os.Stat(f + ".beat"); return st.Size() }
		runnertest.Until(t, f+" is still", func() bool {
			before := size()
			time.Sleep(200 * time.Millisecond)
			return size() == before
		})
	}
}

// An agent in its sandbox has no key, and its calls arrive with it, as process and
// as worker.
func TestSandboxedAgentCallsThroughTheRelay(t *testing.T) {
	needBwrap(t)
	seen := make(chan string, 8)
	up := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		seen <- r.Header.Get("Authorization") + " " + r.URL.Path
		_, _ = w.Write([]byte("{}"))
	}))
	t.Cleanup(up.Close)
	for name, base := range map[string]func(*testing.T) Options{"process": options, "worker": workerOptions} {
		t.Run(name, func(t *testing.T) {
			o := base(t)
			b, err := sandbox.New(sandbox.Options{Upstream: up.URL, Limits: sandbox.Limits{Processes: 300}})
			if err != nil {
				t.Fatal(err)
			}
			o.Sandbox, o.Dir, o.Logs = b, "", controller.KeepAll
			var r controller.Runner
			if name == "worker" {
				o.Workers = 1
				r = workers(t, o)
			} else {
				r = processes(t, o)
			}
			for _, id := range []string{"a", "b"} { // one worker, two credentials
				e := runnertest.Execution(id, "env OPENAI_API_KEY; env OPENAI_BASE_URL; call")
				e.Env["OPENAI_BASE_URL"] = up.URL + "/proxy/rollout/" + id + "/attempt/0/mode/train/openai/v1"
				runnertest.Start(t, r, e)
				if x := runnertest.Exit(t, r, id); x.Code != 0 || x.Failure != "" {
					t.Fatalf("exit %+v", x)
				}
				if got, want := <-seen, "Bearer secret-"+id+" /proxy/rollout/"+id+"/attempt/0/mode/train/openai/v1/chat/completions"; got != want {
					t.Errorf("the gateway got %q, want %q", got, want)
				}
				text, err := os.ReadFile(filepath.Join(o.State, "logs", id+".0.log"))
				if err != nil || !strings.Contains(string(text), "OPENAI_API_KEY="+sandbox.Placeholder+"\n") || !strings.Contains(string(text), "OPENAI_BASE_URL=http://127.0.0.1:") {
					t.Errorf("its variables: %s, %v", text, err)
				}
			}
		})
	}
}

func needBwrap(t testing.TB) {
	t.Helper()
	if _, err := exec.LookPath("bwrap"); err == nil {
		return
	}
	if os.Getenv("FULGUR_TEST_SANDBOX") != "" {
		t.Fatal("bubblewrap is not here, and the sandbox is what is to be tested")
	}
	t.Skip("bubblewrap is not here: make test-sandbox installs it and runs this")
}

package container

import (
	"archive/tar"
	"bytes"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/fulgur-rl/fulgur"
	"github.com/fulgur-rl/fulgur/internal/controller"
	"github.com/fulgur-rl/fulgur/internal/controller/plan"
	"github.com/fulgur-rl/fulgur/internal/controller/runnertest"
)

func TestMain(m *testing.M) {
	Inner(os.Args)
	if os.Getenv("FULGUR_TEST_EAT") != "" { // an agent that takes all memory
		time.Sleep(300 * time.Millisecond)
		for all := [][]byte{}; ; {
			all = append(all, bytes.Repeat([]byte{1}, 1<<20))
		}
	}
	runnertest.Main()
	if db := os.Getenv("FULGUR_TEST_CONTROLLER"); db != "" {
		controllerProcess(db)
	}
	goleak.VerifyTestMain(m)
}

// program is the container program that the tests use; test/container/run.sh
// names it, and installs it.
func program(t *testing.T) string {
	t.Helper()
	p := os.Getenv("FULGUR_TEST_CONTAINER")
	if p == "" {
		t.Skip("needs Podman or Docker: make test-container installs one and runs this")
	}
	return p
}

// grace of the runners under test: a container's signals take two clients.
const grace = time.Second

// agentImage makes an image of a folder that holds this test binary, once.
var agentImage = sync.OnceValues(func() (string, error) {
	const name = "localhost/fulgur-test-agent:1"
	body, err := os.ReadFile(os.Args[0])
	if err != nil {
		return "", err
	}
	var buf bytes.Buffer
	w := tar.NewWriter(&buf)
	for _, h := range []tar.Header{
		{Name: "tmp/", Typeflag: tar.TypeDir, Mode: 0o1777}, {Name: "etc/", Typeflag: tar.TypeDir, Mode: 0o755},
		{Name: "etc/plain", Typeflag: tar.TypeReg, Mode: 0o644},
		{Name: "bin/", Typeflag: tar.TypeDir, Mode: 0o755}, {Name: "bin/agent", Typeflag: tar.TypeReg, Mode: 0o755, Size: int64(len(body))},
	} {
		if err := w.WriteHeader(&h); err != nil {
			return "", err
		}
		if h.Size > 0 {
			if _, err := w.Write(body); err != nil {
				return "", err
			}
		}
	}
	if err := w.Close(); err != nil {
		return "", err
	}
	cmd := exec.Command(os.Getenv("FULGUR_TEST_CONTAINER"), "import", "-", name)
	cmd.Stdin = &buf
	return name, cmd.Run()
})

// shared is a folder that tests and agents see under one path.
func shared(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "fulgur-shared-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}

func options(t *testing.T) Options {
	p := program(t)
	image, err := agentImage()
	if err != nil {
		t.Fatal(err)
	}
	return Options{
		Program: p, Image: image, Pull: "never", Command: []string{"/bin/agent"}, Scope: fmt.Sprint(os.Getpid(), t.Name()), Grace: grace, State: t.TempDir(), Network: "none",
		Env:    map[string]string{runnertest.AgentEnv: "process", "DO": "input.do"},
		Mounts: []string{os.TempDir() + ":" + os.TempDir()}, // the folders of the tests
		Log:    slog.New(slog.NewTextHandler(t.Output(), nil)),
	}
}

func runner(t *testing.T, o Options) *Runner {
	t.Helper()
	r, err := New(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = r.Close() })
	return r
}

func TestRunner(t *testing.T) {
	program(t)
	make := func(t *testing.T, s runnertest.Setup) controller.Runner {
		o := options(t)
		o.Input, o.Grading, o.Workspace = controller.InputMode(s.Input), s.Grading, s.Grading != nil
		return runner(t, o)
	}
	runnertest.Run(t, runnertest.Variant{
		New:   make,
		Again: func(t *testing.T, s runnertest.Setup, _ controller.Runner) controller.Runner { return make(t, s) },
		Lacks: runnertest.Lacks{Pids: true, Signal: true}, Grace: grace, Wait: 30 * time.Second, Dir: shared,
	})
}

// containers lists the names of this scope's containers.
func containers(t *testing.T, r *Runner) []string {
	t.Helper()
	out, err := r.client.run(t.Context(), "ps", "--all", "--quiet", "--no-trunc", "--filter", "label="+labelScope+"="+r.scope)
	if err != nil {
		t.Fatal(err)
	}
	return strings.Fields(string(out))
}

func TestAnEndedContainerStaysUntilItsEndIsOnRecord(t *testing.T) {
	r := runner(t, options(t))
	e := runnertest.Execution("a", "say hello; env OPENAI_API_KEY; exit 3")
	runnertest.Start(t, r, e)
	runnertest.Exit(t, r, "a")
	if n := len(containers(t, r)); n != 1 {
		t.Errorf("%d containers before the end is on record", n)
	}

	// The next controller hears it once more, for the record does not have it.
	again := runner(t, options(t))
	keys, err := again.Adopt(t.Context(), []controller.Leftover{{Key: e.Key, Phase: fulgur.PhaseRunning}})
	if err != nil || len(keys) != 1 {
		t.Fatalf("adopted %v, %v", keys, err)
	}
	if x := runnertest.Exit(t, again, "a"); x.Code != 3 || !strings.Contains(x.Tail, "hello") || strings.Contains(x.Tail, "secret-a") {
		t.Errorf("exit %+v", x)
	}
	again.Acknowledge(keys)
	runnertest.Until(t, "the container is removed", func() bool { return len(containers(t, again)) == 0 })
}

func TestWhatTheRecordDoesNotKnowIsRemoved_CL08(t *testing.T) {
	old := runner(t, options(t))
	dir := shared(t)
	runnertest.Start(t, old, runnertest.Execution("a", "ignore; pid "+dir+"/pid; hang"))
	runnertest.Pid(t, dir+"/pid")
	r := runner(t, options(t))
	if keys, err := r.Adopt(t.Context(), nil); err != nil || len(keys) > 0 {
		t.Errorf("adopted %v, %v", keys, err)
	}
	if n := len(containers(t, r)); n > 0 {
		t.Errorf("%d containers left", n)
	}
	if x := runnertest.Exit(t, old, "a"); x.Failure != plan.ReasonDeleted && x.Code != 137 {
		t.Errorf("who waited for it heard %+v", x)
	}
}

// Killing the client is not ending the agent: the container is what is watched.
func TestAgentOutlivesItsClient_CL04(t *testing.T) {
	r := runner(t, options(t))
	dir := shared(t)
	e := runnertest.Execution("a", "beat "+dir+"/beat; pid "+dir+"/pid; hang")
	runnertest.Start(t, r, e)
	runnertest.Pid(t, dir+"/pid")
	var client string
	runnertest.Until(t, "a client waits for it", func() bool {
		out, _ := exec.Command("pgrep", "-f", "attach.*"+r.nameOf(e.Key)).Output()
		client, _, _ = strings.Cut(strings.TrimSpace(string(out)), "\n")
		return client != ""
	})
	if err := exec.Command("kill", "-9", client).Run(); err != nil {
		t.Fatal(err)
	}
	size := func() int64 { st, _ := os.Stat(dir + "/beat"); return st.Size() }
	before := size()
	runnertest.Until(t, "the agent goes on", func() bool { return size() > before })
	if keys, _ := r.List(t.Context()); len(keys) != 1 {
		t.Errorf("list %v", keys)
	}
	if err := r.Stop(t.Context(), e.Key); err != nil {
		t.Fatal(err)
	}
	runnertest.Exit(t, r, "a")
	before = size()
	time.Sleep(100 * time.Millisecond)
	if size() != before {
		t.Error("the agent lives on")
	}
}

func TestSecretsAreOnNoCommandLine(t *testing.T) {
	r := runner(t, options(t))
	e := runnertest.Execution("a", "env OPENAI_API_KEY; hang")
	e.Env["DOCKER_HOST"] = "hidden-too" // a name that the client reads
	l, err := r.arguments(e.Key, e.Env, places{})
	if err != nil {
		t.Fatal(err)
	}
	if all := strings.Join(l.args, "\n"); strings.Contains(all, "secret-a") || strings.Contains(all, "hidden-too") {
		t.Errorf("arguments %q", l.args)
	}
	runnertest.Start(t, r, e)
	ps, err := exec.Command("ps", "axww", "-o", "args").Output()
	if err != nil {
		t.Fatal(err)
	}
	if bytes.Contains(ps, []byte("secret-a")) || bytes.Contains(ps, []byte("hidden-too")) {
		t.Error("ps shows a secret")
	}
	left, _ := filepath.Glob(filepath.Join(os.TempDir(), "fulgur-env-*"))
	if len(left) > 0 {
		t.Errorf("env files left: %v", left)
	}
}

func TestWhatCannotWorkIsRefusedAtOnce(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*Options)
		kind   fulgur.Kind
		says   string
	}{
		"an image that is not here":           {func(o *Options) { o.Image = "localhost/nonesuch:1" }, fulgur.KindNotFound, "localhost/nonesuch:1 is not here"},
		"an image that cannot be fetched":     {func(o *Options) { o.Image, o.Pull = "127.0.0.1:1/nonesuch:1", "missing" }, fulgur.KindNotFound, "127.0.0.1:1/nonesuch:1 is not here and cannot be fetched"},
		"a program that is not in the image":  {func(o *Options) { o.Command = []string{"/bin/nonesuch"} }, fulgur.KindNotFound, `"/bin/nonesuch" is not in the image`},
		"one that is not on the image's PATH": {func(o *Options) { o.Command = []string{"nonesuch"} }, fulgur.KindNotFound, `"nonesuch" is not in the image`},
		"one that cannot be executed":         {func(o *Options) { o.Command = []string{"/etc/plain"} }, fulgur.KindForbidden, "x bit"},
		"no program at all":                   {func(o *Options) { o.Command = nil }, fulgur.KindInvalid, "names no program"},
	} {
		t.Run(name, func(t *testing.T) {
			o := options(t)
			c.change(&o)
			_, err := New(t.Context(), o)
			if fulgur.KindOf(err) != c.kind || !strings.Contains(err.Error(), c.says) {
				t.Errorf("error %v", err)
			}
		})
	}
	t.Run("a program on the image's PATH is found", func(t *testing.T) {
		o := options(t)
		o.Command = []string{"agent"}
		r := runner(t, o)
		runnertest.Start(t, r, runnertest.Execution("a", "exit 4"))
		if x := runnertest.Exit(t, r, "a"); x.Code != 4 {
			t.Errorf("exit %+v", x)
		}
	})
}

func TestWhatFailsLaterSaysWhy(t *testing.T) {
	t.Run("an option that the client does not know", func(t *testing.T) {
		o := options(t)
		o.Extra = []string{"--no-such-option"}
		r := runner(t, o)
		runnertest.Start(t, r, runnertest.Execution("a", ""))
		if x := runnertest.Exit(t, r, "a"); x.Failure != plan.ReasonSpawn || x.Cause != plan.CausePermanent || !strings.Contains(x.Message, "no-such-option") {
			t.Errorf("exit %+v", x)
		}
	})
	t.Run("an image that is removed while the run lasts", func(t *testing.T) {
		o := options(t)
		if err := exec.Command(o.Program, "tag", o.Image, "localhost/fulgur-test-gone:1").Run(); err != nil {
			t.Fatal(err)
		}
		o.Image = "localhost/fulgur-test-gone:1"
		r := runner(t, o)
		if err := exec.Command(o.Program, "rmi", o.Image).Run(); err != nil {
			t.Fatal(err)
		}
		runnertest.Start(t, r, runnertest.Execution("a", ""))
		if x := runnertest.Exit(t, r, "a"); x.Failure != plan.ReasonImage || x.Cause != plan.CausePermanent || !strings.Contains(x.Message, o.Image) {
			t.Errorf("exit %+v", x)
		}
	})
	t.Run("memory", func(t *testing.T) {
		o := options(t)
		o.Limits = Limits{Memory: 64 << 20, Processes: 200}
		r := runner(t, o)
		if r.client.about.Unbounded { // and said so; nothing would stop this agent
			if l := (Limits{Workspace: 10 << 30}); r.Limits != l { // what Fulgur measures itself holds everywhere
				t.Errorf("limits %+v", r.Limits)
			}
			t.Skip("nothing limits memory without root's rights on control groups of version 1; make test-container runs this as root too: " + r.client.about.String())
		}
		e := runnertest.Execution("a", "")
		e.Env["FULGUR_TEST_EAT"] = "1"
		runnertest.Start(t, r, e)
		if x := runnertest.Exit(t, r, "a"); x.Failure != plan.ReasonMemory || x.Cause != plan.CauseAgent {
			t.Errorf("exit %+v", x)
		}
		if _, err := os.Stat("oom"); err == nil {
			t.Error("Podman's conmon leaves a file where Fulgur was started")
		}
	})
}

// What an agent exits with, and says last, is its own, also where the client hands it on.
func TestAnAgentsWordsAreNotTheClients(t *testing.T) {
	program(t)
	for name, test := range map[string]struct {
		input controller.InputMode
		do    string
		code  int
	}{
		"a code that is the client's too":    {controller.ByStdin, "exit 127", 127},
		"words that are the client's too":    {controller.ByStdin, "say exec: x: executable file not found; exit 1", 1},
		"without standard input":             {controller.ByEnv, "exit 127", 127},
		"another code, and words of another": {controller.ByStdin, "say Error: no such image; exit 126", 126},
	} {
		t.Run(name, func(t *testing.T) {
			o := options(t)
			o.Input = test.input
			r := runner(t, o)
			runnertest.Start(t, r, runnertest.Execution("a", test.do))
			if x := runnertest.Exit(t, r, "a"); x.Code != test.code || x.Failure != "" || x.Cause != plan.CauseAgent {
				t.Errorf("exit %+v, want code %d and no failure", x, test.code)
			}
		})
	}
}

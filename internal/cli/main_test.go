package cli

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/fulgur-rl/fulgur/examples/calc"
	"github.com/fulgur-rl/fulgur/internal/controller/local"
	"github.com/fulgur-rl/fulgur/internal/controller/sandbox"
)

// TestMain makes this test binary a set of programs too: under the name fulgur
// it is fulgur, so that tests run it as real processes.
func TestMain(m *testing.M) {
	sandbox.Inner(os.Args)
	local.Watch(os.Args)
	testscript.Main(m, map[string]func(){
		"fulgur":   fulgurMain,
		"exitcode": exitCodeMain,
		"aglagent": aglAgentMain,
	})
}

func fulgurMain() {
	if n, err := strconv.ParseUint(os.Getenv("TEST_FILE_SIZE_LIMIT"), 10, 63); err == nil {
		limitFileSize(n)
	}
	os.Exit(Main(Process{Args: os.Args[1:], Stdin: os.Stdin, Stdout: os.Stdout, Stderr: os.Stderr, Getenv: os.Getenv}))
}

// limitFileSize makes writing past n bytes of a file fail as on a full disk: Go
// ignores the signal that comes with it.
func limitFileSize(n uint64) {
	if err := syscall.Setrlimit(syscall.RLIMIT_FSIZE, &syscall.Rlimit{Cur: n, Max: n}); err != nil {
		fmt.Fprintln(os.Stderr, "setting the limit:", err)
		os.Exit(99)
	}
}

// exitCodeMain is `exitcode N COMMAND…`: it succeeds if the command ends with N.
func exitCodeMain() {
	c := exec.Command(os.Args[2], os.Args[3:]...)
	c.Stdin, c.Stdout, c.Stderr = os.Stdin, os.Stdout, os.Stderr
	err := c.Run()
	if got := c.ProcessState.ExitCode(); strconv.Itoa(got) != os.Args[1] {
		fmt.Fprintf(os.Stderr, "exit code %d (%v), want %s\n", got, err, os.Args[1])
		os.Exit(1)
	}
	os.Exit(0)
}

// calcAgent is the calc example's agent, built once.
var calcAgent = sync.OnceValues(func() (string, error) { return buildGo("agent", "../../examples/calc/agent") })

// buildGo builds a program beside the fulgur of this test binary; TestMain
// removes that folder.
func buildGo(name, pkg string) (string, error) {
	self, err := exec.LookPath("fulgur")
	if err != nil {
		return "", err
	}
	to := filepath.Join(filepath.Dir(filepath.Dir(self)), name)
	c := exec.Command("go", "build", "-o", to, pkg)
	c.Env = append(c.Environ(), "CGO_ENABLED=0")
	if out, err := c.CombinedOutput(); err != nil {
		return "", fmt.Errorf("%w: %s", err, out)
	}
	return to, nil
}

// tinyRun is a run of two steps that takes less than a second. %s is the agent.
const tinyRun = `version: 1
run: tiny
model: builtin:calc
data: {train: train.jsonl, validation: val.jsonl, test: test.jsonl}
steps: 2
sampling: {temperature: 1, max_tokens: 48}
agent: {command: [%s], input: {env: {QUESTION: input.question}}}
runner: {kind: local, slots: auto, sandbox: none}
reward: {builtin: final-answer, expected: input.answer, compare: number}
algorithm: {group_size: 2, groups_per_step: 2, learning_rate: {start: 6e-4, end: 6e-4}, adam: {beta2: 0.98}}
validation: {every: 0}
`

// writeRun writes a run file and calc's data into a folder.
func writeRun(dir, runYAML string) error {
	for name, n := range map[string]int{"train.jsonl": 4096, "val.jsonl": 6, "test.jsonl": 6} {
		b, err := calc.Files.ReadFile("data/" + name)
		if err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(dir, name), head(b, n), 0o644); err != nil {
			return err
		}
	}
	return os.WriteFile(filepath.Join(dir, "run.yaml"), []byte(runYAML), 0o644)
}

// head returns the first n lines.
func head(b []byte, n int) []byte {
	var out []byte
	for line := range bytes.Lines(b) {
		if n--; n < 0 {
			break
		}
		out = append(out, line...)
	}
	return out
}

// tinyDir is a folder with the tiny run, changed by old, new pairs.
func tinyDir(t *testing.T, oldnew ...string) string {
	t.Helper()
	agent, err := calcAgent()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	y := fmt.Sprintf(tinyRun, agent)
	for i := 0; i < len(oldnew); i += 2 {
		if !strings.Contains(y, oldnew[i]) {
			t.Fatalf("the tiny run has no %q", oldnew[i])
		}
		y = strings.Replace(y, oldnew[i], oldnew[i+1], 1)
	}
	if err := writeRun(dir, y); err != nil {
		t.Fatal(err)
	}
	return dir
}

// child is a fulgur that runs as a process of its own.
type child struct {
	t    *testing.T
	cmd  *exec.Cmd
	out  output
	err  output
	done chan struct{}
}

// start starts fulgur in dir; the test's end kills it with what it started.
func start(t *testing.T, dir string, env []string, args ...string) *child {
	t.Helper()
	c := &child{t: t, cmd: exec.Command("fulgur", args...), done: make(chan struct{})}
	c.cmd.Dir = dir
	c.cmd.Env = append(c.cmd.Environ(), env...)
	c.cmd.Stdout, c.cmd.Stderr = &c.out, &c.err
	c.cmd.WaitDelay = time.Second
	c.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := c.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() { _ = c.cmd.Wait(); close(c.done) }()
	t.Cleanup(func() {
		c.kill()
		if t.Failed() {
			t.Logf("fulgur %s: %v\n--- stdout\n%s\n--- stderr\n%s", strings.Join(args, " "), c.cmd.ProcessState, tail(c.out.String()), tail(c.err.String()))
		}
	})
	return c
}

func tail(s string) string { return s[max(0, len(s)-3000):] }

// kill is kill -9 of the process (not of what it started).
func (c *child) kill() {
	_ = c.cmd.Process.Signal(syscall.SIGKILL) // it may have ended
	<-c.done
}

func (c *child) signal(s os.Signal) {
	c.t.Helper()
	if err := c.cmd.Process.Signal(s); err != nil {
		c.t.Fatal(err)
	}
}

// wait waits for the end and returns the exit code.
func (c *child) wait(limit time.Duration) int {
	c.t.Helper()
	select {
	case <-c.done:
		return c.cmd.ProcessState.ExitCode()
	case <-time.After(limit):
		c.t.Fatalf("fulgur %v still runs after %s", c.cmd.Args[1:], limit)
		return 0
	}
}

// ends waits for the end, and fails unless the exit code is want and standard
// error holds each text.
func (c *child) ends(limit time.Duration, want int, texts ...string) {
	c.t.Helper()
	if code := c.wait(limit); code != want {
		c.t.Errorf("exit code %d, want %d", code, want)
	}
	for _, s := range texts {
		if !strings.Contains(c.err.String(), s) {
			c.t.Errorf("standard error does not say %q", s)
		}
	}
}

// says waits until standard output has text, and returns the rest of that line.
func (c *child) says(text string) string { return c.hears(&c.out, text) }

// notes is says for standard error.
func (c *child) notes(text string) string { return c.hears(&c.err, text) }

func (c *child) hears(o *output, text string) string {
	c.t.Helper()
	limit := time.After(2 * time.Minute)
	for {
		wait, s := o.now()
		if _, after, ok := strings.Cut(s, text); ok {
			if line, _, ok := strings.Cut(after, "\n"); ok {
				return line
			}
		}
		select {
		case <-wait:
		case <-c.done:
			if _, s := o.now(); !strings.Contains(s, text) {
				c.t.Fatalf("fulgur %v ended without saying %q", c.cmd.Args[1:], text)
			}
		case <-limit:
			c.t.Fatalf("fulgur %v does not say %q", c.cmd.Args[1:], text)
		}
	}
}

// output is a buffer that tells of what is written to it.
type output struct {
	mu    sync.Mutex
	b     bytes.Buffer
	wrote chan struct{}
}

func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.wrote != nil {
		close(o.wrote)
		o.wrote = nil
	}
	return o.b.Write(p)
}

// now returns what is there, and a channel that closes when more comes.
func (o *output) now() (<-chan struct{}, string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.wrote == nil {
		o.wrote = make(chan struct{})
	}
	return o.wrote, o.b.String()
}

func (o *output) String() string {
	_, s := o.now()
	return s
}

// run runs fulgur to its end and fails unless it succeeds.
func run(t *testing.T, dir string, args ...string) (stdout, stderr string) {
	t.Helper()
	c := start(t, dir, nil, args...)
	c.ends(2*time.Minute, exitOK)
	if t.Failed() {
		t.FailNow()
	}
	return c.out.String(), c.err.String()
}

// agentsOf lists the processes that run a program.
func agentsOf(t *testing.T, program string) []string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	out, err := exec.CommandContext(ctx, "ps", "-A", "-o", "pid=,stat=,args=").Output()
	if err != nil {
		t.Skip("no ps to look for processes with: ", err)
	}
	var found []string
	for line := range strings.Lines(string(out)) {
		if f := strings.Fields(line); len(f) > 2 && f[2] == program && !strings.HasPrefix(f[1], "Z") {
			found = append(found, strings.TrimSpace(line))
		}
	}
	return found
}

// waitFor asks until something outside this process is so.
func waitFor(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(20 * time.Second); !ok(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("there is not: %s", what)
		}
	}
}

// copyProgram copies a program of the PATH, to have it under a name of its own.
func copyProgram(t *testing.T, name, to string) {
	t.Helper()
	from, err := exec.LookPath(name)
	if err != nil {
		t.Skip("no ", name)
	}
	b, err := os.ReadFile(from)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(to, b, 0o755); err != nil {
		t.Fatal(err)
	}
}

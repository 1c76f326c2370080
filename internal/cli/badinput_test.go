package cli

import (
	"bufio"
	"fmt"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/fulgur-rl/fulgur/examples/calc"
	"github.com/fulgur-rl/fulgur/internal/trainer"
)

// soon is how long a command may take to say that it can't start.
const soon = 20 * time.Second

// UI-05: what cannot start says so at once, with the cause and the fix.
func TestTakenPort(t *testing.T) {
	t.Parallel()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	dir := tinyDir(t)
	addr := ln.Addr().String()
	start(t, dir, nil, "train", "run.yaml", "--set", "listen="+addr).ends(soon, exitFailed, "listen on "+addr, "the address is taken", "--set listen=")
	start(t, dir, nil, "serve", "--listen", addr).ends(soon, exitFailed, "listen on "+addr, "--listen")
	start(t, dir, nil, "engine", "serve", "--listen", addr).ends(soon, exitFailed, "listen on "+addr)
	start(t, dir, nil, "try", "--listen", addr, "--", "true").ends(soon, exitFailed, "listen on "+addr)
}

// UI-05 too, for a server that is down or refuses the key.
func TestServerThatIsNotThere(t *testing.T) {
	t.Parallel()
	dir := tinyDir(t)
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	down := "http://" + ln.Addr().String()
	ln.Close() // nobody listens there now
	for _, args := range [][]string{{"train", "run.yaml"}, {"controller", "run.yaml"}, {"rollouts", "list"}} {
		start(t, dir, nil, append(args, "--server", down)...).ends(soon, exitFailed, "reach "+down, "fulgur serve")
	}
	if _, err := os.Stat(filepath.Join(dir, "runs", "tiny")); err == nil {
		t.Error("a run that did not start left a folder behind")
	}
	server := start(t, t.TempDir(), nil, "serve", "--listen", "127.0.0.1:0", "--key", "right")
	url := server.says("listening on ")
	for _, args := range [][]string{{"train", "run.yaml"}, {"controller", "run.yaml"}, {"rollouts", "list"}} {
		start(t, dir, nil, append(args, "--server", url, "--key", "wrong")...).ends(soon, exitFailed, "--key")
	}
	start(t, dir, nil, "train", "run.yaml", "--server", "ftp://x").ends(soon, exitUsage)
	start(t, dir, nil, "controller", "run.yaml").ends(soon, exitUsage, "--server")
}

// Parts that are started together come up in any order.
func TestServerThatComesLater(t *testing.T) {
	t.Parallel()
	address := freeAddress(t)
	early := start(t, tinyDir(t), nil, "controller", "run.yaml", "--server", "http://"+address, "--listen", "127.0.0.1:0", "--wait", "1m")
	early.notes("waiting up to 1m0s for the server at ")
	start(t, t.TempDir(), nil, "serve", "--listen", address)
	early.notes("metrics at ")
}

// TestBrokenModel: each way in which a model's folder can be broken is named.
func TestBrokenModel(t *testing.T) {
	t.Parallel()
	files, err := fs.Sub(calc.Files, "model")
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		breaks func(t *testing.T, model string)
		says   string
	}{
		"weights that were cut off": {func(t *testing.T, m string) {
			if err := os.Truncate(filepath.Join(m, "model.safetensors"), 100_000); err != nil {
				t.Fatal(err)
			}
		}, "model.safetensors"},
		"no weights":      {remove("model.safetensors"), "safetensors"},
		"no tokenizer":    {remove("tokenizer.json"), "tokenizer.json"},
		"no config":       {remove("config.json"), "config.json is missing"},
		"a broken config": {replace("config.json", "{", "["), "config.json"},
		"an architecture that the engine has not": {replace("config.json", `"model_type": "llama"`, `"model_type": "mamba"`), "mamba"},
		"sizes that are not the weights'":         {replace("config.json", `"num_hidden_layers": `, `"num_hidden_layers": 1`), "layers"},
		"a broken chat template":                  {replace("chat_template.jinja", "{%", "{{"), "template"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := tinyDir(t, "builtin:calc", "model")
			if err := os.CopyFS(filepath.Join(dir, "model"), files); err != nil {
				t.Fatal(err)
			}
			c.breaks(t, filepath.Join(dir, "model"))
			start(t, dir, nil, "train", "run.yaml").ends(soon, exitFailed, c.says)
			if _, err := os.Stat(filepath.Join(dir, "runs", "tiny")); err == nil {
				t.Error("a run that did not start left a folder behind")
			}
		})
	}
}

func remove(name string) func(*testing.T, string) {
	return func(t *testing.T, dir string) {
		if err := os.Remove(filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
}

func replace(name, from, to string) func(*testing.T, string) {
	return func(t *testing.T, dir string) {
		p := filepath.Join(dir, name)
		b, err := os.ReadFile(p)
		if err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(string(b), from) {
			t.Fatalf("%s has no %q", name, from)
		}
		if err := os.WriteFile(p, []byte(strings.Replace(string(b), from, to, 1)), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

// TestFullDisk: writing fails from some size on. It is said, and when there is
// room again, resume goes on with what is recorded.
func TestFullDisk(t *testing.T) {
	t.Parallel()
	for name, limit := range map[string]int{
		"at the first checkpoint": 1_000_000, // the weights have 1.4 MB
		"in the record":           150_000,
		"at once":                 2_000,
	} {
		t.Run(name, func(t *testing.T) {
			if testing.Short() && limit == 150_000 {
				t.Skip("the trainer asks the store again for ten seconds")
			}
			t.Parallel()
			dir := tinyDir(t, "steps: 2", "steps: 4", "validation: {every: 0}", "checkpoints: {every: 1}\nvalidation: {every: 0}")
			full := start(t, dir, []string{fmt.Sprintf("TEST_FILE_SIZE_LIMIT=%d", limit)}, "train", "run.yaml")
			full.ends(time.Minute, exitFailed, "disk")
			if limit < 10_000 {
				return // the run never began
			}
			run(t, dir, "resume", "tiny")
			trainedOnce(t, runDir(filepath.Join(dir, "runs", "tiny")), 4, 4)
		})
	}
}

func TestFolderThatCannotBeMade(t *testing.T) {
	t.Parallel()
	dir := tinyDir(t)
	start(t, dir, nil, "train", "run.yaml", "--out", "run.yaml").ends(soon, exitFailed, "make the run's folder", "--out")
	start(t, dir, nil, "demo", "--out", "run.yaml/demo").ends(soon, exitFailed, "make the demo's folder", "--out")
	start(t, dir, nil, "serve", "--listen", "127.0.0.1:0", "--store", "sqlite:run.yaml/x.db").ends(soon, exitFailed, "open store")
	start(t, dir, nil, "serve", "--listen", "127.0.0.1:0", "--store", "sqlite:run.yaml").ends(soon, exitFailed, "run.yaml")
	start(t, dir, nil, "serve", "--listen", "127.0.0.1:0", "--store", "mysql:x").ends(soon, exitUsage, "sqlite:PATH")
	start(t, dir, nil, "serve", "--listen", "127.0.0.1:0", "--pause", "perhaps").ends(soon, exitUsage, "refuse hold")
	start(t, dir, nil, "serve", "--run", "nothing").ends(soon, exitFailed, "no run is there")
}

// A run that is refused before its first rollout leaves nothing, so that the next
// start has its name.
func TestRunThatNeverBegan(t *testing.T) {
	t.Parallel()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = ln.Close() })
	for name, c := range map[string]struct{ set, says string }{
		"its agent is not built":              {"agent.build=[false]", "build the agent"},
		"its address is taken":                {"listen=" + ln.Addr().String(), "the address is taken"},
		"its engine cannot do what it asks":   {"sampling.temperature=0.5", "temperature"},
		"its agents do not reach the gateway": {"runner={kind: local, sandbox: bubblewrap, agent_url: 'http://127.0.0.1:1'}", "gateway"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if strings.Contains(c.set, "bubblewrap") {
				needBwrap(t)
			}
			dir := tinyDir(t)
			p := start(t, dir, nil, "train", "run.yaml", "--set", c.set)
			if code := p.wait(soon); code == exitOK || !strings.Contains(p.err.String(), c.says) {
				t.Fatalf("exit code %d, and it does not say %q", code, c.says)
			}
			if _, err := os.Stat(filepath.Join(dir, "runs", "tiny")); err == nil {
				t.Error("a run that never began left its folder behind")
			}
		})
	}
}

// TestRunThatIsRunning: a second process never touches a run at work, and looks
// at its record through the first.
func TestRunThatIsRunning(t *testing.T) {
	t.Parallel()
	dir := tinyDir(t, "steps: 2", "steps: 10000")
	first := start(t, dir, nil, "train", "run.yaml")
	first.notes("step 2/10000")
	start(t, dir, nil, "resume", "tiny").ends(soon, exitFailed, fmt.Sprintf("process %d has this store open", first.cmd.Process.Pid))
	out, _ := run(t, dir, "rollouts", "list", "--run", "tiny")
	if !strings.Contains(out, "train-0-") {
		t.Errorf("no rollouts of a run at work: %s", out)
	}
	first.signal(os.Interrupt)
	first.ends(soon, exitInterrupted, "fulgur resume")
}

// TestInterrupt: Ctrl-C once saves a checkpoint and says how to resume; nothing
// is lost and nothing counts twice.
func TestInterrupt(t *testing.T) {
	t.Parallel()
	dir := tinyDir(t, "steps: 2", "steps: 10000")
	p := start(t, dir, nil, append([]string{"train", "run.yaml"}, copied(t)...)...)
	p.notes("step 3/10000")
	p.signal(os.Interrupt)
	p.ends(soon, exitInterrupted, "once more: stop now", "go on with `fulgur resume "+filepath.Join(dir, "runs", "tiny"))
	d := runDir(filepath.Join(dir, "runs", "tiny"))
	if left := agentsOf(t, d.path("agent")); len(left) > 0 {
		t.Errorf("agents are left over:\n%s", strings.Join(left, "\n"))
	}
	_, s, err := trainer.Last(string(d))
	if err != nil {
		t.Fatal("no checkpoint was saved: ", err)
	}
	steps := int(s.Cursor.Step) + 2
	run(t, dir, "resume", "tiny", "--steps", fmt.Sprint(steps))
	trainedOnce(t, d, steps, 4)
}

// TestReaderThatIsGone: Ctrl-C on a pipe ends the reader first, and a lost
// terminal hangs up: the checkpoint is saved all the same.
func TestReaderThatIsGone(t *testing.T) {
	t.Parallel()
	for name, sig := range map[string]os.Signal{"Ctrl-C on a pipe": os.Interrupt, "a terminal that hangs up": syscall.SIGHUP} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if sig == syscall.SIGHUP && signal.Ignored(syscall.SIGHUP) {
				t.Skip("started by nohup: its children ignore the signal, as they should")
			}
			dir := tinyDir(t, "steps: 2", "steps: 10000")
			read, write, err := os.Pipe()
			if err != nil {
				t.Fatal(err)
			}
			c := exec.Command("fulgur", append([]string{"train", "run.yaml"}, copied(t)...)...)
			c.Dir, c.Stdout, c.Stderr = dir, write, write
			if err := c.Start(); err != nil {
				t.Fatal(err)
			}
			stop := time.AfterFunc(soon, func() { _ = c.Process.Kill() })
			defer stop.Stop()
			_ = write.Close()
			for lines := bufio.NewScanner(read); lines.Scan() && !strings.HasPrefix(lines.Text(), "step 3/10000"); {
			}
			_ = read.Close()
			if err := c.Process.Signal(sig); err != nil {
				t.Fatal(err)
			}
			_ = c.Wait() // its exit code is looked at
			if code := c.ProcessState.ExitCode(); code != exitInterrupted {
				t.Errorf("ended with %s, want code %d", c.ProcessState, exitInterrupted)
			}
			if _, s, err := trainer.Last(filepath.Join(dir, "runs", "tiny")); err != nil || s.Cursor.Step < 2 {
				t.Errorf("the last checkpoint is of step %d (%v)", s.Cursor.Step, err)
			}
		})
	}
}

// hangs is an agent that neither calls the model nor minds SIGTERM, nor do its
// children.
const hangs = `#!/bin/sh
trap '' TERM INT
"$0.child" 1000 &
while :; do "$0.child" 1000; done
`

// TestSecondInterrupt: Ctrl-C twice ends everything now.
func TestSecondInterrupt(t *testing.T) {
	t.Parallel()
	dir := tinyDir(t)
	agent := filepath.Join(dir, "hangs")
	if err := os.WriteFile(agent, []byte(hangs), 0o755); err != nil {
		t.Fatal(err)
	}
	copyProgram(t, "sleep", agent+".child")
	t.Cleanup(func() {
		for _, line := range agentsOf(t, agent+".child") {
			if pid, err := strconv.Atoi(strings.Fields(line)[0]); err == nil {
				_ = syscall.Kill(pid, syscall.SIGKILL)
			}
		}
	})
	p := start(t, dir, nil, "train", "run.yaml", "--set", "agent.command=["+agent+"]")
	waitFor(t, "agents", func() bool { return len(agentsOf(t, agent+".child")) >= 4 })
	p.signal(os.Interrupt)
	p.notes("once more: stop now")
	time.Sleep(sameInterrupt + 50*time.Millisecond) // sooner it would be the same Ctrl-C
	p.signal(os.Interrupt)
	p.ends(3*time.Second, exitInterrupted, "stopped now; what is recorded is kept")
	waitFor(t, "no agent", func() bool { return len(agentsOf(t, agent+".child")) == 0 })
}

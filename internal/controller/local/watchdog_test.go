package local

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fulgur-rl/fulgur/internal/controller/runnertest"
	"github.com/fulgur-rl/fulgur/internal/controller/sandbox"
)

// brood starts what an agent may have below it, each of which writes its number to a file, and
// waits. All but the last are to die with their runner's process.
const brood = `
sleep 600 & echo $! > child
env -i /bin/sh -c 'echo $$ > bare; exec sleep 600' &
setsid sh -c 'echo $$ > daemon; exec sleep 600' &
setsid sh -c 'trap "" TERM; echo $$ > deaf; while :; do sleep 600; done' &
( setsid env -i PATH="$PATH" sh -c 'echo $$ > below; sleep 600'; true ) &
echo $$ > agent; wait`

// watchedProcess runs an agent with a watchdog, until it is killed.
func watchedProcess(dir string) {
	_ = os.Unsetenv("FULGUR_TEST_WATCHED")
	r, err := New(Options{Command: []string{"/bin/sh", "-c", brood}, Dir: dir, Scope: dir, Grace: 300 * time.Millisecond, Watchdog: []string{os.Args[0], WatchCommand}})
	if err == nil {
		_, err = r.Start(context.Background(), runnertest.Execution("a", ""))
	}
	if err == nil {
		time.Sleep(time.Minute)
	}
	fmt.Fprintln(os.Stderr, err)
	os.Exit(1)
}

// Nothing of an agent lives on when its runner is killed, and nobody starts another.
func TestWatchdogEndsWhatAKilledRunnerLeaves(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("daemons are found by their environment, which macOS does not show")
	}
	dir := t.TempDir()
	c := exec.Command(os.Args[0])
	c.Env, c.Stderr = append(os.Environ(), "FULGUR_TEST_WATCHED="+dir), os.Stderr
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	pids := map[string]int{}
	for _, name := range []string{"child", "bare", "daemon", "deaf", "below", "agent"} {
		file := filepath.Join(dir, name)
		runnertest.Until(t, name+" runs", func() bool {
			b, _ := os.ReadFile(file)
			_, err := fmt.Sscanf(string(b), "%d\n", new(int))
			return err == nil
		})
		b, _ := os.ReadFile(file)
		var pid int
		_, _ = fmt.Sscanf(string(b), "%d", &pid)
		pids[name] = pid
	}
	began := time.Now()
	_ = c.Process.Kill()
	_ = c.Wait()
	for name, pid := range pids {
		runnertest.Until(t, name+" is dead", func() bool { return runnertest.Dead(pid) })
	}
	if took := time.Since(began); took < 200*time.Millisecond {
		t.Errorf("the last was dead after %s: one that does not heed SIGTERM has its grace", took)
	}
}

// stuckProcess runs an agent in a sandbox with a watchdog, until it is killed. Its
// bubblewrap gets no further than to the birth of its process inside.
func stuckProcess(dir string) {
	_ = os.Unsetenv("FULGUR_TEST_STUCK")
	script := `#!/bin/sh
test -e D/stuck || exec bwrap "$@"
for a; do shift; test "$a" = --disable-userns || set -- "$@" "$a"; done
exec bwrap --info-fd 8 --userns-block-fd 9 "$@" 8>D/info 9<>D/never
`
	bwrap := filepath.Join(dir, "bwrap")
	err := errors.Join(syscall.Mkfifo(filepath.Join(dir, "never"), 0o600), os.WriteFile(bwrap, []byte(strings.ReplaceAll(script, "D/", dir+"/")), 0o755))
	var box *sandbox.Box
	if err == nil {
		box, err = sandbox.New(sandbox.Options{Bwrap: bwrap})
	}
	if err == nil {
		err = os.WriteFile(filepath.Join(dir, "stuck"), nil, 0o600)
	}
	var r *Processes
	if err == nil {
		r, err = New(Options{Command: []string{"/bin/true"}, Dir: dir, Scope: dir, Grace: 300 * time.Millisecond, Sandbox: box, Watchdog: []string{os.Args[0], WatchCommand}})
	}
	if err == nil {
		_, err = r.Start(context.Background(), runnertest.Execution("a", ""))
	}
	if err == nil {
		time.Sleep(time.Minute)
	}
	fmt.Fprintln(os.Stderr, err)
	os.Exit(1)
}

// bubblewrap's process inside does not die with the one outside until that has set up its
// user namespace.
func TestWatchdogEndsASandboxThatWasBeingSetUp(t *testing.T) {
	needBwrap(t)
	dir := t.TempDir()
	c := exec.Command(os.Args[0])
	c.Env, c.Stderr = append(os.Environ(), "FULGUR_TEST_STUCK="+dir), os.Stderr
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	var inside struct {
		Pid int `json:"child-pid"`
	}
	runnertest.Until(t, "bubblewrap tells its process inside", func() bool {
		b, _ := os.ReadFile(filepath.Join(dir, "info"))
		return json.Unmarshal(b, &inside) == nil && inside.Pid > 0
	})
	t.Cleanup(func() {
		if !runnertest.Dead(inside.Pid) {
			_ = syscall.Kill(inside.Pid, syscall.SIGKILL)
		}
	})
	_ = c.Process.Kill()
	_ = c.Wait()
	runnertest.Until(t, "it is dead", func() bool { return runnertest.Dead(inside.Pid) })
}

// A watchdog holds nothing of its runner's, hears no signal that is the runner's to hear,
// and ends with a runner that is closed.
func TestWatchdogOfARunnerThatIsClosed(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	lock, err := os.Create(filepath.Join(t.TempDir(), "lock"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = lock.Close() }()
	if _, err := unix.FcntlInt(lock.Fd(), unix.F_SETFD, 0); err != nil { // as one that a shell hands on
		t.Fatal(err)
	}
	o := options(t)
	o.Watchdog = []string{os.Args[0], WatchCommand}
	r := processes(t, o)
	if r.dog != nil {
		t.Error("it runs before there is an agent")
	}
	runnertest.Start(t, r, runnertest.Execution("a", "exit 0"))
	runnertest.Exit(t, r, "a")
	pid := r.dog.pid
	if sid, err := unix.Getsid(pid); err != nil || sid != pid {
		t.Errorf("session %d, want its own, %v", sid, err)
	}
	if runtime.GOOS == "linux" {
		files := func() (out []string) {
			names, _ := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", pid))
			for _, n := range names {
				to, _ := os.Readlink(n)
				out = append(out, to)
			}
			return out
		}
		runnertest.Until(t, "it holds neither a lock nor a port", func() bool {
			all := strings.Join(files(), " ")
			return all != "" && !strings.Contains(all, "lock") && !strings.Contains(all, "socket")
		})
		for _, sig := range []syscall.Signal{syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP} {
			_ = syscall.Kill(pid, sig)
		}
	}
	runnertest.Start(t, r, runnertest.Execution("b", "exit 0"))
	runnertest.Exit(t, r, "b")
	select {
	case <-r.dog.gone:
		t.Error("a signal ended it")
	default:
	}
	began := time.Now()
	if err := r.Close(); err != nil {
		t.Error(err)
	}
	<-r.dog.gone
	if took := time.Since(began); took > 3*time.Second {
		t.Errorf("the close took %s", took)
	}
}

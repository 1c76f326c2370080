package cli

import (
	"errors"
	"os"
	"os/exec"
	"sync"
	"syscall"

	"github.com/fulgur-rl/fulgur"
)

// forced is what a second interrupt runs before the process ends: it kills what
// this process started.
type forced struct {
	mu  sync.Mutex
	n   int
	fns map[int]func()
}

// add returns what takes fn out again, when there is nothing left to kill.
func (f *forced) add(fn func()) (remove func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.n++
	n := f.n
	if f.fns == nil {
		f.fns = map[int]func(){}
	}
	f.fns[n] = fn
	return func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		delete(f.fns, n)
	}
}

func (f *forced) run() {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, fn := range f.fns {
		fn()
	}
}

// alive says whether a process exists.
func alive(pid int) bool {
	return pid > 0 && !errors.Is(syscall.Kill(pid, 0), syscall.ESRCH)
}

func makeDir(p string) error {
	if err := os.MkdirAll(p, 0o755); err != nil {
		return fulgur.E(fulgur.KindExhausted, "make a folder", p+" can't be made: check permissions and disk space", err)
	}
	return nil
}

// ownGroup starts a command as a process group of its own.
func ownGroup(c *exec.Cmd) {
	c.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	c.Cancel = func() error { return syscall.Kill(-c.Process.Pid, syscall.SIGTERM) }
}

// killGroup ends what is left of a command's process group.
func killGroup(c *exec.Cmd) {
	if c.Process != nil {
		_ = syscall.Kill(-c.Process.Pid, syscall.SIGKILL) // nothing is left, usually
	}
}

package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"sync"
	"syscall"
	"time"
)

// supervisor keeps the parts of a cluster running. What dies is started again,
// but not while a file D/NAME.down is there: that is how a test takes the API
// server or a node away. D/NAME.pid holds a part's process id, D/NAME.log what
// it says.
type supervisor struct {
	ctx   context.Context
	dir   string
	self  string
	fail  context.CancelCauseFunc
	parts []*part // in the order of their start
}

type part struct {
	name string
	args []string
	stop context.CancelFunc
	done chan struct{}
}

func newSupervisor(ctx context.Context, dir string, fail context.CancelCauseFunc) *supervisor {
	self, err := os.Executable()
	if err != nil {
		fail(err)
	}
	return &supervisor{ctx: ctx, dir: dir, self: self, fail: fail}
}

func (s *supervisor) run(name string, args ...string) { s.runAs(name, name, args...) }

func (s *supervisor) runAs(name, command string, args ...string) {
	// Not the context of the caller: stop ends the parts one by one, last first.
	ctx, stop := context.WithCancel(context.WithoutCancel(s.ctx))
	p := &part{name: name, args: append([]string{command}, args...), stop: stop, done: make(chan struct{})}
	s.parts = append(s.parts, p)
	go func() {
		defer close(p.done)
		// A child's parent-death signal fires when the thread that forked it ends.
		runtime.LockOSThread()
		if err := s.keep(ctx, p); err != nil {
			s.fail(err)
		}
	}()
}

// keep runs a part until ctx ends. One that dies at once, again and again, is an error.
func (s *supervisor) keep(ctx context.Context, p *part) error {
	quick := 0
	for ctx.Err() == nil {
		if _, err := os.Stat(filepath.Join(s.dir, p.name+".down")); err == nil || !errors.Is(err, fs.ErrNotExist) {
			select {
			case <-ctx.Done():
			case <-time.After(50 * time.Millisecond):
			}
			continue
		}
		began := time.Now()
		err := s.once(ctx, p)
		if quick++; time.Since(began) > 5*time.Second {
			quick = 0
		}
		if quick > 5 {
			return fmt.Errorf("%s does not stay up: %w; its log is %s", p.name, err, filepath.Join(s.dir, p.name+".log"))
		}
		select {
		case <-ctx.Done():
		case <-time.After(100 * time.Millisecond):
		}
	}
	return nil
}

func (s *supervisor) once(ctx context.Context, p *part) error {
	log, err := os.OpenFile(filepath.Join(s.dir, p.name+".log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer func() { _ = log.Close() }()
	cmd := exec.CommandContext(ctx, s.self, p.args...)
	cmd.Stdout, cmd.Stderr, cmd.Dir = log, log, s.dir
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = 5 * time.Second
	if err := cmd.Start(); err != nil {
		return err
	}
	pid := filepath.Join(s.dir, p.name+".pid")
	_ = os.WriteFile(pid, []byte(strconv.Itoa(cmd.Process.Pid)), 0o600)
	err = cmd.Wait()
	_ = os.Remove(pid)
	return err
}

// stop ends the parts, those that need others first: nodes at once, etcd last.
func (s *supervisor) stop() {
	var wg sync.WaitGroup
	for i := len(s.parts) - 1; i >= 0; i-- {
		p := s.parts[i]
		p.stop()
		if i > 1 { // all but etcd and the API server end side by side
			wg.Go(func() { <-p.done })
			continue
		}
		wg.Wait()
		<-p.done
	}
}

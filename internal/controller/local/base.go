package local

import (
	"context"
	"errors"
	"io"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/fulgur-rl/fulgur"
	"github.com/fulgur-rl/fulgur/internal/controller"
	"github.com/fulgur-rl/fulgur/internal/controller/plan"
)

// Name is what attempts of this package's runners are recorded with.
const Name = "local"

const (
	pipeGrace  = 20 * time.Millisecond // after the exit, for the pipe to close
	pipeLimit  = time.Second           // after the sweep: then the output ends here
	sweepEvery = time.Second
)

// base is what both runners have.
type base struct {
	*prepared
	forker *forker
	events chan controller.Event
	cpu    atomic.Int64             // nanoseconds
	null   func() (*os.File, error) // the empty input of all agents
	disk   *controller.Disk         // of State; nil: there is none
	guard  sync.Once                // of dog
	dog    *watchdog                // since the first agent's start; nil: none

	mu       sync.Mutex
	closed   bool
	sweeping *time.Timer
	wg       sync.WaitGroup // executions, workers, sweeps
}

// newBase makes it; fills ends an execution whose workspace is too large.
func newBase(p *prepared, fills func(plan.Key)) *base {
	b := &base{prepared: p, forker: newForker(), events: make(chan controller.Event, 64),
		null: sync.OnceValues(func() (*os.File, error) { return os.Open(os.DevNull) })}
	if p.State != "" {
		b.disk = controller.NewDisk(p.State, p.Disk, fills)
	}
	return b
}

// measured puts what an execution has left on the disk into its exit.
func (b *base) measured(key plan.Key, exit plan.Exit) plan.Exit {
	over, filled := b.disk.Leave(key)
	if over != "" {
		exit = plan.Exit{Code: -1, Failure: plan.ReasonDisk, Message: over, CPU: exit.CPU}
	}
	exit.Filled = filled
	return exit
}

// watched returns the watchdog, which it starts if there is to be one.
func (b *base) watched() *watchdog {
	b.guard.Do(func() {
		if len(b.Watchdog) == 0 {
			return
		}
		var err error
		if b.dog, err = startWatchdog(b.Watchdog, b.owner, b.Grace, b.Log); err != nil {
			b.Log.Warn("children of agents would outlive a kill -9", "err", err)
		}
	})
	return b.dog
}

func (b *base) Name() string { return Name }

func (b *base) Events() <-chan controller.Event { return b.events }

// ChildCPU implements controller.Meter.
func (b *base) ChildCPU() time.Duration { return time.Duration(b.cpu.Load()) }

func (b *base) spent(s *os.ProcessState) time.Duration {
	if s == nil {
		return 0
	}
	d := s.UserTime() + s.SystemTime()
	b.cpu.Add(int64(d))
	return d
}

// Adopt ends what earlier controllers left: a pipe to a process cannot be
// taken over, so none is.
func (b *base) Adopt(_ context.Context, left []controller.Leftover) ([]plan.Key, error) {
	n := 0
	for _, l := range left {
		if killHandle(l.Handle) {
			n++
		}
	}
	defer func() { // when nobody writes there any more
		for _, l := range left {
			if b.State != "" {
				b.tidy(filepath.Join(b.attempts(), controller.FileName(l.Key)), false)
			}
		}
		if err := b.grading.Sweep(); err != nil {
			b.Log.Warn("what an earlier controller was grading could not be removed", "err", err)
		}
	}()
	if b.Scope != "" {
		scope, _, _ := strings.Cut(b.owner, "/")
		n += killMarked(func(m string) bool {
			return strings.HasPrefix(m, scope+"/") && !strings.HasPrefix(m, b.owner+"/")
		})
	}
	if n > 0 {
		b.Log.Warn("ended processes that an earlier controller left", "processes", n)
	}
	return nil, nil
}

// markOf is the mark of an execution's processes.
func (b *base) markOf(k plan.Key) string {
	return b.owner + "/" + url.PathEscape(string(k.Rollout)) + "/" + url.PathEscape(string(k.Attempt))
}

// sweepSoon ends, within a second, what executions that are over left outside
// their groups. Reading the environment of all processes is too dear to do it
// at every exit.
func (b *base) sweepSoon(alive func(mark string) bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed || b.sweeping != nil {
		return
	}
	b.wg.Add(1)
	b.sweeping = time.AfterFunc(sweepEvery, func() {
		defer b.wg.Done()
		b.mu.Lock()
		b.sweeping = nil
		b.mu.Unlock()
		b.sweepNow(alive)
	})
}

func (b *base) sweepNow(alive func(mark string) bool) {
	n := killMarked(func(m string) bool { return strings.HasPrefix(m, b.owner+"/") && !alive(m) })
	if n > 0 {
		b.Log.Warn("ended processes that agents left behind", "processes", n)
	}
}

// halt starts nothing more and stops what runs; false: it had been called.
func (b *base) halt(r controller.Runner) bool {
	b.mu.Lock()
	was := b.closed
	b.closed = true
	b.mu.Unlock()
	keys, _ := r.List(context.Background())
	for _, k := range keys {
		_ = r.Stop(context.Background(), k)
	}
	return !was
}

// shut is the common end of both runners' Close: it waits for all that ends,
// and hears what nobody else listens to any more.
func (b *base) shut() {
	b.mu.Lock()
	if b.sweeping != nil && b.sweeping.Stop() {
		b.wg.Done()
	}
	b.sweeping = nil
	b.mu.Unlock()
	done := make(chan struct{})
	go func() { b.wg.Wait(); close(done) }()
	for {
		select {
		case <-b.events:
			continue
		case <-done:
		}
		break
	}
	b.disk.Close()
	b.forker.close()
	if null, err := b.null(); err == nil {
		_ = null.Close()
	}
	b.sweepNow(func(string) bool { return false })
	b.guard.Do(func() {}) // it starts no more
	b.dog.close()
	if b.Sandbox != nil {
		b.Sandbox.Close()
	}
	b.grading.Close()
	close(b.events)
}

// kill ends by force what runs below this process, and what executions left
// elsewhere.
func (b *base) kill() {
	b.guard.Do(func() {})
	for _, id := range descendants(os.Getpid()) {
		if b.dog == nil || id.pid != b.dog.pid { // it sees to what is missed here
			id.kill()
		}
	}
	killMarked(func(m string) bool { return strings.HasPrefix(m, b.owner+"/") })
}

// mapped fills the environment map of the run, or v1's of the rollout.
func (b *base) mapped(e controller.Execution) (map[string]string, error) {
	if e.EnvMap != nil {
		return controller.InputEnv(e.EnvMap, e.Input)
	}
	return controller.InputEnv(b.Env, e.Input)
}

// attempts is the folder of all attempts' folders.
func (b *base) attempts() string { return filepath.Join(b.State, "attempts") }

// files makes the folder of an attempt in parent, anew, with what is in it, and
// returns it and the agent's working folder. Agents may write in parent: none of their
// links is followed.
func (b *base) files(parent string, e controller.Execution, env map[string]string) (folder, dir string, err error) {
	fail := func(err error) (string, string, error) {
		kind := fulgur.KindForbidden
		if controller.NoRoom(err) {
			kind = fulgur.KindExhausted
		}
		return "", "", fulgur.E(kind, "", "the attempt's folder cannot be written", err)
	}
	if err := os.MkdirAll(parent, 0o700); err != nil {
		return fail(err)
	}
	root, err := os.OpenRoot(parent)
	if err != nil {
		return fail(err)
	}
	defer func() { _ = root.Close() }()
	name := controller.FileName(e.Key)
	if err := errors.Join(root.RemoveAll(name), root.Mkdir(name, 0o700)); err != nil {
		return fail(err)
	}
	dir, folder = b.Dir, filepath.Join(parent, name)
	if b.Workspace {
		if err := root.Mkdir(filepath.Join(name, "work"), 0o700); err != nil {
			return fail(err)
		}
		dir = filepath.Join(folder, "work")
	}
	if b.Input == controller.ByFile {
		if err := root.WriteFile(filepath.Join(name, "input.json"), e.Input, 0o600); err != nil {
			return fail(err)
		}
		env["FULGUR_INPUT_FILE"] = filepath.Join(folder, "input.json")
	}
	return folder, dir, nil
}

// leave takes what an agent left for its grader, and removes the attempt's folder
// if the policy does not keep it.
func (b *base) leave(key plan.Key, folder string, x plan.Exit, stopped bool) {
	if b.grading.Takes(x, stopped) {
		work := ""
		if b.Workspace && folder != "" {
			work = filepath.Join(folder, "work")
		}
		b.grading.Take(key, work)
	}
	b.tidy(folder, x.Code == 0 && x.Failure == "" && x.Signal == "" && !stopped)
}

// Grades implements controller.Grader.
func (b *base) Grades() bool { return b.grading != nil }

// Grade implements controller.Grader.
func (b *base) Grade(ctx context.Context, x controller.Grading) (controller.Grade, error) {
	return b.grading.Grade(ctx, x)
}

// Acknowledge implements controller.Acknowledger: nobody grades these any more.
func (b *base) Acknowledge(keys []plan.Key) { b.grading.Forget(keys...) }

// tidy removes an attempt's folder, if the policy does not keep it.
func (b *base) tidy(folder string, good bool) {
	if folder == "" || b.Keep == controller.KeepAll || b.Keep == controller.KeepFailures && !good {
		return
	}
	if err := controller.RemoveAll(folder); err != nil {
		b.Log.Warn("an attempt's folder could not be removed", "folder", folder, "err", err)
	}
}

var readBuffers = sync.Pool{New: func() any { return new([8 << 10]byte) }}

// drainInto reads an output to its end: nobody ever waits for a full pipe.
func drainInto(log *controller.LogBuffer, out *os.File, done chan struct{}) {
	defer close(done)
	buf := readBuffers.Get().(*[8 << 10]byte)
	defer readBuffers.Put(buf)
	_, _ = io.CopyBuffer(struct{ io.Writer }{log}, struct{ io.Reader }{out}, buf[:])
}

// keepLog writes a log, if the policy keeps it, and returns its last lines.
func (b *base) keepLog(e controller.Execution, log []byte, good bool) (tail, path string) {
	tail, path, err := controller.WriteLog(b.State, b.Logs, e.Key, log, e.Secrets, good)
	if err != nil {
		b.Log.Warn("an attempt's log could not be written", "err", err)
	}
	return tail, path
}

func exitOf(s *os.ProcessState) plan.Exit {
	if s == nil {
		return plan.Exit{Code: -1, Failure: plan.ReasonLost, Cause: plan.CauseTransient, Message: "the system told nothing of the process's end"}
	}
	exit := plan.Exit{Code: s.ExitCode()}
	if ws, ok := s.Sys().(syscall.WaitStatus); ok && ws.Signaled() {
		exit.Signal = ws.Signal().String()
	}
	return exit
}

// closedWithin waits for a channel to be closed, at most for d.
func closedWithin(c <-chan struct{}, d time.Duration) bool {
	select {
	case <-c:
		return true
	default:
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-c:
		return true
	case <-t.C:
		return false
	}
}

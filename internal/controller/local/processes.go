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
	cpu    atomic.Int64 // nanoseconds

	mu       sync.Mutex
	closed   bool
	sweeping *time.Timer
	wg       sync.WaitGroup // executions, workers, sweeps
}

func newBase(p *prepared) *base {
	return &base{prepared: p, forker: newForker(), events: make(chan controller.Event, 64)}
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
	b.forker.close()
	b.sweepNow(func(string) bool { return false })
	close(b.events)
}

// Processes runs one process per attempt. It implements controller.Runner.
type Processes struct {
	*base
	live map[plan.Key]*process // guarded by base.mu
}

// New checks the options (a program that cannot be run is refused here, before
// any rollout fails by it).
func New(o Options) (*Processes, error) {
	p, err := o.prepare()
	if err != nil {
		return nil, err
	}
	return &Processes{base: newBase(p), live: map[plan.Key]*process{}}, nil
}

// process is one running attempt.
type process struct {
	e      controller.Execution
	ready  chan struct{} // closed when the start has worked or failed
	err    error
	child  *child
	mark   string
	log    *logBuffer
	out    *os.File // our end of its output
	read   chan struct{}
	folder string // of its files; "": none
}

// Start implements controller.Runner.
func (r *Processes) Start(_ context.Context, e controller.Execution) (controller.Started, error) {
	r.mu.Lock()
	if r.closed {
		r.mu.Unlock()
		return controller.Started{}, fulgur.E(fulgur.KindUnavailable, "", "the runner is closed", nil)
	}
	x, again := r.live[e.Key]
	if !again {
		x = &process{e: e, ready: make(chan struct{}), mark: r.markOf(e.Key), read: make(chan struct{})}
		r.live[e.Key] = x
		r.wg.Add(1)
	}
	r.mu.Unlock()
	if again {
		<-x.ready
	} else {
		x.err = r.launch(x)
		close(x.ready)
		if x.err != nil {
			r.forget(x)
			r.wg.Done()
		} else {
			go r.follow(x)
		}
	}
	if x.err != nil {
		return controller.Started{}, x.err
	}
	return controller.Started{Handle: x.child.handle, Running: true}, nil
}

func (r *Processes) forget(x *process) {
	r.mu.Lock()
	delete(r.live, x.e.Key)
	r.mu.Unlock()
}

// launch gives the attempt its files and environment, and starts its process.
func (r *Processes) launch(x *process) (err error) {
	mapping := r.Env
	if x.e.EnvMap != nil {
		mapping = x.e.EnvMap
	}
	mapped, err := controller.InputEnv(mapping, x.e.Input)
	if err != nil {
		return err
	}
	own := map[string]string{markName: x.mark}
	dir := r.Dir
	if r.Workspace || r.Input == InputFile {
		if dir, err = r.files(x, own); err != nil {
			return err
		}
		defer func() {
			if err != nil {
				_ = os.RemoveAll(x.folder)
			}
		}()
	}
	env, err := r.merge(mapped, x.e.Env, own)
	if err != nil {
		return err
	}
	out, w, err := os.Pipe()
	if err != nil {
		return spawnError("a pipe", "", err)
	}
	defer func() { _ = w.Close() }()
	stdin, feed, err := r.stdin(x.e.Input)
	if err != nil {
		_ = out.Close()
		return err
	}
	defer func() { _ = stdin.Close() }()
	p, err := r.forker.start(r.program, r.Command, &os.ProcAttr{Dir: dir, Env: env, Files: []*os.File{stdin, w, w}, Sys: attributes(r.orphans)})
	if err != nil {
		_ = out.Close()
		if feed != nil {
			_ = feed.Close()
		}
		return spawnError(r.program, dir, err)
	}
	x.child, x.out, x.log = newChild(p, x.mark), out, newLogBuffer(r.LogCap)
	go drainInto(x.log, out, x.read)
	if feed != nil {
		go func() { // ends at the latest when the process does: then nobody reads
			_, _ = feed.Write(x.e.Input)
			_ = feed.Close()
		}()
	}
	return nil
}

// files makes the folder of an attempt and what is in it, and returns the
// process's working folder.
func (r *Processes) files(x *process, env map[string]string) (dir string, err error) {
	fail := func(err error) (string, error) {
		kind := fulgur.KindForbidden
		if errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EMFILE) {
			kind = fulgur.KindExhausted
		}
		return "", fulgur.E(kind, "", "the attempt's folder cannot be written", err)
	}
	dir = r.Dir
	x.folder = filepath.Join(r.State, "attempts", fileName(string(x.e.Key.Rollout), string(x.e.Key.Attempt)))
	if err := os.MkdirAll(x.folder, 0o700); err != nil {
		return fail(err)
	}
	if r.Workspace {
		dir = filepath.Join(x.folder, "work")
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return fail(err)
		}
	}
	if r.Input == InputFile {
		name := filepath.Join(x.folder, "input.json")
		if err := os.WriteFile(name, x.e.Input, 0o600); err != nil {
			return fail(err)
		}
		env["FULGUR_INPUT_FILE"] = name
	}
	return dir, nil
}

// stdin is what the agent reads: nothing, or its input, which feed gets.
func (r *Processes) stdin(input []byte) (stdin, feed *os.File, err error) {
	if r.Input != InputStdin {
		if stdin, err = os.Open(os.DevNull); err != nil {
			err = spawnError(os.DevNull, "", err)
		}
		return stdin, nil, err
	}
	if stdin, feed, err = os.Pipe(); err != nil {
		err = spawnError("a pipe", "", err)
	}
	return stdin, feed, err
}

var readBuffers = sync.Pool{New: func() any { return new([8 << 10]byte) }}

// drainInto reads an output to its end: nobody ever waits for a full pipe.
func drainInto(log *logBuffer, out *os.File, done chan struct{}) {
	defer close(done)
	buf := readBuffers.Get().(*[8 << 10]byte)
	defer readBuffers.Put(buf)
	_, _ = io.CopyBuffer(struct{ io.Writer }{log}, struct{ io.Reader }{out}, buf[:])
}

// follow sees a process to its end and tells it.
func (r *Processes) follow(x *process) {
	defer r.wg.Done()
	x.child.wait()
	if !closedWithin(x.read, pipeGrace) {
		// Somebody outside the group holds the pipe.
		x.child.sweep()
		if !closedWithin(x.read, pipeLimit) {
			_ = x.out.SetReadDeadline(time.Now())
			<-x.read
		}
	}
	_ = x.out.Close()
	exit := exitOf(x.child.state)
	exit.CPU = r.spent(x.child.state)
	good := exit.Code == 0 && exit.Signal == "" && !x.child.stopped()
	exit.Tail, exit.Log = r.keepLog(x.e, x.log.Bytes(), good)
	if x.folder != "" && (r.Keep == KeepNone || r.Keep == KeepFailures && good) {
		if err := os.RemoveAll(x.folder); err != nil {
			r.Log.Warn("an attempt's folder could not be removed", "folder", x.folder, "err", err)
		}
	}
	r.forget(x)
	r.sweepSoon(r.alive)
	r.events <- controller.Event{Key: x.e.Key, Exit: &exit}
}

// alive says whether a mark is that of an execution that runs.
func (r *Processes) alive(mark string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, x := range r.live {
		if x.mark == mark {
			return true
		}
	}
	return false
}

func (c *child) stopped() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.stopping
}

// keepLog writes a log, if the policy keeps it, and returns its last lines.
func (b *base) keepLog(e controller.Execution, log []byte, good bool) (tail, path string) {
	if len(log) == 0 || good && b.Logs != KeepAll {
		return "", ""
	}
	log = redact(log, e.Secrets)
	tail = lastLines(log)
	if b.State == "" || b.Logs == KeepNone {
		return tail, ""
	}
	path = filepath.Join(b.State, "logs", fileName(string(e.Key.Rollout), string(e.Key.Attempt))+".log")
	err := os.WriteFile(path, log, 0o600)
	if errors.Is(err, os.ErrNotExist) {
		if err = os.MkdirAll(filepath.Dir(path), 0o700); err == nil {
			err = os.WriteFile(path, log, 0o600)
		}
	}
	if err != nil {
		b.Log.Warn("an attempt's log could not be written", "file", path, "err", err)
		return tail, ""
	}
	return tail, path
}

func exitOf(s *os.ProcessState) plan.Exit {
	if s == nil {
		return plan.Exit{Code: -1, Failure: "lost", Cause: plan.CauseTransient, Message: "the system told nothing of the process's end"}
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

// Stop implements controller.Runner.
func (r *Processes) Stop(_ context.Context, key plan.Key) error {
	r.mu.Lock()
	x := r.live[key]
	r.mu.Unlock()
	if x == nil {
		return nil
	}
	<-x.ready
	if x.err == nil {
		x.child.stop(r.Grace)
	}
	return nil
}

// List implements controller.Runner.
func (r *Processes) List(context.Context) ([]plan.Key, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	keys := make([]plan.Key, 0, len(r.live))
	for k := range r.live {
		keys = append(keys, k)
	}
	return keys, nil
}

// Close implements controller.Runner.
func (r *Processes) Close() error {
	r.mu.Lock()
	if r.closed {
		r.mu.Unlock()
		return nil
	}
	r.closed = true
	r.mu.Unlock()
	keys, _ := r.List(context.Background())
	for _, k := range keys {
		_ = r.Stop(context.Background(), k)
	}
	r.shut()
	return nil
}

package local

import (
	"context"
	"maps"
	"os"
	"slices"
	"time"

	"github.com/fulgur-rl/fulgur"
	"github.com/fulgur-rl/fulgur/internal/controller"
	"github.com/fulgur-rl/fulgur/internal/controller/plan"
)

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
	r := &Processes{live: map[plan.Key]*process{}}
	r.base = newBase(p, r.fills)
	return r, nil
}

// process is one running attempt.
type process struct {
	e      controller.Execution
	ready  chan struct{} // closed when the start has worked or failed
	err    error
	child  *child
	mark   string
	log    *controller.LogBuffer
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
	if err := r.disk.Room(); err != nil {
		return err
	}
	mapped, err := r.mapped(x.e)
	if err != nil {
		return err
	}
	own := map[string]string{markName: x.mark}
	vars, pass := r.vars(x.e)
	l := launch{dir: r.Dir, mark: x.mark, pass: pass}
	if r.Workspace || r.Input == controller.ByFile {
		if x.folder, l.dir, err = r.files(r.attempts(), x.e, own); err != nil {
			return err
		}
		if file := own["FULGUR_INPUT_FILE"]; file != "" {
			l.read = []string{file}
		}
		if r.Workspace {
			l.write = []string{l.dir}
		}
		defer func() {
			if err != nil {
				_ = os.RemoveAll(x.folder)
			}
		}()
	}
	if l.env, err = r.merge(mapped, vars, own); err != nil {
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
	if feed != nil {
		defer func() { _ = stdin.Close() }()
	}
	l.files = [3]*os.File{stdin, w, w}
	if x.child, err = r.start(l); err != nil {
		_ = out.Close()
		if feed != nil {
			_ = feed.Close()
		}
		return err
	}
	if r.Workspace {
		pid := x.child.pid
		r.disk.Watch(x.e.Key, x.folder, func() int64 { return unlinked(x.folder, pid) })
	}
	x.out, x.log = out, controller.NewLogBuffer(r.LogCap)
	go drainInto(x.log, out, x.read)
	if feed != nil {
		go func() { // ends at the latest when the process does: then nobody reads
			if r.Input == controller.ByStdin {
				_, _ = feed.Write(x.e.Input)
			}
			_ = feed.Close()
		}()
	}
	return nil
}

// stdin is what the agent reads: nothing, or its input, which feed gets. Without a
// feed it is everybody's, and not to be closed. What is in a sandbox gets no file of the machine's,
// whose permissions it could change where it is root's.
func (r *Processes) stdin(input []byte) (stdin, feed *os.File, err error) {
	if r.Input != controller.ByStdin && r.Sandbox == nil {
		if stdin, err = r.null(); err != nil {
			err = spawnError(os.DevNull, "", err)
		}
		return stdin, nil, err
	}
	if stdin, feed, err = os.Pipe(); err != nil {
		err = spawnError("a pipe", "", err)
	}
	return stdin, feed, err
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
	log := x.log.Bytes()
	exit := r.exitOf(x.child, controller.LastLines(log))
	exit.CPU = r.cpuOf(x.child)
	exit = r.measured(x.e.Key, exit)
	good := exit.Code == 0 && exit.Failure == "" && exit.Signal == "" && !x.child.stopped()
	exit.Tail, exit.Log = r.keepLog(x.e, log, good)
	r.leave(x.e.Key, x.folder, exit, x.child.stopped())
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
	return mark == r.graders()
}

func (c *child) stopped() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.stopping
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

// fills ends an execution that uses up the disk, at once.
func (r *Processes) fills(key plan.Key) {
	r.mu.Lock()
	x := r.live[key]
	r.mu.Unlock()
	if x == nil {
		return
	}
	if <-x.ready; x.err == nil {
		x.child.stop(0)
	}
}

// List implements controller.Runner.
func (r *Processes) List(context.Context) ([]plan.Key, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Collect(maps.Keys(r.live)), nil
}

// Close implements controller.Runner.
func (r *Processes) Close() error {
	if r.halt(r) {
		r.shut()
	}
	return nil
}

// Kill ends everything by force and at once, for a process that is about to
// exit; it may be called while Close waits.
func (r *Processes) Kill() {
	r.halt(r)
	r.kill()
}

package local

import (
	"context"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/fulgur-rl/fulgur"
	"github.com/fulgur-rl/fulgur/internal/controller"
	"github.com/fulgur-rl/fulgur/internal/controller/plan"
	"github.com/fulgur-rl/fulgur/internal/controller/sandbox"
)

// Workers runs agents in long-lived processes, for programs whose start is what
// costs. It implements controller.Runner.
//
// The protocol (architecture: How an agent is run). One line of JSON in per
// rollout, one out:
//
//	{"v":1,"rollout_id":"…","attempt_id":"…","input":…,"env":{…},"dir":"…","deadline":1760000000.5}
//	{"v":1,"rollout_id":"…","ok":true,"error":null}
//
// deadline is in seconds since the epoch, null if there is none; held calls
// move it, so it is for the agent's information. Any other line on standard
// output fails the rollout, and the worker is replaced. Standard error is the
// log. End of input means exit. A rollout runs from the moment its worker has
// read its line: a worker's start-up is outside the rollout's timeout. What a
// process shares between its rollouts is not isolated.
//
// A worker's own environment is the parent's with the literals of Options.Env
// and FULGUR_WORKER=1; what belongs to a rollout is in its line.
type Workers struct {
	*base
	// Guarded by base.mu:
	live    map[plan.Key]*job
	waiting []*job
	workers map[*worker]bool // all that exist; true: idle
}

// job is a rollout for a worker.
type job struct {
	e      controller.Execution
	env    map[string]string
	pass   sandbox.Pass
	folder string // in its worker's; "": it has none

	// Guarded by base.mu:
	worker  *worker
	stopped bool
}

// worker is a place for one process after another.
type worker struct {
	n    int
	jobs chan *job // one at a time; closed: end
	p    *pipes    // the process; nil: none. Only its goroutine changes it, under base.mu
}

// NewWorkers checks the options; the first Start starts the first worker.
func NewWorkers(o Options) (*Workers, error) {
	switch {
	case o.Workers < 1:
		return nil, fulgur.E(fulgur.KindInvalid, "set up the local runner", "the number of workers (runner.slots) must be at least 1", nil)
	case o.Input == controller.ByStdin:
		return nil, fulgur.E(fulgur.KindInvalid, "set up the local runner", "a worker's standard input is the protocol's: its input comes in each line, so set agent.input to env or file", nil)
	case o.WorkerStart <= 0:
		o.WorkerStart = time.Minute
	}
	p, err := o.prepare()
	if err != nil {
		return nil, err
	}
	r := &Workers{live: map[plan.Key]*job{}, workers: map[*worker]bool{}}
	r.base = newBase(p, r.fills)
	return r, nil
}

// Adopt implements controller.Runner. What is kept of attempts that were lost is taken out
// of the folders of their workers.
func (r *Workers) Adopt(ctx context.Context, left []controller.Leftover) ([]plan.Key, error) {
	keys, err := r.base.Adopt(ctx, left)
	if r.State == "" {
		return keys, err
	}
	r.mu.Lock()
	mine := map[string]bool{}
	for w := range r.workers {
		if w.p != nil {
			mine[w.p.dir] = true
		}
	}
	r.mu.Unlock()
	all, _ := os.ReadDir(r.attempts()) // there are none where it is not there
	for _, d := range all {
		dir := filepath.Join(r.attempts(), d.Name())
		if mine[dir] || !strings.HasPrefix(d.Name(), workerDir) {
			continue
		}
		for _, l := range left {
			from := filepath.Join(dir, controller.FileName(l.Key))
			if st, err := os.Lstat(from); err == nil && st.IsDir() && r.Keep != controller.KeepNone {
				r.fetch(&job{folder: from})
			}
		}
		r.discard(dir)
	}
	return keys, err
}

// workerDir is what the folders of workers' processes are called, with something behind.
const workerDir = "worker-"

// Start implements controller.Runner: an event tells when the agent runs.
func (r *Workers) Start(_ context.Context, e controller.Execution) (controller.Started, error) {
	r.mu.Lock()
	if j := r.live[e.Key]; j != nil {
		defer r.mu.Unlock()
		return controller.Started{}, nil
	}
	r.mu.Unlock()
	j, err := r.prepareJob(e)
	if err != nil {
		return controller.Started{}, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return controller.Started{}, fulgur.E(fulgur.KindUnavailable, "", "the runner is closed", nil)
	}
	if r.live[e.Key] != nil { // another Start was quicker
		return controller.Started{}, nil
	}
	r.live[e.Key] = j
	for w, idle := range r.workers {
		if idle {
			r.giveLocked(w, j)
			return controller.Started{}, nil
		}
	}
	if len(r.workers) < r.Workers {
		w := &worker{n: len(r.workers), jobs: make(chan *job, 1)}
		r.giveLocked(w, j)
		r.wg.Go(func() { r.work(w) })
		return controller.Started{}, nil
	}
	r.waiting = append(r.waiting, j)
	return controller.Started{}, nil
}

func (r *Workers) giveLocked(w *worker, j *job) {
	r.workers[w] = false
	j.worker = w
	w.jobs <- j
}

// work is a worker's goroutine: it takes rollouts until it is closed.
func (r *Workers) work(w *worker) {
	for j := range w.jobs {
		exit := r.measured(j.e.Key, r.runJob(w, j))
		ended := w.p != nil && (w.p.child.stopped() || w.p.dead())
		if ended {
			<-w.p.child.gone
			w.p.finish()
		}
		r.told(w, j, exit)
		if ended {
			r.replace(w)
		}
		r.next(w)
	}
	if w.p != nil {
		w.p.leave(r.Grace)
		r.gone(w.p)
	}
}

// gone books what a process that has ended has used, and removes its folder.
func (r *Workers) gone(p *pipes) {
	r.cpuOf(p.child)
	r.discard(p.dir)
}

// discard removes a worker's folder; "": it has none.
func (r *Workers) discard(dir string) {
	if dir == "" {
		return
	}
	if err := controller.RemoveAll(dir); err != nil {
		r.Log.Warn("a worker's folder could not be removed", "folder", dir, "err", err)
	}
}

// replace drops a worker's dead process and starts the next, so that it is warm
// for the next rollout; one that died at its start-up is only tried again when
// there is one.
func (r *Workers) replace(w *worker) {
	old := w.p
	r.gone(old)
	r.mu.Lock()
	w.p = nil
	closed := r.closed
	r.mu.Unlock()
	if old.fresh || closed {
		return
	}
	if p, err := r.spawn(w); err == nil {
		r.mu.Lock()
		w.p = p
		r.mu.Unlock()
	}
}

// next gives a worker the rollout that waits longest, or lets it idle.
func (r *Workers) next(w *worker) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return
	}
	if len(r.waiting) > 0 {
		j := r.waiting[0]
		r.waiting = r.waiting[1:]
		r.giveLocked(w, j)
		return
	}
	r.workers[w] = true
}

// told tells a rollout's exit.
func (r *Workers) told(w *worker, j *job, exit plan.Exit) {
	good := exit.Code == 0 && exit.Failure == "" && exit.Signal == ""
	if w.p != nil {
		exit.Tail, exit.Log = r.keepLog(j.e, w.p.log.Bytes(), good && !w.p.child.stopped())
	}
	r.mu.Lock()
	stopped := j.stopped
	r.mu.Unlock()
	r.leave(j.e.Key, r.fetch(j), exit, stopped)
	r.mu.Lock()
	delete(r.live, j.e.Key)
	j.worker = nil
	r.mu.Unlock()
	r.events <- controller.Event{Key: j.e.Key, Exit: &exit}
}

// Stop implements controller.Runner: with the rollout goes its worker.
func (r *Workers) Stop(_ context.Context, key plan.Key) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	j := r.live[key]
	if j == nil || j.stopped {
		return nil
	}
	j.stopped = true
	if j.worker != nil {
		if p := j.worker.p; p != nil {
			p.child.stop(r.Grace)
		}
		return nil
	}
	for i, x := range r.waiting {
		if x == j {
			r.waiting = append(r.waiting[:i:i], r.waiting[i+1:]...)
			delete(r.live, key)
			r.wg.Go(func() {
				r.events <- controller.Event{Key: key, Exit: &plan.Exit{Code: -1, Signal: "terminated"}}
			})
			break
		}
	}
	return nil
}

// fills ends an execution that uses up the disk, with its worker, at once.
func (r *Workers) fills(key plan.Key) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if j := r.live[key]; j != nil && j.worker != nil && j.worker.p != nil {
		j.worker.p.child.stop(0)
	}
}

// List implements controller.Runner.
func (r *Workers) List(context.Context) ([]plan.Key, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Collect(maps.Keys(r.live)), nil
}

// Close implements controller.Runner.
func (r *Workers) Close() error {
	if !r.halt(r) {
		return nil
	}
	r.mu.Lock()
	for w := range r.workers {
		close(w.jobs) // one that is given is still taken first
	}
	r.mu.Unlock()
	r.shut()
	return nil
}

// Kill ends everything by force and at once, for a process that is about to
// exit; it may be called while Close waits.
func (r *Workers) Kill() {
	r.halt(r)
	r.kill()
}

// pipes is a worker's process with its ends.
type pipes struct {
	child *child
	in    *os.File // we write
	queue *os.File // the read end of in, held to see what the worker has not read
	out   *os.File
	err   *os.File
	log   *controller.LogBuffer
	lines chan string // of standard output; closed at its end
	quit  chan struct{}
	read  chan struct{} // standard error is at its end
	sent  chan struct{} // the last line is written
	fresh bool          // has not read its first line
	dir   string        // of its rollouts' folders; "": they have none
	once  sync.Once
}

const (
	maxLine   = 1 << 20
	roomEvery = time.Second // how often a worker is tried to be started that this machine has no room for
)

// spawn starts a worker's process.
func (r *Workers) spawn(w *worker) (*pipes, error) {
	literals := map[string]string{"FULGUR_WORKER": "1", markName: r.owner + "/worker/" + fmt.Sprint(w.n)}
	for name, value := range r.Env {
		if value != "input" && !strings.HasPrefix(value, "input.") {
			literals[name] = value
		}
	}
	env, err := r.merge(literals)
	if err != nil {
		return nil, err
	}
	var files [6]*os.File // in, out, err: read end, write end
	closeAll := func() {
		for _, f := range files {
			if f != nil {
				_ = f.Close()
			}
		}
	}
	for i := 0; i < len(files); i += 2 {
		if files[i], files[i+1], err = os.Pipe(); err != nil {
			closeAll()
			return nil, spawnError("a pipe", "", err)
		}
	}
	l := launch{dir: r.Dir, env: env, files: [3]*os.File{files[0], files[3], files[5]}, mark: literals[markName]}
	var dir string
	if r.filed() { // of all its rollouts: they come after its start, and are no other worker's to see
		if err = os.MkdirAll(r.attempts(), 0o700); err == nil {
			dir, err = os.MkdirTemp(r.attempts(), workerDir)
		}
		if err != nil {
			closeAll()
			return nil, spawnError("a folder", r.State, err)
		}
		l.write = []string{dir}
	}
	c, err := r.start(l)
	if err != nil {
		closeAll()
		_ = os.RemoveAll(dir)
		return nil, err
	}
	_ = files[3].Close()
	_ = files[5].Close()
	p := &pipes{child: c, in: files[1], queue: files[0], out: files[2], err: files[4], log: controller.NewLogBuffer(r.LogCap),
		lines: make(chan string, 16), quit: make(chan struct{}), read: make(chan struct{}), sent: make(chan struct{}), fresh: true, dir: dir}
	close(p.sent)
	go p.child.wait()
	go p.scan()
	go drainInto(p.log, p.err, p.read)
	return p, nil
}

// spawnExit is the exit of a rollout whose worker could not be started.
func spawnExit(err error) plan.Exit {
	x := plan.Exit{Code: -1, Failure: plan.ReasonSpawn, Cause: plan.CausePermanent, Message: "the worker could not be started: " + err.Error()}
	switch fulgur.KindOf(err) {
	case fulgur.KindExhausted, fulgur.KindUnavailable:
		x.Cause = plan.CauseTransient
	}
	return x
}

package local

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/fulgur-rl/fulgur"
	"github.com/fulgur-rl/fulgur/internal/controller"
	"github.com/fulgur-rl/fulgur/internal/controller/sandbox"
)

// forker starts processes from one thread that lives as long as it does: a
// child's death signal is tied to the thread that made it.
type forker struct {
	jobs chan forkJob
	done chan struct{}
}

type forkJob struct {
	name  string
	argv  []string
	attr  *os.ProcAttr
	reply chan forked
	// around is called with what forks, on the thread that does; nil: that alone is called.
	around func(fork func() error) error
}

type forked struct {
	proc *os.Process
	err  error
}

func newForker() *forker {
	f := &forker{jobs: make(chan forkJob), done: make(chan struct{})}
	go f.run()
	return f
}

func (f *forker) run() {
	defer close(f.done)
	runtime.LockOSThread()
	defer runtime.UnlockOSThread() // the thread goes back to the pool and lives on
	for j := range f.jobs {
		var r forked
		fork := func() (err error) { r.proc, err = os.StartProcess(j.name, j.argv, j.attr); return err }
		if j.around == nil {
			r.err = fork()
		} else {
			r.err = j.around(fork)
		}
		j.reply <- r
	}
}

func (f *forker) start(name string, argv []string, attr *os.ProcAttr, around func(fork func() error) error) (*os.Process, error) {
	reply := make(chan forked, 1)
	f.jobs <- forkJob{name, argv, attr, reply, around}
	r := <-reply
	return r.proc, r.err
}

func (f *forker) close() {
	close(f.jobs)
	<-f.done
}

// spawnError says in our kinds what kept a process from starting.
func spawnError(program, dir string, err error) error {
	if e := (*fulgur.Error)(nil); errors.As(err, &e) {
		return err // it says so itself
	}
	kind, msg := fulgur.KindInternal, "the system refused to start "+program
	switch {
	case controller.NoRoom(err):
		kind, msg = fulgur.KindExhausted, "no process, memory, file or disk space is left to start "+program+": lower runner.slots or raise the limit"
	case errors.Is(err, syscall.ETXTBSY):
		kind, msg = fulgur.KindUnavailable, program+" is being written"
	case errors.Is(err, syscall.E2BIG):
		kind, msg = fulgur.KindTooLarge, "the agent's arguments and environment are larger than the system takes together: use agent.input file or stdin"
	case errors.Is(err, syscall.ENOENT):
		kind, msg = fulgur.KindNotFound, fmt.Sprintf("%s, its interpreter, or the folder %q is not there any more", program, dir)
	case errors.Is(err, syscall.EACCES), errors.Is(err, syscall.EPERM), errors.Is(err, syscall.ENOEXEC):
		kind, msg = fulgur.KindForbidden, program+" cannot be executed: is it a program for this machine, with the x bit?"
	}
	return fulgur.E(kind, "", msg, err)
}

// child is a process that leads a group of its own.
type child struct {
	pid    int
	handle string
	proc   *os.Process
	mark   string
	cell   *sandbox.Cell // nil: none
	birth  uint64        // 0: not known
	dog    *watchdog     // nil: none

	gone  chan struct{} // closed when it has exited and its group is dead
	state *os.ProcessState

	mu       sync.Mutex
	reaped   bool
	stopping bool
	known    []ident // descendants seen when it was stopped
}

func newChild(p *os.Process, mark string, dog *watchdog) *child {
	c := &child{pid: p.Pid, proc: p, mark: mark, dog: dog, gone: make(chan struct{})}
	if birth, ok := born(p.Pid); ok {
		c.birth = birth
		c.handle = fmt.Sprintf("%s:%d:%d", bootID(), p.Pid, birth)
	}
	dog.begins(ident{c.pid, c.birth})
	return c
}

// wait reaps the child and ends its tree. One goroutine calls it.
func (c *child) wait() {
	awaitExit(c.pid)
	// While it is not reaped, its number is its own, and its group's too.
	_ = syscall.Kill(-c.pid, syscall.SIGKILL)
	c.dog.ends(ident{c.pid, c.birth})
	c.mu.Lock()
	c.state, _ = c.proc.Wait()
	c.reaped = true
	stopping, known := c.stopping, c.known
	c.mu.Unlock()
	if runtime.GOOS != "linux" {
		_ = syscall.Kill(-c.pid, syscall.SIGKILL)
	}
	for _, id := range known {
		id.kill()
	}
	if stopping {
		c.sweep()
	}
	if c.cell != nil {
		c.cell.End(sandboxLimit)
	}
	close(c.gone)
}

// sweep ends what left the group and its ancestors, but not its environment.
func (c *child) sweep() { killMarked(func(m string) bool { return m == c.mark }) }

// stop ends the child: SIGTERM, and SIGKILL after the grace. It does not wait.
func (c *child) stop(grace time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.stopping || c.reaped {
		return
	}
	c.stopping = true
	go c.end(grace)
}

func (c *child) end(grace time.Duration) {
	c.signal(syscall.SIGTERM)
	if !closedWithin(c.gone, grace) {
		c.signal(syscall.SIGKILL)
	}
}

// signal sends to the group, and remembers who is below the child while that
// can still be seen: what left the group is ended after it.
func (c *child) signal(sig syscall.Signal) {
	below := descendants(c.pid)
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.reaped {
		return
	}
	c.known = append(c.known, below...)
	group := c.pid
	if c.cell != nil && sig != syscall.SIGKILL && len(below) > 0 {
		// The leader is bubblewrap, whose end is everybody's. The agent and its
		// children are in the group of its only child, which does not hear signals.
		group = below[0].pid
	}
	if syscall.Kill(-group, sig) != nil && group != c.pid { // the sandbox is not up yet
		_ = syscall.Kill(-c.pid, sig)
	}
}

// kill ends one process, if it still is the one that is meant.
func (id ident) kill() { id.signal(syscall.SIGKILL) }

func (id ident) signal(sig syscall.Signal) {
	p, err := os.FindProcess(id.pid) // a pidfd on Linux: it cannot come to mean another process
	if err != nil {
		return
	}
	defer func() { _ = p.Release() }()
	if birth, ok := born(id.pid); ok && birth == id.birth {
		_ = p.Signal(sig)
	}
}

// killMarked ends all processes whose mark is taken, again until none is left:
// one may fork while another is being ended.
func killMarked(match func(mark string) bool) int {
	n := 0
	for range 8 {
		found := marked(match)
		if len(found) == 0 {
			break
		}
		n += len(found)
		for _, id := range found {
			id.kill()
		}
		for _, id := range found {
			id.await()
		}
	}
	return n
}

// await returns when the process is dead, or cannot be killed for two seconds
// (it hangs in the kernel). It is not our child, so it cannot be waited for.
func (id ident) await() {
	for range 1000 {
		if birth, ok := born(id.pid); !ok || birth != id.birth {
			return
		}
		time.Sleep(2 * time.Millisecond)
	}
}

// killHandle ends the group of a process of an earlier controller, if its
// leader still is the one that the handle names.
func killHandle(handle string) bool {
	parts := strings.Split(handle, ":")
	if len(parts) != 3 || parts[0] != bootID() {
		return false
	}
	pid, err := strconv.Atoi(parts[1])
	birth, err2 := strconv.ParseUint(parts[2], 10, 64)
	if err != nil || err2 != nil || pid < 2 {
		return false
	}
	if b, ok := born(pid); !ok || b != birth {
		return false
	}
	all := append(descendants(pid), ident{pid, birth})
	_ = syscall.Kill(-pid, syscall.SIGKILL)
	for _, id := range all {
		id.kill()
	}
	for _, id := range all {
		id.await()
	}
	return true
}

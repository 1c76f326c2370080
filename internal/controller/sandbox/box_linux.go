package sandbox

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fulgur-rl/fulgur"
)

// Box makes sandboxes of one kind. Its methods are safe for concurrent use.
type Box struct {
	o     Options
	bwrap string
	self  *os.File
	relay *Relay   // nil: cells reach nothing
	cg    *cgroups // nil: limits are each process's
	forks *thread  // what cells are started on; nil: any
	note  string   // what is missing
	host  machine
	rules []byte // the system call filter; nil: none
}

// New makes a box, and runs an empty program in it to see that it works. Its
// error says what is missing and what to do about that.
func New(o Options) (*Box, error) {
	const op = "set up the sandbox"
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	b := &Box{o: o, bwrap: o.Bwrap}
	if b.bwrap == "" {
		path, err := exec.LookPath("bwrap")
		if err != nil {
			return nil, fulgur.E(fulgur.KindUnsupported, op, "bubblewrap is not on this machine: "+Install, err)
		}
		b.bwrap = path
	}
	if o.Home == "" {
		b.o.Home = os.Getenv("HOME")
	}
	if err := o.View.check(b.o.Home); err != nil {
		return nil, err
	}
	b.host = machine{home: b.o.Home, size: o.Limits.File, root: os.Geteuid() == 0}
	if b.host.root {
		var ok bool
		if b.host.only, ok = rootOnly("/etc", "/opt", "/usr/local"); !ok {
			return nil, fulgur.E(fulgur.KindUnsupported, op, "there is more in /etc, /opt and /usr/local that only root may read than can be hidden from agents that are root's: run this as an ordinary user", nil)
		}
	}
	if !o.without[GuardSeccomp] {
		b.rules = rules()
	}
	self, err := os.Open("/proc/self/exe")
	if err != nil {
		return nil, fulgur.E(fulgur.KindInternal, op, "this program's own file cannot be read", err)
	}
	b.self = self
	if o.Upstream != "" {
		if b.relay, err = NewRelay(o.Upstream); err != nil {
			return nil, errors.Join(err, self.Close())
		}
	}
	if o.Limits.Memory > 0 || o.Limits.Processes > 0 {
		if b.cg, err = openCgroups(); err != nil {
			b.note = "no control group can be made here (" + err.Error() + "): runner.limits bound each process alone, not an agent's processes together"
			if b.host.root && o.Limits.Processes > 0 {
				b.note += ", and how many processes an agent has is not bounded at all, for no limit of that kind holds for root"
			}
		}
	}
	if b.host.root && !o.without[GuardKernel] {
		if b.forks, err = newThread(); err != nil {
			b.note = strings.TrimPrefix(b.note+"; agents, which are root's, can change who may use /dev/null and its like on this machine ("+err.Error()+"): run this as an ordinary user", "; ")
		}
	}
	if err := b.try(); err != nil {
		b.Close()
		return nil, fulgur.E(fulgur.KindUnsupported, op, err.Error(), nil)
	}
	return b, nil
}

// Note says what the box lacks; "": nothing.
func (b *Box) Note() string { return b.note }

// Home is the agents' home.
func (b *Box) Home() string { return b.o.Home }

// Close is called when no cell is left.
func (b *Box) Close() {
	if b.relay != nil {
		b.relay.Close()
	}
	if b.cg != nil {
		b.cg.close()
	}
	b.forks.close()
	_ = b.self.Close()
}

// Streams are a program's: what it reads, and where what it prints goes. nil: it
// reads nothing, and what it prints is lost.
type Streams struct {
	In       []byte
	Out, Err io.Writer
}

// Run runs a command in a cell to its end, with all that it starts, and returns how
// it ended; a context that ends kills it. c.Files are Run's to make. An error says that
// the command never ran: KindInvalid, its program cannot be started in there;
// KindExhausted and KindUnavailable, the cell could not be made.
func (b *Box) Run(ctx context.Context, c Command, p Pass, s Streams) (*os.ProcessState, error) {
	const op = "run a program in a sandbox"
	fail := func(err error) (*os.ProcessState, error) {
		kind := fulgur.KindUnavailable
		for _, e := range []error{syscall.EAGAIN, syscall.ENOMEM, syscall.EMFILE, syscall.ENFILE, syscall.ENOSPC} {
			if errors.Is(err, e) {
				kind = fulgur.KindExhausted
			}
		}
		return nil, fulgur.E(kind, op, "", err)
	}
	var pipes [6]*os.File // in, out, err: read end, write end
	defer func() {
		for _, f := range pipes {
			_ = f.Close()
		}
	}()
	var err error
	for i := 0; i < len(pipes); i += 2 {
		if pipes[i], pipes[i+1], err = os.Pipe(); err != nil {
			return fail(err)
		}
	}
	c.Files = [3]*os.File{pipes[0], pipes[3], pipes[5]}
	cell, err := b.Cell(c)
	if err != nil {
		return fail(err)
	}
	cell.Let(p)
	var proc *os.Process
	err = cell.Attributes(&syscall.SysProcAttr{Setpgid: true})(func() (err error) {
		proc, err = os.StartProcess(cell.Name, cell.Argv, cell.Attr)
		return err
	})
	if err != nil {
		cell.Abandon()
		return fail(err)
	}
	cell.Begin()
	for _, i := range []int{0, 3, 5} { // the child's
		_ = pipes[i].Close()
	}
	var streams sync.WaitGroup
	streams.Go(func() { // ends at the latest when nobody can read any more
		_, _ = pipes[1].Write(s.In)
		_ = pipes[1].Close()
	})
	said := &head{room: 4 << 10}
	copies := func(w io.Writer, from *os.File) {
		if w == nil {
			w = io.Discard
		}
		_, _ = io.Copy(w, from)
	}
	streams.Go(func() { copies(s.Out, pipes[2]) })
	streams.Go(func() { copies(tee(s.Err, said), pipes[4]) })
	state, err := reap(ctx, proc)
	cell.End(endPatience)
	// What has not died by now hangs in the kernel, and may hold the pipes.
	for _, i := range []int{2, 4} {
		_ = pipes[i].SetReadDeadline(time.Now().Add(endPatience))
	}
	streams.Wait()
	switch why, program := cell.Problem(string(said.text)); {
	case err != nil:
		return fail(err)
	case ctx.Err() != nil:
		return state, ctx.Err()
	case program:
		return nil, fulgur.E(fulgur.KindInvalid, op, why, nil)
	case why != "":
		return nil, fulgur.E(fulgur.KindUnavailable, op, why, nil)
	}
	return state, nil
}

// reap waits for a process that leads a group; a context that ends kills all of it.
// What is left of it in the end is killed too: bubblewrap inside stays in the group, and
// does not die with the one outside, until that has set up its user namespace.
func reap(ctx context.Context, p *os.Process) (*os.ProcessState, error) {
	var mu sync.Mutex
	reaped := false // then its number may be another's
	kill := func() {
		mu.Lock()
		defer mu.Unlock()
		if !reaped {
			_ = syscall.Kill(-p.Pid, syscall.SIGKILL)
		}
	}
	stop := context.AfterFunc(ctx, kill)
	defer stop()
	for unix.Waitid(unix.P_PID, p.Pid, nil, unix.WEXITED|unix.WNOWAIT, nil) == unix.EINTR { //nolint:revive // that is the loop
	}
	kill()
	mu.Lock()
	defer mu.Unlock()
	reaped = true
	return p.Wait()
}

// endPatience is how long what is in a cell may take to die with it.
const endPatience = 2 * time.Second

// head keeps the beginning of what is written to it.
type head struct {
	text []byte
	room int
}

func (h *head) Write(p []byte) (int, error) {
	k := min(h.room-len(h.text), len(p))
	h.text = append(h.text, p[:k]...)
	return len(p), nil
}

// tee writes to both; a may be nil.
func tee(a, b io.Writer) io.Writer {
	if a == nil {
		return b
	}
	return io.MultiWriter(b, a)
}

// try runs a program that only ends.
func (b *Box) try() error {
	c := Command{Program: "/proc/self/fd/4", Args: []string{"true", trueName}, Env: []string{}, free: true}
	said := &head{room: 4 << 10}
	st, err := b.Run(context.Background(), c, Pass{}, Streams{Err: said})
	if err == nil && st.ExitCode() != 0 {
		err = errors.New(readable(string(said.text)))
	}
	if err != nil {
		var e *fulgur.Error
		if errors.As(err, &e) {
			e.Op = ""
		}
		return fmt.Errorf("bubblewrap does not work here: %w", err)
	}
	return nil
}

// Env rewrites variables for a cell: addresses of the gateway become the
// relay's, credentials what it replaces. It returns what the relay may let through
// for them.
func (b *Box) Env(vars map[string]string, secrets []string) (map[string]string, Pass) {
	if b.relay == nil {
		return vars, Pass{}
	}
	if b.o.without[GuardKey] {
		secrets = nil
	}
	out, p := Through(b.relay.base, vars, secrets)
	if b.o.without[GuardRelay] {
		p.Paths = []string{"/"}
	}
	return out, p
}

package sandbox

import (
	"errors"
	"io"
	"log"
	"net"
	"net/http"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fulgur-rl/fulgur"
)

// Command is what a cell runs.
type Command struct {
	Program string   // absolute path
	Args    []string // with the program's name
	Dir     string   // working folder; it has to be visible
	Env     []string
	Files   [3]*os.File
	Read    []string // visible beside the box's view, read-only
	Write   []string // and writable

	free bool // without limits: a Go program needs more memory than agents may get
}

// Cell is one sandbox.
type Cell struct {
	Name string       // what to start
	Argv []string     //
	Attr *os.ProcAttr // with its files; Sys is the caller's to fill

	box   *Box
	group *group
	ends  []*os.File // the child's, ours to close after the start
	ctl   *net.UnixConn
	leash *os.File

	mu  sync.Mutex
	let Pass

	// hear's, and after heard is closed everybody's:
	opened  bool   // the first program was there
	problem string // what it said
	server  *http.Server
	heard   chan struct{} // closed when the first program is over

	hit string // End's
	cpu time.Duration
}

// Cell prepares a sandbox. After it is started, or was not, Begin or Abandon has
// to be called, and in the end End.
func (b *Box) Cell(c Command) (cell *Cell, err error) {
	cell = &Cell{Name: b.bwrap, box: b, heard: make(chan struct{})}
	defer func() {
		if err != nil {
			cell.Abandon()
		}
	}()
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return cell, err
	}
	theirs := os.NewFile(uintptr(pair[1]), "sandbox")
	cell.ends = append(cell.ends, theirs)
	ours := os.NewFile(uintptr(pair[0]), "sandbox")
	conn, err := net.FileConn(ours)
	_ = ours.Close()
	if err != nil {
		return cell, err
	}
	cell.ctl = conn.(*net.UnixConn)
	leash, held, err := os.Pipe()
	if err != nil {
		return cell, err
	}
	cell.leash = leash
	cell.ends = append(cell.ends, held)
	if b.cg != nil {
		if cell.group, err = b.cg.make(b.o.Limits); err != nil {
			return cell, err
		}
	}
	view := b.o.View.with(c.Read, c.Write)
	view.Show = append(view.Show, view.program(c.Program, b.o.Home)...)
	filter, err := b.filter()
	if err != nil {
		return cell, err
	}
	cell.ends = append(cell.ends, filter)
	limits := b.o.Limits
	if c.free {
		limits = Limits{}
	}
	cell.Argv = append(b.args(view, c.Dir), innerArgs(limits, b.cg == nil, b.relay != nil)...)
	cell.Argv = append(append(cell.Argv, c.Program), c.Args[1:]...)
	cell.Attr = &os.ProcAttr{Dir: "/", Env: c.Env, Files: []*os.File{c.Files[0], c.Files[1], c.Files[2], theirs, b.self, held, filter}}
	return cell, nil
}

// filter returns a file that bubblewrap reads the system call filter from. It
// puts it on its own process inside too: on what could else be traced and made
// to call what the agent may not.
func (b *Box) filter() (*os.File, error) {
	r, w, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	_, err = w.Write(b.rules) // fits into the pipe
	return r, errors.Join(err, w.Close())
}

// args returns bubblewrap's command line, up to the first program's arguments.
func (b *Box) args(v View, dir string) []string {
	off := b.o.without
	args := []string{"bwrap", "--unshare-user", "--unshare-uts", "--unshare-cgroup-try", "--die-with-parent", "--new-session", "--cap-drop", "ALL",
		"--hostname", "sandbox", "--sync-fd", "5"}
	for _, g := range []struct {
		guard Guard
		flag  string
	}{{GuardNet, "--unshare-net"}, {GuardPID, "--unshare-pid"}, {GuardIPC, "--unshare-ipc"}, {GuardUserNS, "--disable-userns"}} {
		if !off[g.guard] {
			args = append(args, g.flag)
		}
	}
	args = append(args, mounts(v, b.host, off)...)
	if b.rules != nil {
		args = append(args, "--seccomp", "6")
	}
	if dir == "" {
		dir = "/tmp"
	}
	return append(args, "--chdir", dir, "--", "/proc/self/fd/4")
}

// Attributes adds what the sandbox needs to the child's, and returns what has to
// be called around the start. It forks nothing, and returns why, where the child's
// limits cannot be set.
func (c *Cell) Attributes(a *syscall.SysProcAttr) (around func(fork func() error) error) {
	c.Attr.Sys = a
	if c.group != nil && c.group.v2 {
		a.UseCgroupFD, a.CgroupFD = true, int(c.group.fd.Fd())
	}
	return func(fork func() error) (err error) {
		c.box.forks.do(func() {
			if c.group == nil || c.group.v2 {
				err = fork()
				return
			}
			runtime.LockOSThread()
			defer runtime.UnlockOSThread()
			leave, e := c.group.enter(c.box.cg)
			if e != nil {
				err = fulgur.E(fulgur.KindUnavailable, "", "the agent's limits cannot be set", e)
				return
			}
			defer leave()
			err = fork()
		})
		return err
	}
}

// Begin goes on after the start: it serves the relay until End.
func (c *Cell) Begin() {
	c.closeEnds()
	go c.hear()
}

func (c *Cell) closeEnds() {
	for _, f := range c.ends {
		_ = f.Close()
	}
	c.ends = nil
}

// Abandon frees what Cell has made, where nothing was started.
func (c *Cell) Abandon() {
	c.closeEnds()
	if c.ctl != nil {
		_ = c.ctl.Close()
	}
	if c.leash != nil {
		_ = c.leash.Close()
	}
	if c.group != nil {
		c.group.remove()
	}
}

// hear reads what the sandbox's first program says, and serves its listener.
func (c *Cell) hear() {
	defer close(c.heard)
	buf, oob := make([]byte, 1024), make([]byte, unix.CmsgSpace(4))
	for {
		n, k, _, _, err := c.ctl.ReadMsgUnix(buf, oob)
		if err != nil || n == 0 {
			return
		}
		switch buf[0] {
		case saysHere:
			c.opened = true
			if k > 0 {
				c.listen(oob[:k])
			}
		case saysError:
			c.problem = string(buf[1:n])
		}
	}
}

// listen takes the listener out of a message and serves it.
func (c *Cell) listen(oob []byte) {
	msgs, err := unix.ParseSocketControlMessage(oob)
	if err != nil || len(msgs) != 1 {
		return
	}
	fds, err := unix.ParseUnixRights(&msgs[0])
	if err != nil || len(fds) != 1 {
		return
	}
	unix.CloseOnExec(fds[0])
	f := os.NewFile(uintptr(fds[0]), "relay")
	l, err := net.FileListener(f)
	_ = f.Close()
	if err != nil {
		return
	}
	s := &http.Server{ReadHeaderTimeout: time.Minute, ErrorLog: log.New(io.Discard, "", 0), Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		c.mu.Lock()
		p := c.let
		c.mu.Unlock()
		c.box.relay.serve(w, r, p)
	})}
	c.server = s
	go func() { _ = s.Serve(Few(l)) }() // ends with End
}

// Let says which attempt the cell's requests belong to from now on.
func (c *Cell) Let(p Pass) {
	c.mu.Lock()
	c.let = p
	c.mu.Unlock()
}

// End is called when bubblewrap has ended: it waits until everything in the
// sandbox is dead, at most for d; kills what is not, and waits once more; closes the
// relay, and frees what is left.
func (c *Cell) End(d time.Duration) {
	dead := c.deadWithin(d)
	if !dead && c.group != nil {
		c.group.kill()
		dead = c.deadWithin(d)
	}
	if !dead {
		c.box.o.Log.Warn("a sandbox's processes have not ended yet", "after", d)
	}
	_ = c.ctl.SetReadDeadline(time.Now().Add(d))
	<-c.heard
	if c.server != nil { // hear has set it
		_ = c.server.Close()
	}
	_ = c.leash.Close()
	_ = c.ctl.Close()
	if c.group != nil {
		c.hit, c.cpu = c.group.hit(), c.group.cpu()
		c.group.remove()
	}
}

// deadWithin waits until all in the sandbox is dead, at most for d.
func (c *Cell) deadWithin(d time.Duration) bool {
	_ = c.leash.SetReadDeadline(time.Now().Add(d))
	// To its end: bubblewrap inside holds the other, and an agent can have it write.
	_, err := io.Copy(io.Discard, c.leash)
	return !errors.Is(err, os.ErrDeadlineExceeded)
}

// CPU is the time that the sandbox's processes have used, as far as a control
// group counted it. It is called after End.
func (c *Cell) CPU() time.Duration { return c.cpu }

// Problem says why the agent never ran, "" if it did: printed is what bubblewrap
// printed. program says that the agent's program is what could not be started. It is called after End.
func (c *Cell) Problem(printed string) (why string, program bool) {
	switch {
	case c.problem != "":
		return c.problem, c.opened
	case c.opened:
		return "", false
	}
	return readable(printed), false
}

// Limit says which limit ended the agent, "" if none is known to have: signal
// is the one that it died of, log the end of what it printed. sure says that the kernel
// tells so; else it is what the agent printed, whose word is no proof.
func (c *Cell) Limit(signal syscall.Signal, printed string) (limit string, sure bool) {
	l := c.box.o.Limits
	switch {
	case c.hit != "":
		return c.hit, true
	case signal == syscall.SIGXCPU && l.CPU > 0, signal == syscall.SIGKILL && l.CPU > 0 && c.cpu >= l.CPU: // it did not mind SIGXCPU
		return "cpu", true
	case signal == syscall.SIGXFSZ && l.File > 0:
		return "disk", true
	}
	if c.group != nil { // which has counted these
		l.Memory, l.Processes = 0, 0
	}
	return limitByWords(printed, l), false
}

// limitByWords goes by what programs print that a limit stops, where nothing counts.
func limitByWords(text string, l Limits) string {
	says := func(words ...string) bool {
		return slices.ContainsFunc(words, func(w string) bool { return strings.Contains(text, w) })
	}
	switch {
	case l.File > 0 && says("File too large", "No space left on device", "file too large", "no space left on device", "EFBIG", "ENOSPC"):
		return "disk"
	case l.Memory > 0 && says("Cannot allocate memory", "cannot allocate memory", "MemoryError", "out of memory", "std::bad_alloc", "ENOMEM"):
		return "memory"
	case l.Processes > 0 && says("Resource temporarily unavailable", "resource temporarily unavailable", "can't start new thread", "annot fork", "EAGAIN"):
		return "processes"
	}
	return ""
}

package sandbox

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"slices"
	"syscall"
	"time"

	"github.com/fulgur-rl/fulgur"
)

// Box makes sandboxes of one kind. Its methods are safe for concurrent use.
type Box struct {
	o     Options
	bwrap string
	self  *os.File
	relay *Relay   // nil: cells reach nothing
	cg    *cgroups // nil: limits are each process's
	note  string   // why cg is nil
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
	for _, p := range o.View.Read {
		if p == "/" || within(b.o.Home, p) || slices.Contains(private, p) {
			return nil, fulgur.E(fulgur.KindInvalid, op, "the agents would see all of "+p+": keep the run file, and what runner.read names, in folders of their own", nil)
		}
	}
	b.host = machine{home: b.o.Home, size: o.Limits.File, root: os.Geteuid() == 0}
	if b.host.root {
		b.host.only = rootOnly("/etc", "/opt")
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
		}
	}
	if err := b.try(); err != nil {
		b.Close()
		return nil, fulgur.E(fulgur.KindUnsupported, op, err.Error(), nil)
	}
	return b, nil
}

// private are folders that every sandbox has of its own.
var private = []string{"/tmp", "/var/tmp", "/dev", "/proc", "/home", "/root", "/run", "/var"}

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
	_ = b.self.Close()
}

// Run runs a command in a cell to its end, and returns how it ended; a context
// that ends kills it. Standard input, output and error are the command's.
func (b *Box) Run(ctx context.Context, c Command, p Pass) (*os.ProcessState, *Cell, error) {
	cell, err := b.Cell(c)
	if err != nil {
		return nil, nil, err
	}
	cell.Let(p)
	var proc *os.Process
	cell.Attributes(&syscall.SysProcAttr{Setpgid: true})(func() { proc, err = os.StartProcess(cell.Name, cell.Argv, cell.Attr) })
	if err != nil {
		cell.Abandon()
		return nil, nil, err
	}
	cell.Begin()
	stop := context.AfterFunc(ctx, func() { _ = proc.Kill() })
	defer stop()
	state, err := proc.Wait()
	cell.End(2 * time.Second)
	return state, cell, err
}

// try runs a program that only ends.
func (b *Box) try() error {
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer func() { _ = null.Close() }()
	r, w, err := os.Pipe()
	if err != nil {
		return err
	}
	defer func() { _ = r.Close() }()
	c := Command{Program: "/proc/self/fd/4", Args: []string{"true", trueName}, Env: []string{}, Files: [3]*os.File{null, w, w}, free: true}
	var said []byte
	heard := make(chan struct{})
	go func() { defer close(heard); said, _ = io.ReadAll(io.LimitReader(r, 4<<10)) }()
	st, cell, err := b.Run(context.Background(), c, Pass{})
	_ = w.Close()
	<-heard
	switch {
	case err != nil:
		return err
	case st.ExitCode() != 0:
		why, _ := cell.Problem(string(said))
		if why == "" {
			why = readable(string(said))
		}
		return errors.New("bubblewrap does not work here: " + why)
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

package sandbox

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// innerName is the first argument of the program that runs in a sandbox first.
const innerName = "sandbox-inner"

// probeName is the first argument of a program that tries to get out, victimName
// of one that is to be reached.
const (
	probeName  = "sandbox-probe"
	victimName = "sandbox-victim"
)

// trueName is the first argument of a program that only ends.
const trueName = "sandbox-true"

// Descriptors that a sandbox's first program inherits.
const (
	ctlFD = 3 // socket pair to the runner; 4 is this program, 5 and 6 are bubblewrap's own: one that is held until all is dead, and the filter
)

// What the first program tells the runner, one byte each.
const (
	saysHere  = 'H' // it runs; the relay's socket comes along, if there is a relay
	saysError = 'E' // a reason follows; the agent did not start
)

// Inner is the sandbox's first program, if args (os.Args) say so; it does not
// return then. Every binary that makes a Box calls it before anything else.
func Inner(args []string) {
	if len(args) < 2 {
		return
	}
	switch args[1] {
	default:
		return
	case trueName:
		os.Exit(0)
	case victimName:
		victim()
	case probeName:
		os.Exit(probed(args[2:]))
	case innerName:
	}
	err := inner(args[2:])
	_, _ = unix.Write(ctlFD, append([]byte{saysError}, err.Error()...))
	os.Exit(127)
}

// innerArgs is what inner reads; -1 or 0 stand for none.
func innerArgs(l Limits, rlimits, listen bool) []string {
	data, procs := int64(0), int64(0)
	if rlimits { // no cgroup holds them
		data, procs = l.Memory, l.Processes
	}
	n := func(v int64) string { return strconv.FormatInt(v, 10) }
	yes := func(b bool) string { return map[bool]string{true: "1", false: "0"}[b] }
	return []string{innerName, n(data), n(procs), n(l.File), n(int64(l.CPU.Seconds() + 0.999)), yes(listen)}
}

func inner(args []string) error {
	if len(args) < 6 {
		return fmt.Errorf("the sandbox's first program got %d arguments", len(args))
	}
	var n [5]int64
	for i := range n {
		n[i], _ = strconv.ParseInt(args[i], 10, 64)
	}
	closeOnExec()
	if n[4] == 0 {
		if _, err := unix.Write(ctlFD, []byte{saysHere}); err != nil {
			return fmt.Errorf("reaching the runner: %w", err)
		}
	} else if err := handOut(); err != nil {
		return fmt.Errorf("opening the relay's address: %w", err)
	}
	for _, l := range []struct {
		kind        int
		value, hard int64
	}{
		{unix.RLIMIT_DATA, n[0], n[0]}, {unix.RLIMIT_NPROC, n[1], n[1]}, {unix.RLIMIT_FSIZE, n[2], n[2]},
		{unix.RLIMIT_CPU, n[3], n[3] + 2}, // SIGXCPU, and SIGKILL two seconds later
	} {
		if err := limit(l.kind, l.value, l.hard); err != nil {
			return err
		}
	}
	// One byte: no file is as small, and unlike 0 it keeps the kernel from giving a
	// crashed agent's memory to the machine's own program for that, which is outside.
	_ = limit(unix.RLIMIT_CORE, 1, 1)
	path := args[5]
	err := syscall.Exec(path, args[5:], os.Environ())
	return fmt.Errorf("%s: %w", path, err)
}

// closeOnExec keeps all but the three standard files from the agent: also what
// this program's own parents had open.
func closeOnExec() {
	if unix.CloseRange(ctlFD, ^uint(0)>>1, unix.CLOSE_RANGE_CLOEXEC) == nil {
		return
	}
	open, err := os.ReadDir("/proc/self/fd") // before Linux 5.11
	if err != nil {
		return
	}
	for _, d := range open {
		if fd, err := strconv.Atoi(d.Name()); err == nil && fd >= ctlFD {
			unix.CloseOnExec(fd)
		}
	}
}

// limit sets a resource limit, as far as the one that is there allows.
func limit(kind int, soft, hard int64) error {
	if soft <= 0 {
		return nil
	}
	var old unix.Rlimit
	if err := unix.Getrlimit(kind, &old); err != nil {
		return fmt.Errorf("reading a limit: %w", err)
	}
	r := unix.Rlimit{Cur: min(uint64(soft), old.Max), Max: min(uint64(hard), old.Max)}
	if err := unix.Setrlimit(kind, &r); err != nil {
		return fmt.Errorf("setting a limit: %w", err)
	}
	return nil
}

// handOut opens the relay's address in this network namespace and gives the
// socket to the runner.
func handOut() error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEADDR, 1); err != nil {
		return err
	}
	if err := unix.Bind(fd, &unix.SockaddrInet4{Port: Port, Addr: [4]byte{127, 0, 0, 1}}); err != nil {
		return err
	}
	if err := unix.Listen(fd, 1024); err != nil {
		return err
	}
	if err := unix.Sendmsg(ctlFD, []byte{saysHere}, unix.UnixRights(fd), nil, 0); err != nil {
		return err
	}
	return unix.Close(fd)
}

// readable puts what bubblewrap or the first program said in words for people.
func readable(said string) string {
	said = strings.TrimSpace(strings.TrimPrefix(strings.TrimSpace(said), "bwrap: "))
	hint := ""
	switch {
	case strings.Contains(said, "No permissions to create"), strings.Contains(said, "uid map"), strings.Contains(said, "Creating new namespace failed"),
		strings.Contains(said, "loopback"):
		hint = ": this user may not make user namespaces here. As root, set kernel.unprivileged_userns_clone=1, kernel.apparmor_restrict_unprivileged_userns=0 or user.max_user_namespaces above 0 (sysctl), whichever this machine has; in a container, start it with a seccomp profile that allows unshare and mount"
	case strings.Contains(said, "mount proc"):
		hint = ": a container hides parts of /proc, so that none can be mounted inside it. Start it with unmasked /proc (Docker: --security-opt systempaths=unconfined)"
	}
	return said + hint
}

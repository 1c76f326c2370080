package local

import (
	"bytes"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// bytesWaiting is the ioctl that tells how much of a pipe is not read yet.
const bytesWaiting = unix.TIOCINQ // FIONREAD

// ident names a process for good: a number that was given to another process
// since has another time of birth.
type ident struct {
	pid   int
	birth uint64 // clock ticks since boot
}

// attributes of an agent's process: leader of its own group, and dead as soon
// as the thread that started it is. That thread is forker's, which lives as
// long as the runner; any other thread might end earlier (golang/go#27505).
func attributes(orphans bool) *syscall.SysProcAttr {
	a := &syscall.SysProcAttr{Setpgid: true}
	if !orphans {
		a.Pdeathsig = syscall.SIGKILL
	}
	return a
}

// awaitExit returns when the child has exited, and leaves it to be reaped: its
// number, and that of its group, stay taken until then. It waits in the
// network poller where the kernel can (5.10): a thread that blocks for each
// child keeps the Go scheduler's monitor busy.
func awaitExit(pid int) {
	if fd, err := unix.PidfdOpen(pid, unix.PIDFD_NONBLOCK); err == nil {
		f := os.NewFile(uintptr(fd), "pidfd")
		defer func() { _ = f.Close() }()
		if c, err := f.SyscallConn(); err == nil && c.Read(func(uintptr) bool { return exited(pid) }) == nil {
			return
		}
	}
	for unix.Waitid(unix.P_PID, pid, nil, unix.WEXITED|unix.WNOWAIT, nil) == unix.EINTR { //nolint:revive // that is the loop
	}
}

// exited says whether a child has exited.
func exited(pid int) bool {
	var info unix.Siginfo
	err := unix.Waitid(unix.P_PID, pid, &info, unix.WEXITED|unix.WNOWAIT|unix.WNOHANG, nil)
	return err != nil && err != unix.EINTR || info.Signo != 0
}

// bootID changes with every boot of the machine.
var bootID = sync.OnceValue(func() string {
	b, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil || len(b) < 8 {
		return "boot"
	}
	return string(b[:8])
})

// stat reads a process's parent and time of birth.
func stat(pid int) (parent int, birth uint64, ok bool) {
	var buf [512]byte // the two are near its start
	fd, err := unix.Open("/proc/"+strconv.Itoa(pid)+"/stat", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return 0, 0, false
	}
	n, err := unix.Read(fd, buf[:])
	_ = unix.Close(fd)
	if err != nil {
		return 0, 0, false
	}
	// "pid (comm) state ppid …": comm may hold anything, so count from its end.
	i := bytes.LastIndexByte(buf[:n], ')')
	if i < 0 {
		return 0, 0, false
	}
	fields := strings.Fields(string(buf[i+1 : n]))
	if len(fields) < 20 || fields[0] == "Z" || fields[0] == "X" {
		return 0, 0, false // dead already
	}
	parent, _ = strconv.Atoi(fields[1])
	birth, err = strconv.ParseUint(fields[19], 10, 64)
	return parent, birth, err == nil
}

// born returns a process's time of birth; ok is false if it is not there.
func born(pid int) (birth uint64, ok bool) {
	_, birth, ok = stat(pid)
	return birth, ok
}

// all returns the numbers of all processes.
func all() []int {
	d, err := os.Open("/proc")
	if err != nil {
		return nil
	}
	defer func() { _ = d.Close() }()
	names, _ := d.Readdirnames(-1)
	pids := make([]int, 0, len(names))
	for _, n := range names {
		if pid, err := strconv.Atoi(n); err == nil {
			pids = append(pids, pid)
		}
	}
	return pids
}

// descendants returns the living processes below others.
func descendants(of ...int) []ident {
	below := map[int][]ident{}
	for _, p := range all() {
		if parent, birth, ok := stat(p); ok {
			below[parent] = append(below[parent], ident{p, birth})
		}
	}
	var out []ident
	for queue := slices.Clone(of); len(queue) > 0; queue = queue[1:] {
		for _, c := range below[queue[0]] {
			out = append(out, c)
			queue = append(queue, c.pid)
		}
	}
	return out
}

// environ reads a process's environment into buf, which it makes larger where it
// does not fit. os.ReadFile takes twice as many system calls, of each process each second.
func environ(pid int, buf []byte) (env, grown []byte) {
	fd, err := unix.Open("/proc/"+strconv.Itoa(pid)+"/environ", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, buf
	}
	defer func() { _ = unix.Close(fd) }()
	for n := 0; ; {
		if n == len(buf) {
			buf = append(buf, make([]byte, len(buf))...)
		}
		k, err := unix.Read(fd, buf[n:])
		if err == unix.EINTR {
			continue
		}
		if err != nil || k == 0 {
			return buf[:n], buf
		}
		n += k
	}
}

// marked returns the living processes, but this one, whose environment holds a
// mark that match takes.
func marked(match func(mark string) bool) (out []ident) {
	self := os.Getpid()
	prefix := []byte(markName + "=")
	buf := make([]byte, 16<<10)
	for _, pid := range all() {
		if pid == self {
			continue
		}
		var env []byte
		if env, buf = environ(pid, buf); len(env) == 0 { // somebody else's, or gone
			continue
		}
		for kv := range bytes.SplitSeq(env, []byte{0}) {
			mark, ok := bytes.CutPrefix(kv, prefix)
			if !ok {
				continue
			}
			if birth, alive := born(pid); alive && match(string(mark)) {
				out = append(out, ident{pid, birth})
			}
			break
		}
	}
	return out
}

// unlinked returns the bytes of files of the disk of dir that a process, or one below it,
// holds open, and that have no name any more.
func unlinked(dir string, pid int) (bytes int64) {
	var disk, st unix.Stat_t
	if unix.Stat(dir, &disk) != nil {
		return 0
	}
	seen := map[uint64]bool{}
	for _, id := range append(descendants(pid), ident{pid: pid}) {
		fds := "/proc/" + strconv.Itoa(id.pid) + "/fd/"
		all, _ := os.ReadDir(fds) // it is gone, or another's
		for _, fd := range all {
			if unix.Stat(fds+fd.Name(), &st) == nil && st.Dev == disk.Dev && st.Nlink == 0 && !seen[st.Ino] {
				seen[st.Ino] = true
				bytes += st.Blocks * 512
			}
		}
	}
	return bytes
}

package local

import (
	"slices"
	"strconv"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// bytesWaiting is the ioctl that tells how much of a pipe is not read yet.
const bytesWaiting = 0x4004667f // FIONREAD of sys/filio.h

// ident names a process for good: a number that was given to another process
// since has another time of birth.
type ident struct {
	pid   int
	birth uint64 // microseconds since the epoch
}

// attributes of an agent's process: leader of its own group. macOS has no
// signal for a parent's death; what is left is found by its handle.
func attributes(bool) *syscall.SysProcAttr { return &syscall.SysProcAttr{Setpgid: true} }

// awaitExit returns at once: macOS offers Go no wait that leaves the child
// unreaped, so the group is ended right after it was reaped.
func awaitExit(int) {}

var bootID = sync.OnceValue(func() string {
	tv, err := unix.SysctlTimeval("kern.boottime")
	if err != nil {
		return "boot"
	}
	return strconv.FormatInt(tv.Sec, 36)
})

func birthOf(k *unix.KinfoProc) uint64 {
	return uint64(k.Proc.P_starttime.Sec)*1e6 + uint64(k.Proc.P_starttime.Usec)
}

const zombie = 5 // SZOMB

func born(pid int) (birth uint64, ok bool) {
	k, err := unix.SysctlKinfoProc("kern.proc.pid", pid)
	if err != nil || int(k.Proc.P_pid) != pid || k.Proc.P_stat == zombie {
		return 0, false
	}
	return birthOf(k), true
}

// descendants returns the living processes below others.
func descendants(of ...int) []ident {
	procs, err := unix.SysctlKinfoProcSlice("kern.proc.all")
	if err != nil {
		return nil
	}
	below := map[int][]ident{}
	for i := range procs {
		k := &procs[i]
		if k.Proc.P_stat != zombie {
			below[int(k.Eproc.Ppid)] = append(below[int(k.Eproc.Ppid)], ident{int(k.Proc.P_pid), birthOf(k)})
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

// marked finds nothing: macOS does not show a process's environment.
func marked(func(mark string) bool) []ident { return nil }

// unlinked cannot be known here.
func unlinked(string, int) int64 { return 0 }

package sandbox

import (
	"encoding/binary"
	"runtime"

	"golang.org/x/sys/unix"
)

// Layout of struct seccomp_data and numbers of linux/audit.h and linux/seccomp.h.
const (
	dataNr   = 0
	dataArch = 4
	dataArg0 = 16 // low word: both architectures are little-endian

	archAMD64 = 0xc000003e
	archARM64 = 0xc00000b7
	x32Bit    = 0x40000000

	retAllow = 0x7fff0000
	retErrno = 0x00050000
)

// denied are system calls that no agent needs and that reach past namespaces:
// the kernel's keyrings, other processes' memory, modules, tracing, clocks.
// Calls without a capability check of their own are what matters here.
var denied = []uintptr{
	unix.SYS_ADD_KEY, unix.SYS_REQUEST_KEY, unix.SYS_KEYCTL,
	unix.SYS_BPF, unix.SYS_PERF_EVENT_OPEN, unix.SYS_USERFAULTFD,
	unix.SYS_OPEN_BY_HANDLE_AT, unix.SYS_KEXEC_LOAD, unix.SYS_INIT_MODULE, unix.SYS_FINIT_MODULE, unix.SYS_DELETE_MODULE,
	unix.SYS_MOUNT, unix.SYS_UMOUNT2, unix.SYS_PIVOT_ROOT, unix.SYS_MOVE_MOUNT, unix.SYS_OPEN_TREE, unix.SYS_FSOPEN, unix.SYS_FSMOUNT, unix.SYS_MOUNT_SETATTR,
	unix.SYS_SWAPON, unix.SYS_SWAPOFF, unix.SYS_REBOOT, unix.SYS_ACCT, unix.SYS_QUOTACTL, unix.SYS_SYSLOG, unix.SYS_SETTIMEOFDAY, unix.SYS_CLOCK_SETTIME,
	unix.SYS_IO_URING_SETUP, // its operations pass no filter
}

// families are the sockets that may be made. Others, such as vsock, which leads to the
// machine below a virtual machine, know no network namespace.
var families = []uintptr{unix.AF_UNIX, unix.AF_INET, unix.AF_INET6, unix.AF_NETLINK}

// filter is the program (linux/filter.h, classic BPF): calls of another
// architecture and those denied fail with EPERM, sockets of another family with
// EAFNOSUPPORT, io_uring with ENOSYS (programs then go on without it).
func filter(arch uint32) []unix.SockFilter {
	const (
		load = unix.BPF_LD | unix.BPF_W | unix.BPF_ABS
		eq   = unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K
		ge   = unix.BPF_JMP | unix.BPF_JGE | unix.BPF_K
		ret  = unix.BPF_RET | unix.BPF_K
	)
	stmt := func(code uint16, k uint32) unix.SockFilter { return unix.SockFilter{Code: code, K: k} }
	var p []unix.SockFilter
	// when answers with k if the accumulator is v.
	when := func(v uintptr, k uint32) {
		p = append(p, unix.SockFilter{Code: eq, Jf: 1, K: uint32(v)}, stmt(ret, k))
	}
	p = append(p, stmt(load, dataArch), unix.SockFilter{Code: eq, Jt: 1, K: arch}, stmt(ret, retErrno|uint32(unix.EPERM)),
		stmt(load, dataNr))
	if arch == archAMD64 {
		p = append(p, unix.SockFilter{Code: ge, Jf: 1, K: x32Bit}, stmt(ret, retErrno|uint32(unix.EPERM)))
	}
	for _, nr := range denied {
		errno := uint32(unix.EPERM)
		if nr == unix.SYS_IO_URING_SETUP {
			errno = uint32(unix.ENOSYS)
		}
		when(nr, retErrno|errno)
	}
	for _, nr := range []uintptr{unix.SYS_SOCKET, unix.SYS_SOCKETPAIR} {
		p = append(p, unix.SockFilter{Code: eq, Jf: uint8(2*len(families) + 2), K: uint32(nr)}, stmt(load, dataArg0))
		for _, f := range families {
			when(f, retAllow)
		}
		p = append(p, stmt(ret, retErrno|uint32(unix.EAFNOSUPPORT)))
	}
	return append(p, stmt(ret, retAllow))
}

// rules is the filter as bubblewrap reads it: an array of struct sock_filter.
func rules() []byte {
	arch, ok := map[string]uint32{"amd64": archAMD64, "arm64": archARM64}[runtime.GOARCH]
	if !ok {
		return nil
	}
	var out []byte
	for _, f := range filter(arch) {
		out = binary.NativeEndian.AppendUint16(out, f.Code)
		out = append(out, f.Jt, f.Jf)
		out = binary.NativeEndian.AppendUint32(out, f.K)
	}
	return out
}

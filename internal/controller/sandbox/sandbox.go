// Package sandbox keeps an agent's processes from the rest of the machine: a
// Box wraps a command in bubblewrap (https://github.com/containers/bubblewrap),
// so that it has namespaces of its own (user, pid, ipc, uts, net, cgroup), sees
// a read-only system, what it was given and a private home and /tmp, holds no
// capability, and reaches one address: a relay on its own loopback interface.
//
// The relay runs outside. The sandbox's first program (Inner: this binary
// again) opens a listener inside the new network namespace, hands the open
// socket out over an inherited socket pair, sets limits and a system call filter,
// and becomes the agent. Whoever connects to that socket is answered by a
// goroutine of the runner, which forwards to the gateway and puts the attempt's
// credential in: the credential is never inside, and nothing is buffered or
// copied twice. What the relay forwards is in relay.go, what is visible in
// view.go, what is refused by the kernel in seccomp_linux.go.
//
// Probes (probe_linux.go) are functions that try to get out; `fulgur doctor` and a
// short form at each run's start call them. Each reports an escape when the
// guard that it names is off.
package sandbox

import (
	"log/slog"
	"time"
)

// Guard is a part of the sandbox that can be left out, which only tests do: a
// probe has to escape without it.
type Guard string

// The guards.
const (
	GuardNet     Guard = "net"     // no network but the relay's
	GuardPID     Guard = "pid"     // no processes but one's own
	GuardIPC     Guard = "ipc"     // no shared memory of others
	GuardUserNS  Guard = "userns"  // no namespaces below one's own
	GuardFiles   Guard = "files"   // nothing but the view
	GuardHide    Guard = "hide"    // what the view hides
	GuardSystem  Guard = "system"  // what is to be read is not to be written
	GuardKernel  Guard = "kernel"  // the kernel's settings are read-only
	GuardSeccomp Guard = "seccomp" // the system call filter
	GuardSecrets Guard = "secrets" // this process's variables without keys
	GuardKey     Guard = "key"     // the credential stays outside
	GuardRelay   Guard = "relay"   // the relay lets only an attempt's own paths through
	GuardLimits  Guard = "limits"  // memory, processes, file sizes, CPU time
	GuardAll     Guard = "sandbox" // no sandbox at all
)

// Limits bound an agent with all its processes. 0: no limit.
type Limits struct {
	Memory    int64         // bytes of the whole tree, its /tmp included; of each process where no cgroup can be made
	Processes int64         // processes and threads
	File      int64         // bytes of a file; /tmp, home and shared memory have this size in all
	CPU       time.Duration // of each process
}

// Options say what a Box's cells may see and use.
type Options struct {
	Bwrap    string // bubblewrap's program; "": from PATH
	View     View
	Home     string // the agents' home, empty and private; "": $HOME
	Limits   Limits
	Upstream string // where the relay forwards to: http(s)://… or unix:PATH; "": no relay
	Log      *slog.Logger

	without map[Guard]bool
}

// Port is where the relay listens on each sandbox's own 127.0.0.1.
const Port = 41457

// Placeholder stands where an agent outside a sandbox has its credential.
const Placeholder = "the-relay-adds-the-key"

// Install is what to do on a machine without bubblewrap.
const Install = "install bubblewrap (Debian, Ubuntu: apt-get install bubblewrap; Fedora: dnf install bubblewrap; Arch: pacman -S bubblewrap)"

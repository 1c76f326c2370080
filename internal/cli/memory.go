package cli

import (
	"os"
	"strconv"
	"strings"
	"syscall"
)

// machineMemory is how many bytes this process and its children may use: the
// machine's, or its control group's where that is less; 0: not known here.
func machineMemory() int64 {
	read := func(path string) string {
		b, err := os.ReadFile(path)
		if err != nil {
			return ""
		}
		return string(b)
	}
	return leastMemory(read("/proc/meminfo"), read("/sys/fs/cgroup/memory.max"), read("/sys/fs/cgroup/memory/memory.limit_in_bytes"))
}

// leastMemory reads /proc/meminfo and the limits of control groups (cgroup v2's
// memory.max, v1's memory.limit_in_bytes), any of which may be missing or without
// a limit.
func leastMemory(meminfo string, limits ...string) (bytes int64) {
	for line := range strings.Lines(meminfo) {
		if f := strings.Fields(line); len(f) >= 2 && f[0] == "MemTotal:" {
			if kib, err := strconv.ParseInt(f[1], 10, 64); err == nil {
				bytes = kib << 10
			}
		}
	}
	for _, l := range limits {
		if n, err := strconv.ParseInt(strings.TrimSpace(l), 10, 64); err == nil && n > 0 && (bytes == 0 || n < bytes) {
			bytes = n
		}
	}
	if bytes > 1<<50 { // v1's word for no limit
		return 0
	}
	return bytes
}

// openFiles is how many files this process may have open; 0: not known. Go has raised the
// soft limit to the hard one by now; children get their own back.
func openFiles() int {
	var l syscall.Rlimit
	if syscall.Getrlimit(syscall.RLIMIT_NOFILE, &l) != nil || l.Cur > 1<<30 {
		return 0
	}
	return int(l.Cur)
}

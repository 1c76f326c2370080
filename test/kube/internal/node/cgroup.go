package node

import (
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// groups makes control groups for containers, on either version of them. They
// hold a container's memory to its limit, tell whether that killed it, and
// name all its processes.
type groups struct {
	base string // folder of this node's groups; "": none can be made here
	v2   bool
}

func newGroups(node string) groups {
	name := "kubebox-" + node + "-" + strconv.Itoa(os.Getpid())
	for _, at := range []struct {
		root, limit string
		v2          bool
	}{{"/sys/fs/cgroup/memory", "memory.limit_in_bytes", false}, {"/sys/fs/cgroup", "memory.max", true}} {
		for _, parent := range []string{filepath.Join(at.root, own(at.v2)), at.root} {
			base := filepath.Join(parent, name)
			if os.Mkdir(base, 0o755) != nil {
				continue
			}
			if at.v2 {
				_ = os.WriteFile(filepath.Join(parent, "cgroup.subtree_control"), []byte("+memory"), 0)
				_ = os.WriteFile(filepath.Join(base, "cgroup.subtree_control"), []byte("+memory"), 0)
			}
			if _, err := os.Stat(filepath.Join(base, at.limit)); err == nil {
				return groups{base: base, v2: at.v2}
			}
			_ = os.Remove(base)
		}
	}
	return groups{}
}

// own is the control group that this process is in.
func own(v2 bool) string {
	b, _ := os.ReadFile("/proc/self/cgroup")
	for line := range strings.Lines(string(b)) {
		f := strings.SplitN(strings.TrimSpace(line), ":", 3)
		if len(f) == 3 && (v2 && f[1] == "" || !v2 && f[1] == "memory") {
			return f[2]
		}
	}
	return ""
}

func (g groups) enforced() bool { return g.base != "" }

func (g groups) close() {
	if g.base != "" {
		_ = os.Remove(g.base)
	}
}

// make returns the folder of a new group; limit 0 is none. "" where there are no groups.
func (g groups) make(name string, limit int64) (string, error) {
	if g.base == "" {
		return "", nil
	}
	dir := filepath.Join(g.base, name)
	if err := os.Mkdir(dir, 0o755); err != nil && !errors.Is(err, os.ErrExist) {
		return "", err
	}
	if limit == 0 {
		return dir, nil
	}
	file, swap := "memory.limit_in_bytes", "memory.memsw.limit_in_bytes"
	if g.v2 {
		file, swap = "memory.max", "memory.swap.max"
	}
	if err := os.WriteFile(filepath.Join(dir, file), []byte(strconv.FormatInt(limit, 10)), 0); err != nil {
		return "", err
	}
	if g.v2 {
		limit = 0 // of swap alone
	}
	_ = os.WriteFile(filepath.Join(dir, swap), []byte(strconv.FormatInt(limit, 10)), 0) // absent without swap accounting
	return dir, nil
}

// killed says whether the kernel killed a process of the group for want of memory.
func (g groups) killed(dir string) bool {
	file := "memory.oom_control"
	if g.v2 {
		file = "memory.events"
	}
	b, _ := os.ReadFile(filepath.Join(dir, file))
	for line := range strings.Lines(string(b)) {
		if n, ok := strings.CutPrefix(strings.TrimSpace(line), "oom_kill "); ok {
			return n != "0"
		}
	}
	return false
}

// remove kills what is left in a group and removes it.
func (g groups) remove(dir string) {
	if dir == "" {
		return
	}
	for range 500 {
		b, _ := os.ReadFile(filepath.Join(dir, "cgroup.procs"))
		for pid := range strings.FieldsSeq(string(b)) {
			if n, err := strconv.Atoi(pid); err == nil && n > 0 {
				_ = syscall.Kill(n, syscall.SIGKILL)
			}
		}
		if err := os.Remove(dir); err == nil || errors.Is(err, os.ErrNotExist) {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
}

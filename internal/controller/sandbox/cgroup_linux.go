package sandbox

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

// cgroups makes a control group per cell, for the limits on the memory and the
// processes of a whole tree. Version 1: below this process's own group in each
// hierarchy. Version 2: below the nearest ancestor that has the controllers and can be
// written; there a group with processes cannot have children with limits.
type cgroups struct {
	v2   bool
	base map[string]string // controller → folder; v2: "" → folder
	n    atomic.Int64

	mu   sync.Mutex
	held map[string]*os.File // folders of base, locked: who sweeps leaves them
	left []string            // of cells that have ended, and cannot be removed yet
}

// group is one cell's.
type group struct {
	of   *cgroups
	dirs map[string]string
	v2   bool
	fd   *os.File // v2: the child is born in it
}

const cgroupRoot = "/sys/fs/cgroup"

// groupPrefix begins the names of the folders of boxes.
const groupPrefix = "fulgur-box-"

// openCgroups makes the folder of a box, and removes those of boxes that were
// killed.
func openCgroups() (*cgroups, error) {
	own, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		return nil, err
	}
	paths := map[string]string{}
	for line := range strings.Lines(string(own)) {
		parts := strings.SplitN(strings.TrimSpace(line), ":", 3)
		if len(parts) == 3 {
			for _, c := range strings.Split(parts[1], ",") {
				paths[c] = parts[2]
			}
		}
	}
	name := fmt.Sprintf("%s%d-%x", groupPrefix, os.Getpid(), time.Now().UnixNano())
	g := &cgroups{base: map[string]string{}, held: map[string]*os.File{}}
	if _, v1 := paths["memory"]; v1 {
		for _, c := range []string{"memory", "pids", "cpuacct"} {
			dir, err := g.makeBelow(filepath.Join(cgroupRoot, c), paths[c], name)
			if err != nil {
				g.close()
				return nil, err
			}
			g.base[c] = dir
		}
		return g, nil
	}
	g.v2 = true
	for p := paths[""]; ; p = filepath.Dir(p) {
		parent := filepath.Join(cgroupRoot, p)
		dir := filepath.Join(parent, name)
		sweepGroups(parent)
		if err = g.found(dir); err == nil {
			g.base[""] = dir
			return g, nil
		}
		if p == "/" || p == "." || p == "" {
			return nil, err
		}
	}
}

// makeBelow makes a folder below this process's group, or below the root where
// that is not mounted (in a container).
func (c *cgroups) makeBelow(root, own, name string) (dir string, err error) {
	for _, parent := range []string{filepath.Join(root, own), root} {
		sweepGroups(parent)
		dir = filepath.Join(parent, name)
		if err = c.found(dir); err == nil {
			return dir, nil
		}
	}
	return "", err
}

// found makes a folder of the box, ready for cells, and locks it for as long as this
// process lives. Whose sweep came between the two has removed it: then it is made again.
func (c *cgroups) found(dir string) error {
	for {
		if err := os.Mkdir(dir, 0o755); err != nil && !errors.Is(err, os.ErrExist) {
			return err
		}
		f, err := lockGroup(dir, 0)
		if errors.Is(err, os.ErrNotExist) {
			continue
		}
		// Where folders cannot be locked, nobody sweeps.
		if err = c.ready(dir); err != nil {
			_ = f.Close()
			_ = os.Remove(dir)
			return err
		}
		_ = c.held[dir].Close() // of a folder that is no more
		c.held[dir] = f
		return nil
	}
}

// ready sees that cells can be made below a folder.
func (c *cgroups) ready(dir string) error {
	if c.v2 {
		return os.WriteFile(filepath.Join(dir, "cgroup.subtree_control"), []byte("+memory +pids"), 0o644)
	}
	f, err := os.OpenFile(filepath.Join(dir, "tasks"), os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	return f.Close()
}

// lockGroup locks a box's folder, and returns what holds the lock. A lock says who
// lives whoever asks; a number of a process means nothing in another container.
// os.ErrNotExist: it has been removed.
func lockGroup(dir string, flags int) (*os.File, error) {
	f, err := os.Open(dir)
	if err != nil {
		return nil, err
	}
	if err = syscall.Flock(int(f.Fd()), syscall.LOCK_EX|flags); err == nil {
		_, err = os.Lstat(dir)
	}
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

// sweepGroups removes the groups of boxes whose processes are gone, and kills what is
// in them: it belongs to nobody.
func sweepGroups(parent string) {
	left, _ := filepath.Glob(filepath.Join(parent, groupPrefix+"*"))
	for _, dir := range left {
		f, err := lockGroup(dir, syscall.LOCK_NB)
		if err != nil {
			continue
		}
		cells, _ := filepath.Glob(filepath.Join(dir, "*"))
		for _, c := range cells {
			killGroup(c)
			_ = syscall.Rmdir(c)
		}
		_ = syscall.Rmdir(dir)
		_ = f.Close()
	}
}

// mkdir makes a cell's folder. What somebody else has removed while no cell was in it,
// is made again.
func (c *cgroups) mkdir(base, name string) (string, error) {
	dir := filepath.Join(base, name)
	err := os.Mkdir(dir, 0o755)
	if errors.Is(err, os.ErrNotExist) {
		c.mu.Lock()
		if !exists(base) {
			err = c.found(base)
		}
		c.mu.Unlock()
		if err == nil || errors.Is(err, os.ErrNotExist) {
			err = os.Mkdir(dir, 0o755)
		}
	}
	return dir, err
}

// make makes a cell's group.
func (c *cgroups) make(l Limits) (*group, error) {
	g := &group{of: c, dirs: map[string]string{}, v2: c.v2}
	name := strconv.FormatInt(c.n.Add(1), 10)
	for controller, base := range c.base {
		dir, err := c.mkdir(base, name)
		if err != nil {
			g.remove()
			return nil, err
		}
		g.dirs[controller] = dir
	}
	// bubblewrap's own two processes count too.
	procs := l.Processes + 2
	var err error
	set := func(dir, file string, v int64) {
		if err == nil && v > 2 {
			err = os.WriteFile(filepath.Join(dir, file), strconv.AppendInt(nil, v, 10), 0o644)
		}
	}
	// What cannot be bounded because the kernel does not count it, is not there.
	swap := func(dir, file string, v int64) {
		if err != nil || l.Memory <= 0 {
			return
		}
		if err = os.WriteFile(filepath.Join(dir, file), strconv.AppendInt(nil, v, 10), 0o644); errors.Is(err, os.ErrNotExist) || errors.Is(err, os.ErrPermission) && !exists(filepath.Join(dir, file)) {
			err = nil
		}
	}
	if c.v2 {
		set(g.dirs[""], "memory.max", l.Memory)
		swap(g.dirs[""], "memory.swap.max", 0)
		set(g.dirs[""], "pids.max", procs)
	} else {
		set(g.dirs["memory"], "memory.limit_in_bytes", l.Memory)
		swap(g.dirs["memory"], "memory.memsw.limit_in_bytes", l.Memory) // with the memory
		set(g.dirs["pids"], "pids.max", procs)
	}
	if err == nil && c.v2 {
		g.fd, err = os.Open(g.dirs[""])
	}
	if err != nil {
		g.remove()
		return nil, err
	}
	return g, nil
}

func exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}

// enter moves this thread into the group, so that the next child is born there;
// the function that it returns moves it back. (Version 1; moving the child after its birth would
// miss what it has started by then.)
func (g *group) enter(c *cgroups) (leave func(), err error) {
	if g.v2 {
		return func() {}, nil
	}
	tid := strconv.AppendInt(nil, int64(syscall.Gettid()), 10)
	leave = func() {
		for controller := range g.dirs {
			_ = os.WriteFile(filepath.Join(filepath.Dir(c.base[controller]), "tasks"), tid, 0o644)
		}
	}
	for _, dir := range g.dirs {
		if err := os.WriteFile(filepath.Join(dir, "tasks"), tid, 0o644); err != nil {
			leave()
			return nil, err
		}
	}
	return leave, nil
}

// hit says which limit the tree has run into: "memory", "processes" or "".
func (g *group) hit() string {
	memory, pids := "memory.oom_control", "pids"
	if g.v2 {
		memory, pids = "memory.events", ""
	}
	dir := g.dirs["memory"]
	if g.v2 {
		dir = g.dirs[""]
	}
	if counter(filepath.Join(dir, memory), "oom_kill") > 0 {
		return "memory"
	}
	if counter(filepath.Join(g.dirs[pids], "pids.events"), "max") > 0 {
		return "processes"
	}
	return ""
}

// cpu is the CPU time of all that ran in the group.
func (g *group) cpu() time.Duration {
	if g.v2 {
		return time.Duration(counter(filepath.Join(g.dirs[""], "cpu.stat"), "usage_usec")) * time.Microsecond
	}
	b, _ := os.ReadFile(filepath.Join(g.dirs["cpuacct"], "cpuacct.usage"))
	n, _ := strconv.ParseInt(strings.TrimSpace(string(b)), 10, 64)
	return time.Duration(n)
}

// counter reads a line "name N" of a file.
func counter(file, name string) int {
	b, _ := os.ReadFile(file)
	for line := range bytes.Lines(b) {
		if key, value, ok := strings.Cut(strings.TrimSpace(string(line)), " "); ok && key == name {
			n, _ := strconv.Atoi(value)
			return n
		}
	}
	return 0
}

// kill kills all that is in the group.
func (g *group) kill() {
	for _, dir := range g.dirs {
		killGroup(dir)
	}
}

// killGroup kills all that is in a cell's folder, again until nothing is: one may fork
// while another is killed.
func killGroup(dir string) {
	for wait := time.Millisecond; wait < 500*time.Millisecond; wait *= 2 {
		in := members(dir)
		if len(in) == 0 {
			return
		}
		var held []*os.Process
		for _, pid := range in {
			if p, err := os.FindProcess(pid); err == nil { // held: its number stays its own
				held = append(held, p)
			}
		}
		in = members(dir)
		for _, p := range held {
			if slices.Contains(in, p.Pid) {
				_ = p.Kill()
			}
			_ = p.Release()
		}
		time.Sleep(wait)
	}
}

// members are the processes in a folder, as far as they can be seen from here.
func members(dir string) (pids []int) {
	text, _ := os.ReadFile(filepath.Join(dir, "cgroup.procs"))
	for word := range strings.FieldsSeq(string(text)) {
		if pid, err := strconv.Atoi(word); err == nil && pid > 1 && pid != os.Getpid() { // 0: of another PID namespace
			pids = append(pids, pid)
		}
	}
	return pids
}

// remove removes the group, which is empty by now. Who has died in it may not have
// been buried yet: then it is removed with a later one.
func (g *group) remove() {
	if g.fd != nil {
		_ = g.fd.Close()
	}
	g.of.removeAll(slices.Collect(maps.Values(g.dirs)))
}

// removeAll removes folders, and what could not be before; it returns how many still
// cannot.
func (c *cgroups) removeAll(dirs []string) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	dirs, c.left = append(dirs, c.left...), nil
	for _, dir := range dirs {
		if err := syscall.Rmdir(dir); err != nil && !errors.Is(err, syscall.ENOENT) {
			c.left = append(c.left, dir)
		}
	}
	return len(c.left)
}

// close removes all; what cannot be, because a process in it does not die, the next
// box on this machine removes.
func (c *cgroups) close() {
	for wait := time.Millisecond; c.removeAll(nil) > 0 && wait < 500*time.Millisecond; wait *= 2 {
		time.Sleep(wait)
	}
	for dir, f := range c.held {
		_ = syscall.Rmdir(dir)
		_ = f.Close()
	}
}

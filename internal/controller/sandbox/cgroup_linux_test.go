package sandbox

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"syscall"
	"testing"
)

// newGroups makes a box's folders, or skips where this process may make none.
func newGroups(t *testing.T) *cgroups {
	t.Helper()
	c, err := openCgroups()
	if err != nil {
		t.Skip("no control group can be made here: ", err)
	}
	t.Cleanup(c.close)
	return c
}

func sweepOf(c *cgroups) {
	for _, dir := range c.base {
		sweepGroups(filepath.Dir(dir))
	}
}

// A box that has no cell for a moment is another's to leave, wherever that one runs: in
// another PID namespace, too, where this process has no number, or another's.
func TestABoxIsLeftAloneByThoseOfOtherContainers(t *testing.T) {
	const inside = "FULGUR_TEST_SWEEP"
	if parents := filepath.SplitList(os.Getenv(inside)); len(parents) > 0 {
		for _, p := range parents {
			sweepGroups(p)
		}
		return
	}
	c := newGroups(t)
	var parents []byte
	for _, dir := range c.base {
		parents = append(append(parents, filepath.Dir(dir)...), filepath.ListSeparator)
	}
	cmd := exec.Command(os.Args[0], "-test.run=^"+t.Name()+"$")
	cmd.Env = append(os.Environ(), inside+"="+string(parents[:len(parents)-1]))
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWPID}
	if os.Geteuid() != 0 {
		cmd.SysProcAttr.Cloneflags |= syscall.CLONE_NEWUSER
	}
	if out, err := cmd.CombinedOutput(); err != nil {
		if cmd.ProcessState == nil {
			t.Skip("no PID namespace can be made here: ", err)
		}
		t.Fatalf("%v\n%s", err, out)
	}
	for _, dir := range c.base {
		if !exists(dir) {
			t.Errorf("%s is gone: a sweep in another PID namespace has removed it", dir)
		}
	}
}

func TestABoxWhoseFolderIsGoneMakesItAgain(t *testing.T) {
	c := newGroups(t)
	for _, dir := range c.base {
		if err := syscall.Rmdir(dir); err != nil {
			t.Fatal(err)
		}
	}
	g, err := c.make(Limits{Memory: 64 << 20, Processes: 10})
	if err != nil {
		t.Fatal("a cell's group cannot be made: ", err)
	}
	defer g.remove()
	sweepOf(c)
	for _, dir := range c.base {
		if !exists(dir) {
			t.Errorf("%s was made again, and not locked", dir)
		}
	}
}

func TestWhatAKilledBoxLeftIsRemoved(t *testing.T) {
	c := newGroups(t)
	g, err := c.make(Limits{Memory: 64 << 20, Processes: 10})
	if err != nil {
		t.Fatal(err)
	}
	_ = g.fd.Close()
	bases := []string{}
	for dir, f := range c.held { // as the end of its process does
		bases = append(bases, dir)
		if err := f.Close(); err != nil {
			t.Fatal(err)
		}
	}
	clear(c.held)
	sweepOf(c)
	if left := slices.DeleteFunc(bases, func(d string) bool { return !exists(d) }); len(left) > 0 {
		t.Errorf("what a box of a dead process left is still there: %v", left)
	}
}

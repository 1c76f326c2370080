package controller

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/fulgur-rl/fulgur"
	"github.com/fulgur-rl/fulgur/internal/controller/plan"
)

func fill(t *testing.T, path string, size int) {
	t.Helper()
	if err := os.WriteFile(path, make([]byte, size), 0o600); err != nil {
		t.Fatal(err)
	}
}

func TestUsage(t *testing.T) {
	const mib = 1 << 20
	check := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	for name, test := range map[string]struct {
		make  func(dir string)
		least int64
		most  int64
	}{
		"nothing": {func(string) {}, 0, 0},
		"files in folders": {func(dir string) {
			check(os.MkdirAll(filepath.Join(dir, "a/b"), 0o700))
			fill(t, filepath.Join(dir, "a/x"), mib)
			fill(t, filepath.Join(dir, "a/b/y"), mib)
		}, 2 * mib, 2*mib + 64<<10},
		"a file with holes is what it takes": {func(dir string) {
			fill(t, filepath.Join(dir, "x"), 0)
			check(os.Truncate(filepath.Join(dir, "x"), 1<<40))
		}, entrySize, 64 << 10},
		"a file with two names is one": {func(dir string) {
			fill(t, filepath.Join(dir, "x"), mib)
			check(os.Link(filepath.Join(dir, "x"), filepath.Join(dir, "y")))
		}, mib, mib + 64<<10},
		"links lead nowhere": {func(dir string) { check(os.Symlink("/", filepath.Join(dir, "all"))) }, entrySize, 64 << 10},
		"empty files are something": {func(dir string) {
			for i := range 300 {
				fill(t, filepath.Join(dir, fmt.Sprint(i)), 0)
			}
		}, 300 * entrySize, 300*entrySize + 64<<10},
		"a locked folder is unlocked": {func(dir string) {
			check(os.MkdirAll(filepath.Join(dir, "a/b"), 0o700))
			fill(t, filepath.Join(dir, "a/b/x"), mib)
			check(os.Chmod(filepath.Join(dir, "a/b"), 0))
			check(os.Chmod(filepath.Join(dir, "a"), 0))
		}, mib, mib + 64<<10},
		"folders in folders": {func(dir string) {
			root, err := os.OpenRoot(dir)
			check(err)
			for range 3000 {
				check(root.Mkdir("d", 0o700))
				next, err := root.OpenRoot("d")
				check(err)
				check(root.Close())
				root = next
			}
			f, err := root.Create("x")
			check(err)
			_, err = f.Write(make([]byte, mib))
			check(err)
			check(f.Close())
			check(root.Close())
			t.Cleanup(func() { _ = RemoveAll(dir) })
		}, mib + 3000*entrySize, mib + 3100*entrySize},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			test.make(dir)
			if got := usage(dir, 1<<40); got < test.least || got > test.most {
				t.Errorf("%d bytes, want %d to %d", got, test.least, test.most)
			}
			if got := usage(dir, 1); test.least > 0 && got <= 1 {
				t.Errorf("it stopped at %d bytes", got)
			}
		})
	}
}

// Who has more than it may is ended while it runs, and found at its end.
func TestDiskEndsWhoHasTooMuch(t *testing.T) {
	ended := make(chan plan.Key, 1)
	d := NewDisk(t.TempDir(), 1<<20, func(k plan.Key) { ended <- k })
	defer d.Close()
	dir, small := t.TempDir(), t.TempDir()
	large, other := plan.Key{Rollout: "a", Attempt: "0"}, plan.Key{Rollout: "b", Attempt: "0"}
	d.Watch(large, dir, nil)
	d.Watch(other, small, nil)
	fill(t, filepath.Join(dir, "x"), 2<<20)
	select {
	case k := <-ended:
		if k != large {
			t.Errorf("%v was ended", k)
		}
	case <-time.After(10 * time.Second):
		t.Fatal("nobody was ended")
	}
	if over, _ := d.Leave(large); !strings.Contains(over, "runner.limits.workspace") {
		t.Errorf("said %q", over)
	}
	fill(t, filepath.Join(small, "x"), 2<<20) // and it ends at once
	if over, _ := d.Leave(other); over == "" {
		t.Error("what it had at its end was not seen")
	}
	if over, filled := d.Leave(other); over != "" || filled != "" {
		t.Error(over, filled)
	}
}

// While the disk is short nothing starts, and who has the most of it is ended.
func TestAFullDisk(t *testing.T) {
	ended := make(chan plan.Key, 2)
	var free atomic.Int64
	d := NewDisk(t.TempDir(), 1<<40, func(k plan.Key) { ended <- k })
	defer d.Close()
	d.free = func(string) (int64, int64) { return free.Load(), 20 << 20 } // 1 MiB is to be free
	free.Store(1 << 20)
	if err := d.Room(); err != nil {
		t.Fatal(err)
	}
	free.Store(0)
	if err := d.Room(); !NoRoom(err) || fulgur.KindOf(err) != fulgur.KindExhausted {
		t.Fatal(err)
	}
	keys, dirs := make([]plan.Key, 3), make([]string, 3)
	for i, size := range []int{2 << 20, 700 << 10, 8 << 10} {
		keys[i], dirs[i] = plan.Key{Rollout: fulgur.RolloutID(fmt.Sprint(i)), Attempt: "0"}, t.TempDir()
		fill(t, filepath.Join(dirs[i], "x"), size)
		d.Watch(keys[i], dirs[i], nil)
	}
	select {
	case k := <-ended:
		if k != keys[0] {
			t.Errorf("%v was ended", k)
		}
	case <-time.After(10 * time.Second):
		t.Fatal("nobody was ended")
	}
	free.Store(1 << 20)
	if over, _ := d.Leave(keys[0]); over == "" {
		t.Error("nothing was said")
	}
	free.Store(0)
	if over, filled := d.Leave(keys[2]); over != "" || filled != "" {
		t.Errorf("it had next to nothing: %q, %q", over, filled)
	}
	if over, filled := d.Leave(keys[1]); over != "" || filled == "" {
		t.Errorf("it had the most of a full disk: %q, %q", over, filled)
	}
}

package controller

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

func TestRemoveAll(t *testing.T) {
	dir := t.TempDir()
	must := func(errs ...error) {
		t.Helper()
		if err := errors.Join(errs...); err != nil {
			t.Fatal(err)
		}
	}
	full := filepath.Join(dir, "full")
	must(os.MkdirAll(full+"/a/b/c", 0o755), os.MkdirAll(full+"/.removed-1", 0o755), os.Mkdir(dir+"/outside", 0o755), os.WriteFile(dir+"/outside/file", nil, 0o644), os.Symlink("../../outside", full+"/a/link"), os.Symlink(dir+"/outside", full+"/link"))
	for i := range 2500 {
		must(os.WriteFile(fmt.Sprintf("%s/a/b/f-%d", full, i), nil, 0o644))
	}
	// So deep that no path names it, and with more levels than descriptors.
	deep, err := os.OpenRoot(full)
	must(err)
	for range 600 {
		must(deep.Mkdir(strings.Repeat("d", 100), 0o755))
		next, err := deep.OpenRoot(strings.Repeat("d", 100))
		must(err, deep.Close())
		deep = next
	}
	must(deep.Close(), os.Chmod(full+"/a/b/c", 0), os.Chmod(full+"/a", 0o500))
	var old unix.Rlimit
	must(unix.Getrlimit(unix.RLIMIT_NOFILE, &old))
	must(unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: 200, Max: old.Max}))
	defer func() { _ = unix.Setrlimit(unix.RLIMIT_NOFILE, &old) }()
	if err := RemoveAll(full); err != nil {
		t.Error(err)
	}
	if _, err := os.Lstat(full); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("it is still there: %v", err)
	}
	if _, err := os.Stat(dir + "/outside/file"); err != nil {
		t.Errorf("what a link led to: %v", err)
	}
	must(RemoveAll(dir+"/not/there"), os.Symlink(dir+"/outside", dir+"/link"), RemoveAll(dir+"/link"))
	if _, err := os.Stat(dir + "/outside/file"); err != nil {
		t.Errorf("a link was followed: %v", err)
	}
}

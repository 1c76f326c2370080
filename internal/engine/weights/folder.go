package weights

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/fulgur-rl/fulgur"
)

// WriteFolder makes the folder dir whole or not at all: write fills a folder
// beside it, which is synced to disk and renamed. A dir that exists is
// KindConflict.
func WriteFolder(dir string, write func(tmp string) error) error {
	op := "writing " + dir
	if _, err := os.Lstat(dir); err == nil {
		return fulgur.E(fulgur.KindConflict, op, "the folder exists already: choose another name", nil)
	}
	parent := filepath.Dir(dir)
	if err := os.MkdirAll(parent, 0o755); err != nil {
		return fulgur.E(fulgur.KindInternal, op, "the parent folder cannot be made", err)
	}
	tmp, err := os.MkdirTemp(parent, "."+filepath.Base(dir)+".tmp-*")
	if err != nil {
		return fulgur.E(fulgur.KindInternal, op, "a temporary folder cannot be made", err)
	}
	defer os.RemoveAll(tmp) // nothing is there after the rename
	if err := os.Chmod(tmp, 0o755); err != nil {
		return fulgur.E(fulgur.KindInternal, op, "the temporary folder cannot be opened up", err)
	}
	if err := write(tmp); err != nil {
		return fulgur.E(diskKind(err), op, "", err)
	}
	if err := errors.Join(syncTree(tmp), os.Rename(tmp, dir), syncPath(parent)); err != nil {
		return fulgur.E(diskKind(err), op, "the folder could not be put in place", err)
	}
	return nil
}

func syncTree(dir string) error {
	return filepath.WalkDir(dir, func(path string, _ fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		return syncPath(path)
	})
}

func syncPath(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}

// WriteFile writes tensors to a new file.
func WriteFile(path string, tensors []Tensor, meta map[string]string) error {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
	if err != nil {
		return fmt.Errorf("creating %s: %w", path, err)
	}
	if err := errors.Join(Encode(f, tensors, meta), f.Close()); err != nil {
		return fmt.Errorf("writing %s: %w", path, err)
	}
	return nil
}

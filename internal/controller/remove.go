package controller

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
)

// RemoveAll removes a folder that an agent has filled, and no link out of it is
// followed. Folders that were locked against it are unlocked, and those that lie in one another
// are moved up one by one: os.RemoveAll holds a descriptor for each level, and so an agent could
// use up all of this process's. A path that is not there is no error.
func RemoveAll(path string) error {
	st, err := os.Lstat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return err
	case !st.IsDir():
		return os.Remove(path)
	}
	if err := unlock(path, st, os.Chmod); err != nil {
		return err
	}
	root, err := os.OpenRoot(path)
	if err != nil {
		return err
	}
	defer func() { _ = root.Close() }()
	up := 0
	err = each(root, ".", func(name string) error {
		return removeIn(root, name, &up)
	})
	if err != nil {
		return err
	}
	return os.Remove(path)
}

// removeIn removes a name of root's; folders in it come to lie in root.
func removeIn(root *os.Root, name string, up *int) error {
	st, err := root.Lstat(name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err == nil && !st.IsDir() {
		return root.Remove(name)
	}
	if err == nil {
		err = unlock(name, st, root.Chmod)
	}
	if err != nil {
		return err
	}
	err = each(root, name, func(child string) error {
		child = filepath.Join(name, child)
		st, err := root.Lstat(child)
		if err != nil {
			return err
		}
		if !st.IsDir() {
			return root.Remove(child)
		}
		if err := unlock(child, st, root.Chmod); err != nil { // its .. is changed too
			return err
		}
		for {
			*up++
			to := fmt.Sprintf(".removed-%d", *up)
			if _, err := root.Lstat(to); errors.Is(err, fs.ErrNotExist) {
				return root.Rename(child, to)
			}
		}
	})
	if err != nil {
		return err
	}
	return root.Remove(name)
}

// each calls f, which removes it, for every name in a folder, until there is none.
func each(root *os.Root, dir string, f func(name string) error) error {
	for {
		d, err := root.Open(dir)
		if err != nil {
			return err
		}
		names, err := d.Readdirnames(1000)
		_ = d.Close()
		if len(names) == 0 {
			if errors.Is(err, io.EOF) {
				return nil
			}
			return err
		}
		for _, name := range names {
			if err := f(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
				return err
			}
		}
	}
}

// unlock lets the owner of a folder change it.
func unlock(name string, st fs.FileInfo, chmod func(string, fs.FileMode) error) error {
	if st.Mode().Perm()&0o700 == 0o700 {
		return nil
	}
	return chmod(name, 0o700)
}

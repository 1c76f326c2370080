package controller

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// walked is a folder on the way down.
type walked struct {
	name     string
	dev, ino uint64
	left     []string // folders in it that are still to be seen
}

// usage is how many bytes of disk a folder holds; it stops when they are more than most.
// An agent may work in it meanwhile: no link is followed, another disk is not entered, one
// descriptor is held however deep it is, and who moves folders while they are measured is
// measured as far as that goes. A file with several names counts once in all.
func usage(dir string, most int64) (bytes int64) {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return 0
	}
	defer func() { _ = root.Close() }()
	at, err := root.Open(".")
	if err != nil {
		return 0
	}
	defer func() { _ = at.Close() }()
	first, err := lookInto(at, &bytes, most)
	way := []walked{first}
	for err == nil && bytes <= most {
		here := &way[len(way)-1]
		if len(here.left) == 0 {
			if way = way[:len(way)-1]; len(way) == 0 {
				return bytes
			}
			up, err := openAt(at, "..")
			_ = at.Close()
			if at = up; err != nil || !way[len(way)-1].is(at) { // it was moved
				return bytes
			}
			continue
		}
		name := here.left[len(here.left)-1]
		here.left = here.left[:len(here.left)-1]
		down, err := openAt(at, name)
		if errors.Is(err, fs.ErrPermission) && len(way) < unlockTo {
			path := ""
			for _, w := range way[1:] {
				path = filepath.Join(path, w.name)
			}
			if root.Chmod(filepath.Join(path, name), 0o700) == nil {
				down, err = openAt(at, name)
			}
		}
		if err != nil {
			continue // it is gone, or another's
		}
		w, err := lookInto(down, &bytes, most)
		if err != nil || w.dev != first.dev {
			_ = down.Close()
			continue
		}
		w.name = name
		way = append(way, w)
		_ = at.Close()
		at = down
	}
	return bytes
}

// openAt opens a folder in another.
func openAt(dir *os.File, name string) (*os.File, error) {
	fd, err := unix.Openat(int(dir.Fd()), name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(fd), name), nil
}

func (w walked) is(dir *os.File) bool {
	var st unix.Stat_t
	return unix.Fstat(int(dir.Fd()), &st) == nil && uint64(st.Dev) == w.dev && uint64(st.Ino) == w.ino //nolint:unconvert // it differs between systems
}

// lookInto adds what is in a folder.
func lookInto(dir *os.File, bytes *int64, most int64) (w walked, err error) {
	fd := int(dir.Fd())
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return w, err
	}
	w.dev, w.ino = uint64(st.Dev), uint64(st.Ino) //nolint:unconvert // it differs between systems
	for *bytes <= most {
		names, err := dir.Readdirnames(1000)
		for _, name := range names {
			if unix.Fstatat(fd, name, &st, unix.AT_SYMLINK_NOFOLLOW) != nil {
				continue
			}
			size := int64(st.Blocks) * 512 //nolint:unconvert // it differs between systems
			if st.Mode&unix.S_IFMT == unix.S_IFDIR {
				w.left = append(w.left, name)
			} else {
				size /= max(1, int64(st.Nlink)) //nolint:unconvert // it differs between systems
			}
			*bytes += max(size, entrySize)
		}
		if err != nil || len(names) == 0 {
			break
		}
	}
	return w, nil
}

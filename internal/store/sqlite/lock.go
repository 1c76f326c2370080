package sqlite

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"syscall"

	"github.com/fulgur-rl/fulgur"
)

// lockFile takes a lock that ends with the process, however it ends. SQLite's
// own locks are held for a transaction only, and two stores that take turns on
// one file would each trust a memory that is out of date.
func lockFile(path string) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o644)
	if err != nil {
		return nil, err
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		pid := make([]byte, 20)
		n, _ := f.ReadAt(pid, 0)
		f.Close()
		if errors.Is(err, syscall.EWOULDBLOCK) {
			who := "another process"
			if p := strings.TrimSpace(string(pid[:n])); p != "" {
				who = "process " + p
			}
			return nil, fulgur.E(fulgur.KindConflict, "open store "+strings.TrimSuffix(path, "-lock"),
				who+" has this store open: stop it, or name another file with --store sqlite:PATH", nil)
		}
		return nil, err
	}
	if err := errors.Join(f.Truncate(0), writePID(f)); err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

func writePID(f *os.File) error {
	_, err := fmt.Fprintln(f, os.Getpid())
	return err
}

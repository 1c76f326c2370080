package cli

import (
	"os"

	"golang.org/x/sys/unix"
)

// terminalSize returns the columns of the terminal that f is.
func terminalSize(f *os.File) (int, error) {
	s, err := unix.IoctlGetWinsize(int(f.Fd()), unix.TIOCGWINSZ)
	if err != nil {
		return 0, err
	}
	return int(s.Col), nil
}

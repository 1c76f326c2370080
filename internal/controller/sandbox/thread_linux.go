package sandbox

import (
	"fmt"
	"runtime"

	"golang.org/x/sys/unix"
)

// devices are the machine's own, which bubblewrap shows. Root is their owner, and so
// an agent of root's could change who may use them, for the whole machine.
var devices = []string{"/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom", "/dev/tty"}

// thread is one of this process that has its own view of the machine, in which
// devices are read-only files (which keeps nobody from writing to what is no file). What is
// started on it has that view.
type thread struct{ jobs chan func() }

// newThread starts one. It ends with close, and with it what it has started and
// that has asked to.
func newThread() (*thread, error) {
	t := &thread{jobs: make(chan func())}
	ready := make(chan error)
	go func() { // ends with close
		runtime.LockOSThread() // and never lets go of it: nothing else may run on it
		err := readOnlyDevices()
		ready <- err
		if err != nil {
			return
		}
		for f := range t.jobs {
			f()
		}
	}()
	if err := <-ready; err != nil {
		return nil, err
	}
	return t, nil
}

func readOnlyDevices() error {
	if err := unix.Unshare(unix.CLONE_FS | unix.CLONE_NEWNS); err != nil {
		return fmt.Errorf("a view of this process's own: %w", err)
	}
	// What is mounted outside later is seen, and nothing of ours is seen outside.
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_SLAVE, ""); err != nil {
		return fmt.Errorf("a view of this process's own: %w", err)
	}
	for _, d := range devices {
		if !exists(d) {
			continue
		}
		err := unix.Mount(d, d, "", unix.MS_BIND, "")
		if err == nil {
			err = unix.Mount("", d, "", unix.MS_BIND|unix.MS_REMOUNT|unix.MS_RDONLY|unix.MS_NOSUID|unix.MS_NOEXEC, "")
		}
		if err != nil {
			return fmt.Errorf("%s: %w", d, err)
		}
	}
	return nil
}

// do runs f on the thread, and returns when it has; a nil one runs it here.
func (t *thread) do(f func()) {
	if t == nil {
		f()
		return
	}
	done := make(chan struct{})
	t.jobs <- func() { defer close(done); f() }
	<-done
}

func (t *thread) close() {
	if t != nil {
		close(t.jobs)
	}
}

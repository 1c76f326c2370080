// Package sandbox describes one container and starts it by way of kubebox-init:
// new mount, pid, ipc and uts namespaces, a copy-on-write root over an image's
// files, volumes at their paths, the workload as process 1. The network is the
// machine's own.
package sandbox

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"syscall"
)

// Bind is a file or folder that a container sees at another path.
type Bind struct {
	Src, Dst string
	ReadOnly bool
}

// Spec is one container.
type Spec struct {
	Root     string // the image's files; "" is the machine's own root
	Scratch  string // a folder for what the container writes
	Hostname string
	Cwd      string // made where the image lacks it
	User     string // "uid[:gid]" or names of the image's own; "" is root
	Groups   []int  // further ones
	Binds    []Bind
	Argv     []string
	Env      []string
	Cgroups  []string // control groups to join, folders
	HostPID  bool     // stay in the machine's pid namespace
	ReadOnly bool     // the root is
	NoNew    bool     // no_new_privs
	Keep     []int    // capabilities of the bounding set; nil: all
}

// The files that the init program gets beside the standard three.
const (
	SpecFD  = 3 // it reads its Spec there
	ErrorFD = 4 // it writes there why it could not start the workload
)

// Start starts a container. It returns when the workload runs, or why it does not.
func Start(init string, s Spec, stdout, stderr io.Writer) (*exec.Cmd, error) {
	if len(s.Argv) == 0 {
		return nil, errors.New("no command specified")
	}
	if err := os.MkdirAll(s.Scratch, 0o755); err != nil {
		return nil, err
	}
	spec, err := json.Marshal(s)
	if err != nil {
		return nil, err
	}
	specR, specW, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	errR, errW, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer func() { _ = errR.Close() }()
	cmd := exec.Command(init)
	cmd.Env = []string{}
	cmd.Stdout, cmd.Stderr = stdout, stderr
	cmd.ExtraFiles = []*os.File{specR, errW}
	flags := syscall.CLONE_NEWNS | syscall.CLONE_NEWIPC | syscall.CLONE_NEWUTS
	if !s.HostPID {
		flags |= syscall.CLONE_NEWPID
	}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Pdeathsig: syscall.SIGKILL, Cloneflags: uintptr(flags)}
	err = cmd.Start()
	_, _ = specR.Close(), errW.Close()
	if err != nil {
		_ = specW.Close()
		return nil, fmt.Errorf("a container needs root and new namespaces: %w", err)
	}
	_, _ = specW.Write(spec) // if nobody reads it, ErrorFD says why
	_ = specW.Close()
	// The pipe closes by itself when the workload takes over.
	if problem, _ := io.ReadAll(errR); len(problem) > 0 {
		_ = cmd.Wait()
		return nil, errors.New(string(problem))
	}
	return cmd, nil
}

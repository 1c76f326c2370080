package container

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"strconv"
	"syscall"
	"time"

	"github.com/fulgur-rl/fulgur/internal/controller/sandbox"
)

const (
	// innerName is the first argument of the program that is a container's first one
	// where its network is the relay alone.
	innerName = "container-inner"
	// Where that program and the relay's socket are in a container.
	innerPath  = "/run/fulgur/fulgur"
	socketPath = "/run/fulgur/gateway/socket"
	// innerFailed is its exit code when it could not do its work, as env(1)'s.
	innerFailed = 125
	// dialPatience is how long it waits for a relay that is not there: one whose
	// controller was killed comes back with the next.
	dialPatience = 10 * time.Minute
	dialPause    = 100 * time.Millisecond
)

// Inner is a container's first program, if args (os.Args) say so; it does not
// return then. It listens where the agent looks for the gateway, passes on what
// comes there to the runner's socket, runs the agent, hands it the signals that
// it gets, and exits as the agent does. Every binary that makes a Runner whose
// network is NetworkGateway calls it before anything else.
func Inner(args []string) {
	if len(args) < 3 {
		return
	}
	var code int
	var err error
	switch args[1] {
	default:
		return
	case probeName:
		code, err = probe(args[2:])
	case innerName:
		code, err = inner(args[2:])
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "fulgur:", err)
	}
	os.Exit(code)
}

func inner(command []string) (int, error) {
	ln, err := net.Listen("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(sandbox.Port)))
	if err != nil {
		return innerFailed, fmt.Errorf("opening the relay's address: %w", err)
	}
	go accept(ln)
	signals := make(chan os.Signal, 16)
	signal.Notify(signals, syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP, syscall.SIGQUIT, syscall.SIGUSR1, syscall.SIGUSR2)
	path, err := exec.LookPath(command[0])
	if err != nil {
		return 127, fmt.Errorf("finding the agent's program: %w", err)
	}
	p, err := os.StartProcess(path, command, &os.ProcAttr{Files: []*os.File{os.Stdin, os.Stdout, os.Stderr}})
	if err != nil {
		return 126, fmt.Errorf("starting the agent's program: %w", err)
	}
	go func() {
		for s := range signals {
			_ = p.Signal(s)
		}
	}()
	for { // as process 1 it gets every orphan
		var status syscall.WaitStatus
		pid, err := syscall.Wait4(-1, &status, 0, nil)
		switch {
		case errors.Is(err, syscall.EINTR):
		case err != nil:
			return innerFailed, fmt.Errorf("waiting for the agent: %w", err)
		case pid != p.Pid:
		case status.Signaled():
			return 128 + int(status.Signal()), nil
		case status.Exited():
			return status.ExitStatus(), nil
		}
	}
}

// accept passes connections on until the process ends.
func accept(ln net.Listener) {
	for {
		c, err := ln.Accept()
		if err != nil {
			time.Sleep(dialPause) // out of descriptors, most likely
			continue
		}
		go pass(c.(*net.TCPConn))
	}
}

// pass joins a connection to the runner's socket.
func pass(c *net.TCPConn) {
	defer func() { _ = c.Close() }()
	up, err := dial()
	if err != nil {
		return
	}
	defer func() { _ = up.Close() }()
	done := make(chan struct{})
	go func() {
		defer close(done)
		_, _ = io.Copy(up, c)
		_ = up.CloseWrite()
	}()
	_, _ = io.Copy(c, up)
	_ = c.CloseWrite()
	_ = c.CloseRead() // the gateway has hung up: what the agent still sends goes nowhere
	<-done
}

func dial() (*net.UnixConn, error) {
	for end := time.Now().Add(dialPatience); ; time.Sleep(dialPause) {
		c, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: socketPath, Net: "unix"})
		if err == nil || time.Now().After(end) {
			return c, err
		}
	}
}

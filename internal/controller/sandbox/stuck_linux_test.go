package sandbox

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// stuck makes a box's bubblewrap one that waits for ever between the birth of its
// process inside and the user namespace of that. It returns what tells the number of
// the process inside, once it is there. (Such a one goes with GuardUserNS alone off.)
func stuck(t *testing.T, b *Box) (inside func() int) {
	t.Helper()
	dir := t.TempDir()
	info, program := filepath.Join(dir, "info"), filepath.Join(dir, "bwrap")
	script := fmt.Sprintf("#!/bin/sh\nmkfifo %[1]s/never\nexec %[2]s --info-fd 8 --userns-block-fd 9 \"$@\" 8>%[1]s/info 9<>%[1]s/never\n", dir, b.bwrap)
	if err := os.WriteFile(program, []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	b.bwrap = program
	return func() int {
		for range 1000 {
			text, _ := os.ReadFile(info)
			var said struct {
				Pid int `json:"child-pid"`
			}
			if json.Unmarshal(text, &said) == nil && said.Pid > 0 {
				t.Cleanup(func() {
					if lives(said.Pid) {
						_ = syscall.Kill(said.Pid, syscall.SIGKILL)
					}
				})
				return said.Pid
			}
			time.Sleep(5 * time.Millisecond)
		}
		t.Fatal("bubblewrap told nothing of its process inside")
		return 0
	}
}

// lives says whether a process is there, and no corpse that nobody buries.
func lives(pid int) bool {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return false
	}
	_, state, _ := strings.Cut(string(text), ") ")
	return !strings.HasPrefix(state, "Z") && !strings.HasPrefix(state, "X")
}

// diesWithin waits for a process's end: a killed one is dead a moment later.
func diesWithin(pid int, d time.Duration) bool {
	for limit := time.Now().Add(d); time.Now().Before(limit); time.Sleep(5 * time.Millisecond) {
		if !lives(pid) {
			return true
		}
	}
	return !lives(pid)
}

// What is interrupted while its sandbox is set up leaves nothing: neither where control
// groups tell what is in it, nor without.
func TestAProgramInterruptedWhileItsSandboxIsSetUpLeavesNothing(t *testing.T) {
	for name, o := range map[string]Options{"with a control group": {Limits: Limits{Processes: 50}, without: map[Guard]bool{GuardUserNS: true}}, "without": {without: map[Guard]bool{GuardUserNS: true}}} {
		t.Run(name, func(t *testing.T) {
			b := newBox(t, o)
			inside := stuck(t, b)
			ctx, cancel := context.WithCancel(t.Context())
			done := make(chan struct{})
			go func() {
				defer close(done)
				_, _ = b.Run(ctx, sh("true"), Pass{}, Streams{})
			}()
			pid := inside()
			cancel()
			<-done
			if !diesWithin(pid, time.Second) {
				t.Errorf("bubblewrap's process %d inside is left", pid)
			}
		})
	}
}

// What does not die with bubblewrap outside, and is in no group of its, is in the
// cell's control group.
func TestTheEndOfACellEndsWhatDidNotDieWithIt(t *testing.T) {
	b := newBox(t, Options{Limits: Limits{Processes: 50}, without: map[Guard]bool{GuardUserNS: true}})
	if b.cg == nil {
		t.Skip(b.note)
	}
	inside := stuck(t, b)
	c := sh("true")
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer null.Close()
	c.Files = [3]*os.File{null, null, null}
	cell, err := b.Cell(c)
	if err != nil {
		t.Fatal(err)
	}
	var proc *os.Process
	around := cell.Attributes(&syscall.SysProcAttr{Setpgid: true})
	if err = around(func() error { proc, err = os.StartProcess(cell.Name, cell.Argv, cell.Attr); return err }); err != nil {
		t.Fatal(err)
	}
	cell.Begin()
	pid := inside()
	_ = proc.Kill()
	_, _ = proc.Wait()
	cell.End(100 * time.Millisecond)
	if !diesWithin(pid, time.Second) {
		t.Errorf("bubblewrap's process %d inside is left", pid)
	}
}

func TestWhatRunsInAKilledBoxIsKilled(t *testing.T) {
	c := newGroups(t)
	g, err := c.make(Limits{Processes: 10})
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("sleep", "1000")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	for _, dir := range g.dirs {
		if err := os.WriteFile(filepath.Join(dir, "cgroup.procs"), fmt.Append(nil, cmd.Process.Pid), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	_ = g.fd.Close()
	sweepOf(c)
	if !lives(cmd.Process.Pid) {
		t.Fatal("what runs in a box whose process lives was killed")
	}
	for _, f := range c.held { // as the end of its process does
		if err := f.Close(); err != nil {
			t.Fatal(err)
		}
	}
	clear(c.held)
	sweepOf(c)
	if !diesWithin(cmd.Process.Pid, time.Second) {
		t.Fatal("what runs in a box whose process is dead lives on")
	}
	_ = cmd.Wait()
	sweepOf(c)
}

package container

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/fulgur-rl/fulgur/internal/controller"
	"github.com/fulgur-rl/fulgur/internal/controller/plan"
)

// follow sees a container to its end and tells it.
func (r *Runner) follow(x *box) {
	defer r.wg.Done()
	exit := x.exit
	if exit == nil {
		if r.Workspace {
			r.disk.Watch(x.key, x.folder, nil)
		}
		exit = r.watch(x)
		over, filled := r.disk.Leave(x.key)
		if exit != nil {
			if over != "" {
				*exit = plan.Failed(plan.ReasonDisk, over)
			}
			exit.Filled = filled
		}
	}
	close(x.gone)
	x.door.shut(exit != nil)
	if exit == nil { // the next runner's
		r.drop(x)
		return
	}
	good := exit.Code == 0 && exit.Failure == "" && exit.Signal == "" && !x.stopped()
	if x.exit == nil {
		exit.Tail, exit.Log = r.keepLog(x, good)
	}
	takes := x.exit == nil && r.grader.Takes(*exit, x.stopped())
	if takes {
		r.take(x)
	}
	l := left{name: x.name}
	if r.Keep == controller.KeepNone || r.Keep == controller.KeepFailures && good {
		if takes { // till its grade is on record: the next controller may have to take it again
			l.folder = x.folder
		} else {
			r.tidy(x.folder)
		}
	}
	r.mu.Lock()
	delete(r.live, x.key)
	if x.exit == nil {
		r.kept[x.key] = l
	}
	r.mu.Unlock()
	r.events <- controller.Event{Key: x.key, Exit: exit}
}

func (x *box) stopped() bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.stopping
}

// watch waits until the container has ended, and says how. It waits in a client
// that is attached to the container: that ends when the container does. A client
// may also end because it was killed, or its server restarted; so what has ended
// is said by the container's state alone. nil: it is left to the next runner.
func (r *Runner) watch(x *box) *plan.Exit {
	stdin := x.input != nil
	for nap := 100 * time.Millisecond; ; nap = min(2*nap, 10*time.Second) {
		began := time.Now()
		err := r.attach(x, stdin)
		stdin = false
		if r.leaving() {
			return nil
		}
		if time.Since(began) > 10*time.Second {
			nap = 100 * time.Millisecond
		}
		if exit := r.ended(x, err); exit != nil {
			return exit
		}
		if !r.pause(nap) {
			nap = time.Second // Close waits for ends
		}
	}
}

// attach waits in a client until the container, or the client, ends. With stdin
// the client starts it, and gives it its input.
func (r *Runner) attach(x *box, stdin bool) error {
	args := []string{"attach", "--no-stdin", "--sig-proxy=false", x.name}
	if stdin {
		args = []string{"start", "--attach", "--interactive", x.name}
	}
	cmd := r.client.command(r.life, args...)
	bad := controller.NewLogBuffer(clientTalk)
	cmd.Stdout, cmd.Stderr = nil, bad // the log is read at the end
	if stdin {
		cmd.Stdin = bytes.NewReader(x.input)
	}
	err := cmd.Run()
	if cmd.ProcessState != nil && cmd.ProcessState.ExitCode() > 0 {
		return &failure{cmd.ProcessState.ExitCode(), lastLine(string(bad.Bytes()))}
	}
	return err
}

// ended looks at a container whose client has ended; nil: it runs, or cannot be
// looked at now.
func (r *Runner) ended(x *box, attached error) *plan.Exit {
	all, err := r.client.inspect(context.WithoutCancel(r.life), x.name)
	switch {
	case err != nil:
		r.Log.Warn("a container cannot be looked at; trying again", "container", x.name, "err", err)
		return nil
	case len(all) == 0:
		exit := plan.Failed(plan.ReasonDeleted, "somebody removed the container "+x.name)
		return &exit
	}
	s := all[0].State
	switch {
	case s.Running || s.Status == "stopping" || s.Status == "paused" || s.Status == "restarting":
		return nil
	case !all[0].started():
		// With its input it was only created before. Of one that did start, the client's
		// words and code are the agent's own.
		if classify(attached) == troubleProgram {
			exit, _ := r.unstarted(attached, troubleProgram)
			return exit
		}
		why := s.Error
		if f := (*failure)(nil); errors.As(attached, &f) {
			why = f.text
		}
		exit := plan.Failed(plan.ReasonRuntime, fmt.Sprintf("%s could not start a container of %s: %s", r.client.path, r.Image, why))
		return &exit
	case s.OOMKilled:
		exit := plan.Failed(plan.ReasonMemory, "the agent's container ran out of memory"+r.memory())
		return &exit
	case s.ExitCode == 137 && r.Limits.Memory > 0 && !x.stopped():
		// conmon 2.1 misses it on cgroups v1: it looks at the counter before the kernel
		// has counted. Whatever killed it, it came from within its limits.
		exit := plan.Failed(plan.ReasonMemory, "the agent was killed, as when its container runs out of memory"+r.memory()+"; the runtime does not say by what")
		return &exit
	}
	return &plan.Exit{Code: s.ExitCode}
}

func (r *Runner) memory() string {
	if r.Limits.Memory == 0 {
		return ""
	}
	return fmt.Sprintf(" (runner.limits.memory: %d bytes)", r.Limits.Memory)
}

// pause waits for d, and says whether the runner goes on.
func (r *Runner) pause(d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-r.life.Done():
		return false
	case <-t.C:
		return true
	}
}

// keepLog reads a container's log, writes it if the policy keeps it, and returns
// its last lines.
func (r *Runner) keepLog(x *box, good bool) (last, path string) {
	if good && r.Logs != controller.KeepAll {
		return "", ""
	}
	buf := controller.NewLogBuffer(r.LogCap)
	if err := r.client.logs(context.WithoutCancel(r.life), x.name, io.Writer(buf)); err != nil {
		r.Log.Warn("a container's log cannot be read", "container", x.name, "err", err)
	}
	last, path, err := controller.WriteLog(r.State, r.Logs, x.key, buf.Bytes(), x.secrets, good)
	if err != nil {
		r.Log.Warn("an attempt's log could not be written", "err", err)
	}
	return last, path
}

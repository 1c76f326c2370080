package cli

import (
	"cmp"
	"context"
	"errors"
	"path/filepath"
	"strings"
	"time"

	"github.com/fulgur-rl/fulgur/internal/config"
	"github.com/fulgur-rl/fulgur/internal/controller"
	"github.com/fulgur-rl/fulgur/internal/controller/container"
	"github.com/fulgur-rl/fulgur/internal/controller/grade"
)

// checkContainer asks the container program for its service, the image (which is
// fetched where the run file allows that) and the agent's program in it.
func checkContainer(ctx context.Context, r *runFile) error {
	o := containerOptions(r)
	relayed := o.Network == container.NetworkGateway
	o.Scope, o.Network = "check", "none" // there is no gateway yet
	if o.State = filepath.Join(r.Out, r.Run); len(r.Reward.Command) > 0 {
		o.Grading = &grade.Options{Command: r.Reward.Command, Tests: r.Reward.Tests}
	}
	c, err := container.New(ctx, o)
	if err != nil {
		return usageErr(err)
	}
	err = c.Close()
	if relayed {
		if static := container.CheckProgram(); static != nil {
			err = errors.Join(err, usageErr(static))
		}
	}
	return err
}

// newContainer makes the runner of containers on this machine.
func newContainer(ctx context.Context, j controllerJob) (controller.Runner, error) {
	o := containerOptions(j.file)
	o.Gateway = cmp.Or(j.file.Runner.AgentURL, j.url)
	o.Command = config.Expand(o.Command, string(j.dir))
	o.State, o.Scope, o.Log = j.dir.attempts(), scope(j.dir, j.run), j.log
	var err error
	if o.Grading, err = containerGrading(j); err != nil {
		return nil, err
	}
	r, err := container.New(ctx, o)
	if err != nil {
		closeBoxes(gradingBoxes(o.Grading)...)
		return nil, err // no nil *Runner in the interface
	}
	return r, nil
}

// containerOptions are what the run file says of containers.
func containerOptions(r *runFile) container.Options {
	f, c := r.File, r.Runner.Container
	o := container.Options{
		Program: c.Program, Image: f.Runner.Image, Pull: c.Pull, Command: f.Agent.Command,
		Env: f.Agent.Input.Env, Input: inputMode(f.Agent.Input), Network: c.Network, Workspace: f.Agent.Workspace, ReadOnly: c.ReadOnly, Extra: c.Options,
		Limits: container.Limits{Memory: cmp.Or(int64(f.Runner.Limits.Memory), sandboxLimits.Memory),
			Processes: cmp.Or(f.Runner.Limits.Processes, int(sandboxLimits.Processes)), FileSize: int64(f.Runner.Limits.FileSize), Workspace: int64(f.Runner.Limits.Workspace),
			CPUTime: int((time.Duration(f.Runner.Limits.CPUTime) + time.Second - 1) / time.Second), CPUs: c.CPUs},
		LogCap: f.Logs.AgentBytes, Keep: keep(f.Retention.Attempts), Logs: keep(f.Retention.Attempts),
	}
	for _, m := range c.Mounts {
		from, to, _ := strings.Cut(m, ":")
		if !filepath.IsAbs(from) {
			from = filepath.Join(r.Dir, from)
		}
		o.Mounts = append(o.Mounts, from+":"+to)
	}
	return o
}

package cli

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/fulgur-rl/fulgur"
	"github.com/fulgur-rl/fulgur/internal/config"
	"github.com/fulgur-rl/fulgur/internal/controller"
	"github.com/fulgur-rl/fulgur/internal/controller/local"
	"github.com/fulgur-rl/fulgur/internal/controller/sandbox"
)

// runnerKind is what runner.kind can be.
type runnerKind struct {
	name string
	// check says before anything starts what cannot work: `train --check`,
	// `doctor`, and the start of a run call it.
	check func(ctx context.Context, r *runFile) error
	// keys are those that an error is about which names none that was written, the
	// likeliest first.
	keys func(r *runFile, text string) []string
	// make makes the runner of one controller. If the runner is a controller.Prover,
	// what its agents can reach is shown before the first rollout.
	make func(ctx context.Context, j controllerJob) (controller.Runner, error)
}

// runnerKinds are the kinds that this build offers, in the order in which they
// are shown. A new one is a line here and a file with its two functions.
func runnerKinds() []runnerKind {
	return []runnerKind{
		{"local", checkLocal, localKeys, newLocal},
		{"container", checkContainer, containerKeys, newContainer},
		{"kubernetes", checkKubernetes, kubernetesKeys, newKubernetes},
	}
}

// kindOf returns the run file's kind of runner.
func kindOf(f *config.File) (runnerKind, error) {
	for _, k := range runnerKinds() {
		if k.name == f.Runner.Kind {
			return k, nil
		}
	}
	return runnerKind{}, usageErr(fulgur.E(fulgur.KindUnsupported, "find the runner", fmt.Sprintf("runner.kind %q is not in this version", f.Runner.Kind), nil))
}

// runnerNames are the names of runnerKinds.
func runnerNames() (names []string) {
	for _, k := range runnerKinds() {
		names = append(names, k.name)
	}
	return names
}

// checkRunner looks at what the run file's kind of runner needs, and the programs
// that grade where the agents run.
func checkRunner(ctx context.Context, r *runFile) error {
	k, err := kindOf(r.File)
	if err != nil {
		return err
	}
	return r.placed(errors.Join(k.check(ctx, r), checkGrader(r)), k.keys)
}

// What errors of each kind are about, where they do not say.
func localKeys(*runFile, string) []string { return []string{"agent.command"} }

func containerKeys(_ *runFile, text string) []string {
	switch {
	case strings.HasPrefix(text, "find the container program"):
		return []string{"runner.container.program", "runner.kind"}
	case strings.Contains(text, "the mount "):
		return []string{"runner.container.mounts"}
	}
	return []string{"runner.image", "runner.kind"}
}

func kubernetesKeys(r *runFile, text string) []string {
	if t := r.Runner.JobTemplate; t != "" && strings.Contains(text, t+":") {
		return nil // its line is there
	}
	return []string{"runner.job_template", "runner.image", "runner.kind"}
}

// newRunner makes the runner that the run file asks for.
func newRunner(ctx context.Context, j controllerJob) (controller.Runner, error) {
	k, err := kindOf(j.file.File)
	if err != nil {
		return nil, err
	}
	return k.make(ctx, j)
}

// newLocal makes the runner of processes on this machine.
func newLocal(_ context.Context, j controllerJob) (controller.Runner, error) {
	f := j.file
	o := local.Options{
		Command: inDir(config.Expand(f.Agent.Command, string(j.dir)), f.Dir), Dir: f.Dir, Workspace: f.Agent.Workspace, Disk: int64(f.Runner.Limits.Workspace), State: j.dir.attempts(),
		Env: f.Agent.Input.Env, Input: inputMode(f.Agent.Input),
		LogCap: f.Logs.AgentBytes, Keep: keep(f.Retention.Attempts), Logs: keep(f.Retention.Attempts),
		Secrets: append(frozenKeys(f.File), j.secret), Scope: scope(j.dir, j.run), Log: j.log, Hidden: hiddenOf(j),
	}
	if self, err := os.Executable(); err == nil {
		o.Watchdog = []string{self, local.WatchCommand}
	}
	view, err := sandboxOptions(j)
	if err != nil {
		return nil, err
	}
	if o.Sandbox, err = sandboxWith(j, view); err != nil {
		return nil, err
	}
	if o.Grading, err = gradingOf(j, view, o.Sandbox != nil); err != nil {
		closeBoxes(o.Sandbox)
		return nil, err
	}
	r, err := newLocalOf(f, o)
	if err != nil {
		closeBoxes(append(gradingBoxes(o.Grading), o.Sandbox)...)
		return nil, err
	}
	return r, nil
}

// closeBoxes closes those that are there.
func closeBoxes(boxes ...*sandbox.Box) {
	for _, b := range boxes {
		if b != nil {
			b.Close()
		}
	}
}

// inDir replaces {dir} in a command by the run file's folder.
func inDir(command []string, dir string) []string {
	for i, a := range command {
		command[i] = strings.ReplaceAll(a, "{dir}", dir)
	}
	return command
}

// newLocalOf makes the runner that agent.worker asks for.
func newLocalOf(f *runFile, o local.Options) (controller.Runner, error) {
	if f.Agent.Worker {
		o.Workers, o.WorkerStart = limits(f.File).Slots, time.Duration(f.Agent.StartTimeout)
		return local.NewWorkers(o)
	}
	return local.New(o)
}

// keep maps the run file's word to the runner's.
func keep(s string) controller.Keep {
	if s == "failed" {
		return controller.KeepFailures
	}
	return controller.Keep(s)
}

// inputMode maps the run file's ways of giving the input to the runner's.
func inputMode(in config.Input) controller.InputMode {
	switch {
	case in.File:
		return controller.ByFile
	case in.Stdin:
		return controller.ByStdin
	}
	return controller.ByEnv
}

// scope names what a runner's executions belong to, the same after a restart.
func scope(d runDir, run fulgur.RunID) string { return string(d) + "#" + string(run) }

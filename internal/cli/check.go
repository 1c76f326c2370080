package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"github.com/fulgur-rl/fulgur"
	"github.com/fulgur-rl/fulgur/internal/config"
	"github.com/fulgur-rl/fulgur/internal/controller/container"
	"github.com/fulgur-rl/fulgur/internal/trainer"
)

// check prints the effective configuration and what would be started; with outcomes
// the whole table of these, else what the run file changes of it.
func (a *app) check(ctx context.Context, r *runFile, outcomes bool) error {
	d, err := readData(r)
	if err := errors.Join(err, checkRest(ctx, r, r.Server)); err != nil {
		return err
	}
	box := ""
	if r.Server == "" {
		if box, err = sandboxed(r); err != nil {
			return err
		}
	}
	if a.json {
		return a.printJSON(r.JSON())
	}
	if _, err := a.Stdout.Write(r.Effective()); err != nil {
		return err
	}
	per := r.Algorithm.GroupSize * r.Algorithm.GroupsPerStep
	a.say("\nwould start: %d rollouts a step (%d rows x %d), at most %d agents at once, %d steps at most", per, r.Algorithm.GroupsPerStep, r.Algorithm.GroupSize, limits(r.File).Slots, r.Steps)
	printOutcomes(a.Stderr, outcomeTable(r.Outcomes), outcomes)
	a.say("data: %d rows to train on, %d to validate on, %d to test on", len(d.train.Rows), len(d.validation), len(d.test))
	where, command := "in "+r.Dir, config.Expand(r.Agent.Command, filepath.Join(r.Out, r.Run))
	if r.Runner.Kind == "local" {
		command = inDir(command, r.Dir)
		if r.Agent.Workspace {
			where = "in a new folder each"
		}
	} else {
		where = "in " + cmp.Or(r.Runner.Image, r.Runner.JobTemplate)
	}
	a.say("agent: %q, %s; kernels: %s", command, where, kernelName(""))
	for _, line := range jobsOf(r) {
		a.say("%s", line)
	}
	if r.Server == "" && r.Runner.Kind == "container" {
		client, err := container.FindClient(ctx, r.Runner.Container.Program)
		if err != nil {
			return err
		}
		a.say("containers: %s", client)
	}
	if box != "" {
		a.say("sandbox: %s", box)
	}
	return nil
}

// checkRest looks at what a run needs besides its data, and names all that is
// amiss: one who has just written a run file lacks several things. With a server
// the agents are its controllers', and elsewhere.
func checkRest(ctx context.Context, r *runFile, server string) error {
	_, err := grader(r.Reward)
	err = errors.Join(checkModel(ctx, r), err)
	if server == "" {
		err = errors.Join(err, checkRunner(ctx, r))
	}
	return err
}

// checkModel opens the model, and asks the engine what it can't do.
func checkModel(ctx context.Context, r *runFile) error {
	files, err := modelFiles(r.Model, r.Dir)
	if err != nil {
		return err
	}
	eng, _, err := openPolicy(files, r.Model, engineFlags{threads: 1})
	if err != nil {
		return err
	}
	info, err := eng.Info(ctx)
	if err == nil {
		if err = trainer.Fits(info, r.Sampling.Temperature, r.Algorithm.Replay); err != nil {
			err = usageErr(err)
		}
	}
	return errors.Join(err, eng.Close())
}

// checkCommand says whether the agent's program is there, where that can be
// known before agent.build has run.
func checkCommand(r *runFile) error {
	key, program := "agent.command", inDir(slices.Clone(r.Agent.Command[:1]), r.Dir)[0]
	if len(r.Agent.Build) > 0 {
		key, program = "agent.build", r.Agent.Build[0]
	}
	if strings.Contains(program, "{run}") {
		return nil
	}
	if len(r.Agent.Build) == 0 {
		if err := checkScript(r); err != nil {
			return err
		}
	}
	path := program
	if strings.ContainsRune(program, filepath.Separator) {
		path = r.resolve(program)
	}
	if _, err := exec.LookPath(path); err != nil {
		return usageErr(fulgur.E(fulgur.KindInvalid, "check the agent", fmt.Sprintf("the program %q of %s can't be run: name one that is on PATH, or a file with its executable bit set", program, key), err))
	}
	return nil
}

// interpreters are programs whose first argument is the program to run.
var interpreters = []string{"python", "python3", "node", "deno", "bun", "sh", "bash", "ruby", "perl"}

// checkScript says whether the file that an interpreter is to run is there.
func checkScript(r *runFile) error {
	c := r.Agent.Command
	if len(c) < 2 || !slices.Contains(interpreters, filepath.Base(c[0])) || filepath.Ext(c[1]) == "" || c[1][0] == '-' || strings.Contains(c[1], "{run}") {
		return nil
	}
	c = inDir(slices.Clone(c), r.Dir)
	if r.Agent.Workspace && !filepath.IsAbs(c[1]) {
		return usageErr(fulgur.E(fulgur.KindInvalid, "check the agent", fmt.Sprintf("agent.command: %q is not in the empty folder that each attempt starts in with agent.workspace: write {dir}/%s, {dir} is the run file's folder", c[1], c[1]), nil))
	}
	if _, err := os.Stat(r.resolve(c[1])); err != nil {
		return usageErr(fulgur.E(fulgur.KindNotFound, "check the agent", fmt.Sprintf("the program %q of agent.command is not in %s, where agents are started", c[1], r.Dir), err))
	}
	return nil
}

package cli

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"github.com/fulgur-rl/fulgur"
	"github.com/fulgur-rl/fulgur/internal/config"
	"github.com/fulgur-rl/fulgur/internal/controller"
	"github.com/fulgur-rl/fulgur/internal/controller/local"
)

// controllerJob is what a controller is made of.
type controllerJob struct {
	file   *runFile
	dir    runDir
	run    fulgur.RunID
	model  string
	url    string // the gateway, as agents reach it
	store  controller.Store
	gate   controller.Gateway
	secret string // the server key: never passed on to an agent
	log    *slog.Logger
	meter  *meter
	holder string // of the controller's lease; "": made up
}

// soleHolder holds the leases of a run whose store is in this process: the
// store's lock lets one process have it open, so that the leases of one that was
// killed need not be waited for.
const soleHolder = "this-process"

// startController starts runner and controller; the function that it returns
// stops them, with every agent, and returns what went wrong.
func (a *app) startController(ctx context.Context, j controllerJob) (func() error, error) {
	f := j.file
	runner, err := newRunner(j)
	if err != nil {
		return nil, err
	}
	a.forced.add(runner.Kill)
	a.agents.Store(true)
	c, err := controller.New(controller.Options{Run: j.run, Holder: j.holder, AgentURL: j.url, Model: j.model, Limits: limits(f.File), Log: j.log}, j.store, j.gate, runner)
	if err != nil {
		return nil, errors.Join(err, runner.Close())
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	var wg sync.WaitGroup
	var failed error
	wg.Go(func() {
		if failed = c.Run(ctx); failed != nil {
			j.log.Error("the controller stopped", "err", failed)
		}
	})
	return func() error {
		cancel()
		wg.Wait()
		err := errors.Join(failed, runner.Close())
		if j.meter != nil {
			j.meter.agents = runner.ChildCPU()
		}
		return err
	}, nil
}

// runner is a runner that tells what its agents cost.
type runner interface {
	controller.Runner
	controller.Meter
	Kill()
}

// newRunner makes the runner that the run file asks for.
func newRunner(j controllerJob) (runner, error) {
	f := j.file
	o := local.Options{
		Command: config.Expand(f.Agent.Command, string(j.dir)), Dir: f.Dir, State: j.dir.attempts(),
		Env: f.Agent.Input.Env, Input: inputMode(f.Agent.Input),
		LogCap: f.Logs.AgentBytes, Keep: keep(f.Retention.Attempts), Logs: keep(f.Retention.Attempts),
		Secrets: append(frozenKeys(f.File), j.secret), Scope: scope(j.dir, j.run), Log: j.log,
	}
	if !f.Agent.Worker {
		return local.New(o)
	}
	o.Workers, o.WorkerStart = limits(f.File).Slots, time.Duration(f.Agent.StartTimeout)
	return local.NewWorkers(o)
}

// keep maps the run file's word to the runner's.
func keep(s string) local.Keep {
	if s == "failed" {
		return local.KeepFailures
	}
	return local.Keep(s)
}

// inputMode maps the run file's ways of giving the input to the runner's.
func inputMode(in config.Input) local.InputMode {
	switch {
	case in.File:
		return local.InputFile
	case in.Stdin:
		return local.InputStdin
	}
	return local.InputEnv
}

// scope names what a runner's processes belong to, the same after a restart.
func scope(d runDir, run fulgur.RunID) string { return string(d) + "#" + string(run) }

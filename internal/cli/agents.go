package cli

import (
	"context"
	"errors"
	"log/slog"
	"sync"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/fulgur-rl/fulgur"
	"github.com/fulgur-rl/fulgur/internal/controller"
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
	holder string                           // of the controller's lease; "": made up
	say    func(format string, args ...any) // for people; startController fills it in

	tell     func(string)          // what people shall see at once; nil: the log is what they see
	leave    bool                  // what runs at the end is left to the next controller, where the runner can
	pool     *controller.Pool      // slots that controllers of other runs share; nil: none do
	registry prometheus.Registerer // gets the controller's metrics; nil: nobody does
}

// soleHolder holds the leases of a run whose store is in this process: the
// store's lock lets one process have it open, so that the leases of one that was
// killed need not be waited for.
const soleHolder = "this-process"

// startController starts runner and controller; the function that it returns
// stops them, with every agent, and returns what went wrong.
func (a *app) startController(ctx context.Context, j controllerJob) (_ func() error, err error) {
	f := j.file
	j.say = a.say
	runner, err := newRunner(ctx, j)
	if err != nil {
		return nil, err
	}
	spare := func() {}
	if k, ok := runner.(interface{ Kill() }); ok {
		spare = a.forced.add(k.Kill)
	}
	shut := func() error { defer spare(); return runner.Close() }
	defer func() {
		if err != nil {
			err = errors.Join(err, shut())
		}
	}()
	a.agents.Store(true)
	if f.Runner.AgentURL != "" {
		j.url = f.Runner.AgentURL
	}
	if p, ok := runner.(controller.Prover); ok {
		if err := p.Prove(ctx, j.url); err != nil {
			return nil, err
		}
	}
	c, err := controller.New(controller.Options{Run: j.run, Holder: j.holder, AgentURL: j.url, Model: j.model, Limits: limits(f.File), Pool: j.pool, Leave: j.leave, Tell: j.tell, Log: j.log}, j.store, j.gate, runner)
	if err != nil {
		return nil, err
	}
	if m, ok := runner.(controller.Meter); ok && j.meter != nil {
		j.meter.children = m.ChildCPU
	}
	metrics := controller.NewCollector(c)
	if j.registry != nil {
		j.registry.MustRegister(metrics)
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
		if j.registry != nil {
			j.registry.Unregister(metrics)
		}
		return errors.Join(failed, shut())
	}, nil
}

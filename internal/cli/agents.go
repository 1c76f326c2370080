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

// agents are the runner and the controller of a run, at work.
type agents struct {
	ctrl *controller.Controller
	over chan struct{} // closed when the controller has ended
	err  error         // why, if it was not stopped; read it when over is closed
	shut func() error
}

// stop stops the controller, with every agent, and returns what went wrong.
func (g *agents) stop() error { return g.shut() }

// within is a context that ends when the controller has failed.
func (g *agents) within(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, done := context.WithCancelCause(ctx)
	go func() {
		select {
		case <-g.over:
			if g.err != nil {
				done(g.err)
			}
		case <-ctx.Done():
		}
	}()
	return ctx, func() { done(nil) }
}

// failed is the controller's error, nil while it works.
func (g *agents) failed() error {
	select {
	case <-g.over:
		return g.err
	default:
		return nil
	}
}

// startController starts runner and controller. It returns when the run is not refused
// at its start any more (controller.Settled).
func (a *app) startController(ctx context.Context, j controllerJob) (_ *agents, err error) {
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
	a.agents.Store(true)
	if f.Runner.AgentURL != "" {
		j.url = f.Runner.AgentURL
	}
	c, err := controller.New(controller.Options{Run: j.run, Holder: j.holder, AgentURL: j.url, Model: j.model, Limits: limits(f.File), Pool: j.pool, Leave: j.leave, Tell: j.tell, Log: j.log}, j.store, j.gate, runner)
	if err != nil {
		return nil, errors.Join(err, shut())
	}
	if m, ok := runner.(controller.Meter); ok && j.meter != nil {
		j.meter.children = m.ChildCPU
	}
	metrics := controller.NewCollector(c)
	if j.registry != nil {
		j.registry.MustRegister(metrics)
	}
	life, cancel := context.WithCancel(context.WithoutCancel(ctx))
	g := &agents{ctrl: c, over: make(chan struct{})}
	g.shut = sync.OnceValue(func() error {
		cancel()
		<-g.over
		if j.registry != nil {
			j.registry.Unregister(metrics)
		}
		return shut()
	})
	go func() {
		defer close(g.over)
		if g.err = c.Run(life); g.err != nil {
			j.log.Error("the controller stopped", "run", j.run, "err", g.err)
		}
	}()
	select {
	case <-c.Settled():
		return g, nil
	case <-g.over:
		err = g.err
	case <-ctx.Done():
		err = context.Cause(ctx)
	}
	return nil, errors.Join(err, g.stop())
}

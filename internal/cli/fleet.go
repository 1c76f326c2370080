package cli

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/cobra"

	"github.com/fulgur-rl/fulgur"
	"github.com/fulgur-rl/fulgur/internal/api/client"
	"github.com/fulgur-rl/fulgur/internal/config"
	"github.com/fulgur-rl/fulgur/internal/controller"
)

const (
	// runsEvery is how often the server is asked for runs.
	runsEvery = 3 * time.Second
	// A run that cannot be run here is tried again after so long, then twice as long
	// each time.
	firstRetry, lastRetry = 5 * time.Second, 5 * time.Minute
)

// fleet is what one `fulgur controller` runs. Its maps are those of the goroutine
// that runs these or all; what takes long (a build, an image, a proof, the end of
// agents) is done beside it, a run by a run, and told over done.
type fleet struct {
	app      *app
	flags    controllerFlags
	store    *client.Client
	log      *slog.Logger
	pool     *controller.Pool
	registry *prometheus.Registry

	runs   map[fulgur.RunID]*tended
	done   chan func()
	busy   int // started or stopped beside the loop
	builds builds
}

// tended is a run that is run here, or tried to.
type tended struct {
	stop   func() error       // its controller's; nil: it does not run
	cancel context.CancelFunc // ends the attempt to start it; nil: none is under way
	ending bool               // its agents are being ended
	fails  int
	again  time.Time // when it is tried again
	told   string    // why it could not be run, as it was said
}

func newFleet(a *app, f controllerFlags, cl *client.Client) *fleet {
	return &fleet{app: a, flags: f, store: cl, log: a.logger(f.logLevel), registry: prometheus.NewRegistry(),
		runs: map[fulgur.RunID]*tended{}, done: make(chan func()), builds: builds{turns: map[string]chan struct{}{}}}
}

// beside runs f beside the loop, and then, in the loop, what f returns.
func (fl *fleet) beside(f func() (then func())) {
	fl.busy++
	go func() { fl.done <- f() }()
}

// finish is what the loop does when something beside it is done.
func (fl *fleet) finish(then func()) {
	fl.busy--
	then()
}

// these runs the agents of run files, until ctx ends or one cannot be run.
func (fl *fleet) these(ctx context.Context, files []*runFile) error {
	for _, r := range files {
		id := fulgur.RunID(r.Run)
		if fl.runs[id] != nil {
			return usageErr(fmt.Errorf("two run files are of the run %s", id))
		}
		fl.runs[id] = &tended{}
	}
	var failed error
	for _, r := range files {
		fl.begin(ctx, fulgur.RunID(r.Run), func() (*runFile, error) { return r, nil }, func(err error) { failed = errors.Join(failed, err) })
	}
	for failed == nil {
		select {
		case <-ctx.Done():
			return nil
		case then := <-fl.done:
			fl.finish(then)
		}
	}
	return failed
}

// all runs the agents of all runs on record, until ctx ends.
func (fl *fleet) all(c *cobra.Command) error {
	ctx := c.Context()
	fl.app.say("running the agents of all runs of %s; Ctrl-C ends them", fl.flags.server)
	tick := time.NewTicker(runsEvery)
	defer tick.Stop()
	for {
		runs, err := fl.store.Runs(ctx)
		if err != nil && ctx.Err() == nil {
			fl.log.Warn("the server's runs could not be read; trying again", "err", err)
		}
		for _, run := range runs {
			fl.tend(c, run)
		}
		for waiting := true; waiting; {
			select {
			case <-ctx.Done():
				return nil
			case then := <-fl.done:
				fl.finish(then)
			case <-tick.C:
				waiting = false
			}
		}
	}
}

// tend does what a run on record needs next.
func (fl *fleet) tend(c *cobra.Command, run fulgur.Run) {
	t := fl.runs[run.ID]
	switch {
	case run.ID == fulgur.DefaultRun && len(run.Config) == 0: // what v1's trainers create their rollouts in
	case run.EndedAt != nil && t != nil:
		fl.end(run.ID, t)
	case run.EndedAt != nil:
	case t == nil || t.stop == nil && t.cancel == nil && !time.Now().Before(t.again):
		fl.begin(c.Context(), run.ID, func() (*runFile, error) { return fl.onRecord(c, run) }, nil)
	}
}

// begin starts a run beside the loop. failed is told of what went wrong; nil: it is
// said, and the run is tried again later.
func (fl *fleet) begin(ctx context.Context, id fulgur.RunID, file func() (*runFile, error), failed func(error)) {
	t := fl.runs[id]
	if t == nil {
		t = &tended{}
		fl.runs[id] = t
	}
	ctx, t.cancel = context.WithCancel(ctx)
	fl.beside(func() func() {
		r, err := file()
		var stop func() error
		if err == nil {
			stop, err = fl.start(ctx, r)
		}
		return func() {
			interrupted := ctx.Err() != nil
			t.cancel()
			t.stop, t.cancel = stop, nil
			switch {
			case err == nil:
				t.fails, t.told = 0, ""
				fl.app.say("running the agents of %s for %s; Ctrl-C ends them", id, fl.flags.server)
			case interrupted:
			case failed != nil:
				failed(err)
			default:
				fl.postpone(id, t, err)
			}
		}
	})
}

// postpone has a run tried again later. Each reason is said once.
func (fl *fleet) postpone(id fulgur.RunID, t *tended, err error) {
	pause := retryAfter(t.fails)
	t.fails++
	t.again = time.Now().Add(pause)
	if text := err.Error(); text != t.told {
		t.told = text
		fl.app.say("warning: the agents of run %s are not run here: %s; trying again in %s, then less and less often", id, text, pause)
	}
}

// retryAfter is the pause after so many failures and one more.
func retryAfter(fails int) time.Duration { return min(lastRetry, firstRetry<<min(fails, 10)) }

// end ends the agents of a run that has ended, beside the loop.
func (fl *fleet) end(id fulgur.RunID, t *tended) {
	switch {
	case t.cancel != nil: // it is being started
		t.cancel()
	case t.stop == nil:
		delete(fl.runs, id)
	case !t.ending:
		t.ending = true
		fl.beside(func() func() {
			err := t.stop()
			return func() {
				if err != nil {
					fl.log.Warn("ending a run's agents", "run", id, "err", err)
				}
				delete(fl.runs, id)
				fl.app.say("run %s has ended", id)
			}
		})
	}
}

// start runs the agents of one run; the function that it returns ends them.
func (fl *fleet) start(ctx context.Context, r *runFile) (func() error, error) {
	if err := checkRunner(ctx, r); err != nil {
		return nil, err
	}
	dir, err := filepath.Abs(filepath.Join(r.Out, r.Run+"-agents"))
	if err != nil {
		return nil, err
	}
	if err := makeDir(dir); err != nil {
		return nil, err
	}
	if err := fl.build(ctx, r, runDir(dir)); err != nil {
		return nil, err
	}
	return fl.app.startController(ctx, controllerJob{
		file: r, dir: runDir(dir), run: fulgur.RunID(r.Run), model: modelName(r.File), url: fl.flags.agentURL,
		store: fl.store, gate: fl.store, secret: fl.flags.key, log: fl.log, leave: true, pool: fl.pool, registry: fl.registry,
	})
}

// build runs agent.build. Runs that share it and its folder take turns.
func (fl *fleet) build(ctx context.Context, r *runFile, dir runDir) error {
	done, err := fl.builds.turn(ctx, r.Dir+"\x00"+strings.Join(r.Agent.Build, "\x00"))
	if err != nil {
		return err
	}
	defer done()
	return fl.app.buildAgent(ctx, r, dir, nil)
}

// builds are turns by what takes them.
type builds struct {
	mu    sync.Mutex
	turns map[string]chan struct{}
}

// turn waits for the turn of key, and returns what ends it.
func (b *builds) turn(ctx context.Context, key string) (done func(), err error) {
	b.mu.Lock()
	c := b.turns[key]
	if c == nil {
		c = make(chan struct{}, 1)
		b.turns[key] = c
	}
	b.mu.Unlock()
	select {
	case c <- struct{}{}:
		return func() { <-c }, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// onRecord is the run file of a run that only the record knows.
func (fl *fleet) onRecord(c *cobra.Command, run fulgur.Run) (*runFile, error) {
	if len(run.Config) == 0 {
		return nil, errors.New("its run file is not on record: a trainer of Agent Lightning v1 made it, or it was never started; name its run file")
	}
	f, _, err := config.Parse(run.Config, "the configuration of run "+string(run.ID), variants())
	if err != nil {
		return nil, err
	}
	dir, err := filepath.Abs(fl.flags.dir)
	if err != nil {
		return nil, err
	}
	if c.Flags().Changed("out") {
		f.Out = fl.flags.file.out
	}
	f.Run = string(run.ID)
	return &runFile{File: f, Dir: dir}, nil
}

// close stops all controllers at once, with their agents, and what is being started.
func (fl *fleet) close() (err error) {
	for _, t := range fl.runs {
		if t.cancel != nil {
			t.cancel()
		}
	}
	for fl.busy > 0 {
		fl.finish(<-fl.done)
	}
	for _, t := range fl.runs {
		if t.stop != nil {
			fl.beside(func() func() {
				e := t.stop()
				return func() { err = errors.Join(err, e) }
			})
		}
	}
	for fl.busy > 0 {
		fl.finish(<-fl.done)
	}
	return err
}

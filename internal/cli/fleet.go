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
	health health
	done   chan func()
	fell   chan fallen
	closed chan struct{} // nobody hears of what fell any more
	busy   int           // started or stopped beside the loop
	builds builds
}

// fallen is a run whose controller has ended by itself.
type fallen struct {
	id     fulgur.RunID
	agents *agents
	failed func(error) // as begin has it
}

// tended is a run that is run here, or tried to.
type tended struct {
	agents *agents            // nil: it does not run
	cancel context.CancelFunc // ends the attempt to start it; nil: none is under way
	ending bool               // its agents are being ended
	began  time.Time
	fails  int
	again  time.Time // when it is tried again
	told   string    // why it could not be run, as it was said
}

func newFleet(a *app, f controllerFlags, cl *client.Client) *fleet {
	return &fleet{app: a, flags: f, store: cl, log: a.logger(f.logLevel), registry: prometheus.NewRegistry(),
		runs: map[fulgur.RunID]*tended{}, done: make(chan func()), fell: make(chan fallen), closed: make(chan struct{}),
		health: health{runs: map[fulgur.RunID]func() string{}}, builds: builds{turns: map[string]chan struct{}{}}}
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
		case f := <-fl.fell:
			fl.fall(f)
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
			case f := <-fl.fell:
				fl.fall(f)
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
	case t == nil || t.agents == nil && t.cancel == nil && !t.ending && !time.Now().Before(t.again):
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
		var g *agents
		if err == nil {
			g, err = fl.start(ctx, r)
		}
		return func() {
			interrupted := ctx.Err() != nil
			t.cancel()
			t.agents, t.cancel = g, nil
			switch {
			case err == nil:
				t.began = time.Now()
				fl.health.set(id, g.ctrl.Trouble)
				go fl.look(fallen{id, g, failed})
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

// look waits for the end of a controller, and tells the loop if nobody has stopped it.
func (fl *fleet) look(f fallen) {
	<-f.agents.over
	if f.agents.err == nil {
		return
	}
	select {
	case fl.fell <- f:
	case <-fl.closed:
	}
}

// fall sees to a run whose controller has ended by itself: as if it had never begun,
// but for the time that it worked.
func (fl *fleet) fall(f fallen) {
	t := fl.runs[f.id]
	if t == nil || t.agents != f.agents || t.ending { // it is ended meanwhile
		return
	}
	t.ending = true
	fl.beside(func() func() {
		err := errors.Join(f.agents.err, f.agents.stop())
		return func() {
			t.agents, t.ending = nil, false
			switch {
			case f.failed != nil:
				f.failed(err)
			default:
				if time.Since(t.began) > lastRetry {
					t.fails, t.told = 0, ""
				}
				fl.postpone(f.id, t, err)
			}
		}
	})
}

// postpone has a run tried again later. Each reason is said once.
func (fl *fleet) postpone(id fulgur.RunID, t *tended, err error) {
	pause := retryAfter(t.fails)
	t.fails++
	t.again = time.Now().Add(pause)
	text := err.Error()
	fl.health.set(id, func() string { return text })
	if text != t.told {
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
	case t.agents == nil && !t.ending:
		fl.drop(id)
	case !t.ending:
		t.ending = true
		fl.beside(func() func() {
			err := errors.Join(t.agents.stop(), t.agents.failed())
			return func() {
				if err != nil {
					fl.log.Warn("ending a run's agents", "run", id, "err", err)
				}
				fl.drop(id)
				fl.app.say("run %s has ended", id)
			}
		})
	}
}

func (fl *fleet) drop(id fulgur.RunID) {
	delete(fl.runs, id)
	fl.health.set(id, nil)
}

// start runs the agents of one run.
func (fl *fleet) start(ctx context.Context, r *runFile) (*agents, error) {
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
	close(fl.closed)
	for _, t := range fl.runs {
		if t.cancel != nil {
			t.cancel()
		}
	}
	for fl.busy > 0 {
		fl.finish(<-fl.done)
	}
	for _, t := range fl.runs {
		if g := t.agents; g != nil {
			fl.beside(func() func() {
				e := errors.Join(g.stop(), g.failed())
				return func() { err = errors.Join(err, e) }
			})
		}
	}
	for fl.busy > 0 {
		fl.finish(<-fl.done)
	}
	return err
}

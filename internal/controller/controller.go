package controller

import (
	"context"
	"crypto/rand"
	"fmt"
	"log/slog"
	"net/url"
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/fulgur-rl/fulgur"
	"github.com/fulgur-rl/fulgur/internal/controller/plan"
)

// What the controller needs of the store (or of api/client), by purpose.
type (
	// Rollouts reads what is wanted.
	Rollouts interface {
		Rollout(ctx context.Context, id fulgur.RolloutID) (fulgur.Rollout, error)
		Rollouts(ctx context.Context, q fulgur.RolloutQuery) ([]fulgur.Rollout, error)
	}
	// Attempts opens and reports.
	Attempts interface {
		OpenAttempt(ctx context.Context, id fulgur.RolloutID) (fulgur.OpenedAttempt, error)
		OpenAttempts(ctx context.Context, ids []fulgur.RolloutID) ([]fulgur.OpenedAttempt, error)
		ReportAttempt(ctx context.Context, id fulgur.RolloutID, attempt fulgur.AttemptID, r fulgur.AttemptReport) (fulgur.Rollout, error)
		ReportAttempts(ctx context.Context, rs []fulgur.Report) error
		Attempts(ctx context.Context, id fulgur.RolloutID) ([]fulgur.Attempt, error)
	}
	// Records reads what an attempt has done.
	Records interface {
		Calls(ctx context.Context, id fulgur.RolloutID, attempt fulgur.AttemptID) ([]fulgur.Call, error)
		Events(ctx context.Context, id fulgur.RolloutID, attempt fulgur.AttemptID) ([]fulgur.Event, error)
	}
	// Watch tells that something changed.
	Watch interface {
		Head(ctx context.Context) (fulgur.Seq, error)
		Changes(ctx context.Context, run fulgur.RunID, after fulgur.Seq) ([]fulgur.Change, error)
	}
	// Leases let one controller lead.
	Leases interface {
		AcquireLease(ctx context.Context, run fulgur.RunID, name, holder string, ttl time.Duration) (fulgur.Lease, error)
		ReleaseLease(ctx context.Context, run fulgur.RunID, name, holder string) error
		Lease(ctx context.Context, run fulgur.RunID, name string) (fulgur.Lease, error)
	}
	// Store is all of them.
	Store interface {
		Rollouts
		Attempts
		Records
		Watch
		Leases
	}
	// Gateway tells what an attempt's calls do; its clocks are read against it.
	Gateway interface {
		Activity(ctx context.Context, id fulgur.RolloutID, attempt fulgur.AttemptID) (fulgur.Activity, error)
		Activities(ctx context.Context, keys []fulgur.AttemptKey) ([]fulgur.Activity, error)
	}
)

// LeaseName is the name of the lease that the leading controller of a run holds.
const LeaseName = "controller"

// Options configure a Controller.
type Options struct {
	Run      fulgur.RunID
	AgentURL string        // the gateway's base address as agents reach it
	Model    string        // OPENAI_MODEL; "": not set
	Holder   string        // unique per process; "": made up
	Limits   plan.Limits   // Slots at least 1
	Pool     *Pool         // slots that it shares with controllers of other runs; nil: it has Limits.Slots
	LeaseTTL time.Duration // 0: 5 s
	Grace    time.Duration // how long Run waits at its end for reports to be taken; 0: 10 s
	// RunWindow is how long the report that an agent runs waits for the agent to
	// have ended: then the report of its end says both. What is lost if this
	// process dies meanwhile is found by its calls and its mark (recover, Adopt),
	// and its attempt is begun anew. 0: 2 s; negative: it is told at once.
	RunWindow time.Duration
	// Leave: what runs when Run ends is left to the next controller, where the
	// runner can (Leaver). It always is to one that took the lease over.
	Leave bool
	// Orphaned is how long a run's trainer may be gone, after it had the run's
	// lease, until its agents are ended and no more are started. 0: a minute.
	Orphaned time.Duration
	Tell     func(text string) // what people shall see at once, beside the log; nil: the log has it
	Log      *slog.Logger      // nil: nothing is logged
}

// Controller runs the agents of one run. Several may exist; the one that holds
// the run's lease works, the others stand by.
type Controller struct {
	o      Options
	store  Store
	gate   Gateway
	runner Runner
	log    *slog.Logger
	stats  stats

	proof   proof
	proving sync.WaitGroup // the proof, which may outlast a lead
	settled chan struct{}
	settles sync.Once
	trouble string // guarded by proof.mu

	inbox chan func() // what the loop's goroutine does next; it alone touches the fields below
	wg    sync.WaitGroup
	mute  atomic.Bool // the lease is lost: report nothing more
	ends  ends

	queue    *plan.Queue
	slots    []*execution                    // hold a slot; oldest first
	byID     map[fulgur.RolloutID]*execution // with those that are only being reported
	openings map[fulgur.RolloutID]*opening   // of what has not started yet
	starts   []time.Time                     // of late
	pace     plan.Pace
	seat     *seat // in the pool; nil: there is none
	orphaned bool  // the run's trainer is gone

	waits     string // why agents wait for room, as it was told; "": none does
	waitsTold time.Time
}

// New checks the options and makes a controller. gate may be nil: then no call
// stops a clock and none is counted before the record is read.
func New(o Options, s Store, gate Gateway, r Runner) (*Controller, error) {
	bad := func(msg string) error { return fulgur.E(fulgur.KindInvalid, "set up the controller", msg, nil) }
	switch u, err := url.Parse(o.AgentURL); {
	case err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https":
		return nil, bad(fmt.Sprintf("the address for agents, %q, is no http or https URL", o.AgentURL))
	case o.Limits.Slots < 1:
		return nil, bad("runner.slots must be at least 1")
	case o.Run == "":
		return nil, bad("no run is named")
	}
	if o.Holder == "" {
		host, _ := os.Hostname()
		o.Holder = fmt.Sprintf("%s/%d/%s", host, os.Getpid(), rand.Text()[:8])
	}
	if o.Limits.Starting == 0 {
		o.Limits.Starting = max(4, 2*runtime.GOMAXPROCS(0))
	}
	if o.Limits.Backoff == 0 {
		o.Limits.Backoff = 500 * time.Millisecond
	}
	if o.RunWindow == 0 {
		o.RunWindow = 2 * time.Second
	}
	if o.LeaseTTL == 0 {
		o.LeaseTTL = 5 * time.Second
	}
	if o.Orphaned == 0 {
		o.Orphaned = time.Minute
	}
	if o.Grace == 0 {
		o.Grace = 10 * time.Second
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	c := &Controller{o: o, store: s, gate: gate, runner: r, log: o.Log, settled: make(chan struct{})}
	c.proof.news = make(chan struct{}, 1)
	if _, ok := r.(Prover); ok {
		c.proof.closed = "what agents reach is being tried"
	}
	if g, w := c.grader(); g != nil && w == nil {
		return nil, fulgur.E(fulgur.KindUnsupported, "set up the controller", "a program grades what agents leave (reward.command), and this store takes no rewards", nil)
	}
	return c, nil
}

// Stats returns what the controller has done so far, and does now.
func (c *Controller) Stats() Stats { return c.stats.snapshot() }

// Run works until ctx ends; then it stops what it started, reports that, and
// returns nil. It does not close the runner. What may pass, as a cluster that does not
// answer, it waits out. An error says that it cannot go on: agents reach what they
// should not, or no gateway (what runs is left to another controller, where the runner
// can); the runner's channel was closed, or it may not do what it has to; or the record
// is not readable at all.
func (c *Controller) Run(ctx context.Context) error {
	ctx, over := context.WithCancel(ctx)
	defer c.proving.Wait()
	defer over()
	told, pause := false, firstLead
	for ctx.Err() == nil {
		lease, err := c.store.AcquireLease(ctx, c.o.Run, LeaseName, c.o.Holder, c.o.LeaseTTL)
		switch {
		case err == nil:
			told = false
			err := c.lead(ctx)
			_, refused := c.proof.look()
			switch {
			case err == nil:
				pause = firstLead
			case refused != nil || !passes(err):
				return err
			default:
				if c.troubled(err.Error()) {
					c.tell(fmt.Sprintf("the agents of run %s are not run now: %s; trying again", c.o.Run, err))
				}
				Pause(ctx, pause)
				pause = min(2*pause, lastLead)
			}
		case fulgur.KindOf(err) == fulgur.KindConflict:
			if !told {
				c.log.Info("another controller leads this run; standing by", "run", c.o.Run, "holder", lease.Holder)
				told = true
			}
			c.decide()
			c.troubled("")
			Pause(ctx, c.o.LeaseTTL/5)
		case ctx.Err() != nil:
		case fulgur.KindOf(err) == fulgur.KindNotFound:
			if !told {
				c.log.Info("the run is not there yet; waiting for its trainer to create it", "run", c.o.Run)
				told = true
			}
			c.prove(ctx) // nothing is to be taken over
			if _, refused := c.proof.look(); refused != nil {
				return refused
			}
			Pause(ctx, c.o.LeaseTTL/20)
		case transient(err):
			c.log.Warn("the store does not answer; trying again", "err", err)
			Pause(ctx, time.Second)
		default:
			return fmt.Errorf("taking the lease of the controller: %w", err)
		}
	}
	return nil
}

// lead works while ctx lasts and the lease is held. Its order of start: what an
// earlier leader left, the watch, the loop; of stop: the watch, the executions,
// their reports, the lease.
func (c *Controller) lead(ctx context.Context) error {
	leading, lost := context.WithCancelCause(ctx)
	defer lost(nil)
	// What is decided is still reported after ctx has ended, within the grace.
	reporting, cut := context.WithCancel(context.WithoutCancel(ctx))
	defer cut()

	c.inbox = make(chan func(), 256)
	c.queue, c.slots, c.byID = plan.NewQueue(), nil, map[fulgur.RolloutID]*execution{}
	c.openings, c.starts = map[fulgur.RolloutID]*opening{}, nil
	c.pace, c.orphaned, c.waits = plan.Pace{PerMinute: c.o.Limits.Rate}, false, ""
	c.mute.Store(false)
	c.ends.setIdle(true)
	c.seat = c.o.Pool.join()
	defer c.seat.leave()

	var side sync.WaitGroup
	side.Go(func() { c.renew(leading, lost) })
	err := c.recover(leading, reporting)
	if err == nil {
		if c.troubled("") {
			c.tell(fmt.Sprintf("the agents of run %s are run again", c.o.Run))
		}
		if len(c.slots) > 0 {
			c.decide()
		}
		c.prove(ctx)
		w := &watcher{c: c}
		side.Go(func() { w.run(leading) })
		side.Go(func() { c.watchTrainer(leading) })
		err = c.loop(leading, reporting)
	}
	lost(nil)
	if context.Cause(leading) == errLeaseLost {
		c.mute.Store(true)
	}
	c.wind(cut)
	side.Wait()
	c.stats.gauges(0, 0, 0, 0)
	if c.mute.Load() {
		c.log.Warn("another controller took over this run; its executions here were ended", "run", c.o.Run)
	} else {
		release, done := context.WithTimeout(context.WithoutCancel(ctx), 2*time.Second)
		defer done()
		_ = c.store.ReleaseLease(release, c.o.Run, LeaseName, c.o.Holder) // it ends by itself otherwise
	}
	if ctx.Err() != nil || c.mute.Load() {
		return nil
	}
	return err
}

var errLeaseLost = fmt.Errorf("the lease is lost")

// renew holds the lease until somebody else has it. A store that does not
// answer gives it to nobody else: the agents go on.
func (c *Controller) renew(ctx context.Context, lost context.CancelCauseFunc) {
	for Pause(ctx, c.o.LeaseTTL/3) {
		_, err := c.store.AcquireLease(ctx, c.o.Run, LeaseName, c.o.Holder, c.o.LeaseTTL)
		switch {
		case err == nil:
		case fulgur.KindOf(err) == fulgur.KindConflict:
			lost(errLeaseLost)
			return
		default:
			c.log.Warn("renewing the controller's lease failed", "err", err)
		}
	}
}

// loop is the one goroutine that owns the state: it asks the plan what to do,
// does it, and sleeps until something happened.
func (c *Controller) loop(ctx, reporting context.Context) error {
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		if _, err := c.proof.look(); err != nil {
			return err
		}
		now := time.Now()
		actions, wake := plan.Next(c.world(now))
		actions = c.granted(actions, now)
		c.openFor(ctx, actions, now)
		c.showClosed(ctx, reporting, now)
		for _, a := range actions {
			c.apply(ctx, reporting, a)
		}
		c.gauges()
		sleep := time.Hour
		if !wake.IsZero() {
			sleep = max(time.Until(wake), 0)
		}
		timer.Reset(sleep)
		select {
		case <-ctx.Done():
			return nil
		case <-timer.C:
		case f := <-c.inbox:
			f()
		case <-c.seat.wake():
		case <-c.proof.news:
		case ev, ok := <-c.runner.Events():
			if !ok {
				return fulgur.E(fulgur.KindInternal, "run the controller", "its runner was closed while it worked", nil)
			}
			c.heard(ev)
		}
		c.drain()
	}
}

// granted drops the starts that the pool has no slots for; it says when it has.
func (c *Controller) granted(actions []plan.Action, now time.Time) []plan.Action {
	starts := 0
	for _, a := range actions {
		if a.Kind == plan.Start {
			starts++
		}
	}
	if less := starts - c.seat.take(starts); less > 0 {
		actions = actions[:len(actions)-less] // starts are the last
		starts -= less
	}
	c.pace.Took(now, starts)
	return actions
}

// drain takes what else has happened already, so that it is planned for once.
func (c *Controller) drain() {
	for range 64 {
		select {
		case f := <-c.inbox:
			f()
		case ev, ok := <-c.runner.Events():
			if !ok {
				return
			}
			c.heard(ev)
		default:
			return
		}
	}
}

// wind stops what runs and waits until it has ended and is reported.
func (c *Controller) wind(cut context.CancelFunc) {
	_, refused := c.proof.look()
	if l, ok := c.runner.(Leaver); ok && (c.o.Leave || c.mute.Load() || refused != nil) {
		l.Leave()
		cut()
		for _, e := range c.byID {
			e.abandon()
		}
	} else {
		for _, e := range c.slots {
			if !e.Stopping {
				c.stop(e, plan.ReasonShutdown)
			}
		}
	}
	done := make(chan struct{})
	go func() { c.wg.Wait(); close(done) }()
	limit := time.NewTimer(c.o.Grace)
	defer limit.Stop()
	events := c.runner.Events()
	for {
		select {
		case <-done:
			return
		case <-limit.C:
			// The record does not answer. The next leader finds these attempts
			// unended, and their processes dead.
			cut()
			for _, e := range c.byID {
				e.abandon()
			}
		case f := <-c.inbox:
			f()
		case ev, ok := <-events:
			if !ok {
				events = nil
				continue
			}
			c.heard(ev)
		}
	}
}

// world is what the plan looks at.
func (c *Controller) world(now time.Time) plan.World {
	closed, _ := c.proof.look()
	w := plan.World{Now: now, Limits: c.o.Limits, Pace: c.pace, Orphaned: c.orphaned, Closed: closed, Queue: c.queue, Executions: make([]plan.Execution, len(c.slots))}
	for i, e := range c.slots {
		w.Executions[i] = e.Execution
	}
	return w
}

func (c *Controller) apply(ctx, reporting context.Context, a plan.Action) {
	switch a.Kind {
	case plan.Start:
		c.queue.Remove(a.Item.ID)
		e := newExecution(a.Item, plan.Key{Rollout: a.Item.ID}, fulgur.PhaseWaiting)
		c.add(e)
		o := c.openings[a.Item.ID]
		delete(c.openings, a.Item.ID)
		c.wg.Go(func() { c.execute(ctx, reporting, e, o) })
	case plan.Stop:
		if e := c.byID[a.Key.Rollout]; e != nil {
			c.stop(e, a.Reason)
		}
	case plan.Observe:
		if e := c.byID[a.Key.Rollout]; e != nil && !e.observing {
			e.observing = true
			key, before := e.Key, e.Seen
			c.wg.Go(func() { c.observe(ctx, e, key, before) })
		}
	}
}

// post hands f to the loop's goroutine.
func (c *Controller) post(f func()) { c.inbox <- f }

// Pause waits for d, and says whether ctx still lasts.
func Pause(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-t.C:
		return true
	}
}

// transient says whether asking the store again may help.
func transient(err error) bool {
	switch fulgur.KindOf(err) {
	case fulgur.KindInternal, fulgur.KindUnavailable, fulgur.KindUpstream, fulgur.KindTimeout, fulgur.KindExhausted:
		return true
	}
	return false
}

// persist asks the store until it answers, or refuses, or ctx ends.
func (c *Controller) persist(ctx context.Context, what string, f func() error) error {
	for wait := 50 * time.Millisecond; ; wait = min(2*wait, 2*time.Second) {
		err := f()
		if err == nil || !transient(err) {
			return err
		}
		c.log.Warn("the store does not take it; trying again", "what", what, "err", err)
		if !Pause(ctx, wait) {
			return err
		}
	}
}

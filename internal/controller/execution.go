package controller

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/fulgur-rl/fulgur"
	"github.com/fulgur-rl/fulgur/internal/controller/plan"
)

// execution is one attempt on its way. Its fields belong to the loop; the
// attempt's own goroutine (execute) hears through the channels alone.
type execution struct {
	plan.Execution
	item      plan.Item
	stopped   string      // the first reason for which it was stopped
	halt      chan string // that reason; at most one
	why       string      // it waits for room: what for
	whyTold   time.Time
	handle    string // if the runner has told one since its start
	observing bool
	exited    bool

	running chan string               // handle; at most one
	stood   chan fulgur.AttemptReport // where it stands before it runs; at most one, the newest
	ended   chan ended                // exactly one, unless abandoned
	gone    chan struct{}
	once    sync.Once
}

// ended is what the loop tells an attempt's goroutine of its exit.
type ended struct {
	exit    plan.Exit
	stopped string
	limit   time.Duration
	since   time.Time // when it entered its last phase; zero: it never started
	handle  string    // "": as on record
	known   *known    // what was asked of the gateway before it was graded; nil: nothing
}

func newExecution(it plan.Item, key plan.Key, phase fulgur.Phase) *execution {
	e := &execution{item: it, halt: make(chan string, 1), running: make(chan string, 1), stood: make(chan fulgur.AttemptReport, 1), ended: make(chan ended, 1), gone: make(chan struct{})}
	e.Key, e.Phase, e.Since = key, phase, time.Now()
	if it.Rollout != nil {
		e.Timeout = it.Rollout.Timeout
	}
	return e
}

// abandon gives up on hearing of its exit.
func (e *execution) abandon() { e.once.Do(func() { close(e.gone) }) }

func (c *Controller) add(e *execution) {
	c.slots = append(c.slots, e)
	c.ends.setIdle(false)
	c.byID[e.Key.Rollout] = e
}

// free gives the execution's slot back.
func (c *Controller) free(e *execution) {
	if i := slices.Index(c.slots, e); i >= 0 {
		c.slots = slices.Delete(c.slots, i, i+1)
		c.seat.free()
	}
	c.ends.setIdle(len(c.slots) == 0)
}

// stop ends an execution. One that is not started yet is ended when it is.
func (c *Controller) stop(e *execution, reason string) {
	e.Stopping = true
	if e.stopped == "" {
		e.stopped = reason
		e.halt <- reason
		c.log.Info("ending an execution", "rollout", e.Key.Rollout, "attempt", e.Key.Attempt, "reason", reason)
	}
	if e.Phase != fulgur.PhaseWaiting {
		if err := c.runner.Stop(context.Background(), e.Key); err != nil {
			c.log.Error("an execution could not be ended", "rollout", e.Key.Rollout, "err", err)
		}
	}
}

// heard takes an event of the runner.
func (c *Controller) heard(ev Event) {
	e := c.byID[ev.Key.Rollout]
	if e == nil || e.exited {
		return
	}
	if ev.Handle != "" {
		e.handle = ev.Handle
	}
	if ev.Exit == nil && (ev.Phase == fulgur.PhaseWaiting || ev.Phase == fulgur.PhaseStarting) {
		c.stands(e, ev)
		return
	}
	if ev.Exit == nil {
		e.Waits = false
		if e.Phase != fulgur.PhaseRunning {
			c.runs(e)
		}
		select {
		case e.running <- ev.Handle:
		default:
		}
		return
	}
	e.exited = true
	c.free(e)
	e.ended <- ended{*ev.Exit, e.stopped, c.limitOf(e), e.Since, e.handle, nil}
}

// stands notes that an execution waits for room, or does so no more, or what its start
// waits for.
func (c *Controller) stands(e *execution, ev Event) {
	if e.Phase == fulgur.PhaseRunning {
		return
	}
	waited, now := e.Waits, time.Now()
	report := fulgur.AttemptReport{Phase: ev.Phase, Handle: ev.Handle}
	if e.Waits = ev.Phase == fulgur.PhaseWaiting; !e.Waits {
		if waited || ev.Why == "" {
			e.why, e.Since = "", now
		}
		if report.Why = ev.Why; waited || ev.Handle+ev.Why != "" {
			e.stands(report)
		}
		return
	}
	report.Why = cmp.Or(ev.Why, "the runner does not say what for")
	if report.Why != e.why {
		c.log.Debug("an agent waits for room", "rollout", ev.Key.Rollout, "attempt", ev.Key.Attempt, "why", ev.Why)
	}
	e.why = report.Why
	// What a quota has left changes often: that it waits is worth a write, its words are not.
	if !waited || ev.Handle != "" || now.Sub(e.whyTold) > waitsEvery {
		e.whyTold = now
		e.stands(report)
	}
}

// stands has its goroutine report where it stands. What it has not come to yet is
// replaced: nobody asks where an attempt stood a moment ago.
func (e *execution) stands(r fulgur.AttemptReport) {
	select {
	case old := <-e.stood:
		r.Handle = cmp.Or(r.Handle, old.Handle)
	default:
	}
	e.stood <- r // the loop alone sends
}

// runs notes that the agent runs now: its clocks begin.
func (c *Controller) runs(e *execution) {
	e.Phase, e.Since = fulgur.PhaseRunning, time.Now()
	if !e.item.Created.IsZero() && e.Key.Attempt == "0" {
		c.stats.started(e.Since.Sub(e.item.Created))
	} else {
		c.stats.started(-1)
	}
}

// limitOf is the clock that a stop's reason names.
func (c *Controller) limitOf(e *execution) time.Duration {
	switch {
	case e.stopped == plan.ReasonIdle:
		return c.o.Limits.Idle
	case e.stopped == plan.ReasonStartTimeout:
		return c.o.Limits.Start
	case e.Timeout > 0:
		return e.Timeout
	}
	return c.o.Limits.Total
}

// execute sees one attempt from its opening to its report. It is the attempt's
// own goroutine, so its reports keep their order.
func (c *Controller) execute(ctx, reporting context.Context, e *execution, o *opening) {
	id := e.item.ID
	var rollout fulgur.Rollout
	if e.item.Rollout != nil {
		rollout = *e.item.Rollout
	}
	var opened fulgur.OpenedAttempt
	err := c.persist(ctx, "opening an attempt", func() (err error) {
		if e.item.Rollout == nil {
			if rollout, err = c.store.Rollout(ctx, id); err != nil {
				return err
			}
		}
		opened, err = c.opened(ctx, o, id)
		return err
	})
	if err != nil {
		if ctx.Err() == nil {
			// Ended, deleted, or run by somebody else since it was listed.
			c.log.Info("a rollout was not started", "rollout", id, "err", err)
		}
		c.post(func() { c.free(e); delete(c.byID, id) })
		return
	}
	key := plan.Key{Rollout: id, Attempt: opened.ID}
	x := Execution{
		Key:      key,
		Env:      AgentEnv(c.o.AgentURL, c.o.Model, rollout, opened),
		EnvMap:   v1EnvMap(rollout.Config),
		Template: v1JobTemplate(rollout.Config),
		Input:    Withhold(rollout.Input, rollout.Withhold),
		Timeout:  rollout.Timeout,
		Secrets:  []string{opened.Credential},
	}
	if x.Timeout == 0 {
		x.Timeout = c.o.Limits.Total
	}
	started, stopped, err := c.start(ctx, reporting, e, x)
	if err != nil {
		c.post(func() { e.Key, e.exited = key, true; c.free(e) })
		c.finish(reporting, e, key, ended{exit: startFailure(err), stopped: stopped}, opened.Credential, nil)
		return
	}
	began := time.Now()
	c.post(func() { c.begun(e, key, rollout.Timeout, started) })
	report := fulgur.AttemptReport{Phase: fulgur.PhaseStarting, Runner: c.runner.Name(), Holder: c.o.Holder, Handle: started.Handle}
	if started.Running {
		report.Phase, report.StartedAt = fulgur.PhaseRunning, &began
		c.await(reporting, e, key, opened.Credential, &report)
		return
	}
	c.report(reporting, key, report)
	c.await(reporting, e, key, opened.Credential, nil)
}

// begun notes that the execution exists.
func (c *Controller) begun(e *execution, key plan.Key, timeout time.Duration, s Started) {
	e.Key, e.Timeout = key, timeout
	if s.Running {
		c.runs(e)
	}
	if e.exited {
		return
	}
	if e.Phase == fulgur.PhaseWaiting {
		e.Phase = fulgur.PhaseStarting // since the start's begin
	}
	if e.Stopping { // wanted no more while it was being started
		c.stop(e, e.stopped)
	}
}

// await waits for the exit of an execution, has it graded and reports it. late, if not nil, is
// the report that it runs, which is made only if it does so for long enough.
func (c *Controller) await(ctx context.Context, e *execution, key plan.Key, secret string, late *fulgur.AttemptReport) {
	var due <-chan time.Time
	if late != nil {
		t := time.NewTimer(c.o.RunWindow)
		defer t.Stop()
		due = t.C
	}
	for {
		select {
		case handle := <-e.running:
			c.report(ctx, key, fulgur.AttemptReport{Phase: fulgur.PhaseRunning, Runner: c.runner.Name(), Holder: c.o.Holder, Handle: handle})
			late, due = nil, nil
		case r := <-e.stood:
			c.report(ctx, key, r)
		case <-due:
			c.report(ctx, key, *late)
			late, due = nil, nil
		case end := <-e.ended:
			c.finish(ctx, e, key, c.grade(ctx, key, end), secret, late)
			return
		case <-e.gone:
			return
		}
	}
}

// finish hands an exit over to be judged and reported.
func (c *Controller) finish(ctx context.Context, e *execution, key plan.Key, end ended, secret string, late *fulgur.AttemptReport) {
	f := &finishing{e: e, key: key, since: end.since, known: end.known, facts: plan.Facts{Exit: end.exit, Stopped: end.stopped, Limit: end.limit, Limits: c.o.Limits}}
	if secret != "" {
		f.facts.Exit.Tail = strings.ReplaceAll(f.facts.Exit.Tail, secret, "[credential]")
		f.facts.Exit.Message = strings.ReplaceAll(f.facts.Exit.Message, secret, "[credential]")
		f.facts.Exit.Note = strings.ReplaceAll(f.facts.Exit.Note, secret, "[credential]")
		f.facts.Exit.Graded = redacted(f.facts.Exit.Graded, secret)
	}
	if late != nil {
		f.report = *late
	}
	if end.handle != "" {
		f.report.Handle = end.handle
	}
	c.enlist(ctx, f)
}

// redacted blots a credential out of what an agent's files may have printed or be named.
func redacted(g *fulgur.Graded, secret string) *fulgur.Graded {
	if g == nil {
		return nil
	}
	blot := func(s string) string { return strings.ReplaceAll(s, secret, "[credential]") }
	out := &fulgur.Graded{Log: blot(g.Log)}
	for _, f := range g.Flags {
		out.Flags = append(out.Flags, blot(f))
	}
	if g.Tests != nil {
		tests := *g.Tests
		tests.Output = blot(tests.Output)
		out.Tests = &tests
	}
	return out
}

// report writes a phase. A refusal means that the rollout moved on without us.
func (c *Controller) report(ctx context.Context, key plan.Key, r fulgur.AttemptReport) {
	if c.mute.Load() {
		return
	}
	err := c.persist(ctx, "reporting an attempt", func() error {
		_, err := c.store.ReportAttempt(ctx, key.Rollout, key.Attempt, r)
		return err
	})
	if err != nil && ctx.Err() == nil {
		c.log.Info("a report was not taken", "rollout", key.Rollout, "attempt", key.Attempt, "phase", r.Phase, "err", err)
	}
}

// calls counts an attempt's model calls, and says how the last one failed if
// the model server or the gateway was what failed it, or if it did not fit the
// context. The gateway knows; the record is read where it has forgotten, as after a
// restart.
func (c *Controller) calls(ctx context.Context, key plan.Key, a fulgur.Activity) (n int, upstream, overflow string) {
	if a.Calls > 0 || a.Upstream != "" {
		return a.Calls, a.Upstream, a.Overflow
	}
	all, err := c.store.Calls(ctx, key.Rollout, key.Attempt)
	if err != nil {
		return a.Calls, "", ""
	}
	if len(all) == 0 {
		return 0, "", ""
	}
	switch last := all[len(all)-1]; {
	case last.HTTPStatus >= 500:
		upstream = cmp.Or(last.Error, fmt.Sprintf("it was answered with status %d", last.HTTPStatus))
	case slices.Contains(last.Untrainable, fulgur.UntrainableContext):
		overflow = cmp.Or(last.Error, "it did not fit")
	}
	return len(all), upstream, overflow
}

// observe looks at an attempt whose clock seems to have run out.
func (c *Controller) observe(ctx context.Context, e *execution, key plan.Key, before plan.Seen) {
	seen := plan.Seen{At: time.Now(), Held: before.Held, Last: before.Last}
	err := func() error {
		if c.gate != nil {
			a, err := c.gate.Activity(ctx, key.Rollout, key.Attempt)
			if err != nil {
				return err
			}
			seen.Busy = a.InFlight > 0 || a.Held > before.Held
			seen.Held = max(seen.Held, a.Held)
			seen.Last = a.LastEnd
		}
		events, err := c.store.Events(ctx, key.Rollout, key.Attempt)
		if err != nil {
			return err
		}
		for _, ev := range events {
			if ev.At.After(seen.Last) {
				seen.Last = ev.At
			}
		}
		return nil
	}()
	if err != nil {
		// Nothing is ended on a guess: the gateway may be what is late.
		c.log.Warn("an attempt's activity is not known; its clocks wait", "rollout", key.Rollout, "err", err)
		Pause(ctx, time.Second)
		c.post(func() { e.observing = false })
		return
	}
	c.post(func() { e.observing, e.Seen = false, seen })
}

// startFailure is the exit of an execution that never was.
func startFailure(err error) plan.Exit {
	x := plan.Exit{Code: -1, Failure: plan.ReasonSpawn, Cause: plan.CausePermanent, Message: "the agent could not be started: " + err.Error()}
	switch fulgur.KindOf(err) {
	case fulgur.KindExhausted, fulgur.KindUnavailable, fulgur.KindTimeout, fulgur.KindCanceled:
		x.Cause = plan.CauseTransient
	case fulgur.KindInvalid, fulgur.KindTooLarge:
		x.Failure, x.Message = plan.ReasonInput, err.Error()
	}
	return x
}

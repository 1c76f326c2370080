package controller

import (
	"context"
	"fmt"
	"time"

	"github.com/fulgur-rl/fulgur"
	"github.com/fulgur-rl/fulgur/internal/controller/plan"
)

const (
	page = 500 // rollouts a listing
	// settle is the least time between two reads of the watch: changes come in
	// bursts, most of them the controller's own, and a start waits at most this long.
	settle = 5 * time.Millisecond
	// keepInput is the largest input that waits in memory; larger ones are read
	// again when they start, so that 10,000 queued rollouts stay small.
	keepInput = 2 << 10
)

// watcher reads the record's changes and tells the loop what they mean.
type watcher struct {
	c     *Controller
	last  fulgur.RolloutID // the last queued rollout listed
	after fulgur.Seq
}

func (w *watcher) run(ctx context.Context) {
	synced := false
	wait := 100 * time.Millisecond
	for ctx.Err() == nil {
		err := func() error {
			if !synced {
				return w.sync(ctx)
			}
			return w.step(ctx)
		}()
		synced = err == nil
		if err == nil {
			wait = 100 * time.Millisecond
			continue
		}
		if ctx.Err() == nil && fulgur.KindOf(err) == fulgur.KindNotFound && wait == 100*time.Millisecond {
			wait *= 2
			continue // the last rollout listed was deleted: list from the start, at once
		}
		if ctx.Err() == nil {
			w.c.log.Warn("watching the record failed; listing it again", "err", err)
		}
		Pause(ctx, wait)
		wait = min(2*wait, 5*time.Second)
	}
}

// sync lists everything: the start, and the way back after a lost watch.
func (w *watcher) sync(ctx context.Context) error {
	head, err := w.c.store.Head(ctx)
	if err != nil {
		return fmt.Errorf("reading the head of the record: %w", err)
	}
	w.after, w.last = head, ""
	live := map[fulgur.RolloutID]bool{}
	// Queued first: what starts between the two listings is then in one of them.
	if err := w.queued(ctx, live); err != nil {
		return err
	}
	if err := w.c.list(ctx, "", []fulgur.RolloutState{fulgur.Running}, func(r fulgur.Rollout) { live[r.ID] = true }); err != nil {
		return err
	}
	w.c.send(ctx, func() { w.c.keepOnly(live) })
	return nil
}

// step waits for changes and passes them on.
func (w *watcher) step(ctx context.Context) error {
	changes, err := w.c.store.Changes(ctx, w.c.o.Run, w.after)
	if err != nil {
		return fmt.Errorf("reading changes: %w", err)
	}
	more := false
	var over []fulgur.Change
	for _, ch := range changes {
		w.after = max(w.after, ch.Seq)
		switch {
		case ch.Kind == fulgur.ChangeRun:
		case ch.State == fulgur.Queuing:
			more = true
		case ch.State.Terminal():
			over = append(over, ch)
		}
	}
	if more {
		if err := w.queued(ctx, nil); err != nil {
			return err
		}
	}
	if len(over) > 0 {
		w.c.send(ctx, func() {
			for _, ch := range over {
				w.c.unwanted(ch.Rollout)
			}
		})
	}
	Pause(ctx, settle)
	return nil
}

// queued lists the queued rollouts behind the last one, and lets them wait.
func (w *watcher) queued(ctx context.Context, live map[fulgur.RolloutID]bool) error {
	var items []plan.Item
	err := w.c.list(ctx, w.last, []fulgur.RolloutState{fulgur.Queuing}, func(r fulgur.Rollout) {
		it := plan.Item{ID: r.ID, Validation: !r.IsTrain, Created: r.CreatedAt}
		if len(r.Input) <= keepInput {
			it.Rollout = &r
		}
		items = append(items, it)
		w.last = r.ID
		if live != nil {
			live[r.ID] = true
		}
	})
	if err != nil {
		return err
	}
	w.c.send(ctx, func() {
		for _, it := range items {
			if w.c.byID[it.ID] == nil {
				w.c.queue.Add(it)
			}
		}
	})
	return nil
}

// list reads all rollouts of the run in some states, page by page.
func (c *Controller) list(ctx context.Context, after fulgur.RolloutID, states []fulgur.RolloutState, each func(fulgur.Rollout)) error {
	for {
		rs, err := c.store.Rollouts(ctx, fulgur.RolloutQuery{Run: c.o.Run, States: states, After: after, Limit: page})
		if err != nil {
			return fmt.Errorf("listing rollouts: %w", err)
		}
		for _, r := range rs {
			each(r)
		}
		if len(rs) < page {
			return nil
		}
		after = rs[len(rs)-1].ID
	}
}

// send posts f unless ctx ends first.
func (c *Controller) send(ctx context.Context, f func()) {
	select {
	case c.inbox <- f:
	case <-ctx.Done():
	}
}

// forget takes a rollout that waits out of the queue.
func (c *Controller) forget(id fulgur.RolloutID) {
	c.queue.Remove(id)
	delete(c.openings, id)
}

// unwanted notes that a rollout has ended or is gone.
func (c *Controller) unwanted(id fulgur.RolloutID) {
	c.forget(id)
	if e := c.byID[id]; e != nil && !e.exited {
		e.Unwanted = plan.ReasonEnded
	}
}

// keepOnly drops all that is not in a complete listing.
func (c *Controller) keepOnly(live map[fulgur.RolloutID]bool) {
	for _, id := range c.queue.IDs() {
		if !live[id] {
			c.forget(id)
		}
	}
	for id := range c.byID {
		if !live[id] {
			c.unwanted(id)
		}
	}
}

// recover takes over what an earlier leader left: the runner adopts or kills,
// the record learns of what was lost, and what has an attempt left waits for it.
func (c *Controller) recover(ctx, reporting context.Context) error {
	var left []plan.Left
	var leftovers []Leftover
	err := c.persist(ctx, "reading what runs", func() error {
		left, leftovers = nil, nil
		var running []fulgur.Rollout
		if err := c.list(ctx, "", []fulgur.RolloutState{fulgur.Running}, func(r fulgur.Rollout) { running = append(running, r) }); err != nil {
			return err
		}
		for _, r := range running {
			attempts, err := c.store.Attempts(ctx, r.ID)
			if err != nil {
				return err
			}
			if n := len(attempts); n > 0 && attempts[n-1].Phase == fulgur.PhaseWaiting {
				// Its start is told late. If it has called, it did start: its calls are
				// not to be mixed with another execution's.
				calls, err := c.store.Calls(ctx, r.ID, attempts[n-1].ID)
				if err != nil {
					return err
				}
				if len(calls) > 0 {
					attempts[n-1].Phase = fulgur.PhaseRunning
				}
			}
			l := plan.Left{Rollout: r, Attempts: attempts}
			left = append(left, l)
			if a, open := l.Orphan(); open {
				leftovers = append(leftovers, Leftover{plan.Key{Rollout: r.ID, Attempt: a.ID}, a.Phase, a.Handle})
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	keys, err := c.runner.Adopt(ctx, leftovers)
	if err != nil {
		return fmt.Errorf("taking over what an earlier controller left: %w", err)
	}
	adopted := map[plan.Key]bool{}
	for _, k := range keys {
		adopted[k] = true
	}
	for _, a := range plan.Recover(left, adopted, c.o.Limits) {
		switch a.Kind {
		case plan.Enqueue:
			if a.Item.NotBefore = (time.Time{}); a.Delay > 0 {
				a.Item.NotBefore = time.Now().Add(a.Delay)
			}
			c.queue.Add(a.Item)
		case plan.Report:
			c.log.Warn("an attempt was lost with its controller", "rollout", a.Key.Rollout, "attempt", a.Key.Attempt, "retry", a.Retry)
			c.report(reporting, a.Key, fulgur.AttemptReport{Phase: fulgur.PhaseEnded, Outcome: a.Outcome, Retry: a.Retry})
			c.stats.ended(plan.Verdict{Outcome: *a.Outcome, Retry: a.Retry})
		case plan.Adopt:
			phase := a.Attempt.Phase
			switch phase {
			case fulgur.PhaseWaiting: // it was started, and that was not told any more
				phase = fulgur.PhaseStarting
			case fulgur.PhaseGrading:
				phase = fulgur.PhaseRunning
			}
			e := newExecution(a.Item, a.Key, phase)
			if a.Attempt.StartedAt != nil && e.Phase == fulgur.PhaseRunning {
				e.Since = *a.Attempt.StartedAt // its clocks go on
			}
			c.seat.hold()
			c.add(e)
			c.wg.Go(func() { c.await(reporting, e, a.Key, "", nil) })
		}
	}
	return nil
}

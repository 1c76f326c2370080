package controller

import (
	"context"
	"time"

	"github.com/fulgur-rl/fulgur"
	"github.com/fulgur-rl/fulgur/internal/controller/plan"
)

const (
	// openAhead is how soon a rollout must be expected to start for its attempt to
	// be opened together with others: a request for many costs what one for one does.
	openAhead = 250 * time.Millisecond
	// maxAhead bounds how many are opened before they start.
	maxAhead = 15
	// startsKept is how far back starts are counted.
	startsKept = time.Second
)

// opening is a request for the attempts of several rollouts.
type opening struct {
	done chan struct{} // closed when it is answered or given up
	got  map[fulgur.RolloutID]fulgur.OpenedAttempt
}

// openFor has the attempts opened of what starts now, and of as many others as
// are going to start soon, by how many have started of late: all with one request.
func (c *Controller) openFor(ctx context.Context, actions []plan.Action, now time.Time) {
	var ids []fulgur.RolloutID
	starts := 0
	for _, a := range actions {
		if a.Kind != plan.Start {
			continue
		}
		starts++
		c.starts = append(c.starts, now)
		if c.openings[a.Item.ID] == nil {
			ids = append(ids, a.Item.ID)
		}
	}
	if len(ids) == 0 {
		return
	}
	old := 0
	for old < len(c.starts) && now.Sub(c.starts[old]) > startsKept {
		old++
	}
	c.starts = c.starts[old:]
	ahead := min(maxAhead, len(c.starts)*int(openAhead)/int(startsKept))
	next, _ := c.queue.Peek(now, starts+ahead) // those that start now are its first
	for _, it := range next[min(starts, len(next)):] {
		if c.openings[it.ID] == nil {
			ids = append(ids, it.ID)
		}
	}
	c.openAll(ctx, ids, func(*opening) {})
}

// openAll opens attempts with one request; then is called before any of them starts.
func (c *Controller) openAll(ctx context.Context, ids []fulgur.RolloutID, then func(*opening)) {
	o := &opening{done: make(chan struct{}), got: map[fulgur.RolloutID]fulgur.OpenedAttempt{}}
	for _, id := range ids {
		c.openings[id] = o
	}
	c.wg.Go(func() {
		defer close(o.done)
		_ = c.persist(ctx, "opening attempts", func() error { // what failed is tried alone, and says why
			opened, err := c.store.OpenAttempts(ctx, ids)
			for _, a := range opened {
				o.got[a.Rollout] = a
			}
			return err
		})
		then(o)
	})
}

// showClosed puts on record what those rollouts wait for that would start now, were
// starts open: the first few, for what one waits for all do.
func (c *Controller) showClosed(ctx, reporting context.Context, now time.Time) {
	why := c.proof.waits()
	if why == "" || c.orphaned {
		return
	}
	var ids []fulgur.RolloutID
	next, _ := c.queue.Peek(now, min(max(c.o.Limits.Slots-len(c.slots), 0), maxAhead+1))
	for _, it := range next {
		if c.openings[it.ID] == nil {
			ids = append(ids, it.ID)
		}
	}
	if len(ids) == 0 {
		return
	}
	c.openAll(ctx, ids, func(o *opening) {
		var reports []fulgur.Report
		for _, a := range o.got {
			reports = append(reports, fulgur.Report{AttemptKey: fulgur.AttemptKey{Rollout: a.Rollout, Attempt: a.ID}, AttemptReport: fulgur.AttemptReport{Phase: fulgur.PhaseWaiting, Why: why}})
		}
		if len(reports) > 0 {
			_ = c.reportAll(reporting, reports) // that one has ended meanwhile is no harm
		}
	})
}

// opened waits for the attempt of a rollout that starts: as it was opened with
// others, or by itself.
func (c *Controller) opened(ctx context.Context, o *opening, id fulgur.RolloutID) (fulgur.OpenedAttempt, error) {
	<-o.done
	if a, ok := o.got[id]; ok {
		return a, nil
	}
	return c.store.OpenAttempt(ctx, id)
}

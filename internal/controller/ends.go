package controller

import (
	"context"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/fulgur-rl/fulgur"
	"github.com/fulgur-rl/fulgur/internal/controller/plan"
)

const (
	// endWindow is how long the ends of executions wait for one another while
	// others still run: told together they cost one request in place of many. Their
	// slots are free meanwhile.
	endWindow = 100 * time.Millisecond
	maxEnds   = 64
)

// finishing is an exit on its way to the record.
type finishing struct {
	e      *execution
	key    plan.Key
	since  time.Time // it ran from then on; zero: it never did
	known  *known    // nil: settle asks
	facts  plan.Facts
	report fulgur.AttemptReport // what is not reported yet of its run
	done   chan struct{}        // closed when it is reported, or given up
}

// ends gathers exits. The first one that comes waits for the others and
// reports for all.
type ends struct {
	mu   sync.Mutex
	list []*finishing
	idle bool          // nothing else runs: there is nobody to wait for
	full chan struct{} // closed when the list is to be reported at once
	told bool          // full is closed
}

// add appends f; first says that the caller has to take the list.
func (s *ends) add(f *finishing) (full <-chan struct{}, first bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	first = len(s.list) == 0
	if first {
		s.full, s.told = make(chan struct{}), false
	}
	s.list = append(s.list, f)
	if s.idle || len(s.list) >= maxEnds {
		s.hurryLocked()
	}
	return s.full, first
}

func (s *ends) hurryLocked() {
	if len(s.list) > 0 && !s.told {
		s.told = true
		close(s.full)
	}
}

func (s *ends) take() []*finishing {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := s.list
	s.list = nil
	return out
}

// setIdle says whether anything runs that may end soon.
func (s *ends) setIdle(idle bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.idle = idle; idle {
		s.hurryLocked()
	}
}

// enlist puts f on record together with others that end now, and returns when
// that is done or given up.
func (c *Controller) enlist(ctx context.Context, f *finishing) {
	f.done = make(chan struct{})
	full, first := c.ends.add(f)
	if !first {
		<-f.done
		return
	}
	limit := time.NewTimer(endWindow)
	defer limit.Stop()
	select {
	case <-full:
	case <-limit.C:
	case <-ctx.Done():
	}
	c.settle(ctx, c.ends.take())
}

// settle judges exits and reports them.
func (c *Controller) settle(ctx context.Context, list []*finishing) {
	keys := make([]fulgur.AttemptKey, len(list))
	for i, f := range list {
		keys[i] = fulgur.AttemptKey(f.key)
	}
	acts := c.activities(ctx, keys)
	reports := make([]fulgur.Report, len(list))
	verdicts := make([]plan.Verdict, len(list))
	for i, f := range list {
		if f.known == nil {
			f.known = c.learn(ctx, f.key, f.since, acts[i])
		}
		f.known.tell(&f.facts)
		if f.key.Attempt != "0" {
			_ = c.persist(ctx, "reading earlier attempts", func() error {
				all, err := c.store.Attempts(ctx, f.key.Rollout)
				f.facts.Before = plan.Count(all)
				return err
			})
		}
		verdicts[i] = plan.Judge(f.facts)
		r := f.report
		r.Phase, r.Outcome, r.Retry = fulgur.PhaseEnded, &verdicts[i].Outcome, verdicts[i].Retry
		reports[i] = fulgur.Report{AttemptKey: fulgur.AttemptKey(f.key), AttemptReport: r}
	}
	if err := c.reportAll(ctx, reports); err != nil && ctx.Err() == nil {
		for _, r := range reports { // one was refused: the others are not to suffer for it
			c.report(ctx, plan.Key(r.AttemptKey), r.AttemptReport)
		}
	}
	if a, ok := c.runner.(Acknowledger); ok && ctx.Err() == nil && !c.mute.Load() {
		a.Acknowledge(keysOf(list))
	}
	for i, f := range list {
		c.over(f, verdicts[i])
		close(f.done)
	}
}

// known is what the gateway and the record know of an execution when it has ended: a
// gateway that starts again while it is graded took nothing from it.
type known struct {
	calls, open        int
	upstream, overflow string
	restarted          bool
}

func (c *Controller) learn(ctx context.Context, key plan.Key, since time.Time, a fulgur.Activity) *known {
	k := &known{open: a.InFlight, restarted: a.Up > 0 && !since.IsZero() && time.Since(since) > a.Up}
	k.calls, k.upstream, k.overflow = c.calls(ctx, key, a)
	return k
}

func (k *known) tell(f *plan.Facts) {
	f.Calls, f.Open, f.Upstream, f.Overflow, f.Restarted = k.calls, k.open, k.upstream, k.overflow, k.restarted
}

func keysOf(list []*finishing) []plan.Key {
	keys := make([]plan.Key, len(list))
	for i, f := range list {
		keys[i] = f.key
	}
	return keys
}

func (c *Controller) reportAll(ctx context.Context, reports []fulgur.Report) error {
	if c.mute.Load() {
		return nil
	}
	return c.persist(ctx, "reporting attempts", func() error {
		return c.store.ReportAttempts(ctx, reports)
	})
}

// over counts an end that is reported and tells the loop what follows.
func (c *Controller) over(f *finishing, v plan.Verdict) {
	c.stats.ended(v)
	if v.Outcome.Class != fulgur.OutcomeOK || v.Outcome.Reason == plan.ReasonNoCalls {
		c.log.Info("an attempt ended", "rollout", f.key.Rollout, "attempt", f.key.Attempt, "class", v.Outcome.Class, "reason", v.Outcome.Reason, "retry", v.Retry, "message", v.Outcome.Message)
	}
	c.post(func() {
		delete(c.byID, f.key.Rollout)
		if v.Retry && f.facts.Stopped != plan.ReasonShutdown {
			it := f.e.item
			// Those that one cause has ended together do not come back together.
			it.NotBefore = time.Now().Add(time.Duration(float64(v.Delay) * (0.75 + rand.Float64()/2)))
			c.queue.Add(it)
		}
	})
}

// activities asks the gateway what it knows; unknown is Calls -1.
func (c *Controller) activities(ctx context.Context, keys []fulgur.AttemptKey) []fulgur.Activity {
	if c.gate != nil {
		if out, err := c.gate.Activities(ctx, keys); err == nil && len(out) == len(keys) {
			return out
		}
	}
	out := make([]fulgur.Activity, len(keys))
	for i := range out {
		out[i].Calls = -1
	}
	return out
}

package trainer

import (
	"cmp"
	"context"
	"math"
	"slices"
	"time"

	"github.com/fulgur-rl/fulgur"
	"github.com/fulgur-rl/fulgur/internal/trainer/schedule"
)

// flow is what is under way between the schedule and the desk.
type flow struct {
	began    time.Time
	asked    []schedule.Group          // not created yet
	groups   map[schedule.Group]*batch // asked for and not trained
	next     *schedule.Update          // due
	finished bool                      // no step is left
	dropped  []RolloutLine             // of groups that a filter took out since the last step
	total    int                       // rollouts of the step to come
	drained  time.Duration             // what the last hold waited for calls in flight
	stepped  time.Time                 // when the last step was done
	// Calls that the last hold cut off: to go on later, and for good.
	suspended, aborted int
}

// asynchronous says whether rollouts of several steps are under way at once.
func (t *trainer) asynchronous() bool {
	return t.o.Schedule.Mode != "" && t.o.Schedule.Mode != schedule.Synchronous
}

// tell hands an event to the schedule and does what it answers, as far as that
// can be done now.
func (t *trainer) tell(ctx context.Context, e schedule.Event) error {
	for _, effect := range t.sched.Handle(t.o.Now().Sub(t.began), e) {
		switch effect := effect.(type) {
		case schedule.Ask:
			t.asked = append(t.asked, effect.Groups...)
		case schedule.Update:
			t.next = &effect
		case schedule.Drop:
			t.drop(effect.Group)
		case schedule.Close:
			if err := t.closeGroup(ctx, effect.Group); err != nil {
				return err
			}
		case schedule.Finished:
			t.finished = true
		}
	}
	return nil
}

// createAsked creates the rollouts of the groups that the schedule asked for.
func (t *trainer) createAsked(ctx context.Context) error {
	if len(t.asked) == 0 {
		return nil
	}
	var batches []*batch
	for _, g := range t.asked {
		b := &batch{step: t.state.Cursor.Step + 1, group: &g}
		for k := range t.o.GroupSize {
			b.asks = append(b.asks, ask{row: t.o.Train.Rows[g.Row], train: true,
				key: fulgur.RolloutKey{Run: t.o.Run, Part: "train", Epoch: g.Epoch, Row: g.Row, K: k}})
		}
		t.groups[g] = b
		batches = append(batches, b)
	}
	t.asked = nil
	return t.create(ctx, batches...)
}

// memberEnded tells the schedule of a group's rollout, and of its last one.
func (t *trainer) memberEnded(ctx context.Context, b *batch) error {
	t.o.Observer(Progress{Part: "train", Step: t.state.Cursor.Step + 1, Done: t.progress(), Total: t.total})
	if b.left > 0 {
		return t.tell(ctx, schedule.Member{Group: *b.group})
	}
	version := int64(-1)
	for i := range b.out {
		if v := b.out[i].first; v >= 0 && (version < 0 || v < version) {
			version = v
		}
	}
	if t.o.Filter != nil {
		lines := make([]RolloutLine, len(b.out))
		for i := range b.out {
			lines[i] = b.out[i].line
		}
		if why := t.o.Filter(lines); why != "" {
			b.why = why
			return t.tell(ctx, schedule.Rejected{Group: *b.group, Version: version})
		}
	}
	return t.tell(ctx, schedule.Complete{Group: *b.group, Version: version})
}

// progress counts the rollouts that the next step can have already: all that
// have ended where steps follow one another, else those of complete groups.
func (t *trainer) progress() int {
	n := 0
	for _, b := range t.groups {
		if !t.asynchronous() || b.left == 0 {
			n += len(b.asks) - b.left
		}
	}
	return min(n, t.total)
}

// drop takes a group that a filter did not want out of training.
func (t *trainer) drop(g schedule.Group) {
	b := t.groups[g]
	for i := range b.out {
		l := b.out[i].line
		l.Masked = cmp.Or(l.Masked, maskFiltered+": "+b.why) // what masked it alone is the nearer reason
		t.dropped = append(t.dropped, l)
	}
	delete(t.groups, g)
}

// closeGroup ends the members of a group that still run.
func (t *trainer) closeGroup(ctx context.Context, g schedule.Group) error {
	b := t.groups[g]
	ended := 0
	for id, p := range t.desk.pending {
		if p.batch != b || slices.Contains(t.desk.over, id) {
			continue
		}
		ended++
		if err := t.end(ctx, id, "straggler", "the other members of its group had ended long before"); err != nil {
			return err
		}
	}
	if ended > 0 {
		t.warn(t.state.Cursor.Step+1, "straggler", "a group was closed without %d of its %d rollouts, which took too long: short runs are favoured", ended, len(b.asks))
	}
	return nil
}

// tick lets the straggler rule see the time.
func (t *trainer) tick(ctx context.Context) error {
	if t.sched == nil || t.o.Schedule.Straggler == (schedule.Straggler{}) {
		return nil
	}
	return t.tell(ctx, schedule.Clock{})
}

// take takes the rollouts of a step's groups out of what is under way, in the
// order of the groups.
func (t *trainer) take(u schedule.Update) []ended {
	var all []ended
	for _, g := range u.Groups {
		all = append(all, t.groups[g].out...)
		delete(t.groups, g)
	}
	for i := range all {
		all[i].line.Step = u.Step
	}
	return all
}

// endOpen ends the groups that nobody waits for any more.
func (t *trainer) endOpen(ctx context.Context) error {
	for id, p := range t.desk.pending {
		if p.group == nil {
			continue
		}
		if err := t.end(ctx, id, "run_over", "the run ended before its step"); err != nil {
			return err
		}
		delete(t.desk.pending, id)
	}
	t.desk.over, t.asked, t.next = nil, nil, nil
	return nil
}

// owner of the pauses. One for all trainers of a run, of which the lease lets
// one live: what a process that was killed had paused, the next one resumes.
const owner = "trainer"

// hold lets no call of the run through to the sampler, and waits for those in
// flight; what is left of them at the limit goes on after the release from its
// own tokens, where the sampler can, and is aborted where it can't.
func (t *trainer) hold(ctx context.Context) error {
	if t.o.Gate == nil {
		return nil
	}
	req := fulgur.PauseRequest{Owner: owner, Lease: holdLease, Drain: t.o.Drain, Reason: "new policy version", Partial: t.asynchronous()}
	if req.Partial && t.resumes {
		req.Drain = min(req.Drain, cutAfter)
	}
	pause := func() (fulgur.Pause, error) { return t.o.Gate.PauseCalls(ctx, t.o.Run, req) }
	p, err := again(ctx, pause)
	for told := false; fulgur.KindOf(err) == fulgur.KindConflict; p, err = again(ctx, pause) {
		if !told {
			t.warn(t.state.Cursor.Step, "paused", "the update waits: %s", fulgur.PublicMessage(err))
			told = true
		}
		if err := sleep(ctx, time.Second); err != nil {
			return err
		}
	}
	if err != nil {
		return err
	}
	t.drained += p.Drained
	t.suspended += p.Suspended
	if n := p.Aborted; n > 0 {
		t.aborted += n
		t.warn(t.state.Cursor.Step, "aborted_calls", "%d model calls did not end within %s and were aborted for the new weights", n, req.Drain)
	}
	return nil
}

// cutAfter is how long calls that can go on after a pause are waited for: most
// short ones end within it, and need no second reading of their prompt.
const cutAfter = 250 * time.Millisecond

// holdLease is how long a pause lasts that nobody renews; an update may take longer.
const holdLease = 10 * time.Minute

// keepHeld renews the pause until the function that it returns is called.
func (t *trainer) keepHeld(ctx context.Context) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for t.o.Gate != nil && sleep(ctx, holdLease/3) == nil {
			// If this fails the next one may not; the last resort is the lease.
			_, _ = t.o.Gate.PauseCalls(ctx, t.o.Run, fulgur.PauseRequest{Owner: owner, Lease: holdLease, Reason: "new policy version"})
		}
	}()
	return func() {
		cancel()
		<-ended
	}
}

func sleep(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return fulgur.E(fulgur.KindCanceled, "train", "stopped", ctx.Err())
	}
}

// release lets the run's calls go on, also when ctx has ended.
func (t *trainer) release(ctx context.Context) error {
	if t.o.Gate == nil {
		return nil
	}
	ctx = context.WithoutCancel(ctx)
	_, err := again(ctx, func() (fulgur.Pause, error) { return t.o.Gate.ResumeCalls(ctx, t.o.Run, owner) })
	return err
}

// flowed adds what the schedule did in a step to the step's metrics.
func (t *trainer) flowed(u schedule.Update, rollouts []ended) {
	lengths, seconds := make([]float64, len(rollouts)), make([]float64, len(rollouts))
	open := time.Duration(0)
	for i := range rollouts {
		e := &rollouts[i]
		lengths[i], seconds[i] = float64(e.line.Sampled), e.line.Seconds
		open += e.open
	}
	values := map[string]float64{
		"rollouts/sampled_p50": quantile(lengths, .5), "rollouts/sampled_p95": quantile(lengths, .95), "rollouts/sampled_max": quantile(lengths, 1),
		"time/rollout_p50": quantile(seconds, .5), "time/rollout_p95": quantile(seconds, .95), "time/rollout_max": quantile(seconds, 1),
	}
	if wall := t.o.Now().Sub(t.stepped); !t.stepped.IsZero() && wall > 0 {
		values["schedule/calls"] = open.Seconds() / wall.Seconds()
	}
	t.stepped = t.o.Now()
	if t.asynchronous() {
		values["staleness/mean"], values["staleness/max"] = u.Stats.MeanStaleness, float64(u.Stats.MaxStaleness)
		values["schedule/active"], values["schedule/incomplete"], values["schedule/ready"] = float64(u.Stats.Active), float64(u.Stats.Incomplete), float64(u.Stats.Ready)
		values["time/drain"] = t.drained.Seconds()
		values["schedule/suspended_calls"], values["schedule/aborted_calls"] = float64(t.suspended), float64(t.aborted)
	}
	if len(t.dropped) > 0 || t.o.Filter != nil {
		values["groups/filtered"] = float64(len(t.dropped) / max(1, t.o.GroupSize))
	}
	t.drained, t.suspended, t.aborted = 0, 0, 0
	t.passed(t.dropped)
	t.pend(values, t.dropped)
	t.dropped = nil
}

// quantile returns the value at a share of the sorted values (nearest rank); it
// sorts them.
func quantile(x []float64, share float64) float64 {
	if len(x) == 0 {
		return 0
	}
	slices.Sort(x)
	return x[max(0, int(math.Ceil(share*float64(len(x))))-1)]
}

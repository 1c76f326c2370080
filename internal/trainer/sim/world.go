package sim

import (
	"container/heap"
	"errors"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/fulgur-rl/fulgur/internal/trainer/schedule"
)

// member is a rollout under way.
type member struct {
	Rollout
	group   *group
	number  int
	call    int     // at work, or next
	done    float64 // tokens of it that a cut call has
	started float64
	arrived float64 // its call, first
	runs    bool    // in a slot
	ends    float64 // of its call, in the sampler's count
	closed  bool
}

// group is one that was asked for and is not trained.
type group struct {
	schedule.Group
	asked   int64 // version
	first   int64 // version of its first call; below 0: none yet
	open    int   // members that have not ended
	members []*member
}

// world is a run at work. It does what a schedule asks for.
type world struct {
	o       Options
	machine Machine // of it, what samples and what an update takes
	sched   schedule.Schedule
	rng     rng

	now     float64
	timers  timerHeap
	numbers int
	engine  sampler
	groups  map[schedule.Group]*group
	queue   []*member // wait for a slot
	running int
	held    []*member // calls that wait for the end of the pause

	paused   bool
	draining bool
	pausedAt float64
	update   *schedule.Update
	version  int64
	ended    bool

	sum            sums
	mark           sums // at the end of the warm-up
	timeline       *Timeline
	seen           func(Served) // each call, as a recorder sees it; nil: nobody looks
	stood          func(Hold)   // each time in which calls are held; nil: nobody looks
	staleness      []int64
	askedStaleness float64
}

// sums grow over the run.
type sums struct {
	now, busy, training, running   float64
	tokens, wasted, drain, longest float64
	slots                          int
}

func newWorld(o Options, s schedule.Schedule) *world {
	w := &world{o: o, machine: o.Machine, sched: s, rng: rng(o.Seed), groups: map[schedule.Group]*group{}}
	if o.Schedule.Mode == schedule.Disaggregated {
		w.machine = o.Machine.part()
	}
	w.engine.machine = w.machine
	if o.Bins > 0 {
		w.timeline = &Timeline{bins: o.Bins, Width: o.Machine.Update/50 + 1e-3}
	}
	return w
}

// errStuck: nothing is left that could happen.
var errStuck = errors.New("nothing runs and no step can start")

// mostEvents bounds a simulation: a workload of instant rollouts without tokens
// would go on for ever.
const mostEvents = 200_000_000

// run goes from event to event.
func (w *world) run() error {
	w.handle(schedule.Begin{})
	if w.o.Schedule.Straggler != (schedule.Straggler{}) {
		w.tick()
	}
	for n := 0; !w.ended; n++ {
		if n == mostEvents {
			return fmt.Errorf("after %d events step %d is not at its end: is the workload's time 0?", n, w.version+1)
		}
		call, timed := math.Inf(1), math.Inf(1)
		rate := w.engine.rate()
		if rate > 0 {
			call = w.now + max(0, w.engine.calls[0].ends-w.engine.served)/rate
		}
		if len(w.timers) > 0 {
			timed = w.timers[0].at
		}
		if math.IsInf(call, 1) && math.IsInf(timed, 1) {
			return fmt.Errorf("stopped in step %d, with %d groups asked for: %w", w.version+1, len(w.groups), errStuck)
		}
		w.advance(min(call, timed), rate)
		if call <= timed {
			w.answered(w.engine.next())
		} else {
			heap.Pop(&w.timers).(timer).do()
		}
	}
	return nil
}

// advance moves the clock.
func (w *world) advance(to, rate float64) {
	d := to - w.now
	if d <= 0 {
		return
	}
	w.engine.served += rate * d
	use := rate * float64(len(w.engine.calls)) / w.o.Machine.Peak
	training := 0.0
	if w.update != nil && !w.draining {
		training = w.o.Machine.Update / w.machine.Update
	}
	w.sum.busy += use * d
	w.sum.training += training * d
	w.sum.running += float64(w.running) * d
	if w.timeline != nil {
		w.timeline.add(w.now, to, use, training, float64(w.running))
	}
	w.now = to
}

func (w *world) after(d float64, do func()) {
	w.numbers++
	heap.Push(&w.timers, timer{w.now + d, w.numbers, do})
}

// handle tells the schedule and does what it answers.
func (w *world) handle(e schedule.Event) {
	for _, effect := range w.sched.Handle(time.Duration(w.now*float64(time.Second)), e) {
		switch x := effect.(type) {
		case schedule.Ask:
			for _, g := range x.Groups {
				w.ask(g)
			}
		case schedule.Update:
			w.step(x)
		case schedule.Close:
			w.closeGroup(x.Group)
		case schedule.Drop:
			delete(w.groups, x.Group)
		case schedule.Finished:
			w.ended = true
		}
	}
}

func (w *world) ask(which schedule.Group) {
	g := &group{Group: which, asked: w.version, first: -1, open: w.o.Schedule.GroupSize}
	w.groups[which] = g
	for k := range g.open {
		w.numbers++
		m := &member{Rollout: w.o.Workload.Rollout(which, k), group: g, number: w.numbers}
		g.members = append(g.members, m)
		w.queue = append(w.queue, m)
	}
	w.fill()
}

// fill starts rollouts in the slots that are free.
func (w *world) fill() {
	for len(w.queue) > 0 && (w.o.Slots == 0 || w.running < w.o.Slots) {
		m := w.queue[0]
		w.queue = w.queue[1:]
		if m.closed {
			continue
		}
		w.running++
		w.sum.slots = max(w.sum.slots, w.running)
		m.started, m.runs = w.now, true
		w.goOn(m)
	}
}

// goOn has the member use its tools up to the next call, or end.
func (w *world) goOn(m *member) {
	gap, last := m.Tail, m.call == len(m.Calls)
	if !last {
		gap = m.Calls[m.call].Gap
	}
	if left := m.Limit - (w.now - m.started); m.Limit > 0 && m.call > 0 && gap >= left {
		gap, last = max(0, left), true
	}
	w.after(gap, func() {
		switch {
		case m.closed:
		case last:
			w.finish(m)
		default:
			m.arrived = w.now
			w.arrive(m)
		}
	})
}

// arrive is when the member's call reaches the gateway.
func (w *world) arrive(m *member) {
	if m.closed {
		return
	}
	if w.paused {
		w.held = append(w.held, m)
		return
	}
	if m.group.first < 0 {
		m.group.first = w.version
	}
	w.engine.add(m, max(0, m.Calls[m.call].Tokens-m.done))
}

// answered is when the member's call has ended.
func (w *world) answered(m *member) {
	w.sum.tokens += m.Calls[m.call].Tokens
	if w.seen != nil {
		w.seen(Served{m.arrived, w.now, m.Calls[m.call].Tokens})
	}
	m.call, m.done = m.call+1, 0
	w.goOn(m)
	if w.draining && len(w.engine.calls) == 0 {
		w.drained()
	}
}

func (w *world) finish(m *member) {
	w.running--
	m.closed, m.runs = true, false
	w.fill()
	g := m.group
	g.open--
	w.handle(schedule.Member{Group: g.Group})
	if g.open == 0 {
		w.complete(g)
	}
}

func (w *world) complete(g *group) {
	w.handle(schedule.Complete{Group: g.Group, Version: g.first})
}

// closeGroup ends the members that still run; what they sampled is wasted.
func (w *world) closeGroup(which schedule.Group) {
	g := w.groups[which]
	if g == nil || g.open == 0 {
		return
	}
	for _, m := range g.members {
		if m.closed {
			continue
		}
		m.closed = true
		if m.runs {
			w.running--
		}
		for _, c := range m.Calls[:m.call] {
			w.sum.wasted += c.Tokens
		}
	}
	w.abort()
	g.open = 0
	w.fill()
	w.complete(g)
}

// abort takes the calls of closed members off the engine, and those that wait.
func (w *world) abort() {
	waste := func(m *member, tokens float64) {
		w.sum.tokens += tokens
		w.sum.wasted += tokens
	}
	calls := w.engine.calls[:0]
	for _, m := range w.engine.calls {
		if m.closed {
			waste(m, m.Calls[m.call].Tokens-max(0, m.ends-w.engine.served))
		} else {
			calls = append(calls, m)
		}
	}
	clear(w.engine.calls[len(calls):])
	w.engine.calls = calls
	heap.Init(&w.engine.calls)
	w.held = slices.DeleteFunc(w.held, func(m *member) bool {
		if m.closed {
			waste(m, m.done)
		}
		return m.closed
	})
	if w.draining && len(w.engine.calls) == 0 {
		w.drained()
	}
}

// tick lets the straggler rule see the time, as the trainer does.
func (w *world) tick() {
	w.after(max(.25, w.o.Machine.Update/20), func() {
		w.handle(schedule.Clock{})
		w.tick()
	})
}

// step begins a training step: where it shares the device, calls are held and
// drained first.
func (w *world) step(u schedule.Update) {
	w.update = &u
	for _, which := range u.Groups {
		g := w.groups[which]
		age := w.version - g.asked
		w.askedStaleness += float64(age)
		if g.first >= 0 {
			age = w.version - g.first
		}
		w.staleness = append(w.staleness, age)
		delete(w.groups, which)
	}
	if w.o.Trained != nil {
		w.o.Trained(u.Step, u.Groups)
	}
	w.draining, w.pausedAt = u.Hold, w.now
	w.paused = u.Hold
	switch {
	case !u.Hold || len(w.engine.calls) == 0:
		w.drained()
	case w.o.Pause.Drain >= 0:
		w.after(w.o.Pause.Drain, func() {
			if w.update != nil && w.update.Step == u.Step && w.draining {
				w.cut()
				w.drained()
			}
		})
	}
}

// cut is the end of the drain's time.
func (w *world) cut() {
	if w.o.Pause.Cut == Freeze {
		w.engine.frozen = true
		return
	}
	for _, m := range w.engine.calls {
		m.done = m.Calls[m.call].Tokens - max(0, m.ends-w.engine.served)
		if w.o.Pause.Cut == Restart {
			w.sum.tokens += m.done
			w.sum.wasted += m.done
			m.done = 0
		}
		w.held = append(w.held, m)
	}
	w.engine.calls = w.engine.calls[:0]
}

// drained is when the update itself begins.
func (w *world) drained() {
	if w.draining {
		w.draining = false
		w.sum.drain += w.now - w.pausedAt
		w.sum.longest = max(w.sum.longest, w.now-w.pausedAt)
	}
	if w.paused && w.stood != nil {
		w.stood(Hold{w.pausedAt, w.now, w.now + w.machine.Update})
	}
	w.after(w.machine.Update, w.updated)
}

// updated is when the new version is published: held calls go on, then the
// schedule is told.
func (w *world) updated() {
	w.version++
	w.update, w.paused, w.engine.frozen = nil, false, false
	held := w.held
	w.held = nil
	for _, m := range held {
		w.release(m)
	}
	w.sum.now = w.now
	if int(w.version) == w.o.Warmup {
		w.mark = w.sum
	}
	if w.o.Steps > 0 && int(w.version) >= w.o.Steps {
		w.ended = true
		return
	}
	w.handle(schedule.Updated{})
}

// release sends a held call to the engine.
func (w *world) release(m *member) {
	d := 0.0
	if w.o.Pause.Retry > 0 {
		d = w.rng.uniform() * w.o.Pause.Retry
	}
	if m.done > 0 && w.machine.Prefill > 0 {
		d += (m.Calls[m.call].Prompt + m.done) / w.machine.Prefill
	}
	if d == 0 {
		w.arrive(m)
		return
	}
	w.after(d, func() { w.arrive(m) })
}

func (w *world) result() Result {
	s, m := w.sum, w.mark
	steps := int(w.version) - w.o.Warmup
	if steps < 1 {
		steps, m = int(w.version), sums{}
	}
	n, d := float64(max(1, steps)), max(s.now-m.now, 1e-9)
	r := Result{
		Steps: steps, SecondsPerStep: (s.now - m.now) / n, Tokens: s.tokens, DrainPerStep: (s.drain - m.drain) / n, LongestDrain: s.longest,
		Sampling: (s.busy - m.busy) / d, Training: (s.training - m.training) / d, Running: (s.running - m.running) / d, Slots: s.slots, Timeline: w.timeline,
	}
	if s.tokens > 0 {
		r.WastedShare = s.wasted / s.tokens
	}
	for _, age := range w.staleness {
		r.MeanStaleness += float64(age) / float64(len(w.staleness))
		r.MaxStaleness = max(r.MaxStaleness, age)
	}
	r.AskedStaleness = w.askedStaleness / float64(max(1, len(w.staleness)))
	return r
}

package gateway

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/fulgur-rl/fulgur"
)

// defaultLease ends a pause whose owner says nothing and never comes back.
const defaultLease = 10 * time.Minute

const (
	// abortGrace is how long aborted calls may take to be on record.
	abortGrace = 10 * time.Second
	// suspendGrace is how long a call may take to stop where it is (a slow reader
	// may hold it up) before it is aborted for good.
	suspendGrace = 2 * time.Second
)

var (
	// errSuspended cuts a call off that is to go on after the pause.
	errSuspended = errors.New("suspended: it goes on after the pause")
	errAborted   = errors.New("aborted: a drain reached its limit")
	errClosing   = fulgur.E(fulgur.KindUnavailable, "admit call", "The gateway is shutting down: try again", nil)
)

// refusal is the answer to a call while calls are refused.
type refusal struct {
	retryAfter int // seconds
	reason     *string
}

func (r *refusal) Error() string { return "calls are paused" }

// gates let calls through to upstreams, hold them, or refuse them. Whether a
// call is in flight is decided in one critical section with whether calls are
// paused: once a drain has seen no call in flight, none reaches an upstream
// before the resume.
type gates struct {
	leases Leases // nil: pauses end with this process

	mu     sync.Mutex
	all    *gate // v1's pause: all runs
	runs   map[fulgur.RunID]*gate
	closed bool
	done   chan struct{} // closed by close
}

// gate is the state of one run.
type gate struct {
	run fulgur.RunID

	order  sync.Mutex // pauses and resumes of a run are one after the other; taken before gates.mu
	stored string     // holder of the lease in the store, "" for none; guarded by order

	paused     bool
	owner      string
	expires    time.Time // zero: never
	reason     *string
	refuse     bool
	retryAfter int
	aborted    int
	suspended  int
	drained    time.Duration
	pauses     int // raised by each resume: a drain is of one pause only
	held       int
	inflight   map[*flight]struct{}
	wake       chan struct{} // closed on resume
	idle       chan struct{} // closed and replaced when inflight becomes empty
	lease      *time.Timer
}

// flight is a call that was let through.
type flight struct {
	gate  *gate
	abort func(error)
	cut   bool // a drain has cut it off
	whole bool // it has its answer, and is being recorded
}

func newGate(run fulgur.RunID) *gate {
	return &gate{run: run, retryAfter: 5, inflight: map[*flight]struct{}{}, wake: make(chan struct{}), idle: make(chan struct{})}
}

func newGates(l Leases) *gates {
	return &gates{leases: l, all: newGate(""), runs: map[fulgur.RunID]*gate{}, done: make(chan struct{})}
}

func (s *gates) gateLocked(run fulgur.RunID) *gate {
	g := s.runs[run]
	if g == nil {
		g = newGate(run)
		s.runs[run] = g
	}
	return g
}

// check returns the refusal that a call of the run would meet now, nil for none.
func (s *gates) check(run fulgur.RunID) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, g := range []*gate{s.all, s.gateLocked(run)} {
		if g.paused && g.refuse {
			return &refusal{g.retryAfter, g.reason}
		}
	}
	return nil
}

// holds says whether a call of the run would be held now.
func (s *gates) holds(run fulgur.RunID) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.all.paused {
		return !s.all.refuse
	}
	g := s.gateLocked(run)
	return g.paused && !g.refuse
}

// enter waits until calls of the run go through, at most limit, and counts one
// as in flight. hold is called once if it has to wait. abort is called, from
// another goroutine, if a drain gives the call up.
func (s *gates) enter(ctx context.Context, run fulgur.RunID, limit time.Duration, hold func(), abort func(error)) (*flight, error) {
	var timeout <-chan time.Time
	for {
		s.mu.Lock()
		if s.closed {
			s.mu.Unlock()
			return nil, errClosing
		}
		own := s.gateLocked(run)
		at := own
		if s.all.paused {
			at = s.all
		}
		switch {
		case !at.paused:
			f := &flight{gate: own, abort: abort}
			own.inflight[f] = struct{}{}
			s.mu.Unlock()
			return f, nil
		case at.refuse:
			err := &refusal{at.retryAfter, at.reason}
			s.mu.Unlock()
			return nil, err
		}
		wake := at.wake
		own.held++
		s.mu.Unlock()
		if timeout == nil {
			t := time.NewTimer(limit)
			defer t.Stop()
			timeout = t.C
			hold()
		}
		var err error
		select {
		case <-wake:
		case <-s.done:
		case <-ctx.Done():
			err = context.Cause(ctx)
		case <-timeout:
			err = fulgur.E(fulgur.KindUnavailable, "admit call", "The model is being updated and calls were held too long: try again", nil)
		}
		s.mu.Lock()
		own.held--
		s.mu.Unlock()
		if err != nil {
			return nil, err
		}
	}
}

// leave ends a flight: nothing of it reaches an upstream any more, and its
// record is written. Leaving twice is leaving once.
func (s *gates) leave(f *flight) {
	s.mu.Lock()
	defer s.mu.Unlock()
	g := f.gate
	if _, ok := g.inflight[f]; !ok {
		return
	}
	delete(g.inflight, f)
	if len(g.inflight) == 0 {
		close(g.idle)
		g.idle = make(chan struct{})
	}
}

// suspend notes that a flight which was cut off goes on after the pause. It has
// yet to leave.
func (s *gates) suspend(f *flight) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if f.cut {
		f.gate.aborted--
		f.gate.suspended++
	}
}

// answered notes that a flight has ended by itself: it only is to be recorded,
// and a cut that came meanwhile took nothing from it.
func (s *gates) answered(f *flight) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if f.cut {
		f.gate.aborted--
	}
	f.cut, f.whole = false, true
}

func (g *gate) stateLocked() fulgur.Pause {
	p := fulgur.Pause{Run: g.run, Paused: g.paused, InFlight: len(g.inflight), Held: g.held, Aborted: g.aborted, Suspended: g.suspended, Drained: g.drained}
	if g.paused {
		p.Owner, p.Refuse = g.owner, g.refuse
		if g.reason != nil {
			p.Reason = *g.reason
		}
		if !g.expires.IsZero() {
			e := g.expires
			p.Expires = &e
		}
	}
	return p
}

func (g *gate) resumeLocked() {
	if g.lease != nil {
		g.lease.Stop()
		g.lease = nil
	}
	if !g.paused {
		return
	}
	g.paused, g.owner, g.refuse, g.reason, g.expires = false, "", false, nil, time.Time{}
	g.aborted, g.suspended, g.drained = 0, 0, 0
	g.pauses++
	close(g.wake)
	g.wake = make(chan struct{})
}

// PauseCalls holds (or refuses) the calls of a run from now on, until its owner
// resumes them or the lease ends. With a drain, it returns when no call is in
// flight: those that are after the limit are aborted, and counted; with Partial,
// those that can go on after the pause from the tokens they have are suspended.
// The lease counts from the end of the drain. Asked again by the same owner it
// renews the lease. KindConflict while another one holds the pause, and if the
// pause ended before its drain did.
func (g *Gateway) PauseCalls(ctx context.Context, run fulgur.RunID, req fulgur.PauseRequest) (fulgur.Pause, error) {
	if run == "" {
		return fulgur.Pause{}, fulgur.E(fulgur.KindInvalid, "pause calls", "Say which run is to be paused", nil)
	}
	return g.gates.pause(ctx, run, req)
}

// ResumeCalls lets the calls of a run through again. owner is who paused it, or
// "" for a person. Resuming what is not paused changes nothing.
func (g *Gateway) ResumeCalls(ctx context.Context, run fulgur.RunID, owner string) (fulgur.Pause, error) {
	s := g.gates
	s.mu.Lock()
	gt := s.gateLocked(run)
	s.mu.Unlock()
	gt.order.Lock()
	defer gt.order.Unlock()
	s.mu.Lock()
	holder, state := gt.owner, gt.stateLocked()
	s.mu.Unlock()
	if state.Paused && owner != "" && owner != holder {
		return state, conflict(run, holder)
	}
	if err := s.forget(ctx, gt); err != nil {
		return state, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	gt.resumeLocked()
	return gt.stateLocked(), nil
}

// PauseState says whether the calls of a run are paused, and how many there are.
func (g *Gateway) PauseState(_ context.Context, run fulgur.RunID) (fulgur.Pause, error) {
	s := g.gates
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.gateLocked(run).stateLocked(), nil
}

func conflict(run fulgur.RunID, owner string) error {
	return fulgur.E(fulgur.KindConflict, "pause run "+string(run), fmt.Sprintf("The run is paused by %q: wait until it resumes", owner), nil)
}

func (s *gates) pause(ctx context.Context, run fulgur.RunID, req fulgur.PauseRequest) (fulgur.Pause, error) {
	lease := req.Lease
	if lease <= 0 {
		lease = defaultLease
	}
	first := lease // until the drain is over
	if req.Drain > 0 {
		first += req.Drain + suspendGrace + abortGrace
	}
	s.mu.Lock()
	g := s.gateLocked(run)
	s.mu.Unlock()
	pauses, err := s.begin(ctx, g, req, lease, first)
	if err == nil && req.Drain > 0 {
		start := time.Now()
		err = s.drain(ctx, g, req, pauses)
		s.mu.Lock()
		if g.pauses == pauses {
			g.drained = time.Since(start)
			s.leaseLocked(g, lease)
		}
		s.mu.Unlock()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return g.stateLocked(), err
}

// begin starts a pause, or renews it, and returns its number.
func (s *gates) begin(ctx context.Context, g *gate, req fulgur.PauseRequest, lease, first time.Duration) (int, error) {
	g.order.Lock()
	defer g.order.Unlock()
	s.mu.Lock()
	taken, owner := g.paused && g.owner != req.Owner, g.owner
	s.mu.Unlock()
	if taken {
		return 0, conflict(g.run, owner)
	}
	if err := s.remember(ctx, g, req, first); err != nil {
		return 0, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	g.startLocked(req, lease)
	s.leaseLocked(g, first)
	return g.pauses, nil
}

func (g *gate) startLocked(req fulgur.PauseRequest, lease time.Duration) {
	wasRefusing := g.refuse
	g.paused, g.owner, g.refuse = true, req.Owner, req.Refuse
	g.reason = nil
	if req.Reason != "" {
		g.reason = &req.Reason
	}
	if req.Refuse && !wasRefusing { // held ones look again, and are refused
		close(g.wake)
		g.wake = make(chan struct{})
	}
	g.retryAfter = max(1, min(20, int(lease/time.Second)))
}

// leaseLocked lets the pause end by itself after d.
func (s *gates) leaseLocked(g *gate, d time.Duration) {
	g.expires = time.Now().Add(d)
	if g.lease != nil {
		g.lease.Stop()
	}
	g.lease = time.AfterFunc(d, func() { s.expire(g) })
}

// expire ends a pause whose lease ran out, unless it was renewed meanwhile.
func (s *gates) expire(g *gate) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if g.paused && !g.expires.IsZero() && !time.Now().Before(g.expires) {
		g.resumeLocked()
	}
}

// drain waits until no call is in flight, and cuts off those that are after the
// limit.
func (s *gates) drain(ctx context.Context, g *gate, req fulgur.PauseRequest, pauses int) error {
	idle, err := s.waitIdle(ctx, g, req.Drain, pauses)
	if idle || err != nil {
		return err
	}
	if req.Partial {
		s.cut(g, errSuspended)
		if idle, err = s.waitIdle(ctx, g, suspendGrace, pauses); idle || err != nil {
			return err
		}
	}
	s.cut(g, errAborted)
	if idle, err = s.waitIdle(ctx, g, abortGrace, pauses); idle || err != nil {
		return err
	}
	s.mu.Lock()
	n := len(g.inflight)
	s.mu.Unlock()
	return fulgur.E(fulgur.KindTimeout, "drain run "+string(g.run), fmt.Sprintf("%d aborted calls have not ended: the pause stays, try again", n), nil)
}

// cut cuts off all calls in flight.
func (s *gates) cut(g *gate, cause error) {
	s.mu.Lock()
	var list []*flight
	for f := range g.inflight {
		list = append(list, f)
		if !f.cut && !f.whole {
			f.cut = true
			g.aborted++
		}
	}
	s.mu.Unlock()
	for _, f := range list {
		f.abort(cause)
	}
}

// anyPause is for a wait that no resume ends.
const anyPause = -1

// waitIdle waits until no call of the gate is in flight; false after the limit.
// It fails when ctx ends, and when the pause does.
func (s *gates) waitIdle(ctx context.Context, g *gate, limit time.Duration, pauses int) (bool, error) {
	t := time.NewTimer(limit)
	defer t.Stop()
	op := "drain run " + string(g.run)
	for {
		s.mu.Lock()
		n, idle, wake, over := len(g.inflight), g.idle, g.wake, pauses != anyPause && g.pauses != pauses
		s.mu.Unlock()
		switch {
		case over:
			return false, fulgur.E(fulgur.KindConflict, op, "The pause was ended while its calls were drained: pause again", nil)
		case n == 0:
			return true, nil
		}
		if pauses == anyPause {
			wake = nil
		}
		select {
		case <-idle:
		case <-wake:
		case <-t.C:
			return false, nil
		case <-ctx.Done():
			return false, fulgur.E(fulgur.KindCanceled, op, "The wait for calls in flight was cut short; the pause stays", context.Cause(ctx))
		}
	}
}

func (s *gates) close(ctx context.Context) error {
	s.mu.Lock()
	if !s.closed {
		s.closed = true
		close(s.done)
	}
	list := []*gate{s.all}
	for _, g := range s.runs {
		list = append(list, g)
	}
	for _, g := range list {
		if g.lease != nil {
			g.lease.Stop()
		}
	}
	s.mu.Unlock()
	for _, g := range list {
		if _, err := s.waitIdle(ctx, g, time.Hour, anyPause); err == nil {
			continue
		}
		s.cut(g, errAborted)
		if ok, _ := s.waitIdle(context.WithoutCancel(ctx), g, abortGrace, anyPause); !ok {
			return fulgur.E(fulgur.KindTimeout, "close gateway", "Some calls did not end", nil)
		}
	}
	return nil
}

package controller

import (
	"sync"

	"github.com/fulgur-rl/fulgur/internal/controller/plan"
)

// Pool is a number of slots that the controllers of several runs share. Each
// says how many executions it would start now, and gets slots in turn
// (plan.Pick); one that wants few leaves the rest to others.
type Pool struct {
	mu      sync.Mutex
	slots   int
	used    int // running, and given to be used
	turn    uint64
	members []*seat
}

// NewPool makes a pool of so many slots.
func NewPool(slots int) *Pool { return &Pool{slots: slots} }

// seat is one leading controller's place in a pool. A nil one has no limit.
type seat struct {
	pool    *Pool
	share   plan.Share // Running counts what was given too
	given   int        // slots that it was given and has not used yet
	changed chan struct{}
}

// join adds a seat; nil if there is no pool.
func (p *Pool) join() *seat {
	if p == nil {
		return nil
	}
	m := &seat{pool: p, changed: make(chan struct{}, 1)}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.members = append(p.members, m)
	return m
}

// leave gives back all that a seat has.
func (m *seat) leave() {
	if m == nil {
		return
	}
	p := m.pool
	p.mu.Lock()
	defer p.mu.Unlock()
	for i := range p.members {
		if p.members[i] == m {
			p.members = append(p.members[:i:i], p.members[i+1:]...)
			break
		}
	}
	p.used -= m.share.Running
	p.grant(nil)
}

// wake is when take may give more than before.
func (m *seat) wake() <-chan struct{} {
	if m == nil {
		return nil
	}
	return m.changed
}

// take says that n executions would start now, and returns how many may.
func (m *seat) take(n int) int {
	if m == nil {
		return n
	}
	p := m.pool
	p.mu.Lock()
	defer p.mu.Unlock()
	if over := m.given - n; over > 0 { // it wants fewer than it was given
		m.given -= over
		m.share.Running -= over
		p.used -= over
	}
	m.share.Wants = n - m.given
	p.grant(m)
	got := min(n, m.given)
	m.given -= got
	return got
}

// hold takes a slot for what runs already.
func (m *seat) hold() {
	if m == nil {
		return
	}
	m.pool.mu.Lock()
	defer m.pool.mu.Unlock()
	m.share.Running++
	m.pool.used++
}

// free gives a slot back.
func (m *seat) free() {
	if m == nil {
		return
	}
	m.pool.mu.Lock()
	defer m.pool.mu.Unlock()
	m.share.Running--
	m.pool.used--
	m.pool.grant(nil)
}

// grant gives free slots away and tells those who get some, but for the caller.
func (p *Pool) grant(caller *seat) {
	shares := make([]plan.Share, len(p.members))
	for i, m := range p.members {
		shares[i] = m.share
	}
	for p.used < p.slots {
		i := plan.Pick(shares)
		if i < 0 {
			return
		}
		p.used++
		p.turn++
		shares[i].Running++
		shares[i].Wants--
		shares[i].Turn = p.turn
		m := p.members[i]
		m.share = shares[i]
		m.given++
		if m == caller {
			continue
		}
		select {
		case m.changed <- struct{}{}:
		default:
		}
	}
}

package store

import (
	"cmp"
	"crypto/sha256"
	"slices"
	"strconv"
	"time"

	"github.com/fulgur-rl/fulgur"
)

// entry is a rollout with its attempts. A published entry is never changed: a
// write clones it, changes the clone, and puts it into its batch.
type entry struct {
	fulgur.Rollout
	num      int64 // order of creation, the key in the database
	attempts []attempt
	seq      fulgur.Seq // of its newest change
	rewardBy string     // attempt and source of Reward
	hidden   bool       // v1's DELETE
	stored   bool       // has a row
}

type attempt struct {
	fulgur.Attempt
	cred [sha256.Size]byte // hash of its credential
}

func (e *entry) clone() *entry {
	c := *e
	c.attempts = slices.Clone(e.attempts)
	return &c
}

// last returns the newest attempt, nil if none was opened.
func (e *entry) last() *attempt {
	if len(e.attempts) == 0 {
		return nil
	}
	return &e.attempts[len(e.attempts)-1]
}

func (e *entry) find(id fulgur.AttemptID) *attempt {
	n, err := strconv.Atoi(string(id))
	if err != nil || n < 0 || n >= len(e.attempts) || e.attempts[n].ID != id {
		return nil
	}
	return &e.attempts[n]
}

func (e *entry) identity(id fulgur.AttemptID) fulgur.Identity {
	a := e.find(id)
	return fulgur.Identity{Scope: fulgur.ScopeAttempt, Run: e.Run, Rollout: e.ID, Attempt: id,
		Ended: e.State.Terminal() || a == nil || a.Phase == fulgur.PhaseEnded}
}

type owner struct {
	rollout fulgur.RolloutID
	attempt fulgur.AttemptID
}

type leaseKey struct {
	run  fulgur.RunID
	name string
}

// live is what is held in memory: everything about rollouts that have not
// ended, runs, endpoints, leases, and the newest changes.
type live struct {
	open      map[fulgur.RolloutID]*entry
	order     []*entry // of creation; may hold entries that were replaced or have ended
	creds     map[[sha256.Size]byte]owner
	runs      map[fulgur.RunID]fulgur.Run
	endpoints map[fulgur.RunID][]fulgur.Endpoint
	leases    map[leaseKey]fulgur.Lease
	num       int64
	pos       int64 // of the newest completion
	seq       fulgur.Seq
	ring      []fulgur.Change // ascending; older ones are read from the rows
	from      fulgur.Seq      // all changes behind this one are in ring
	wake      chan struct{}   // closed at the next change
	recent    *recents
}

// maxRing bounds the changes held in memory.
const maxRing = 1 << 14

func newLive() *live {
	return &live{
		open:      map[fulgur.RolloutID]*entry{},
		creds:     map[[sha256.Size]byte]owner{},
		runs:      map[fulgur.RunID]fulgur.Run{},
		endpoints: map[fulgur.RunID][]fulgur.Endpoint{},
		leases:    map[leaseKey]fulgur.Lease{},
		wake:      make(chan struct{}),
		recent:    newRecents(maxRecent),
	}
}

// publish makes a committed batch visible.
func (l *live) publish(b *batch) {
	for _, e := range b.sorted() {
		old := l.open[e.ID]
		switch {
		case e.hidden || e.State.Terminal():
			if old != nil && old.num == e.num {
				delete(l.open, e.ID)
				for _, a := range e.attempts {
					delete(l.creds, a.cred)
				}
			}
		default:
			l.open[e.ID] = e
			if old == nil || old.num != e.num {
				l.order = append(l.order, e)
			}
		}
	}
	for _, c := range b.revoked {
		delete(l.creds, c)
	}
	for sum, o := range b.creds {
		if _, ok := l.open[o.rollout]; ok {
			l.creds[sum] = o
		}
	}
	l.recent.publish(b, l.num)
	if len(b.dropped) > 0 {
		l.recent.forget(b.dropped)
	}
	l.compact()
	for k, v := range b.runs {
		l.runs[k] = v
	}
	for k, v := range b.endpoints {
		l.endpoints[k] = v
	}
	for k, v := range b.leases {
		if v.Holder == "" {
			delete(l.leases, k)
			continue
		}
		l.leases[k] = v
	}
	l.num, l.pos, l.seq = b.num, b.pos, b.seq
	if len(b.changes) == 0 {
		return
	}
	l.ring = append(l.ring, b.changes...)
	if over := len(l.ring) - maxRing; over > maxRing/4 {
		l.from = l.ring[over-1].Seq
		n := copy(l.ring, l.ring[over:])
		clear(l.ring[n:])
		l.ring = l.ring[:n]
	}
	close(l.wake)
	l.wake = make(chan struct{})
}

// compact drops ended rollouts from the order when they are the most of it.
func (l *live) compact() {
	if len(l.order) < 64 || len(l.order) < 2*len(l.open) {
		return
	}
	kept := make([]*entry, 0, len(l.open)+len(l.open)/2)
	for _, e := range l.order {
		if cur := l.open[e.ID]; cur != nil && cur.num == e.num {
			kept = append(kept, cur)
		}
	}
	l.order = kept
}

// list returns the open rollouts that q selects, in order of creation, behind
// the one with number after.
func (l *live) list(q fulgur.RolloutQuery, after int64) []fulgur.Rollout {
	at, _ := slices.BinarySearchFunc(l.order, after+1, func(e *entry, n int64) int { return cmp.Compare(e.num, n) })
	var out []fulgur.Rollout
	for _, o := range l.order[at:] {
		if len(out) == q.Limit {
			break
		}
		e := l.open[o.ID]
		if e != nil && e.num == o.num && e.Run == q.Run && selects(q, e) {
			out = append(out, e.Rollout)
		}
	}
	return out
}

// selects says whether e, of the run of q, is in q's group and states.
func selects(q fulgur.RolloutQuery, e *entry) bool {
	return (q.Group == "" || e.Group == q.Group) && (len(q.States) == 0 || slices.Contains(q.States, e.State))
}

// batch is the state as the writes of one transaction see and change it.
type batch struct {
	s   *Store
	now time.Time

	entries     map[int64]*entry
	byID        map[fulgur.RolloutID]*entry // the visible ones of entries
	touched     map[int64]int               // the first attempt of a rollout that changed
	creds       map[[sha256.Size]byte]owner
	revoked     [][sha256.Size]byte
	calls       []*callRow
	events      []*eventRow
	completions []completion
	runs        map[fulgur.RunID]fulgur.Run
	endpoints   map[fulgur.RunID][]fulgur.Endpoint
	leases      map[leaseKey]fulgur.Lease
	changes     []fulgur.Change
	artifacts   artifactWrites
	dropped     []int64  // rollouts whose calls, events and artifacts go
	inserted    []*entry // that flush gave a row
	num, pos    int64
	seq         fulgur.Seq
}

type completion struct {
	pos    int64
	num    int64
	state  fulgur.RolloutState
	dataID string
	train  bool
}

func (s *Store) newBatch() *batch {
	return &batch{s: s, now: s.now(),
		entries:   map[int64]*entry{},
		byID:      map[fulgur.RolloutID]*entry{},
		touched:   map[int64]int{},
		creds:     map[[sha256.Size]byte]owner{},
		runs:      map[fulgur.RunID]fulgur.Run{},
		endpoints: map[fulgur.RunID][]fulgur.Endpoint{},
		leases:    map[leaseKey]fulgur.Lease{},
		num:       s.live.num, pos: s.live.pos, seq: s.live.seq,
	}
}

// next takes the next position of the log.
func (b *batch) next() fulgur.Seq {
	b.seq++
	return b.seq
}

// get returns the rollout as this batch sees it; KindNotFound if it is not
// there or hidden. The result is not to be changed.
func (b *batch) get(op string, id fulgur.RolloutID) (*entry, error) {
	if e := b.byID[id]; e != nil {
		if e.hidden {
			return nil, notFound(op, id)
		}
		return e, nil
	}
	if e := b.s.live.open[id]; e != nil {
		return e, nil
	}
	if r := b.s.live.recent.byID[id]; r != nil {
		return r.e, nil
	}
	e, err := b.s.sql.load(id)
	if err != nil {
		return nil, b.s.fail(op, err)
	}
	if e == nil {
		return nil, notFound(op, id)
	}
	return e, nil
}

// put makes e the rollout's state and logs a change of it.
func (b *batch) put(e *entry, kind fulgur.ChangeKind, a fulgur.AttemptID, phase fulgur.Phase) {
	e.seq = b.next()
	e.UpdatedAt = b.now
	b.entries[e.num] = e
	b.byID[e.ID] = e
	b.changes = append(b.changes, fulgur.Change{Seq: e.seq, Kind: kind, Run: e.Run, Rollout: e.ID,
		Attempt: a, State: e.State, Phase: phase})
}

// touch says that e's newest attempt changed.
func (b *batch) touch(e *entry) {
	i := len(e.attempts) - 1
	if first, ok := b.touched[e.num]; !ok || i < first {
		b.touched[e.num] = i
	}
}

// sorted returns the changed rollouts in order of creation.
func (b *batch) sorted() []*entry {
	out := make([]*entry, 0, len(b.entries))
	for _, e := range b.entries {
		out = append(out, e)
	}
	slices.SortFunc(out, func(x, y *entry) int { return cmp.Compare(x.num, y.num) })
	return out
}

func (b *batch) run(id fulgur.RunID) (fulgur.Run, bool) {
	if r, ok := b.runs[id]; ok {
		return r, true
	}
	r, ok := b.s.live.runs[id]
	return r, ok
}

func (b *batch) putRun(r fulgur.Run) {
	r.UpdatedAt = b.now
	b.runs[r.ID] = r
	b.changes = append(b.changes, fulgur.Change{Seq: b.next(), Kind: fulgur.ChangeRun, Run: r.ID})
}

func notFound(op string, id fulgur.RolloutID) error {
	return fulgur.E(fulgur.KindNotFound, op, "Rollout not found: "+string(id), nil)
}

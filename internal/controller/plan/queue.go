package plan

import (
	"slices"
	"time"

	"github.com/fulgur-rl/fulgur"
)

// Item is a rollout that waits for its next attempt.
type Item struct {
	ID         fulgur.RolloutID
	Validation bool      // goes before training rollouts
	NotBefore  time.Time // a retry's back-off; zero: now
	Created    time.Time // of the rollout, for the start latency
	// Rollout is the rollout as it was listed, if that is worth its memory;
	// otherwise it is read again when it starts.
	Rollout *fulgur.Rollout
}

// Queue holds the rollouts that wait, in two lines: validation, and the rest.
// It is owned by one goroutine.
type Queue struct {
	items map[fulgur.RolloutID]queued
	lines [2][]ticket // validation, training; may hold stale tickets
	later []ticket    // back-offs, soonest first
	turn  uint64
}

type queued struct {
	Item
	turn uint64
}

// ticket is a place in a line; it is stale if the item is gone or has come back
// with another turn.
type ticket struct {
	id   fulgur.RolloutID
	turn uint64
	at   time.Time
}

// NewQueue returns an empty queue.
func NewQueue() *Queue { return &Queue{items: map[fulgur.RolloutID]queued{}} }

// Len returns how many wait.
func (q *Queue) Len() int { return len(q.items) }

// Has says whether the rollout waits.
func (q *Queue) Has(id fulgur.RolloutID) bool { _, ok := q.items[id]; return ok }

// Add appends an item. One that waits already keeps its place.
func (q *Queue) Add(it Item) {
	if q.Has(it.ID) {
		return
	}
	q.turn++
	q.items[it.ID] = queued{it, q.turn}
	t := ticket{it.ID, q.turn, it.NotBefore}
	if !it.NotBefore.IsZero() {
		at, _ := slices.BinarySearchFunc(q.later, t, func(a, b ticket) int {
			if c := a.at.Compare(b.at); c != 0 {
				return c
			}
			return int(int64(a.turn) - int64(b.turn))
		})
		q.later = slices.Insert(q.later, at, t)
		return
	}
	line := q.line(it)
	q.lines[line] = append(q.lines[line], t)
}

// Remove takes an item out, if it is there.
func (q *Queue) Remove(id fulgur.RolloutID) { delete(q.items, id) }

// IDs returns all that wait, in no order.
func (q *Queue) IDs() []fulgur.RolloutID {
	out := make([]fulgur.RolloutID, 0, len(q.items))
	for id := range q.items {
		out = append(out, id)
	}
	return out
}

// Peek returns the next n items that may start now, and when the first of those
// that wait out a back-off may; zero: there is none. It forgets stale tickets,
// and changes nothing that can be seen.
func (q *Queue) Peek(now time.Time, n int) (items []Item, next time.Time) {
	for len(q.later) > 0 {
		t := q.later[0]
		it, ok := q.fresh(t)
		if ok && t.at.After(now) {
			next = t.at
			break
		}
		q.later = q.later[1:]
		if ok { // those that waited once go to the front: their group waits for them
			line := q.line(it)
			q.lines[line] = slices.Insert(q.lines[line], 0, ticket{t.id, t.turn, time.Time{}})
		}
	}
	for l := range q.lines {
		for len(q.lines[l]) > 0 {
			if _, ok := q.fresh(q.lines[l][0]); ok {
				break
			}
			q.lines[l] = q.lines[l][1:]
		}
		for _, t := range q.lines[l] {
			if len(items) >= n {
				break
			}
			if it, ok := q.fresh(t); ok {
				items = append(items, it)
			}
		}
	}
	return items, next
}

func (q *Queue) fresh(t ticket) (Item, bool) {
	it, ok := q.items[t.id]
	return it.Item, ok && it.turn == t.turn
}

func (q *Queue) line(it Item) int {
	if it.Validation {
		return 0
	}
	return 1
}

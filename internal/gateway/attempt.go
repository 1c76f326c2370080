package gateway

import (
	"container/list"
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/fulgur-rl/fulgur"
)

// maxAttempts is how many attempts are remembered beyond those with calls in
// flight. What is forgotten is read back from the record.
const maxAttempts = 8192

type attemptKey struct {
	rollout fulgur.RolloutID
	attempt fulgur.AttemptID
}

// attempt is what the gateway keeps of one attempt.
type attempt struct {
	key attemptKey

	load   sync.Mutex // held while the record is read
	loaded bool

	bodies atomic.Int64 // bytes of the bodies of the requests that are open

	mu       sync.Mutex
	next     int // index of the next call
	inflight int
	lastEnd  time.Time
	refused  int    // requests that became no call
	refusal  string // what the last of them was told
	upstream string // how the model server or the gateway failed the last call that ended; "": it did not
	overflow string // what that call was told if it did not fit the model's context; "": it did
	holding  int    // calls held now
	since    time.Time
	held     time.Duration
	late     int // requests after the end
	open     int // requests that are being read or answered
	bucket   bucket
	spec     *fulgur.RolloutSpec
	model    string
	rules    *rules
}

// attempts are the attempts that were active lately.
type attempts struct {
	records Records
	mu      sync.Mutex
	byKey   map[attemptKey]*list.Element
	recent  *list.List // of *attempt, the most recent in front
}

func newAttempts(r Records) *attempts {
	return &attempts{records: r, byKey: map[attemptKey]*list.Element{}, recent: list.New()}
}

func (s *attempts) get(k attemptKey) *attempt {
	s.mu.Lock()
	defer s.mu.Unlock()
	if e := s.byKey[k]; e != nil {
		s.recent.MoveToFront(e)
		return e.Value.(*attempt)
	}
	a := &attempt{key: k}
	s.byKey[k] = s.recent.PushFront(a)
	for e := s.recent.Back(); s.recent.Len() > maxAttempts && e != nil; {
		prev := e.Prev()
		if old := e.Value.(*attempt); old != a && old.idle() {
			s.recent.Remove(e)
			delete(s.byKey, old.key)
		}
		e = prev
	}
	return a
}

func (s *attempts) peek(k attemptKey) *attempt {
	s.mu.Lock()
	defer s.mu.Unlock()
	if e := s.byKey[k]; e != nil {
		return e.Value.(*attempt)
	}
	return nil
}

func (a *attempt) idle() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.inflight == 0 && a.holding == 0 && a.open == 0
}

// index gives the next call its number. The first time it looks at what is on
// record, so that numbers go on after a restart.
func (s *attempts) index(ctx context.Context, a *attempt) (int, error) {
	a.load.Lock()
	if !a.loaded {
		calls, err := s.records.Calls(ctx, a.key.rollout, a.key.attempt)
		if err != nil && fulgur.KindOf(err) != fulgur.KindNotFound {
			a.load.Unlock()
			return 0, err
		}
		a.mu.Lock()
		for i := range calls {
			a.next = max(a.next, calls[i].Index+1)
		}
		a.mu.Unlock()
		a.loaded = true
	}
	a.load.Unlock()
	a.mu.Lock()
	defer a.mu.Unlock()
	n := a.next
	a.next++
	a.inflight++
	return n, nil
}

func (a *attempt) end() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.inflight--
	a.lastEnd = time.Now()
}

// came notes what came of the call that ended last: fault is "" unless the
// model server or the gateway failed it, overflow unless it did not fit the context.
func (a *attempt) came(fault, overflow string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.upstream, a.overflow = fault, overflow
}

// refuse notes that a request became no call.
func (a *attempt) refuse(why string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.refused++
	a.refusal = why
}

// hold and release count the time during which at least one call was held: the
// attempt's clocks stand still for it.
func (a *attempt) hold() {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.holding++; a.holding == 1 {
		a.since = time.Now()
	}
}

func (a *attempt) release() {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.holding--; a.holding == 0 {
		a.held += time.Since(a.since)
	}
}

// Activity says what the gateway knows of an attempt's calls since it started:
// the attempt's idle and active clocks are read against it.
func (g *Gateway) Activity(_ context.Context, id fulgur.RolloutID, at fulgur.AttemptID) (fulgur.Activity, error) {
	a := g.attempts.peek(attemptKey{id, at})
	up := time.Since(g.began)
	if a == nil {
		return fulgur.Activity{Up: up}, nil
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	out := fulgur.Activity{Calls: a.next, InFlight: a.inflight, LastEnd: a.lastEnd, Held: a.held, Upstream: a.upstream, Overflow: a.overflow, Refused: a.refused, Refusal: a.refusal, Up: up}
	if a.holding > 0 {
		out.Held += time.Since(a.since)
	}
	return out, nil
}

// Activities is Activity for several attempts.
func (g *Gateway) Activities(ctx context.Context, keys []fulgur.AttemptKey) ([]fulgur.Activity, error) {
	out := make([]fulgur.Activity, len(keys))
	for i, k := range keys {
		var err error
		if out[i], err = g.Activity(ctx, k.Rollout, k.Attempt); err != nil {
			return nil, err
		}
	}
	return out, nil
}

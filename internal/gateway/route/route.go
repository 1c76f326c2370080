// Package route chooses the endpoint of a call where a model has several:
// rendezvous hashing (Thaler and Ravishankar 1998) by rollout, so that a rollout
// stays where its prefix cache is warm and a change of the set moves only the
// rollouts that it concerns; with bounded load (Mirrokni, Thorup and Zadimoghaddam
// 2016), so that no endpoint gets far more than its share; and with ejection of
// endpoints that fail, until a back-off has passed. It holds no lock and no clock.
package route

import (
	"hash/fnv"
	"math"
	"time"
)

// Options tune a Table; the zero value is a good default.
type Options struct {
	// Load is how far above the mean an endpoint's calls in flight may be before
	// the next one in order is taken; 0: 1.25, +Inf: unbounded.
	Load float64
	// Slack is the number of calls below which nothing counts as loaded; 0: 4.
	// Without it two rollouts would never share an endpoint.
	Slack int
	// Failures in a row eject an endpoint; 0: 3.
	Failures int
	// Backoff is how long the first ejection lasts; each one that follows without
	// a success between lasts twice as long, up to MaxBackoff. 0: 1 s and 1 minute.
	Backoff    time.Duration
	MaxBackoff time.Duration
}

func (o Options) defaults() Options {
	if o.Load == 0 {
		o.Load = 1.25
	}
	if o.Slack == 0 {
		o.Slack = 4
	}
	if o.Failures == 0 {
		o.Failures = 3
	}
	if o.Backoff == 0 {
		o.Backoff = time.Second
	}
	if o.MaxBackoff == 0 {
		o.MaxBackoff = time.Minute
	}
	return o
}

// endpoint is what is known of one.
type endpoint struct {
	inflight int
	failed   int       // failures in a row
	ejected  int       // ejections without a success between
	until    time.Time // out until then; zero: in
	trial    bool      // back from an ejection: one call at a time until it succeeds
}

// Table is what is known of all endpoints, by their names (addresses). One
// endpoint may be in the sets of several models.
type Table struct {
	o   Options
	eps map[string]*endpoint
}

// New returns an empty table.
func New(o Options) *Table { return &Table{o: o.defaults(), eps: map[string]*endpoint{}} }

// maxIdle bounds what is remembered of endpoints that nobody calls any more.
const maxIdle = 1024

func (t *Table) get(name string) *endpoint {
	e := t.eps[name]
	if e == nil {
		if len(t.eps) >= maxIdle {
			for n, old := range t.eps {
				if old.inflight == 0 {
					delete(t.eps, n)
				}
			}
		}
		e = &endpoint{}
		t.eps[name] = e
	}
	return e
}

// Pick chooses among the names, which must not be empty, for a key, and counts a
// call in flight there; Done ends it. The result is an index. The first in the
// key's order that is neither ejected nor loaded is taken; if all are ejected,
// the first in order that comes back soonest: a call that fails says more than
// one that is not tried.
func (t *Table) Pick(now time.Time, key string, names []string) int {
	total := 1
	for _, n := range names {
		total += t.get(n).inflight
	}
	bound := max(t.o.Slack, ceil(t.o.Load*float64(total)/float64(len(names))))
	best, top := -1, rank{}
	for i, n := range names {
		e := t.get(n)
		r := e.rank(now, bound)
		r.score = score(key, n)
		if best < 0 || r.before(top) {
			best, top = i, r
		}
	}
	e := t.get(names[best])
	if !e.until.IsZero() && !now.Before(e.until) {
		e.until, e.trial = time.Time{}, true
	}
	e.inflight++
	return best
}

func ceil(x float64) int {
	if x >= math.MaxInt32 {
		return math.MaxInt32
	}
	return int(math.Ceil(x))
}

// rank orders endpoints for a key: those that are in, then loaded ones, then
// those that are out by the time of their return.
type rank struct {
	class int
	until time.Time
	score uint64
}

func (e *endpoint) rank(now time.Time, bound int) rank {
	switch {
	case now.Before(e.until):
		return rank{class: 2, until: e.until}
	case e.inflight >= bound, e.inflight > 0 && (e.trial || !e.until.IsZero()):
		return rank{class: 1}
	}
	return rank{}
}

func (r rank) before(o rank) bool {
	if r.class != o.class {
		return r.class < o.class
	}
	if !r.until.Equal(o.until) {
		return r.until.Before(o.until)
	}
	return r.score > o.score
}

// score is the weight of a name for a key.
func score(key, name string) uint64 {
	h := fnv.New64a()
	_, _ = h.Write([]byte(key))
	_, _ = h.Write([]byte{0})
	_, _ = h.Write([]byte(name))
	x := h.Sum64()
	// FNV's high bits change little with the last bytes: the finaliser of
	// splitmix64 (Steele, Lea, Flood 2014) spreads them.
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

// Outcome is what a call says of its endpoint.
type Outcome int

// The outcomes. A call that its client gave up says nothing.
const (
	Unknown Outcome = iota
	OK
	Failed
)

// Done ends a call that Pick counted. It says whether the endpoint was ejected
// for it.
func (t *Table) Done(now time.Time, name string, o Outcome) (ejected bool) {
	e := t.get(name)
	e.inflight = max(0, e.inflight-1)
	switch o {
	case OK:
		*e = endpoint{inflight: e.inflight}
	case Failed:
		e.failed++
		if !e.trial && e.failed < t.o.Failures || now.Before(e.until) {
			return false // not yet, or already
		}
		wait := t.o.MaxBackoff
		if e.ejected < 16 {
			wait = min(wait, t.o.Backoff<<e.ejected)
		}
		e.ejected++
		e.failed, e.trial, e.until = 0, false, now.Add(wait)
		return true
	}
	return false
}

// Ejected is how many endpoints are out.
func (t *Table) Ejected(now time.Time) int {
	n := 0
	for _, e := range t.eps {
		if now.Before(e.until) {
			n++
		}
	}
	return n
}

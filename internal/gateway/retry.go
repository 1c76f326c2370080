package gateway

import (
	"context"
	"errors"
	"net/http"
	"strconv"
	"sync"
	"time"
)

// maxKept bounds the answers that wait in memory for clients that left.
const maxKept = 64

// errLeft ends a generation whose clients have all left.
var errLeft = errors.New("the client left")

// retries know the generations whose answers have not been delivered, so that a
// call that a client repeats is joined to the one that runs, or answered from
// the one that is finished: at most one generation per client call. See
// docs/design/0003-retries-and-pauses.md.
//
// A table of its own, with its own lock, that is never held while another is
// taken.
type retries struct {
	grace time.Duration // a generation goes on for so long without a client
	keep  time.Duration // an undelivered answer waits for so long

	mu       sync.Mutex
	closed   bool
	live     map[attemptKey][]*generation // the oldest first
	kept     int
	settling sync.WaitGroup // records of answers that nobody came back for
}

func newRetries(o *Options) *retries {
	return &retries{grace: o.RetryGrace, keep: o.RetryKeep, live: map[attemptKey][]*generation{}}
}

// stage is how far a generation has come.
type stage int

const (
	stageHeld     stage = iota // not at an upstream yet
	stageSampling              // at an upstream
	stageKept                  // whole, but all clients had left: neither delivered nor on record
	stageTold                  // whole, put on record, not delivered
	stageOver                  // delivered, failed or given up: no retry finds it
)

// generation is one generation, and who waits for it.
type generation struct {
	f      *flow // of the client that began it
	key    attemptKey
	cancel context.CancelCauseFunc
	same   func() sameness
	done   chan struct{} // closed when out is complete
	out    *ending       // set before the stage is kept or told; complete when done is closed

	// guarded by retries.mu
	stage  stage
	open   int // clients that wait for it
	last   int // of them, those whose last bytes are being written
	joined int // retries
	timer  *time.Timer
	turn   int // raised by whatever makes an armed timer void
}

// seat is a client that waits for a generation.
type seat struct {
	r   *retries
	gen *generation
	up  bool // guarded by retries.mu: it has not left, nor got its answer
}

// begin notes a generation that a flow is about to order. Only those of an
// attempt are found by retries.
func (r *retries) begin(f *flow, cancel context.CancelCauseFunc) *seat {
	gen := &generation{f: f, cancel: cancel, done: make(chan struct{}), open: 1}
	gen.same = sync.OnceValue(func() sameness { return sameOf(f.req.Body) })
	if f.attempt != nil {
		gen.key = f.attempt.key
		r.mu.Lock()
		r.live[gen.key] = append(r.live[gen.key], gen)
		r.mu.Unlock()
	}
	return &seat{r, gen, true}
}

// saysRetry says whether a request's headers tell that it repeats another:
// OpenAI's and Anthropic's SDKs count. Most harnesses' say nothing, or always 0.
func saysRetry(h http.Header) bool {
	n, err := strconv.Atoi(h.Get("X-Stainless-Retry-Count"))
	return err == nil && n > 0
}

// attach finds the generation that a request repeats: of the same attempt, with
// the same content, undelivered, and with no client any more, unless the
// request's headers say that it is a retry. settle: its answer is not on record
// yet, and the caller has to see to that.
func (r *retries) attach(key attemptKey, body []byte, says bool) (s *seat, settle bool) {
	r.mu.Lock()
	var some []*generation
	for _, gen := range r.live[key] {
		if gen.openTo(says) {
			some = append(some, gen)
		}
	}
	r.mu.Unlock()
	if len(some) == 0 {
		return nil, false // nearly always: nothing was compared
	}
	want := sameOf(body)
	alike := some[:0]
	for _, gen := range some {
		if want.valid && gen.same() == want {
			alike = append(alike, gen)
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	var found *generation
	for _, gen := range alike { // the newest that nobody waits for, else the oldest
		if gen.openTo(says) && (found == nil || gen.open == 0) {
			found = gen
		}
	}
	if found == nil {
		return nil, false
	}
	if found.stage == stageKept {
		found.stage, settle = stageTold, true
		r.kept--
	}
	found.disarm()
	found.open++
	found.joined++
	return &seat{r, found, true}, settle
}

// openTo says whether a retry may join; the caller holds the lock. While the end
// of the answer is being written it may not: the client can have read it, and
// call again, before the write returns.
func (g *generation) openTo(says bool) bool {
	return g.stage != stageOver && g.last == 0 && (says || g.open == 0)
}

func (g *generation) disarm() {
	g.turn++
	if g.timer != nil {
		g.timer.Stop()
		g.timer = nil
	}
}

func (r *retries) armLocked(g *generation, d time.Duration) {
	g.disarm()
	turn := g.turn
	g.timer = time.AfterFunc(d, func() { r.expire(g, turn) })
}

// over takes a generation out of the table; the caller holds the lock.
func (r *retries) overLocked(g *generation) {
	if g.stage == stageOver {
		return
	}
	if g.stage == stageKept {
		r.kept--
	}
	g.stage = stageOver
	g.disarm()
	list := r.live[g.key]
	for i, x := range list {
		if x == g {
			list = append(list[:i:i], list[i+1:]...)
			break
		}
	}
	if len(list) == 0 {
		delete(r.live, g.key)
	} else {
		r.live[g.key] = list
	}
}

// admitted notes that the generation goes to an upstream now; false if its
// clients have left.
func (s *seat) admitted() bool {
	s.r.mu.Lock()
	defer s.r.mu.Unlock()
	if s.gen.stage == stageOver {
		return false
	}
	s.gen.stage = stageSampling
	return true
}

// leave notes that the client is gone. The last one's leaving ends a generation
// after the grace, and at once one that is not at an upstream yet.
func (s *seat) leave() {
	r, g := s.r, s.gen
	r.mu.Lock()
	defer r.mu.Unlock()
	if !s.up {
		return
	}
	s.up = false
	g.open--
	if g.open > 0 {
		return
	}
	switch {
	case g.stage == stageHeld, g.stage == stageSampling && (r.grace <= 0 || g.f.attempt == nil):
		r.overLocked(g)
		g.cancel(errLeft)
	case g.stage == stageSampling:
		r.armLocked(g, r.grace)
	case g.stage == stageTold && !r.closed && r.keep > 0:
		r.armLocked(g, r.keep)
	default:
		r.overLocked(g)
	}
}

// lastBytes announces the end of the client's answer; false: it has left.
func (s *seat) lastBytes() bool {
	s.r.mu.Lock()
	defer s.r.mu.Unlock()
	if s.up {
		s.gen.last++
	}
	return s.up
}

// wrote says whether that end was written. If so, the call is delivered: from
// now on the same call again is another call.
func (s *seat) wrote(ok bool) {
	s.r.mu.Lock()
	s.gen.last--
	if ok {
		s.r.overLocked(s.gen)
	}
	s.r.mu.Unlock()
	s.leave()
}

// end takes a generation's outcome. left: all clients have left. keep: the
// answer is whole all the same, and is kept for a retry, to be put on record
// when it is known what became of it.
func (r *retries) end(g *generation, out *ending) (left, keep bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	g.out = out
	left = g.open == 0
	switch {
	case !out.whole():
		r.overLocked(g)
	case !left:
		g.stage = stageTold
	case g.stage == stageSampling && r.keep > 0 && !r.closed && r.kept < maxKept:
		g.stage = stageKept
		r.kept++
		r.armLocked(g, r.keep)
		return true, true
	default:
		r.overLocked(g)
	}
	return left, false
}

// joins is how many retries have joined the generation.
func (r *retries) joins(g *generation) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return g.joined
}

// expire ends the wait for a client that left.
func (r *retries) expire(g *generation, turn int) {
	r.mu.Lock()
	if g.turn != turn {
		r.mu.Unlock()
		return
	}
	stage := g.stage
	r.overLocked(g)
	if stage == stageKept {
		r.settling.Add(1)
	}
	r.mu.Unlock()
	switch stage {
	case stageSampling:
		g.cancel(errLeft)
	case stageKept:
		defer r.settling.Done()
		g.f.settle(context.Background(), g.out, true)
		close(g.done)
	}
}

// close puts what is kept on record, as left by its client. Nothing is kept from
// then on.
func (r *retries) close() {
	r.mu.Lock()
	r.closed = true
	var kept []*generation
	for _, list := range r.live {
		for _, g := range list {
			if g.stage == stageKept || g.stage == stageTold && g.open == 0 {
				kept = append(kept, g)
			}
		}
	}
	settle := kept[:0]
	for _, g := range kept {
		if g.stage == stageKept {
			settle = append(settle, g)
		}
		r.overLocked(g)
	}
	r.mu.Unlock()
	for _, g := range settle {
		g.f.settle(context.Background(), g.out, true)
		close(g.done)
	}
	r.settling.Wait()
}

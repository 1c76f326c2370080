package gateway

import (
	"net/http"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/fulgur-rl/fulgur/internal/gateway/call"
	"github.com/fulgur-rl/fulgur/internal/gateway/dialect"
)

// answer writes one call's answer. Signs of life come from a timer, so all
// writing is under one lock; every field below it is guarded by it.
type answer struct {
	w   http.ResponseWriter
	rc  *http.ResponseController
	o   *Options
	out dialect.Stream // nil: unstreamed
	cut atomic.Bool    // the deadline of writes has been taken back

	mu      sync.Mutex
	buf     []byte
	started bool // status and headers have gone out
	closed  bool
	err     error // the client can't be written to
	born    time.Time
	last    time.Time // of the last byte
	until   time.Time // the deadline of writes; zero: none is set
	held    bool      // waiting for a pause to end
	timer   *time.Timer
}

func newAnswer(w http.ResponseWriter, o *Options, out dialect.Stream) *answer {
	now := time.Now()
	a := &answer{w: w, rc: http.NewResponseController(w), o: o, out: out, born: now, last: now}
	if out != nil {
		a.mu.Lock()
		defer a.mu.Unlock()
		a.beatLocked()
	}
	return a
}

// hold starts signs of life: a silent connection is dropped by harnesses after
// two to five minutes. An unstreamed call gets them only while it is held, a
// stream also while its upstream is silent.
func (a *answer) hold() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.held = true
	a.beatLocked()
}

func (a *answer) release() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.held = false
}

func (a *answer) beatLocked() {
	if a.timer == nil && !a.closed {
		a.timer = time.AfterFunc(a.o.KeepAlive, a.beat)
	}
}

func (a *answer) beat() {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.closed || a.err != nil {
		return
	}
	wait := a.o.KeepAlive
	switch silent := time.Since(a.last); {
	case silent < a.o.KeepAlive:
		wait -= silent
	case a.out != nil && (a.started || a.held || time.Since(a.born) >= a.o.SpaceAfter):
		a.writeLocked(a.out.KeepAlive(a.buf[:0]))
	case a.out != nil: // not yet: the upstream may still refuse, and then the status says so
		wait = min(wait, a.o.SpaceAfter-time.Since(a.born))
	case a.held && time.Since(a.born) >= a.o.SpaceAfter:
		a.writeLocked([]byte{' '})
	case a.held:
		wait = min(wait, a.o.SpaceAfter-time.Since(a.born))
	default:
		a.timer = nil // unstreamed, no longer held
		return
	}
	a.timer.Reset(wait)
}

// writeLocked sends bytes at once.
func (a *answer) writeLocked(b []byte) {
	if len(b) == 0 || a.err != nil {
		return
	}
	a.buf = b[:0]
	if !a.started {
		a.started = true
		h := a.w.Header()
		if a.out != nil {
			h.Set("Content-Type", "text/event-stream; charset=utf-8")
			h.Set("Cache-Control", "no-cache")
			h.Set("X-Accel-Buffering", "no")
		} else {
			h.Set("Content-Type", "application/json")
		}
		a.w.WriteHeader(http.StatusOK)
	}
	a.limitLocked()
	if _, err := a.w.Write(b); err != nil {
		a.err = err
		return
	}
	a.err = a.rc.Flush()
}

// limitLocked gives a write its deadline, and notes the time. A stream's pieces share
// deadlines, for to set one takes as long as to write a piece.
func (a *answer) limitLocked() {
	a.last = time.Now()
	if t := a.o.WriteTimeout; a.until.Sub(a.last) < t-t/8 || a.cut.Swap(false) {
		a.until = a.last.Add(t)
		_ = a.rc.SetWriteDeadline(a.until) // a recorder in tests has none
	}
}

// delta passes a piece on; its error says that the client is gone.
func (a *answer) delta(d call.Delta) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.beatLocked()
	a.writeLocked(a.out.Delta(a.buf[:0], d))
	return a.err
}

// unblock ends a write that waits for a client that does not read.
func (a *answer) unblock() {
	a.cut.Store(true)
	_ = a.rc.SetWriteDeadline(time.Unix(1, 0))
}

// isStarted says whether the status can no longer be chosen.
func (a *answer) isStarted() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.started
}

// close writes the end of a good stream.
func (a *answer) close(res *call.Result) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.writeLocked(a.out.Close(a.buf[:0], res))
	a.stopLocked()
	return a.err
}

// whole writes an unstreamed answer, or an error before anything was sent.
func (a *answer) whole(status int, contentType string, body []byte) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	defer a.stopLocked()
	if a.err != nil {
		return a.err
	}
	if !a.started {
		a.started = true
		h := a.w.Header()
		h.Set("Content-Type", contentType)
		h.Set("Content-Length", strconv.Itoa(len(body)))
		a.w.WriteHeader(status)
	}
	a.limitLocked()
	if _, a.err = a.w.Write(body); a.err == nil {
		a.err = a.rc.Flush()
	}
	return a.err
}

// fail ends a started answer badly: with an error event where there is a
// stream. The caller breaks the connection then.
func (a *answer) fail(f dialect.Failure) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.out != nil {
		a.writeLocked(a.out.Fail(a.buf[:0], f))
	}
	a.stopLocked()
}

func (a *answer) stop() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.stopLocked()
}

func (a *answer) stopLocked() {
	a.closed = true
	_ = a.rc.SetWriteDeadline(time.Time{}) // the connection lives on, for other handlers too
	if a.timer != nil {
		a.timer.Stop()
	}
}

package chat

import (
	"context"
	"net/http"
	"runtime"
	"sync"
	"time"
)

// turnstile lets a few long answers be read and put on record at once. Of a thousand that
// have come each would be read in part before the first was read whole, and then all would
// wait for the record, which has its turn behind a thousand readers: what they took of
// memory cost as much again as all else that is done for them.
type turnstile chan struct{}

const (
	longAnswer = 32 << 10 // bytes
	// A server that is slow with the rest of its answer, and a record that is slow, hold
	// up nobody else.
	readLimit, recordLimit = 5 * time.Millisecond, time.Second
)

func newTurnstile() turnstile { return make(turnstile, 8*runtime.GOMAXPROCS(0)) }

// turn is a call's; nil is that of a short answer.
type turn struct {
	timer *time.Timer
	over  func()
}

// enter waits for a turn, if the answer is long.
func (t turnstile) enter(ctx context.Context, resp *http.Response) *turn {
	if resp.ContentLength < longAnswer {
		return nil
	}
	select {
	case t <- struct{}{}:
	case <-ctx.Done():
		return nil
	}
	over := sync.OnceFunc(func() { <-t })
	return &turn{time.AfterFunc(readLimit, over), over}
}

// read notes that the answer has been read.
func (t *turn) read() {
	if t != nil && t.timer.Stop() {
		t.timer.Reset(recordLimit)
	}
}

// end ends the turn; it may be called again.
func (t *turn) end() {
	if t != nil {
		t.timer.Stop()
		t.over()
	}
}

package chat

import (
	"context"
	"net/http"
	"runtime"
	"sync"
	"time"
)

// turnstile lets a few long answers be read at once. When a thousand have come, each
// would be read in part, and all would be in memory together, before the first was read
// whole: that took as long as all else that is done for them.
type turnstile chan struct{}

const (
	longAnswer = 32 << 10 // bytes
	// A server that is slow with the rest holds up no other.
	turnLimit = 5 * time.Millisecond
)

func newTurnstile() turnstile { return make(turnstile, 4*runtime.GOMAXPROCS(0)) }

// enter waits for a turn, if the answer is long; leave, which may be called again, ends it.
func (t turnstile) enter(ctx context.Context, resp *http.Response) (leave func()) {
	if resp.ContentLength < longAnswer {
		return func() {}
	}
	select {
	case t <- struct{}{}:
	case <-ctx.Done():
		return func() {}
	}
	once := sync.OnceFunc(func() { <-t })
	limit := time.AfterFunc(turnLimit, once)
	return func() {
		limit.Stop()
		once()
	}
}

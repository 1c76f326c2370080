package chat

import (
	"context"
	"net/http/httptrace"
	"sync"
	"time"
)

// departures has the calls that a pause held go out before the answers to the first of
// them are read: when thousands go on at once, to read and record one answer takes as
// long as to send ten of the others, which would wait for seconds behind those.
type departures struct {
	mu   sync.Mutex
	n    int           // calls that have yet to be sent
	none chan struct{} // closed when there are none; nil: nobody waits
}

// answersWait is the longest that an answer is left for calls that have yet to be sent.
const answersWait = 2 * time.Second

// begin notes that a call is about to be sent. gone says that it was, or will not be;
// it may be called again.
func (d *departures) begin() (gone func()) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.n++
	return sync.OnceFunc(func() {
		d.mu.Lock()
		defer d.mu.Unlock()
		if d.n--; d.n == 0 && d.none != nil {
			close(d.none)
			d.none = nil
		}
	})
}

// wait returns when all have been sent, at ctx's end, or after answersWait.
func (d *departures) wait(ctx context.Context) {
	d.mu.Lock()
	if d.n == 0 {
		d.mu.Unlock()
		return
	}
	if d.none == nil {
		d.none = make(chan struct{})
	}
	none := d.none
	d.mu.Unlock()
	limit := time.NewTimer(answersWait)
	defer limit.Stop()
	select {
	case <-none:
	case <-limit.C:
	case <-ctx.Done():
	}
}

// traced has gone called when a request has been written.
func traced(ctx context.Context, gone func()) context.Context {
	return httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{WroteRequest: func(httptrace.WroteRequestInfo) { gone() }})
}

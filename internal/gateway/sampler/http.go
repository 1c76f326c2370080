package sampler

import (
	"context"
	"errors"
	"math/rand/v2"
	"net"
	"net/http"
	"time"
)

// NewClient returns a client for model servers. It follows no redirect, opens
// as many connections as there are calls (a pool with a limit makes call 101
// wait for a whole generation), and drops idle ones before uvicorn does (5 s):
// a POST on a dying connection can't be repeated safely.
func NewClient() *http.Client {
	dialer := &net.Dialer{Timeout: 10 * time.Second, KeepAlive: 15 * time.Second}
	return &http.Client{
		Transport: &http.Transport{
			DialContext:           dialer.DialContext,
			MaxIdleConns:          0,
			MaxIdleConnsPerHost:   4096,
			IdleConnTimeout:       4 * time.Second,
			TLSHandshakeTimeout:   10 * time.Second,
			ExpectContinueTimeout: time.Second,
			WriteBufferSize:       64 << 10,
			ReadBufferSize:        64 << 10,
		},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
}

// Retry bounds how often a call is tried upstream.
type Retry struct {
	Tries   int           // 0: 6
	Backoff time.Duration // before the second try, doubling to 16 times that; 0: 500 ms
	Try     time.Duration // a try's limit: the whole of an unstreamed answer, each silence of a streamed one; 0: 300 s
	Total   time.Duration // no try starts after this; 0: 30 minutes
}

// Defaults fills what is zero.
func (r Retry) Defaults() Retry {
	if r.Tries == 0 {
		r.Tries = 6
	}
	if r.Backoff == 0 {
		r.Backoff = 500 * time.Millisecond
	}
	if r.Try == 0 {
		r.Try = 300 * time.Second
	}
	if r.Total == 0 {
		r.Total = 30 * time.Minute
	}
	return r
}

// Wait sleeps before try n (1 is the first repetition): the backoff doubled n-1
// times, at most 16-fold, ±25 %. It returns early with ctx's error.
func (r Retry) Wait(ctx context.Context, n int) error {
	d := r.Backoff << min(n-1, 4)
	d = time.Duration(float64(d) * (0.75 + rand.Float64()/2))
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// Retryable says whether an answer's status is worth another try.
func Retryable(status int) bool {
	return status == 408 || status == 409 || status == 429 || status >= 500
}

// IsTimeout says whether err is a time-out.
func IsTimeout(err error) bool {
	var n net.Error
	return errors.Is(err, context.DeadlineExceeded) || errors.As(err, &n) && n.Timeout()
}

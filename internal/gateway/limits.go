package gateway

import (
	"fmt"
	"math"
	"net/http"
	"time"

	"github.com/fulgur-rl/fulgur"
)

// tooMany is the answer to a request above its attempt's rate, number or share.
type tooMany struct {
	limit      string // "concurrency", "rate", "bodies": for the counter
	retryAfter int    // seconds
	msg        string
}

func (e *tooMany) Error() string { return e.msg }

// limit admits one request of an attempt to the reading of its body, or refuses
// it. Server keys and v1's peers have no limit. release is to be called when the
// request is answered.
func (g *Gateway) limit(r *http.Request, t *target) (release func(), err error) {
	if !t.limited {
		return func() {}, nil
	}
	if n := headerBytes(r.Header); g.o.MaxHeader > 0 && n > g.o.MaxHeader {
		return nil, fulgur.E(fulgur.KindTooLarge, "read headers", fmt.Sprintf("The request's headers have %d bytes, more than the %d that are taken", n, g.o.MaxHeader), nil)
	}
	a := g.attempts.get(attemptKey{t.rollout, t.attempt})
	a.mu.Lock()
	defer a.mu.Unlock()
	if g.o.MaxConcurrent > 0 && a.open >= g.o.MaxConcurrent {
		return nil, &tooMany{"concurrency", 1, fmt.Sprintf("The attempt has %d calls under way, the most that are taken: wait for one to end", a.open)}
	}
	if wait := a.bucket.take(time.Now(), g.o.MaxRate, g.o.Burst); wait > 0 {
		return nil, &tooMany{"rate", int(math.Ceil(wait.Seconds())), fmt.Sprintf("The attempt calls more often than %g times a second: slow down", g.o.MaxRate)}
	}
	a.open++
	return func() {
		a.mu.Lock()
		defer a.mu.Unlock()
		a.open--
	}, nil
}

func headerBytes(h http.Header) int {
	n := 0
	for k, list := range h {
		for _, v := range list {
			n += len(k) + len(v) + 4 // ": " and the end of the line
		}
	}
	return n
}

// bucket is a token bucket: rate a second on average, burst at once.
type bucket struct {
	spent float64 // tokens that are missing from a full bucket
	at    time.Time
}

// take takes a token, or says how long it will be until there is one.
func (b *bucket) take(now time.Time, rate float64, burst int) time.Duration {
	if rate <= 0 {
		return 0
	}
	spent := max(0, b.spent-now.Sub(b.at).Seconds()*rate)
	if spent+1 > float64(burst) {
		return time.Duration((spent + 1 - float64(burst)) / rate * float64(time.Second))
	}
	b.spent, b.at = spent+1, now
	return 0
}

package chat

import (
	"context"
	"net/http"
	"testing"
	"testing/synctest"
	"time"
)

// Turns are few, end by themselves when a server is slow, and are not waited for by
// short answers nor by a call that ends.
func TestTurnstile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		gate := newTurnstile()
		long, short := &http.Response{ContentLength: 1 << 20}, &http.Response{ContentLength: 100}
		began := time.Now()
		for range cap(gate) {
			defer gate.enter(t.Context(), long).end()
		}
		gate.enter(t.Context(), short).end()
		ended, end := context.WithCancel(t.Context())
		end()
		gate.enter(ended, long).end()
		if d := time.Since(began); d != 0 {
			t.Errorf("they waited for %s", d)
		}
		quick := gate.enter(t.Context(), long) // all turns are taken by the slow
		if d := time.Since(began); d != readLimit {
			t.Errorf("the next one waited for %s", d)
		}
		synctest.Wait()
		quick.read()
		time.Sleep(2 * readLimit)
		synctest.Wait()
		if len(gate) != 1 {
			t.Errorf("%d turns are taken by one that is being recorded", len(gate))
		}
		quick.end()
		quick.end()
		gate.enter(t.Context(), long).read() // and is never recorded
		time.Sleep(2 * recordLimit)
		synctest.Wait()
		if len(gate) != 0 {
			t.Errorf("%d turns are taken", len(gate))
		}
	})
}

package chat

import (
	"context"
	"testing"
	"testing/synctest"
	"time"
)

// TestAnswersWaitForWhatIsToBeSent: as long as held calls have yet to be sent, the answers
// to the others are left, but not for ever.
func TestAnswersWaitForWhatIsToBeSent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var d departures
		waited := func(ctx context.Context) time.Duration {
			began := time.Now()
			d.wait(ctx)
			return time.Since(began)
		}
		if w := waited(t.Context()); w != 0 {
			t.Errorf("with nothing to be sent: %v", w)
		}
		first, second := d.begin(), d.begin()
		time.AfterFunc(100*time.Millisecond, first)
		time.AfterFunc(150*time.Millisecond, first) // once more counts for nothing
		time.AfterFunc(300*time.Millisecond, second)
		if w := waited(t.Context()); w != 300*time.Millisecond {
			t.Errorf("two to be sent: %v", w)
		}
		never := d.begin()
		if w := waited(t.Context()); w != answersWait {
			t.Errorf("one that is never sent: %v", w)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
		defer cancel()
		if w := waited(ctx); w != time.Millisecond {
			t.Errorf("a call that ends: %v", w)
		}
		never()
		if w := waited(t.Context()); w != 0 {
			t.Errorf("behind them: %v", w)
		}
	})
}

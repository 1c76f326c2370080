package gateway

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fulgur-rl/fulgur"
)

// visit is a call that stays at the upstream for a while.
func visit(g *Gateway, run fulgur.RunID, stay time.Duration, upstream *atomic.Int64) error {
	ctx, cancel := context.WithCancelCause(context.Background())
	defer cancel(nil)
	f, err := g.gates.enter(ctx, run, time.Hour, func() {}, func(e error) { cancel(e) })
	if err != nil {
		return err
	}
	defer g.gates.leave(f)
	upstream.Add(1)
	defer upstream.Add(-1)
	select {
	case <-time.After(stay):
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// AS-03: a thousand calls race a pause: once it has drained, nothing is at the
// upstream before the resume.
func TestNothingPassesADrainedPause(t *testing.T) {
	for range 5 {
		synctest.Test(t, func(t *testing.T) {
			g := New(Options{})
			var upstream atomic.Int64
			var wg sync.WaitGroup
			for range 1000 {
				wait, stay := time.Duration(rand.IntN(1000))*time.Millisecond, time.Duration(rand.IntN(100))*time.Millisecond
				wg.Go(func() {
					time.Sleep(wait)
					if err := visit(g, "run", stay, &upstream); err != nil {
						t.Error(err)
					}
				})
			}
			time.Sleep(300 * time.Millisecond)
			p, err := g.PauseCalls(t.Context(), "run", fulgur.PauseRequest{Owner: "me", Drain: time.Minute})
			if err != nil || p.InFlight != 0 || !p.Paused || p.Aborted != 0 {
				t.Fatalf("%+v %v", p, err)
			}
			for range 100 {
				time.Sleep(10 * time.Millisecond)
				if n := upstream.Load(); n != 0 {
					t.Fatalf("%d calls are at the upstream of a drained run", n)
				}
			}
			p, _ = g.PauseState(t.Context(), "run")
			if p.Held < 500 {
				t.Errorf("%d calls are held", p.Held)
			}
			if _, err := g.ResumeCalls(t.Context(), "run", "me"); err != nil {
				t.Error(err)
			}
			wg.Wait()
		})
	}
}

// AS-02: a stuck call does not stop training for good.
func TestADrainHasALimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := New(Options{})
		var upstream atomic.Int64
		got := make(chan error, 1)
		go func() { got <- visit(g, "run", time.Hour, &upstream) }()
		synctest.Wait()
		start := time.Now()
		p, err := g.PauseCalls(t.Context(), "run", fulgur.PauseRequest{Owner: "me", Drain: 3 * time.Second})
		if err != nil || p.Aborted != 1 || p.InFlight != 0 || time.Since(start) != 3*time.Second {
			t.Errorf("%+v %v after %v", p, err, time.Since(start))
		}
		if err := <-got; !errors.Is(err, errAborted) {
			t.Errorf("the call ended with %v", err)
		}
		_, _ = g.ResumeCalls(t.Context(), "run", "")
	})
}

// Calls that have their answers when the limit of a drain comes, or get them as
// they are cut off, are not counted as aborted.
func TestAWholeAnswerIsNotAborted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := New(Options{})
		for _, answer := range []time.Duration{50 * time.Millisecond, 101 * time.Millisecond} {
			go func() {
				f, err := g.gates.enter(t.Context(), "run", time.Hour, func() {}, func(error) {}) // the cut comes too late for it
				if err != nil {
					t.Error(err)
					return
				}
				time.Sleep(answer)
				g.gates.answered(f)
				time.Sleep(100 * time.Millisecond) // the record is written
				g.gates.leave(f)
			}()
		}
		synctest.Wait()
		p, err := g.PauseCalls(t.Context(), "run", fulgur.PauseRequest{Owner: "me", Drain: 100 * time.Millisecond, Partial: true})
		if err != nil || p.InFlight != 0 || p.Aborted != 0 || p.Suspended != 0 {
			t.Errorf("%+v %v", p, err)
		}
	})
}

func TestALeaseEndsByItself(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := New(Options{})
		var upstream atomic.Int64
		pause := func(lease time.Duration) {
			if _, err := g.PauseCalls(t.Context(), "run", fulgur.PauseRequest{Owner: "me", Lease: lease}); err != nil {
				t.Fatal(err)
			}
		}
		pause(10 * time.Second)
		done := make(chan time.Time, 1)
		start := time.Now()
		go func() {
			if err := visit(g, "run", 0, &upstream); err != nil {
				t.Error(err)
			}
			done <- time.Now()
		}()
		time.Sleep(5 * time.Second)
		pause(10 * time.Second) // renewed
		if took := (<-done).Sub(start); took != 15*time.Second {
			t.Errorf("held for %v, want 15 s", took)
		}
		if p, _ := g.PauseState(t.Context(), "run"); p.Paused {
			t.Errorf("still paused: %+v", p)
		}
	})
}

func TestAPauseHasAnOwner(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := New(Options{})
		ctx := t.Context()
		if _, err := g.PauseCalls(ctx, "run", fulgur.PauseRequest{Owner: "a", Reason: "update"}); err != nil {
			t.Fatal(err)
		}
		if _, err := g.PauseCalls(ctx, "run", fulgur.PauseRequest{Owner: "b"}); fulgur.KindOf(err) != fulgur.KindConflict {
			t.Errorf("another owner's pause: %v", err)
		}
		if _, err := g.ResumeCalls(ctx, "run", "b"); fulgur.KindOf(err) != fulgur.KindConflict {
			t.Errorf("another owner's resume: %v", err)
		}
		if p, _ := g.PauseState(ctx, "other"); p.Paused {
			t.Error("the pause of a run is of that run only")
		}
		if p, err := g.ResumeCalls(ctx, "run", ""); err != nil || p.Paused {
			t.Errorf("a person's resume: %+v %v", p, err)
		}
		if _, err := g.PauseCalls(ctx, "", fulgur.PauseRequest{}); fulgur.KindOf(err) != fulgur.KindInvalid {
			t.Errorf("a pause of no run: %v", err)
		}
	})
}

func TestRefusing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := New(Options{})
		var upstream atomic.Int64
		ctx := t.Context()
		held := make(chan error, 1)
		_, _ = g.PauseCalls(ctx, "run", fulgur.PauseRequest{Owner: "a"})
		go func() { held <- visit(g, "run", 0, &upstream) }()
		synctest.Wait()
		_, _ = g.PauseCalls(ctx, "run", fulgur.PauseRequest{Owner: "a", Refuse: true, Lease: 7 * time.Second})
		var r *refusal
		if err := <-held; !errors.As(err, &r) || r.retryAfter != 7 {
			t.Errorf("a held call that is then refused: %v", err)
		}
		if err := visit(g, "run", 0, &upstream); !errors.As(err, &r) {
			t.Errorf("a new call: %v", err)
		}
		_, _ = g.ResumeCalls(ctx, "run", "a")
		// v1: over all runs, without an end; the values are replaced, resume keeps the seconds
		why := "weights"
		if p := g.PauseAll(3, &why); !p.Paused || p.RetryAfterSeconds != 3 || *p.Reason != why {
			t.Errorf("%+v", p)
		}
		if err := visit(g, "any", 0, &upstream); !errors.As(err, &r) || r.retryAfter != 3 {
			t.Errorf("a call in v1's pause: %v", err)
		}
		time.Sleep(time.Hour)
		if p := g.StateAll(); !p.Paused {
			t.Error("v1's pause has no lease")
		}
		if p := g.ResumeAll(); p.Paused || p.Reason != nil || p.RetryAfterSeconds != 3 {
			t.Errorf("%+v", p)
		}
		if err := visit(g, "any", 0, &upstream); err != nil {
			t.Error(err)
		}
	})
}

func TestAHoldHasABound(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := New(Options{})
		_, _ = g.PauseCalls(t.Context(), "run", fulgur.PauseRequest{Owner: "a", Lease: time.Hour})
		start := time.Now()
		_, err := g.gates.enter(t.Context(), "run", time.Minute, func() {}, func(error) {})
		if fulgur.KindOf(err) != fulgur.KindUnavailable || time.Since(start) != time.Minute {
			t.Errorf("%v after %v", err, time.Since(start))
		}
		_, _ = g.ResumeCalls(t.Context(), "run", "a")
	})
}

func TestCloseWaitsThenAborts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := New(Options{})
		var upstream atomic.Int64
		var wg sync.WaitGroup
		wg.Go(func() {
			if err := visit(g, "run", time.Second, &upstream); err != nil {
				t.Errorf("a call that ends in time: %v", err)
			}
		})
		wg.Go(func() {
			if err := visit(g, "run", time.Hour, &upstream); !errors.Is(err, errAborted) {
				t.Errorf("a call that does not: %v", err)
			}
		})
		synctest.Wait()
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		if err := g.Close(ctx); err != nil {
			t.Error(err)
		}
		if err := visit(g, "run", 0, &upstream); fulgur.KindOf(err) != fulgur.KindUnavailable {
			t.Errorf("a call after the close: %v", err)
		}
		wg.Wait()
	})
}

func TestHeldTimeIsCountedOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := &attempt{}
		g := New(Options{})
		g.attempts.byKey[attemptKey{"r", "0"}] = g.attempts.recent.PushFront(a)
		a.hold()
		time.Sleep(time.Second)
		a.hold()
		time.Sleep(time.Second)
		a.release()
		if act, _ := g.Activity(t.Context(), "r", "0"); act.Held != 2*time.Second {
			t.Errorf("while held: %v", act.Held)
		}
		time.Sleep(time.Second)
		a.release()
		time.Sleep(time.Second)
		if act, _ := g.Activity(t.Context(), "r", "0"); act.Held != 3*time.Second {
			t.Errorf("after: %v", act.Held)
		}
	})
}

// A drain says how long it took; the lease counts from its end; a pause that is
// ended meanwhile ends its drain, which then aborts nothing.
func TestDrainAndLease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := New(Options{})
		ctx := t.Context()
		var upstream atomic.Int64
		var wg sync.WaitGroup
		call := func(stay time.Duration) {
			wg.Go(func() {
				if err := visit(g, "run", stay, &upstream); err != nil {
					t.Error(err)
				}
			})
			synctest.Wait()
		}
		call(20 * time.Second)
		p, err := g.PauseCalls(ctx, "run", fulgur.PauseRequest{Owner: "me", Lease: 5 * time.Second, Drain: time.Minute})
		if err != nil || p.Drained != 20*time.Second || !p.Paused || time.Until(*p.Expires) != 5*time.Second {
			t.Errorf("%+v %v", p, err)
		}
		time.Sleep(6 * time.Second)
		if p, _ := g.PauseState(ctx, "run"); p.Paused || p.Drained != 0 {
			t.Errorf("%+v", p)
		}
		call(time.Hour)
		type result struct {
			p   fulgur.Pause
			err error
			at  time.Time
		}
		drained := make(chan result, 1)
		start := time.Now()
		go func() {
			p, err := g.PauseCalls(ctx, "run", fulgur.PauseRequest{Owner: "me", Drain: time.Minute})
			drained <- result{p, err, time.Now()}
		}()
		time.Sleep(10 * time.Second)
		_, _ = g.ResumeCalls(ctx, "run", "me")
		r := <-drained
		if fulgur.KindOf(r.err) != fulgur.KindConflict || r.p.Paused || r.p.InFlight != 1 || r.at.Sub(start) != 10*time.Second {
			t.Errorf("%+v %v after %v", r.p, r.err, r.at.Sub(start))
		}
		wg.Wait()
	})
}

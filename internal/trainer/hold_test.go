package trainer

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fulgur-rl/fulgur"
	"github.com/fulgur-rl/fulgur/internal/trainer/schedule"
)

// personsPause is a gate that a person has paused for some minutes.
type personsPause struct {
	countingGate
	until time.Time
	asked []fulgur.PauseRequest
}

func (g *personsPause) PauseCalls(ctx context.Context, run fulgur.RunID, p fulgur.PauseRequest) (fulgur.Pause, error) {
	if time.Now().Before(g.until) {
		return fulgur.Pause{}, fulgur.E(fulgur.KindConflict, "pause run r", `The run is paused by "me": wait until it resumes`, nil)
	}
	g.asked = append(g.asked, p)
	return g.countingGate.PauseCalls(ctx, run, p)
}

func TestAnUpdateWaitsForThePauseOfAPersonAndKeepsItsOwn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := &personsPause{until: time.Now().Add(5 * time.Minute)}
		var warnings []string
		tr := &trainer{o: Options{Run: "r", Gate: g, Drain: 10 * time.Second, Schedule: schedule.Config{Mode: schedule.Collocated},
			Observer: func(e Event) { warnings = append(warnings, e.(Warning).Code) }}}
		start := time.Now()
		if err := tr.hold(t.Context()); err != nil {
			t.Fatal(err)
		}
		if d := time.Since(start); d < 5*time.Minute || d > 5*time.Minute+2*time.Second {
			t.Errorf("held after %s, want 5 minutes", d)
		}
		if len(warnings) != 1 || warnings[0] != "paused" {
			t.Errorf("warnings %v", warnings)
		}
		if !g.asked[0].Partial || g.asked[0].Drain != 10*time.Second {
			t.Errorf("asked for %+v: want a drain of 10 s, since no sampler is known to go on with a call", g.asked[0])
		}
		stop := tr.keepHeld(t.Context())
		time.Sleep(25 * time.Minute) // an update of a large model
		stop()
		if n := len(g.asked) - 1; n != 7 {
			t.Errorf("renewed %d times in 25 minutes, want every 200 s", n)
		}
		for _, p := range g.asked[1:] {
			if p.Drain != 0 || p.Lease != holdLease {
				t.Errorf("renewed with %+v", p)
			}
		}
		tr.resumes = true
		if err := tr.hold(t.Context()); err != nil || g.asked[len(g.asked)-1].Drain != cutAfter {
			t.Errorf("drained for %s (%v), want %s where calls can go on", g.asked[len(g.asked)-1].Drain, err, cutAfter)
		}
		ended, cancel := context.WithCancel(t.Context())
		cancel()
		if err := tr.release(ended); err != nil || g.held {
			t.Errorf("calls are held after the end: %v", err)
		}
	})
}

package gateway_test

import (
	"context"
	"errors"
	"path/filepath"
	"testing"
	"time"

	"github.com/fulgur-rl/fulgur"
	"github.com/fulgur-rl/fulgur/internal/gateway"
	"github.com/fulgur-rl/fulgur/internal/store"
	"github.com/fulgur-rl/fulgur/internal/store/sqlite"
)

// Issue point 13: a pause is in the store before it counts, and outlives the
// gateway that it was asked of: its owner, lease and way of holding stay.
func TestAPauseOutlivesTheGateway(t *testing.T) {
	ctx := t.Context()
	path := filepath.Join(t.TempDir(), "s.db")
	start := func() (*store.Store, *gateway.Gateway) {
		s, err := store.Open(ctx, sqlite.New(path, sqlite.Options{}), store.Options{})
		if err != nil {
			t.Fatal(err)
		}
		if err := s.PutRun(ctx, fulgur.Run{ID: "run", Model: "policy"}); err != nil {
			t.Fatal(err)
		}
		g := gateway.New(gateway.Options{Leases: s})
		if err := g.Restore(ctx); err != nil {
			t.Fatal(err)
		}
		return s, g
	}
	stop := func(s *store.Store, g *gateway.Gateway) {
		if err := errors.Join(g.Close(ctx), s.Close()); err != nil {
			t.Error(err)
		}
	}
	pause := func(g *gateway.Gateway, req fulgur.PauseRequest) {
		t.Helper()
		if _, err := g.PauseCalls(ctx, "run", req); err != nil {
			t.Fatal(err)
		}
	}

	s, g := start()
	pause(g, fulgur.PauseRequest{Owner: "trainer", Lease: time.Hour, Reason: "update"})
	pause(g, fulgur.PauseRequest{Owner: "trainer", Lease: time.Hour, Reason: "another update", Refuse: true, Drain: time.Second})
	stop(s, g)

	s, g = start()
	p, _ := g.PauseState(ctx, "run")
	if !p.Paused || p.Owner != "trainer" || !p.Refuse || p.Reason != "another update" || p.Expires == nil || time.Until(*p.Expires) < 50*time.Minute {
		t.Errorf("after a restart: %+v", p)
	}
	if _, err := g.PauseCalls(ctx, "run", fulgur.PauseRequest{Owner: "another"}); fulgur.KindOf(err) != fulgur.KindConflict {
		t.Errorf("another owner's pause: %v", err)
	}
	if _, err := g.ResumeCalls(ctx, "run", "trainer"); err != nil {
		t.Error(err)
	}
	pause(g, fulgur.PauseRequest{Owner: "another", Lease: 50 * time.Millisecond})
	eventually(t, "the lease ends", func() bool { p, _ := g.PauseState(ctx, "run"); return !p.Paused })
	pause(g, fulgur.PauseRequest{Owner: "third", Lease: time.Hour})
	if _, err := g.ResumeCalls(ctx, "run", ""); err != nil {
		t.Error(err)
	}
	if _, err := g.PauseCalls(ctx, "not in the store", fulgur.PauseRequest{Owner: "x"}); err != nil {
		t.Errorf("a run that the store does not know: %v", err)
	}
	stop(s, g)

	s, g = start()
	if p, _ := g.PauseState(ctx, "run"); p.Paused {
		t.Errorf("what was resumed is paused after a restart: %+v", p)
	}
	stop(s, g)
}

type noLeases struct{}

var errNo = fulgur.E(fulgur.KindExhausted, "lease", "the disk is full", nil)

func (noLeases) AcquireLease(context.Context, fulgur.RunID, string, string, time.Duration) (fulgur.Lease, error) {
	return fulgur.Lease{}, errNo
}
func (noLeases) ReleaseLease(context.Context, fulgur.RunID, string, string) error { return errNo }
func (noLeases) Leases(context.Context) ([]fulgur.Lease, error)                   { return nil, errNo }

// A pause that can't be kept is not acknowledged, nor taken.
func TestAPauseThatCannotBeKept(t *testing.T) {
	g := gateway.New(gateway.Options{Leases: noLeases{}})
	if p, err := g.PauseCalls(t.Context(), "run", fulgur.PauseRequest{Owner: "x"}); fulgur.KindOf(err) != fulgur.KindExhausted || p.Paused {
		t.Errorf("%+v %v", p, err)
	}
	if err := g.Restore(t.Context()); fulgur.KindOf(err) != fulgur.KindExhausted {
		t.Error(err)
	}
}

package apitest

import (
	"context"
	"encoding/json"
	"testing"
	"time"

	"github.com/fulgur-rl/fulgur"
)

func testRuns(t *testing.T, s Subject) {
	ctx := t.Context()
	equal(t, "the run default", must(s.API.Run(ctx, fulgur.DefaultRun))(t).ID, fulgur.DefaultRun)
	noError(t, s.API.PutRun(ctx, fulgur.Run{ID: "calc", Model: "builtin:calc", Config: json.RawMessage(`{"seed":1}`), Version: 3}))
	first := must(s.API.Run(ctx, "calc"))(t)
	noError(t, s.API.PutRun(ctx, fulgur.Run{ID: "calc", Model: "other", Version: 1}))
	r := must(s.API.Run(ctx, "calc"))(t)
	equal(t, "model and version", []any{r.Model, r.Version, r.CreatedAt}, []any{"other", fulgur.PolicyVersion(3), first.CreatedAt})
	equal(t, "config of the first", string(first.Config), `{"seed":1}`)
	end := time.Unix(1700000000, 0).UTC()
	noError(t, s.API.PutRun(ctx, fulgur.Run{ID: "calc", Model: "other", EndedAt: &end}))
	equal(t, "end", must(s.API.Run(ctx, "calc"))(t).EndedAt, &end)
	runs := must(s.API.Runs(ctx))(t)
	if len(runs) != 2 || runs[0].ID != fulgur.DefaultRun || runs[1].ID != "calc" {
		t.Errorf("runs are %v", runs)
	}
}

func testLeases(t *testing.T, s Subject) {
	ctx := t.Context()
	l := must(s.API.AcquireLease(ctx, fulgur.DefaultRun, "trainer", "a", time.Hour))(t)
	equal(t, "holder", l.Holder, "a")
	_, err := s.API.AcquireLease(ctx, fulgur.DefaultRun, "trainer", "b", time.Hour)
	wantKind(t, err, fulgur.KindConflict)
	must(s.API.AcquireLease(ctx, fulgur.DefaultRun, "controller", "b", time.Hour))(t)
	must(s.API.AcquireLease(ctx, fulgur.DefaultRun, "trainer", "a", time.Hour))(t)
	noError(t, s.API.ReleaseLease(ctx, fulgur.DefaultRun, "trainer", "b")) // not b's: nothing happens
	_, err = s.API.AcquireLease(ctx, fulgur.DefaultRun, "trainer", "b", time.Hour)
	wantKind(t, err, fulgur.KindConflict)
	l = must(s.API.AcquireLease(ctx, fulgur.DefaultRun, "trainer", "a", time.Hour))(t)
	equal(t, "read", must(s.API.Lease(ctx, fulgur.DefaultRun, "trainer"))(t).Expires.Equal(l.Expires), true)
	noError(t, s.API.ReleaseLease(ctx, fulgur.DefaultRun, "trainer", "a"))
	_, err = s.API.Lease(ctx, fulgur.DefaultRun, "trainer")
	wantKind(t, err, fulgur.KindNotFound)
	must(s.API.AcquireLease(ctx, fulgur.DefaultRun, "trainer", "b", time.Nanosecond))(t) // ended by itself when the next one asks
	must(s.API.AcquireLease(ctx, fulgur.DefaultRun, "trainer", "c", time.Hour))(t)
	_, err = s.API.AcquireLease(ctx, "nowhere", "trainer", "c", time.Hour)
	wantKind(t, err, fulgur.KindNotFound)
}

func testEndpoints(t *testing.T, s Subject) {
	ctx := t.Context()
	noError(t, s.API.PutRun(ctx, fulgur.Run{ID: "a", Model: "m"}))
	noError(t, s.API.PutRun(ctx, fulgur.Run{ID: "b", Model: "m"}))
	ep := func(url string, v fulgur.PolicyVersion) fulgur.Endpoint {
		return fulgur.Endpoint{Model: "lab/m", Kind: fulgur.EndpointTokens, URL: url, Key: "secret", Version: v}
	}
	noError(t, s.API.PutEndpoints(ctx, "a", "lab/m", []fulgur.Endpoint{ep("http://one/v1", 1), ep("http://two/v1", 1)}))
	noError(t, s.API.PutEndpoints(ctx, "b", "lab/m", []fulgur.Endpoint{ep("http://three/v1", 0)}))
	noError(t, s.API.PutEndpoints(ctx, "a", "judge", []fulgur.Endpoint{{Kind: fulgur.EndpointChat, URL: "http://judge/v1"}}))
	noError(t, s.API.PutEndpoints(ctx, "a", "lab/m", []fulgur.Endpoint{ep("http://four/v1", 2)}))
	equal(t, "a's model", must(s.API.Endpoints(ctx, "a", "lab/m"))(t), []fulgur.Endpoint{ep("http://four/v1", 2)})
	equal(t, "b's model", must(s.API.Endpoints(ctx, "b", "lab/m"))(t), []fulgur.Endpoint{ep("http://three/v1", 0)})
	equal(t, "all of a", len(must(s.API.Endpoints(ctx, "a", ""))(t)), 2)
	equal(t, "a's version", must(s.API.Run(ctx, "a"))(t).Version, fulgur.PolicyVersion(2))
	noError(t, s.API.PutEndpoints(ctx, "a", "lab/m", nil))
	equal(t, "a's model, emptied", len(must(s.API.Endpoints(ctx, "a", "lab/m"))(t)), 0)
	wantKind(t, s.API.PutEndpoints(ctx, "a", "m", []fulgur.Endpoint{{URL: "http://x", Kind: "odd"}}), fulgur.KindInvalid)
	_, err := s.API.Endpoints(ctx, "nowhere", "m")
	wantKind(t, err, fulgur.KindNotFound)
}

func testWatch(t *testing.T, s Subject) {
	ctx := t.Context()
	noError(t, s.API.PutRun(ctx, fulgur.Run{ID: "other", Model: "m"}))
	head := must(s.API.Head(ctx))(t)
	got := make(chan []fulgur.Change)
	failed := make(chan error, 1)
	go func() {
		for after := head; ; {
			c, err := s.API.Changes(ctx, fulgur.DefaultRun, after)
			if err != nil {
				failed <- err
				return
			}
			after = c[len(c)-1].Seq
			got <- c
		}
	}()
	// next reads changes until one is of this rollout, attempt phase and state.
	seen := head
	next := func(phase fulgur.Phase, state fulgur.RolloutState) {
		t.Helper()
		for {
			select {
			case cs := <-got:
				for _, c := range cs {
					if c.Seq < seen || c.Run != fulgur.DefaultRun {
						t.Errorf("change %+v after position %d", c, seen)
					}
					if seen = c.Seq; c.Rollout == "w" && c.Phase == phase && c.State == state {
						return
					}
				}
			case err := <-failed:
				t.Fatal(err)
			case <-time.After(10 * time.Second):
				t.Fatalf("no change to phase %q, state %q", phase, state)
			}
		}
	}
	noError(t, s.API.PutRun(ctx, fulgur.Run{ID: "other", Model: "n"})) // not ours
	create(t, s, "w")
	next("", fulgur.Queuing)
	must(s.API.OpenAttempt(ctx, "w"))(t)
	next(fulgur.PhaseWaiting, fulgur.Running)
	must(s.API.ReportAttempt(ctx, "w", "0", fulgur.AttemptReport{Phase: fulgur.PhaseRunning}))(t)
	next(fulgur.PhaseRunning, fulgur.Running)
	must(s.API.ReportAttempt(ctx, "w", "0", okay))(t)
	next("", fulgur.Succeeded)
	noError(t, s.API.SetReward(ctx, "w", "0", 1, "grader"))
	next("", fulgur.Succeeded)

	// One that waits in vain ends with its context.
	short, cancel := context.WithTimeout(ctx, 50*time.Millisecond)
	defer cancel()
	_, err := s.API.Changes(short, "other", must(s.API.Head(ctx))(t))
	wantKind(t, err, fulgur.KindCanceled)
	// From the start, everything is there, and goes on.
	_, err = s.API.Changes(ctx, "", must(s.API.Head(ctx))(t)+1)
	wantKind(t, err, fulgur.KindInvalid) // a position of another record
	all := must(s.API.Changes(ctx, "", 0))(t)
	if len(all) == 0 || all[len(all)-1].Seq > must(s.API.Head(ctx))(t) {
		t.Errorf("changes from the start: %+v", all)
	}
}

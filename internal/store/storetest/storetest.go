// Package storetest is the conformance suite of the store's drivers: what must
// hold on every database, over restarts, under concurrent writers, and for v1's
// own methods. Package apitest has the rest.
package storetest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/fulgur-rl/fulgur"
	"github.com/fulgur-rl/fulgur/internal/store"
	"github.com/google/go-cmp/cmp"
)

// Run runs the suite. fresh gives a maker of drivers of one new, empty
// database: each driver that it makes opens the same one.
func Run(t *testing.T, fresh func(t *testing.T) func() store.Driver) {
	for name, f := range map[string]func(*testing.T, func() store.Driver){
		"everything is there after a restart (ST-08)":                         testRestart,
		"a reader goes on after a restart":                                    testChangesAfterRestart,
		"a reader that falls behind memory gets the newest of each":           testBehind,
		"writers at once: each is on record, positions are unique":            testConcurrent,
		"one bad write does not fail its neighbours":                          testNeighbours,
		"a deleted rollout is hidden, its id is free, its calls are not":      testDelete,
		"v1's patch: transitions, versions, nulls":                            testPatch,
		"v1's models: upsert, clear":                                          testModels,
		"v1's list of attempts is by time of the first record":                testRecorded,
		"a schema that is newer is refused":                                   testNewer,
		"a history that grows comes back as it was, over a restart":           testHistories,
		"records are dropped while calls come in (ST-07)":                     testDrop,
		"artifacts are written once, read in full, and go with their records": testArtifacts,
		"an attempt's open uploads count against what it may leave":           testUploads,
		"a closed store says so":                                              testClosed,
	} {
		t.Run(name, func(t *testing.T) { f(t, fresh(t)) })
	}
}

// Open opens a store that the test's cleanup closes.
func Open(t *testing.T, d store.Driver) *store.Store {
	t.Helper()
	s, err := store.Open(t.Context(), d, store.Options{ServerKey: "key"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { Close(t, s) })
	return s
}

// Close closes a store; again does nothing.
func Close(t *testing.T, s *store.Store) {
	t.Helper()
	if err := s.Close(); err != nil {
		t.Error(err)
	}
}

func noError(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func must[T any](v T, err error) func(*testing.T) T {
	return func(t *testing.T) T {
		t.Helper()
		noError(t, err)
		return v
	}
}

func wantKind(t *testing.T, err error, k fulgur.Kind) {
	t.Helper()
	if fulgur.KindOf(err) != k {
		t.Errorf("error is %v, want kind %q", err, k)
	}
}

func equal(t *testing.T, what string, got, want any) {
	t.Helper()
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("%s (-want +got):\n%s", what, d)
	}
}

func create(t *testing.T, s *store.Store, ids ...fulgur.RolloutID) {
	t.Helper()
	specs := make([]fulgur.RolloutSpec, len(ids))
	for i, id := range ids {
		specs[i] = fulgur.RolloutSpec{ID: id, Run: fulgur.DefaultRun, Input: json.RawMessage(`{"data_id":"row"}`)}
	}
	must(s.CreateRollouts(t.Context(), specs))(t)
}

func call(r fulgur.RolloutID, a fulgur.AttemptID, i int) *fulgur.Call {
	return &fulgur.Call{ID: fulgur.CallID(fmt.Sprintf("%s.%s.%d", r, a, i)), Rollout: r, Attempt: a, Index: i, Request: json.RawMessage(`{"model":"m"}`),
		PromptIDs: []int32{1, 2, int32(i)}, SampledIDs: []int32{3}, LogProbs: []float32{-0.5}, StartedAt: time.UnixMicro(1700000000000000).UTC()}
}

var okay = fulgur.AttemptReport{Phase: fulgur.PhaseEnded, Outcome: &fulgur.Outcome{Class: fulgur.OutcomeOK, Reason: "exit"}}

func testRestart(t *testing.T, driver func() store.Driver) {
	ctx := t.Context()
	s := Open(t, driver())
	noError(t, s.PutRun(ctx, fulgur.Run{ID: "calc", Model: "m", Config: json.RawMessage(`{"a":1}`)}))
	noError(t, s.PutEndpoints(ctx, "calc", "m", []fulgur.Endpoint{{Model: "m", Kind: fulgur.EndpointChat, URL: "http://b/v1", Key: "k", Version: 4}, {Model: "m", Kind: fulgur.EndpointChat, URL: "http://a/v1"}}))
	must(s.AcquireLease(ctx, "calc", "trainer", "me", time.Hour))(t)
	var open, ended []fulgur.RolloutID
	for i := range 50 {
		open = append(open, fulgur.RolloutID(fmt.Sprint("open", i)))
		ended = append(ended, fulgur.RolloutID(fmt.Sprint("ended", i)))
	}
	create(t, s, append(open, ended...)...)
	creds := map[fulgur.RolloutID]string{}
	for i, id := range append(open, ended...) {
		creds[id] = must(s.OpenAttempt(ctx, id))(t).Credential
		must(s.ReportAttempt(ctx, id, "0", fulgur.AttemptReport{Phase: fulgur.PhaseRunning, Runner: "local", Handle: fmt.Sprint(i)}))(t)
		noError(t, s.AppendCall(ctx, call(id, "0", 0)))
		must(s.AppendEvent(ctx, fulgur.Event{Rollout: id, Attempt: "0", Type: "note", Data: json.RawMessage(`{"n":1}`)}))(t)
		if i >= 50 {
			must(s.ReportAttempt(ctx, id, "0", okay))(t)
			noError(t, s.SetReward(ctx, id, "0", 0.5, "g"))
		}
	}
	type state struct {
		Runs      []fulgur.Run
		Endpoints []fulgur.Endpoint
		Rollouts  []fulgur.Rollout
		Open      []fulgur.Rollout
		Terminal  fulgur.TerminalPage
		Attempts  [][]fulgur.Attempt
		Calls     [][]fulgur.Call
		Events    [][]fulgur.Event
		Who       []fulgur.Identity
		Head      fulgur.Seq
	}
	read := func(s *store.Store) (v state) {
		v.Runs = must(s.Runs(ctx))(t)
		v.Endpoints = must(s.Endpoints(ctx, "calc", ""))(t)
		v.Rollouts = must(s.Rollouts(ctx, fulgur.RolloutQuery{}))(t)
		v.Open = must(s.Rollouts(ctx, fulgur.RolloutQuery{States: []fulgur.RolloutState{fulgur.Running, fulgur.Queuing}}))(t)
		v.Terminal = must(s.Terminal(ctx, 0, 1000))(t)
		v.Head = must(s.Head(ctx))(t)
		for _, id := range append(open, ended...) {
			v.Attempts = append(v.Attempts, must(s.Attempts(ctx, id))(t))
			v.Calls = append(v.Calls, must(s.Calls(ctx, id, ""))(t))
			v.Events = append(v.Events, must(s.Events(ctx, id, ""))(t))
			v.Who = append(v.Who, must(s.Identify(ctx, creds[id]))(t))
		}
		return v
	}
	before := read(s)
	Close(t, s)
	s = Open(t, driver())
	equal(t, "after a restart", read(s), before)
	_, err := s.AcquireLease(ctx, "calc", "trainer", "another", time.Hour)
	wantKind(t, err, fulgur.KindConflict)
	// What was open goes on.
	must(s.ReportAttempt(ctx, "open0", "0", okay))(t)
	equal(t, "state", must(s.Rollout(ctx, "open0"))(t).State, fulgur.Succeeded)
	create(t, s, "new")
	all := must(s.Rollouts(ctx, fulgur.RolloutQuery{}))(t)
	equal(t, "the newest", all[len(all)-1].ID, fulgur.RolloutID("new"))
}

func testChangesAfterRestart(t *testing.T, driver func() store.Driver) {
	ctx := t.Context()
	s := Open(t, driver())
	create(t, s, "a", "b")
	head := must(s.Head(ctx))(t)
	must(s.OpenAttempt(ctx, "b"))(t)
	Close(t, s)
	s = Open(t, driver())
	got := must(s.Changes(ctx, fulgur.DefaultRun, head))(t)
	if got[0].Rollout != "b" || got[0].State != fulgur.Running || got[0].Seq <= head {
		t.Errorf("changes behind %d: %+v", head, got)
	}
	at := got[len(got)-1].Seq
	create(t, s, "c")
	got = must(s.Changes(ctx, fulgur.DefaultRun, at))(t)
	if got[0].Rollout != "c" || got[0].Seq <= at {
		t.Errorf("changes behind %d: %+v", at, got)
	}
}

func testBehind(t *testing.T, driver func() store.Driver) {
	if testing.Short() {
		t.Skip("writes 100,000 changes")
	}
	ctx := t.Context()
	s := Open(t, driver())
	create(t, s, "first")
	specs := make([]fulgur.RolloutSpec, 10000)
	for i := range specs {
		specs[i] = fulgur.RolloutSpec{ID: fulgur.RolloutID(fmt.Sprint("r", i)), Run: fulgur.DefaultRun, Input: json.RawMessage("1")}
	}
	must(s.CreateRollouts(ctx, specs))(t)
	for range 9 {
		var wg sync.WaitGroup
		for i := range 100 {
			wg.Go(func() {
				for k := range 100 {
					name := "n"
					p := &name
					if _, err := s.PatchStatus(ctx, fulgur.RolloutID(fmt.Sprint("r", i*100+k)), fulgur.StatusPatch{JobName: &p}); err != nil {
						t.Error(err)
					}
				}
			})
		}
		wg.Wait()
	}
	seen := map[fulgur.RolloutID]bool{}
	for after := fulgur.Seq(0); after < must(s.Head(ctx))(t); {
		cs := must(s.Changes(ctx, fulgur.DefaultRun, after))(t)
		for _, c := range cs {
			seen[c.Rollout] = true
			if c.Seq < after {
				t.Fatalf("position %d behind %d", c.Seq, after)
			}
			after = c.Seq
		}
	}
	if !seen["first"] || !seen["r0"] || !seen["r9999"] || len(seen) < 10001 {
		t.Errorf("%d rollouts seen", len(seen))
	}
}

func testConcurrent(t *testing.T, driver func() store.Driver) {
	ctx := t.Context()
	s := Open(t, driver())
	const rollouts, calls = 32, 20
	watched := make(chan map[fulgur.RolloutID]bool, 1)
	go func() { // a reader sees each end
		ended := map[fulgur.RolloutID]bool{}
		for after := fulgur.Seq(0); len(ended) < rollouts; {
			cs, err := s.Changes(ctx, "", after)
			if err != nil {
				break
			}
			for _, c := range cs {
				if after = c.Seq; c.State.Terminal() {
					ended[c.Rollout] = true
				}
			}
		}
		watched <- ended
	}()
	var wg sync.WaitGroup
	seqs := make(chan fulgur.Seq, rollouts*calls)
	for i := range rollouts {
		wg.Go(func() {
			id := fulgur.RolloutID(fmt.Sprint("r", i))
			_, err := s.CreateRollouts(ctx, []fulgur.RolloutSpec{{ID: id, Run: fulgur.DefaultRun, Input: json.RawMessage("1")}})
			o, err2 := s.OpenAttempt(ctx, id)
			var recorders sync.WaitGroup
			for k := range calls {
				recorders.Go(func() {
					c := call(id, "0", k)
					if err := s.AppendCall(ctx, c); err != nil {
						t.Error(err)
					}
					seqs <- c.Seq
					if who, err := s.Identify(ctx, o.Credential); err != nil || who.Rollout != id || who.Ended {
						t.Errorf("%+v, %v", who, err)
					}
				})
			}
			recorders.Wait()
			_, err3 := s.ReportAttempt(ctx, id, "0", okay)
			if err := errors.Join(err, err2, err3); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	close(seqs)
	unique := map[fulgur.Seq]bool{}
	for seq := range seqs {
		unique[seq] = true
	}
	equal(t, "positions", len(unique), rollouts*calls)
	for i := range rollouts {
		equal(t, "calls", len(must(s.Calls(ctx, fulgur.RolloutID(fmt.Sprint("r", i)), "0"))(t)), calls)
	}
	equal(t, "ends seen", len(<-watched), rollouts)
	equal(t, "completions", must(s.Terminal(ctx, 0, 1000))(t).Total, rollouts)
}

func testNeighbours(t *testing.T, driver func() store.Driver) {
	ctx := t.Context()
	s := Open(t, driver())
	create(t, s, "r")
	noError(t, s.AppendCall(ctx, call("r", "0", 0)))
	var wg sync.WaitGroup
	for i := 1; i <= 40; i++ {
		wg.Go(func() { noErrorIn(t, s.AppendCall(ctx, call("r", "0", i))) })
		wg.Go(func() { wantKind(t, s.AppendCall(ctx, call("r", "0", 0)), fulgur.KindConflict) })
		wg.Go(func() { wantKind(t, s.AppendCall(ctx, call("nobody", "0", i)), fulgur.KindNotFound) })
	}
	wg.Wait()
	equal(t, "calls", len(must(s.Calls(ctx, "r", "0"))(t)), 41)
}

// noErrorIn is noError for goroutines that are not the test's.
func noErrorIn(t *testing.T, err error) {
	if err != nil {
		t.Error(err)
	}
}

func testNewer(t *testing.T, driver func() store.Driver) {
	Close(t, Open(t, driver()))
	d := driver()
	w, r, err := d.Open(t.Context())
	noError(t, err)
	_, err = w.ExecContext(t.Context(), `INSERT INTO schema (version, applied) VALUES (9999, 0)`)
	noError(t, errors.Join(err, r.Close(), w.Close(), d.Close()))
	_, err = store.Open(t.Context(), driver(), store.Options{})
	wantKind(t, err, fulgur.KindUnsupported)
}

func testClosed(t *testing.T, driver func() store.Driver) {
	s := Open(t, driver())
	waits := make(chan error, 1)
	head := must(s.Head(t.Context()))(t)
	go func() {
		_, err := s.Changes(context.Background(), "", head)
		waits <- err
	}()
	Close(t, s)
	wantKind(t, <-waits, fulgur.KindUnavailable)
	wantKind(t, s.PutRun(t.Context(), fulgur.Run{ID: "x"}), fulgur.KindUnavailable)
}

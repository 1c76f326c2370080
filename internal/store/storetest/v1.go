package storetest

import (
	"testing"

	"github.com/fulgur-rl/fulgur"
	"github.com/fulgur-rl/fulgur/internal/store"
)

func testDelete(t *testing.T, driver func() store.Driver) {
	ctx := t.Context()
	s := Open(t, driver())
	create(t, s, "open", "ended", "kept")
	cred := must(s.OpenAttempt(ctx, "open"))(t).Credential
	for _, id := range []fulgur.RolloutID{"open", "ended"} {
		noError(t, s.AppendCall(ctx, call(id, "0", 0)))
	}
	must(s.OpenAttempt(ctx, "ended"))(t)
	must(s.ReportAttempt(ctx, "ended", "0", okay))(t)
	for _, id := range []fulgur.RolloutID{"open", "ended", "ended", "nobody"} {
		noError(t, s.DeleteRollout(ctx, id))
	}
	check := func() {
		t.Helper()
		for _, id := range []fulgur.RolloutID{"open", "ended"} {
			_, err := s.Rollout(ctx, id)
			wantKind(t, err, fulgur.KindNotFound)
			equal(t, "its call", must(s.Call(ctx, fulgur.CallID(id+".0.0")))(t).Rollout, id)
		}
		equal(t, "its credential has ended", must(s.Identify(ctx, cred))(t).Ended, true)
		rs := must(s.Rollouts(ctx, fulgur.RolloutQuery{}))(t)
		if len(rs) != 1 || rs[0].ID != "kept" {
			t.Errorf("listed: %+v", rs)
		}
		equal(t, "the cursor keeps the place", must(s.Terminal(ctx, 0, 10))(t), fulgur.TerminalPage{Next: 1, Total: 1})
	}
	check()
	Close(t, s)
	s = Open(t, driver())
	check()
	create(t, s, "open", "ended")
	equal(t, "born again", must(s.Rollout(ctx, "ended"))(t).State, fulgur.Queuing)
	equal(t, "without calls", len(must(s.Calls(ctx, "ended", ""))(t)), 0)
	equal(t, "in its new order", must(s.Rollouts(ctx, fulgur.RolloutQuery{States: []fulgur.RolloutState{fulgur.Queuing}}))(t)[2].ID, fulgur.RolloutID("ended"))
	must(s.OpenAttempt(ctx, "open"))(t)
	must(s.ReportAttempt(ctx, "open", "0", okay))(t)
	equal(t, "the cursor goes on", must(s.Terminal(ctx, 1, 10))(t).Items[0].ID, fulgur.RolloutID("open"))
}

func testPatch(t *testing.T, driver func() store.Driver) {
	ctx := t.Context()
	s := Open(t, driver())
	create(t, s, "r", "q")
	state := func(v fulgur.RolloutState) *fulgur.RolloutState { return &v }
	text := func(v string) **string { p := &v; return &p }
	null := new(*string)
	for _, c := range []struct {
		name    string
		patch   fulgur.StatusPatch
		kind    fulgur.Kind
		state   fulgur.RolloutState
		job     string
		last    fulgur.AttemptID
		err     string
		version int
	}{
		{"an empty one changes nothing", fulgur.StatusPatch{}, "", fulgur.Queuing, "", "", "", 1},
		{"not from queuing to succeeded", fulgur.StatusPatch{State: state(fulgur.Succeeded)}, fulgur.KindConflict, fulgur.Queuing, "", "", "", 1},
		{"to running", fulgur.StatusPatch{State: state(fulgur.Running), JobName: text("job"), LastAttempt: text("0")}, "", fulgur.Running, "job", "0", "", 2},
		{"not to itself", fulgur.StatusPatch{State: state(fulgur.Running)}, fulgur.KindConflict, fulgur.Running, "job", "0", "", 2},
		{"an error text", fulgur.StatusPatch{Error: text("slow")}, "", fulgur.Running, "job", "0", "slow", 3},
		{"null clears", fulgur.StatusPatch{Error: null}, "", fulgur.Running, "job", "0", "", 4},
		{"failed", fulgur.StatusPatch{State: state(fulgur.Failed), Error: text("exited with code 1")}, "", fulgur.Failed, "job", "0", "exited with code 1", 5},
		{"ended is final", fulgur.StatusPatch{State: state(fulgur.Succeeded)}, fulgur.KindConflict, fulgur.Failed, "job", "0", "exited with code 1", 5},
		{"other fields of an ended one", fulgur.StatusPatch{JobName: text("late"), Error: text("exited with code 1")}, "", fulgur.Failed, "late", "0", "exited with code 1", 6},
		{"the first cause stays (ST-06)", fulgur.StatusPatch{Error: text("other")}, fulgur.KindConflict, fulgur.Failed, "late", "0", "exited with code 1", 6},
		{"nor is it cleared", fulgur.StatusPatch{Error: null}, fulgur.KindConflict, fulgur.Failed, "late", "0", "exited with code 1", 6},
		{"nor the last attempt replaced", fulgur.StatusPatch{LastAttempt: text("7"), JobName: text("x")}, fulgur.KindConflict, fulgur.Failed, "late", "0", "exited with code 1", 6},
	} {
		_, err := s.PatchStatus(ctx, "r", c.patch)
		if fulgur.KindOf(err) != c.kind {
			t.Errorf("%s: %v", c.name, err)
		}
		r := must(s.Rollout(ctx, "r"))(t)
		equal(t, c.name, []any{r.State, r.JobName, r.LastAttempt, r.Error, r.Version}, []any{c.state, c.job, c.last, c.err, c.version})
	}
	// ST-06: the first cause stays.
	equal(t, "outcome", must(s.Rollout(ctx, "r"))(t).Outcome, &fulgur.Outcome{Class: fulgur.OutcomeAgent, Reason: "reported", Message: "exited with code 1"})
	must(s.PatchStatus(ctx, "q", fulgur.StatusPatch{State: state(fulgur.Running)}))(t)
	_, err := s.OpenAttempt(ctx, "q")
	wantKind(t, err, fulgur.KindConflict) // a v1 controller has it
	_, err = s.PatchStatus(ctx, "nobody", fulgur.StatusPatch{})
	wantKind(t, err, fulgur.KindNotFound)
}

func testModels(t *testing.T, driver func() store.Driver) {
	ctx := t.Context()
	s := Open(t, driver())
	ep := func(model, url string, v fulgur.PolicyVersion) fulgur.Endpoint {
		return fulgur.Endpoint{Model: model, Kind: fulgur.EndpointChat, URL: url, Version: v}
	}
	noError(t, s.UpsertEndpoints(ctx, fulgur.DefaultRun, []fulgur.Endpoint{ep("m", "http://b", 0), ep("m", "http://a", 2)}))
	noError(t, s.UpsertEndpoints(ctx, fulgur.DefaultRun, []fulgur.Endpoint{ep("m", "http://b", 7), ep("n", "http://b", 0)}))
	want := []fulgur.Endpoint{ep("m", "http://b", 7), ep("m", "http://a", 2), ep("n", "http://b", 0)}
	equal(t, "upserted", must(s.Endpoints(ctx, fulgur.DefaultRun, ""))(t), want)
	Close(t, s)
	s = Open(t, driver())
	equal(t, "after a restart", must(s.Endpoints(ctx, fulgur.DefaultRun, ""))(t), want)
	noError(t, s.ClearEndpoints(ctx, fulgur.DefaultRun))
	equal(t, "cleared", len(must(s.Endpoints(ctx, fulgur.DefaultRun, ""))(t)), 0)
	equal(t, "the version stays", must(s.Run(ctx, fulgur.DefaultRun))(t).Version, fulgur.PolicyVersion(7))
}

func testRecorded(t *testing.T, driver func() store.Driver) {
	ctx := t.Context()
	s := Open(t, driver())
	create(t, s, "r")
	must(s.AppendEvent(ctx, fulgur.Event{Rollout: "r", Attempt: "z", Type: "note"}))(t)
	noError(t, s.AppendCall(ctx, call("r", "7", 0)))
	must(s.AppendEvent(ctx, fulgur.Event{Rollout: "r", Attempt: "0", Type: "note"}))(t)
	noError(t, s.AppendCall(ctx, call("r", "z", 1)))
	equal(t, "attempts", must(s.RecordedAttempts(ctx, "r"))(t), []fulgur.AttemptID{"z", "7", "0"})
}

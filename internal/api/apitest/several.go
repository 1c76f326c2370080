package apitest

import (
	"testing"
	"time"

	"github.com/fulgur-rl/fulgur"
)

// testOpenSeveral opens several attempts in one.
func testOpenSeveral(t *testing.T, s Subject) {
	ctx := t.Context()
	create(t, s, "waiting", "running", "ended", "queued")
	old := must(s.API.OpenAttempt(ctx, "waiting"))(t).Credential
	for _, id := range []fulgur.RolloutID{"running", "ended"} {
		must(s.API.OpenAttempt(ctx, id))(t)
	}
	must(s.API.ReportAttempt(ctx, "running", "0", fulgur.AttemptReport{Phase: fulgur.PhaseRunning}))(t)
	must(s.API.ReportAttempt(ctx, "ended", "0", okay))(t)

	opened := must(s.API.OpenAttempts(ctx, []fulgur.RolloutID{"queued", "running", "nobody", "ended", "waiting"}))(t)
	equal(t, "opened", len(opened), 2)
	for i, id := range []fulgur.RolloutID{"queued", "waiting"} {
		a := opened[i]
		if a.Rollout != id || a.ID != "0" || a.Phase != fulgur.PhaseWaiting || a.Credential == "" || a.Credential == old {
			t.Errorf("opened %+v, want attempt 0 of %s with a new credential", a, id)
		}
		equal(t, "identity", must(s.Store.Identify(ctx, a.Credential))(t).Rollout, id)
		equal(t, "state of "+string(id), must(s.API.Rollout(ctx, id))(t).State, fulgur.Running)
	}
	_, err := s.Store.Identify(ctx, old)
	wantKind(t, err, fulgur.KindDenied)
	equal(t, "none", len(must(s.API.OpenAttempts(ctx, nil))(t)), 0)
}

// testSeveral reports, grades and reads several rollouts at a time, as trainer
// and controller do.
func testSeveral(t *testing.T, s Subject) {
	ctx := t.Context()
	create(t, s, "a", "b", "c")
	key := func(id fulgur.RolloutID, a fulgur.AttemptID) fulgur.AttemptKey {
		return fulgur.AttemptKey{Rollout: id, Attempt: a}
	}
	for _, id := range []fulgur.RolloutID{"a", "b"} {
		must(s.API.OpenAttempt(ctx, id))(t)
		must(s.API.ReportAttempt(ctx, id, "0", lost))(t)
		must(s.API.OpenAttempt(ctx, id))(t)
	}
	full := FullCall("b.1.0", "b", "1", 0)
	for _, c := range []fulgur.Call{FullCall("b.0.0", "b", "0", 0), FullCall("b.1.1", "b", "1", 1), full} {
		noError(t, s.Store.AppendCall(ctx, &c))
		if c.ID == full.ID {
			full.Seq = c.Seq
		}
	}
	started := time.UnixMicro(1700000000123456).UTC()
	first := okay
	first.StartedAt, first.Handle = &started, "h"

	// All or none.
	wantKind(t, s.API.ReportAttempts(ctx, []fulgur.Report{{AttemptKey: key("a", "1"), AttemptReport: first}, {AttemptKey: key("b", "7"), AttemptReport: okay}}), fulgur.KindNotFound)
	wantKind(t, s.API.ReportAttempts(ctx, []fulgur.Report{{AttemptKey: key("a", "1"), AttemptReport: first}, {AttemptKey: key("b", "1"), AttemptReport: fulgur.AttemptReport{Phase: "x"}}}), fulgur.KindInvalid)
	equal(t, "a, after two that were refused", must(s.API.Rollout(ctx, "a"))(t).State, fulgur.Running)

	noError(t, s.API.ReportAttempts(ctx, []fulgur.Report{
		{AttemptKey: key("a", "1"), AttemptReport: first},
		{AttemptKey: key("b", "1"), AttemptReport: fulgur.AttemptReport{Phase: fulgur.PhaseRunning}},
		{AttemptKey: key("b", "1"), AttemptReport: okay},
		{AttemptKey: key("a", "1"), AttemptReport: lost}, // the first outcome stays
	}))
	for _, id := range []fulgur.RolloutID{"a", "b"} {
		equal(t, "state", must(s.API.Rollout(ctx, id))(t).State, fulgur.Succeeded)
	}
	a := must(s.API.Attempts(ctx, "a"))(t)[1]
	if a.Handle != "h" || a.StartedAt == nil || !a.StartedAt.Equal(started) {
		t.Errorf("attempt %+v", a)
	}

	wantKind(t, s.API.SetRewards(ctx, []fulgur.Reward{{AttemptKey: key("a", "1"), Value: 1, Source: "g"}, {AttemptKey: key("b", "9"), Value: 1, Source: "g"}}), fulgur.KindNotFound)
	if must(s.API.Rollout(ctx, "a"))(t).Reward != nil {
		t.Error("a reward was set in part")
	}
	noError(t, s.API.SetRewards(ctx, []fulgur.Reward{{AttemptKey: key("a", "1"), Value: 1, Source: "g"}, {AttemptKey: key("b", "1"), Value: 0.5, Source: "g"}}))

	records := must(s.API.Records(ctx, []fulgur.RolloutID{"b", "c", "a"}))(t)
	equal(t, "b", records[0].Rollout, must(s.API.Rollout(ctx, "b"))(t))
	equal(t, "b's reward", *records[0].Rollout.Reward, 0.5)
	full.Request, full.Sent, full.Response, full.Tools, full.RoutedExperts = nil, nil, nil, nil, nil
	equal(t, "calls of b's last attempt", len(records[0].Calls), 2)
	equal(t, "the first", records[0].Calls[0], full)
	equal(t, "c, never started", len(records[1].Calls), 0)
	equal(t, "the third", records[2].Rollout.ID, fulgur.RolloutID("a"))
	_, err := s.API.Records(ctx, []fulgur.RolloutID{"a", "nobody"})
	wantKind(t, err, fulgur.KindNotFound)

	// Nothing at all is nothing.
	equal(t, "no records", len(must(s.API.Records(ctx, nil))(t)), 0)
	noError(t, s.API.ReportAttempts(ctx, nil))
	noError(t, s.API.SetRewards(ctx, nil))
}

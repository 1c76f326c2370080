package apitest

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/fulgur-rl/fulgur"
)

func testCreate(t *testing.T, s Subject) {
	ctx := t.Context()
	spec := fulgur.RolloutSpec{ID: "r/1 ü", Run: fulgur.DefaultRun, Group: "g", Input: json.RawMessage(`{"b":1,"a":[98765432109876543210,1e-7,"é\u2028"]}`), IsTrain: true, Greedy: true,
		Withhold: []string{"input.answer"}, Rewards: fulgur.RewardsAgent, Sampling: &fulgur.Sampling{Temperature: 0.7, TopK: 5, Stop: []string{"x"}, Seed: 1<<64 - 1},
		Config: json.RawMessage(`{"timeout_seconds":5}`), Metadata: json.RawMessage(`{"x":1}`), Timeout: 5 * time.Second, Seed: 1<<64 - 1}
	r := must(s.API.CreateRollouts(ctx, []fulgur.RolloutSpec{spec}))(t)[0]
	equal(t, "spec", r.RolloutSpec, spec)
	equal(t, "state", []any{r.State, r.Version, r.LastAttempt, r.Reward == nil, r.Outcome == nil}, []any{fulgur.Queuing, 1, fulgur.AttemptID(""), true, true})
	equal(t, "read again", must(s.API.Rollout(ctx, spec.ID))(t), r)

	other := fulgur.RolloutSpec{ID: spec.ID, Run: fulgur.DefaultRun, Input: json.RawMessage(`2`)}
	twin := fulgur.RolloutSpec{ID: "twin", Run: fulgur.DefaultRun, Input: json.RawMessage(`"first"`)}
	twin2 := fulgur.RolloutSpec{ID: "twin", Run: fulgur.DefaultRun, Input: json.RawMessage(`"second"`)}
	free := fulgur.RolloutSpec{Run: fulgur.DefaultRun, Input: json.RawMessage(`null`)}
	rs := must(s.API.CreateRollouts(ctx, []fulgur.RolloutSpec{other, twin, twin2, free, free}))(t)
	equal(t, "known one", rs[0], r)
	equal(t, "twins", rs[2], rs[1])
	equal(t, "the first twin's input", string(rs[1].Input), `"first"`)
	if rs[3].ID == rs[4].ID || len(rs[3].ID) != 32 || strings.Trim(string(rs[3].ID), "0123456789abcdef") != "" {
		t.Errorf("ids made by the store: %q, %q", rs[3].ID, rs[4].ID)
	}

	good := fulgur.RolloutSpec{ID: "good", Run: fulgur.DefaultRun, Input: json.RawMessage(`1`)}
	for name, bad := range map[string]struct {
		spec fulgur.RolloutSpec
		kind fulgur.Kind
	}{
		"without input":               {fulgur.RolloutSpec{ID: "bad", Run: fulgur.DefaultRun}, fulgur.KindInvalid},
		"that no path can name":       {fulgur.RolloutSpec{ID: "/", Run: fulgur.DefaultRun, Input: json.RawMessage(`1`)}, fulgur.KindInvalid},
		"that a path means otherwise": {fulgur.RolloutSpec{ID: "..", Run: fulgur.DefaultRun, Input: json.RawMessage(`1`)}, fulgur.KindInvalid},
		"without run":                 {fulgur.RolloutSpec{ID: "bad", Input: json.RawMessage(`1`)}, fulgur.KindInvalid},
		"unknown run":                 {fulgur.RolloutSpec{ID: "bad", Run: "nowhere", Input: json.RawMessage(`1`)}, fulgur.KindNotFound},
	} {
		_, err := s.API.CreateRollouts(ctx, []fulgur.RolloutSpec{good, bad.spec})
		if fulgur.KindOf(err) != bad.kind {
			t.Errorf("%s: %v", name, err)
		}
	}
	_, err := s.API.Rollout(ctx, "good")
	wantKind(t, err, fulgur.KindNotFound)
	equal(t, "of nothing", len(must(s.API.CreateRollouts(ctx, nil))(t)), 0)
}

func testList(t *testing.T, s Subject) {
	ctx := t.Context()
	noError(t, s.API.PutRun(ctx, fulgur.Run{ID: "other", Model: "m"}))
	var specs []fulgur.RolloutSpec
	for i := range 620 {
		specs = append(specs, fulgur.RolloutSpec{ID: fulgur.RolloutID(fmt.Sprint("r", i)), Run: fulgur.DefaultRun, Group: fulgur.GroupID(fmt.Sprint("g", i/8)), Input: json.RawMessage("1")},
			fulgur.RolloutSpec{ID: fulgur.RolloutID(fmt.Sprint("o", i)), Run: "other", Input: json.RawMessage("1")})
	}
	must(s.API.CreateRollouts(ctx, specs))(t)
	for i := range 550 { // the oldest run, the next 20 have ended
		id := fulgur.RolloutID(fmt.Sprint("r", i))
		if i < 530 {
			must(s.API.OpenAttempt(ctx, id))(t)
		} else {
			must(s.API.EndRollout(ctx, id, failed))(t)
		}
	}
	ids := func(q fulgur.RolloutQuery) (first, last fulgur.RolloutID, n int) {
		t.Helper()
		rs := must(s.API.Rollouts(ctx, q))(t)
		if len(rs) == 0 {
			return "", "", 0
		}
		return rs[0].ID, rs[len(rs)-1].ID, len(rs)
	}
	for _, c := range []struct {
		name  string
		q     fulgur.RolloutQuery
		first fulgur.RolloutID
		last  fulgur.RolloutID
		n     int
	}{
		{"the first 500 by default", fulgur.RolloutQuery{}, "r0", "r499", 500},
		{"queuing ones are seen behind 530 that run", fulgur.RolloutQuery{States: []fulgur.RolloutState{fulgur.Queuing}}, "r550", "r619", 70},
		{"open ones", fulgur.RolloutQuery{States: []fulgur.RolloutState{fulgur.Queuing, fulgur.Running}, Limit: 1000}, "r0", "r619", 600},
		{"failed ones", fulgur.RolloutQuery{States: []fulgur.RolloutState{fulgur.Failed}}, "r530", "r549", 20},
		{"behind one that runs", fulgur.RolloutQuery{States: []fulgur.RolloutState{fulgur.Running}, After: "r499"}, "r500", "r529", 30},
		{"behind one that has ended", fulgur.RolloutQuery{States: []fulgur.RolloutState{fulgur.Queuing}, After: "r540", Limit: 2}, "r550", "r551", 2},
		{"a group", fulgur.RolloutQuery{Group: "g68"}, "r544", "r551", 8},
		{"another run", fulgur.RolloutQuery{Run: "other", Limit: 3}, "o0", "o2", 3},
		{"an unknown run", fulgur.RolloutQuery{Run: "nowhere"}, "", "", 0},
		{"all states of a page", fulgur.RolloutQuery{After: "r615"}, "r616", "r619", 4},
	} {
		if first, last, n := ids(c.q); first != c.first || last != c.last || n != c.n {
			t.Errorf("%s: %q to %q, %d; want %q to %q, %d", c.name, first, last, n, c.first, c.last, c.n)
		}
	}
}

func testAttempts(t *testing.T, s Subject) {
	ctx := t.Context()
	create(t, s, "r")
	a := must(s.API.OpenAttempt(ctx, "r"))(t)
	equal(t, "opened", []any{a.ID, a.Rollout, a.Phase}, []any{fulgur.AttemptID("0"), fulgur.RolloutID("r"), fulgur.PhaseWaiting})
	r := must(s.API.Rollout(ctx, "r"))(t)
	equal(t, "rollout", []any{r.State, r.LastAttempt}, []any{fulgur.Running, fulgur.AttemptID("0")})

	b := must(s.API.OpenAttempt(ctx, "r"))(t)
	if b.ID != "0" || b.Credential == a.Credential || b.Credential == "" {
		t.Errorf("opened again before it started: %+v, then %+v", a, b)
	}
	must(s.API.ReportAttempt(ctx, "r", "0", fulgur.AttemptReport{Phase: fulgur.PhaseStarting, Runner: "local", Holder: "me"}))(t)
	_, err := s.API.OpenAttempt(ctx, "r")
	wantKind(t, err, fulgur.KindConflict)
	must(s.API.ReportAttempt(ctx, "r", "0", fulgur.AttemptReport{Phase: fulgur.PhaseRunning, Handle: "pg 7"}))(t)
	must(s.API.ReportAttempt(ctx, "r", "0", fulgur.AttemptReport{Phase: fulgur.PhaseStarting, Handle: "late"}))(t) // changes nothing
	at := must(s.API.Attempts(ctx, "r"))(t)[0]
	equal(t, "running", []any{at.Phase, at.Runner, at.Holder, at.Handle, at.StartedAt != nil}, []any{fulgur.PhaseRunning, "local", "me", "pg 7", true})

	r = must(s.API.ReportAttempt(ctx, "r", "0", lost))(t)
	equal(t, "between attempts", r.State, fulgur.Running)
	must(s.API.ReportAttempt(ctx, "r", "0", okay))(t) // the first outcome stays
	c := must(s.API.OpenAttempt(ctx, "r"))(t)
	equal(t, "the second", c.ID, fulgur.AttemptID("1"))
	must(s.API.ReportAttempt(ctx, "r", "1", fulgur.AttemptReport{Phase: fulgur.PhaseGrading}))(t)
	r = must(s.API.ReportAttempt(ctx, "r", "1", okay))(t)
	equal(t, "ended", []any{r.State, r.Outcome, r.LastAttempt}, []any{fulgur.Succeeded, okay.Outcome, fulgur.AttemptID("1")})
	equal(t, "reported twice", must(s.API.ReportAttempt(ctx, "r", "1", okay))(t), r)
	_, err = s.API.OpenAttempt(ctx, "r")
	wantKind(t, err, fulgur.KindConflict)
	as := must(s.API.Attempts(ctx, "r"))(t)
	if len(as) != 2 {
		t.Fatalf("attempts: %+v", as)
	}
	equal(t, "their outcomes", []any{as[0].Outcome, as[1].Outcome, as[1].EndedAt != nil}, []any{lost.Outcome, okay.Outcome, true})
	_, err = s.API.ReportAttempt(ctx, "r", "7", okay)
	wantKind(t, err, fulgur.KindNotFound)
	_, err = s.API.ReportAttempt(ctx, "r", "01", okay)
	wantKind(t, err, fulgur.KindNotFound)
}

// What starts may have to wait, and says what for; what runs does not.
func testWaiting(t *testing.T, s Subject) {
	ctx := t.Context()
	create(t, s, "r")
	must(s.API.OpenAttempt(ctx, "r"))(t)
	for _, step := range []struct {
		name   string
		report fulgur.AttemptReport
		phase  fulgur.Phase
		why    string
	}{
		{"it starts", fulgur.AttemptReport{Phase: fulgur.PhaseStarting, Runner: "kube", Handle: "job"}, fulgur.PhaseStarting, ""},
		{"who waits for nothing does not go back", fulgur.AttemptReport{Phase: fulgur.PhaseWaiting}, fulgur.PhaseStarting, ""},
		{"it waits", fulgur.AttemptReport{Phase: fulgur.PhaseWaiting, Why: "exceeded quota"}, fulgur.PhaseWaiting, "exceeded quota"},
		{"for something else", fulgur.AttemptReport{Phase: fulgur.PhaseWaiting, Why: "suspended"}, fulgur.PhaseWaiting, "suspended"},
		{"it starts again", fulgur.AttemptReport{Phase: fulgur.PhaseStarting}, fulgur.PhaseStarting, ""},
		{"which takes long", fulgur.AttemptReport{Phase: fulgur.PhaseStarting, Why: "no node has room"}, fulgur.PhaseStarting, "no node has room"},
		{"for another reason then", fulgur.AttemptReport{Phase: fulgur.PhaseStarting, Why: "its image is fetched"}, fulgur.PhaseStarting, "its image is fetched"},
		{"and waits again", fulgur.AttemptReport{Phase: fulgur.PhaseWaiting, Why: "suspended"}, fulgur.PhaseWaiting, "suspended"},
		{"it runs", fulgur.AttemptReport{Phase: fulgur.PhaseRunning}, fulgur.PhaseRunning, ""},
		{"a report that comes late changes nothing", fulgur.AttemptReport{Phase: fulgur.PhaseWaiting, Why: "suspended"}, fulgur.PhaseRunning, ""},
		{"it ends", lost, fulgur.PhaseEnded, ""},
	} {
		must(s.API.ReportAttempt(ctx, "r", "0", step.report))(t)
		at := must(s.API.Attempts(ctx, "r"))(t)[0]
		equal(t, step.name, []any{at.Phase, at.Why, at.Handle, at.Runner}, []any{step.phase, step.why, "job", "kube"})
	}
	must(s.API.OpenAttempt(ctx, "r"))(t)
	must(s.API.ReportAttempt(ctx, "r", "1", fulgur.AttemptReport{Phase: fulgur.PhaseWaiting, Why: "exceeded quota", Handle: "job"}))(t)
	equal(t, "opened again", must(s.API.OpenAttempt(ctx, "r"))(t).Attempt, fulgur.Attempt{Rollout: "r", ID: "1", Phase: fulgur.PhaseWaiting})
	must(s.API.EndRollout(ctx, "r", failed))(t)
}

func testCredentials(t *testing.T, s Subject) {
	ctx := t.Context()
	create(t, s, "r")
	old := must(s.API.OpenAttempt(ctx, "r"))(t).Credential
	cred := must(s.API.OpenAttempt(ctx, "r"))(t).Credential
	_, err := s.Store.Identify(ctx, old)
	wantKind(t, err, fulgur.KindDenied)
	want := fulgur.Identity{Scope: fulgur.ScopeAttempt, Run: fulgur.DefaultRun, Rollout: "r", Attempt: "0"}
	equal(t, "live", must(s.Store.Identify(ctx, cred))(t), want)
	must(s.API.ReportAttempt(ctx, "r", "0", lost))(t)
	want.Ended = true
	equal(t, "attempt ended", must(s.Store.Identify(ctx, cred))(t), want)
	second := must(s.API.OpenAttempt(ctx, "r"))(t).Credential
	equal(t, "the second is live", must(s.Store.Identify(ctx, second))(t).Ended, false)
	must(s.API.EndRollout(ctx, "r", failed))(t)
	equal(t, "rollout ended", must(s.Store.Identify(ctx, cred))(t), want)
	want.Attempt = "1"
	equal(t, "rollout ended, its last", must(s.Store.Identify(ctx, second))(t), want)
	_, err = s.Store.Identify(ctx, "fk-forged")
	wantKind(t, err, fulgur.KindDenied)
}

func testEnd(t *testing.T, s Subject) {
	ctx := t.Context()
	create(t, s, "called")
	must(s.API.OpenAttempt(ctx, "called"))(t)
	for i := range 2 {
		noError(t, s.Store.AppendCall(ctx, &fulgur.Call{ID: fulgur.CallID(fmt.Sprint("ended", i)), Rollout: "called", Attempt: "0", Index: i}))
	}
	if n := must(s.API.EndRollout(ctx, "called", failed))(t).Outcome.Calls; n != 2 {
		t.Errorf("ended with %d calls, want 2", n)
	}
	create(t, s, "queued", "running")
	must(s.API.OpenAttempt(ctx, "running"))(t)
	for _, id := range []fulgur.RolloutID{"queued", "running"} {
		r := must(s.API.EndRollout(ctx, id, failed))(t)
		equal(t, "ended", []any{r.State, r.Outcome, r.Error}, []any{fulgur.Failed, &failed, failed.Message})
		again := fulgur.Outcome{Class: fulgur.OutcomeAgent, Reason: "second"}
		equal(t, "ended twice", must(s.API.EndRollout(ctx, id, again))(t), r)
	}
	a := must(s.API.Attempts(ctx, "running"))(t)[0]
	equal(t, "its attempt", []any{a.Phase, a.Outcome}, []any{fulgur.PhaseEnded, &failed})
	r := must(s.API.ReportAttempt(ctx, "running", "0", okay))(t)
	equal(t, "a late report", []any{r.State, r.Outcome}, []any{fulgur.Failed, &failed})
	_, err := s.API.EndRollout(ctx, "queued", fulgur.Outcome{Class: fulgur.OutcomeOK})
	wantKind(t, err, fulgur.KindInvalid)
}

func testTerminal(t *testing.T, s Subject) {
	ctx := t.Context()
	noError(t, s.API.PutRun(ctx, fulgur.Run{ID: "other", Model: "m"}))
	must(s.API.CreateRollouts(ctx, []fulgur.RolloutSpec{
		{ID: "a", Run: fulgur.DefaultRun, Input: json.RawMessage(`{"data_id":"row-1","instance_id":"x"}`), IsTrain: true},
		{ID: "b", Run: fulgur.DefaultRun, Input: json.RawMessage(`{"data_id":0,"instance_id":"inst"}`)},
		{ID: "c", Run: fulgur.DefaultRun, Input: json.RawMessage(`[1]`)},
		{ID: "d", Run: fulgur.DefaultRun, Input: json.RawMessage(`{"data_id":17}`)},
		{ID: "o", Run: "other", Input: json.RawMessage(`1`)},
	}))(t)
	for _, id := range []fulgur.RolloutID{"o", "d", "b", "c", "a"} {
		must(s.API.EndRollout(ctx, id, failed))(t)
	}
	item := func(id fulgur.RolloutID, data string, train bool) fulgur.TerminalItem {
		return fulgur.TerminalItem{ID: id, State: fulgur.Failed, DataID: data, IsTrain: train}
	}
	all := []fulgur.TerminalItem{item("d", "17", false), item("b", "inst", false), item("c", "", false), item("a", "row-1", true)}
	for _, c := range []struct {
		name         string
		after, limit int
		want         fulgur.TerminalPage
	}{
		{"all", 0, 1000, fulgur.TerminalPage{Items: all, Next: 4, Total: 4}},
		{"a page", 1, 2, fulgur.TerminalPage{Items: all[1:3], Next: 3, Total: 4}},
		{"past the end", 40, 10, fulgur.TerminalPage{Next: 40, Total: 4}},
		{"below the start", -3, 0, fulgur.TerminalPage{Items: all[:1], Next: 1, Total: 4}},
	} {
		equal(t, c.name, must(s.API.Terminal(ctx, c.after, c.limit))(t), c.want)
	}
}

func testNotFound(t *testing.T, s Subject) {
	ctx := t.Context()
	var errs []error
	add := func(err error) { errs = append(errs, err) }
	_, err := s.API.Rollout(ctx, "x")
	add(err)
	_, err = s.API.Rollouts(ctx, fulgur.RolloutQuery{After: "x"})
	add(err)
	_, err = s.API.EndRollout(ctx, "x", failed)
	add(err)
	add(s.API.SetReward(ctx, "x", "0", 1, "s"))
	_, err = s.API.OpenAttempt(ctx, "x")
	add(err)
	_, err = s.API.ReportAttempt(ctx, "x", "0", okay)
	add(err)
	_, err = s.API.Attempts(ctx, "x")
	add(err)
	_, err = s.API.Calls(ctx, "x", "")
	add(err)
	_, err = s.API.Call(ctx, "x")
	add(err)
	_, err = s.API.AppendEvent(ctx, fulgur.Event{Rollout: "x", Attempt: "0", Type: "note"})
	add(err)
	_, err = s.API.Events(ctx, "x", "")
	add(err)
	_, err = s.API.Run(ctx, "x")
	add(err)
	for i, err := range errs {
		if fulgur.KindOf(err) != fulgur.KindNotFound {
			t.Errorf("number %d: %v", i, err)
		}
	}
}

func testInvalid(t *testing.T, s Subject) {
	ctx := t.Context()
	create(t, s, "r")
	must(s.API.OpenAttempt(ctx, "r"))(t)
	_, err := s.API.ReportAttempt(ctx, "r", "0", fulgur.AttemptReport{Phase: "odd"})
	wantKind(t, err, fulgur.KindInvalid)
	_, err = s.API.ReportAttempt(ctx, "r", "0", fulgur.AttemptReport{Phase: fulgur.PhaseEnded})
	wantKind(t, err, fulgur.KindInvalid)
	_, err = s.API.Rollouts(ctx, fulgur.RolloutQuery{States: []fulgur.RolloutState{"cancelled"}})
	wantKind(t, err, fulgur.KindInvalid)
	_, err = s.API.AcquireLease(ctx, fulgur.DefaultRun, "trainer", "", time.Hour)
	wantKind(t, err, fulgur.KindInvalid)
	_, err = s.API.AppendEvent(ctx, fulgur.Event{Rollout: "r", Attempt: "0"})
	wantKind(t, err, fulgur.KindInvalid)
	wantKind(t, s.API.PutRun(ctx, fulgur.Run{ID: "x", Config: json.RawMessage("{")}), fulgur.KindInvalid)
}

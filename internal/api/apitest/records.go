package apitest

import (
	"encoding/json"
	"fmt"
	"math"
	"testing"
	"time"

	"github.com/fulgur-rl/fulgur"
)

func testRewards(t *testing.T, s Subject) {
	ctx := t.Context()
	must(s.API.CreateRollouts(ctx, []fulgur.RolloutSpec{
		{ID: "graded", Run: fulgur.DefaultRun, Input: json.RawMessage("1")},
		{ID: "agent", Run: fulgur.DefaultRun, Input: json.RawMessage("1"), Rewards: fulgur.RewardsAgent},
	}))(t)
	post := func(id fulgur.RolloutID, a fulgur.AttemptID, data string) (unused string) {
		t.Helper()
		return must(s.API.AppendEvent(ctx, fulgur.Event{Rollout: id, Attempt: a, Type: fulgur.EventReward, Data: json.RawMessage(data)}))(t).Unused
	}
	reward := func(id fulgur.RolloutID) any {
		t.Helper()
		if r := must(s.API.Rollout(ctx, id))(t).Reward; r != nil {
			return *r
		}
		return nil
	}
	for _, id := range []fulgur.RolloutID{"graded", "agent"} {
		must(s.API.OpenAttempt(ctx, id))(t)
		must(s.API.ReportAttempt(ctx, id, "0", lost))(t)
		must(s.API.OpenAttempt(ctx, id))(t)
	}
	for _, c := range []struct {
		name   string
		id     fulgur.RolloutID
		a      fulgur.AttemptID
		data   string
		counts bool
		reward any
	}{
		{"the run grades: kept as unused", "graded", "1", `{"value":1}`, false, nil},
		{"the agent's own", "agent", "1", `{"value":0.25,"note":"half"}`, true, 0.25},
		{"of an attempt before the last", "agent", "0", `{"value":9}`, false, 0.25},
		{"no number", "agent", "1", `{"value":"high"}`, false, 0.25},
		{"no value", "agent", "1", `{}`, false, 0.25},
		{"a bool is no number", "agent", "1", `{"value":true}`, false, 0.25},
		{"a second one counts", "agent", "1", `{"value":-3}`, true, -3.0},
	} {
		if got := post(c.id, c.a, c.data) == ""; got != c.counts {
			t.Errorf("%s: counts is %v", c.name, got)
		}
		equal(t, c.name, reward(c.id), c.reward)
	}
	_, err := s.API.AppendEvent(ctx, fulgur.Event{Rollout: "agent", Attempt: "7", Type: fulgur.EventReward, Data: json.RawMessage(`{"value":9}`)})
	wantKind(t, err, fulgur.KindNotFound)
	must(s.API.ReportAttempt(ctx, "agent", "1", okay))(t)
	if post("agent", "1", `{"value":9}`) == "" || reward("agent") != -3.0 {
		t.Error("a late reward counts")
	}
	// A grader may come after the end; the same grade again changes nothing.
	must(s.API.ReportAttempt(ctx, "graded", "1", okay))(t)
	noError(t, s.API.SetReward(ctx, "graded", "1", 0.5, "final-answer"))
	n := len(must(s.API.Events(ctx, "graded", ""))(t))
	noError(t, s.API.SetReward(ctx, "graded", "1", 0.5, "final-answer"))
	equal(t, "graded", reward("graded"), 0.5)
	events := must(s.API.Events(ctx, "graded", ""))(t)
	equal(t, "graded twice", len(events), n)
	equal(t, "its event", string(events[n-1].Data), `{"value":0.5,"source":"final-answer"}`)
	noError(t, s.API.SetReward(ctx, "graded", "0", 0.75, "final-answer"))
	equal(t, "graded, not the last attempt", reward("graded"), 0.5)
	wantKind(t, s.API.SetReward(ctx, "graded", "7", 1, "x"), fulgur.KindNotFound)
	wantKind(t, s.API.SetReward(ctx, "graded", "1", math.NaN(), "x"), fulgur.KindInvalid)
}

// FullCall is a call with every field set.
func FullCall(id fulgur.CallID, r fulgur.RolloutID, a fulgur.AttemptID, index int) fulgur.Call {
	return fulgur.Call{ID: id, Run: fulgur.DefaultRun, Rollout: r, Attempt: a, Index: index, Mode: fulgur.ModeTrain, Dialect: "openai-chat", Model: "gpt", Stream: true,
		Endpoint: fulgur.Endpoint{Model: "m", Kind: fulgur.EndpointTokens, URL: "http://up/v1", Version: 3},
		Request:  json.RawMessage(`{"z":1,"a":98765432109876543210}`), Sent: json.RawMessage(`{"z":1,"temperature":1.0}`), Response: json.RawMessage(`{"choices":[]}`), RoutedExperts: json.RawMessage(`[[0,7],[1,2]]`),
		Messages:  []fulgur.Message{{Role: "user", Content: "hi é \u2028"}, {Role: "tool", ToolCallID: "c1", Content: "42", Name: "calc"}},
		Tools:     []fulgur.Tool{{Name: "calc", Schema: json.RawMessage(`{"type":"object","a":1}`), Raw: json.RawMessage(`{"z":1,"a":2}`)}},
		Reply:     &fulgur.Message{Role: "assistant", Reasoning: "hm", ToolCalls: []fulgur.ToolCall{{ID: "c2", Name: "calc", Arguments: `{"a": 1}`}}},
		PromptIDs: []int32{1, 2, 1 << 30}, SampledIDs: []int32{-1, 5}, LogProbs: []float32{-0.125, -1.1e-7}, Spans: []fulgur.Span{{Start: 0, Version: 3}, {Start: 1, Version: 4}},
		Sampling: fulgur.Sampling{Temperature: 1, TopP: 0.5, TopK: 3, MaxTokens: 7, Stop: []string{"\n"}, Seed: 1<<64 - 1},
		Usage:    &fulgur.Usage{PromptTokens: 3, CompletionTokens: 2, CachedTokens: 1}, FinishReason: "stop", HTTPStatus: 200, Error: "none", Fate: fulgur.FateDelivered, Retries: 2, Joined: 1,
		Trainable: false, Untrainable: []string{fulgur.UntrainableSampling}, Auxiliary: "title", StartedAt: time.UnixMicro(1700000000123456).UTC(), Latency: 1234567 * time.Nanosecond}
}

func testCalls(t *testing.T, s Subject) {
	ctx := t.Context()
	create(t, s, "r")
	must(s.API.OpenAttempt(ctx, "r"))(t)
	full := FullCall("full", "r", "0", 1)
	full.Endpoint.Key = "never on record"
	noError(t, s.Store.AppendCall(ctx, &full))
	if full.Seq == 0 {
		t.Error("AppendCall set no Seq")
	}
	full.Endpoint.Key = ""
	equal(t, "full", must(s.API.Call(ctx, "full"))(t), full)

	odd := fulgur.Call{ID: "odd", Rollout: "r", Attempt: "0", Index: 0, Request: json.RawMessage("{\"messages\": [\xff"), Response: json.RawMessage(`{"logprob":NaN}`),
		LogProbs: []float32{float32(math.Inf(-1)), float32(math.Inf(1)), -9999}, SampledIDs: []int32{}, StartedAt: time.UnixMicro(1).UTC(), Fate: fulgur.FateLeft}
	noError(t, s.Store.AppendCall(ctx, &odd))
	equal(t, "run filled in", odd.Run, fulgur.DefaultRun)
	got := must(s.API.Call(ctx, "odd"))(t)
	if len(got.SampledIDs) != 0 {
		t.Errorf("sampled ids %v", got.SampledIDs)
	}
	got.SampledIDs = odd.SampledIDs // JSON does not tell none from no
	equal(t, "odd", got, odd)
	nan := fulgur.Call{ID: "nan", Rollout: "r", Attempt: "1", LogProbs: []float32{float32(math.NaN())}}
	noError(t, s.Store.AppendCall(ctx, &nan))
	if lp := must(s.API.Call(ctx, "nan"))(t).LogProbs; len(lp) != 1 || !math.IsNaN(float64(lp[0])) {
		t.Errorf("log probs %v", lp)
	}
	// ST-01: calls without prompt ids are calls of their own.
	for i := range 3 {
		noError(t, s.Store.AppendCall(ctx, &fulgur.Call{ID: fulgur.CallID(fmt.Sprint("n", i)), Rollout: "r", Attempt: "2", Index: 2 - i, SampledIDs: []int32{int32(i)},
			Untrainable: []string{fulgur.UntrainableNoIDs}}))
	}
	ids := func(a fulgur.AttemptID) (out []fulgur.CallID) {
		for _, c := range must(s.API.Calls(ctx, "r", a))(t) {
			out = append(out, c.ID)
		}
		return out
	}
	equal(t, "of attempt 0, by arrival", ids("0"), []fulgur.CallID{"odd", "full"})
	equal(t, "of attempt 2", ids("2"), []fulgur.CallID{"n2", "n1", "n0"})
	equal(t, "of all", ids(""), []fulgur.CallID{"odd", "full", "nan", "n2", "n1", "n0"})

	wantKind(t, s.Store.AppendCall(ctx, &fulgur.Call{ID: "full", Rollout: "r", Attempt: "0"}), fulgur.KindConflict)
	wantKind(t, s.Store.AppendCall(ctx, &fulgur.Call{ID: "x", Rollout: "nobody", Attempt: "0"}), fulgur.KindNotFound)
	wantKind(t, s.Store.AppendCall(ctx, &fulgur.Call{Rollout: "r"}), fulgur.KindInvalid)
	// Plain serving has no rollout; a call that was in flight at the end is kept.
	noError(t, s.Store.AppendCall(ctx, &fulgur.Call{ID: "plain", Run: fulgur.DefaultRun}))
	equal(t, "plain", must(s.API.Call(ctx, "plain"))(t).Run, fulgur.DefaultRun)
	must(s.API.EndRollout(ctx, "r", failed))(t)
	noError(t, s.Store.AppendCall(ctx, &fulgur.Call{ID: "late", Rollout: "r", Attempt: "0", Index: 9}))
	equal(t, "of attempt 0, late", ids("0"), []fulgur.CallID{"odd", "full", "late"})
}

func testEvents(t *testing.T, s Subject) {
	ctx := t.Context()
	create(t, s, "r", "v1")
	must(s.API.OpenAttempt(ctx, "r"))(t)
	bodies := []string{`{"b":1,"a":98765432109876543210}`, `[[1]]`, `"text \ud83d\ude00"`, `{"prompt_token_ids":[[1]]}`}
	var want []fulgur.Event
	for i, b := range bodies {
		ev := must(s.API.AppendEvent(ctx, fulgur.Event{Rollout: "r", Attempt: "0", Type: "note", Data: json.RawMessage(b)}))(t)
		if string(ev.Data) != b || ev.At.IsZero() || i > 0 && ev.Seq <= want[i-1].Seq {
			t.Errorf("event %d: %+v", i, ev)
		}
		want = append(want, ev)
	}
	equal(t, "of the attempt", must(s.API.Events(ctx, "r", "0"))(t), want)
	equal(t, "of all", must(s.API.Events(ctx, "r", ""))(t), want)
	// Where no attempt was opened (v1), any name will do.
	must(s.API.AppendEvent(ctx, fulgur.Event{Rollout: "v1", Attempt: "retry-b", Type: "note"}))(t)
	ev := must(s.API.AppendEvent(ctx, fulgur.Event{Rollout: "v1", Attempt: "0", Type: "note"}))(t)
	equal(t, "no data", string(ev.Data), "{}")
	equal(t, "of one attempt", must(s.API.Events(ctx, "v1", "0"))(t), []fulgur.Event{ev})
}

package samplertest

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/fulgur-rl/fulgur"
	"github.com/fulgur-rl/fulgur/internal/engine"
	"github.com/fulgur-rl/fulgur/internal/gateway/call"
	"github.com/fulgur-rl/fulgur/internal/gateway/sampler"
)

// Setup gives a sampler whose calls end at the script, and the endpoint they go
// to. What it starts ends with the test.
type Setup func(t *testing.T, gen *Script) (sampler.Sampler, fulgur.Endpoint)

// Order makes an order for a sampler: one user message, a tool, temperature 1.
func Order(ep fulgur.Endpoint, text string, stream bool) *call.Order {
	body := fmt.Sprintf(`{"model":"m","messages":[{"role":"user","content":%s}],"stream":%t,"tools":[{"type":"function","function":{"name":"add"}}]}`, quote(text), stream)
	return &call.Order{
		Request: &call.Request{Body: []byte(body), Dialect: "openai-chat", Model: "m", Stream: stream, N: 1,
			Messages: []fulgur.Message{{Role: "user", Content: text}},
			Tools:    []fulgur.Tool{{Name: "add", Raw: []byte(`{"type":"function","function":{"name":"add"}}`)}}},
		Call: "c1", Run: "run", Rollout: "r1", Attempt: "0", Mode: fulgur.ModeTrain, Endpoint: ep, Target: "policy",
		Sampling: fulgur.Sampling{Temperature: 1, Seed: 7}, ForceTemperature: true, NeedLogProbs: true,
	}
}

// Run is the suite.
func Run(t *testing.T, setup Setup) {
	t.Run("a result is exactly what was sampled, streamed or not", func(t *testing.T) { exact(t, setup) })
	t.Run("the end of its context ends a generation within a second", func(t *testing.T) { cancelled(t, setup) })
	t.Run("an error of emit ends the generation", func(t *testing.T) { emitFails(t, setup) })
	t.Run("a failure in the middle is an error with what there was", func(t *testing.T) { breaks(t, setup) })
	t.Run("a limit of tokens ends with length", func(t *testing.T) { length(t, setup) })
	t.Run("a prompt that does not fit is said to be so", func(t *testing.T) { tooLong(t, setup) })
}

func exact(t *testing.T, setup Setup) {
	said := fulgur.Message{Role: "assistant", Content: "so: 北京 \"quoted\"\n", ToolCalls: []fulgur.ToolCall{
		{Name: "add", Arguments: `{"a":1,"b":"北"}`}, {Name: "add", Arguments: `{}`}}}
	gen := &Script{Reply: Say(said)}
	gen.Publish(3)
	s, ep := setup(t, gen)
	ep.Version = 3
	whole, err := s.Sample(t.Context(), Order(ep, "hi", false), nil)
	if err != nil {
		t.Fatal(err)
	}
	check(t, whole, said)
	var got []call.Delta
	streamed, err := s.Sample(t.Context(), Order(ep, "hi", true), func(d call.Delta) error {
		got = append(got, d)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	check(t, streamed, said)
	if diff := cmp.Diff(whole, streamed, cmpopts.IgnoreFields(call.Result{}, "Raw", "Wire", "Sent", "Relayed", "ContentType"),
		cmpopts.IgnoreFields(fulgur.ToolCall{}, "ID")); diff != "" {
		t.Errorf("streamed differs from whole (-whole +streamed):\n%s", diff)
	}
	if len(got) < 2 {
		t.Errorf("a stream of %d pieces", len(got))
	}
}

func check(t *testing.T, r *call.Result, said fulgur.Message) {
	t.Helper()
	want := Answer(said)
	if diff := cmp.Diff(want, r.SampledIDs); diff != "" {
		t.Errorf("sampled ids (-want +got):\n%s", diff)
	}
	if len(r.LogProbs) != len(want) {
		t.Fatalf("%d log probs for %d ids", len(r.LogProbs), len(want))
	}
	for i, p := range r.LogProbs {
		if p != LogProb(want[i], i) {
			t.Errorf("log prob %d is %v, want %v", i, p, LogProb(want[i], i))
		}
	}
	prompt, err := Bytes{}.Render([]fulgur.Message{{Role: "user", Content: "hi"}}, []fulgur.Tool{{Raw: []byte(`{"type":"function","function":{"name":"add"}}`)}})
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(prompt, r.PromptIDs); diff != "" {
		t.Errorf("prompt ids (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]fulgur.Span{{Start: 0, Version: 3}}, r.Spans); diff != "" {
		t.Errorf("spans (-want +got):\n%s", diff)
	}
	if r.Usage == nil || r.Usage.PromptTokens != len(prompt) || r.Usage.CompletionTokens != len(want) {
		t.Errorf("usage is %+v, want %d and %d", r.Usage, len(prompt), len(want))
	}
	if r.Finish != "tool_calls" || r.Status != 200 || r.Fault != "" {
		t.Errorf("finish %q, status %d, fault %q", r.Finish, r.Status, r.Fault)
	}
	if r.Reply == nil || !r.Reply.Same(said) {
		t.Errorf("reply is %+v, want %+v", r.Reply, said)
	}
}

func slow(n int, d time.Duration) *Script {
	return &Script{Delay: d, Reply: func(engine.GenerateRequest) []int32 { return append(Encode(strings.Repeat("x", n)), EndOfTurn) }}
}

func cancelled(t *testing.T, setup Setup) {
	for _, stream := range []bool{false, true} {
		gen := slow(1000, 20*time.Millisecond)
		s, ep := setup(t, gen)
		ctx, cancel := context.WithCancel(t.Context())
		var emit func(call.Delta) error
		if stream {
			emit = func(call.Delta) error { return nil }
		}
		time.AfterFunc(200*time.Millisecond, cancel)
		start := time.Now()
		res, err := s.Sample(ctx, Order(ep, "hi", stream), emit)
		if fulgur.KindOf(err) != fulgur.KindCanceled || !errors.Is(err, context.Canceled) {
			t.Errorf("stream %t: error is %v, want a cancelled context", stream, err)
		}
		if res == nil || res.Finish != "" {
			t.Errorf("stream %t: result is %+v, want one without an end", stream, res)
		}
		for gen.Live() > 0 && time.Since(start) < 3*time.Second {
			time.Sleep(5 * time.Millisecond)
		}
		if d := time.Since(start); gen.Live() > 0 || d > 1200*time.Millisecond {
			t.Errorf("stream %t: after %v %d generations run on", stream, d, gen.Live())
		}
		cancel()
	}
}

func emitFails(t *testing.T, setup Setup) {
	gen := slow(1000, 5*time.Millisecond)
	s, ep := setup(t, gen)
	gone := errors.New("the client is gone")
	_, err := s.Sample(t.Context(), Order(ep, "hi", true), func(call.Delta) error { return gone })
	if !errors.Is(err, gone) {
		t.Errorf("error is %v, want emit's", err)
	}
	for start := time.Now(); gen.Live() > 0; time.Sleep(5 * time.Millisecond) {
		if time.Since(start) > 3*time.Second {
			t.Fatal("the generation runs on")
		}
	}
	if gen.Calls() != 1 {
		t.Errorf("%d generations were started, want 1", gen.Calls())
	}
}

func breaks(t *testing.T, setup Setup) {
	gen := &Script{Reply: Say(fulgur.Message{Content: "hello"}), Delay: 15 * time.Millisecond,
		Fail: fulgur.E(fulgur.KindInternal, "generate", "the engine broke", nil), FailAfter: 4}
	s, ep := setup(t, gen)
	res, err := s.Sample(t.Context(), Order(ep, "hi", true), func(call.Delta) error { return nil })
	if err == nil || res == nil || res.Finish != "" || res.Fault == "" {
		t.Errorf("error is %v, result %+v", err, res)
	}
	if res != nil && len(res.SampledIDs) == 0 {
		t.Error("the tokens before the failure are lost")
	}
	if gen.Calls() != 1 {
		t.Errorf("%d generations were started: what has begun is not tried again", gen.Calls())
	}
}

func length(t *testing.T, setup Setup) {
	gen := &Script{Reply: Say(fulgur.Message{Content: "hello there"})}
	s, ep := setup(t, gen)
	o := Order(ep, "hi", false)
	o.CapTokens, o.Sampling.MaxTokens = 5, 5
	res, err := s.Sample(t.Context(), o, nil)
	if err != nil || res.Finish != "length" || len(res.SampledIDs) != 5 {
		t.Errorf("error %v, finish %q, %d ids", err, res.Finish, len(res.SampledIDs))
	}
}

// tooLong takes an answer of status 400 or an error of KindContextFull.
func tooLong(t *testing.T, setup Setup) {
	gen := &Script{Reply: Say(fulgur.Message{Content: "hello"})}
	s, ep := setup(t, gen)
	res, err := s.Sample(t.Context(), Order(ep, strings.Repeat("long ", ContextLen/4), false), nil)
	if fulgur.KindOf(err) != fulgur.KindContextFull && (err != nil || res.Status != 400) {
		t.Errorf("error %v, status %d", err, res.Status)
	}
	if gen.Calls() != 0 {
		t.Errorf("%d generations were started, want none", gen.Calls())
	}
}

package samplertest

import (
	"context"
	"encoding/json"
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
func Run(t *testing.T, setup Setup) { run(t, setup, false) }

// RunAtOnce is the suite for a sampler whose server gives an answer when it is
// whole: of one that fails in the middle, nothing is had.
func RunAtOnce(t *testing.T, setup Setup) { run(t, setup, true) }

func run(t *testing.T, setup Setup, atOnce bool) {
	t.Run("a result is exactly what was sampled, streamed or not", func(t *testing.T) { exact(t, setup) })
	t.Run("a raw prompt is continued as it is, and a stop string is cut from the answer", func(t *testing.T) { raw(t, setup) })
	t.Run("a dialect that nobody relays gets pieces with fields", func(t *testing.T) { converted(t, setup) })
	t.Run("the end of its context ends a generation within a second", func(t *testing.T) { cancelled(t, setup) })
	t.Run("an error of emit ends the generation", func(t *testing.T) { emitFails(t, setup, atOnce) })
	t.Run("a failure in the middle is an error with what there was", func(t *testing.T) { breaks(t, setup, atOnce) })
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

// RawOrder makes an order of a text completions request: a text, or its tokens.
func RawOrder(ep fulgur.Endpoint, text string, ids, stream bool, stop ...string) *call.Order {
	o := Order(ep, "", stream)
	n := 64
	o.Request = &call.Request{Dialect: "openai-completions", Model: "m", Stream: stream, N: 1, Prompt: &call.Prompt{Text: text}, Wishes: call.Wishes{MaxTokens: &n, Stop: stop}}
	prompt := quote(text)
	if ids {
		o.Prompt = &call.Prompt{IDs: Encode(text)}
		prompt = strings.ReplaceAll(fmt.Sprint(o.Prompt.IDs), " ", ",")
	}
	stops, err := json.Marshal(stop)
	if err != nil {
		panic(err)
	}
	o.Body = []byte(fmt.Sprintf(`{"model":"m","prompt":%s,"stream":%t,"max_tokens":%d,"stop":%s}`, prompt, stream, n, stops))
	o.Sampling.MaxTokens, o.Sampling.Stop = n, stop
	return o
}

func raw(t *testing.T, setup Setup) {
	gen := &Script{Reply: Say(fulgur.Message{Content: "<think>北京</think> é, then END and more"})}
	s, ep := setup(t, gen)
	for _, ids := range []bool{false, true} {
		for _, stream := range []bool{false, true} {
			var text strings.Builder
			var emit func(call.Delta) error
			if stream {
				emit = func(d call.Delta) error {
					text.WriteString(d.Text)
					return nil
				}
			}
			const said = "<think>北京</think> é, then "
			res, err := s.Sample(t.Context(), RawOrder(ep, "Once", ids, stream, "never", "END"), emit)
			if err != nil {
				t.Fatalf("ids %t, stream %t: %v", ids, stream, err)
			}
			if d := cmp.Diff(Encode("Once"), res.PromptIDs); d != "" {
				t.Errorf("ids %t, stream %t: prompt (-want +got):\n%s", ids, stream, d)
			}
			if d := cmp.Diff(Encode(said+"END"), res.SampledIDs); d != "" || len(res.LogProbs) != len(res.SampledIDs) {
				t.Errorf("ids %t, stream %t: %d log probs, sampled (-want +got):\n%s", ids, stream, len(res.LogProbs), d)
			}
			if res.Finish != "stop" || res.Reply == nil || res.Reply.Content != said || len(res.Reply.ToolCalls) > 0 || res.Reply.Reasoning != "" {
				t.Errorf("ids %t, stream %t: finish %q, reply %+v", ids, stream, res.Finish, res.Reply)
			}
			if text.String() != said && stream && !res.Relayed {
				t.Errorf("ids %t: shown %q", ids, text.String())
			}
		}
	}
}

// converted asks in a dialect of its own: what comes out is all in fields.
func converted(t *testing.T, setup Setup) {
	said := fulgur.Message{Role: "assistant", Content: "so: 北京", ToolCalls: []fulgur.ToolCall{{Name: "add", Arguments: `{"a":1}`}}}
	gen := &Script{Reply: Say(said)}
	gen.Publish(3)
	s, ep := setup(t, gen)
	ep.Version = 3
	for _, stream := range []bool{false, true} {
		o := Order(ep, "hi", stream)
		o.Dialect, o.Body = "a-dialect-of-its-own", []byte(`{"nothing":"of this is read"}`)
		var got fulgur.Message
		var ids, prompt []int32
		var emit func(call.Delta) error
		if stream {
			emit = func(d call.Delta) error {
				if d.Raw != nil {
					t.Error("bytes of another dialect are passed on")
				}
				got.Content += d.Text
				for _, k := range d.Tools {
					for len(got.ToolCalls) <= k.Index {
						got.ToolCalls = append(got.ToolCalls, fulgur.ToolCall{})
					}
					got.ToolCalls[k.Index].Name += k.Name
					got.ToolCalls[k.Index].Arguments += k.Arguments
				}
				for _, k := range d.Tokens {
					ids = append(ids, k.ID)
				}
				if prompt == nil {
					prompt = d.PromptIDs
				}
				return nil
			}
		}
		res, err := s.Sample(t.Context(), o, emit)
		if err != nil {
			t.Fatalf("stream %t: %v", stream, err)
		}
		if res.Raw != nil || res.Relayed || res.Reply == nil || !res.Reply.Same(said) || res.Finish != "tool_calls" || res.Usage == nil {
			t.Errorf("stream %t: %+v", stream, res)
		}
		if d := cmp.Diff(Answer(said), res.SampledIDs); d != "" || len(res.LogProbs) != len(res.SampledIDs) {
			t.Errorf("stream %t: sampled (-want +got):\n%s", stream, d)
		}
		if !stream {
			continue
		}
		got.Role = said.Role
		if d := cmp.Diff(said, got); d != "" || cmp.Diff(res.SampledIDs, ids) != "" || cmp.Diff(res.PromptIDs, prompt) != "" {
			t.Errorf("shown (-want +got):\n%s\nids %v", d, ids)
		}
	}
	o := Order(ep, "hi", false)
	o.Dialect, o.Relayed = "a-dialect-of-its-own", []string{"an image"}
	if _, err := s.Sample(t.Context(), o, nil); fulgur.KindOf(err).HTTPStatus() != 400 || !strings.Contains(fulgur.PublicMessage(err), "an image") {
		t.Errorf("an image: %v", err)
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

func emitFails(t *testing.T, setup Setup, atOnce bool) {
	n := 1000
	if atOnce {
		n = 50 // all of it is waited for
	}
	gen := slow(n, 5*time.Millisecond)
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

func breaks(t *testing.T, setup Setup, atOnce bool) {
	gen := &Script{Reply: Say(fulgur.Message{Content: "hello"}), Delay: 15 * time.Millisecond,
		Fail: fulgur.E(fulgur.KindInternal, "generate", "the engine broke", nil), FailAfter: 4}
	s, ep := setup(t, gen)
	res, err := s.Sample(t.Context(), Order(ep, "hi", true), func(call.Delta) error { return nil })
	if err == nil || res == nil || res.Finish != "" || res.Fault == "" {
		t.Errorf("error is %v, result %+v", err, res)
	}
	if res != nil && len(res.SampledIDs) == 0 && !atOnce {
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

package tokens_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/fulgur-rl/fulgur"
	"github.com/fulgur-rl/fulgur/internal/engine"
	"github.com/fulgur-rl/fulgur/internal/gateway/call"
	"github.com/fulgur-rl/fulgur/internal/gateway/sampler"
	"github.com/fulgur-rl/fulgur/internal/gateway/sampler/samplertest"
	"github.com/fulgur-rl/fulgur/internal/gateway/sampler/tokens"
)

// A call that is cut off at any token goes on from its own tokens: what comes
// out is what an uncut one gives, shown once, each token with its version.
func TestResume(t *testing.T) {
	for is, c := range map[string]struct {
		reply fulgur.Message
		stop  []string
		max   int
	}{
		"text with letters of three bytes": {reply: fulgur.Message{Content: "hello 北京, good"}},
		"a tool call":                      {reply: fulgur.Message{Content: "so", ToolCalls: []fulgur.ToolCall{{Name: "add", Arguments: `{"a":1}`}}}},
		"a stop string":                    {reply: fulgur.Message{Content: "one END two"}, stop: []string{"END"}},
		"what might become a stop string":  {reply: fulgur.Message{Content: "one EN two"}, stop: []string{"END"}},
		"as many tokens as it may":         {reply: fulgur.Message{Content: "one two three"}, max: 6},
	} {
		t.Run(is, func(t *testing.T) {
			full := samplertest.Answer(c.reply)
			var prompt int
			gen := &samplertest.Script{Reply: func(req engine.GenerateRequest) []int32 { return full[len(req.Prompt)-prompt:] }}
			s := tokens.New(tokens.Options{Renderer: samplertest.Bytes{}, Local: gen, ContextLength: samplertest.ContextLen})
			order := func() *call.Order {
				return &call.Order{Request: &call.Request{Messages: []fulgur.Message{{Role: "user", Content: "hi"}}, N: 1, LogProbs: true},
					Endpoint: fulgur.Endpoint{URL: "inproc:"}, Call: "c", Rollout: "r", Attempt: "0", Sampling: fulgur.Sampling{Temperature: 1, Seed: 7, Stop: c.stop, MaxTokens: c.max}}
			}
			ids, err := samplertest.Bytes{}.Render(order().Messages, nil)
			if err != nil {
				t.Fatal(err)
			}
			prompt = len(ids)
			want, wantText, err := sample(t.Context(), s, order(), -1)
			if err != nil {
				t.Fatal(err)
			}
			for cut := range len(want.SampledIDs) {
				gen.Publish(1)
				before, text, err := sample(t.Context(), s, order(), cut)
				if !errors.Is(err, context.Canceled) || len(before.SampledIDs) != cut {
					t.Fatalf("cut at %d: %v %v", cut, before.SampledIDs, err)
				}
				gen.Publish(2)
				o := order()
				o.Resume = before
				got, rest, err := sample(t.Context(), s, o, -1)
				if err != nil {
					t.Fatal(err)
				}
				if d := cmp.Diff(want.Reply, got.Reply); d != "" || text+rest != wantText || !slices.Equal(got.SampledIDs, want.SampledIDs) ||
					!slices.Equal(got.PromptIDs, want.PromptIDs) || got.Finish != want.Finish || *got.Usage != *want.Usage || got.Stopped != want.Stopped {
					t.Errorf("cut at %d: %q + %q, finish %q, %+v\n%s", cut, text, rest, got.Finish, got.Usage, d)
				}
				spans := []fulgur.Span{{Start: 0, Version: 1}, {Start: cut, Version: 2}}
				if cut == 0 {
					spans = []fulgur.Span{{Start: 0, Version: 2}}
				}
				if d := cmp.Diff(spans, got.Spans); d != "" || len(got.LogProbs) != len(got.SampledIDs) || len(got.TokenTexts) != len(got.SampledIDs) || got.LogProbs[0] != want.LogProbs[0] {
					t.Errorf("cut at %d: %s %v", cut, d, got.LogProbs)
				}
			}
			seeds := map[uint64]bool{}
			for _, r := range gen.Requests()[1:] {
				if len(r.Prompt) > prompt && seeds[r.Seed] {
					t.Errorf("the numbers of seed %d are used twice", r.Seed)
				}
				seeds[r.Seed] = true
			}
			if !sampler.Resumes(s) {
				t.Error("it does not say so")
			}
		})
	}
}

// sample samples until it ends, or until so many tokens have come, and returns
// what was shown.
func sample(ctx context.Context, s *tokens.Sampler, o *call.Order, cut int) (*call.Result, string, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	if cut == 0 {
		cancel()
	}
	var text strings.Builder
	seen := 0
	res, err := s.Sample(ctx, o, func(d call.Delta) error {
		text.WriteString(d.Text)
		for _, c := range d.Tools {
			text.WriteString("<" + c.ID + c.Name + c.Arguments + ">")
		}
		if seen += len(d.Tokens); seen == cut {
			cancel()
		}
		return nil
	})
	return res, text.String(), err
}

// What has all its tokens when it is cut off needs no more.
func TestResumeOfWhatIsFinished(t *testing.T) {
	gen := &samplertest.Script{Reply: func(engine.GenerateRequest) []int32 { return []int32{'x'} }}
	s := tokens.New(tokens.Options{Renderer: samplertest.Bytes{}, Local: gen, ContextLength: samplertest.ContextLen})
	for _, c := range []struct {
		ids    []int32
		max    int
		finish string
	}{{[]int32{'a', samplertest.EndOfTurn}, 5, "stop"}, {[]int32{'a', 'b'}, 2, "length"}} {
		o := &call.Order{Request: &call.Request{Messages: []fulgur.Message{{Role: "user", Content: "hi"}}, N: 1}, Endpoint: fulgur.Endpoint{URL: "inproc:"},
			Sampling: fulgur.Sampling{Temperature: 1, MaxTokens: c.max},
			Resume:   &call.Result{PromptIDs: []int32{1}, SampledIDs: c.ids, LogProbs: []float32{-1, -1}, Spans: []fulgur.Span{{Version: 3}}}}
		res, err := s.Sample(t.Context(), o, nil)
		if err != nil || res.Finish != c.finish || !slices.Equal(res.SampledIDs, c.ids) || res.Spans[0].Version != 3 || gen.Calls() != 0 {
			t.Errorf("%+v %v, %d generations", res, err, gen.Calls())
		}
	}
}

package tokens_test

import (
	"context"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/fulgur-rl/fulgur"
	"github.com/fulgur-rl/fulgur/internal/engine"
	"github.com/fulgur-rl/fulgur/internal/gateway/call"
	"github.com/fulgur-rl/fulgur/internal/gateway/render"
	"github.com/fulgur-rl/fulgur/internal/gateway/sampler/samplertest"
	"github.com/fulgur-rl/fulgur/internal/gateway/sampler/tokens"
)

var inproc = fulgur.Endpoint{Model: "policy", Kind: fulgur.EndpointTokens, URL: "inproc:"}

// A raw prompt's control tokens are real, its answer is read by no parser, and it
// neither goes on from a conversation nor is gone on from.
func TestRawPromptsWithARealTokenizer(t *testing.T) {
	rend, err := render.Load(os.DirFS("../../../../examples/calc/model"), render.Options{})
	if err != nil {
		t.Fatal(err)
	}
	const answer = "<think>é 北京 <tool_call>{}"
	gen := &samplertest.Script{Reply: func(engine.GenerateRequest) []int32 {
		return append(rend.Encode(answer), rend.StopIDs()[0], samplertest.EndOfTurn)
	}}
	s := tokens.New(tokens.Options{Renderer: tokens.FromRender(rend), Local: gen})
	stop := rend.Decode(rend.StopIDs()[:1])
	o := samplertest.RawOrder(inproc, "user: hi"+stop+"北", false, true)
	o.Sampling.MaxTokens = len(rend.Encode(answer)) + 1
	var shown strings.Builder
	res, err := s.Sample(t.Context(), o, func(d call.Delta) error {
		shown.WriteString(d.Text)
		return nil
	})
	if err != nil || res.Reply.Content != answer || shown.String() != answer || len(res.Reply.ToolCalls) > 0 || res.Finish != "length" {
		t.Errorf("%v, %q shown as %q, finish %q", err, res.Reply.Content, shown.String(), res.Finish)
	}
	if !slices.Contains(res.PromptIDs, rend.StopIDs()[0]) {
		t.Errorf("%q became %v", o.Prompt.Text, res.PromptIDs)
	}
	if n, err := s.Count(t.Context(), o); err != nil || n != len(res.PromptIDs) {
		t.Errorf("counted %d, %v", n, err)
	}
}

// Count says how many tokens Sample would ask with, a known conversation's
// included.
func TestCount(t *testing.T) {
	gen := &samplertest.Script{Reply: samplertest.Say(fulgur.Message{Content: "hello"})}
	s := tokens.New(tokens.Options{Renderer: samplertest.Bytes{}, Local: gen})
	first, err := s.Sample(t.Context(), samplertest.Order(inproc, "hi", false), nil)
	if err != nil {
		t.Fatal(err)
	}
	o := samplertest.Order(inproc, "hi", false)
	if n, err := s.Count(t.Context(), o); err != nil || n != len(first.PromptIDs) {
		t.Errorf("counted %d, %v; asked with %d", n, err, len(first.PromptIDs))
	}
	o.Messages = append(o.Messages, *first.Reply, fulgur.Message{Role: "user", Content: "again"})
	n, err := s.Count(t.Context(), o)
	next, serr := s.Sample(t.Context(), o, nil)
	if err != nil || serr != nil || n != len(next.PromptIDs) || gen.Calls() != 2 {
		t.Errorf("counted %d, %v; asked with %d, %v; %d generations", n, err, len(next.PromptIDs), serr, gen.Calls())
	}
	o.Relayed = []string{"an image"}
	if _, err := s.Count(t.Context(), o); fulgur.KindOf(err) != fulgur.KindUnsupported {
		t.Errorf("an image: %v", err)
	}
}

// Which stop string ended the answer is told, also when its last letter came with
// the last token that may be sampled.
func TestStopStrings(t *testing.T) {
	gen := &samplertest.Script{Reply: samplertest.Say(fulgur.Message{Content: "one ENDED"})}
	s := tokens.New(tokens.Options{Renderer: samplertest.Bytes{}, Local: gen})
	for is, c := range map[string]struct {
		stop    []string
		max     int
		text    string
		stopped string
		finish  string
	}{
		"the first in the text":         {[]string{"DED", "END"}, 0, "one ", "END", "stop"},
		"with the last token":           {[]string{"END"}, 7, "one ", "END", "stop"},
		"not whole when tokens run out": {[]string{"ENDED"}, 7, "one END", "", "length"},
		"none":                          {[]string{"x"}, 0, "one ENDED", "", "stop"},
	} {
		for _, stream := range []bool{false, true} {
			o := samplertest.Order(inproc, "hi", stream)
			o.Sampling.Stop, o.Sampling.MaxTokens = c.stop, c.max
			var shown strings.Builder
			var emit func(call.Delta) error
			if stream {
				emit = func(d call.Delta) error {
					shown.WriteString(d.Text)
					return nil
				}
			}
			res, err := s.Sample(context.Background(), o, emit)
			if err != nil || res.Reply.Content != c.text || res.Stopped != c.stopped || res.Finish != c.finish || stream && shown.String() != c.text {
				t.Errorf("%s, stream %t: %v, %q, shown %q, stopped %q, finish %q", is, stream, err, res.Reply.Content, shown.String(), res.Stopped, res.Finish)
			}
		}
	}
}

package gateway_test

import (
	"slices"
	"testing"

	"github.com/openai/openai-go/v3"
	"github.com/openai/openai-go/v3/option"

	"github.com/fulgur-rl/fulgur"
	"github.com/fulgur-rl/fulgur/internal/gateway"
	"github.com/fulgur-rl/fulgur/internal/gateway/dialect/openaicompletions"
	"github.com/fulgur-rl/fulgur/internal/gateway/sampler/samplertest"
)

// The official SDK at text completions: a text and token ids, streaming and not.
func TestOpenAISDKCompletions(t *testing.T) {
	h := newHouse(t, func(o *gateway.Options, _ *book) { o.Dialects = append(o.Dialects, openaicompletions.Dialect{}) })
	h.gen.Reply = samplertest.Say(fulgur.Message{Content: " upon a time, 北京. And so on"})
	client := openai.NewClient(option.WithBaseURL(h.url+"/openai/v1/"), option.WithAPIKey(agentKey))
	for name, prompt := range map[string]openai.CompletionNewParamsPromptUnion{
		"a text":    {OfString: openai.String("Once")},
		"token ids": {OfArrayOfTokens: []int64{'O', 'n', 'c', 'e'}},
	} {
		p := openai.CompletionNewParams{Model: "policy", Prompt: prompt, MaxTokens: openai.Int(50), Logprobs: openai.Int(1),
			Stop: openai.CompletionNewParamsStopUnion{OfStringArray: []string{"And"}}}
		got, err := client.Completions.New(t.Context(), p)
		if err != nil {
			t.Fatal(name, err)
		}
		c := h.last(t)
		const want = " upon a time, 北京. "
		if a := got.Choices[0]; a.Text != want || a.FinishReason != "stop" || len(a.Logprobs.TokenLogprobs) != len(c.SampledIDs) || got.Usage.CompletionTokens != int64(len(c.SampledIDs)) {
			t.Errorf("%s: %+v", name, got)
		}
		if !c.Trainable || c.Dialect != openaicompletions.Name || !slices.Equal(c.PromptIDs, samplertest.Encode("Once")) || c.Rollout != "r1" {
			t.Errorf("%s: record %+v", name, c)
		}
		text := ""
		stream := client.Completions.NewStreaming(t.Context(), p)
		for stream.Next() {
			for _, a := range stream.Current().Choices {
				text += a.Text
			}
		}
		if err := stream.Err(); err != nil || text != want {
			t.Errorf("%s: streamed %q, %v", name, text, err)
		}
		if s := h.last(t); !slices.Equal(s.SampledIDs, c.SampledIDs) || s.Reply.Content != want || !s.Trainable {
			t.Errorf("%s: streamed record %+v", name, s)
		}
	}
}

package chatwire_test

import (
	"math"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/fulgur-rl/fulgur/internal/gateway/chatwire"
)

func TestReadCompletion(t *testing.T) {
	seven := int64(7)
	nan := float32(math.NaN())
	for name, c := range map[string]struct {
		in   string
		want chatwire.Completion
		bad  bool
	}{
		"a chunk of vLLM's": {in: `{"id":"x","choices":[{"index":0,"text":"a\"]}","logprobs":{"tokens":["a"],"token_logprobs":[-0.5,null],"text_offset":[0]},"finish_reason":null,"stop_reason":null,"token_ids":[5,6],"prompt_token_ids":[1]}],"usage":null}`,
			want: chatwire.Completion{Choices: []chatwire.CompletionChoice{{TokenIDs: []int32{5, 6}, LogProbs: []float32{-0.5, nan}}}}},
		"usage alone":               {in: `{"choices":[],"usage":{"prompt_tokens":3,"prompt_tokens_details":{"cached_tokens":2}}}`, want: chatwire.Completion{CachedTokens: 2}},
		"a version":                 {in: `{"choices":[{"token_ids":[1],"policy_version":7,"finish_reason":"stop"}]}`, want: chatwire.Completion{Choices: []chatwire.CompletionChoice{{TokenIDs: []int32{1}, Version: &seven, FinishReason: "stop"}}}},
		"ids that are absent":       {in: `{"choices":[{"token_ids":null,"logprobs":null}]}`, want: chatwire.Completion{Choices: []chatwire.CompletionChoice{{}}}},
		"an error":                  {in: `{"error":{"message":"busy"}}`, want: chatwire.Completion{Error: `{"message":"busy"}`}},
		"no error":                  {in: `{"error":null,"choices":null}`},
		"an id with a point":        {in: `{"choices":[{"token_ids":[1.5]}]}`, bad: true},
		"an id as text":             {in: `{"choices":[{"token_ids":["1"]}]}`, bad: true},
		"an id of 33 bits":          {in: `{"choices":[{"token_ids":[4294967296]}]}`, bad: true},
		"choices that are one":      {in: `{"choices":{"token_ids":[1]}}`, bad: true},
		"a choice that is a number": {in: `{"choices":[1]}`, bad: true},
		"a list":                    {in: `[]`, bad: true},
		"torn JSON":                 {in: `{"choices":[{"token_ids":[1`, bad: true},
		"nothing":                   {in: ``, bad: true},
	} {
		got, err := chatwire.ReadCompletion([]byte(c.in))
		if (err != nil) != c.bad {
			t.Errorf("%s: error %v", name, err)
			continue
		}
		same := cmp.Comparer(func(a, b float32) bool { return a == b || a != a && b != b })
		if d := cmp.Diff(c.want, got, same); !c.bad && d != "" {
			t.Errorf("%s: %s", name, d)
		}
	}
}

func FuzzReadCompletion(f *testing.F) {
	f.Add([]byte(`{"choices":[{"token_ids":[1,2],"logprobs":{"token_logprobs":[-1,null]},"finish_reason":"stop"}]}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		c, err := chatwire.ReadCompletion(b)
		for _, ch := range c.Choices {
			if err == nil && len(ch.TokenIDs) > len(b) {
				t.Errorf("%d ids of %d bytes", len(ch.TokenIDs), len(b))
			}
		}
	})
}

package chatwire_test

import (
	"encoding/json"
	"math"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/fulgur-rl/fulgur"
	"github.com/fulgur-rl/fulgur/internal/gateway/chatwire"
)

// Fields of a wrong type are as good as missing, and take nothing else along.
func TestReadAnswer(t *testing.T) {
	nan := float32(math.NaN())
	one := func(c chatwire.Choice) chatwire.Answer {
		return chatwire.Answer{Object: true, Choices: []chatwire.Choice{c}}
	}
	for in, want := range map[string]chatwire.Answer{
		`{}`:              {Object: true},
		`[]`:              {},
		`7`:               {},
		`{"choices":[]}`:  {Object: true},
		`{"choices":"x"}`: {Object: true},
		`{"choices":[7,null,{"index":1}],"id":"a","model":"m","created":5}`:                                 {Object: true, ID: "a", Model: "m", Created: 5, Choices: []chatwire.Choice{{Index: 1}}},
		`{"id":7,"model":null,"created":"x","usage":"none","error":null}`:                                   {Object: true},
		`{"usage":{"prompt_tokens":3,"completion_tokens":"2","prompt_tokens_details":{"cached_tokens":1}}}`: {Object: true, Usage: &fulgur.Usage{PromptTokens: 3, CachedTokens: 1}},
		`{"error":{"message":"x"}}`:                                         {Object: true, Error: `{"message":"x"}`},
		`{"prompt_token_ids":[ 1 , 2147483647,3]}`:                          {Object: true, PromptIDs: []int32{1, math.MaxInt32, 3}},
		`{"prompt_token_ids":[]}`:                                           {Object: true, PromptIDs: []int32{}},
		`{"prompt_token_ids":[1,2147483648]}`:                               {Object: true},
		`{"prompt_token_ids":[1,"2"]}`:                                      {Object: true},
		`{"prompt_token_ids":[1,-2]}`:                                       {Object: true},
		`{"prompt_token_ids":[1.0]}`:                                        {Object: true},
		`{"prompt_token_ids":[[1]]}`:                                        {Object: true},
		`{"prompt_token_ids":null}`:                                         {Object: true},
		`{"choices":[{"text":"é\n","finish_reason":null,"stop_reason":7}]}`: one(chatwire.Choice{Text: "é\n"}),
		`{"choices":[{"message":{"content":[{"type":"text"}],"reasoning":"r","reasoning_content":null}}]}`:                                        one(chatwire.Choice{Reasoning: "r"}),
		`{"choices":[{"delta":{"content":"a","reasoning_content":"b","reasoning":"c"},"finish_reason":"stop","stop_reason":"END"}]}`:              one(chatwire.Choice{Text: "a", Reasoning: "b", Finish: "stop", Stopped: "END"}),
		`{"choices":[{"logprobs":{"content":[{"top_logprobs":[{"logprob":9}],"logprob":-0.5,"token":"a"},{"logprob":null},{"logprob":"x"},7]}}]}`: one(chatwire.Choice{LogProbs: []float32{-0.5, nan, nan, nan}, Tokens: []string{"a", "", "", ""}}),
		`{"choices":[{"logprobs":{"tokens":["a","b"],"token_logprobs":[null,-1]}}]}`:                                                              one(chatwire.Choice{LogProbs: []float32{nan, -1}, Tokens: []string{"a", "b"}}),
		`{"choices":[{"logprobs":[],"token_ids":{"a":1}}]}`:                                                                                       one(chatwire.Choice{}),
	} {
		got, ok := chatwire.ReadAnswer([]byte(in), true)
		if d := cmp.Diff(want, got, cmpopts.EquateNaNs()); d != "" || !ok {
			t.Errorf("%s (-want +got):\n%s", in, d)
		}
	}
	for _, in := range []string{``, `{`, `{"a":NaN}`, `{} {}`} {
		if _, ok := chatwire.ReadAnswer([]byte(in), false); ok {
			t.Errorf("%q is taken", in)
		}
	}
}

func FuzzReadAnswer(f *testing.F) {
	f.Add([]byte(`{"prompt_token_ids":[1,2],"choices":[{"message":{"content":"x","tool_calls":[{"index":1,"function":{"name":"f"}}]},"token_ids":[1],"logprobs":{"content":[{"logprob":-1,"token":"x"}]}}]}`))
	f.Add([]byte(`{"choices":[{"token_ids":[`))
	f.Fuzz(func(t *testing.T, b []byte) {
		a, ok := chatwire.ReadAnswer(b, true)
		if ok != json.Valid(b) {
			t.Errorf("%q: taken %t", b, ok)
		}
		for _, c := range a.Choices {
			if len(c.TokenIDs) > len(b) || len(c.LogProbs) > len(b) {
				t.Errorf("%d ids of %d bytes", len(c.TokenIDs), len(b))
			}
		}
	})
}

package chatwire_test

import (
	"bytes"
	"encoding/json"
	"math"
	"slices"
	"testing"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/fulgur-rl/fulgur"
	"github.com/fulgur-rl/fulgur/internal/gateway/chatwire"
)

// Fields of a wrong type are as good as missing, and take nothing else along.
func TestTake(t *testing.T) {
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
		got, ok := chatwire.Take([]byte(in), true)
		want.Body = []byte(in)
		if d := cmp.Diff(want, got, cmpopts.EquateNaNs(), cmpopts.IgnoreUnexported(chatwire.Answer{})); d != "" || !ok {
			t.Errorf("%s (-want +got):\n%s", in, d)
		}
	}
	for _, in := range []string{``, `{`, `{"a":nan}`, `{} {}`} {
		if _, ok := chatwire.Take([]byte(in), false); ok {
			t.Errorf("%q is taken", in)
		}
	}
}

func FuzzTake(f *testing.F) {
	f.Add([]byte(`{"prompt_token_ids":[1,2],"choices":[{"message":{"content":"x","tool_calls":[{"index":1,"function":{"name":"f"}}]},"token_ids":[1],"logprobs":{"content":[{"logprob":-1,"token":"x"}]}}]}`))
	f.Add([]byte(`{"choices":[{"token_ids":[`))
	f.Fuzz(func(t *testing.T, b []byte) {
		a, ok := chatwire.Take(b, true)
		if ok != json.Valid(chatwire.Mend(b)) {
			t.Errorf("%q: taken %t", b, ok)
		}
		if ok && (!json.Valid(a.Body) || !utf8.Valid(a.Body)) {
			t.Errorf("%q goes on as %q", b, a.Body)
		}
		likeJSON(t, &a)
		for _, c := range a.Choices {
			if len(c.TokenIDs) > len(b) || len(c.LogProbs) > len(b) {
				t.Errorf("%d ids of %d bytes", len(c.TokenIDs), len(b))
			}
		}
	})
}

// likeJSON holds an answer's fields against encoding/json's, where it reads them at all.
func likeJSON(t *testing.T, a *chatwire.Answer) {
	t.Helper()
	var want struct {
		ID      string  `json:"id"`
		Prompt  []int32 `json:"prompt_token_ids"`
		Choices []struct {
			Finish  string  `json:"finish_reason"`
			IDs     []int32 `json:"token_ids"`
			Message struct {
				Content string `json:"content"`
			} `json:"message"`
			LogProbs struct {
				Content []struct {
					LogProb float64 `json:"logprob"`
					Token   string  `json:"token"`
				} `json:"content"`
			} `json:"logprobs"`
		} `json:"choices"`
	}
	// Keys that are there twice, or in another case, are read otherwise.
	lower := bytes.ToLower(a.Body)
	for _, k := range []string{"id", "choices", "prompt_token_ids", "finish_reason", "token_ids", "content", "logprobs", "logprob", "token", "message"} {
		if n := bytes.Count(lower, []byte(`"`+k+`"`)); n > 1 || n != bytes.Count(a.Body, []byte(`"`+k+`"`)) {
			return
		}
	}
	if bytes.Contains(a.Body, []byte(`null`)) || bytes.Contains(a.Body, []byte(`\u`)) || bytes.Contains(a.Body, []byte(`-`)) || json.Unmarshal(a.Body, &want) != nil {
		return
	}
	if want.ID != a.ID || !slices.Equal(want.Prompt, a.PromptIDs) || len(want.Choices) != len(a.Choices) {
		t.Fatalf("%s was read as %+v", a.Body, a)
	}
	for i, c := range want.Choices {
		g := a.Choices[i]
		if c.Finish != g.Finish || !slices.Equal(c.IDs, g.TokenIDs) || len(c.LogProbs.Content) != len(g.LogProbs) {
			t.Fatalf("%s was read as %+v", a.Body, a)
		}
		for j, l := range c.LogProbs.Content {
			if float32(l.LogProb) != g.LogProbs[j] && l.LogProb != 0 || l.Token != g.Tokens[j] {
				t.Fatalf("%s: log prob %v, token %q, want %+v", a.Body, g.LogProbs[j], g.Tokens[j], l)
			}
		}
	}
}

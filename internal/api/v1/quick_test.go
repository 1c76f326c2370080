package v1

import (
	"bytes"
	"encoding/json"
	"testing"

	"github.com/fulgur-rl/fulgur"
	"github.com/google/go-cmp/cmp"
	"github.com/tidwall/gjson"
)

var responses = map[string]struct {
	response string
	quick    bool
}{
	"the usual one":            {`{"id":"x","prompt_token_ids":[1,2,30],"choices":[{"index":0,"token_ids":[7,8],"message":{"content":"[{\"a\":1}]\\"},"logprobs":{"content":[{"token":"a","logprob":-0.5,"top_logprobs":[]},{"token":"]","logprob":-1.234567}]}}],"usage":{"n":1}}`, true},
	"spaces":                   {" {\n\"prompt_token_ids\" : [1,2,30] , \"choices\" : [ {\"token_ids\":[7,8] , \"logprobs\" : {\"content\" : [ {\"logprob\" : -1} , {\"logprob\":-2}]}} ] }\n", true},
	"numbers in other forms":   {`{"prompt_token_ids":[1,2,30],"choices":[{"token_ids":[7,8],"logprobs":{"content":[{"logprob":-1e-7},{"logprob":-0.50}]}}]}`, true},
	"small and long numbers":   {`{"prompt_token_ids":[1,2,30],"choices":[{"token_ids":[7,8],"logprobs":{"content":[{"logprob":-0.00001},{"logprob":-0.10536051541566849}]}}]}`, true},
	"no digit before the dot":  {`{"prompt_token_ids":[1,2,30],"choices":[{"token_ids":[7,8],"logprobs":{"content":[{"logprob":-0},{"logprob":0.0}]}}]}`, true},
	"spaces between ids":       {`{"prompt_token_ids":[1, 2],"choices":[{"token_ids":[7,8],"logprobs":{"content":[{"logprob":-1},{"logprob":-2}]}}]}`, false},
	"two choices":              {`{"prompt_token_ids":[1,2],"choices":[{"token_ids":[7,8],"logprobs":{"content":[{"logprob":-1},{"logprob":-2}]}},{}]}`, false},
	"ids in the choice":        {`{"choices":[{"prompt_token_ids":[1,2],"token_ids":[7,8],"logprobs":{"content":[{"logprob":-1},{"logprob":-2}]}}]}`, false},
	"an error":                 {`{"error":{"message":"x"},"prompt_token_ids":[1,2],"choices":[{"token_ids":[7,8],"logprobs":{"content":[{"logprob":-1},{"logprob":-2}]}}]}`, false},
	"a log prob in text":       {`{"prompt_token_ids":[1,2],"choices":[{"token_ids":[7,8],"logprobs":{"content":[{"logprob":"-1"},{"logprob":-2}]}}]}`, false},
	"a log prob is missing":    {`{"prompt_token_ids":[1,2],"choices":[{"token_ids":[7,8],"logprobs":{"content":[{"logprob":-1},{}]}}]}`, false},
	"a log prob twice":         {`{"prompt_token_ids":[1,2],"choices":[{"token_ids":[7,8],"logprobs":{"content":[{"logprob":-1,"logprob":-3},{"logprob":-2}]}}]}`, false},
	"completions' log probs":   {`{"prompt_token_ids":[1,2],"choices":[{"token_ids":[7,8],"logprobs":{"token_logprobs":[-1,-2]}}]}`, false},
	"no log probs":             {`{"prompt_token_ids":[1,2],"choices":[{"token_ids":[7,8],"logprobs":null}]}`, false},
	"chunks":                   {`[{"prompt_token_ids":[1,2],"choices":[{"token_ids":[7,8],"logprobs":{"content":[{"logprob":-1},{"logprob":-2}]}}]}]`, false},
	"empty ids":                {`{"prompt_token_ids":[],"choices":[{"token_ids":[7,8],"logprobs":{"content":[{"logprob":-1},{"logprob":-2}]}}]}`, false},
	"ids that are no numbers":  {`{"prompt_token_ids":[1,"2"],"choices":[{"token_ids":[7,8],"logprobs":{"content":[{"logprob":-1},{"logprob":-2}]}}]}`, false},
	"cut off":                  {`{"prompt_token_ids":[1,2],"choices":[{"token_ids":[7,8],"logprobs":{"content":[{"logprob":-1},{"logprob":-2}]}}]`, false},
	"something behind the end": {`{"prompt_token_ids":[1,2],"choices":[{"token_ids":[7,8],"logprobs":{"content":[{"logprob":-1},{"logprob":-2}]}}]}}`, false},
}

func exactCall(response string) *fulgur.Call {
	return &fulgur.Call{ID: "c", Rollout: "r", Attempt: "0", HTTPStatus: 200, Response: json.RawMessage(response), Endpoint: fulgur.Endpoint{Model: "m \"<", Version: 3},
		SampledIDs: []int32{7, 8}, LogProbs: []float32{-1, -2}}
}

// same compares the quick triplet of a call with the long way's.
func sameTriplet(t *testing.T, c *fulgur.Call, q *quick) {
	t.Helper()
	e, err := viewCall(c)
	if err != nil {
		t.Fatal(err)
	}
	var want, got any
	if err := json.Unmarshal(tripletData(gjson.ParseBytes(e.Data)), &want); err != nil {
		t.Fatal(err)
	}
	parts := q.parts()
	if quick := bytes.Join(parts[:], nil); json.Unmarshal(quick, &got) != nil {
		t.Fatalf("no JSON: %s", quick)
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("%s (-long +quick):\n%s", c.Response, d)
	}
	if key := promptKey(promptIDs(gjson.GetBytes(e.Data, "response"))); key != q.key() {
		t.Errorf("key %q, the long way has %q", q.key(), key)
	}
}

func TestAQuickTripletIsTheLongWays(t *testing.T) {
	before := quickTriplet(exactCall(responses["the usual one"].response), nil)
	for name, r := range responses {
		for _, known := range []*quick{nil, before} {
			q := quickTriplet(exactCall(r.response), known)
			if (q != nil) != r.quick {
				t.Errorf("%s: quick is %v", name, q != nil)
			}
			if q != nil {
				sameTriplet(t, exactCall(r.response), q)
			}
		}
	}
}

// FuzzQuickTriplet: whatever valid JSON an upstream sends, the triplet is the same.
func FuzzQuickTriplet(f *testing.F) {
	for _, r := range responses {
		f.Add(r.response)
	}
	f.Fuzz(func(t *testing.T, response string) {
		c := exactCall(response)
		if q := quickTriplet(c, nil); q != nil && json.Valid(c.Response) {
			sameTriplet(t, c, q)
		}
	})
}

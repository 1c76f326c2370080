package chatwire

import (
	"encoding/json"
	"slices"
	"testing"
)

// What servers add to the API that keeps tokens out of an answer is seen, unless
// it is switched off.
func TestConstraints(t *testing.T) {
	for body, want := range map[string]string{
		`{"guided_choice":["a","b"]}`: "guided_choice", `{"guided_choice":[]}`: "",
		`{"structured_outputs":{"regex":"a+"}}`: "structured_outputs", `{"structured_outputs":null}`: "",
		`{"bad_words":["x"]}`: "bad_words", `{"allowed_token_ids":[1]}`: "allowed_token_ids",
		`{"min_tokens":3}`: "min_tokens", `{"min_tokens":0}`: "",
		`{"use_beam_search":true}`: "use_beam_search", `{"use_beam_search":false}`: "",
		`{"regex":"a"}`: "regex", `{"ebnf":""}`: "", `{"logits_processors":["x"]}`: "logits_processors",
		`{"temperature":1,"stop":["a"],"ignore_eos":true}`: "",
	} {
		var chat Request
		var text TextRequest
		if err := json.Unmarshal([]byte(body), &chat); err != nil {
			t.Fatal(err)
		}
		if err := json.Unmarshal([]byte(body), &text); err != nil {
			t.Fatal(err)
		}
		for _, got := range [][]string{chat.Altering(), text.Altering()} {
			if want == "" && len(got) > 0 || want != "" && !slices.Equal(got, []string{want}) {
				t.Errorf("%s: %v, want %s", body, got, want)
			}
		}
	}
}

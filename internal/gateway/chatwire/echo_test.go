package chatwire

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

// TestEchoIsReadAsTheRest: a long list of prompt ids that is cut out of an answer
// gives the same as one that is read with it, wherever it stands and whatever is in it.
func TestEchoIsReadAsTheRest(t *testing.T) {
	long := strings.Repeat("12345,", 400)
	for name, c := range map[string]struct {
		answer string
		cut    bool
	}{
		"at the top":              {`{"prompt_token_ids":[` + long + `7],"choices":[{"token_ids":[1],"text":"x"}]}`, true},
		"with spaces":             {`{"prompt_token_ids":[` + strings.ReplaceAll(long, ",", ", ") + `0],"id":"a"}`, true},
		"in a choice":             {`{"choices":[{"prompt_token_ids":[` + long + `2147483647],"finish_reason":"stop"}]}`, true},
		"in an error":             {`{"error":{"prompt_token_ids":[` + long + `7]}}`, true},
		"in something else":       {`{"other":{"prompt_token_ids":[` + long + `7]},"id":"a"}`, true},
		"short":                   {`{"prompt_token_ids":[1,2]}`, false},
		"twice":                   {`{"prompt_token_ids":[` + long + `7],"prompt_token_ids":[` + long + `8]}`, false},
		"a number that is none":   {`{"prompt_token_ids":[` + long + `01]}`, false},
		"a comma at the end":      {`{"prompt_token_ids":[` + long + `]}`, false},
		"a float":                 {`{"prompt_token_ids":[` + long + `1.5]}`, false},
		"one that is too large":   {`{"prompt_token_ids":[` + long + `2147483648]}`, false},
		"a negative one":          {`{"prompt_token_ids":[` + long + `-1]}`, false},
		"a list in it":            {`{"prompt_token_ids":[` + long + `[1]]}`, false},
		"an answer that is cut":   {`{"prompt_token_ids":[` + long + `7],"choices":[`, true},
		"a list that is cut":      {`{"prompt_token_ids":[` + long, false},
		"a key that is a text":    {`{"a":"\"prompt_token_ids\":[` + long + `7]"}`, false},
		"a text that is that key": {`{"a":["prompt_token_ids":[` + long + `7]]}`, true},
	} {
		if _, ids := cutEcho(c.answer); (ids != nil) != c.cut {
			t.Errorf("%s: cut out: %t", name, ids != nil)
		}
		want, _, wantOK := readRest(c.answer, true, nil)
		got, ok := read(c.answer, true)
		if d := cmp.Diff(want, got, cmpopts.EquateNaNs()); d != "" || ok != wantOK {
			t.Errorf("%s: taken %t, want %t (-want +got):\n%s", name, ok, wantOK, d)
		}
	}
}

// TestDeepAnswers: brackets without end are no JSON, and end nothing else.
func TestDeepAnswers(t *testing.T) {
	for name, c := range map[string]struct {
		data string
		want bool
	}{
		"8 MB of brackets":             {strings.Repeat("[", 8<<20), false},
		"as deep as encoding/json":     {strings.Repeat("[", maxDepth) + strings.Repeat("]", maxDepth), true},
		"one deeper":                   {strings.Repeat("[", maxDepth+1) + strings.Repeat("]", maxDepth+1), false},
		"many, but not deep":           {"[" + strings.Repeat("[],", 2*maxDepth) + "[]]", true},
		"many in a text":               {`"` + strings.Repeat(`[\"`, 2*maxDepth) + `"`, true},
		"many, and a text that is cut": {`["` + strings.Repeat("[", 2*maxDepth) + `\`, false},
	} {
		if _, ok := ReadAnswer([]byte(c.data), false); ok != c.want {
			t.Errorf("%s: taken %t", name, ok)
		}
		if json.Valid([]byte(c.data)) != c.want {
			t.Errorf("%s: encoding/json takes it otherwise", name)
		}
		var w Request
		if err := decode([]byte(`{"messages":[{"role":"user","content":`+c.data+`}]}`), &w); err == nil && !c.want {
			t.Errorf("%s: a request takes it", name)
		}
	}
}

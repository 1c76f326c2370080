package controller

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/fulgur-rl/fulgur"
)

func TestWithhold(t *testing.T) {
	for name, test := range map[string]struct {
		input string
		paths []string
		want  string
	}{
		"nothing":                              {`{"a":1}`, nil, `{"a":1}`},
		"a field, the rest byte for byte":      {`{"b":1.50,"answer":"x","a":12345678901234567890}`, []string{"input.answer"}, `{"b":1.50,"a":12345678901234567890}`},
		"a nested one":                         {`{"a":{"b":1,"c":2}}`, []string{"input.a.b"}, `{"a":{"c":2}}`},
		"an element keeps the others' places":  {`{"l":[1,2,3]}`, []string{"input.l.1"}, `{"l":[1,null,3]}`},
		"one that is not there":                {`{"a":1}`, []string{"input.b.c"}, `{"a":1}`},
		"one that is written twice":            {`{"answer":1,"a":2,"answer":3}`, []string{"input.answer"}, `{"a":2}`},
		"one that is written with escapes":     {`{"\u0061nswer":1,"a":2}`, []string{"input.answer"}, `{"a":2}`},
		"a name with signs of query languages": {`{"a*":1,"ab":2}`, []string{"input.a*"}, `{"ab":2}`},
		"without the word input":               {`{"answer":1,"a":2}`, []string{"answer"}, `{"a":2}`},
		"everything":                           {`{"answer":1}`, []string{"input"}, `null`},
		"of what is no object":                 {`"text"`, []string{"input.a"}, `"text"`},
		"several":                              {`{"a":1,"b":2,"c":3}`, []string{"input.a", "input.c"}, `{"b":2}`},
	} {
		t.Run(name, func(t *testing.T) {
			if got := Withhold(json.RawMessage(test.input), test.paths); string(got) != test.want {
				t.Errorf("%s, want %s", got, test.want)
			}
		})
	}
}

func TestInputEnv(t *testing.T) {
	input := json.RawMessage(`{"s":"text\n\u00e9","n":1.50,"o":{"k":[1, "two"]},"dup":1,"dup":2,"e":""}`)
	got, err := InputEnv(map[string]string{
		"S": "input.s", "N": "input.n", "O": "input.o", "L": "input.o.k.1", "ALL": "input", "LIT": "plain", "LIKE": "inputs.x", "DUP": "input.dup", "E": "input.e"}, input)
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]string{"S": "text\né", "N": "1.50", "O": `{"k":[1, "two"]}`, "L": "two", "ALL": string(input), "LIT": "plain", "LIKE": "inputs.x", "DUP": "2", "E": ""}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
	for path, says := range map[string]string{"input.no": `"input.no"`, "input.o.k.7": `"input.o.k.7"`, "input.s.x": `"input.s.x"`} {
		_, err := InputEnv(map[string]string{"Q": path}, input)
		if fulgur.KindOf(err) != fulgur.KindInvalid || !strings.Contains(err.Error(), says) || !strings.Contains(err.Error(), "Q asks") {
			t.Errorf("%s: %v", path, err)
		}
	}
}

func TestAgentEnv(t *testing.T) {
	r := fulgur.Rollout{RolloutSpec: fulgur.RolloutSpec{ID: "a b/c", IsTrain: false}}
	a := fulgur.OpenedAttempt{Attempt: fulgur.Attempt{ID: "1"}, Credential: "secret"}
	want := map[string]string{
		"OPENAI_BASE_URL":     "http://h:1/proxy/rollout/a%20b%2Fc/attempt/1/mode/val/openai/v1",
		"AGL_OPENAI_BASE_URL": "http://h:1/proxy/rollout/a%20b%2Fc/attempt/1/mode/val/openai/v1",
		"ANTHROPIC_BASE_URL":  "http://h:1/proxy/rollout/a%20b%2Fc/attempt/1/mode/val/anthropic",
		"AGL_EVENT_URL":       "http://h:1/api/rollouts/a%20b%2Fc/attempt/1/events",
		"OPENAI_API_KEY":      "secret", "ANTHROPIC_API_KEY": "secret", "AGL_KEY": "secret",
		"OPENAI_MODEL": "m", "ANTHROPIC_MODEL": "m", "FULGUR_ROLLOUT_ID": "a b/c", "FULGUR_ATTEMPT_ID": "1",
	}
	if d := cmp.Diff(want, AgentEnv("http://h:1/", "m", r, a)); d != "" {
		t.Error(d)
	}
}

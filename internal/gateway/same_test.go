package gateway

import "testing"

// harnesses.md 6, 7 and 11: what a retry may change.
func TestSameContent(t *testing.T) {
	const base = `{"model":"m","messages":[{"role":"user","content":"a"}],"temperature":1}`
	for is, c := range map[string]struct {
		a, b string
		same bool
	}{
		"itself":                                      {base, base, true},
		"key order and white space":                   {base, ` {"temperature" : 1, "messages":[{"content":"a","role":"user"}],"model":"m"}`, true},
		"numbers by value":                            {base, `{"model":"m","messages":[{"role":"user","content":"a"}],"temperature":1.0e0}`, true},
		"stream and token limits":                     {base, `{"model":"m","stream":true,"stream_options":{"include_usage":true},"max_tokens":5,"max_completion_tokens":5,"messages":[{"role":"user","content":"a"}],"temperature":1}`, true},
		"what describes the caller":                   {base, `{"model":"m","metadata":{"user_id":"x"},"client_metadata":{},"prompt_cache_key":"k","messages":[{"role":"user","content":"a"}],"temperature":1}`, true},
		"cache marks, and the block that carried one": {base, `{"model":"m","messages":[{"role":"user","content":[{"type":"text","text":"a","cache_control":{"type":"ephemeral"}}]}],"temperature":1}`, true},
		"escapes":                                     {base, `{"model":"m","messages":[{"role":"user","content":"\u0061"}],"temperature":1}`, true},
		"billing lines": {`{"system":[{"type":"text","text":"x-anthropic-billing-header: cc_version=2.1; cch=1a2b3;"},{"type":"text","text":"s"}]}`,
			`{"system":[{"type":"text","text":"x-anthropic-billing-header: cc_version=2.1; cch=4c5d6;"},{"type":"text","text":"s","cache_control":{"type":"ephemeral"}}]}`, true},
		"a billing line and none":            {`{"system":"x-anthropic-billing-header: cch=1;"}`, `{}`, true},
		"a billing line before a text":       {`{"system":"x-anthropic-billing-header: cch=1;\ns"}`, `{"system":[{"type":"text","text":"s"}]}`, true},
		"another text behind a billing line": {`{"system":"x-anthropic-billing-header: cch=1;\ns"}`, `{"system":"x-anthropic-billing-header: cch=1;\nt"}`, false},
		"a user's text that looks like one":  {`{"messages":[{"content":"x-anthropic-billing-header: 1"}]}`, `{"messages":[{"content":"x-anthropic-billing-header: 2"}]}`, false},
		"a system prompt of another shape":   {`{"system":[1]}`, `{"system":[2]}`, false},
		"another text":                       {base, `{"model":"m","messages":[{"role":"user","content":"b"}],"temperature":1}`, false},
		"another model":                      {base, `{"model":"n","messages":[{"role":"user","content":"a"}],"temperature":1}`, false},
		"another temperature":                {base, `{"model":"m","messages":[{"role":"user","content":"a"}],"temperature":0.5}`, false},
		"one more turn":                      {base, `{"model":"m","messages":[{"role":"user","content":"a"},{"role":"assistant","content":""}],"temperature":1}`, false},
		"metadata within a message":          {`{"messages":[{"metadata":1}]}`, `{"messages":[{"metadata":2}]}`, false},
		"integers that no float has":         {`{"seed":9007199254740993}`, `{"seed":9007199254740992}`, false},
		"what is no JSON":                    {`{`, `{`, false},
		"what goes on after it":              {base + `{}`, base + `{}`, false},
	} {
		t.Run(is, func(t *testing.T) {
			a, b := sameOf([]byte(c.a)), sameOf([]byte(c.b))
			if got := a == b && a.valid; got != c.same {
				t.Errorf("same: %v", got)
			}
		})
	}
}

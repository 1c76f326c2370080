package dialecttest_test

import (
	"os"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/fulgur-rl/fulgur/internal/gateway/dialect/anthropic"
	"github.com/fulgur-rl/fulgur/internal/gateway/dialect/openaichat"
	"github.com/fulgur-rl/fulgur/internal/gateway/render"
)

// overChat is the conversation of TestSameTokensOverChatAndMessages as a harness sends it
// over chat completions.
const overChat = `{"messages":[
	{"role":"system","content":"You are.Be <brief>."},
	{"role":"user","content":"What is 12+7?"},
	{"role":"assistant","content":"I count. ","reasoning_content":"Add them.","tool_calls":[
		{"id":"a1","type":"function","function":{"name":"calc","arguments":"{\"expression\":\"12+7\",\"places\":[1,2]}"}},
		{"id":"a2","type":"function","function":{"name":"now","arguments":"{}"}}]},
	{"role":"tool","tool_call_id":"a1","content":"19"},
	{"role":"tool","tool_call_id":"a2","content":"10 o'clock"},
	{"role":"user","content":"Go on."}],
	"tools":[{"type":"function","function":{"name":"calc","description":"Counts <fast> & \"well\", é","parameters":{"type":"object","properties":{"zeta":{"type":"number"},"expression":{"type":"string","description":"\u00e9 <b>"}},"required":["expression"]}}},
		{"type":"function","function":{"name":"now","parameters":{"type":"object"}}}]}`

// overMessages is the same over this dialect, with all that it writes otherwise.
const overMessages = `{"max_tokens":100,
	"system":[{"type":"text","text":"x-anthropic-billing-header: cch=1;"},{"type":"text","text":"You are."},{"type":"text","text":"Be <brief>.","cache_control":{"type":"ephemeral"}}],
	"messages":[
	{"role":"user","content":[{"type":"text","text":"What is 12+7?"}]},
	{"role":"assistant","content":[{"type":"thinking","thinking":"Add them.","signature":"x"},{"type":"text","text":"I count. "},
		{"type":"tool_use","id":"a1","name":"calc","input":{"expression": "12+7", "places": [1, 2]}},
		{"type":"tool_use","id":"a2","name":"now","input":{}}]},
	{"role":"user","content":[{"type":"tool_result","tool_use_id":"a1","content":"19"},
		{"type":"tool_result","tool_use_id":"a2","content":[{"type":"text","text":"10 o'clock"}],"is_error":false},{"type":"text","text":"Go on."}]}],
	"tools":[{"name":"calc","description":"Counts <fast> & \"well\", é","input_schema":{"type":"object","properties":{"zeta":{"type":"number"},"expression":{"type":"string","description":"\u00e9 <b>"}},"required":["expression"]},"cache_control":{"type":"ephemeral"}},
		{"input_schema":{"type":"object"},"name":"now"},
		{"type":"web_search_20250305","name":"web_search"}]}`

// GW-03: a conversation has the same tokens over either dialect, with the
// built-in model's template and with ones that print tools and calls whole.
func TestSameTokensOverChatAndMessages(t *testing.T) {
	chat, err := openaichat.Dialect{}.Parse([]byte(overChat))
	if err != nil || chat.Invalid != nil {
		t.Fatal(err, chat.Invalid)
	}
	req, err := anthropic.Dialect{}.Parse([]byte(overMessages))
	if err != nil || req.Invalid != nil {
		t.Fatal(err, req.Invalid)
	}
	if diff := cmp.Diff(chat.Messages, req.Messages) + cmp.Diff(chat.Tools, req.Tools); diff != "" {
		t.Errorf("chat and Messages differ (-chat +messages):\n%s", diff)
	}
	for name, template := range map[string]string{
		"built in": "",
		"prints all": `{% for t in tools %}{{ t | tojson }}{% endfor %}{% for m in messages %}{{ m | tojson }}{% endfor %}` +
			`{% if add_generation_prompt %}<|im_start|>assistant{% endif %}`,
		"wants arguments as text": `{% for t in tools %}{{ t.function | tojson(indent=2) }}{% endfor %}{% for m in messages %}{{ m.role ~ (m.content or '') ~ (m.reasoning_content or '') }}` +
			`{% for c in m.tool_calls %}{{ c.function.name + c.function.arguments }}{% endfor %}{% endfor %}`,
	} {
		r, err := render.Load(os.DirFS("../../../../examples/calc/model"), render.Options{Template: template})
		if err != nil {
			t.Fatal(name, err)
		}
		want, err := r.Render(chat.Messages, chat.Tools)
		if err != nil {
			t.Fatal(name, err)
		}
		got, err := r.Render(req.Messages, req.Tools)
		if err != nil || len(want) < 50 || !slices.Equal(got, want) {
			t.Errorf("%s: %v\ngot  %q\nwant %q", name, err, r.Decode(got), r.Decode(want))
		}
	}
}

package anthropic_test

import (
	"encoding/json"
	"os"
	"slices"
	"testing"

	"github.com/fulgur-rl/fulgur"
	"github.com/fulgur-rl/fulgur/internal/gateway/chatwire"
	"github.com/fulgur-rl/fulgur/internal/gateway/render"
)

// overChat is the conversation of TestSameTokensAsOverChat as a harness sends it
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

// readChat reads a chat completions request as plainly as can be: variants of
// dialects do not know each other, not even in tests.
func readChat(t *testing.T, body string) (msgs []fulgur.Message, tools []fulgur.Tool) {
	t.Helper()
	var w chatwire.Request
	if err := json.Unmarshal([]byte(body), &w); err != nil {
		t.Fatal(err)
	}
	for _, m := range w.Messages {
		n := fulgur.Message{Role: m.Role, Reasoning: m.ReasoningContent, ToolCallID: m.ToolCallID}
		if err := json.Unmarshal(m.Content, &n.Content); err != nil {
			t.Fatal(err)
		}
		for _, c := range m.ToolCalls {
			n.ToolCalls = append(n.ToolCalls, fulgur.ToolCall{ID: c.ID, Name: c.Function.Name, Arguments: c.Function.Arguments})
		}
		msgs = append(msgs, n)
	}
	for _, raw := range w.Tools {
		var k chatwire.Tool
		if err := json.Unmarshal(raw, &k); err != nil {
			t.Fatal(err)
		}
		tools = append(tools, fulgur.Tool{Name: k.Function.Name, Description: k.Function.Description, Schema: k.Function.Parameters, Raw: raw})
	}
	return msgs, tools
}

// GW-03: a conversation has the same tokens over either dialect, with the
// built-in model's template and with ones that print tools and calls whole.
func TestSameTokensAsOverChat(t *testing.T) {
	msgs, tools := readChat(t, overChat)
	req := parse(t, overMessages)
	if req.Invalid != nil {
		t.Fatal(req.Invalid)
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
		want, err := r.Render(msgs, tools)
		if err != nil {
			t.Fatal(name, err)
		}
		got, err := r.Render(req.Messages, req.Tools)
		if err != nil || len(want) < 50 || !slices.Equal(got, want) {
			t.Errorf("%s: %v\ngot  %q\nwant %q", name, err, r.Decode(got), r.Decode(want))
		}
	}
}

// A turn that was sampled goes on with its exact tokens after it was sent back
// in this dialect.
func TestTurnsGoOnWithTheirTokens(t *testing.T) {
	r, err := render.Load(os.DirFS("../../../../examples/calc/model"), render.Options{})
	if err != nil {
		t.Fatal(err)
	}
	first := parse(t, `{"messages":[{"role":"user","content":"12+7?"}],"tools":[{"name":"calc","input_schema":{"type":"object"}}]}`)
	prompt, err := r.Render(first.Messages, first.Tools)
	if err != nil {
		t.Fatal(err)
	}
	ids := r.Encode(`Hm.` + "\n" + `<tool_call>{"name": "calc", "arguments": {"expression":   "12+7"}}</tool_call>`)
	ids = append(ids, r.StopIDs()[0])
	reply, malformed := r.Parse(ids, first.Tools)
	if malformed || len(reply.ToolCalls) != 1 {
		t.Fatalf("%+v", reply)
	}
	next := parse(t, `{"messages":[{"role":"user","content":[{"type":"text","text":"12+7?"}]},{"role":"assistant","content":[{"type":"text","text":"Hm."},`+
		`{"type":"tool_use","id":"x","name":"calc","input":{"expression":"12+7"}}]},{"role":"user","content":[{"type":"tool_result","tool_use_id":"x","content":"19"}]}],`+
		`"tools":[{"name":"calc","input_schema":{"type":"object"},"cache_control":{"type":"ephemeral"}}]}`)
	known := render.Known{Messages: append(slices.Clone(first.Messages), reply), Tools: first.Tools, PromptIDs: prompt, SampledIDs: ids}
	p, err := r.Extend(known, next.Messages, next.Tools, render.HistoryDeployed)
	if err != nil || p.Break != "" || !slices.Equal(p.IDs[:p.Known], slices.Concat(prompt, ids)) {
		t.Errorf("%v, break %q", err, p.Break)
	}
}

package dialecttest_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/fulgur-rl/fulgur/internal/gateway/call"
	"github.com/fulgur-rl/fulgur/internal/gateway/dialect/openaichat"
	"github.com/fulgur-rl/fulgur/internal/gateway/dialect/openairesponses"
)

// A conversation has one normal form, whichever of OpenAI's APIs carries it: the
// same messages and tools render to the same tokens.
func TestOneConversationOverChatAndResponses(t *testing.T) {
	chat, err := openaichat.Dialect{}.Parse([]byte(`{"model":"m","stream":true,"temperature":0.5,"max_completion_tokens":9,"tool_choice":"auto","messages":[
		{"role":"system","content":"be brief"},
		{"role":"user","content":[{"type":"text","text":"go "},{"type":"text","text":"on"}]},
		{"role":"assistant","content":" I do \n","reasoning_content":"hm","tool_calls":[
			{"id":"1","type":"function","function":{"name":"f","arguments":"{\"a\":  \"\\u0065\"}"}},
			{"id":"2","type":"function","function":{"name":"g","arguments":"{}"}}]},
		{"role":"tool","tool_call_id":"1","content":"one"},{"role":"tool","tool_call_id":"2","content":""},
		{"role":"assistant","content":null,"tool_calls":[{"id":"3","type":"function","function":{"name":"g","arguments":"{}"}}]},
		{"role":"tool","tool_call_id":"3","content":"three"},
		{"role":"assistant","content":"done"},
		{"role":"developer","content":"d"},{"role":"user","content":"and?"}],
		"tools":[{"type":"function","function":{"name":"f","description":"the f","parameters":{"type":"object","properties":{"z":{},"a":{}}}}},
			{"type":"function","function":{"name":"g","parameters":{},"strict":true}}]}`))
	if err != nil || chat.Invalid != nil {
		t.Fatal(err, chat.Invalid)
	}
	resp, err := openairesponses.Dialect{}.Parse([]byte(`{"model":"m","stream":true,"temperature":0.5,"max_output_tokens":9,"tool_choice":"auto","instructions":"be brief","input":[
		{"type":"message","role":"user","content":[{"type":"input_text","text":"go "},{"type":"input_text","text":"on"}]},
		{"type":"reasoning","id":"rs","summary":[{"type":"summary_text","text":"hm"}],"content":null,"encrypted_content":"x"},
		{"type":"message","id":"msg","status":"completed","role":"assistant","content":[{"type":"output_text","text":" I do \n","annotations":[]}]},
		{"type":"function_call","call_id":"1","name":"f","arguments":"{\"a\":  \"\\u0065\"}"},
		{"type":"function_call","call_id":"2","name":"g","arguments":"{}"},
		{"type":"function_call_output","call_id":"1","output":"one"},
		{"type":"function_call_output","call_id":"2","output":""},
		{"type":"function_call","call_id":"3","name":"g","arguments":"{}"},
		{"type":"function_call_output","call_id":"3","output":"three"},
		{"role":"assistant","content":"done"},
		{"role":"developer","content":"d"},{"role":"user","content":"and?"}],
		"tools":[{"type":"function","name":"f","description":"the f","strict":false,"parameters":{"type":"object","properties":{"z":{},"a":{}}}},
			{"type":"function","name":"g","strict":true,"description":null,"parameters":{}},{"type":"web_search"}]}`))
	if err != nil || resp.Invalid != nil {
		t.Fatal(err, resp.Invalid)
	}
	chat.Body, chat.Members, chat.Dialect, chat.IncludeUsage = resp.Body, nil, resp.Dialect, resp.IncludeUsage
	if diff := cmp.Diff(chat, resp, cmpopts.IgnoreUnexported(call.Request{})); diff != "" {
		t.Errorf("chat and Responses differ (-chat +responses):\n%s", diff)
	}
}

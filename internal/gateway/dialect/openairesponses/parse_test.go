package openairesponses_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/fulgur-rl/fulgur"
	"github.com/fulgur-rl/fulgur/internal/gateway/dialect"
	"github.com/fulgur-rl/fulgur/internal/gateway/dialect/openairesponses"
)

func TestConversations(t *testing.T) {
	call := func(id, name, args string) fulgur.ToolCall {
		return fulgur.ToolCall{ID: id, Name: name, Arguments: args}
	}
	for is, c := range map[string]struct {
		body string
		want []fulgur.Message
	}{
		"a string is a user's message": {`{"input":"hi"}`, []fulgur.Message{{Role: "user", Content: "hi"}}},
		"instructions come first": {`{"input":"hi","instructions":"be brief"}`,
			[]fulgur.Message{{Role: "system", Content: "be brief"}, {Role: "user", Content: "hi"}}},
		"roles, and parts that are joined": {`{"input":[{"role":"developer","content":[{"type":"input_text","text":"a"},{"type":"input_text","text":"b"}]},
			{"type":"message","role":"system","content":"s"},{"role":"user","content":null}]}`,
			[]fulgur.Message{{Role: "developer", Content: "ab"}, {Role: "system", Content: "s"}, {Role: "user"}}},
		"what an assistant says in a row is one turn": {`{"input":[{"role":"user","content":"go"},
			{"type":"reasoning","id":"rs_1","summary":[{"type":"summary_text","text":"hm"}],"content":null,"encrypted_content":"theirs"},
			{"type":"message","role":"assistant","status":"completed","id":"msg_1","content":[{"type":"output_text","text":" I do \n","annotations":[],"logprobs":[]}]},
			{"type":"function_call","id":"fc_1","call_id":"1","name":"f","arguments":"{\"a\":  1}","status":"completed"},
			{"type":"function_call","call_id":"2","name":"g","arguments":""},
			{"type":"function_call_output","call_id":"1","output":"one"},
			{"type":"function_call_output","call_id":"2","output":[{"type":"input_text","text":"tw"},{"type":"input_text","text":"o"}]},
			{"type":"reasoning","summary":[{"type":"summary_text","text":"not this"}],"content":[{"type":"reasoning_text","text":"this"}]},
			{"type":"function_call","call_id":"3","name":"f","arguments":"{}"}]}`,
			[]fulgur.Message{{Role: "user", Content: "go"},
				{Role: "assistant", Reasoning: "hm", Content: " I do \n", ToolCalls: []fulgur.ToolCall{call("1", "f", `{"a":  1}`), call("2", "g", "")}},
				{Role: "tool", ToolCallID: "1", Content: "one"}, {Role: "tool", ToolCallID: "2", Content: "two"},
				{Role: "assistant", Reasoning: "this", ToolCalls: []fulgur.ToolCall{call("3", "f", "{}")}}}},
		"a refusal is text": {`{"input":[{"role":"assistant","content":[{"type":"refusal","refusal":"no"}]}]}`,
			[]fulgur.Message{{Role: "assistant", Content: "no"}}},
		"custom tools and namespaces": {`{"input":[{"type":"custom_tool_call","call_id":"1","name":"patch","input":"*** \"x\"\n"},
			{"type":"custom_tool_call_output","call_id":"1","output":"ok"},
			{"type":"function_call","call_id":"2","namespace":"multi","name":"spawn","arguments":"{}"}]}`,
			[]fulgur.Message{{Role: "assistant", ToolCalls: []fulgur.ToolCall{call("1", "patch", `{"input":"*** \"x\"\n"}`)}},
				{Role: "tool", ToolCallID: "1", Content: "ok"},
				{Role: "assistant", ToolCalls: []fulgur.ToolCall{call("2", "multi__spawn", "{}")}}}},
		"half of a surrogate pair takes nothing with it": {`{"input":"\ud800A\ud83d\ude00"}`, []fulgur.Message{{Role: "user", Content: "\ufffdA😀"}}},
	} {
		req := parse(t, c.body)
		if diff := cmp.Diff(c.want, req.Messages); diff != "" || req.Invalid != nil || req.Relayed != nil {
			t.Errorf("%s: %v %v\n%s", is, req.Invalid, req.Relayed, diff)
		}
	}
}

func TestParameters(t *testing.T) {
	req := parse(t, `{"model":"m","input":"x","stream":true,"temperature":0.5,"top_p":0.9,"max_output_tokens":7,"tool_choice":{"type":"function","name":"f"},
		"text":{"format":{"type":"json_schema","name":"n","schema":{}}},"store":true,"include":["reasoning.encrypted_content"],"prompt_cache_key":"k",
		"client_metadata":{"a":"b"},"parallel_tool_calls":true,"reasoning":{"summary":"auto"},"previous_response_id":null,"background":false,"conversation":null,
		"stop":["x"],"truncation":"auto"}`)
	w := req.Wishes
	got := strings.TrimSpace(fmt.Sprintln(req.Invalid, req.Model, req.Stream, *w.Temperature, *w.TopP, *w.MaxTokens, w.Stop, req.ToolChoice, req.Constrained))
	if want := "<nil> m true 0.5 0.9 7 [] function f [tool_choice function f text.format json_schema]"; got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	for body, want := range map[string]string{
		`{"input":"x","tool_choice":"auto","text":{"format":{"type":"text"},"verbosity":"low"}}`:                      "auto []",
		`{"input":"x","tool_choice":"none"}`:                                                                          "none []",
		`{"input":"x","tool_choice":"required"}`:                                                                      "required [tool_choice required]",
		`{"input":"x","tool_choice":{"type":"function","name":"s","namespace":"m"}}`:                                  "function m__s [tool_choice function m__s]",
		`{"input":"x","tool_choice":{"type":"allowed_tools","mode":"auto","tools":[{"type":"function","name":"f"}]}}`: "auto [tool_choice allowed_tools]",
	} {
		if req := parse(t, body); fmt.Sprint(req.ToolChoice, " ", req.Constrained) != want || req.Invalid != nil {
			t.Errorf("%s: %q %v %v", body, req.ToolChoice, req.Constrained, req.Invalid)
		}
	}
}

// GW-05: the order of a schema's keys reaches the template.
func TestTools(t *testing.T) {
	req := parse(t, `{"input":"x","tools":[
		{"type":"function","name":"exec","description":"d","strict":false,"parameters":{"z":1,"a":{"y":1,"b":2}}},
		{"name":"bare","parameters":null,"strict":true},
		{"type":"custom","name":"patch","description":"p","format":{"type":"grammar","syntax":"lark","definition":"start: \"x\""}},
		{"type":"namespace","name":"multi_agent_v1","description":"agents","tools":[{"type":"function","name":"spawn","parameters":{}},{"type":"custom","name":"talk"}]},
		{"type":"namespace","name":"mcp__git__","tools":[{"type":"function","name":"log","parameters":{}}]},
		{"type":"web_search","external_web_access":true},{"type":"image_generation"},{"type":"tool_search"},
		{"type":"function","name":"later","defer_loading":true}]}`)
	if req.Invalid != nil || req.Relayed != nil {
		t.Fatal(req.Invalid, req.Relayed)
	}
	want := []string{
		`{"type":"function","function":{"name":"exec","description":"d","parameters":{"z":1,"a":{"y":1,"b":2}}}}`,
		`{"type":"function","function":{"name":"bare","strict":true}}`,
		`{"type":"function","function":{"name":"patch","description":"p","parameters":{"type":"object","properties":{"input":{"type":"string","description":"The tool's input, as plain text. It follows this lark grammar:\nstart: \"x\""}},"required":["input"]}}}`,
		`{"type":"function","function":{"name":"multi_agent_v1__spawn","parameters":{}}}`,
		`{"type":"function","function":{"name":"multi_agent_v1__talk","parameters":{"type":"object","properties":{"input":{"type":"string","description":"The tool's input, as plain text."}},"required":["input"]}}}`,
		`{"type":"function","function":{"name":"mcp__git__log","parameters":{}}}`,
	}
	var got []string
	for _, tool := range req.Tools {
		got = append(got, string(tool.Raw))
		var f struct{ Function struct{ Name string } }
		if err := json.Unmarshal(tool.Raw, &f); err != nil || f.Function.Name != tool.Name {
			t.Errorf("%v: %+v", err, tool)
		}
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

// GW-04: nothing that counts on stored state is ignored, and every complaint
// names its field.
func TestComplaints(t *testing.T) {
	for is, c := range map[string]struct{ body, param, says string }{
		"an earlier response":          {`{"input":"x","previous_response_id":"resp_1"}`, "previous_response_id", "Send the whole conversation"},
		"a conversation":               {`{"input":"x","conversation":{"id":"c"}}`, "conversation", "Send the whole conversation"},
		"a stored prompt":              {`{"input":"x","prompt":{"id":"p"}}`, "prompt", "Send instructions"},
		"an answer for later":          {`{"input":"x","background":true}`, "background", "stream it"},
		"a reference":                  {`{"input":[{"type":"item_reference","id":"msg_1"}]}`, "input[0]", "Send the item itself"},
		"log probs":                    {`{"input":"x","include":["message.output_text.logprobs"]}`, "include", "chat completions"},
		"other tokens' log probs":      {`{"input":"x","top_logprobs":3}`, "top_logprobs", "leave it out"},
		"no input":                     {`{"instructions":"x"}`, "input", "string or a list"},
		"an empty input":               {`{"input":[]}`, "input", "at least one"},
		"an input that is a number":    {`{"input":3}`, "input", "string or a list"},
		"an item that is a string":     {`{"input":["x"]}`, "input[0]", "object"},
		"a message without a role":     {`{"input":[{"role":"user","content":"a"},{"content":"x"}]}`, "input[1].role", "must be user"},
		"a role of another API":        {`{"input":[{"role":"tool","content":"x"}]}`, "input[0].role", "must be user"},
		"a role that is a number":      {`{"input":[{"role":3}]}`, "input[0].role", "must be a string"},
		"content that is a number":     {`{"input":[{"role":"user","content":3}]}`, "input[0].content", "list of parts"},
		"a part that is a string":      {`{"input":[{"role":"user","content":["x"]}]}`, "input[0].content", "without a type"},
		"a text that is a number":      {`{"input":[{"role":"user","content":[{"type":"input_text","text":1}]}]}`, "input[0].content.text", "must be a string"},
		"a call of nothing":            {`{"input":[{"type":"function_call","call_id":"1","arguments":"{}"}]}`, "input[0].name", "no name"},
		"arguments that are no text":   {`{"input":[{"type":"function_call","name":"f","call_id":"1","arguments":{}}]}`, "input[0].arguments", "must be a string"},
		"tools that are none":          {`{"input":"x","tools":{}}`, "tools", "must be a list"},
		"a tool without a name":        {`{"input":"x","tools":[{"type":"web_search"},{"type":"function"}]}`, "tools[1].name", "no name"},
		"a tool that is nothing":       {`{"input":"x","tools":[null]}`, "tools[0].name", "no name"},
		"a grouped one without":        {`{"input":"x","tools":[{"type":"namespace","name":"n","tools":[{"type":"function"}]}]}`, "tools[0].tools[0].name", "no name"},
		"two that become one":          {`{"input":"x","tools":[{"name":"a__b"},{"type":"namespace","name":"a","tools":[{"name":"b"}]}]}`, "tools[1].tools[0].name", "rename one"},
		"a built-in tool forced":       {`{"input":"x","tool_choice":{"type":"web_search"}}`, "tool_choice", "not offered"},
		"a choice that is a number":    {`{"input":"x","tool_choice":5}`, "tool_choice", "word or an object"},
		"a temperature below zero":     {`{"input":"x","temperature":-1}`, "temperature", "at least 0"},
		"a top_p beyond all numbers":   {`{"input":"x","top_p":1e999}`, "top_p", "too large"},
		"a temperature that is text":   {`{"input":"x","temperature":"1"}`, "temperature", "must be a number"},
		"no token to sample":           {`{"input":"x","max_output_tokens":0}`, "max_output_tokens", "at least 1"},
		"half a token to sample":       {`{"input":"x","max_output_tokens":1.5}`, "max_output_tokens", "whole number"},
		"a stream that is a word":      {`{"input":"x","stream":"yes"}`, "stream", "true or false"},
		"a model that is a number":     {`{"input":"x","model":1}`, "model", "must be a string"},
		"instructions that are a list": {`{"input":"x","instructions":[]}`, "instructions", "must be a string"},
	} {
		req := parse(t, c.body)
		var field *dialect.FieldError
		if fulgur.KindOf(req.Invalid) != fulgur.KindInvalid || !errors.As(req.Invalid, &field) || field.Param != c.param ||
			!strings.Contains(fulgur.PublicMessage(req.Invalid), c.says) {
			t.Errorf("%s: %v", is, req.Invalid)
		}
	}
	for body, at := range map[string]string{`{"input":"x","input":"y"}`: "input", `{"input":[{"role":"user","content":"a","content":"b"}]}`: "input[0].content"} {
		if _, err := (openairesponses.Dialect{}).Parse([]byte(body)); fulgur.KindOf(err) != fulgur.KindInvalid || !strings.Contains(fulgur.PublicMessage(err), at) {
			t.Errorf("%s twice: %v", at, err)
		}
	}
	deep := `{"input":` + strings.Repeat("[", 1<<20) + strings.Repeat("]", 1<<20) + `}`
	if _, err := (openairesponses.Dialect{}).Parse([]byte(deep)); fulgur.KindOf(err) != fulgur.KindInvalid {
		t.Errorf("a million lists in each other: %v", err)
	}
}

func TestOnlyAnUpstreamCanSeeImages(t *testing.T) {
	req := parse(t, `{"input":[{"role":"user","content":[{"type":"input_text","text":"a"},{"type":"input_image","image_url":"data:x"},{"type":"input_text","text":"b"}]},
		{"type":"web_search_call","id":"ws_1","status":"completed"}]}`)
	if fmt.Sprint(req.Relayed, req.Messages, req.Invalid) != "[a content block of type input_image an input item of type web_search_call] [{user ab  []  }] <nil>" {
		t.Errorf("%v %v %v", req.Relayed, req.Messages, req.Invalid)
	}
}

func FuzzParse(f *testing.F) {
	for _, s := range []string{
		`{"input":[{"role":"user","content":[{"type":"input_text","text":"x"}]},{"type":"reasoning","summary":[{}],"encrypted_content":"fulgur1.aG0"}],"tools":[{}],"tool_choice":{}}`,
		`{"input":null,"tools":[{"type":"namespace","tools":"x"}],"include":"x","text":3}`,
		`{"input":[{"type":"custom_tool_call","input":"\ud800"}],"max_output_tokens":1e99}`,
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		req, err := openairesponses.Dialect{}.Parse(body)
		if err != nil {
			return
		}
		if !json.Valid(req.Body) {
			t.Errorf("%q is taken", body)
		}
		for _, tool := range req.Tools {
			if !json.Valid(tool.Raw) {
				t.Errorf("tool %s", tool.Raw)
			}
		}
		if req.Invalid == nil && len(req.Messages) == 0 && len(req.Relayed) == 0 {
			t.Errorf("%q has nothing to answer", body)
		}
	})
}

// A third request of Codex 0.171.0 (texts cut): turns with reasoning, space
// around the text, and arguments in unusual JSON.
func TestCodexRequest(t *testing.T) {
	body, err := os.ReadFile("testdata/codex-quirk.json")
	if err != nil {
		t.Fatal(err)
	}
	req := parse(t, string(body))
	if req.Invalid != nil || req.Relayed != nil || req.Constrained != nil || len(req.Tools) != 2 || !req.Stream {
		t.Fatal(req.Invalid, req.Relayed, req.Constrained, len(req.Tools))
	}
	want := []fulgur.Message{
		{Role: "assistant", Reasoning: "Let me think.", Content: "\n I make the file. \n\n",
			ToolCalls: []fulgur.ToolCall{{ID: "call_1_0", Name: "exec_command", Arguments: `{"cmd":  "\u0065cho hello > hello.txt"}`}}},
		{Role: "tool", ToolCallID: "call_1_0", Content: "<OUTPUT 102 chars>"},
		{Role: "assistant", Reasoning: "More thinking.", ToolCalls: []fulgur.ToolCall{{ID: "call_2_0", Name: "exec_command", Arguments: `{"cmd":"cat hello.txt"}`}}},
		{Role: "tool", ToolCallID: "call_2_0", Content: "<OUTPUT 108 chars>"}}
	if len(req.Messages) != 8 {
		t.Fatalf("%d messages", len(req.Messages))
	}
	if diff := cmp.Diff(want, req.Messages[4:]); diff != "" {
		t.Error(diff)
	}
}

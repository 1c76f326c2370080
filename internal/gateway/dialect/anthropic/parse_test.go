package anthropic_test

import (
	"bytes"
	"encoding/json"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/fulgur-rl/fulgur"
	"github.com/fulgur-rl/fulgur/internal/gateway/call"
	"github.com/fulgur-rl/fulgur/internal/gateway/dialect/anthropic"
)

func parse(t *testing.T, body string) *call.Request {
	t.Helper()
	req, err := anthropic.Dialect{}.Parse([]byte(body))
	if err != nil {
		t.Fatalf("%v: %s", err, body)
	}
	return req
}

func TestNormalForm(t *testing.T) {
	user := func(s string) fulgur.Message { return fulgur.Message{Role: "user", Content: s} }
	tool := func(id, s string) fulgur.Message { return fulgur.Message{Role: "tool", ToolCallID: id, Content: s} }
	for name, c := range map[string]struct {
		system, messages string
		want             []fulgur.Message
		relayed          []string
	}{
		"a string is one text block": {messages: `{"role":"user","content":[{"type":"text","text":"hi","cache_control":{"type":"ephemeral"}}]},{"role":"user","content":"hi"}`,
			want: []fulgur.Message{user("hi"), user("hi")}},
		"text blocks are joined": {messages: `{"role":"user","content":[{"type":"text","text":"a"},{"type":"text","text":"b"}]}`,
			want: []fulgur.Message{user("ab")}},
		"null, an empty list and nothing are one": {messages: `{"role":"user","content":null},{"role":"assistant","content":[]},{"role":"user"}`,
			want: []fulgur.Message{user(""), {Role: "assistant"}, user("")}},
		"a system prompt is the first message": {system: `"be brief"`, messages: `{"role":"user","content":"x"}`,
			want: []fulgur.Message{{Role: "system", Content: "be brief"}, user("x")}},
		"an empty system prompt is none": {system: `[{"type":"text","text":""}]`, messages: `{"role":"user","content":"x"}`,
			want: []fulgur.Message{user("x")}},
		"a line for Anthropic's billing is no prompt": {
			system:   `[{"type":"text","text":"x-anthropic-billing-header: cc_version=2.1.332.abc; cc_entrypoint=sdk-cli; cch=1a2b3;"},{"type":"text","text":"You are"}]`,
			messages: `{"role":"user","content":"x-anthropic-billing-header: stays"}`,
			want:     []fulgur.Message{{Role: "system", Content: "You are"}, user("x-anthropic-billing-header: stays")}},
		"the same in a string": {system: `"x-anthropic-billing-header: cch=1;\nYou are"`, messages: `{"role":"user","content":"x"}`,
			want: []fulgur.Message{{Role: "system", Content: "You are"}, user("x")}},
		"a system message in the middle stays there": {messages: `{"role":"user","content":"x"},{"role":"system","content":[{"type":"text","text":"env"}]},{"role":"assistant","content":"y"}`,
			want: []fulgur.Message{user("x"), {Role: "system", Content: "env"}, {Role: "assistant", Content: "y"}}},
		"an assistant's blocks are one message": {
			messages: `{"role":"assistant","content":[{"type":"thinking","thinking":"hm","signature":"s"},{"type":"redacted_thinking","data":"?"},{"type":"text","text":"I "},{"type":"text","text":"go"},` +
				`{"type":"tool_use","id":"1","name":"f","input":{"a" : "é\u0041", "b":[1, 2]},"caller":{"type":"direct"}},{"type":"tool_use","id":"2","name":"g","input":{}}]}`,
			want: []fulgur.Message{{Role: "assistant", Content: "I go", Reasoning: "hm",
				ToolCalls: []fulgur.ToolCall{{ID: "1", Name: "f", Arguments: `{"a":"é\u0041","b":[1,2]}`}, {ID: "2", Name: "g", Arguments: "{}"}}}}},
		"results and text of one turn are messages, in order": {
			messages: `{"role":"user","content":[{"type":"tool_result","tool_use_id":"1","content":"one"},{"type":"tool_result","tool_use_id":"2","content":[{"type":"text","text":"t"},{"type":"text","text":"wo"}],"is_error":true},` +
				`{"type":"tool_result","tool_use_id":"3"},{"type":"text","text":"and "},{"type":"text","text":"now"}]}`,
			want: []fulgur.Message{tool("1", "one"), tool("2", "two"), tool("3", ""), user("and now")}},
		"text before results stays before them": {messages: `{"role":"user","content":[{"type":"text","text":"a"},{"type":"tool_result","tool_use_id":"1","content":"r"},{"type":"text","text":"b"}]}`,
			want: []fulgur.Message{user("a"), tool("1", "r"), user("b")}},
		"what is no text is named once": {
			messages: `{"role":"user","content":[{"type":"image","source":{}},{"type":"document","source":{}},{"type":"text","text":"x"},{"type":"image","source":{}}]},` +
				`{"role":"user","content":[{"type":"tool_result","tool_use_id":"1","content":[{"type":"image"},{"type":"tool_reference"}]}]},{"role":"assistant","content":[{"type":"server_tool_use","id":"1","name":"web_search","input":{}}]}`,
			want:    []fulgur.Message{user("x"), tool("1", ""), {Role: "assistant"}},
			relayed: []string{"a content block of type image", "a content block of type document", "a content block of type tool_reference", "a content block of type server_tool_use"}},
		"arguments that were no object come back as they were": {messages: `{"role":"assistant","content":[{"type":"tool_use","id":"1","name":"f","input":{"INVALID_JSON":"{\"a\":"}}]}`,
			want: []fulgur.Message{{Role: "assistant", ToolCalls: []fulgur.ToolCall{{ID: "1", Name: "f", Arguments: `{"a":`}}}}},
	} {
		if c.system == "" {
			c.system = "null"
		}
		req := parse(t, `{"system":`+c.system+`,"messages":[`+c.messages+`]}`)
		if req.Invalid != nil {
			t.Errorf("%s: %v", name, req.Invalid)
		}
		if diff := cmp.Diff(c.want, req.Messages) + cmp.Diff(c.relayed, req.Relayed); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}

func TestParameters(t *testing.T) {
	const user = `"messages":[{"role":"user","content":"x"}]`
	const f = `"tools":[{"name":"f","description":"<d>","input_schema":{"z":1,"a":2},"cache_control":{},"defer_loading":true},{"type":"web_search_20250305","name":"web_search","max_uses":5},{"type":"mcp_toolset","mcp_server_name":"s"}]`
	req := parse(t, `{"model":"m","max_tokens":7,"temperature":0.5,"top_p":0.9,"top_k":3,"stop_sequences":["a",""],"stream":true,"metadata":{"user_id":"u"},`+
		`"thinking":{"type":"adaptive"},"context_management":{"edits":[]},"output_config":{"effort":"high"},`+user+`,`+f+`}`)
	if req.Invalid != nil || len(req.Relayed)+len(req.Constrained) > 0 {
		t.Error(req.Invalid, req.Relayed, req.Constrained)
	}
	w := req.Wishes
	if req.Model != "m" || !req.Stream || !req.IncludeUsage || *w.MaxTokens != 7 || *w.Temperature != 0.5 || *w.TopP != 0.9 || *w.TopK != 3 || len(w.Stop) != 1 || w.Stop[0] != "a" {
		t.Errorf("%+v", req)
	}
	want := []fulgur.Tool{{Name: "f", Description: "<d>", Schema: json.RawMessage(`{"z":1,"a":2}`),
		Raw: json.RawMessage(`{"type":"function","function":{"name":"f","description":"<d>","parameters":{"z":1,"a":2}}}`)}}
	if diff := cmp.Diff(want, req.Tools); diff != "" {
		t.Error(diff)
	}
	for _, c := range []struct{ more, choice, constrained, relayed string }{
		{`"tool_choice":{"type":"auto","disable_parallel_tool_use":true},` + f, "auto", "", ""},
		{`"tool_choice":{"type":"none"},` + f, "none", "", ""},
		{`"tool_choice":{"type":"any"},` + f, "required", "tool_choice required", ""},
		{`"tool_choice":{"type":"tool","name":"f"},` + f, "function f", "tool_choice function f", ""},
		{`"tool_choice":{"type":"tool","name":"web_search"},` + f, "", "", "a tool_choice of web_search, a tool that only Anthropic's servers run"},
		{`"output_config":{"format":{"type":"json_schema"}}`, "", "output format json_schema", ""},
		{`"output_format":{"type":"json_schema"}`, "", "output format json_schema", ""},
		{`"mcp_servers":[{}]`, "", "", "MCP servers"},
		{`"container":"c"`, "", "", "a container"},
		{`"tools":[{"type":"bash_20250124","name":"bash"}]`, "", "", "a tool of type bash_20250124, whose schema only Anthropic's models know: send it as a tool with an input_schema"},
	} {
		req := parse(t, `{`+user+`,`+c.more+`}`)
		if req.Invalid != nil || req.ToolChoice != c.choice || strings.Join(req.Constrained, ";") != c.constrained || strings.Join(req.Relayed, ";") != c.relayed {
			t.Errorf("%s: %v %q %q %q", c.more, req.Invalid, req.ToolChoice, req.Constrained, req.Relayed)
		}
	}
}

func TestWhatNoModelCanAnswerIsMarked(t *testing.T) {
	const user = `"messages":[{"role":"user","content":"hi"}]`
	for name, c := range map[string]struct{ body, says string }{
		"no messages":                          {`{"messages":[]}`, "messages must be"},
		"messages of another type":             {`{"messages":"hi"}`, `"messages" has the wrong type: got a JSON string`},
		"a message without a role":             {`{"messages":[{"content":"hi"}]}`, "messages[0]: role is missing"},
		"a role of another API":                {`{"messages":[{"role":"tool","content":"hi"}]}`, `messages[0]: role must be user, assistant or system, not "tool"`},
		"content that is a number":             {`{"messages":[{"role":"user","content":5}]}`, "messages[0]: content must be a string or a list of blocks"},
		"text that is a number":                {`{"messages":[{"role":"user","content":[{"type":"text","text":5}]}]}`, `messages[0]: content: The field "text" has the wrong type: got a JSON number`},
		"blocks that are strings":              {`{"messages":[{"role":"user","content":["hi"]}]}`, "messages[0]: content: Got a JSON string"},
		"a block without a type":               {`{"messages":[{"role":"user","content":[{"text":"hi"}]}]}`, "a block has no type"},
		"a result of no call":                  {`{"messages":[{"role":"user","content":[{"type":"tool_result","content":"r"}]}]}`, "messages[0]: content[0]: tool_use_id is missing"},
		"a result with a number":               {`{"messages":[{"role":"user","content":[{"type":"tool_result","tool_use_id":"1","content":1}]}]}`, "messages[0]: content[0]: content must be"},
		"a result from the assistant":          {`{"messages":[{"role":"assistant","content":[{"type":"tool_result","tool_use_id":"1"}]}]}`, "belongs to the user"},
		"a call from the user":                 {`{"messages":[{"role":"user","content":[{"type":"tool_use","id":"1","name":"f","input":{}}]}]}`, "belongs to the assistant"},
		"a call with a string for input":       {`{"messages":[{"role":"assistant","content":[{"type":"tool_use","id":"1","name":"f","input":"{}"}]}]}`, "messages[0]: content[0]: a tool_use block needs"},
		"a call without a name":                {`{"messages":[{"role":"assistant","content":[{"type":"tool_use","id":"1","input":{}}]}]}`, "messages[0]: content[0]: a tool_use block needs"},
		"a system prompt that is a number":     {`{"system":1,` + user + `}`, "system must"},
		"a temperature below zero":             {`{` + user + `,"temperature":-1}`, "temperature"},
		"a top_p above one":                    {`{` + user + `,"top_p":2}`, "top_p"},
		"no token to sample":                   {`{` + user + `,"max_tokens":0}`, "max_tokens"},
		"a word for a number":                  {`{` + user + `,"max_tokens":"9"}`, `"max_tokens" has the wrong type`},
		"one stop sequence":                    {`{` + user + `,"stop_sequences":"a"}`, `"stop_sequences" has the wrong type`},
		"a choice that is a word":              {`{` + user + `,"tool_choice":"auto"}`, `"tool_choice" has the wrong type`},
		"a choice of an unknown type":          {`{` + user + `,"tool_choice":{"type":"required"}}`, "tool_choice: type must be"},
		"a choice of no tool":                  {`{` + user + `,"tool_choice":{"type":"tool"}}`, "tool_choice: name is missing"},
		"a choice of a tool that is not there": {`{` + user + `,"tool_choice":{"type":"tool","name":"f"}}`, `there is no tool "f"`},
		"a tool without a name":                {`{` + user + `,"tools":[{"input_schema":{}}]}`, "tools[0]: name is missing"},
		"a tool that is nothing":               {`{` + user + `,"tools":[null]}`, "tools[0]: name is missing"},
		"a tool without a schema":              {`{` + user + `,"tools":[{"name":"f"}]}`, "tools[0]: input_schema must be"},
		"a schema that is a string":            {`{` + user + `,"tools":[{"name":"f","input_schema":"{}"}]}`, "tools[0]: input_schema must be"},
		"a tool of OpenAI's form":              {`{` + user + `,"tools":[{"type":"function","function":{"name":"f"}}]}`, "tools[0]: name is missing"},
		"a tool that is a string":              {`{` + user + `,"tools":["f"]}`, "tools[0]: Got a JSON string"},
	} {
		req := parse(t, c.body)
		if fulgur.KindOf(req.Invalid) != fulgur.KindInvalid || !strings.Contains(fulgur.PublicMessage(req.Invalid), c.says) {
			t.Errorf("%s: %v", name, req.Invalid)
		}
	}
	for name, body := range map[string]string{
		"a field that stands twice":                    `{"model":"a",` + user + `,"m\u006fdel":"b"}`,
		"the same behind values full of marks":         `{"x":{"model":[",{"]},"y":"\"},{","model":"a","z":[{}],"model":"b"}`,
		"a field twice in a message":                   `{"model":"a","messages":[{"role":"user","content":"a","content":"b"}]}`,
		"a torn string":                                `{"model":"a`,
		"a number where a digit should follow a point": `{"temperature":1.}`,
	} {
		if _, err := (anthropic.Dialect{}).Parse([]byte(body)); fulgur.KindOf(err) != fulgur.KindInvalid {
			t.Errorf("%s: %v", name, err)
		}
	}
	if req := parse(t, `{"x":{"a":1},"y":{"a":1,"x":2},"a":[{"a":1}],`+user+`}`); req.Invalid != nil {
		t.Error(req.Invalid) // nested keys are no duplicates
	}
}

// GW-03: what Claude Code sends is read, and what it sends back of an answer is
// recognised, whatever has become of its form (requests recorded from 2.1.332).
func TestClaudeCode(t *testing.T) {
	read := func(file string) *call.Request {
		b, err := os.ReadFile("testdata/" + file + ".json")
		if err != nil {
			t.Fatal(err)
		}
		req := parse(t, string(b))
		if req.Invalid != nil || len(req.Relayed)+len(req.Constrained) > 0 || len(req.Tools) != 2 || !req.Stream || *req.Wishes.MaxTokens != 32000 {
			t.Errorf("%s: %+v", file, req)
		}
		return req
	}
	roles := func(req *call.Request) string {
		var out []string
		for _, m := range req.Messages {
			out = append(out, m.Role)
		}
		return strings.Join(out, " ")
	}
	first, second := read("claude-code-01"), read("claude-code-02")
	if roles(first) != "system user system" || roles(second) != "system user system assistant tool" {
		t.Errorf("%s, %s", roles(first), roles(second))
	}
	for i, m := range first.Messages { // cache marks move, a block becomes a string
		if !m.Same(second.Messages[i]) {
			t.Errorf("message %d: %+v is not %+v", i, second.Messages[i], m)
		}
	}
	if !bytes.Equal(first.Tools[0].Raw, second.Tools[0].Raw) {
		t.Error("the tools are others")
	}
	quirk := read("claude-code-quirk-03")
	sampled := fulgur.Message{Role: "assistant", Reasoning: "Let me think.", Content: "\n I make the file. \n\n", ToolCalls: []fulgur.ToolCall{
		{Name: "Bash", Arguments: `{"command":  "\u0065cho hello > hello.txt", "description":  "<DESC>"}`}}}
	if !sampled.Same(quirk.Messages[3]) {
		t.Errorf("%+v is not recognised in %+v", sampled, quirk.Messages[3])
	}
	if roles(quirk) != "system user system assistant tool assistant tool" || quirk.Messages[4].ToolCallID != "toolu_1_0" {
		t.Errorf("%s: %+v", roles(quirk), quirk.Messages[4])
	}
	parallel := read("claude-code-parallel-02")
	if n := len(parallel.Messages); roles(parallel) != "system user system assistant tool tool" || parallel.Messages[n-2].ToolCallID != "toolu_1_0" || parallel.Messages[n-1].ToolCallID != "toolu_1_1" {
		t.Errorf("%s", roles(parallel))
	}
}

func FuzzParse(f *testing.F) {
	f.Add([]byte(`{"system":[{"type":"text","text":"x"}],"messages":[{"role":"user","content":[{"type":"tool_result","tool_use_id":"1","content":[{"type":"text","text":"x"}]},{"type":"image"}]}],"tools":[{}],"tool_choice":{}}`))
	f.Add([]byte(`{"messages":[{"role":"assistant","content":[{"type":"tool_use","id":"1","name":"f","input":{"INVALID_JSON":"x"}},{"type":"thinking","thinking":"h"}]}],"stop_sequences":1,"max_tokens":1e9}`))
	f.Add([]byte(`{"a":{"b":"\\"},"\u0061":1}`))
	f.Fuzz(func(t *testing.T, body []byte) {
		req, err := anthropic.Dialect{}.Parse(body)
		if err != nil {
			if fulgur.KindOf(err) != fulgur.KindInvalid {
				t.Error(err)
			}
			return
		}
		if !json.Valid(req.Body) || req.Invalid == nil && len(req.Messages) == 0 {
			t.Errorf("%q is taken", body)
		}
		for _, tool := range req.Tools {
			if !json.Valid(tool.Raw) {
				t.Errorf("tool %s of %q", tool.Raw, body)
			}
		}
	})
}

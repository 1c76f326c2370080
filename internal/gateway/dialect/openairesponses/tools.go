package openairesponses

import (
	"encoding/json"
	"fmt"
	"strings"

	"github.com/tidwall/gjson"

	"github.com/fulgur-rl/fulgur"
)

// toolName is what a harness calls a tool. The model sees flatten of it.
type toolName struct {
	space  string // the namespace, "" for none
	name   string
	custom bool // its input is text, not JSON
}

// flatten makes one name of a namespace's and a tool's: chat templates know no
// namespaces.
func flatten(space, name string) string {
	switch {
	case space == "":
		return name
	case strings.HasSuffix(space, "__"):
		return space + name
	}
	return space + "__" + name
}

// eachTool calls f for each tool that a model can be offered, groups opened up.
// Built-in tools (web_search, …) have no function that the harness could run,
// and a tool with defer_loading is to be found by a search that is built in
// too: both are passed over. A namespace's own description has no place in the
// chat form.
func eachTool(list gjson.Result, f func(param, space string, tool gjson.Result)) {
	i := -1
	list.ForEach(func(_, t gjson.Result) bool {
		i++
		param := fmt.Sprintf("tools[%d]", i)
		if text(t.Get("type")) != "namespace" {
			offer(param, "", t, f)
			return true
		}
		j := -1
		t.Get("tools").ForEach(func(_, sub gjson.Result) bool {
			j++
			offer(fmt.Sprintf("%s.tools[%d]", param, j), text(t.Get("name")), sub, f)
			return true
		})
		return true
	})
}

func offer(param, space string, t gjson.Result, f func(param, space string, tool gjson.Result)) {
	kind := text(t.Get("type"))
	if t.IsObject() && (kind != "" && kind != "function" && kind != "custom" || t.Get("defer_loading").Bool()) {
		return
	}
	f(param, space, t)
}

func nameOf(space string, t gjson.Result) toolName {
	return toolName{space, text(t.Get("name")), text(t.Get("type")) == "custom"}
}

// namesOf gives the tools of a request by the name that the model sees.
func namesOf(list gjson.Result) map[string]toolName {
	out := map[string]toolName{}
	eachTool(list, func(_, space string, t gjson.Result) {
		n := nameOf(space, t)
		out[flatten(space, n.name)] = n
	})
	return out
}

// tools reads the tools that are offered.
func (r *reader) tools(list gjson.Result) {
	if list.Exists() && !list.IsArray() {
		r.complain("tools", "tools must be a list")
		return
	}
	eachTool(list, func(param, space string, t gjson.Result) {
		n := nameOf(space, t)
		if n.name == "" {
			r.complain(param+".name", param+" has no name")
			return
		}
		flat := flatten(space, n.name)
		if old, ok := r.names[flat]; ok && old != n {
			r.complain(param+".name", fmt.Sprintf("Two tools would both be called %q by the model: rename one", flat))
			return
		}
		r.names[flat] = n
		tool := fulgur.Tool{Name: flat, Description: text(t.Get("description"))}
		if n.custom {
			tool.Schema = customSchema(t.Get("format"))
		} else if p := t.Get("parameters"); p.Exists() && p.Type != gjson.Null {
			tool.Schema = []byte(p.Raw)
		}
		tool.Raw = chatForm(tool, t.Get("strict").Type == gjson.True)
		r.req.Tools = append(r.req.Tools, tool)
	})
}

// chatForm writes a tool as a chat completions request has it, because that is
// what templates print: the same tools make the same tokens over both APIs.
// Absent, null and false strictness are one; the SDKs of this API always send it.
func chatForm(t fulgur.Tool, strict bool) []byte {
	b := gjson.AppendJSONString([]byte(`{"type":"function","function":{"name":`), t.Name)
	if t.Description != "" {
		b = gjson.AppendJSONString(append(b, `,"description":`...), t.Description)
	}
	if t.Schema != nil {
		b = append(append(b, `,"parameters":`...), t.Schema...)
	}
	if strict {
		b = append(b, `,"strict":true`...)
	}
	return append(b, "}}"...)
}

// customSchema is the schema that the model sees of a custom tool: a function
// of one text. A grammar can't be enforced; it is told.
func customSchema(format gjson.Result) []byte {
	about := "The tool's input, as plain text."
	if def := text(format.Get("definition")); def != "" {
		about += " It follows this " + text(format.Get("syntax")) + " grammar:\n" + def
	}
	b := gjson.AppendJSONString([]byte(`{"type":"object","properties":{"input":{"type":"string","description":`), about)
	return append(b, `}},"required":["input"]}`...)
}

// customArguments are the arguments that say a custom tool's input.
func customArguments(input string) string {
	return string(append(gjson.AppendJSONString([]byte(`{"input":`), input), '}'))
}

// customInput is the input that arguments say; arguments of another form are
// the input as they are, so that the harness can complain.
func customInput(arguments string) string {
	if json.Valid([]byte(arguments)) { // gjson takes any depth, on the stack
		if v := gjson.Get(arguments, "input"); v.Type == gjson.String {
			return text(v)
		}
	}
	return arguments
}

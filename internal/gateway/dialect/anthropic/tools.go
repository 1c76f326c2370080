package anthropic

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/fulgur-rl/fulgur"
)

// tool is a tool that the client offers.
type tool struct {
	Type        string          `json:"type"` // "", custom, or a dated name of Anthropic's
	Name        string          `json:"name"`
	Description string          `json:"description"`
	InputSchema json.RawMessage `json:"input_schema"`
}

// tool reads one tool.
func (r *reader) tool(i int, raw json.RawMessage) {
	var t tool
	if err := json.Unmarshal(raw, &t); err != nil {
		r.fail(fmt.Sprintf("tools[%d]: %s", i, typeMessage(err)))
		return
	}
	own := t.Type == "" || t.Type == "custom" || t.Type == "function" // that is OpenAI's word
	switch schema := t.InputSchema; {
	case len(schema) > 0 && schema[0] == '{':
		if t.Name == "" {
			r.fail(fmt.Sprintf("tools[%d]: name is missing", i))
			return
		}
		r.req.Tools = append(r.req.Tools, fulgur.Tool{Name: t.Name, Description: t.Description, Schema: schema, Raw: functionForm(&t)})
	case own && t.Name == "":
		r.fail(fmt.Sprintf("tools[%d]: name is missing", i))
	case own || len(schema) > 0 && string(schema) != "null":
		r.fail(fmt.Sprintf("tools[%d]: input_schema must be a JSON Schema, an object", i))
	case clientRun(t.Type):
		r.relay("a tool of type " + t.Type + ", whose schema only Anthropic's models know: send it as a tool with an input_schema")
	default:
		r.server = append(r.server, t.Name)
	}
}

// clientRun says whether the client runs this tool of Anthropic's. It would
// wait in vain for calls if such a tool were left out like those of the server.
func clientRun(typ string) bool {
	return slices.ContainsFunc([]string{"bash_", "text_editor_", "computer_", "memory_"}, func(p string) bool { return strings.HasPrefix(typ, p) })
}

// functionForm is the tool as the same harness would send it over chat
// completions: chat templates print tools whole, in that form, and what a model
// sees must not depend on the dialect.
func functionForm(t *tool) json.RawMessage {
	b := append(make([]byte, 0, 96+len(t.Name)+len(t.Description)+len(t.InputSchema)), `{"type":"function","function":{"name":`...)
	b = appendString(b, t.Name)
	if t.Description != "" {
		b = append(b, `,"description":`...)
		b = appendString(b, t.Description)
	}
	b = append(b, `,"parameters":`...)
	b = append(b, t.InputSchema...)
	return append(b, "}}"...)
}

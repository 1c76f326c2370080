package render

import (
	"strings"

	"github.com/fulgur-rl/fulgur"
)

// probe renders small conversations to find out what the template wants: tool
// arguments as an object or as text, "" or none beside tool calls, and whether
// its generation prompt opens a <think> block. A template that fails on all of
// them has no tool calls, or fails later with its own words.
func (r *Renderer) probe() {
	const name, arg = "probe_tool", "probe_argument"
	msgs := []fulgur.Message{{Role: "user", Content: "x"},
		{Role: "assistant", ToolCalls: []fulgur.ToolCall{{ID: "call00001", Name: name, Arguments: `{"` + arg + `": 17}`}}},
		{Role: "tool", Content: "y", ToolCallID: "call00001", Name: name}}
	tools := []fulgur.Tool{{Name: name, Schema: []byte(`{"type": "object", "properties": {}}`)}}
	best := -1
	var found [2]bool
	for _, try := range [][2]bool{{false, false}, {true, false}, {false, true}, {true, true}} {
		r.rawArgs, r.nilEmpty = try[0], try[1]
		out, err := r.text(msgs, tools, true)
		if err != nil {
			continue
		}
		score := 0
		if strings.Contains(out.Text, arg) {
			score++
			if !strings.Contains(out.Text, `\"`+arg) { // quoted twice
				score++
			}
		}
		if score > best {
			best, found = score, try
		}
	}
	r.rawArgs, r.nilEmpty = found[0], found[1]
	if r.reasoning {
		if out, err := r.text(msgs[:1], nil, true); err == nil {
			i := strings.LastIndex(out.Text, "<think>")
			r.open = i >= 0 && !strings.Contains(out.Text[i:], "</think>")
		}
	}
}

package anthropic_test

import (
	"os"
	"slices"
	"testing"

	"github.com/fulgur-rl/fulgur/internal/gateway/render"
)

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

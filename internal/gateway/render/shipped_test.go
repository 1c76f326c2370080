package render

import (
	"encoding/json"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/fulgur-rl/fulgur"
)

// TestShippedCalcModel: the model that the demo trains renders every turn by
// appending to the one before, its replies come back as they were sampled, and
// its tokenizer is the one that its weights were trained with.
func TestShippedCalcModel(t *testing.T) {
	dir := os.DirFS("../../../examples/calc/model")
	r, err := Load(dir, Options{})
	if err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile("../../../examples/calc/model/warmstart.json")
	if err != nil {
		t.Fatal(err)
	}
	var pinned struct {
		Hash string `json:"tokenizer_sha256"`
	}
	if err := json.Unmarshal(b, &pinned); err != nil || pinned.Hash != r.Hash() {
		t.Errorf("tokenizer.json is %s, the weights want %s (%v)", r.Hash(), pinned.Hash, err)
	}
	msgs := []fulgur.Message{{Role: "system", Content: "One operation per call."}, {Role: "user", Content: "Mia has 12 pens. Tom brings 7 more. How many pens?"}}
	prompt, err := r.Render(msgs, calcTools)
	if err != nil {
		t.Fatal(err)
	}
	before, err := r.Text(msgs, calcTools)
	if err != nil {
		t.Fatal(err)
	}
	for turn, text := range []string{
		`<tool_call>{"name":"calc","arguments":{"expression":"12+7"}}</tool_call>`,
		`<tool_call>{"name":"calc","arguments":{"expression":"19*2}}</tool_call>`,
		`Answer: 19`,
	} {
		ids := sample(r, text)
		reply, malformed := r.Parse(ids, calcTools)
		if malformed != (turn == 1) || len(ids) > 40 {
			t.Errorf("%s: malformed %v, %d tokens", text, malformed, len(ids))
		}
		known := Known{Messages: append(slices.Clone(msgs), reply), Tools: calcTools, PromptIDs: prompt, SampledIDs: ids}
		msgs = append(msgs, reply, fulgur.Message{Role: "tool", Content: "19"})
		p, err := r.Extend(known, msgs, calcTools, HistoryDeployed)
		if err != nil || p.Break != "" || !slices.Equal(p.IDs[:p.Known], slices.Concat(prompt, ids)) {
			t.Fatalf("turn %d: %v, break %q", turn, err, p.Break)
		}
		after, err := r.Text(msgs, calcTools)
		if err != nil || !strings.HasPrefix(after, before+text) || r.Decode(p.IDs) != after {
			t.Errorf("turn %d does not append (%v)\nbefore %q\nafter  %q", turn, err, before, after)
		}
		prompt, before = p.IDs, after
	}
}

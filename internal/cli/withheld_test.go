package cli

import (
	"strings"
	"testing"

	"github.com/fulgur-rl/fulgur/internal/trainer/data"
)

// A withheld path that no row has hides nothing: it is refused, with what the rows have.
func TestWithheldPathsThatNoRowHas(t *testing.T) {
	t.Parallel()
	rows := []byte(`{"q":1,"answer":"a","meta":{"key":1,"list":[1,2]}}` + "\n" + `{"q":2,"hint":"h","meta":{"lock":2}}` + "\n")
	for path, want := range map[string]string{
		"input.answer":      "", // one row has it
		"input.hint":        "", // which the limit leaves out
		"input.meta.lock":   "",
		"input.meta.list.1": "",
		"input.anser":       "in input they have answer, hint, meta, q",
		"input.meta.kex":    "in input.meta they have key, list, lock",
		"input.mata.key":    "in input they have answer, hint, meta, q",
		"input.meta.list.2": "in input.meta they have key, list, lock",
	} {
		h := hidden{paths: []string{path}}
		if _, err := data.Parse("rows.jsonl", rows, data.Options{Limit: 1, Look: h.look}); err != nil {
			t.Fatal(err)
		}
		switch err := h.err(); {
		case want == "" && err != nil:
			t.Errorf("%s: %v", path, err)
		case want != "" && (err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), path)):
			t.Errorf("%s: %v, want %q", path, err, want)
		}
	}
}

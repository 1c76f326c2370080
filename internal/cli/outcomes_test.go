package cli

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/fulgur-rl/fulgur/internal/config"
)

// TestOutcomeDocs holds the table of docs/controller.md to the defaults. It fails
// with the table to put there.
func TestOutcomeDocs(t *testing.T) {
	docs, err := os.ReadFile(filepath.Join("..", "..", "docs", "controller.md"))
	if err != nil {
		t.Fatal(err)
	}
	var b strings.Builder
	b.WriteString("<!-- outcomes -->\n")
	for _, r := range outcomeTable(config.Default().Outcomes).Rows(lostAttempts) {
		fmt.Fprintf(&b, "| `%s` | %s | %s | %s | %s |\n", r.Name, r.Class, r.Again, r.Then, r.Means)
	}
	b.WriteString("<!-- /outcomes -->")
	if !strings.Contains(string(docs), b.String()) {
		t.Errorf("docs/controller.md has another table: put this one there\n%s", b.String())
	}
}

// A check prints the rows that the run file changes, and all where that is asked for.
func TestPrintedOutcomes(t *testing.T) {
	o := config.Default().Outcomes
	print := func(all bool) string {
		var b strings.Builder
		printOutcomes(&b, outcomeTable(o), all)
		return b.String()
	}
	if got := print(false); strings.Count(got, "\n") != 1 || !strings.Contains(got, "docs/controller.md") {
		t.Errorf("of the defaults:\n%s", got)
	}
	three := 3
	o.Reasons.Rules = map[string]config.Rule{"node": {Retries: &three}}
	got := print(false)
	if strings.Count(got, "\n") != 3 || !strings.Contains(got, "up to 3") {
		t.Errorf("with one rule:\n%s", got)
	}
	if all := print(true); strings.Count(all, "\n") != 1+len(outcomeTable(o).Rows(lostAttempts)) {
		t.Errorf("all:\n%s", all)
	}
}

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

package audit

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/fulgur-rl/fulgur"
)

// labelled is a trajectory of the labelled set, recorded from a real harness
// (test/harness/record_test.go) and labelled by who wrote its script.
type labelled struct {
	ID       string   `json:"id"`
	Harness  string   `json:"harness"`
	Labels   []string `json:"labels"`
	Disguise string   `json:"disguise"`
	Calls    []struct {
		ID       fulgur.CallID    `json:"id"`
		Messages []fulgur.Message `json:"messages"` // that are new since the call before
		Reply    *fulgur.Message  `json:"reply"`
	} `json:"calls"`
}

func (l *labelled) calls() []fulgur.Call {
	var out []fulgur.Call
	var history []fulgur.Message
	for _, c := range l.Calls {
		history = append(history, c.Messages...)
		out = append(out, fulgur.Call{ID: c.ID, Messages: slices.Clone(history), Reply: c.Reply})
		if c.Reply != nil {
			history = append(history, *c.Reply)
		}
	}
	return out
}

func load(t *testing.T, half string) []labelled {
	t.Helper()
	f, err := os.Open(filepath.Join("testdata", half+".jsonl"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var out []labelled
	s := bufio.NewScanner(f)
	s.Buffer(nil, 1<<22)
	for s.Scan() {
		var l labelled
		if err := json.Unmarshal(s.Bytes(), &l); err != nil {
			t.Fatal(err)
		}
		out = append(out, l)
	}
	if err := s.Err(); err != nil {
		t.Fatal(err)
	}
	return out
}

// tally counts trajectories.
type tally struct{ hit, missed, wrong int }

func (c tally) precision() float64 { return share(c.hit, c.hit+c.wrong) }
func (c tally) recall() float64    { return share(c.hit, c.hit+c.missed) }

func share(a, n int) float64 {
	if n == 0 {
		return 1
	}
	return float64(a) / float64(n)
}

// TestPrecisionAndRecall is the table of docs/audit.md: run it with -v. It fails
// below the floor in either half, and names every trajectory that is judged wrong.
func TestPrecisionAndRecall(t *testing.T) {
	const floor = 0.9
	var table strings.Builder
	fmt.Fprintf(&table, "| detector | set | shortcuts | found | missed | false | precision | recall |\n|---|---|---:|---:|---:|---:|---:|---:|\n")
	total, harnesses := 0, map[string]bool{}
	rows := map[string]map[string]tally{}
	for _, half := range []string{"first", "second", "third"} {
		for _, l := range load(t, half) {
			total++
			harnesses[l.Harness] = true
			findings := Scan(l.calls(), Options{})
			flagged := Flagged(findings)
			for _, d := range Names() {
				if rows[d] == nil {
					rows[d] = map[string]tally{}
				}
				c := rows[d][half]
				want, got := slices.Contains(l.Labels, d), slices.Contains(flagged, d)
				switch {
				case want && got:
					c.hit++
				case want:
					c.missed++
					t.Logf("%s/%s (%s, %s): %s was missed: %+v", half, l.ID, l.Harness, l.Disguise, d, findings)
				case got:
					c.wrong++
					t.Logf("%s/%s (%s): %s is false: %+v", half, l.ID, l.Harness, d, findings)
				}
				rows[d][half] = c
			}
		}
	}
	for _, d := range Names() {
		for _, half := range []string{"first", "second", "third"} {
			c := rows[d][half]
			fmt.Fprintf(&table, "| %s | %s | %d | %d | %d | %d | %.2f | %.2f |\n", d, half, c.hit+c.missed, c.hit, c.missed, c.wrong, c.precision(), c.recall())
			if c.precision() < floor || c.recall() < floor {
				t.Errorf("%s, %s set: precision %.2f, recall %.2f, want at least %g", d, half, c.precision(), c.recall(), floor)
			}
		}
	}
	docs, err := os.ReadFile(filepath.Join("..", "..", "docs", "audit.md"))
	if err != nil || !strings.Contains(string(docs), table.String()) {
		t.Errorf("docs/audit.md has another table, %v: put this one there", err)
	}
	t.Logf("%d trajectories of %d harnesses\n%s", total, len(harnesses), &table)
	if total < 60 || len(harnesses) < 3 {
		t.Errorf("%d trajectories of %d harnesses, want at least 60 of 3", total, len(harnesses))
	}
}

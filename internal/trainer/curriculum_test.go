package trainer

import (
	"fmt"
	"slices"
	"testing"

	"github.com/fulgur-rl/fulgur"
	"github.com/fulgur-rl/fulgur/internal/trainer/advantage"
)

func TestACurriculumAsksLessForRowsThatTeachNothing(t *testing.T) {
	tr := trainer{o: Options{Seed: 5, Pass: 1, Curriculum: &advantage.Curriculum{}, Train: options("", nil, nil).Train}}
	n := len(tr.o.Train.Rows)
	if got := tr.epochRows(0); len(got) != n {
		t.Fatalf("%d of %d rows where nothing is known", len(got), n)
	}
	for range 8 { // row 0 always passes, row 1 never, row 2 half of the time; row 3 is masked
		var lines []RolloutLine
		for row := range 4 {
			for k := range 4 {
				reward := []float64{1, 0, float64(k % 2), 1}[row]
				l := RolloutLine{ID: fulgur.RolloutID(fmt.Sprint(row, k)), Row: row, Reward: &reward}
				switch row {
				case 0:
					l.Masked = maskFiltered + ": equal_rewards" // what a filter has seen is known too
				case 3:
					l.Masked = maskInfrastructure
				}
				lines = append(lines, l)
			}
		}
		tr.passed(lines)
	}
	seen := make([]int, n)
	for epoch := range 400 {
		rows := tr.epochRows(epoch)
		if !slices.Equal(rows, tr.epochRows(epoch)) {
			t.Fatal("the rows of an epoch are not a function of the state")
		}
		for _, r := range rows {
			seen[r]++
		}
	}
	if seen[0] > 100 || seen[1] > 100 || seen[2] != 400 || seen[3] != 400 {
		t.Errorf("rows were asked for %v times", seen[:4])
	}
}

package trainer

import (
	"strings"

	"github.com/fulgur-rl/fulgur/internal/trainer/advantage"
	"github.com/fulgur-rl/fulgur/internal/trainer/schedule"
)

// epochRows returns the rows of an epoch under a curriculum, in a shuffled order: a
// row takes part with the probability of its weight, so that an epoch has fewer of
// those that always pass or never do. Which ones is a function of the seed and of
// the passes so far; none left out means all, as where nothing is known yet.
func (t *trainer) epochRows(epoch int) []int {
	n := len(t.o.Train.Rows)
	seed := schedule.Mix(schedule.Mix(t.o.Seed, uint64(epoch)), 2)
	var out []int
	for _, row := range schedule.Shuffle(n, seed) {
		var p advantage.Passes
		if row < len(t.state.Passes) {
			p = t.state.Passes[row]
		}
		u := float64(schedule.Mix(seed, uint64(row))>>11) / (1 << 53)
		if u < t.o.Curriculum.Weight(p) {
			out = append(out, row)
		}
	}
	if len(out) == 0 {
		return schedule.Shuffle(n, seed)
	}
	return out
}

// passed counts a step's passes by row, a filtered group's too.
func (t *trainer) passed(lines []RolloutLine) {
	if t.o.Curriculum == nil {
		return
	}
	if t.state.Passes == nil {
		t.state.Passes = make([]advantage.Passes, len(t.o.Train.Rows))
	}
	type count struct{ passed, tried int }
	groups := map[int]count{}
	var order []int
	for _, l := range lines {
		if l.Masked != "" && !strings.HasPrefix(l.Masked, maskFiltered) || l.Reward == nil || l.Row < 0 || l.Row >= len(t.state.Passes) {
			continue
		}
		c, seen := groups[l.Row]
		if !seen {
			order = append(order, l.Row)
		}
		if c.tried++; *l.Reward >= t.o.Pass {
			c.passed++
		}
		groups[l.Row] = c
	}
	for _, row := range order {
		t.state.Passes[row] = t.o.Curriculum.Add(t.state.Passes[row], groups[row].passed, groups[row].tried)
	}
}

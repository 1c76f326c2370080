package cli

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/fulgur-rl/fulgur/internal/trainer/stats"
)

// seedComparison is what several runs a side say.
type seedComparison struct {
	A          seedScores     `json:"a"`
	B          seedScores     `json:"b"`
	Paired     bool           `json:"paired"` // the sides have the same seeds
	Difference stats.Interval `json:"difference"`
}

// seedScores are the scores of one side's runs, on the problems that all have.
type seedScores struct {
	Seeds  []int64        `json:"seeds"`
	Scores []float64      `json:"scores"`
	Mean   stats.Interval `json:"mean"`
}

// sidesOf divides a command line's runs at --; two need none.
func sidesOf(args []string, dash int) ([2][]string, error) {
	if dash < 0 && len(args) == 2 {
		dash = 1
	}
	if k := slices.IndexFunc(args, func(s string) bool { return strings.HasPrefix(s, "-") }); k >= 0 {
		return [2][]string{}, fmt.Errorf("%s stands behind --, where only runs do: give flags first", args[k])
	}
	if dash <= 0 || dash >= len(args) {
		return [2][]string{}, errors.New("say which runs are A and which are B: fulgur compare A... -- B..., or two runs")
	}
	return [2][]string{args[:dash], args[dash:]}, nil
}

// mixed names what runs of one side differ in, but for their seeds: there is then
// nothing that the side stands for.
func mixed(sides [2][]side, of [2][]string, part string) []string {
	var out []string
	for k, runs := range sides {
		for i := 1; i < len(runs); i++ {
			for _, d := range contrasts(runs[0], runs[i], part) {
				out = append(out, fmt.Sprintf("%s and %s, of one side, differ in %s", of[k][0], of[k][i], d.Key))
			}
			if slices.ContainsFunc(runs[:i], func(s side) bool { return s.file.Seed == runs[i].file.Seed }) {
				out = append(out, fmt.Sprintf("two runs of one side have seed %d: they are no two draws", runs[i].file.Seed))
			}
		}
	}
	return out
}

// overSeeds compares the scores of two sets of runs.
func (r *comparison) overSeeds(sides [2][]side, rows [2][]measured) error {
	var x seedComparison
	for k, to := range []*seedScores{&x.A, &x.B} {
		for i, s := range sides[k] {
			to.Seeds, to.Scores = append(to.Seeds, int64(s.file.Seed)), append(to.Scores, average(rows[k][i].rates))
		}
		if len(to.Seeds) < 2 {
			r.Refused = append(r.Refused, "one side has a single run: give each side two or more, or compare two runs")
			return nil
		}
		to.sort()
		to.Mean = stats.Spread(to.Scores)
	}
	x.Paired = slices.Equal(x.A.Seeds, x.B.Seeds)
	x.Difference = stats.Seeds(x.A.Scores, x.B.Scores, x.Paired)
	how := "Welch's interval over seeds"
	if x.Paired {
		how = "paired by seed"
	}
	d := x.Difference
	r.Seeds = &x
	r.Verdict = saysOf(d, fmt.Sprintf("%+.3f (95 %% %+.3f to %+.3f, %d and %d runs, %s, %d problems)", d.Value, d.Low, d.High, len(x.A.Seeds), len(x.B.Seeds), how, len(rows[0][0].rates)))
	return nil
}

// sort orders a side's runs by seed.
func (s *seedScores) sort() {
	order := make([]int, len(s.Seeds))
	for i := range order {
		order[i] = i
	}
	slices.SortFunc(order, func(a, b int) int { return int(s.Seeds[a] - s.Seeds[b]) })
	seeds, scores := slices.Clone(s.Seeds), slices.Clone(s.Scores)
	for i, k := range order {
		s.Seeds[i], s.Scores[i] = seeds[k], scores[k]
	}
}

func (x *seedComparison) print(w io.Writer, part string) {
	for _, s := range []struct {
		name string
		of   seedScores
	}{{"A", x.A}, {"B", x.B}} {
		var each []string
		for i, v := range s.of.Scores {
			each = append(each, fmt.Sprintf("%.3f (seed %d)", v, s.of.Seeds[i]))
		}
		fmt.Fprintf(w, "\n%s  %.3f (%.3f to %.3f)\t%s\t%s\t\n", s.name, s.of.Mean.Value, s.of.Mean.Low, s.of.Mean.High, strings.Join(each, ", "), part)
	}
}

// Ablation reads the runs of bench/ablation/run.sh and prints, for each level and
// for their difference, the final validation score with its 95 % interval over
// the seeds, and how rollouts fragmented; it draws the curves.
package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

var levels = []string{"rollout", "sample"}

// curve is one run: validation score by step, and how its rollouts fragmented.
type curve struct {
	steps         []int
	scores        []float64
	reward        []float64 // of training, by step
	whole, pieces float64   // share of rollouts that stayed one sample; samples a rollout
}

func (c curve) last() float64 { return c.scores[len(c.scores)-1] }

// area is the mean reward of training over all steps: how fast it learned.
func (c curve) area() float64 { m, _ := interval(c.reward); return m }

func main() {
	if len(os.Args) < 3 {
		fmt.Fprintln(os.Stderr, "usage: bench/ablation/run.sh, or go run ./bench/ablation FOLDER SEED…")
		os.Exit(2)
	}
	if err := report(os.Args[1], os.Args[2:]); err != nil {
		fmt.Fprintln(os.Stderr, "ablation:", err)
		os.Exit(1)
	}
}

func report(dir string, seeds []string) error {
	runs := map[string][]curve{}
	for _, seed := range seeds {
		for _, level := range levels {
			c, err := read(filepath.Join(dir, level+"-"+seed, "ablation", "metrics.jsonl"))
			if err != nil {
				return err
			}
			runs[level] = append(runs[level], c)
		}
	}
	fmt.Println("| level | final validation pass@1, by seed | mean (95 %) | mean training reward (95 %) | whole rollouts | samples a rollout |\n|---|---|---|---|---|---|")
	for _, level := range levels {
		var finals, areas, whole, pieces []float64
		var each []string
		for _, c := range runs[level] {
			finals, areas, whole, pieces = append(finals, c.last()), append(areas, c.area()), append(whole, c.whole), append(pieces, c.pieces)
			each = append(each, fmt.Sprintf("%.3f", c.last()))
		}
		f, fi := interval(finals)
		r, ri := interval(areas)
		w, _ := interval(whole)
		p, _ := interval(pieces)
		fmt.Printf("| %s | %s | %.3f ± %s | %.3f ± %s | %.0f %% | %.2f |\n", level, strings.Join(each, " "), f, width(fi), r, width(ri), 100*w, p)
	}
	var final, area []float64
	for i := range seeds {
		a, b := runs["rollout"][i], runs["sample"][i]
		final, area = append(final, a.last()-b.last()), append(area, a.area()-b.area())
	}
	f, fi := interval(final)
	r, ri := interval(area)
	fmt.Printf("\nrollout level minus sample level, paired by seed (%d): final %+.3f ± %s, training reward %+.3f ± %s. %s\n", len(seeds), f, width(fi), r, width(ri), verdict(f, fi))
	path := filepath.Join(dir, "ablation.svg")
	if err := os.WriteFile(path, draw(runs), 0o644); err != nil {
		return err
	}
	fmt.Println("plot:", path)
	return nil
}

// width writes half an interval; one seed has none.
func width(half float64) string {
	if math.IsInf(half, 0) {
		return "?"
	}
	return fmt.Sprintf("%.3f", half)
}

// verdict says what the interval of the difference allows to say.
func verdict(mean, half float64) string {
	switch {
	case math.IsInf(half, 0):
		return "One seed says nothing on the ordering."
	case mean-half > 0:
		return "The rollout level is ahead."
	case mean+half < 0:
		return "The sample level is ahead."
	}
	return "No ordering can be claimed: the interval holds 0."
}

// read takes a run's metrics.
func read(path string) (curve, error) {
	f, err := os.Open(path)
	if err != nil {
		return curve{}, err
	}
	defer f.Close()
	var c curve
	s := bufio.NewScanner(f)
	s.Buffer(nil, 1<<20)
	for s.Scan() {
		var raw map[string]any
		if err := json.Unmarshal(s.Bytes(), &raw); err != nil {
			return c, fmt.Errorf("%s: %w", path, err)
		}
		if v, ok := raw["train/reward"].(float64); ok {
			c.reward = append(c.reward, v)
			w, _ := raw["samples/whole_share"].(float64)
			p, _ := raw["samples/per_rollout"].(float64)
			c.whole, c.pieces = c.whole+w, c.pieces+p
		}
		if v, ok := raw["validation/pass@1"].(float64); ok {
			step, _ := raw["step"].(float64)
			c.steps, c.scores = append(c.steps, int(step)), append(c.scores, v)
		}
	}
	if n := float64(len(c.reward)); n > 0 {
		c.whole, c.pieces = c.whole/n, c.pieces/n
	}
	if len(c.scores) == 0 {
		err = errors.New(path + " has no validation: let VALIDATE_EVERY divide STEPS")
	}
	return c, errors.Join(err, s.Err())
}

// students has the 97.5 % points of Student's t, by degrees of freedom from 1 on.
var students = []float64{12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131}

// interval returns a mean and half its 95 % interval.
func interval(x []float64) (mean, half float64) {
	for _, v := range x {
		mean += v / float64(len(x))
	}
	if len(x) < 2 {
		return mean, math.Inf(1)
	}
	var ss float64
	for _, v := range x {
		ss += (v - mean) * (v - mean)
	}
	t := 1.96
	if d := len(x) - 2; d < len(students) {
		t = students[d]
	}
	return mean, t * math.Sqrt(ss/float64(len(x)-1)/float64(len(x)))
}

// draw makes an SVG: training reward by step as a mean over seeds with its
// interval, and the validations as points.
func draw(runs map[string][]curve) []byte {
	const w, height, left, top, right, bottom = 760, 340, 52, 34, 16, 44
	colors := map[string]string{"rollout": "#2f7ed8", "sample": "#d98324"}
	steps := 1
	for _, all := range runs {
		for _, c := range all {
			steps = max(steps, len(c.reward))
		}
	}
	x := func(step float64) float64 { return left + step/float64(steps)*(w-left-right) }
	y := func(v float64) float64 { return top + (1-min(max(v, 0), 1))*(height-top-bottom) }
	var out strings.Builder
	fmt.Fprintf(&out, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" width="%d" height="%d" font-family="system-ui, sans-serif" font-size="12"><rect width="%d" height="%d" fill="#fff"/>`, w, height, w, height, w, height)
	for _, v := range []float64{0, .2, .4, .6, .8, 1} {
		fmt.Fprintf(&out, `<line x1="%d" x2="%d" y1="%.1f" y2="%.1f" stroke="#e6e9ee"/><text x="%d" y="%.1f" text-anchor="end">%.1f</text>`, left, w-right, y(v), y(v), left-8, y(v)+4, v)
	}
	fmt.Fprintf(&out, `<text x="%d" y="%d">training step (0 to %d); lines: training reward, points: validation pass@1, bands: 95 %% over seeds</text>`, left, height-10, steps)
	for k, level := range levels {
		color := colors[level]
		fmt.Fprintf(&out, `<circle cx="%d" cy="16" r="5" fill="%s"/><text x="%d" y="20">%s level</text>`, left+6+150*k, color, left+16+150*k, level)
		var mean, high, low []string
		for s := range steps {
			var at []float64
			for _, c := range runs[level] {
				if s < len(c.reward) {
					at = append(at, c.reward[s])
				}
			}
			m, h := interval(at)
			mean = append(mean, fmt.Sprintf("%.1f,%.1f", x(float64(s+1)), y(m)))
			if !math.IsInf(h, 0) {
				high = append(high, fmt.Sprintf("%.1f,%.1f", x(float64(s+1)), y(m+h)))
				low = append(low, fmt.Sprintf("%.1f,%.1f", x(float64(s+1)), y(m-h)))
			}
		}
		slices.Reverse(low)
		fmt.Fprintf(&out, `<polygon points="%s" fill="%s" fill-opacity="0.15"/><polyline points="%s" fill="none" stroke="%s" stroke-width="2"/>`, strings.Join(append(high, low...), " "), color, strings.Join(mean, " "), color)
		for _, c := range runs[level] {
			for i, s := range c.steps {
				fmt.Fprintf(&out, `<circle cx="%.1f" cy="%.1f" r="2.5" fill="%s"/>`, x(float64(s)), y(c.scores[i]), color)
			}
		}
	}
	out.WriteString("</svg>\n")
	return []byte(out.String())
}

// Schedule reads the runs of bench/schedule/run.sh and prints, for each seed and
// together, optimizer steps per second and final score of both schedules.
package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"path/filepath"

	"github.com/fulgur-rl/fulgur/internal/trainer"
)

// warm is how many steps are left out of the speed: until then no schedule has
// its steady number of rollouts under way.
const warm = 6

// bar is by how much collocated is to be faster.
const bar = 2.2

// measured is one run.
type measured struct {
	steps, updates, passes, rollouts int
	seconds                          float64 // of the steps after the warm ones
	staleness, oldest                float64
}

func (m *measured) add(o measured) {
	m.steps += o.steps
	m.updates += o.updates
	m.passes += o.passes
	m.rollouts += o.rollouts
	m.seconds += o.seconds
	m.staleness += o.staleness
	m.oldest = max(m.oldest, o.oldest)
}

func (m *measured) rate() float64 { return float64(m.updates) / m.seconds }

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: bench/schedule/run.sh, or go run ./bench/schedule FOLDER")
		os.Exit(2)
	}
	if err := report(os.Args[1]); err != nil {
		fmt.Fprintln(os.Stderr, "schedule:", err)
		os.Exit(1)
	}
}

func report(dir string) error {
	fmt.Println("| seed | schedule | optimizer steps/s | s/step | test pass@1 (95 %) | staleness mean, max |")
	fmt.Println("|---|---|---|---|---|---|")
	total := map[string]*measured{"synchronous": {}, "collocated": {}}
	n := 0
	for seed := 1; ; seed++ {
		runs := map[string]measured{}
		for mode := range total {
			m, err := read(filepath.Join(dir, fmt.Sprintf("%s-%d", mode, seed), "calc-wait"))
			if errors.Is(err, fs.ErrNotExist) {
				break // no such run, or one that has not ended
			}
			if err != nil {
				return err
			}
			runs[mode] = m
		}
		if len(runs) < 2 {
			break
		}
		n++
		for _, mode := range []string{"synchronous", "collocated"} {
			m := runs[mode]
			line(fmt.Sprint(seed), mode, &m)
			total[mode].add(m)
		}
		s, c := runs["synchronous"], runs["collocated"]
		fmt.Printf("| %d | ratio | **%.2f** | | | |\n", seed, c.rate()/s.rate())
	}
	if n == 0 {
		return fmt.Errorf("%s holds no pair of runs", dir)
	}
	s, c := total["synchronous"], total["collocated"]
	c.staleness /= float64(n)
	line("all", "synchronous", s)
	line("all", "collocated", c)
	ratio := c.rate() / s.rate()
	fmt.Printf("\nspeed: %.2f times synchronous, bar %.1f: %s\n", ratio, bar, verdict(ratio >= bar))
	low, high := difference(s, c)
	fmt.Printf("score: collocated - synchronous is %+.3f, 95 %% [%+.3f, %+.3f]; the bar is that it holds 0 or lies above: %s\n",
		share(c)-share(s), low, high, verdict(high >= 0))
	return nil
}

func verdict(ok bool) string {
	if ok {
		return "pass"
	}
	return "MISS"
}

func share(m *measured) float64 { return float64(m.passes) / float64(m.rollouts) }

func line(seed, mode string, m *measured) {
	low, high := trainer.Wilson(m.passes, m.rollouts)
	stale := ""
	if mode == "collocated" {
		stale = fmt.Sprintf("%.1f, %.0f", m.staleness, m.oldest)
	}
	fmt.Printf("| %s | %s | %.2f | %.2f | %.3f (%.3f to %.3f) of %d | %s |\n", seed, mode, m.rate(), m.seconds/float64(m.steps), share(m), low, high, m.rollouts, stale)
}

// difference is the 95 % interval of the difference of two shares (normal).
func difference(s, c *measured) (low, high float64) {
	p, q := share(s), share(c)
	e := 1.96 * math.Sqrt(p*(1-p)/float64(s.rollouts)+q*(1-q)/float64(c.rollouts))
	return q - p - e, q - p + e
}

// read reads a run's folder.
func read(dir string) (measured, error) {
	var m measured
	f, err := os.Open(filepath.Join(dir, "metrics.jsonl"))
	if err != nil {
		return m, err
	}
	defer f.Close()
	in := bufio.NewScanner(f)
	in.Buffer(nil, 1<<20)
	for in.Scan() {
		var row struct {
			Step      int     `json:"step"`
			Updates   int     `json:"train/updates"`
			Rollout   float64 `json:"time/rollout"`
			Update    float64 `json:"time/update"`
			Staleness float64 `json:"staleness/mean"`
			Oldest    float64 `json:"staleness/max"`
		}
		if err := json.Unmarshal(in.Bytes(), &row); err != nil {
			return m, err
		}
		if row.Step > warm {
			m.steps++
			m.updates += row.Updates
			m.seconds += row.Rollout + row.Update
			m.staleness += row.Staleness
			m.oldest = max(m.oldest, row.Oldest)
		}
	}
	if err := in.Err(); err != nil {
		return m, err
	}
	if m.steps == 0 {
		return m, fmt.Errorf("%s has no more than %d steps", dir, warm)
	}
	m.staleness /= float64(m.steps)
	_, state, err := trainer.Last(dir)
	if err != nil {
		return m, err
	}
	if state.After == nil {
		return m, fmt.Errorf("%s was not measured at its end: %w", dir, fs.ErrNotExist)
	}
	m.passes, m.rollouts = state.After.Sampled.Passes, state.After.Sampled.Rollouts
	return m, nil
}

package plan

import (
	"testing"
	"time"
)

// Runs of every length of agents get the same slots, and none waits for ever.
func TestRunsShareSlotsFairly(t *testing.T) {
	for name, c := range map[string]struct {
		slots int
		lasts []int // ticks that an execution takes
		wants []int // at once, always
		share []float64
	}{
		"equal runs":                         {8, []int{5, 5}, []int{100, 100}, []float64{0.5, 0.5}},
		"one run's agents take longer":       {8, []int{50, 3}, []int{100, 100}, []float64{0.5, 0.5}},
		"what one does not want is free":     {8, []int{5, 5}, []int{1, 100}, []float64{0.125, 0.875}},
		"fewer slots than runs: all by turn": {2, []int{5, 5, 5}, []int{9, 9, 9}, []float64{0.333, 0.333, 0.333}},
	} {
		t.Run(name, func(t *testing.T) {
			runs := make([]Share, len(c.lasts))
			ends := make([][]int, len(runs)) // ticks at which executions end
			used := make([]float64, len(runs))
			var turn uint64
			for tick := range 3000 {
				total := 0
				for i := range runs {
					left := ends[i][:0]
					for _, at := range ends[i] {
						if at > tick {
							left = append(left, at)
						}
					}
					ends[i] = left
					runs[i].Running, runs[i].Wants = len(left), c.wants[i]-len(left)
					total += len(left)
				}
				for total < c.slots {
					i := Pick(runs)
					if i < 0 {
						break
					}
					turn++
					runs[i].Running++
					runs[i].Wants--
					runs[i].Turn = turn
					ends[i] = append(ends[i], tick+c.lasts[i])
					total++
				}
				for i := range runs {
					used[i] += float64(runs[i].Running) / float64(c.slots) / 3000
				}
			}
			for i, want := range c.share {
				if d := used[i] - want; d > 0.04 || d < -0.04 {
					t.Errorf("run %d had %.3f of the slots, want %.3f", i, used[i], want)
				}
			}
		})
	}
	if Pick([]Share{{Running: 3}}) != -1 {
		t.Error("a slot for a run that wants none")
	}
}

func TestPace(t *testing.T) {
	start := time.Unix(1_000_000, 0)
	for name, c := range map[string]struct {
		rate, early, minute int // at once, and within a minute from then
	}{
		"100 a minute": {100, 5, 105},
		"3 a minute":   {3, 1, 3}, // the one at the end of the minute is the next one's
		"6000":         {6000, 300, 6300},
	} {
		t.Run(name, func(t *testing.T) {
			p := Pace{PerMinute: c.rate}
			n, next := p.Allow(start, 1_000_000)
			if n != c.early {
				t.Fatalf("%d at once, want %d", n, c.early)
			}
			p.Took(start, n)
			total := n
			for next.Before(start.Add(time.Minute)) {
				if k, _ := p.Allow(next.Add(-time.Millisecond), 1); k != 0 && c.rate < 1000 {
					t.Fatalf("%d before %s", k, next)
				}
				k, _ := p.Allow(next, 1_000_000)
				if k < 1 {
					t.Fatalf("none at %s, though it was named", next)
				}
				p.Took(next, k)
				total += k
				_, next = p.Allow(next, 1_000_000)
			}
			if total < c.minute-1 || total > c.minute+1 {
				t.Errorf("%d within a minute, want %d", total, c.minute)
			}
			if k, _ := p.Allow(start.Add(time.Hour), 1_000_000); k != c.early {
				t.Errorf("%d at once after an idle hour", k)
			}
		})
	}
	if n, _ := (Pace{}).Allow(start, 7); n != 7 {
		t.Error("no limit is no limit")
	}
}

package stats

import (
	"math"
	"testing"
)

func near(a, b float64) bool { return math.Abs(a-b) < 1e-9 }

// pass@k and pass^k against counting all ways to take k of n runs.
func TestPassByCounting(t *testing.T) {
	for n := 1; n <= 8; n++ {
		for c := 0; c <= n; c++ {
			for k := 1; k <= n; k++ {
				any, all, sets := 0, 0, 0
				for set := range 1 << n {
					size, good := 0, 0
					for i := range n {
						if set>>i&1 == 1 {
							size++
							if i < c {
								good++
							}
						}
					}
					if size != k {
						continue
					}
					sets++
					if good > 0 {
						any++
					}
					if good == k {
						all++
					}
				}
				task := Task{n, c}
				if !near(task.PassAny(k), float64(any)/float64(sets)) || !near(task.PassAll(k), float64(all)/float64(sets)) {
					t.Errorf("n %d, c %d, k %d: %g and %g, want %d and %d of %d", n, c, k, task.PassAny(k), task.PassAll(k), any, all, sets)
				}
			}
		}
	}
}

func TestFlips(t *testing.T) {
	for _, c := range []struct {
		task Task
		want float64
	}{{Task{1, 1}, 0}, {Task{2, 1}, 1}, {Task{4, 2}, 2.0 / 3}, {Task{4, 4}, 0}, {Task{4, 1}, 0.5}} {
		if got := c.task.Flips(); !near(got, c.want) {
			t.Errorf("%v: %g, want %g", c.task, got, c.want)
		}
	}
}

func TestOneRunIsWilson(t *testing.T) {
	var tasks []Task
	for i := range 40 {
		tasks = append(tasks, Task{1, i % 4 / 3})
	}
	s := Summarise(tasks)
	low, high := Wilson(0.25, 40)
	if !near(s.Pass.Value, 0.25) || !near(s.Pass.Low, low) || !near(s.Pass.High, high) || s.FlipRate.Value != 0 || s.Unstable != 0 {
		t.Errorf("got %+v, want %g to %g", s, low, high)
	}
}

// Eight runs of tasks that always come out alike are no more than one run each;
// of tasks that are coins they are eight.
func TestRunsOfATaskAreNotIndependent(t *testing.T) {
	var alike, coins []Task
	for i := range 20 {
		alike = append(alike, Task{8, 8 * (i % 2)})
		coins = append(coins, Task{8, 4})
	}
	a, c := Summarise(alike), Summarise(coins)
	low, high := Wilson(0.5, 20)
	if !near(a.Pass.Low, low) || !near(a.Pass.High, high) {
		t.Errorf("alike: %+v", a.Pass)
	}
	if w := c.Pass.High - c.Pass.Low; w > (high-low)/2 || w < (high-low)/4 {
		t.Errorf("coins: %+v", c.Pass)
	}
	if a.FlipRate.Value != 0 || a.PassAny.Value != 0.5 || a.PassAll.Value != 0.5 || c.PassAny.Value != 1 || c.PassAll.Value != 0 || c.Unstable != 20 {
		t.Errorf("alike %+v, coins %+v", a, c)
	}
}

func TestStudent(t *testing.T) {
	for df, want := range map[int]float64{1: 12.706, 2: 4.303, 3: 3.182, 4: 2.776, 5: 2.571, 10: 2.228, 30: 2.042, 1000: 1.962} {
		if got := student(df); math.Abs(got-want) > 0.01 {
			t.Errorf("t of %d is %g, want %g", df, got, want)
		}
	}
}

func TestPaired(t *testing.T) {
	a := []float64{0, 0, 0, 1, 1, 0, 0, 0, 1, 0}
	b := []float64{1, 1, 1, 1, 1, 1, 1, 0, 1, 1}
	d := Paired(a, b)
	if !d.Shown() || d.Won != 6 || d.Lost != 0 || !near(d.P, 2.0/64) || !near(d.Value, 0.6) {
		t.Errorf("got %+v", d)
	}
	if d = Paired(a, a); d.Shown() || d.Value != 0 || d.P != 1 || d.High != 0.3 {
		t.Errorf("the same twice: %+v", d)
	}
	if d = Paired([]float64{0}, []float64{1}); d.Shown() {
		t.Errorf("one task: %+v", d)
	}
	if d = Paired(nil, nil); d.Shown() || d.Value != 0 {
		t.Errorf("none: %+v", d)
	}
}

func TestSpread(t *testing.T) {
	if s := Spread([]float64{0.5, 0.7, 0.6}); !near(s.Value, 0.6) || math.Abs(s.High-s.Value-0.2484) > 1e-3 {
		t.Errorf("got %+v", s)
	}
	if s := Spread([]float64{0.5}); s.Low != 0.5 || s.High != 0.5 {
		t.Errorf("one seed: %+v", s)
	}
}

func TestSeedsAreComparedInPairsOrAsTwoSamples(t *testing.T) {
	a, b := []float64{.80, .84, .82, .86}, []float64{.83, .86, .86, .89}
	for name, c := range map[string]struct {
		a, b   []float64
		paired bool
		want   Interval
	}{ // by hand, with t(3) = 3.18245 and, for 5.98 degrees of freedom rounded down, t(5) = 2.57058
		"in pairs":                      {a, b, true, Interval{.03, .03 - .012992, .03 + .012992}},
		"as two samples":                {a, b, false, Interval{.03, .03 - .045744, .03 + .045744}},
		"one run a side says nothing":   {a[:1], b[:1], true, Interval{.03, -1, 1}},
		"equal scores have no interval": {[]float64{.5, .5}, []float64{.5, .5}, false, Interval{}},
	} {
		got := Seeds(c.a, c.b, c.paired)
		for _, x := range [][2]float64{{got.Value, c.want.Value}, {got.Low, c.want.Low}, {got.High, c.want.High}} {
			if math.Abs(x[0]-x[1]) > 1e-4 {
				t.Errorf("%s: %+v, want %+v", name, got, c.want)
				break
			}
		}
	}
}

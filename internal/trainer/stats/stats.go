// Package stats is the arithmetic of evaluations: how often a policy solves a
// task, how sure that is when each task was tried several times, and whether one
// policy is better than another on the same tasks.
package stats

import "math"

// z95 is the 97.5 % quantile of the normal distribution.
const z95 = 1.959963984540054

// Interval is a value with its 95 % confidence interval.
type Interval struct {
	Value float64 `json:"value"`
	Low   float64 `json:"low"`
	High  float64 `json:"high"`
}

// Wilson returns the 95 % interval of a rate p of n trials (Wilson 1927); 0 to 1
// if n is 0. n need not be whole: an effective number of trials.
func Wilson(p, n float64) (low, high float64) {
	if n <= 0 {
		return 0, 1
	}
	center := (p + z95*z95/(2*n)) / (1 + z95*z95/n)
	half := z95 / (1 + z95*z95/n) * math.Sqrt(p*(1-p)/n+z95*z95/(4*n*n))
	return max(0, center-half), min(1, center+half)
}

// Task is one row of an evaluation: how many runs it had, and how many passed.
type Task struct {
	Runs   int
	Passes int
}

// PassAny is pass@k of a task: the probability that at least one of k runs passes,
// estimated without bias from its n >= k runs (Chen et al. 2021):
// 1 - C(n-c, k)/C(n, k).
func (t Task) PassAny(k int) float64 { return 1 - ratio(t.Runs-t.Passes, t.Runs, k) }

// PassAll is pass^k of a task: the probability that k runs all pass (Yao et al.
// 2024, τ-bench): C(c, k)/C(n, k).
func (t Task) PassAll(k int) float64 { return ratio(t.Passes, t.Runs, k) }

// Flips is the probability that two runs of a task come out differently, without
// bias: 2c(n-c)/(n(n-1)); 0 for a single run.
func (t Task) Flips() float64 {
	if t.Runs < 2 {
		return 0
	}
	n, c := float64(t.Runs), float64(t.Passes)
	return 2 * c * (n - c) / (n * (n - 1))
}

// ratio is C(a, k)/C(n, k), a <= n, as a product that does not overflow.
func ratio(a, n, k int) float64 {
	if k > a {
		return 0
	}
	r := 1.0
	for i := range k {
		r *= float64(a-i) / float64(n-i)
	}
	return r
}

// Summary is what k runs of each task say.
type Summary struct {
	Tasks    int      `json:"tasks"`
	Runs     int      `json:"runs"`     // of each task: k
	Pass     Interval `json:"pass@1"`   // mean over tasks
	PassAny  Interval `json:"pass@k"`   // at least one of k
	PassAll  Interval `json:"pass^k"`   // all of k
	FlipRate Interval `json:"flips"`    // two runs of a task differ
	Unstable int      `json:"unstable"` // tasks that passed sometimes
}

// Summarise needs at least one run of each task; k is the least number of runs
// that a task has. Runs of one task are not independent, so the intervals are over
// tasks: Wilson's, with as many trials as have the variance of the mean over
// tasks. With one run a task that is the plain Wilson interval.
func Summarise(tasks []Task) Summary {
	s := Summary{Tasks: len(tasks)}
	var all [4][]float64
	for i, t := range tasks {
		if i == 0 || t.Runs < s.Runs {
			s.Runs = t.Runs
		}
	}
	for _, t := range tasks {
		all[0] = append(all[0], float64(t.Passes)/float64(t.Runs))
		all[1] = append(all[1], t.PassAny(s.Runs))
		all[2] = append(all[2], t.PassAll(s.Runs))
		all[3] = append(all[3], t.Flips())
		if t.Passes > 0 && t.Passes < t.Runs {
			s.Unstable++
		}
	}
	s.Pass, s.PassAny, s.PassAll, s.FlipRate = Rate(all[0], s.Runs), Rate(all[1], 1), Rate(all[2], 1), Rate(all[3], 1)
	return s
}

// Rate is the mean of rates of tasks (each 0 to 1) with its interval. runs is how
// many independent trials a task can stand for at most.
func Rate(tasks []float64, runs int) Interval {
	n := float64(len(tasks))
	p := mean(tasks)
	if n == 0 {
		low, high := Wilson(0, 0)
		return Interval{0, low, high}
	}
	trials := n // all or none passed: as many as there are tasks
	if most := n * float64(max(1, runs)); p > 0 && p < 1 {
		trials = min(most, p*(1-p)*n/variance(tasks, p))
	}
	low, high := Wilson(p, trials)
	return Interval{p, low, high}
}

func mean(x []float64) float64 {
	if len(x) == 0 {
		return 0
	}
	sum := 0.0
	for _, v := range x {
		sum += v
	}
	return sum / float64(len(x))
}

// variance of a sample around its mean, divided by n: for rates of single runs it
// is p(1-p).
func variance(x []float64, mean float64) float64 {
	sum := 0.0
	for _, v := range x {
		sum += (v - mean) * (v - mean)
	}
	return sum / float64(len(x))
}

// Difference is b - a on the same tasks.
type Difference struct {
	Interval
	Tasks int     `json:"tasks"`
	Won   int     `json:"b_better"` // tasks on which b's rate is higher
	Lost  int     `json:"a_better"`
	P     float64 `json:"p"` // of the sign test: so many or more on one side by chance
}

// Shown says whether the interval leaves 0 out.
func (d Difference) Shown() bool { return d.Low > 0 || d.High < 0 }

// Paired compares rates of the same tasks in the same order. The interval is
// Student's on the tasks' differences; with fewer than two tasks it is -1 to 1.
func Paired(a, b []float64) Difference {
	d := Difference{Tasks: len(a), Interval: Interval{Low: -1, High: 1}, P: 1}
	diffs := make([]float64, len(a))
	for i := range a {
		diffs[i] = b[i] - a[i]
		switch {
		case diffs[i] > 0:
			d.Won++
		case diffs[i] < 0:
			d.Lost++
		}
	}
	d.Value = mean(diffs)
	if len(diffs) < 2 {
		return d
	}
	half := margin(diffs, d.Value)
	if half == 0 && d.Value == 0 { // no task differs: as sure as one in n
		half = min(1, 3/float64(len(diffs))) // the rule of three
	}
	d.Low, d.High = max(-1, d.Value-half), min(1, d.Value+half)
	d.P = sign(d.Won, d.Lost)
	return d
}

// sign is the two-sided p of the sign test.
func sign(won, lost int) float64 {
	n, k := won+lost, min(won, lost)
	if n == 0 {
		return 1
	}
	sum := 0.0
	for i := 0; i <= k; i++ {
		sum += math.Exp(logChoose(n, i) - float64(n)*math.Ln2)
	}
	return min(1, 2*sum)
}

func logChoose(n, k int) float64 {
	lg := func(x int) float64 { v, _ := math.Lgamma(float64(x) + 1); return v }
	return lg(n) - lg(k) - lg(n-k)
}

// student is the 97.5 % quantile of Student's t with so many degrees of freedom,
// by Cornish-Fisher's series (Abramowitz and Stegun 26.7.5); of 1 and 2 exactly.
func student(df int) float64 {
	switch {
	case df < 1:
		return math.Inf(1)
	case df == 1:
		return 12.706204736432095
	case df == 2:
		return 4.302652729911275
	}
	z, n := z95, float64(df)
	z2 := z * z
	return z + z*(z2+1)/(4*n) + z*(5*z2*z2+16*z2+3)/(96*n*n) +
		z*(3*z2*z2*z2+19*z2*z2+17*z2-15)/(384*n*n*n) + z*(79*z2*z2*z2*z2+776*z2*z2*z2+1482*z2*z2-1920*z2-945)/(92160*n*n*n*n)
}

// margin is half of Student's 95 % interval of the mean of at least two values.
func margin(values []float64, mean float64) float64 {
	return student(len(values)-1) * math.Sqrt(variance(values, mean)/float64(len(values)-1))
}

// Spread is the mean over seeds with Student's interval; Low and High are the
// value with fewer than two.
func Spread(values []float64) Interval {
	m := mean(values)
	if len(values) < 2 {
		return Interval{m, m, m}
	}
	half := margin(values, m)
	return Interval{m, m - half, m + half}
}

// Seeds compares the scores of two sets of runs, b - a. Runs with one seed on both
// sides are compared in pairs (Student's interval on the differences); else the
// interval is Welch's. Each side needs two runs: with fewer it is -1 to 1.
func Seeds(a, b []float64, paired bool) Interval {
	d := Interval{Value: mean(b) - mean(a), Low: -1, High: 1}
	if len(a) < 2 || len(b) < 2 {
		return d
	}
	var half float64
	if paired {
		diffs := make([]float64, len(a))
		for i := range a {
			diffs[i] = b[i] - a[i]
		}
		half = margin(diffs, d.Value)
	} else {
		na, nb := float64(len(a)), float64(len(b))
		va, vb := variance(a, mean(a))/(na-1), variance(b, mean(b))/(nb-1) // of the means
		if va+vb > 0 {
			df := (va + vb) * (va + vb) / (va*va/(na-1) + vb*vb/(nb-1)) // Welch and Satterthwaite
			half = student(int(df)) * math.Sqrt(va+vb)
		}
	}
	d.Low, d.High = max(-1, d.Value-half), min(1, d.Value+half)
	return d
}

package sim

import (
	"cmp"
	"math"
	"slices"
)

// Served is a model call that was seen: from when to when, in seconds, and how
// many tokens it sampled.
type Served struct{ Start, End, Tokens float64 }

// Fit finds Peak and Half of the throughput X(b) = Peak·b/(b+Half) of calls that
// were seen: b/X(b) is linear in b, fitted by least squares over the time spent
// at each b. A stretch of more than still seconds in which calls are in flight
// and none ends (an update holds them) is left out; 0: none is. Where the calls
// say nothing on how throughput grows, Half is 0 and Peak what was seen.
func Fit(calls []Served, still float64) (peak, half float64) {
	time, tokens := loads(withoutHolds(calls, still))
	var w, sb, sy, sbb, sby, seen, all float64
	for b, t := range time {
		if b == 0 || t <= 0 || tokens[b] <= 0 {
			continue
		}
		x, y := float64(b), float64(b)*t/tokens[b]
		w, sb, sy, sbb, sby = w+t, sb+t*x, sy+t*y, sbb+t*x*x, sby+t*x*y
		seen, all = seen+t, all+tokens[b]
	}
	if seen == 0 {
		return 0, 0
	}
	slope := (w*sby - sb*sy) / (w*sbb - sb*sb)
	at0 := (sy - slope*sb) / w
	if !(slope > 0) || math.IsInf(slope, 0) || !(at0 > 0) {
		return all / seen, 0
	}
	return 1 / slope, at0 / slope
}

// loads says for each number of calls in flight how long there were so many, and
// how many tokens were sampled meanwhile, if each call samples evenly.
func loads(calls []Served) (time, tokens []float64) {
	type edge struct {
		at, rate float64
		n        int
	}
	var edges []edge
	for _, c := range calls {
		if d := c.End - c.Start; d > 0 && c.Tokens > 0 {
			edges = append(edges, edge{c.Start, c.Tokens / d, 1}, edge{c.End, -c.Tokens / d, -1})
		}
	}
	slices.SortFunc(edges, func(x, y edge) int { return cmp.Or(cmp.Compare(x.at, y.at), x.n-y.n) })
	b, rate := 0, 0.0
	for i, e := range edges {
		if i > 0 {
			for len(time) <= b {
				time, tokens = append(time, 0), append(tokens, 0)
			}
			d := e.at - edges[i-1].at
			time[b] += d
			tokens[b] += d * max(0, rate)
		}
		b, rate = b+e.n, rate+e.rate
	}
	return time, tokens
}

// withoutHolds takes the stretches in which no call ends out of the clock.
func withoutHolds(calls []Served, still float64) []Served {
	if still <= 0 || len(calls) == 0 {
		return calls
	}
	ends := make([]float64, len(calls))
	first := math.Inf(1)
	for i, c := range calls {
		ends[i], first = c.End, min(first, c.Start)
	}
	slices.Sort(ends)
	var from, to, before []float64 // of each stretch, and what lies in those before it
	last, sum := first, 0.0
	for _, e := range ends {
		if e-last > still {
			from, to, before = append(from, last), append(to, e), append(before, sum)
			sum += e - last
		}
		last = e
	}
	clock := func(t float64) float64 {
		i, _ := slices.BinarySearch(to, t) // stretches that ended before t
		out := 0.0
		if i > 0 {
			out = before[i-1] + to[i-1] - from[i-1]
		}
		if i < len(from) && t > from[i] {
			out += t - from[i]
		}
		return t - out
	}
	moved := make([]Served, len(calls))
	for i, c := range calls {
		moved[i] = Served{clock(c.Start), clock(c.End), c.Tokens}
	}
	return moved
}

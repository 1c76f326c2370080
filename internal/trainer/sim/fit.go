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
// were seen: with b(t) in flight a call should sample the integral of
// Peak/(b(t)+Half) over its time, and Half is where that is nearest to what all
// calls did (least squares). Holds, in order and apart, are when calls stood
// still (updates): they are taken out of the clock.
// Where the calls say nothing on how throughput grows, Half is 0 and Peak what
// was seen; without calls both are 0. The first and the last tenth of the calls
// only count as load: others that were in flight then may not have been seen.
func Fit(calls []Served, holds []Hold) (peak, half float64) {
	l := newLoad(withoutHolds(calls, holds))
	best := math.Inf(1)
	for k := -1; k < 48; k++ {
		h := 0.0
		if k >= 0 {
			h = .25 * math.Pow(2, float64(k)/4) // up to 860
		}
		p, off := l.fit(h)
		if off < best*(1-1e-9) {
			best, peak, half = off, p, h
		}
	}
	return peak, half
}

// load is how many calls were in flight, over time.
type load struct {
	tokens     []float64 // of each call, by start
	start, end []int     // edges of each call
	from, to   int       // the calls that are fitted
	time       []float64 // from each edge to the next
	flying     []int     // calls in flight then
}

func newLoad(calls []Served) load {
	type edge struct {
		at   float64
		call int // below 0: its end
	}
	var l load
	var edges []edge
	calls = slices.Clone(calls)
	slices.SortFunc(calls, func(x, y Served) int { return cmp.Or(cmp.Compare(x.Start, y.Start), cmp.Compare(x.End, y.End)) })
	for _, c := range calls {
		if c.End > c.Start && c.Tokens > 0 {
			l.tokens = append(l.tokens, c.Tokens)
			n := len(l.tokens)
			edges = append(edges, edge{c.Start, n}, edge{c.End, -n})
		}
	}
	slices.SortFunc(edges, func(x, y edge) int { return cmp.Or(cmp.Compare(x.at, y.at), x.call-y.call) })
	l.from, l.to = len(l.tokens)/10, len(l.tokens)-len(l.tokens)/10
	l.start, l.end = make([]int, len(l.tokens)), make([]int, len(l.tokens))
	b := 0
	for i, e := range edges {
		if e.call > 0 {
			l.start[e.call-1] = i
			b++
		} else {
			l.end[-e.call-1] = i
			b--
		}
		d := 0.0
		if i+1 < len(edges) {
			d = edges[i+1].at - e.at
		}
		l.time, l.flying = append(l.time, d), append(l.flying, b)
	}
	return l
}

// fit returns the peak that goes with a half, by which all calls together sample
// what they did, and how far single calls are off, as a sum of squares.
func (l load) fit(half float64) (peak, off float64) {
	served := make([]float64, len(l.time)+1) // per unit of peak, up to each edge
	for i, d := range l.time {
		served[i+1] = served[i]
		if l.flying[i] > 0 {
			served[i+1] += d / (float64(l.flying[i]) + half)
		}
	}
	var tokens, all float64
	for i := l.from; i < l.to; i++ {
		tokens += l.tokens[i]
		all += served[l.end[i]] - served[l.start[i]]
	}
	if all <= 0 {
		return 0, 0
	}
	peak = tokens / all
	for i := l.from; i < l.to; i++ {
		d := l.tokens[i] - peak*(served[l.end[i]]-served[l.start[i]])
		off += d * d
	}
	return peak, off
}

// Hold is a stretch in which calls stood still, in seconds: from Pause on new
// ones waited, from From on also those that had been in flight.
type Hold struct{ Pause, From, To float64 }

// withoutHolds takes holds out of the clock.
func withoutHolds(calls []Served, holds []Hold) []Served {
	before := make([]float64, len(holds)+1) // held time up to the start of each
	for i, h := range holds {
		before[i+1] = before[i] + h.To - h.From
	}
	clock := func(t float64) float64 {
		i, _ := slices.BinarySearchFunc(holds, t, func(h Hold, t float64) int { return cmp.Compare(h.To, t) })
		held := before[i] // of those that ended before t
		if i < len(holds) && t > holds[i].From {
			held += t - holds[i].From
		}
		return t - held
	}
	moved := make([]Served, len(calls))
	for i, c := range calls {
		k, _ := slices.BinarySearchFunc(holds, c.Start, func(h Hold, t float64) int { return cmp.Compare(h.From, t) })
		if k < len(holds) && c.Start >= holds[k].Pause {
			c.Start = holds[k].From
		}
		moved[i] = Served{clock(c.Start), clock(c.End), c.Tokens}
	}
	return moved
}

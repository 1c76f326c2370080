package embedded

import (
	"cmp"
	"math"
	"slices"

	"github.com/fulgur-rl/fulgur/internal/engine"
	"github.com/fulgur-rl/fulgur/internal/engine/embedded/kernel"
)

// sample is a token and its log prob; bad says that the logits were not finite.
type sample struct {
	id  int32
	lp  float32
	bad bool
}

// uniform returns the random number of the t-th token of a call, in [0, 1): two
// rounds of SplitMix64 (Steele et al. 2014) over seed and t, so that it depends on
// nothing else.
func uniform(seed uint64, t int) float64 {
	x := mix(mix(seed+0x9e3779b97f4a7c15) + uint64(t)*0x9e3779b97f4a7c15)
	return float64(x>>11) / (1 << 53)
}

func mix(x uint64) uint64 {
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

// picker samples from logits.
type picker struct{ ids []int32 }

// sample picks the t-th token of a request. prob is scratch of the logits'
// length. Top-k is applied before top-p, as vLLM does.
func (p *picker) sample(k kernel.Set, logits, prob []float32, req *engine.GenerateRequest, t int) sample {
	top := k.Max(logits)
	inv := float32(1)
	if req.Temperature > 0 {
		inv = float32(1 / req.Temperature)
	}
	sum := float64(k.Exp(prob, logits, inv, top*inv))
	id := 0
	switch {
	case math.IsNaN(sum) || math.IsInf(float64(top), 0):
		return sample{bad: true}
	case req.Temperature == 0:
		id = slices.Index(logits, top)
	case req.TopK > 0 && req.TopK < len(prob) || req.TopP > 0 && req.TopP < 1:
		id = p.cut(prob, sum, req, uniform(req.Seed, t))
	default:
		id = draw(prob, sum*uniform(req.Seed, t))
	}
	lp := float64(logits[id]-top)*float64(inv) - math.Log(sum)
	return sample{id: int32(id), lp: float32(lp)}
}

// draw returns the first id at which the running sum of prob exceeds u.
func draw(prob []float32, u float64) int {
	c := 0.0
	for i, v := range prob {
		if c += float64(v); c > u {
			return i
		}
	}
	return len(prob) - 1
}

// cut draws among the most likely ids.
func (p *picker) cut(prob []float32, sum float64, req *engine.GenerateRequest, u float64) int {
	p.ids = p.ids[:0]
	floor := 0.0
	if req.TopP > 0 && req.TopP < 1 && req.TopK == 0 {
		// Ids below this have less than 1-TopP of the mass together.
		floor = (1 - req.TopP) * sum / float64(len(prob)) / 2
	}
	for i, v := range prob {
		if float64(v) >= floor {
			p.ids = append(p.ids, int32(i))
		}
	}
	slices.SortStableFunc(p.ids, func(a, b int32) int { return cmp.Compare(prob[b], prob[a]) })
	if req.TopK > 0 && req.TopK < len(p.ids) {
		p.ids = p.ids[:req.TopK]
		sum = 0
		for _, i := range p.ids {
			sum += float64(prob[i])
		}
	}
	mass := sum
	if req.TopP > 0 && req.TopP < 1 {
		n := 0
		mass = 0
		for n < len(p.ids) && mass < req.TopP*sum {
			mass += float64(prob[p.ids[n]])
			n++
		}
		p.ids = p.ids[:n]
	}
	c := 0.0
	for _, i := range p.ids {
		if c += float64(prob[i]); c > u*mass {
			return int(i)
		}
	}
	return int(p.ids[len(p.ids)-1])
}

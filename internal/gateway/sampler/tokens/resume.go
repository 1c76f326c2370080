package tokens

import (
	"math"
	"slices"

	"github.com/fulgur-rl/fulgur"
	"github.com/fulgur-rl/fulgur/internal/engine"
	"github.com/fulgur-rl/fulgur/internal/gateway/call"
)

// Resumes implements sampler.Resumer: tokens go on from tokens.
func (s *Sampler) Resumes() bool { return true }

// resume takes the tokens that a call had when it was cut off, without showing
// them again, and returns the request for what is left of it; done says why
// nothing is. What is read of the reply comes out as if it had not been cut.
func (w *writer) resume(r *call.Result, req engine.GenerateRequest) (left engine.GenerateRequest, done string) {
	n := len(r.SampledIDs)
	if n == 0 {
		return req, ""
	}
	emit := w.emit
	w.emit = nil
	next, version := 0, fulgur.PolicyVersion(0)
	for i, id := range r.SampledIDs {
		for next < len(r.Spans) && r.Spans[next].Start <= i {
			version = r.Spans[next].Version
			next++
		}
		t := engine.Token{ID: id, LogProb: float32(math.NaN()), Version: version}
		if i < len(r.LogProbs) {
			t.LogProb = r.LogProbs[i]
		}
		if w.token(t) != nil { // errStopped: a stop string was the last that it said
			done = "stop"
		}
	}
	w.emit, w.first = emit, false
	switch {
	case slices.Contains(req.StopIDs, r.SampledIDs[n-1]):
		done = "stop"
	case done == "" && req.MaxTokens > 0 && n >= req.MaxTokens:
		done = "length"
	}
	req.Prompt = append(req.Prompt[:len(req.Prompt):len(req.Prompt)], r.SampledIDs...)
	if req.MaxTokens > 0 {
		req.MaxTokens -= n
	}
	req.Seed = seedFrom(req.Seed, n)
	return req, done
}

// seedFrom makes the seed of the tokens from position n on: with the call's own,
// they would be drawn by the numbers that drew its first ones.
func seedFrom(seed uint64, n int) uint64 {
	x := seed + uint64(n)*0x9e3779b97f4a7c15 // splitmix64 (Steele, Lea, Flood 2014)
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return (x ^ x>>31) & math.MaxInt64
}

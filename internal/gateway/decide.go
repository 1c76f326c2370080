package gateway

import (
	"hash/fnv"
	"math"
	"net/http"

	"github.com/fulgur-rl/fulgur"
	"github.com/fulgur-rl/fulgur/internal/gateway/call"
	"github.com/fulgur-rl/fulgur/internal/gateway/sampler"
)

// decision is what a call is sampled with, and how that differs from what the
// run trains on.
type decision struct {
	sampling    fulgur.Sampling
	force       bool // the temperature is not the client's
	cap         int  // most tokens, 0: none
	offContract bool
	frozen      bool // not the policy answers
	// cut: top-p and top-k are not the client's either. neutral names the client's
	// other parameters that are left out. forced names all that were replaced.
	cut     bool
	neutral []string
	forced  []string
}

// decide fixes a call's sampling. A run fixes the temperature and caps the
// tokens. The harness's other wishes that make the distribution another one than
// the run trains on are honoured and mark the call, or are replaced, as the run
// says (sampling.enforce). Where no run fixes anything, the server's temperature
// of the mode is forced, as v1 does. A model that is not the policy is sampled as
// the client wishes.
func decide(req *call.Request, t *target, index int, opts *Options) decision {
	w, spec := req.Wishes, t.spec
	if t.frozen() {
		spec = nil
	}
	d := decision{sampling: fulgur.Sampling{Temperature: 1, Stop: w.Stop}, frozen: t.frozen()}
	s := &d.sampling
	if w.Temperature != nil {
		s.Temperature = *w.Temperature
	}
	if w.TopP != nil {
		s.TopP = *w.TopP
	}
	if w.TopK != nil && *w.TopK > 0 {
		s.TopK = *w.TopK
	}
	if w.MaxTokens != nil {
		s.MaxTokens = *w.MaxTokens
	}
	switch {
	case spec == nil:
		if w.Seed != nil {
			s.Seed = uint64(*w.Seed) & math.MaxInt64
		}
	case spec.Sampling != nil:
		fixed := spec.Sampling
		s.Temperature, d.force = fixed.Temperature, true
		if d.cap = fixed.MaxTokens; d.cap > 0 && (s.MaxTokens == 0 || s.MaxTokens > d.cap) {
			s.MaxTokens = d.cap
		}
		if w.TopP == nil {
			s.TopP = fixed.TopP
		}
		if w.TopK == nil {
			s.TopK = fixed.TopK
		}
		d.contract(t, &w, fixed.TopP, fixed.TopK)
	default:
		forced := opts.ValTemperature
		if t.mode == fulgur.ModeTrain {
			forced = opts.TrainTemperature
		}
		if forced != nil {
			s.Temperature, d.force = *forced, true
		}
		d.contract(t, &w, 1, 0)
	}
	if spec != nil {
		if spec.Greedy {
			s.Temperature, d.force = 0, true
		}
		s.Seed = callSeed(spec, index)
	}
	if d.force && w.Temperature != nil && *w.Temperature != s.Temperature {
		d.forced = append(d.forced, "temperature")
	}
	if t.enforced() && spec != nil {
		d.neutral = w.Others
		d.forced = append(d.forced, w.Others...)
	} else {
		s.Others = w.Others
		d.offContract = d.offContract || len(w.Others) > 0
	}
	// A server may take what the gateway could not read ("0.5" for 0.5): nobody
	// knows then what it sampled with.
	d.offContract = d.offContract || len(req.Constrained) > 0 || req.Invalid != nil
	return d
}

// contract holds top-p and top-k to the run's: by force, or by a mark. What the
// run fixes and the client leaves open goes upstream in any case.
func (d *decision) contract(t *target, w *call.Wishes, topP float64, topK int) {
	s := &d.sampling
	p, k := !sameCut(s.TopP, topP), s.TopK != topK
	if t.enforced() {
		if p {
			s.TopP, d.forced = topP, append(d.forced, "top_p")
		}
		if k {
			s.TopK, d.forced = topK, append(d.forced, "top_k")
		}
		d.cut = p || k
	} else {
		d.offContract = p || k
	}
	d.cut = d.cut || w.TopP == nil && !sameCut(s.TopP, 1) || w.TopK == nil && s.TopK != 0
}

// enforced says whether the run forces its sampling on all its calls.
func (t *target) enforced() bool { return t.rules != nil && t.rules.force }

// sameCut compares two top-p values; 0 and 1 are both off.
func sameCut(a, b float64) bool {
	off := func(p float64) float64 {
		if p <= 0 || p >= 1 {
			return 1
		}
		return p
	}
	return off(a) == off(b)
}

// callSeed makes a call's random numbers a function of its rollout and its
// place in it, so that a run repeats: also when a killed attempt is run again,
// which is why the attempt is no part of it. A seed that a harness sends is not
// used: with it, all members of a group would be the same. It has 63 bits, what
// model servers take.
func callSeed(spec *fulgur.RolloutSpec, index int) uint64 {
	x := spec.Seed
	if x == 0 {
		h := fnv.New64a()
		_, _ = h.Write([]byte(spec.ID))
		x = h.Sum64()
	}
	// splitmix64 (Steele, Lea, Flood 2014) at position index+1
	x += (uint64(index) + 1) * 0x9e3779b97f4a7c15
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return (x ^ x>>31) & math.MaxInt64
}

// sentinel is what some servers write in place of a log prob that is -inf.
const sentinel = -9999

// untrainableNoFinish: the answer came whole, but does not say how it ended, so
// it may have been cut.
const untrainableNoFinish = "no_finish_reason"

// judge says why a call may not train: nil if it may.
// vocabulary is the number of the policy's ids; 0: not known.
func judge(o *call.Order, res *call.Result, err error, dec decision, c *fulgur.Call, vocabulary int) []string {
	var out []string
	if c.Mode != fulgur.ModeTrain {
		out = append(out, fulgur.UntrainableMode)
	}
	cancelled := c.Fate == fulgur.FateLeft || fulgur.KindOf(err) == fulgur.KindCanceled
	switch {
	case cancelled:
		out = append(out, fulgur.UntrainableAborted)
	case err != nil || res.Status >= 300 || res.Fault != "":
		if contextFull(res, err) {
			out = append(out, fulgur.UntrainableContext)
		}
		out = append(out, fulgur.UntrainableError)
	case res.Finish == "":
		out = append(out, untrainableNoFinish)
	}
	if dec.frozen {
		out = append(out, fulgur.UntrainableFrozen)
	}
	if c.Auxiliary != "" {
		out = append(out, fulgur.UntrainableAuxiliary)
	}
	if dec.offContract {
		out = append(out, fulgur.UntrainableSampling)
	}
	if len(res.PromptIDs) == 0 || len(res.SampledIDs) == 0 {
		out = append(out, fulgur.UntrainableNoIDs)
	}
	if u := res.Usage; u != nil && len(res.SampledIDs) > 0 && u.CompletionTokens != len(res.SampledIDs) ||
		u != nil && len(res.PromptIDs) > 0 && u.PromptTokens != len(res.PromptIDs) {
		out = append(out, fulgur.UntrainableCount)
	}
	if call.Outside(res.PromptIDs, vocabulary) || call.Outside(res.SampledIDs, vocabulary) {
		out = append(out, fulgur.UntrainableIDs)
	}
	if o.NeedLogProbs && len(res.SampledIDs) > 0 && !goodLogProbs(res) {
		out = append(out, fulgur.UntrainableLogProbs)
	}
	return out
}

// contextFull says whether the call failed because it does not fit the model: a
// long history ends so, and no other server would take it.
func contextFull(res *call.Result, err error) bool {
	if err == nil && res.Status == http.StatusBadRequest {
		err = sampler.StatusError("", res.Status, res.Raw)
	}
	return fulgur.KindOf(err) == fulgur.KindContextFull
}

// goodLogProbs says whether there is one per sampled id, each of them a number
// that a policy can have.
func goodLogProbs(res *call.Result) bool {
	if len(res.LogProbs) != len(res.SampledIDs) {
		return false
	}
	for _, p := range res.LogProbs {
		if p <= sentinel || p > 1e-3 {
			return false
		}
	}
	return finite(res.LogProbs)
}

func finite(list []float32) bool {
	for _, p := range list {
		if f := float64(p); math.IsNaN(f) || math.IsInf(f, 0) {
			return false
		}
	}
	return true
}

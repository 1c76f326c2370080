package gateway

import (
	"context"
	"encoding/json"
	"fmt"
	"math"
	"time"

	"github.com/fulgur-rl/fulgur"
	"github.com/fulgur-rl/fulgur/internal/gateway/call"
)

// Probe is what an endpoint's server was found to give of what training needs.
type Probe struct {
	Endpoint fulgur.Endpoint
	// Failed is why the server gave no answer; "": it gave one.
	Failed string
	// Lacks are what of Needs is missing.
	Lacks []Need
	// LogProbs says what its log probs are those of.
	LogProbs LogProbKind
}

// Need is something that training takes from a model server's answers.
type Need string

// What training needs.
const (
	NeedPromptIDs  Need = "prompt token ids"
	NeedSampledIDs Need = "sampled token ids"
	NeedLogProbs   Need = "log probs"
	NeedUsage      Need = "token counts"
)

// Needs lists them all.
var Needs = [...]Need{NeedPromptIDs, NeedSampledIDs, NeedLogProbs, NeedUsage}

// LogProbKind says of which distribution a server's log probs are.
type LogProbKind string

// Kinds of log probs: of the distribution that was sampled from, of the model's
// at temperature 1 whatever was sampled at, or not told apart.
const (
	LogProbsSampled LogProbKind = "of the temperature that is asked for"
	LogProbsRaw     LogProbKind = "of temperature 1, whatever is asked for"
	LogProbsUnknown LogProbKind = "not known"
)

// probeCold is so cold that a processed log prob is that of a certainty.
const probeCold = 0.01

// Probe asks an endpoint for two tokens as a training call would, twice: at
// temperature 1, and so cold that log probs of the temperature are close to 0 and
// those of temperature 1 are not. Nothing is recorded.
func (g *Gateway) Probe(ctx context.Context, run fulgur.RunID, ep fulgur.Endpoint) Probe {
	p := Probe{Endpoint: ep, LogProbs: LogProbsUnknown}
	warm, err := g.probe(ctx, run, ep, 1)
	if err != nil {
		p.Failed = err.Error()
		return p
	}
	has := map[Need]bool{
		NeedPromptIDs: len(warm.PromptIDs) > 0, NeedSampledIDs: len(warm.SampledIDs) > 0,
		NeedLogProbs: goodLogProbs(warm) && len(warm.LogProbs) > 0, NeedUsage: warm.Usage != nil,
	}
	for _, n := range Needs {
		if !has[n] && !(n == NeedLogProbs && g.o.NoLogProbs) {
			p.Lacks = append(p.Lacks, n)
		}
	}
	if !has[NeedLogProbs] {
		return p
	}
	if cold, err := g.probe(ctx, run, ep, probeCold); err == nil && goodLogProbs(cold) && len(cold.LogProbs) > 0 {
		p.LogProbs = kindOf(cold.LogProbs)
	}
	return p
}

// kindOf tells the kinds apart by the log probs of cold tokens. Where the model
// itself is certain they are the same.
func kindOf(cold []float32) LogProbKind {
	least := 0.0
	for _, lp := range cold {
		least = math.Min(least, float64(lp))
	}
	switch {
	case least < -0.05:
		return LogProbsRaw
	case least > -1e-9:
		return LogProbsUnknown // a temperature of 0, or a certainty
	}
	return LogProbsSampled
}

// probe makes one call that has no rollout.
func (g *Gateway) probe(ctx context.Context, run fulgur.RunID, ep fulgur.Endpoint, temperature float64) (*call.Result, error) {
	s := g.o.Samplers[ep.Kind]
	if s == nil {
		return nil, fulgur.E(fulgur.KindUnsupported, "probe", "endpoints of kind "+string(ep.Kind)+" are not served here: serve with --model-dir", nil)
	}
	model, err := json.Marshal(ep.Model)
	if err != nil {
		return nil, err
	}
	body := fmt.Appendf(nil, `{"model":%s,"messages":[{"role":"user","content":"Name a colour."}],"max_tokens":2,"temperature":%g}`, model, temperature)
	req, err := g.o.Dialects[0].Parse(body)
	if err != nil {
		return nil, err
	}
	f := &flow{g: g, d: g.o.Dialects[0], t: target{run: run, mode: fulgur.ModeTrain, policy: ep.Model, model: ep.Model}, req: req, start: time.Now(), id: newCallID()}
	o := f.order(ep, decide(req, &f.t, 0, &g.o))
	o.Sampling.Temperature, o.ForceTemperature = temperature, true
	// Held like any call: what is drained stays so.
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	fl, err := g.gates.enter(ctx, run, g.o.HoldLimit, func() {}, cancel)
	if err != nil {
		return nil, err
	}
	defer g.gates.leave(fl)
	res, err := s.Sample(ctx, o, nil)
	switch {
	case err != nil:
		return nil, err
	case res.Status >= 400:
		return nil, fulgur.E(fulgur.KindUpstream, "probe", fmt.Sprintf("the server answers with status %d: %.300s", res.Status, res.Raw), nil)
	case res.Fault != "":
		return nil, fulgur.E(fulgur.KindUpstream, "probe", res.Fault, nil)
	}
	return res, nil
}

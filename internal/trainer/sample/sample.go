// Package sample turns the lineages of a rollout into training sequences. Each
// sampled token is marked for training at most once; prefixes that lineages
// share are repeated as context only; what the policy did not sample (prompts,
// tool results, templates) is never trained; a call that may not train stays in
// its sequence as context, masked, with the reason.
package sample

import (
	"math"

	"github.com/fulgur-rl/fulgur"
	"github.com/fulgur-rl/fulgur/internal/trainer/trace"
)

// Why a token does or does not train. Untrainable tokens carry the call's first
// reason behind "untrainable:".
const (
	Trained     = "trained"
	Prompt      = "prompt"      // the beginning of a lineage
	Observation = "observation" // put between two answers by the harness or the template
	Shared      = "shared"      // sampled, and trained in an earlier sample of this rollout
	Untrainable = "untrainable:"
)

// OverLong is the reason of calls that do not fit Options.MaxTokens.
const OverLong = "over_long"

// NotRecorded is the reason of a call marked untrainable without one.
const NotRecorded = "not_recorded"

// lowest log prob that is believed: sentinels such as -9999 are finite and
// would give ratios of e^thousands (case AL-13).
const lowest = -1000

// Options of Build.
type Options struct {
	// MaxTokens is the longest sample; 0: no limit. Calls that end behind it
	// are cut off, at a call's border, and do not train.
	MaxTokens int
	// Why asks for a reason per token (Built.Why).
	Why bool
}

// Built is what became of one rollout's calls.
type Built struct {
	Samples []fulgur.Sample // those with at least one trained token, in order of their first call
	Why     [][]string      // with Options.Why: Why[i][j] says why token j of sample i trains or not
	Forest  *trace.Forest
	Reasons []string // per call: "" if its tokens train, else why not

	Sampled int // T: tokens sampled in the rollout's own conversation, trainable or not
	Trained int // tokens that train
}

// Build makes the samples of one attempt's calls, given in order of arrival. It
// changes no call, and building twice gives the same.
//
// Where several calls continue one, the first of them that leads to a trained
// token continues its sequence; each other one opens a sequence of its own with
// the shared part as context.
func Build(group fulgur.GroupID, calls []fulgur.Call, o Options) Built {
	b := builder{calls: calls, o: o, group: group}
	b.Forest = trace.Build(calls)
	b.Reasons = make([]string, len(calls))
	b.ends = make([]int, len(calls))
	for i := range calls {
		c := &calls[i]
		b.ends[i] = len(c.PromptIDs) + len(c.SampledIDs)
		b.Reasons[i] = reason(c, b.Forest.Skipped[i])
		if b.Reasons[i] == "" && o.MaxTokens > 0 && b.ends[i] > o.MaxTokens {
			b.Reasons[i] = OverLong
		}
		if c.Auxiliary == "" && b.Reasons[i] != fulgur.UntrainableAuxiliary {
			b.Sampled += len(c.SampledIDs)
		}
		if b.Reasons[i] == "" {
			b.Trained += len(c.SampledIDs)
		}
	}
	b.markUseful()
	b.done = make([]bool, len(calls))
	for i := range calls {
		for b.useful[i] && !b.done[i] { // once, unless it arrived before the calls it follows from
			b.emit(i)
		}
	}
	return b.Built
}

// reason says why a call's sampled tokens may not train, "" if they may.
func reason(c *fulgur.Call, skipped string) string {
	switch {
	case !c.Trainable && len(c.Untrainable) > 0:
		return c.Untrainable[0]
	case !c.Trainable:
		return NotRecorded
	case c.Auxiliary != "":
		return fulgur.UntrainableAuxiliary
	case skipped != "":
		return fulgur.UntrainableNoIDs
	case len(c.LogProbs) != len(c.SampledIDs):
		return fulgur.UntrainableLogProbs
	}
	for _, x := range c.LogProbs {
		if v := float64(x); math.IsNaN(v) || math.IsInf(v, 0) || v < lowest {
			return fulgur.UntrainableLogProbs
		}
	}
	return ""
}

type builder struct {
	Built
	calls  []fulgur.Call
	o      Options
	group  fulgur.GroupID
	useful []bool // the call or one that follows from it trains
	done   []bool // the call is part of a sample
	ends   []int  // length of the call's history
}

func (b *builder) markUseful() {
	b.useful = make([]bool, len(b.calls))
	for i := range b.calls {
		if b.Reasons[i] != "" {
			continue
		}
		for j := i; j != trace.NoParent && !b.useful[j]; j = b.Forest.Parent[j] {
			b.useful[j] = true
		}
	}
}

// emit makes the sample that starts to be new at call i: its ancestors as
// context, then it and the calls that continue it.
func (b *builder) emit(i int) {
	// Calls arrive in any order: an ancestor that is not done yet comes first,
	// and another of its branches may come before this one.
	for p := b.Forest.Parent[i]; p != trace.NoParent && !b.done[p]; p = b.Forest.Parent[i] {
		i = p
	}
	var chain []int
	for p := b.Forest.Parent[i]; p != trace.NoParent; p = b.Forest.Parent[p] {
		chain = append(chain, p)
	}
	for l, r := 0, len(chain)-1; l < r; l, r = l+1, r-1 {
		chain[l], chain[r] = chain[r], chain[l]
	}
	for next := i; next >= 0; next = b.first(next) {
		chain = append(chain, next)
	}
	last := chain[len(chain)-1]
	n := b.ends[last]
	s := fulgur.Sample{
		Rollout: b.calls[last].Rollout, Group: b.group,
		Tokens: make([]int32, 0, n), Mask: make([]bool, n), LogProbs: make([]float32, n),
		Versions: make([]fulgur.PolicyVersion, n), Calls: make([]fulgur.CallID, 0, len(chain)),
	}
	for j := range s.Versions {
		s.Versions[j] = -1
	}
	s.Tokens = append(append(s.Tokens, b.calls[last].PromptIDs...), b.calls[last].SampledIDs...)
	var why []string
	if b.o.Why {
		why = make([]string, n)
		for j := range why {
			why[j] = Observation
			if j < len(b.calls[chain[0]].PromptIDs) {
				why[j] = Prompt
			}
		}
	}
	for _, k := range chain {
		b.place(&s, why, k)
	}
	b.Samples = append(b.Samples, s)
	if b.o.Why {
		b.Why = append(b.Why, why)
	}
}

// first returns the call that continues the sequence of call i, or -1.
func (b *builder) first(i int) int {
	for _, c := range b.Forest.Children[i] {
		if b.useful[c] && !b.done[c] {
			return c
		}
	}
	return -1
}

// place writes what call k sampled into the sample.
func (b *builder) place(s *fulgur.Sample, why []string, k int) {
	c := &b.calls[k]
	trains := b.Reasons[k] == "" && !b.done[k]
	at := len(c.PromptIDs)
	span, version := 0, c.Endpoint.Version
	for j := range c.SampledIDs {
		for span < len(c.Spans) && c.Spans[span].Start <= j {
			version = c.Spans[span].Version
			span++
		}
		s.Versions[at+j] = version
		s.Mask[at+j] = trains
		if b.Reasons[k] == "" {
			s.LogProbs[at+j] = c.LogProbs[j]
		}
		if why != nil {
			switch {
			case trains:
				why[at+j] = Trained
			case b.Reasons[k] != "":
				why[at+j] = Untrainable + b.Reasons[k]
			default:
				why[at+j] = Shared
			}
		}
	}
	s.Calls = append(s.Calls, c.ID)
	b.done[k] = true
}

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

// Level says what one sample is made of.
type Level string

// The levels.
const (
	Lineage Level = "lineage" // the calls of a lineage, merged; the default
	PerCall Level = "call"    // one call, with its whole prompt as context
)

// Limit says what becomes of what is longer than Options.MaxTokens (case AD-11).
type Limit string

// The limits. In each the rollout still votes in its group, and T counts all
// that it sampled.
const (
	Cut  Limit = "cut"  // calls that end behind the limit don't train; the default
	Mask Limit = "mask" // a lineage with such a call doesn't train at all
	Drop Limit = "drop" // a rollout with such a call doesn't train at all
)

// Options of Build.
type Options struct {
	Level Level // "": Lineage
	// MaxTokens is the longest sample; 0: no limit. A sample always ends with a
	// call's last token, never within one.
	MaxTokens int
	OverLong  Limit // "": Cut
	// Replay: the experts of sampled tokens are replayed in training, so a call
	// without a row for each of its tokens doesn't train (MissingExperts).
	Replay bool
}

// Built is what became of one rollout's calls.
type Built struct {
	Sequences []Sequence // those with at least one trained token, in order of their first call
	Forest    *trace.Forest
	Reasons   []string // per call: "" if its tokens train, else why not

	Sampled int                  // T: tokens sampled in the rollout's own conversation, trainable or not
	Trained int                  // tokens that train
	Lost    map[string]int       // sampled tokens that don't train, by their call's reason; nil: none
	Again   int                  // prompt tokens that were prefilled again because lineages broke
	NoRows  int                  // tokens of samples without routed experts, where a call has some or Replay is on
	Oldest  fulgur.PolicyVersion // lowest version of a trained token; -1: none trains
	Newest  fulgur.PolicyVersion // highest

	replay bool // Options.Replay
}

// Build makes the samples of one attempt's calls, given in order of arrival. It
// changes no call, and building twice gives the same. What it gives are views of
// the calls (see Sequence).
//
// Where several calls continue one, the first of them that leads to a trained
// token continues its sequence; each other one opens a sequence of its own with
// the shared part as context.
func Build(group fulgur.GroupID, calls []fulgur.Call, o Options) Built {
	b := builder{calls: calls, o: o, group: group, ends: make([]int, len(calls)), done: make([]bool, len(calls))}
	b.Forest = trace.Build(calls)
	b.Reasons = make([]string, len(calls))
	b.Oldest, b.Newest, b.replay = -1, -1, o.Replay
	b.readRoutes()
	long := false
	for i := range calls {
		c := &calls[i]
		b.ends[i] = len(c.PromptIDs) + len(c.SampledIDs)
		b.Reasons[i] = reason(c, b.Forest.Skipped[i])
		if b.Reasons[i] == "" && o.Replay && !b.routed(i) {
			b.Reasons[i] = MissingExperts
		}
		if b.Reasons[i] == "" && b.tooLong(i) {
			long = true
			if o.OverLong != Mask || o.Level == PerCall {
				b.Reasons[i] = OverLong
			}
		}
		if c.Auxiliary == "" && b.Reasons[i] != fulgur.UntrainableAuxiliary {
			b.Sampled += len(c.SampledIDs)
		}
	}
	if long && o.OverLong == Drop {
		for i := range b.Reasons {
			if b.Reasons[i] == "" {
				b.Reasons[i] = OverLong
			}
		}
	}
	b.emitAll()
	b.count()
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

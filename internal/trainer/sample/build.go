package sample

import (
	"github.com/fulgur-rl/fulgur"
	"github.com/fulgur-rl/fulgur/internal/trainer/trace"
)

type builder struct {
	Built
	calls  []fulgur.Call
	o      Options
	group  fulgur.GroupID
	useful []bool    // the call or one that follows from it trains
	done   []bool    // the call is part of a sample
	ends   []int     // length of the call's history
	routes []*routes // of each call; nil: no call has routed experts
}

func (b *builder) tooLong(i int) bool { return b.o.MaxTokens > 0 && b.ends[i] > b.o.MaxTokens }

// readRoutes reads the calls' routed experts. What can't be read is missing.
func (b *builder) readRoutes() {
	for i := range b.calls {
		if len(b.calls[i].RoutedExperts) == 0 {
			continue
		}
		if b.routes == nil {
			b.routes = make([]*routes, len(b.calls))
		}
		if r, err := readRoutes(&b.calls[i]); err == nil {
			b.routes[i] = r
		}
	}
}

// routed says whether each token that a call sampled has its routed experts.
func (b *builder) routed(i int) bool { return b.routes != nil && b.routes[i] != nil }

// emitAll makes the samples in order of the calls that open them.
func (b *builder) emitAll() {
	if b.o.Level == PerCall {
		for i, why := range b.Reasons {
			if why == "" {
				b.emit([]int{i})
			}
		}
		return
	}
	b.markUseful()
	for i := range b.calls {
		for b.useful[i] && !b.done[i] { // once, unless it arrived before the calls it follows from
			b.emit(b.chain(i))
		}
	}
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

// chain returns the calls of the sample that starts to be new at call i: its
// ancestors as context, then it and the calls that continue it.
func (b *builder) chain(i int) []int {
	// Calls arrive in any order: an ancestor that is not done yet comes first,
	// and another of its branches may come before this one.
	for p := b.Forest.Parent[i]; p != trace.NoParent && !b.done[p]; p = b.Forest.Parent[i] {
		i = p
	}
	chain := b.Forest.Lineage(i)
	for next := b.first(i); next >= 0; next = b.first(next) {
		chain = append(chain, next)
	}
	return chain
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

// emit makes the sample of a chain of calls, the last of which is the longest.
func (b *builder) emit(chain []int) {
	last := chain[len(chain)-1]
	if b.tooLong(last) { // Mask: what is new in it doesn't train
		for _, k := range chain {
			if !b.done[k] && b.Reasons[k] == "" {
				b.Reasons[k] = OverLong
			}
			b.done[k] = true
		}
		return
	}
	c := &b.calls[last]
	s := Sequence{Rollout: c.Rollout, Group: b.group, Prompt: c.PromptIDs, Answer: c.SampledIDs, Turns: make([]Turn, len(chain))}
	for i, k := range chain {
		s.Turns[i] = b.turn(k)
	}
	b.route(&s, chain)
	b.Sequences = append(b.Sequences, s)
}

// turn is what call k sampled. It trains unless it did so in an earlier sequence.
func (b *builder) turn(k int) Turn {
	c := &b.calls[k]
	t := Turn{Call: c.ID, Start: len(c.PromptIDs), Len: len(c.SampledIDs), spans: c.Spans, version: c.Endpoint.Version}
	switch {
	case b.Reasons[k] != "":
		t.Why = Untrainable + b.Reasons[k]
	case b.done[k]:
		t.Why, t.LogProbs = Shared, c.LogProbs
	default:
		t.Why, t.LogProbs = Trained, c.LogProbs
		t.Versions(func(_, _ int, v fulgur.PolicyVersion) {
			b.Newest = max(b.Newest, v)
			if b.Oldest < 0 || v < b.Oldest {
				b.Oldest = v
			}
		})
	}
	b.done[k] = true
	return t
}

// route gives the sample's tokens their routed experts: a sampled token those of
// the pass that sampled it, any other those of the first call that had it in its
// prompt.
func (b *builder) route(s *Sequence, chain []int) {
	if b.routes == nil {
		if b.o.Replay {
			b.NoRows += s.Len() - 1
		}
		return
	}
	s.Experts = make([][]uint16, s.Len())
	at := 1
	for _, k := range chain {
		for ; at < b.ends[k]; at++ {
			if s.Experts[at] = b.routes[k].row(at); s.Experts[at] == nil {
				b.NoRows++
			}
		}
	}
}

// count sums up what the samples hold.
func (b *builder) count() {
	for i, why := range b.Reasons {
		n := len(b.calls[i].SampledIDs)
		if why == "" {
			b.Trained += n
			continue
		}
		if n > 0 {
			if b.Lost == nil {
				b.Lost = map[string]int{}
			}
			b.Lost[why] += n
		}
	}
	for _, x := range b.Forest.Breaks {
		b.Again += x.Again
	}
}

package sample

import (
	"slices"

	"github.com/fulgur-rl/fulgur"
)

// Sequence is one training sequence as a view of the calls it was made of: the
// last one's prompt and answer are its tokens, and each turn says what was sampled
// where. Nothing is copied: the samples of a rollout cost some words a call,
// whatever their length and however often branches share a beginning. The calls
// must stay as they are.
type Sequence struct {
	Rollout fulgur.RolloutID
	Group   fulgur.GroupID
	Prompt  []int32 // of the last call
	Answer  []int32 // what it sampled: the sequence's end
	Turns   []Turn  // in order; at least one
	// Experts of each token, as fulgur.Sample has them; nil if no call has any.
	Experts [][]uint16
}

// Turn is what one call sampled of a sequence.
type Turn struct {
	Call     fulgur.CallID
	Start    int       // place of its first token in the sequence
	Len      int       // tokens
	LogProbs []float32 // of each; nil where the call's record is not good for training
	Why      string    // Trained, Shared, or Untrainable with a reason
	spans    []fulgur.Span
	version  fulgur.PolicyVersion // before the first span
}

// Trains says whether the turn's tokens train in this sequence.
func (t *Turn) Trains() bool { return t.Why == Trained }

// Versions calls each with the stretches of the turn, as places from..to in the
// sequence, that one policy sampled.
func (t *Turn) Versions(each func(from, to int, v fulgur.PolicyVersion)) {
	from, v := 0, t.version
	for _, s := range t.spans {
		if s.Start >= t.Len {
			break
		}
		if s.Start > from {
			each(t.Start+from, t.Start+s.Start, v)
			from = s.Start
		}
		v = s.Version
	}
	if from < t.Len {
		each(t.Start+from, t.Start+t.Len, v)
	}
}

// Len is the number of tokens.
func (s *Sequence) Len() int { return len(s.Prompt) + len(s.Answer) }

// Tokens returns the tokens, in memory of their own.
func (s *Sequence) Tokens() []int32 { return slices.Concat(s.Prompt, s.Answer) }

// Trained is the number of tokens that train.
func (s *Sequence) Trained() (n int) {
	for i := range s.Turns {
		if s.Turns[i].Trains() {
			n += s.Turns[i].Len
		}
	}
	return n
}

// Why says of each token why it trains or not.
func (s *Sequence) Why() []string {
	why := slices.Repeat([]string{Observation}, s.Len())
	for j := range s.Turns[0].Start {
		why[j] = Prompt
	}
	for i := range s.Turns {
		t := &s.Turns[i]
		for j := range t.Len {
			why[t.Start+j] = t.Why
		}
	}
	return why
}

// Sample writes the sequence out, token by token, in memory of its own.
func (s *Sequence) Sample() fulgur.Sample {
	n := s.Len()
	out := fulgur.Sample{Rollout: s.Rollout, Group: s.Group, Tokens: s.Tokens(), Mask: make([]bool, n), LogProbs: make([]float32, n),
		Versions: slices.Repeat([]fulgur.PolicyVersion{-1}, n), Calls: make([]fulgur.CallID, len(s.Turns)), Experts: s.Experts}
	for i := range s.Turns {
		t := &s.Turns[i]
		out.Calls[i] = t.Call
		copy(out.LogProbs[t.Start:], t.LogProbs)
		t.Versions(func(from, to int, v fulgur.PolicyVersion) {
			for j := from; j < to; j++ {
				out.Versions[j], out.Mask[j] = v, t.Trains()
			}
		})
	}
	return out
}

// Samples writes all sequences out.
func (b *Built) Samples() []fulgur.Sample {
	out := make([]fulgur.Sample, len(b.Sequences))
	for i := range b.Sequences {
		out[i] = b.Sequences[i].Sample()
	}
	return out
}

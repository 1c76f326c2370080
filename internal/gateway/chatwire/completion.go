package chatwire

import (
	"errors"
	"math"
)

// Completion is what is read of a text completion, or of a chunk of one.
type Completion struct {
	Choices      []CompletionChoice
	CachedTokens int    // of the prompt
	Error        string // what stands in place of an answer, as JSON; "": nothing
}

// CompletionChoice is a choice of a Completion.
type CompletionChoice struct {
	FinishReason string
	TokenIDs     []int32
	LogProbs     []float32 // in order of TokenIDs, as many as there are; NaN where one is missing
	Version      *int64    // Fulgur's: the policy version that the tokens come from
}

// ReadCompletion reads a completion, in one pass. There is one a call, and most of
// it (the text, the prompt's echo) is passed over: reading it by reflection costs ten
// times as much. What is not JSON, or has another shape, is an error. The texts are
// in data's memory.
func ReadCompletion(data []byte) (c Completion, err error) {
	s := scanner{b: data}
	if s.peek() != '{' {
		return c, errors.New("it is no JSON object")
	}
	for more := s.enter('}'); more && err == nil; more = s.next('}') {
		switch s.key() {
		case "choices":
			c.Choices, err = s.choices(c.Choices)
		case "usage":
			s.within("prompt_tokens_details", func() {
				s.within("cached_tokens", func() { c.CachedTokens = int(s.whole()) })
			})
		case "error":
			null := s.peek() == 'n'
			if from, to := s.skip(); !null {
				c.Error = s.cut(from, to)
			}
		default:
			s.skip()
		}
	}
	if err == nil && !s.ended() {
		err = errors.New("it is no JSON")
	}
	return c, err
}

// within reads the member of an object that starts here, by do; a value of another
// kind has none.
func (s *scanner) within(name string, do func()) {
	if s.peek() != '{' {
		s.skip()
		return
	}
	for more := s.enter('}'); more; more = s.next('}') {
		if s.key() == name {
			do()
		} else {
			s.skip()
		}
	}
}

func (s *scanner) choices(list []CompletionChoice) (_ []CompletionChoice, err error) {
	if c := s.peek(); c != '[' {
		if s.skip(); c == 'n' {
			return list, nil
		}
		return nil, errors.New("its choices are no list")
	}
	for more := s.enter(']'); more; more = s.next(']') {
		if s.peek() != '{' {
			return nil, errors.New("a choice is no object")
		}
		var ch CompletionChoice
		for more := s.enter('}'); more; more = s.next('}') {
			switch s.key() {
			case "finish_reason":
				ch.FinishReason = s.text()
			case "token_ids":
				if ch.TokenIDs, err = s.tokenIDs(); err != nil {
					return nil, err
				}
			case "logprobs":
				ch.LogProbs = nil
				s.within("token_logprobs", func() { ch.LogProbs = s.tokenLogProbs(len(ch.TokenIDs)) })
			case "policy_version":
				if c := s.peek(); c == '-' || c-'0' <= 9 {
					n := s.whole()
					ch.Version = &n
				} else {
					s.skip()
				}
			default:
				s.skip()
			}
		}
		list = append(list, ch)
	}
	return list, nil
}

// tokenIDs is ids, but that what is no list of such is an error.
func (s *scanner) tokenIDs() (ids []int32, err error) {
	if c := s.peek(); c != '[' {
		if s.skip(); c == 'n' {
			return nil, nil
		}
		return nil, errors.New("its token_ids are no list")
	}
	if ids, ok := s.plainIDs(); ok {
		return ids, nil
	}
	for more := s.enter(']'); more; more = s.next(']') {
		f, ok := s.maybe()
		if !ok || f != math.Trunc(f) || f < math.MinInt32 || f > math.MaxInt32 {
			return nil, errors.New("a token id is no whole number of 32 bits")
		}
		ids = append(ids, int32(f))
	}
	return ids, nil
}

// tokenLogProbs reads a list of about n numbers; NaN for what is none.
func (s *scanner) tokenLogProbs(n int) (out []float32) {
	if s.peek() != '[' {
		s.skip()
		return nil
	}
	for more := s.enter(']'); more; more = s.next(']') {
		f, ok := s.maybe()
		if !ok {
			f = math.NaN()
		}
		if out == nil {
			out = make([]float32, 0, max(n, 8))
		}
		out = append(out, float32(f))
	}
	return out
}

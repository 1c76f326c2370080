package store

import (
	"cmp"
	"slices"

	"github.com/fulgur-rl/fulgur"
)

// maxRecent bounds the memory for the records of recent rollouts, in bytes.
const maxRecent = 40 << 20

// recents are the rollouts that this process created last, with their calls:
// what a trainer reads when they end costs no query, no decompression and no
// JSON. The oldest go first. Only what is committed is here.
type recents struct {
	limit int
	bytes int
	byID  map[fulgur.RolloutID]*recent
	order []*recent // of creation; may hold some that are gone
}

// recent is one rollout, with all calls that it has on record.
type recent struct {
	e     *entry
	calls []fulgur.Call // without bodies and tools, in order of arrival
	bytes int
	gone  bool
}

func newRecents(limit int) *recents {
	return &recents{limit: limit, byID: map[fulgur.RolloutID]*recent{}}
}

// of returns the recent with number num; nil if it is not kept.
func (s *recents) of(id fulgur.RolloutID, num int64) *recent {
	if r := s.byID[id]; r != nil && r.e.num == num {
		return r
	}
	return nil
}

// publish takes a committed batch over; created is the number of the last
// rollout that was there before it.
func (s *recents) publish(b *batch, created int64) {
	for _, e := range b.sorted() {
		r := s.of(e.ID, e.num)
		switch {
		case e.hidden:
			if r != nil {
				s.drop(r)
			}
		case r != nil:
			r.e = e
		case e.num > created:
			r = &recent{e: e}
			s.byID[e.ID] = r
			s.order = append(s.order, r)
			s.grow(r, 1024+len(e.Input)+len(e.Config)+len(e.Metadata))
		}
	}
	for _, c := range b.calls {
		if r := s.of(c.call.Rollout, c.num); r != nil {
			slim := slimmed(*c.call)
			slim.Seq, slim.Run = c.seq, r.e.Run
			s.grow(r, sizeOf(&slim)-r.share(&slim))
			r.calls = append(r.calls, slim)
		}
	}
	for s.bytes > s.limit && len(s.order) > 1 {
		s.drop(s.order[0])
		s.order = s.order[1:]
	}
	if len(s.order) > 64 && len(s.order) > 2*len(s.byID) {
		s.order = slices.DeleteFunc(s.order, func(r *recent) bool { return r.gone })
	}
}

// share lets the newest call of c's attempt have its prompt in the memory of c's,
// where c goes on from it: a history that grows is held once. It returns the bytes
// that this saves.
func (r *recent) share(c *fulgur.Call) (saved int) {
	at := len(r.calls) - 1
	for at >= 0 && r.calls[at].Attempt != c.Attempt {
		at--
	}
	if at < 0 {
		return 0
	}
	old := &r.calls[at]
	before := sizeOf(old)
	if n := len(old.PromptIDs); n <= len(c.PromptIDs) && slices.Equal(old.PromptIDs, c.PromptIDs[:n]) {
		if old.PromptIDs != nil {
			old.PromptIDs = c.PromptIDs[:n:n]
		}
		saved = 4 * n
	}
	if n := len(old.Messages); n <= len(c.Messages) && slices.EqualFunc(old.Messages, c.Messages[:n], identical) {
		for i := range old.Messages {
			saved += messageSize(&old.Messages[i])
		}
		if old.Messages != nil {
			old.Messages = c.Messages[:n:n]
		}
	}
	return min(saved, before)
}

func identical(a, b fulgur.Message) bool {
	return a.Role == b.Role && a.Content == b.Content && a.Reasoning == b.Reasoning && a.ToolCallID == b.ToolCallID && a.Name == b.Name && slices.Equal(a.ToolCalls, b.ToolCalls)
}

func (s *recents) grow(r *recent, n int) {
	r.bytes += n
	s.bytes += n
}

func (s *recents) drop(r *recent) {
	if r.gone {
		return
	}
	r.gone = true
	s.bytes -= r.bytes
	if s.byID[r.e.ID] == r {
		delete(s.byID, r.e.ID)
	}
}

// last returns the calls of the last attempt.
func (r *recent) last() []fulgur.Call {
	var out []fulgur.Call
	for i := range r.calls {
		if r.calls[i].Attempt == r.e.LastAttempt {
			out = append(out, r.calls[i])
		}
	}
	inOrder(out)
	return out
}

// none says whether an attempt ("": all) has no call on record.
func (r *recent) none(a fulgur.AttemptID) bool {
	return !slices.ContainsFunc(r.calls, func(c fulgur.Call) bool { return a == "" || c.Attempt == a })
}

// inOrder sorts calls by attempt, then by index.
func inOrder(calls []fulgur.Call) {
	slices.SortStableFunc(calls, func(a, b fulgur.Call) int {
		return cmp.Or(cmp.Compare(len(a.Attempt), len(b.Attempt)), cmp.Compare(a.Attempt, b.Attempt), cmp.Compare(a.Index, b.Index))
	})
}

// slimmed is a call as Records gives it, with the resolution that is stored.
func slimmed(c fulgur.Call) fulgur.Call {
	c.Request, c.Sent, c.Response, c.Tools, c.RoutedExperts = nil, nil, nil, nil, nil
	c.Endpoint.Key = ""
	c.StartedAt = fromMicros(micros(c.StartedAt))
	return c
}

// sizeOf is about what a slim call takes in memory.
func sizeOf(c *fulgur.Call) int {
	n := 768 + 4*(len(c.PromptIDs)+len(c.SampledIDs)+len(c.LogProbs))
	for i := range c.Messages {
		n += messageSize(&c.Messages[i])
	}
	if c.Reply != nil {
		n += messageSize(c.Reply)
	}
	return n
}

func messageSize(m *fulgur.Message) int {
	n := 128 + len(m.Content) + len(m.Reasoning)
	for i := range m.ToolCalls {
		n += 64 + len(m.ToolCalls[i].Arguments)
	}
	return n
}

package store

import (
	"cmp"
	"slices"
	"strings"
	"unsafe"

	"github.com/fulgur-rl/fulgur"
)

// maxRecent bounds the memory for the records of recent rollouts, in bytes.
const maxRecent = 16 << 20

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
			s.grow(r, r.own(&slim))
			if r.calls == nil {
				r.calls = make([]fulgur.Call, 0, 4)
			}
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

// own gives c, which is to be kept, memory of its own, and returns how much, in
// bytes. What a gateway reads is cut out of requests and responses, and a word of
// one keeps the whole of it; and where c goes on from the call before, it shares that
// one's memory: a history that grows is held once.
func (r *recent) own(c *fulgur.Call) (size int) {
	at := len(r.calls) - 1
	for at >= 0 && r.calls[at].Attempt != c.Attempt {
		at--
	}
	var old fulgur.Call
	if at >= 0 {
		old = r.calls[at]
	}
	n := len(old.PromptIDs)
	if n == 0 || n > len(c.PromptIDs) || !slices.Equal(old.PromptIDs, c.PromptIDs[:n]) {
		n, old.PromptIDs = 0, nil
	}
	if c.PromptIDs != nil {
		size += 4 * (len(c.PromptIDs) - n)
		if c.PromptIDs = append(old.PromptIDs, c.PromptIDs[n:]...); c.PromptIDs == nil {
			c.PromptIDs = []int32{} // none, and told so
		}
		moved(r.calls, old.PromptIDs, c.PromptIDs, func(c *fulgur.Call) *[]int32 { return &c.PromptIDs })
	}
	m := len(old.Messages)
	if m == 0 || m > len(c.Messages) || !slices.EqualFunc(old.Messages, c.Messages[:m], identical) {
		m, old.Messages = 0, nil
	}
	if c.Messages != nil {
		list := slices.Grow(old.Messages, len(c.Messages)-m)
		for i := range c.Messages[m:] {
			list = append(list, ownMessage(&c.Messages[m+i]))
			size += messageSize(&c.Messages[m+i])
		}
		c.Messages = list
		moved(r.calls, old.Messages, list, func(c *fulgur.Call) *[]fulgur.Message { return &c.Messages })
	}
	if at >= 0 { // only the newest may go on in the same memory
		kept := &r.calls[at]
		kept.PromptIDs, kept.Messages = slices.Clip(kept.PromptIDs), slices.Clip(kept.Messages)
	}
	if c.Reply != nil {
		size += messageSize(c.Reply)
		m := ownMessage(c.Reply)
		c.Reply = &m
	}
	size += 768 + 4*(len(c.SampledIDs)+len(c.LogProbs))
	c.SampledIDs, c.LogProbs, c.Spans = slices.Clone(c.SampledIDs), slices.Clone(c.LogProbs), slices.Clone(c.Spans)
	c.ID, c.Attempt, c.Rollout = fulgur.CallID(strings.Clone(string(c.ID))), fulgur.AttemptID(strings.Clone(string(c.Attempt))), r.e.ID
	for _, s := range []*string{&c.Dialect, &c.Model, &c.FinishReason, &c.Error, &c.Auxiliary, &c.Endpoint.Model, &c.Endpoint.URL} {
		*s = strings.Clone(*s)
	}
	c.Untrainable, c.Sampling.Stop = ownTexts(c.Untrainable), ownTexts(c.Sampling.Stop)
	if c.Usage != nil {
		u := *c.Usage
		c.Usage = &u
	}
	return size
}

// moved has calls whose lists lay in the memory of old share that of list, which goes on
// from it, where that is another: else what each list grew out of would stay as long as
// the calls, which was most of their memory.
func moved[T any](calls []fulgur.Call, old, list []T, of func(*fulgur.Call) *[]T) {
	if len(old) == 0 || unsafe.SliceData(old) == unsafe.SliceData(list) {
		return
	}
	for i := range calls {
		if l := of(&calls[i]); len(*l) > 0 && unsafe.SliceData(*l) == unsafe.SliceData(old) {
			*l = list[:len(*l):len(*l)]
		}
	}
}

func ownTexts(list []string) []string {
	list = slices.Clone(list)
	for i := range list {
		list[i] = strings.Clone(list[i])
	}
	return list
}

func ownMessage(m *fulgur.Message) fulgur.Message {
	out := *m
	for _, s := range []*string{&out.Role, &out.Content, &out.Reasoning, &out.ToolCallID, &out.Name} {
		*s = strings.Clone(*s)
	}
	out.ToolCalls = slices.Clone(m.ToolCalls)
	for i := range out.ToolCalls {
		c := &out.ToolCalls[i]
		c.ID, c.Name, c.Arguments = strings.Clone(c.ID), strings.Clone(c.Name), strings.Clone(c.Arguments)
	}
	return out
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
	r.gone, r.calls = true, nil // order may hold it for long
	s.bytes -= r.bytes
	if s.byID[r.e.ID] == r {
		delete(s.byID, r.e.ID)
	}
}

// last returns the calls of the last attempt.
func (r *recent) last() []fulgur.Call {
	if len(r.calls) == 0 {
		return nil
	}
	out := make([]fulgur.Call, 0, len(r.calls))
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

func messageSize(m *fulgur.Message) int {
	n := 128 + len(m.Content) + len(m.Reasoning)
	for i := range m.ToolCalls {
		n += 64 + len(m.ToolCalls[i].Arguments)
	}
	return n
}

package tokens

import (
	"bytes"
	"container/list"
	"context"
	"slices"
	"sync"

	"github.com/fulgur-rl/fulgur"
	"github.com/fulgur-rl/fulgur/internal/gateway/call"
)

// perAttempt is how many conversations of one attempt are kept: branches and
// sub-agents interleave, but only recent turns are gone on from.
const perAttempt = 16

// maxBytes bounds what is kept in memory, over all attempts.
const maxBytes = 96 << 20

// memory keeps the conversations of recent attempts, the least recently used
// attempt going first.
type memory struct {
	limit   int
	records History

	mu       sync.Mutex
	attempts map[attemptKey]*list.Element
	recent   *list.List // of *attemptMemory, the most recent in front
	count    int        // conversations
	bytes    int
	tools    [][]fulgur.Tool // lists of tools that conversations share
}

type attemptKey struct {
	rollout fulgur.RolloutID
	attempt fulgur.AttemptID
}

type attemptMemory struct {
	key  attemptKey
	list []Known // oldest first
}

func newMemory(limit int, records History) *memory {
	return &memory{limit: limit, records: records, attempts: map[attemptKey]*list.Element{}, recent: list.New()}
}

func keyOf(o *call.Order) attemptKey { return attemptKey{o.Rollout, o.Attempt} }

// find returns the known conversation that the order's messages go on from: the
// longest one whose prompt they start with, preferably with its reply too.
func (m *memory) find(ctx context.Context, o *call.Order) (Known, bool, error) {
	if o.Rollout == "" || len(o.Messages) == 0 {
		return Known{}, false, nil
	}
	list, seen := m.of(keyOf(o))
	if !seen && o.Index > 0 && m.records != nil {
		calls, err := m.records.Calls(ctx, o.Rollout, o.Attempt)
		if err != nil {
			return Known{}, false, fulgur.E(fulgur.KindOf(err), "read calls of rollout "+string(o.Rollout), "The attempt's earlier calls could not be read: try again", err)
		}
		for i := range calls {
			if c := &calls[i]; c.Reply != nil && len(c.PromptIDs) > 0 && len(c.SampledIDs) > 0 && c.FinishReason != "" && !slices.Contains(c.Untrainable, fulgur.UntrainableIDs) {
				m.add(o, Known{Messages: c.Messages, Tools: c.Tools, PromptIDs: c.PromptIDs, SampledIDs: c.SampledIDs, Reply: *c.Reply})
			}
		}
		list, _ = m.of(keyOf(o))
	}
	k, ok := longest(list, o.Messages, o.Tools)
	return k, ok, nil
}

func (m *memory) of(k attemptKey) ([]Known, bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	e := m.attempts[k]
	if e == nil {
		return nil, false
	}
	m.recent.MoveToFront(e)
	return e.Value.(*attemptMemory).list, true
}

// longest picks among known conversations the one that msgs go on from.
func longest(list []Known, msgs []fulgur.Message, tools []fulgur.Tool) (Known, bool) {
	best, score := -1, 0
	for i := range list {
		k := &list[i]
		n := len(k.Messages)
		if n >= len(msgs) || !prefix(k.Messages, msgs) || !sameTools(k.Tools, tools) {
			continue
		}
		s := 2 * n
		if goesOn(k.Reply, msgs[n]) {
			s++
		}
		if s >= score {
			best, score = i, s
		}
	}
	if best < 0 {
		return Known{}, false
	}
	return list[best], true
}

func prefix(a, b []fulgur.Message) bool {
	for i := range a {
		if !goesOn(a[i], b[i]) {
			return false
		}
	}
	return true
}

// goesOn says whether a harness that sends b back means a: many leave the
// reasoning out.
func goesOn(a, b fulgur.Message) bool {
	if b.Reasoning == "" {
		a.Reasoning = ""
	}
	return a.Same(b)
}

func sameTools(a, b []fulgur.Tool) bool {
	if len(a) != len(b) {
		return false
	}
	for i := range a {
		if a[i].Name != b[i].Name || !bytes.Equal(a[i].Raw, b[i].Raw) {
			return false
		}
	}
	return true
}

// add remembers a conversation. The lists are never changed in place: a reader
// may still hold one.
func (m *memory) add(o *call.Order, k Known) {
	if o.Rollout == "" {
		return
	}
	key := keyOf(o)
	list, _ := m.of(key)
	k = k.own(list)
	m.mu.Lock()
	defer m.mu.Unlock()
	k.Tools = m.toolsLocked(k.Tools)
	e := m.attempts[key]
	if e == nil {
		e = m.recent.PushFront(&attemptMemory{key: key})
		m.attempts[key] = e
	}
	a := e.Value.(*attemptMemory)
	old := a.list
	if len(old) >= perAttempt {
		m.countLocked(old[0], -1)
		old = old[1:]
	}
	a.list = append(append(make([]Known, 0, len(old)+1), old...), k)
	m.countLocked(k, 1)
	m.recent.MoveToFront(e)
	for (m.count > m.limit || m.bytes > maxBytes) && m.recent.Len() > 1 {
		last := m.recent.Back()
		gone := m.recent.Remove(last).(*attemptMemory)
		delete(m.attempts, gone.key)
		for _, k := range gone.list {
			m.countLocked(k, -1)
		}
	}
}

func (m *memory) countLocked(k Known, sign int) {
	m.count += sign
	n := 4*(len(k.PromptIDs)+len(k.SampledIDs)) + sizeOf(&k.Reply)
	if tools := sizeOfTools(k.Tools); tools > maxShared {
		n += tools
	}
	for i := range k.Messages {
		n += sizeOf(&k.Messages[i])
	}
	m.bytes += sign * n
}

func sizeOf(m *fulgur.Message) int {
	n := len(m.Content) + len(m.Reasoning) + 128
	for i := range m.ToolCalls {
		n += len(m.ToolCalls[i].Arguments) + 64
	}
	return n
}

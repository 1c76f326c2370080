package api

import (
	"context"
	"fmt"
	"sync"

	"github.com/fulgur-rl/fulgur"
)

// What an attempt's credential may post in one event: an agent can fill a disk.
const (
	maxAgentEvent = 1 << 20
	maxEventType  = 256
)

// EventLimits bound what one attempt's credential may post in all. Zero: the
// default; below zero: any number.
type EventLimits struct {
	Count int   // events; 0: 10,000
	Bytes int64 // of their types and data; 0: 64 MiB
}

// EventBudget refuses events of agents that are too large, or too many. Both
// versions of the API share one. It is safe for concurrent use.
type EventBudget struct {
	limits  EventLimits
	past    EventLog
	refused func(reason string)

	mu    sync.Mutex
	spent map[fulgur.AttemptKey]*spent
}

// EventLog reads what is on record: after a restart the budget is not new.
type EventLog interface {
	Events(ctx context.Context, id fulgur.RolloutID, a fulgur.AttemptID) ([]fulgur.Event, error)
}

type spent struct {
	mu    sync.Mutex
	known bool // what is on record is counted
	count int
	bytes int64
}

// maxBudgets is how many attempts' budgets are kept in memory; beyond, all are
// read from the record again.
const maxBudgets = 1 << 14

// NewEventBudget returns a budget. refused (nil: nobody) is told of each event
// that is refused: "size", "nesting", "count" or "bytes".
func NewEventBudget(l EventLimits, past EventLog, refused func(reason string)) *EventBudget {
	if l.Count == 0 {
		l.Count = 10_000
	}
	if l.Bytes == 0 {
		l.Bytes = 64 << 20
	}
	if refused == nil {
		refused = func(string) {}
	}
	return &EventBudget{limits: l, past: past, refused: refused, spent: map[fulgur.AttemptKey]*spent{}}
}

// Take counts an event that is about to be appended, or refuses it
// (KindTooLarge). What does not come from an attempt's credential is free.
func (b *EventBudget) Take(ctx context.Context, who fulgur.Identity, kind string, data []byte) error {
	refuse := func(reason, format string, args ...any) error {
		b.refused(reason)
		return fulgur.E(fulgur.KindTooLarge, "", fmt.Sprintf(format, args...), nil)
	}
	switch {
	case who.Scope != fulgur.ScopeAttempt:
		return nil
	case len(kind) > maxEventType:
		return refuse("size", "An event's type has at most %d bytes, this one has %d", maxEventType, len(kind))
	case len(data) > maxAgentEvent:
		return refuse("size", "An agent's event has at most %d bytes of data, this one has %d", maxAgentEvent, len(data))
	case fulgur.TooDeep(data):
		return refuse("nesting", "An agent's event is nested at most %d deep, this one is deeper: nobody could read it", fulgur.MaxNesting)
	}
	s := b.of(fulgur.AttemptKey{Rollout: who.Rollout, Attempt: who.Attempt})
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.known {
		past, err := b.past.Events(ctx, who.Rollout, who.Attempt)
		if err != nil {
			return err
		}
		s.known, s.count = true, len(past)
		for i := range past {
			s.bytes += int64(len(past[i].Type) + len(past[i].Data))
		}
	}
	size := int64(len(kind) + len(data))
	switch {
	case b.limits.Count > 0 && s.count >= b.limits.Count:
		return refuse("count", "This attempt has posted %d events, as many as one may: post fewer, or let `fulgur serve --attempt-events` take more", s.count)
	case b.limits.Bytes > 0 && s.bytes+size > b.limits.Bytes:
		return refuse("bytes", "This attempt's events have %d bytes, and one may post %d in all: post less, or let `fulgur serve --attempt-event-bytes` take more", s.bytes, b.limits.Bytes)
	}
	s.count++
	s.bytes += size
	return nil
}

func (b *EventBudget) of(k fulgur.AttemptKey) *spent {
	b.mu.Lock()
	defer b.mu.Unlock()
	s := b.spent[k]
	if s == nil {
		if len(b.spent) >= maxBudgets {
			clear(b.spent)
		}
		s = &spent{}
		b.spent[k] = s
	}
	return s
}

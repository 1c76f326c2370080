package api

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"sync"
	"sync/atomic"

	"github.com/fulgur-rl/fulgur"
)

// What an attempt's credential may post in one event: an agent can fill a disk.
const (
	maxAgentEvent = 1 << 20
	maxEventType  = 256
	// A body is held while it comes: as many of one attempt at once, and each of so many
	// bytes, are.
	maxAgentBodies = 16
	maxAgentBody   = 2 << 20
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
	open  atomic.Int32 // requests that are read or answered
	mu    sync.Mutex
	known bool // what is on record is counted
	count int
	bytes int64
}

// maxBudgets is how many attempts' budgets are kept in memory; beyond, all are
// read from the record again.
const maxBudgets = 1 << 14

// NewEventBudget returns a budget. refused (nil: nobody) is told of each event
// that is refused: "size", "nesting", "concurrency", "count" or "bytes".
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

// Read takes in the body of a request with an attempt's credential, of which any number
// of others could fill the memory that all share. leave is to be called when it is
// answered. Whoever else asks is let through.
func (b *EventBudget) Read(w http.ResponseWriter, r *http.Request, who fulgur.Identity) (leave func(), err error) {
	if who.Scope != fulgur.ScopeAttempt || r.ContentLength == 0 {
		return func() {}, nil
	}
	s := b.of(fulgur.AttemptKey{Rollout: who.Rollout, Attempt: who.Attempt})
	leave = func() { s.open.Add(-1) }
	if s.open.Add(1) > maxAgentBodies {
		leave()
		b.refused("concurrency")
		return nil, fulgur.E(fulgur.KindUnavailable, "", fmt.Sprintf("This attempt has %d requests under way, as many as it may: wait for one to end", maxAgentBodies), nil)
	}
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxAgentBody))
	var large *http.MaxBytesError
	switch {
	case errors.As(err, &large):
		b.refused("size")
		err = fulgur.E(fulgur.KindTooLarge, "read body", fmt.Sprintf("An agent's event has at most %d bytes of data, this request has more than %d", maxAgentEvent, maxAgentBody), err)
	case err != nil:
		err = fulgur.E(fulgur.KindInvalid, "read body", "The request's body did not arrive whole", err)
	}
	if err != nil {
		leave()
		return nil, err
	}
	r.Body = io.NopCloser(bytes.NewReader(body))
	return leave, nil
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

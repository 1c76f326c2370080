package store

import (
	"context"
	"runtime"
	"time"

	"github.com/fulgur-rl/fulgur"
)

// request is one write that waits for the writer.
type request struct {
	fn  func(*batch) error // checks first, then changes the batch; never touches the database but by b.get
	err error
	ack chan struct{}
}

// maxBatch bounds the writes of one transaction.
const maxBatch = 256

// do has the writer run fn and returns when its transaction is committed.
// Once fn is queued, do waits for the outcome even if ctx ends: the caller
// would otherwise not know whether it is on record.
func (s *Store) do(ctx context.Context, op string, fn func(*batch) error) error {
	r := &request{fn: fn, ack: make(chan struct{})}
	select {
	case <-s.stop:
		return fulgur.E(fulgur.KindUnavailable, op, "the store is closed", nil)
	default:
	}
	select {
	case s.reqs <- r:
	case <-ctx.Done():
		return fulgur.E(fulgur.KindCanceled, op, "the caller left before the store had answered", ctx.Err())
	case <-s.stop:
		return fulgur.E(fulgur.KindUnavailable, op, "the store is closed", nil)
	}
	select {
	case <-r.ack:
		return s.fail(op, r.err)
	case <-s.done:
	}
	select {
	case <-r.ack:
		return s.fail(op, r.err)
	default: // queued behind the last batch
		return fulgur.E(fulgur.KindUnavailable, op, "the store is closed", nil)
	}
}

// writer runs the writes, batch by batch, until Close.
func (s *Store) writer() {
	defer close(s.done)
	for {
		select {
		case r := <-s.reqs:
			s.runBatch(s.gather(r))
		case <-s.stop:
			for {
				select {
				case r := <-s.reqs:
					s.runBatch(s.gather(r))
				default:
					return
				}
			}
		}
	}
}

// gather takes the writes that queued up behind first during the last commit,
// and those of goroutines that can run right now. Waiting for more was measured:
// its timer costs more than the commits it saves.
func (s *Store) gather(first *request) []*request {
	runtime.Gosched()
	rs := []*request{first}
	for len(rs) < maxBatch {
		select {
		case r := <-s.reqs:
			rs = append(rs, r)
		default:
			return rs
		}
	}
	return rs
}

// runBatch commits rs and answers them. If the transaction fails, each is
// tried alone, so that one bad write does not fail its neighbours.
func (s *Store) runBatch(rs []*request) {
	if err := s.commit(rs); err != nil {
		for _, r := range rs {
			if len(rs) == 1 {
				r.err = err
			} else if err := s.commit([]*request{r}); err != nil {
				r.err = err
			}
		}
	}
	for _, r := range rs {
		close(r.ack)
	}
}

// commit runs rs in one transaction. A write that refuses (its own error) has
// changed nothing and does not hinder the others; a returned error means that
// nothing of rs is on record.
func (s *Store) commit(rs []*request) error {
	if s.lost.yes {
		if err := s.resume(); err != nil {
			return err
		}
	}
	b, err := s.run(rs)
	if err != nil {
		return err
	}
	if b.empty() {
		return nil
	}
	if err := s.flush(b); err != nil {
		return err
	}
	if len(b.dropped) > 0 {
		s.forgetChains(b.dropped)
	}
	s.mu.Lock()
	s.live.publish(b)
	s.mu.Unlock()
	s.dropChains(b)
	return nil
}

// run makes the batch of rs: again, if the connection was lost while one of them
// looked something up.
func (s *Store) run(rs []*request) (*batch, error) {
	for deadline := time.Now().Add(comeBackFor); ; {
		b := s.newBatch()
		gone := false
		for _, r := range rs {
			r.err = r.fn(b)
			gone = gone || r.err != nil && s.isLost(r.err)
		}
		if !gone {
			return b, nil
		}
		s.lost = lost{yes: true, cut: s.live.seq}
		if _, err := s.wait(deadline); err != nil {
			return nil, err
		}
	}
}

// dropChains lets go of the texts of attempts that will not call any more.
func (s *Store) dropChains(b *batch) {
	for _, e := range b.entries {
		for i := range e.attempts {
			if a := &e.attempts[i]; e.hidden || a.Phase == fulgur.PhaseEnded {
				s.chains.drop(chainKey{e.num, a.ID})
			}
		}
		if e.hidden || e.State.Terminal() {
			s.chains.drop(chainKey{e.num, e.LastAttempt})
		}
	}
}

func (b *batch) empty() bool {
	return len(b.entries)+len(b.calls)+len(b.events)+len(b.runs)+len(b.endpoints)+len(b.leases)+b.artifacts.len() == 0
}

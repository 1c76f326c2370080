package store

import (
	"context"
	"errors"
	"time"

	"github.com/fulgur-rl/fulgur"
)

// A database on a server comes and goes. The writer then waits a while for it,
// takes its lock again, and finds out whether the transaction that was cut off is
// on record; callers only see a slow write. When it stays away, writes fail until it
// is back.
const (
	comeBackFor   = 15 * time.Second       // how long the batch that lost the connection waits
	comeBackEvery = 200 * time.Millisecond // between tries
)

// lost is the state of a writer whose connection is gone. It is the writer's alone.
type lost struct {
	yes   bool
	cut   fulgur.Seq // of the batch whose outcome is not known
	again time.Time  // no try before
}

// flush writes a batch, over a lost connection too.
func (s *Store) flush(b *batch) error {
	deadline := time.Now().Add(comeBackFor)
	for {
		err := s.sql.flush(b)
		if err == nil || !s.isLost(err) {
			return err
		}
		s.lost = lost{yes: true, cut: b.seq}
		seq, back := s.wait(deadline)
		if back != nil {
			return errors.Join(back, err)
		}
		if seq != s.live.seq {
			return nil // the commit had come through, only its answer had not
		}
	}
}

// wait comes back as soon as it can, until a deadline or the store's end.
func (s *Store) wait(deadline time.Time) (fulgur.Seq, error) {
	for {
		seq, err := s.comeBack()
		if err == nil || fulgur.KindOf(err) == fulgur.KindConflict || time.Now().After(deadline) {
			return seq, err
		}
		select {
		case <-s.stop:
			return 0, err
		case <-time.After(comeBackEvery):
		}
	}
}

// isLost says whether err means that the connection is gone.
func (s *Store) isLost(err error) bool {
	if _, ok := s.driver.(Relocker); !ok {
		return false
	}
	kind, _ := s.driver.Explain(err)
	return kind == fulgur.KindUnavailable && s.sql.conn.PingContext(context.Background()) != nil
}

// resume goes on after a connection that was lost, if it can. What was cut off
// and is on record after all, its callers were told otherwise: the state is read anew.
func (s *Store) resume() error {
	const op = "reconnect to the store"
	if time.Now().Before(s.lost.again) {
		return fulgur.E(fulgur.KindUnavailable, op, "the store's database is out of reach: writes fail until it is back", nil)
	}
	seq, err := s.comeBack()
	if err != nil || seq == s.live.seq {
		return err
	}
	l, err := s.load(context.Background())
	if err != nil {
		s.lost.yes = true
		return s.fail(op, err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	close(s.live.wake) // readers of the log look again
	s.live = l
	return nil
}

// comeBack makes the writer a new connection, and returns the newest position on
// record: that of memory, or of the batch that was cut off. Any other means that
// another store has written: KindConflict.
func (s *Store) comeBack() (seq fulgur.Seq, err error) {
	const op = "reconnect to the store"
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	s.lost.again = time.Now().Add(time.Second)
	_ = s.sql.close()
	conn, err := s.write.Conn(ctx)
	if err != nil {
		return 0, s.fail(op, err)
	}
	if err := s.driver.(Relocker).Relock(ctx, conn); err != nil {
		return 0, errors.Join(s.fail(op, err), conn.Close())
	}
	st, err := prepare(ctx, conn, s.driver)
	if err != nil {
		return 0, errors.Join(s.fail(op, err), conn.Close())
	}
	l := newLive()
	if err := s.loadCounters(ctx, l); err != nil {
		return 0, errors.Join(s.fail(op, err), st.close())
	}
	if l.seq != s.live.seq && l.seq != s.lost.cut {
		err := fulgur.E(fulgur.KindConflict, op, "another process has written to this store while it was out of reach: restart this one", nil)
		return 0, errors.Join(err, st.close())
	}
	s.sql, s.lost.yes = st, false
	return l.seq, nil
}

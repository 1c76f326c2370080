package store

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/fulgur-rl/fulgur"
)

// AppendCall records a call and sets its Seq and, if it is empty, its Run. It
// returns when the call is on record. A call of an attempt that has ended is
// recorded too: what was sampled is never lost. KindNotFound for an unknown
// rollout ("" is a call outside of one), KindConflict for a call id that is on record,
// KindExhausted for a full disk.
func (s *Store) AppendCall(ctx context.Context, c *fulgur.Call) error {
	const op = "append call"
	if c.ID == "" {
		return fulgur.E(fulgur.KindInvalid, op, "the call's id is missing", nil)
	}
	row, err := s.codec.encode(c)
	if err != nil {
		return fulgur.E(fulgur.KindInvalid, op, "the call cannot be recorded", err)
	}
	drops := s.drops.Load() // before the chain is looked at
	var ch *chain
	if c.Rollout != "" {
		if row.num, err = s.number(ctx, op, c.Rollout); err != nil {
			return err
		}
		ch = s.chains.of(chainKey{row.num, c.Attempt})
		ch.recall(func() *tip { return s.newestTip(ctx, c.Rollout, ch.key) })
	}
	d := s.codec.draft(c)
	defer s.codec.free(&d)
	told := ch.tell(&d, s.textAt)
	s.codec.write(row, &told, &d)
	var run fulgur.RunID
	err = s.do(ctx, op, func(b *batch) error {
		if c.Rollout != "" {
			e, err := b.get(op, c.Rollout)
			if err != nil {
				return err
			}
			run = e.Run
		}
		if row.base != 0 && s.drops.Load() != drops {
			// Its base may be gone: it stands for itself.
			alone := d.alone()
			s.codec.write(row, &alone, &d)
			ch = nil
		}
		row.seq = b.next()
		b.calls = append(b.calls, row)
		return nil
	})
	if err != nil {
		return err
	}
	if ch != nil {
		told.next.recorded(row.seq)
		s.chains.keep(ch, told.next, told.old)
	}
	c.Seq = row.seq
	if c.Run == "" {
		c.Run = run
	}
	return nil
}

// Calls returns the calls of an attempt ("": of all) in order of arrival: by
// attempt, then by index.
func (s *Store) Calls(ctx context.Context, id fulgur.RolloutID, aid fulgur.AttemptID) (out []fulgur.Call, err error) {
	texts := map[int64]text{} // by position: a base comes before what is told against it
	var before []fulgur.Message
	err = s.eachCall(ctx, "list calls", id, aid, func(c fulgur.Call, cols *columns) error {
		t, err := s.codec.read(cols, texts[cols.base.Int64])
		if err == nil {
			err = s.codec.decode(&c, cols, t, before)
		}
		texts[int64(c.Seq)], before = t, c.Messages
		out = append(out, c)
		return err
	})
	if err != nil {
		return nil, err
	}
	inOrder(out)
	return out, nil
}

// Responses is Calls with the responses and routed experts alone of what is
// large: without requests, messages, tools and prompt ids.
func (s *Store) Responses(ctx context.Context, id fulgur.RolloutID, aid fulgur.AttemptID) (out []fulgur.Call, err error) {
	fronts := map[int64][]byte{}
	err = s.eachCall(ctx, "list responses", id, aid, func(c fulgur.Call, cols *columns) error {
		front, err := s.codec.readFront(cols, fronts[cols.base.Int64])
		if err != nil {
			return err
		}
		parts, err := sections(front)
		if err == nil {
			err = s.codec.decodeSmall(&c, cols)
		}
		c.Response, c.RoutedExperts = parts[partResponse], parts[partExperts]
		fronts[int64(c.Seq)] = front
		out = append(out, c)
		return err
	})
	if err != nil {
		return nil, err
	}
	inOrder(out)
	return out, nil
}

// eachCall calls do with the calls of an attempt ("": of all), in order of their
// positions.
func (s *Store) eachCall(ctx context.Context, op string, id fulgur.RolloutID, aid fulgur.AttemptID, do func(fulgur.Call, *columns) error) error {
	if s.noCalls(id, aid) {
		return nil
	}
	num, err := s.number(ctx, op, id)
	if err != nil {
		return err
	}
	var rows *sql.Rows
	if aid == "" {
		rows, err = s.queries.callsAll.QueryContext(ctx, num)
	} else {
		rows, err = s.queries.callsOf.QueryContext(ctx, num, string(aid))
	}
	if err != nil {
		return s.fail(op, err)
	}
	defer rows.Close()
	for rows.Next() {
		c, cols, err := scanCall(rows, true)
		if err != nil {
			return s.fail(op, err)
		}
		if err := do(c, cols); err != nil {
			return s.fail(op, fmt.Errorf("call %s: %w", c.ID, err))
		}
	}
	return s.fail(op, rows.Err())
}

// countCalls counts the calls of a rollout's last attempt; none where it has ended,
// and is not looked at any more.
func (s *Store) countCalls(ctx context.Context, op string, id fulgur.RolloutID) (n int, err error) {
	s.mu.RLock()
	e := s.live.open[id]
	s.mu.RUnlock()
	if e == nil || s.noCalls(id, e.LastAttempt) {
		return 0, nil
	}
	err = s.queries.callCount.QueryRowContext(ctx, e.num, string(e.LastAttempt)).Scan(&n)
	return n, s.fail(op, err)
}

// noCalls says whether an attempt surely has no call on record: so it is at
// each attempt's first call, for which the gateway asks.
func (s *Store) noCalls(id fulgur.RolloutID, aid fulgur.AttemptID) bool {
	s.mu.RLock()
	defer s.mu.RUnlock()
	r := s.live.recent.byID[id]
	return r != nil && r.none(aid)
}

// Records returns rollouts with the calls of their last attempts, in the order
// of ids. The calls are shared: they are not to be changed. KindNotFound if one
// of the rollouts is unknown.
func (s *Store) Records(ctx context.Context, ids []fulgur.RolloutID) ([]fulgur.Record, error) {
	out := make([]fulgur.Record, len(ids))
	missing := make([]int, 0, len(ids))
	s.mu.RLock()
	for i, id := range ids {
		if r := s.live.recent.byID[id]; r != nil {
			out[i] = fulgur.Record{Rollout: r.e.Rollout, Calls: r.last()}
		} else {
			missing = append(missing, i)
		}
	}
	s.mu.RUnlock()
	for _, i := range missing {
		var err error
		if out[i].Rollout, err = s.Rollout(ctx, ids[i]); err != nil {
			return nil, err
		}
		last := out[i].Rollout.LastAttempt
		if last == "" {
			continue
		}
		if out[i].Calls, err = s.Calls(ctx, ids[i], last); err != nil {
			return nil, err
		}
		for j := range out[i].Calls {
			out[i].Calls[j] = slimmed(out[i].Calls[j])
		}
	}
	return out, nil
}

// RecordedAttempts returns the attempts of a rollout that have calls or events,
// by time of the first of them: v1's list of attempts.
func (s *Store) RecordedAttempts(ctx context.Context, id fulgur.RolloutID) ([]fulgur.AttemptID, error) {
	const op = "list recorded attempts"
	num, err := s.number(ctx, op, id)
	if err != nil {
		return nil, err
	}
	rows, err := s.queries.recorded.QueryContext(ctx, num, num)
	if err != nil {
		return nil, s.fail(op, err)
	}
	defer rows.Close()
	var out []fulgur.AttemptID
	for rows.Next() {
		var a string
		if err := rows.Scan(&a); err != nil {
			return nil, s.fail(op, err)
		}
		out = append(out, fulgur.AttemptID(a))
	}
	return out, s.fail(op, rows.Err())
}

// Call returns one call, also of a rollout that was deleted.
func (s *Store) Call(ctx context.Context, id fulgur.CallID) (fulgur.Call, error) {
	const op = "get call"
	c, cols, err := scanCall(s.queries.callByID.QueryRowContext(ctx, string(id)), false)
	if errors.Is(err, sql.ErrNoRows) {
		return c, fulgur.E(fulgur.KindNotFound, op, "Call not found: "+string(id), nil)
	}
	if err != nil {
		return c, s.fail(op, err)
	}
	t, _, err := s.readAlone(ctx, cols)
	if err == nil {
		err = s.codec.decode(&c, cols, t, nil)
	}
	return c, s.fail(op, err)
}

// maxRecalled is the longest chain that is gone on with. A longer one, as it comes
// from attempts that are forgotten at each of their calls, ends.
const maxRecalled = 64

// newestTip reads the newest call of an attempt as a tip; nil if there is none,
// or it can't be told against: then the next call stands for itself.
func (s *Store) newestTip(ctx context.Context, id fulgur.RolloutID, k chainKey) *tip {
	if s.noCalls(id, k.attempt) {
		return nil
	}
	t, cols := &tip{}, &columns{}
	err := s.queries.newest.QueryRowContext(ctx, k.num, string(k.attempt)).Scan((*int64)(&t.seq), &cols.base, (*[]byte)(&cols.prompt), (*[]byte)(&cols.bodies))
	if err != nil {
		return nil
	}
	read, over, err := s.readAlone(ctx, cols)
	if err != nil || over > maxRecalled {
		return nil
	}
	d, err := s.codec.located(read)
	if err != nil {
		return nil
	}
	t.marks = d.marks
	return t
}

// textAt reads the text of the call at a position.
func (s *Store) textAt(at fulgur.Seq) (text, error) {
	cols := &columns{}
	err := s.queries.base.QueryRowContext(context.Background(), int64(at)).Scan(&cols.base, (*[]byte)(&cols.prompt), (*[]byte)(&cols.bodies))
	if err != nil {
		return text{}, err
	}
	t, _, err := s.readAlone(context.Background(), cols)
	return t, err
}

// readAlone builds the text of a row from those that it is told against, the
// earliest first; over is how many.
func (s *Store) readAlone(ctx context.Context, cols *columns) (t text, over int, err error) {
	todo := []*columns{cols}
	for at := cols.base.Int64; at != 0; {
		of := &columns{}
		err := s.queries.base.QueryRowContext(ctx, at).Scan(&of.base, (*[]byte)(&of.prompt), (*[]byte)(&of.bodies))
		if err != nil {
			return t, 0, fmt.Errorf("reading its base, the call at %d: %w", at, err)
		}
		if of.base.Int64 >= at {
			return t, 0, errDelta // a chain goes back only
		}
		todo, at = append(todo, of), of.base.Int64
	}
	for i := len(todo) - 1; i >= 0 && err == nil; i-- {
		t, err = s.codec.read(todo[i], t)
	}
	return t, len(todo) - 1, err
}

// scanCall reads a row: the call without its large parts, and the columns of
// these; raw ones are good until the rows move on. more are the columns before.
func scanCall(row scanner, raw bool, more ...any) (c fulgur.Call, cols *columns, err error) {
	var (
		seq, started, latency   int64
		rollout, run            sql.NullString
		id, attempt, mode, fate string
	)
	cols = &columns{}
	dest := append(more, &seq, &id, &rollout, &run, &attempt, &c.Index, &mode, &c.HTTPStatus, &fate, &c.Trainable, &started, &latency, &cols.base)
	for _, col := range []*sql.RawBytes{&cols.meta, &cols.prompt, &cols.sampled, &cols.probs, &cols.bodies} {
		if raw {
			dest = append(dest, col)
		} else { // a single row takes no RawBytes
			dest = append(dest, (*[]byte)(col))
		}
	}
	if err := row.Scan(dest...); err != nil {
		return c, nil, err
	}
	c.Seq, c.ID, c.Rollout, c.Run, c.Attempt = fulgur.Seq(seq), fulgur.CallID(id), fulgur.RolloutID(rollout.String), fulgur.RunID(run.String), fulgur.AttemptID(attempt)
	c.Mode, c.Fate, c.StartedAt, c.Latency = fulgur.Mode(mode), fulgur.Fate(fate), fromMicros(started), time.Duration(latency)
	return c, cols, nil
}

package store

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	"github.com/fulgur-rl/fulgur"
)

// maxChanges bounds what one Changes returns.
const maxChanges = 4096

// Head returns the newest position of the log. A reader takes it, lists what it
// needs, then reads Changes behind it.
func (s *Store) Head(context.Context) (fulgur.Seq, error) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.live.seq, nil
}

// Changes returns the changes of a run ("": all runs) behind after, ascending,
// at most 4096; it blocks until there is one or ctx ends (KindCanceled). A reader
// that is further behind than memory reaches, or reads on after a restart,
// gets the newest change of each rollout, and of each run, in place of all of them.
// KindInvalid for a position that the record has not reached.
func (s *Store) Changes(ctx context.Context, run fulgur.RunID, after fulgur.Seq) ([]fulgur.Change, error) {
	const op = "watch changes"
	for {
		s.mu.RLock()
		old := after < s.live.from
		var out []fulgur.Change
		if !old {
			out = behind(s.live.ring, run, after)
		}
		wake, newest := s.live.wake, s.live.seq
		s.mu.RUnlock()
		if after > newest {
			return nil, fulgur.E(fulgur.KindInvalid, op, fmt.Sprintf("position %d is ahead of the record, which ends at %d: it is another record's; begin again at its head", after, newest), nil)
		}
		if old {
			var err error
			if out, err = s.oldChanges(ctx, run, after, newest); err != nil {
				return nil, s.fail(op, err)
			}
			after = newest
		}
		if len(out) > 0 {
			return out, nil
		}
		select {
		case <-wake:
		case <-ctx.Done():
			return nil, fulgur.E(fulgur.KindCanceled, op, "the caller left before there was a change", ctx.Err())
		case <-s.stop:
			return nil, fulgur.E(fulgur.KindUnavailable, op, "the store is closed", nil)
		}
	}
}

func behind(ring []fulgur.Change, run fulgur.RunID, after fulgur.Seq) []fulgur.Change {
	at, _ := slices.BinarySearchFunc(ring, after+1, func(c fulgur.Change, seq fulgur.Seq) int { return cmp.Compare(c.Seq, seq) })
	if at == len(ring) {
		return nil
	}
	out := make([]fulgur.Change, 0, min(len(ring)-at, maxChanges))
	for _, c := range ring[at:] {
		if run == "" || c.Run == run {
			if out = append(out, c); len(out) == maxChanges {
				break
			}
		}
	}
	return out
}

// oldChanges reads changes from the rows that they changed.
func (s *Store) oldChanges(ctx context.Context, run fulgur.RunID, after, newest fulgur.Seq) ([]fulgur.Change, error) {
	rows, err := s.queries.changed.QueryContext(ctx, int64(after), string(run), string(run), maxChanges)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	var out []fulgur.Change
	for rows.Next() {
		var (
			rollout, state, attempt, in string
			seq                         int64
		)
		if err := rows.Scan(&rollout, &in, &state, &attempt, &seq); err != nil {
			return nil, err
		}
		out = append(out, fulgur.Change{Seq: fulgur.Seq(seq), Kind: fulgur.ChangeRollout, Run: fulgur.RunID(in),
			Rollout: fulgur.RolloutID(rollout), Attempt: fulgur.AttemptID(attempt), State: fulgur.RolloutState(state)})
	}
	if err := rows.Err(); err != nil || len(out) == maxChanges {
		return out, err
	}
	// All of the rollouts' changes are here: the runs' follow, at the position
	// up to which the reader is now level.
	newest = max(newest, after)
	if len(out) > 0 {
		newest = max(newest, out[len(out)-1].Seq)
	}
	s.mu.RLock()
	defer s.mu.RUnlock()
	for id := range s.live.runs {
		if run == "" || id == run {
			out = append(out, fulgur.Change{Seq: newest, Kind: fulgur.ChangeRun, Run: id})
		}
	}
	return out, nil
}

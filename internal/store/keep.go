package store

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/fulgur-rl/fulgur"
)

// Backup writes the store's state of one moment to a new file at path, also while
// a store writes to the database. KindConflict if there is a file already.
func Backup(ctx context.Context, d Keeper, path string) error {
	db, err := d.OpenRead(ctx)
	if err != nil {
		return err
	}
	defer db.Close()
	return (&Store{driver: d}).fail("back up the store", d.Backup(ctx, db, path))
}

// Vacuum gives the space of what was deleted back to the disk. Writes wait for
// it: it copies the whole store.
func (s *Store) Vacuum(ctx context.Context) error {
	const op = "vacuum the store"
	k, ok := s.driver.(Keeper)
	if !ok {
		return fulgur.E(fulgur.KindUnsupported, op, s.driver.Name()+" stores are not vacuumed by Fulgur", nil)
	}
	// The writer runs it before its batch's transaction begins.
	return s.do(ctx, op, func(*batch) error { return k.Vacuum(ctx, s.sql.conn) })
}

// dropAtOnce is how many rollouts lose their records in one transaction: writes
// wait no longer than for these.
const dropAtOnce = 100

// DropRecords deletes the calls, events and artifacts of a run's rollouts ("": of all
// runs') that ended, or were deleted, before a time, and returns of how many
// rollouts. The rollouts stay, with their rewards and outcomes. What is dropped is
// gone; the space is used again, or given back by Vacuum.
func (s *Store) DropRecords(ctx context.Context, run fulgur.RunID, before time.Time) (dropped int, err error) {
	const op = "drop records"
	if run != "" {
		if _, err := s.Run(ctx, run); err != nil {
			return 0, fulgur.E(fulgur.KindNotFound, op, fmt.Sprintf("run %q is unknown", run), nil)
		}
	}
	for after := int64(-1); ; {
		nums, err := s.droppable(ctx, run, before, after)
		if err != nil {
			return dropped, s.fail(op, err)
		}
		if len(nums) == 0 {
			return dropped, nil
		}
		err = s.do(ctx, op, func(b *batch) error {
			// A call that is late, and in this very batch, saves its rollout until the next time.
			nums := slices.DeleteFunc(slices.Clone(nums), func(n int64) bool {
				return slices.ContainsFunc(b.calls, func(c *callRow) bool { return c.num == n })
			})
			s.forgetChains(nums)
			b.dropped = append(b.dropped, nums...)
			// The log's positions must not be given twice, though the rows that had the newest are gone.
			r, _ := b.run(fulgur.DefaultRun)
			b.putRun(r)
			return nil
		})
		if err != nil {
			return dropped, err
		}
		dropped += len(nums)
		after = nums[len(nums)-1]
	}
}

// forgetChains lets no call be told against those of some rollouts: not against what
// is in memory, nor by a call that has looked already. It is done before the rows go,
// for calls of the same batch, and again after, for one that read them meanwhile.
func (s *Store) forgetChains(nums []int64) {
	s.chains.forget(nums)
	s.drops.Add(1)
}

// droppable lists rollouts behind number after that have records to drop.
func (s *Store) droppable(ctx context.Context, run fulgur.RunID, before time.Time, after int64) (nums []int64, err error) {
	rows, err := s.read.QueryContext(ctx, s.driver.Rebind(`SELECT r.num FROM rollouts r
		WHERE r.num > ? AND (? = '' OR r.run = ?) AND r.updated < ? AND r.state IN ('succeeded', 'failed')
		AND (EXISTS (SELECT 1 FROM calls c WHERE c.num = r.num) OR EXISTS (SELECT 1 FROM events e WHERE e.num = r.num) OR EXISTS (SELECT 1 FROM artifacts a WHERE a.num = r.num))
		ORDER BY r.num LIMIT ?`), after, string(run), string(run), micros(before), dropAtOnce)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	for rows.Next() {
		var n int64
		if err := rows.Scan(&n); err != nil {
			return nil, err
		}
		nums = append(nums, n)
	}
	return nums, rows.Err()
}

// forget drops rollouts whose records are gone.
func (s *recents) forget(nums []int64) {
	for _, r := range s.order {
		if slices.Contains(nums, r.e.num) {
			s.drop(r)
		}
	}
}

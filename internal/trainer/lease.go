package trainer

import (
	"context"
	"fmt"
	"time"

	"github.com/fulgur-rl/fulgur"
)

// lease takes the run's trainer lease and keeps it; the context that it returns
// ends when the lease is lost.
func (t *trainer) lease(ctx context.Context) (context.Context, func(), error) {
	acquire := func(ctx context.Context) error {
		_, err := t.o.Store.AcquireLease(ctx, t.o.Run, "trainer", t.o.Holder, t.o.LeaseTTL)
		return err
	}
	err := acquire(ctx)
	if t.o.Resume && fulgur.KindOf(err) == fulgur.KindConflict {
		// Most likely the lease of a trainer that was killed, which ends soon.
		t.warn(0, "lease", "another trainer holds run %q; waiting up to %s for its lease to end, in case it has crashed", t.o.Run, t.o.LeaseTTL)
		err = patiently(ctx, t.o.LeaseTTL+time.Second, acquire)
	}
	if fulgur.KindOf(err) == fulgur.KindNotFound { // the run's first trainer makes its record
		if err = t.o.Store.PutRun(ctx, fulgur.Run{ID: t.o.Run, Model: t.o.Model, Config: t.o.Config}); err == nil {
			err = acquire(ctx)
		}
	}
	if err != nil {
		if fulgur.KindOf(err) == fulgur.KindConflict {
			return nil, nil, fulgur.E(fulgur.KindConflict, "start training", fmt.Sprintf(
				"another trainer works on run %q; stop it, or wait %s for its lease to end if it has crashed", t.o.Run, t.o.LeaseTTL), err)
		}
		return nil, nil, err
	}
	ctx, cancel := context.WithCancelCause(ctx)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		tick := time.NewTicker(t.o.LeaseTTL / 3)
		defer tick.Stop()
		last := time.Now()
		for {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
			}
			err := acquire(ctx)
			switch {
			case err == nil:
				last = time.Now()
			case ctx.Err() != nil:
				return
			case fulgur.KindOf(err) == fulgur.KindConflict || time.Since(last) > t.o.LeaseTTL:
				cancel(fulgur.E(fulgur.KindConflict, "train", "the trainer's lease was lost: the store could not be reached in time, or another trainer took over", err))
				return
			}
		}
	}()
	return ctx, func() {
		cancel(nil)
		<-ended
		ctx, done := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
		defer done()
		// If this fails, the lease ends by itself.
		_ = t.o.Store.ReleaseLease(ctx, t.o.Run, "trainer", t.o.Holder)
	}, nil
}

// patiently repeats f while it is in conflict, for some time.
func patiently(ctx context.Context, limit time.Duration, f func(context.Context) error) error {
	end := time.NewTimer(limit)
	defer end.Stop()
	tick := time.NewTicker(limit / 50)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-end.C:
			return f(ctx)
		case <-tick.C:
		}
		if err := f(ctx); fulgur.KindOf(err) != fulgur.KindConflict {
			return err
		}
	}
}

package controller

import (
	"context"
	"errors"
	"slices"
	"syscall"
	"time"

	"github.com/fulgur-rl/fulgur"
	"github.com/fulgur-rl/fulgur/internal/controller/plan"
)

// A start for which this machine had no room is tried again after firstStart, then
// later and later.
const firstStart, lastStart = 500 * time.Millisecond, 10 * time.Second

// NoRoom says whether an error is that this machine has no more of what others have now:
// open files, processes, memory, disk.
func NoRoom(err error) bool {
	return slices.ContainsFunc([]error{syscall.EMFILE, syscall.ENFILE, syscall.EAGAIN, syscall.ENOMEM, syscall.ENOSPC, syscall.EDQUOT},
		func(e error) bool { return errors.Is(err, e) })
}

// start starts an execution. While this machine has no room for it, it waits, as for a
// quota, and is tried again: that is no failed attempt. Others do not press in meanwhile
// (plan.Execution.Short). stopped is the reason for which it gave up.
func (c *Controller) start(ctx, reporting context.Context, e *execution, x Execution) (s Started, stopped string, err error) {
	var told time.Time
	for wait := firstStart; ; wait = min(2*wait, lastStart) {
		s, err = c.runner.Start(ctx, x)
		if err == nil || ctx.Err() != nil || !NoRoom(err) {
			break
		}
		why := err.Error()
		c.post(func() { e.Key, e.Short, e.why = x.Key, true, why })
		if time.Since(told) > waitsEvery {
			told = time.Now()
			c.report(reporting, x.Key, fulgur.AttemptReport{Phase: fulgur.PhaseWaiting, Why: why, Runner: c.runner.Name(), Holder: c.o.Holder})
		}
		t := time.NewTimer(wait)
		select {
		case <-t.C:
			continue
		case <-ctx.Done():
		case stopped = <-e.halt:
		}
		t.Stop()
		break
	}
	if !told.IsZero() {
		c.post(func() { e.Short, e.why, e.Since = false, "", time.Now() })
	}
	if stopped == "" && err != nil && ctx.Err() != nil {
		stopped = plan.ReasonShutdown
	}
	return s, stopped, err
}

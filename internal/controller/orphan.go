package controller

import (
	"context"
	"time"

	"github.com/fulgur-rl/fulgur"
	"github.com/fulgur-rl/fulgur/internal/controller/plan"
)

// TrainerLease is the name of the lease that a run's trainer holds.
const TrainerLease = "trainer"

// watchTrainer looks at the lease of the run's trainer. A run that never had one
// (Agent Lightning v1's, an evaluation) has nobody to be missed.
func (c *Controller) watchTrainer(ctx context.Context) {
	select { // a trainer of this process begins then
	case <-c.settled:
	case <-ctx.Done():
		return
	}
	var seen plan.Trainer
	for Pause(ctx, c.o.Orphaned/6) {
		lease, err := c.store.Lease(ctx, c.o.Run, TrainerLease)
		if err != nil && fulgur.KindOf(err) != fulgur.KindNotFound {
			continue // nothing is ended on a guess
		}
		var gone bool
		seen, gone = seen.See(lease, time.Now(), c.o.Orphaned)
		c.send(ctx, func() {
			if gone != c.orphaned {
				c.orphaned = gone
				if gone {
					c.tell("the trainer of run " + string(c.o.Run) + " is gone: its agents are ended, and none is started until it is back")
				} else {
					c.tell("the trainer of run " + string(c.o.Run) + " is back")
				}
			}
		})
	}
}

package controller

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/fulgur-rl/fulgur"
)

const (
	// A proof that found no room is tried again after firstProof, then later and later.
	firstProof, lastProof = time.Second, 30 * time.Second
	// A lead that ended with an error that may pass is tried again likewise.
	firstLead, lastLead = time.Second, 30 * time.Second
)

// proof is how far the runner is with showing what its executions reach. Starts are
// closed until it has. It is made once in a controller's life, beside its loop: what
// earlier controllers left is taken over meanwhile, watched, ended and reported, and
// gives up the room that a proof may need.
type proof struct {
	begun sync.Once
	news  chan struct{} // rings when what is below has changed

	mu     sync.Mutex
	closed string // why nothing is started; "": starts are open
	room   bool   // it waits for room
	err    error  // it failed for good
}

// look returns why starts are closed, and the error that is for good.
func (p *proof) look() (closed string, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.closed, p.err
}

// waits returns what the proof waits for; "": it does not.
func (p *proof) waits() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.room {
		return ""
	}
	return p.closed
}

func (p *proof) set(closed string, err error) {
	p.mu.Lock()
	p.closed, p.room, p.err = closed, closed != "" && err == nil, err
	p.mu.Unlock()
	select {
	case p.news <- struct{}{}:
	default:
	}
}

// prove begins the proof, if it has not been; it lasts until it is known how it ends,
// or ctx does.
func (c *Controller) prove(ctx context.Context) {
	c.proof.begun.Do(func() {
		p, ok := c.runner.(Prover)
		if !ok {
			c.decide()
			return
		}
		c.proving.Go(func() { c.tryProof(ctx, p) })
	})
}

func (c *Controller) tryProof(ctx context.Context, p Prover) {
	told := false
	for wait := firstProof; ; wait = min(2*wait, lastProof) {
		err := p.Prove(ctx, c.o.AgentURL)
		switch {
		case ctx.Err() != nil:
			return
		case err == nil:
			c.proof.set("", nil)
			c.decide()
			if told {
				c.tell(fmt.Sprintf("agents of run %s are started again: what they reach is shown", c.o.Run))
			}
			return
		case fulgur.KindOf(err) != fulgur.KindExhausted:
			c.proof.set("what agents reach is not what it should be: "+err.Error(), err)
			return
		}
		why := "there is no room to try what agents reach: " + err.Error()
		c.proof.set(why, nil)
		if !told {
			told = true
			c.tell(fmt.Sprintf("no agent of run %s is started yet: %s", c.o.Run, why))
		}
		if !Pause(ctx, wait) {
			return
		}
	}
}

// Settled is closed when the run is not refused at its start any more: its runner has
// shown what agents reach, agents of an earlier controller were taken over, or another
// controller leads. Run may end with an error before, and after.
func (c *Controller) Settled() <-chan struct{} { return c.settled }

func (c *Controller) decide() { c.settles.Do(func() { close(c.settled) }) }

// passes says whether an error of a lead may be over when it is tried again: a cluster
// or a container program that does not answer now. What is wrong for good, or with this
// program, is not.
func passes(err error) bool {
	switch fulgur.KindOf(err) {
	case fulgur.KindUnavailable, fulgur.KindUpstream, fulgur.KindTimeout, fulgur.KindExhausted:
		return true
	}
	return false
}

// Trouble says why the controller runs no agents though it would; "": there is nothing.
func (c *Controller) Trouble() string {
	c.proof.mu.Lock()
	defer c.proof.mu.Unlock()
	return c.trouble
}

// troubled notes why, and says whether it is news.
func (c *Controller) troubled(why string) (news bool) {
	c.proof.mu.Lock()
	defer c.proof.mu.Unlock()
	news = why != c.trouble
	c.trouble = why
	return news
}

package grade

import (
	"context"
	"errors"
	"io"
	"time"

	"github.com/fulgur-rl/fulgur/internal/controller/plan"
)

// Test is one run of Options.Tests, elsewhere than on this machine.
type Test struct {
	Key     plan.Key
	Work    string        // the folder that they run in a copy of
	Timeout time.Duration // of their own running: what they wait for before is not theirs
	Out     io.Writer     // gets what they print
}

// RunApart runs tests as RunTests does. Its error is context.DeadlineExceeded where they
// took longer than they may.
type RunApart func(ctx context.Context, t Test) (exit int, err error)

// NewApart is New for tests that run elsewhere.
func NewApart(o *Options, state string, tests RunApart) (*Grader, error) {
	g, err := New(o, state, nil)
	if g != nil {
		g.tests = tests
	}
	return g, err
}

// timed has tests that know of no limit end with theirs.
func timed(tests RunTests) RunApart {
	return func(ctx context.Context, t Test) (int, error) {
		inner, cancel := context.WithTimeout(ctx, t.Timeout)
		defer cancel()
		exit, err := tests(inner, t.Work, t.Out)
		if inner.Err() != nil {
			err = inner.Err()
		}
		return exit, err
	}
}

// Refuse notes that what an agent has left is not taken, and why: its own doing.
func (g *Grader) Refuse(key plan.Key, why string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if _, again := g.patches[key]; !again {
		g.patches[key] = taken{err: errors.New(why)}
	}
}

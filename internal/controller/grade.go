package controller

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/fulgur-rl/fulgur"
	"github.com/fulgur-rl/fulgur/internal/controller/plan"
)

// Grader is an optional interface of a Runner that has a program grade what an
// execution has left, after it has ended.
type Grader interface {
	// Grades says whether there is a grader at all.
	Grades() bool

	// Grade returns what the grader says of an execution that has ended, well or, where
	// the runner was told that failures are graded too, not. An error is the grader's own
	// failure; KindExhausted, KindUnavailable and KindTimeout say that the machine is to
	// blame, and another attempt may go better. ErrNothingLeft says of one that failed
	// that there is nothing to grade. It is called at most once for each execution, and
	// waits.
	Grade(ctx context.Context, g Grading) (Grade, error)
}

// ErrNothingLeft is that of a Grader which has nothing of an execution.
var ErrNothingLeft = errors.New("what the agent left is not here, so that it is not graded")

// Grading is what a grader gets.
type Grading struct {
	Key   plan.Key
	Input json.RawMessage // whole, with what is withheld from the agent
}

// Grade is what it says. What is known beside the reward is also told with an error.
// Flags are of files that decide how tests run, outside what may be changed.
type Grade struct {
	Reward float64
	fulgur.Graded
}

// rewarder is the part of the store that takes rewards.
type rewarder interface {
	SetRewards(ctx context.Context, rs []fulgur.Reward) error
}

// grader returns the runner's grader, nil if it has none, and what takes rewards.
func (c *Controller) grader() (Grader, rewarder) {
	g, ok := c.runner.(Grader)
	if !ok || !g.Grades() {
		return nil, nil
	}
	w, _ := c.store.(rewarder) // New has looked
	return g, w
}

// grade has an execution graded whose outcome counts for what it has left, and puts
// the reward on record before its end is. What it returns in place of the exit is told
// instead.
func (c *Controller) grade(ctx context.Context, key plan.Key, end ended) ended {
	g, w := c.grader()
	x := end.exit
	well := x.Code == 0 && x.Failure == "" && x.Signal == "" && end.stopped == ""
	if g == nil || !well && !c.o.Limits.Table.Failures() {
		return end
	}
	facts := plan.Facts{Exit: x, Stopped: end.stopped, Limit: end.limit, Limits: c.o.Limits}
	end.known = c.learn(ctx, key, end.since, c.activities(ctx, []fulgur.AttemptKey{fulgur.AttemptKey(key)})[0])
	end.known.tell(&facts)
	var grade Grade
	var rollout fulgur.Rollout
	err := c.persist(ctx, "reading a rollout", func() (err error) {
		rollout, err = c.store.Rollout(ctx, key.Rollout)
		return err
	})
	if !plan.Graded(facts, rollout.IsTrain) {
		return end // another attempt follows, it is masked, or its reward is fixed
	}
	c.report(ctx, key, fulgur.AttemptReport{Phase: fulgur.PhaseGrading, Runner: c.runner.Name(), Holder: c.o.Holder})
	if err == nil {
		c.stats.grading(1)
		grade, err = g.Grade(ctx, Grading{Key: key, Input: rollout.Input})
		c.stats.grading(-1)
	}
	if errors.Is(err, ErrNothingLeft) && !well {
		end.exit.Note = err.Error()
		return end
	}
	if d := grade.Graded; d.Tests != nil || d.Log != "" || len(d.Flags) > 0 {
		end.exit.Graded = &d
	}
	graded := end.exit.Graded
	if err == nil {
		err = c.persist(ctx, "recording a reward", func() error {
			return w.SetRewards(ctx, []fulgur.Reward{{AttemptKey: fulgur.AttemptKey(key), Value: grade.Reward, Source: "grader"}})
		})
	}
	if err != nil {
		if ctx.Err() != nil {
			end.stopped = plan.ReasonShutdown
			return end
		}
		end.exit = plan.Failed(plan.ReasonGrader, "the grader failed, so that nobody knows what the agent's work is worth: "+err.Error())
		end.exit.CPU, end.exit.Graded, end.stopped = x.CPU, graded, ""
		switch fulgur.KindOf(err) {
		case fulgur.KindExhausted, fulgur.KindUnavailable, fulgur.KindTimeout:
			end.exit.Cause = plan.CauseTransient
		}
		return end
	}
	if len(grade.Flags) > 0 {
		c.log.Warn("an agent left files that decide how it is graded", "rollout", key.Rollout, "attempt", key.Attempt, "files", grade.Flags)
		end.exit.Note = fmt.Sprintf("flagged: %s", strings.Join(grade.Flags, "; "))
	}
	return end
}

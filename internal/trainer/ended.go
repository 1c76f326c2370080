package trainer

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/fulgur-rl/fulgur"
	"github.com/fulgur-rl/fulgur/internal/trainer/sample"
)

// fullCalls is what a Store may offer beside its records, which are without routed
// experts.
type fullCalls interface {
	Calls(ctx context.Context, id fulgur.RolloutID, a fulgur.AttemptID) ([]fulgur.Call, error)
}

// withExperts reads the records' calls with their routed experts, where these are
// replayed: the store can do that then (fitEngine).
func (t *trainer) withExperts(ctx context.Context, records []fulgur.Record) error {
	if !t.o.Samples.Replay {
		return nil
	}
	st := t.o.Store.(fullCalls)
	for k := range records {
		r := &records[k]
		if len(r.Calls) == 0 || !r.Rollout.IsTrain {
			continue
		}
		calls, err := again(ctx, func() ([]fulgur.Call, error) { return st.Calls(ctx, r.Rollout.ID, r.Rollout.LastAttempt) })
		if err != nil {
			return err
		}
		r.Calls = calls
	}
	return nil
}

// finish grades an ended rollout and builds its samples.
// The reward is nil if the record has it, or there is none.
func (t *trainer) finish(step int64, a ask, r fulgur.Rollout, calls []fulgur.Call) (ended, *fulgur.Reward) {
	e := ended{ask: a, first: -1, attempt: r.LastAttempt}
	if a.train && t.o.Objective.perCall() {
		e.calls = ownCalls(calls)
	}
	if a.train && t.o.Objective.V1 {
		e.recorded = calls
	}
	e.line = RolloutLine{Step: step, Part: a.key.Part, ID: r.ID, Group: r.Group, Row: a.row.Index,
		Class: fulgur.OutcomeOK, Calls: len(calls), Version: t.state.Version, Seconds: r.UpdatedAt.Sub(r.CreatedAt).Seconds()}
	if r.Outcome != nil {
		e.line.Class, e.line.Outcome = r.Outcome.Class, r.Outcome.Reason
		if e.message, e.graded = r.Outcome.Message, r.Outcome.Graded; e.graded != nil {
			e.line.Flags = e.graded.Flags
		}
	} else if r.State == fulgur.Failed {
		e.line.Class, e.line.Outcome = fulgur.OutcomeAgent, "failed"
	}
	reward := t.grade(&e.line, r, calls)
	reward = t.o.Audit.apply(&e.line, r, calls, reward, t.o.AgentFailure)
	for i := range calls {
		e.line.Sampled += len(calls[i].SampledIDs)
		e.open += calls[i].Latency
	}
	if a.train && t.asynchronous() {
		e.versions(calls)
	}
	if a.train {
		e.built = sample.Build(r.Group, calls, t.samplesConfig().Options())
		e.line.Take(&e.built)
	}
	return e, reward
}

// versions notes which policies sampled a rollout (case AS-05).
func (e *ended) versions(calls []fulgur.Call) {
	last := fulgur.PolicyVersion(-1)
	for i := range calls {
		c := &calls[i]
		if len(c.SampledIDs) == 0 {
			continue
		}
		if v := int64(c.Version()); e.first < 0 || v < e.first {
			e.first = v
		}
		last = max(last, c.Version())
		for _, span := range c.Spans {
			last = max(last, span.Version)
		}
	}
	if e.first >= 0 {
		e.line.Version = fulgur.PolicyVersion(e.first)
		if last > e.line.Version {
			e.line.Last = &last
		}
	}
}

// grade sets the line's reward, or why the rollout is masked, and returns what
// is to be put on record.
func (t *trainer) grade(line *RolloutLine, r fulgur.Rollout, calls []fulgur.Call) *fulgur.Reward {
	follow, graded := t.follow(line), false
	switch {
	case follow.Mask && line.Class == fulgur.OutcomeInfrastructure:
		line.Masked = maskInfrastructure
		return nil
	case follow.Mask:
		line.Masked = maskOutcome
		return nil
	case follow.Value != nil:
		v := *follow.Value
		line.Reward, line.Why = &v, "the configured reward of "+line.Outcome
		if line.Class == fulgur.OutcomeAgent {
			line.Why = "the configured reward of an agent failure"
		}
	case t.o.Grader != nil:
		v, why, err := t.o.Grader.Grade(r.Input, calls)
		if err != nil {
			line.Masked, line.Why = maskGrader, err.Error()
			return nil
		}
		line.Reward, line.Why, graded = &v, why, true
	case r.Reward != nil && (line.Class != fulgur.OutcomeAgent || usable(*r.Reward)):
		v := *r.Reward
		line.Reward, line.Why = &v, "reported by the agent"
		if t.o.Graded {
			line.Why = "graded by reward.command"
		}
	case line.Class == fulgur.OutcomeAgent: // whatever it has posted
		line.Reward, line.Why = t.failure(), whyFailed
	case line.Class == fulgur.OutcomeInfrastructure:
		line.Masked, line.Why = maskInfrastructure, "there is nothing that it could be graded by"
		return nil
	case t.o.Graded:
		line.Masked, line.Why = maskGrader, "reward.command gave no reward"
		return nil
	default:
		line.Reward, line.Why = t.failure(), whyNoReward
	}
	switch v := *line.Reward; {
	case !finite(v):
		line.Reward, line.Masked, line.Why = nil, maskNotFinite, fmt.Sprintf("the reward is %g (%s)", v, line.Why)
		return nil
	case !usable(v):
		line.Reward, line.Masked, line.Why = nil, maskRange, fmt.Sprintf("the reward %g is beyond ±%g (%s)", v, mostReward, line.Why)
		return nil
	}
	if r.Reward != nil && *r.Reward == *line.Reward || r.LastAttempt == "" {
		return nil
	}
	source := "outcome" // what the way it ended is worth
	if graded {
		source = "grader"
	}
	return &fulgur.Reward{AttemptKey: fulgur.AttemptKey{Rollout: r.ID, Attempt: r.LastAttempt}, Value: *line.Reward, Source: source}
}

// failure is the reward of a rollout that has none and is not masked for it.
func (t *trainer) failure() *float64 {
	v := 0.0
	if t.o.AgentFailure != nil {
		v = *t.o.AgentFailure
	}
	return &v
}

// follow says what an outcome counts for. What a run makes of outcomes in
// training is no reason to leave them out of what it is measured by.
func (t *trainer) follow(line *RolloutLine) (f fulgur.Follow) {
	switch line.Class {
	case fulgur.OutcomeInfrastructure:
		f.Mask = true
	case fulgur.OutcomeAgent:
		f.Value = t.o.AgentFailure
	}
	if t.o.Follow != nil && line.Part == "train" {
		f = t.o.Follow(line.Class, line.Outcome)
	}
	return f
}

// stopped writes down what became of the rollouts of a step that stops the run:
// who looks for the cause looks there. None of it has trained, whatever advantage
// it has got. A resumed run cuts these lines off.
func (t *trainer) stopped(cause error, rollouts []ended) error {
	t.warnCauses(t.state.Cursor.Step+1, rollouts)
	lines := slices.Clone(t.dropped)
	for i := range rollouts {
		lines = append(lines, rollouts[i].line)
	}
	all := make([]any, len(lines))
	for i := range lines {
		lines[i].Step = t.state.Cursor.Step + 1
		lines[i].Masked = cmp.Or(lines[i].Masked, MaskStopped)
		all[i] = &lines[i]
	}
	if err := t.rollouts.Append(all...); err != nil {
		return errors.Join(cause, err)
	}
	return cause
}

// askAnew has a resumed run ask for a step's rollouts again, since those on record
// would stop it at once. What has tokens and is masked by its grade alone is graded
// again instead, where the grader is ours.
func (t *trainer) askAnew(rollouts []ended) {
	for i := range rollouts {
		l := &rollouts[i].line
		grade := l.Masked == maskGrader || l.Masked == maskNotFinite || l.Masked == maskRange
		if t.o.Grader == nil || !grade || l.Trained == 0 {
			t.state.Anew = append(t.state.Anew, l.ID)
		}
	}
	t.saved = -1 // the state has changed: the step's checkpoint is written again
}

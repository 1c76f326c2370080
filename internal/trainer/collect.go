package trainer

import (
	"context"
	"errors"
	"hash/fnv"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/fulgur-rl/fulgur"
	"github.com/fulgur-rl/fulgur/internal/trainer/data"
	"github.com/fulgur-rl/fulgur/internal/trainer/sample"
	"github.com/fulgur-rl/fulgur/internal/trainer/schedule"
)

// ask is one rollout that is wanted.
type ask struct {
	key    fulgur.RolloutKey
	row    data.Row
	train  bool
	greedy bool
}

// ended is an ask with what came of it.
type ended struct {
	ask
	line  RolloutLine
	built sample.Built // of training rollouts
}

func (e *ended) masked() bool { return e.line.Masked != "" }

// Reasons why a rollout is masked.
const (
	maskInfrastructure = "infrastructure"
	maskGrader         = "grader_failed"
	maskNotFinite      = "reward_not_finite"
)

// spec is what creates the ask's rollout. Its seed is a function of the run's
// seed and of what is asked for, not of the id, so that a rollout that was cut
// off by a crash and is asked for again under another id samples the same tokens.
func (t *trainer) spec(a ask) fulgur.RolloutSpec {
	first := a.key
	first.Refill = 0
	sampling := t.o.Sampling
	if !a.train {
		sampling.Temperature = 1
	}
	if a.greedy {
		sampling.Temperature = 0
	}
	source := fulgur.RewardsAgent
	if t.o.Grader != nil {
		source = fulgur.RewardsGraded
	}
	h := fnv.New64a()
	h.Write([]byte(fulgur.NewRolloutID(first)))
	return fulgur.RolloutSpec{
		ID: fulgur.NewRolloutID(a.key), Run: t.o.Run, Group: fulgur.GroupOf(first), Input: a.row.Input,
		IsTrain: a.train, Greedy: a.greedy, Withhold: t.o.Withhold, Rewards: source, Sampling: &sampling,
		Timeout: t.o.Timeout, Seed: schedule.Mix(t.o.Seed, h.Sum64()),
	}
}

// collect creates the rollouts, waits until all have ended, grades each as it
// ends, and returns them in the order of the asks.
func (t *trainer) collect(ctx context.Context, step int64, asks []ask) ([]ended, error) {
	if t.adopting {
		if err := t.adopt(ctx, asks); err != nil {
			return nil, err
		}
	}
	specs := make([]fulgur.RolloutSpec, len(asks))
	for i, a := range asks {
		specs[i] = t.spec(a)
	}
	seq, err := again(ctx, func() (fulgur.Seq, error) { return t.o.Store.Head(ctx) })
	if err != nil {
		return nil, err
	}
	rollouts, err := again(ctx, func() ([]fulgur.Rollout, error) { return t.o.Store.CreateRollouts(ctx, specs) })
	if err != nil {
		return nil, err
	}
	c := &collecting{step: step, asks: asks, out: make([]ended, len(asks)), pending: make(map[fulgur.RolloutID]int, len(asks))}
	for i, r := range rollouts {
		c.pending[r.ID] = i
		if r.State.Terminal() {
			c.over = append(c.over, r.ID)
		}
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	return c.out, t.await(ctx, c, t.watch(ctx, seq))
}

const (
	// atOnce is how many ended rollouts are read and graded in one go: a request
	// for each costs more than the reading. They wait for one another while
	// others still run, for readWithin at most.
	atOnce     = 32
	readWithin = 250 * time.Millisecond
	// takenWithin is how long a warning waits that no controller takes a rollout up.
	takenWithin = 10 * time.Second
)

// collecting is a collect under way.
type collecting struct {
	step    int64
	asks    []ask
	out     []ended
	pending map[fulgur.RolloutID]int // index of what has not been read
	over    []fulgur.RolloutID       // of these, what has ended
	done    int
	taken   bool // a controller has taken one up
}

// heard notes what has ended.
func (c *collecting) heard(changes []fulgur.Change) {
	for _, ch := range changes {
		c.taken = c.taken || ch.Kind != fulgur.ChangeRun && ch.State != fulgur.Queuing
		if _, ok := c.pending[ch.Rollout]; ok && ch.State.Terminal() && !slices.Contains(c.over, ch.Rollout) {
			c.over = append(c.over, ch.Rollout)
		}
	}
}

// await reads and grades until nothing is pending.
func (t *trainer) await(ctx context.Context, c *collecting, watch <-chan heard) error {
	due := time.NewTimer(readWithin)
	defer due.Stop()
	untaken := time.NewTimer(takenWithin)
	defer untaken.Stop()
	late := true
	for len(c.pending) > 0 {
		if n := len(c.over); n > 0 && (late || n >= atOnce || n == len(c.pending)) {
			if err := t.read(ctx, c); err != nil {
				return err
			}
			due.Reset(readWithin)
			late = false
			continue
		}
		select {
		case h := <-watch:
			if h.err != nil {
				return h.err
			}
			if h.changes == nil {
				t.warn(c.step, "waiting", "nothing has happened for %s; %d rollouts of step %d have not ended. Does a controller run, and do the agents reach the gateway?", t.o.Patience, len(c.pending), c.step)
			}
			c.heard(h.changes)
		case <-due.C:
			late = true
		case <-untaken.C:
			if !c.taken {
				t.warn(c.step, "waiting", "no controller has taken a rollout up within %s: does one run? (fulgur controller RUN.yaml --server URL)", takenWithin)
			}
		case <-ctx.Done():
		}
		if err := ctx.Err(); err != nil {
			return fulgur.E(fulgur.KindCanceled, "train", "stopped", err)
		}
	}
	if err := ctx.Err(); err != nil { // asked to stop while the last were read
		return fulgur.E(fulgur.KindCanceled, "train", "stopped", err)
	}
	return nil
}

// read takes what has ended in, and gives it its rewards.
func (t *trainer) read(ctx context.Context, c *collecting) error {
	ids := c.over[:min(len(c.over), atOnce)]
	records, err := again(ctx, func() ([]fulgur.Record, error) { return t.o.Store.Records(ctx, ids) })
	if err != nil {
		return err
	}
	var rewards []fulgur.Reward
	for k, id := range ids {
		i := c.pending[id]
		e, reward := t.finish(c.step, c.asks[i], records[k].Rollout, records[k].Calls)
		if reward != nil {
			rewards = append(rewards, *reward)
		}
		c.out[i] = e
	}
	if len(rewards) > 0 {
		if _, err := again(ctx, func() (struct{}, error) { return struct{}{}, t.o.Store.SetRewards(ctx, rewards) }); err != nil {
			return err
		}
	}
	for _, id := range ids {
		i := c.pending[id]
		delete(c.pending, id)
		c.done++
		t.o.Observer(Progress{Part: strings.TrimSuffix(c.asks[i].key.Part, greedySuffix), Step: c.step, Done: c.done, Total: len(c.asks)})
	}
	c.over = c.over[len(ids):]
	return nil
}

// heard is what the watch brought: changes, or nil if there was none for a long time.
type heard struct {
	changes []fulgur.Change
	err     error
}

// watch reads changes until ctx ends or the watch fails.
func (t *trainer) watch(ctx context.Context, after fulgur.Seq) <-chan heard {
	out := make(chan heard)
	go func() {
		for {
			changes, err := t.changes(ctx, after)
			select {
			case out <- heard{changes, err}:
			case <-ctx.Done():
				return
			}
			if err != nil {
				return
			}
			for _, c := range changes {
				after = max(after, c.Seq)
			}
		}
	}()
	return out
}

// changes waits for the next changes; nil if there is none for a long time.
func (t *trainer) changes(ctx context.Context, after fulgur.Seq) ([]fulgur.Change, error) {
	return again(ctx, func() ([]fulgur.Change, error) {
		wait, cancel := context.WithTimeout(ctx, t.o.Patience)
		defer cancel()
		changes, err := t.o.Store.Changes(wait, t.o.Run, after)
		if err != nil && wait.Err() != nil && ctx.Err() == nil {
			return nil, nil
		}
		return changes, err
	})
}

// finish grades an ended rollout and builds its samples.
// The reward is nil if the record has it, or there is none.
func (t *trainer) finish(step int64, a ask, r fulgur.Rollout, calls []fulgur.Call) (ended, *fulgur.Reward) {
	e := ended{ask: a}
	e.line = RolloutLine{Step: step, Part: a.key.Part, ID: r.ID, Group: r.Group, Row: a.row.Index,
		Class: fulgur.OutcomeOK, Calls: len(calls), Version: t.state.Version, Seconds: r.UpdatedAt.Sub(r.CreatedAt).Seconds()}
	if r.Outcome != nil {
		e.line.Class, e.line.Outcome = r.Outcome.Class, r.Outcome.Reason
	} else if r.State == fulgur.Failed {
		e.line.Class, e.line.Outcome = fulgur.OutcomeAgent, "failed"
	}
	reward := t.grade(&e.line, r, calls)
	for i := range calls {
		e.line.Sampled += len(calls[i].SampledIDs)
	}
	if a.train {
		e.built = sample.Build(r.Group, calls, sample.Options{MaxTokens: t.maxTokens})
		e.line.Sampled, e.line.Trained, e.line.Samples = e.built.Sampled, e.built.Trained, len(e.built.Samples)
		for _, why := range e.built.Reasons {
			if why != "" {
				if e.line.Untrained == nil {
					e.line.Untrained = map[string]int{}
				}
				e.line.Untrained[why]++
			}
		}
	}
	return e, reward
}

// grade sets the line's reward, or why the rollout is masked, and returns what
// is to be put on record.
func (t *trainer) grade(line *RolloutLine, r fulgur.Rollout, calls []fulgur.Call) *fulgur.Reward {
	switch {
	case line.Class == fulgur.OutcomeInfrastructure:
		line.Masked = maskInfrastructure
		return nil
	case line.Class == fulgur.OutcomeAgent && t.o.AgentFailure != nil:
		v := *t.o.AgentFailure
		line.Reward, line.Why = &v, "the configured reward of an agent failure"
	case t.o.Grader == nil && r.Reward != nil:
		v := *r.Reward
		line.Reward, line.Why = &v, "reported by the agent"
	case t.o.Grader == nil:
		v := 0.0
		if t.o.AgentFailure != nil {
			v = *t.o.AgentFailure
		}
		line.Reward, line.Why = &v, "the agent reported no reward"
	default:
		v, why, err := t.o.Grader.Grade(r.Input, calls)
		if err != nil {
			line.Masked, line.Why = maskGrader, err.Error()
			return nil
		}
		line.Reward, line.Why = &v, why
	}
	if v := *line.Reward; math.IsNaN(v) || math.IsInf(v, 0) {
		line.Reward, line.Masked = nil, maskNotFinite
		return nil
	}
	if t.o.Grader == nil && r.Reward != nil || r.Reward != nil && *r.Reward == *line.Reward || r.LastAttempt == "" {
		return nil
	}
	return &fulgur.Reward{AttemptKey: fulgur.AttemptKey{Rollout: r.ID, Attempt: r.LastAttempt}, Value: *line.Reward, Source: "grader"}
}

// adopt looks for rollouts that an earlier process of this run asked for behind
// the checkpoint. One that is as it would be if nothing had happened is used;
// another one is ended and asked for again under the next id. When none is
// found, none can come later.
func (t *trainer) adopt(ctx context.Context, asks []ask) error {
	found := false
	for i := range asks {
		for ; ; asks[i].key.Refill++ {
			id := fulgur.NewRolloutID(asks[i].key)
			r, err := again(ctx, func() (fulgur.Rollout, error) { return t.o.Store.Rollout(ctx, id) })
			if fulgur.KindOf(err) == fulgur.KindNotFound {
				break
			}
			if err != nil {
				return err
			}
			found = true
			ok, err := t.usable(ctx, r)
			if err != nil {
				return err
			}
			if ok {
				break
			}
			if err := t.supersede(ctx, r); err != nil {
				return err
			}
		}
	}
	t.adopting = found
	return nil
}

// usable says whether a rollout of an earlier process ended undisturbed under
// the policy that is the current one.
func (t *trainer) usable(ctx context.Context, r fulgur.Rollout) (bool, error) {
	if !r.State.Terminal() || r.LastAttempt != "0" || r.Outcome == nil || r.Outcome.Class == fulgur.OutcomeInfrastructure {
		return false, nil
	}
	records, err := again(ctx, func() ([]fulgur.Record, error) { return t.o.Store.Records(ctx, []fulgur.RolloutID{r.ID}) })
	if err != nil {
		return false, err
	}
	disturbed := slices.ContainsFunc(records[0].Calls, func(c fulgur.Call) bool {
		return c.Error != "" || len(c.SampledIDs) > 0 && c.Version() != t.state.Version
	})
	return !disturbed, nil
}

func (t *trainer) supersede(ctx context.Context, r fulgur.Rollout) error {
	if r.State.Terminal() {
		return nil
	}
	_, err := again(ctx, func() (fulgur.Rollout, error) {
		return t.o.Store.EndRollout(ctx, r.ID, fulgur.Outcome{Class: fulgur.OutcomeInfrastructure,
			Reason: "superseded", Message: "the trainer was restarted while this rollout ran; it is asked for again"})
	})
	if fulgur.KindOf(err) == fulgur.KindConflict { // it ended in between
		return nil
	}
	return err
}

// supersedeOpen ends what an earlier process left running.
func (t *trainer) supersedeOpen(ctx context.Context) error {
	q := fulgur.RolloutQuery{Run: t.o.Run, States: []fulgur.RolloutState{fulgur.Queuing, fulgur.Running}}
	for {
		page, err := again(ctx, func() ([]fulgur.Rollout, error) { return t.o.Store.Rollouts(ctx, q) })
		if err != nil || len(page) == 0 {
			return err
		}
		for _, r := range page {
			if err := t.supersede(ctx, r); err != nil {
				return err
			}
		}
		q.After = page[len(page)-1].ID
	}
}

// again repeats an idempotent request that failed for a reason that may pass
// (a server restarts), for about two minutes.
func again[T any](ctx context.Context, f func() (T, error)) (T, error) {
	wait := 100 * time.Millisecond
	for try := 0; ; try++ {
		if err := ctx.Err(); err != nil { // what answers from memory does not look
			var none T
			return none, fulgur.E(fulgur.KindCanceled, "train", "stopped", err)
		}
		v, err := f()
		if err == nil || try == 30 || !fulgur.KindOf(err).Retryable() || errors.Is(err, context.Canceled) {
			return v, err
		}
		timer := time.NewTimer(wait)
		select {
		case <-ctx.Done():
			timer.Stop()
			return v, err
		case <-timer.C:
		}
		wait = min(2*wait, 5*time.Second)
	}
}

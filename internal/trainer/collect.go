package trainer

import (
	"context"
	"errors"
	"hash/fnv"
	"slices"
	"strings"
	"time"

	"github.com/fulgur-rl/fulgur"
	"github.com/fulgur-rl/fulgur/internal/engine"
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
	built sample.Built   // of training rollouts
	data  []engine.Datum // its samples as the engine takes them; nil: not built yet (datums)
	first int64          // policy version of its first sampled token; below 0: it has none
	open  time.Duration  // that its calls were open, held or being answered

	message     string         // of its outcome
	graded      *fulgur.Graded // nil: by no program
	attempt     fulgur.AttemptID
	calls       []fulgur.CallID // its own, where they may differ in advantage
	callRewards []float64       // of these; nil: none
	advantages  []float64       // of these; nil: the line's counts for all
	penalty     float64         // taken off the reward
	recorded    []fulgur.Call   // under compat v1, whose rows are made of a whole batch
}

func (e *ended) masked() bool { return e.line.Masked != "" }

// Reasons why a rollout is masked.
const (
	maskInfrastructure = "infrastructure"
	maskGrader         = "grader_failed"
	maskNotFinite      = "reward_not_finite"
	maskRange          = "reward_out_of_range" // beyond mostReward
	maskOutcome        = "outcome"             // the run masks this way to end
	maskFiltered       = "filtered"            // with its group; the filter's reason follows
	// MaskStopped: its step stopped the run and made no policy.
	MaskStopped = "step_stopped"
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
	if t.o.Grader != nil || t.o.Graded {
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

const (
	// atOnce is how many ended rollouts are read and graded in one go: a request
	// for each costs more than the reading. They wait for one another while
	// others still run, for readWithin at most, or less where each group that is
	// complete may start a step.
	atOnce          = 32
	readWithin      = 250 * time.Millisecond
	readWithinAsync = 50 * time.Millisecond
	// takenWithin is how long a warning waits that no controller takes a rollout up.
	takenWithin = 10 * time.Second
)

// batch is what is waited for as a whole: an evaluation, or a group.
type batch struct {
	step  int64
	asks  []ask
	out   []ended // in the order of the asks
	left  int
	group *schedule.Group // nil: an evaluation
	why   string          // a filter does not want it
}

// desk keeps all rollouts that were created and not read.
type desk struct {
	watch   <-chan heard
	pending map[fulgur.RolloutID]place
	over    []fulgur.RolloutID // of these, what has ended
	taken   bool               // a controller has taken one up
}

// place is where in a batch a rollout belongs.
type place struct {
	*batch
	i int
}

// create creates the rollouts of batches. What an earlier process of this run
// asked for behind the checkpoint is there already: one that is as if nothing had
// happened is used, another one is asked for again under the next id.
func (t *trainer) create(ctx context.Context, batches ...*batch) error {
	if t.desk.watch == nil {
		seq, err := again(ctx, func() (fulgur.Seq, error) { return t.o.Store.Head(ctx) })
		if err != nil {
			return err
		}
		t.desk.watch, t.desk.pending = t.watch(ctx, seq), map[fulgur.RolloutID]place{}
	}
	var places []place
	for _, b := range batches {
		b.out, b.left = make([]ended, len(b.asks)), len(b.asks)
		for i := range b.asks {
			places = append(places, place{b, i})
		}
	}
	for len(places) > 0 {
		specs := make([]fulgur.RolloutSpec, len(places))
		for k, p := range places {
			specs[k] = t.spec(p.asks[p.i])
		}
		rollouts, err := again(ctx, func() ([]fulgur.Rollout, error) { return t.o.Store.CreateRollouts(ctx, specs) })
		if err != nil {
			return err
		}
		var anew []place
		for k, p := range places {
			r := rollouts[k]
			if r.State.Terminal() { // what still ran when this process began was ended then
				ok, err := t.usable(ctx, p.asks[p.i], r)
				if err != nil {
					return err
				}
				if !ok {
					p.asks[p.i].key.Refill++
					anew = append(anew, p)
					continue
				}
				t.desk.over = append(t.desk.over, r.ID)
			}
			t.desk.pending[r.ID] = p
		}
		places = anew
	}
	return nil
}

// collect creates the rollouts, waits until all have ended, grades each as it
// ends, and returns them in the order of the asks. Groups that complete meanwhile
// are told to the schedule.
func (t *trainer) collect(ctx context.Context, step int64, asks []ask) ([]ended, error) {
	b := &batch{step: step, asks: asks}
	if err := t.create(ctx, b); err != nil {
		return nil, err
	}
	return b.out, t.await(ctx, step, t.asynchronous(), func() bool { return b.left == 0 })
}

// await reads and grades what ends, until done. With asking, the groups that the
// schedule asks for are created meanwhile.
func (t *trainer) await(ctx context.Context, step int64, asking bool, done func() bool) error {
	within := readWithin
	if t.asynchronous() {
		within = readWithinAsync
	}
	due, untaken, quiet := time.NewTimer(within), time.NewTimer(takenWithin), time.NewTimer(t.o.Patience)
	defer due.Stop()
	defer untaken.Stop()
	defer quiet.Stop()
	d := &t.desk
	for late := true; ; {
		if asking {
			if err := t.createAsked(ctx); err != nil {
				return err
			}
		}
		if err := ctx.Err(); err != nil {
			return fulgur.E(fulgur.KindCanceled, "train", "stopped", err)
		}
		if done() {
			return nil
		}
		if n := len(d.over); n > 0 && (late || n >= atOnce || n == len(d.pending)) {
			if err := t.read(ctx); err != nil {
				return err
			}
			due.Reset(within)
			late = false
			continue
		}
		select {
		case h := <-d.watch:
			if h.err != nil {
				return h.err
			}
			if len(h.changes) > 0 {
				quiet.Reset(t.o.Patience)
			}
			d.heard(h.changes)
		case <-due.C:
			late = true
			if err := t.tick(ctx); err != nil {
				return err
			}
			due.Reset(within)
		case <-untaken.C:
			if !d.taken {
				t.warn(step, "waiting", "no controller has taken a rollout up within %s: does one run? (fulgur controller RUN.yaml --server URL)", takenWithin)
			}
		case <-quiet.C:
			t.warn(step, "waiting", "nothing has happened for %s; %d rollouts have not ended. Does a controller run, and do the agents reach the gateway?", t.o.Patience, len(d.pending))
			quiet.Reset(t.o.Patience)
		case <-ctx.Done():
		}
	}
}

// heard notes what has ended.
func (d *desk) heard(changes []fulgur.Change) {
	for _, ch := range changes {
		d.taken = d.taken || ch.Kind != fulgur.ChangeRun && ch.State != fulgur.Queuing
		if _, ok := d.pending[ch.Rollout]; ok && ch.State.Terminal() && !slices.Contains(d.over, ch.Rollout) {
			d.over = append(d.over, ch.Rollout)
		}
	}
}

// read takes what has ended in, gives it its rewards, and tells the schedule.
func (t *trainer) read(ctx context.Context) error {
	d := &t.desk
	ids := d.over[:min(len(d.over), atOnce)]
	records, err := again(ctx, func() ([]fulgur.Record, error) { return t.o.Store.Records(ctx, ids) })
	if err != nil {
		return err
	}
	if err := t.withExperts(ctx, records); err != nil {
		return err
	}
	var rewards []fulgur.Reward
	for k, id := range ids {
		p := d.pending[id]
		e, reward := t.finish(p.step, p.asks[p.i], records[k].Rollout, records[k].Calls)
		if reward, err = t.posted(ctx, &e, reward); err != nil {
			return err
		}
		if reward != nil {
			rewards = append(rewards, *reward)
		}
		p.out[p.i] = e
	}
	if len(rewards) > 0 {
		if _, err := again(ctx, func() (struct{}, error) { return struct{}{}, t.o.Store.SetRewards(ctx, rewards) }); err != nil {
			return err
		}
	}
	d.over = d.over[len(ids):]
	for _, id := range ids {
		p := d.pending[id]
		delete(d.pending, id)
		p.left--
		if p.group == nil {
			t.o.Observer(Progress{Part: strings.TrimSuffix(p.asks[p.i].key.Part, greedySuffix), Step: p.step, Done: len(p.asks) - p.left, Total: len(p.asks)})
			continue
		}
		if err := t.memberEnded(ctx, p.batch); err != nil {
			return err
		}
	}
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

// usable says whether a rollout of an earlier process ended undisturbed under
// the policy that is the current one; in training, where steps overlap, under one
// that the run's history has. What a step could not be trained on is not.
func (t *trainer) usable(ctx context.Context, a ask, r fulgur.Rollout) (bool, error) {
	if slices.Contains(t.state.Anew, r.ID) || !r.State.Terminal() || r.LastAttempt != "0" || r.Outcome == nil || r.Outcome.Class == fulgur.OutcomeInfrastructure {
		return false, nil
	}
	records, err := again(ctx, func() ([]fulgur.Record, error) { return t.o.Store.Records(ctx, []fulgur.RolloutID{r.ID}) })
	if err != nil {
		return false, err
	}
	disturbed := slices.ContainsFunc(records[0].Calls, func(c fulgur.Call) bool {
		switch {
		case c.Error != "":
			return true
		case len(c.SampledIDs) == 0:
			return false
		case !t.asynchronous():
			return c.Version() != t.state.Version
		}
		return !a.train && c.Version() != t.state.Version || t.state.lost(&c)
	})
	return !disturbed, nil
}

// end ends a rollout that is not wanted any more; one that has ended meanwhile
// stays as it is.
func (t *trainer) end(ctx context.Context, id fulgur.RolloutID, reason, message string) error {
	_, err := again(ctx, func() (fulgur.Rollout, error) {
		return t.o.Store.EndRollout(ctx, id, fulgur.Outcome{Class: fulgur.OutcomeInfrastructure, Reason: reason, Message: message})
	})
	if fulgur.KindOf(err) == fulgur.KindConflict {
		return nil
	}
	return err
}

// cutOff ends all rollouts of the run that have not ended.
func (t *trainer) cutOff(ctx context.Context, reason, message string) error {
	q := fulgur.RolloutQuery{Run: t.o.Run, States: []fulgur.RolloutState{fulgur.Queuing, fulgur.Running}}
	for {
		page, err := again(ctx, func() ([]fulgur.Rollout, error) { return t.o.Store.Rollouts(ctx, q) })
		if err != nil || len(page) == 0 {
			return err
		}
		for _, r := range page {
			if err := t.end(ctx, r.ID, reason, message); err != nil {
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

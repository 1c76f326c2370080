package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/fulgur-rl/fulgur"
	"github.com/fulgur-rl/fulgur/internal/config"
	"github.com/fulgur-rl/fulgur/internal/trainer/schedule"
	"github.com/fulgur-rl/fulgur/internal/trainer/sim"
)

// recordedRun is a run as a workload and a device.
type recordedRun struct {
	groups  [][]sim.Rollout
	base    config.SimFile
	facts   []string
	mode    string
	all     int     // steps of the run
	steps   int     // of them, those that perStep is of
	perStep float64 // seconds that a step of the run took, without validation
}

// readWithin is how long the trainer takes to look at what has ended.
const readWithin = 250 * time.Millisecond

// cutAfter is when the trainer cuts calls off that can go on by themselves.
const cutAfter = 250 * time.Millisecond

// readRecorded reads a run's newest training rollouts, at most so many, and fits
// the device to what they and the run's steps show.
func (a *app) readRecorded(c *cobra.Command, run string, most int) (_ *recordedRun, err error) {
	file, dir, err := a.openRun(run, c)
	if err != nil {
		return nil, err
	}
	rec, err := openRecords(c.Context(), dir)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, rec.Close()) }()
	rollouts, err := newestTraining(c.Context(), rec, fulgur.RunID(file.Run), most)
	if err != nil {
		return nil, err
	}
	if len(rollouts) == 0 {
		return nil, notFound("simulate "+run, "its record has no training rollout that has ended")
	}
	r := &recordedRun{mode: file.Schedule.Mode}
	began := rollouts[0].CreatedAt
	update, holds, err := r.times(dir, began)
	if err != nil {
		return nil, err
	}
	calls, tokens, err := r.read(c.Context(), rec, rollouts, file)
	if err != nil {
		return nil, err
	}
	if r.mode != string(schedule.Collocated) {
		holds = nil
	}
	peak, half := sim.Fit(calls, holds)
	if peak <= 0 {
		return nil, notFound("simulate "+run, "its calls say nothing on the engine: none sampled a token")
	}
	if r.mode == string(schedule.Disaggregated) { // what was seen is half of the device
		peak, half, update = 2*peak, 2*half, update/2
	}
	r.facts = append(r.facts,
		fmt.Sprintf("Recorded: %d rollouts in %d groups, %.1f calls and %.0f sampled tokens a rollout.", len(rollouts), len(r.groups), float64(len(calls))/float64(len(rollouts)), float64(tokens)/float64(len(rollouts))),
		fmt.Sprintf("Device, fitted to %d calls and %d steps: %s tokens/s at most, half of it with %s calls in flight; an update takes %s s.", len(calls), r.steps, threeDigits(peak), threeDigits(half), threeDigits(update)),
	)
	f, _ := presetBase("")
	f.Seed, f.Steps = file.Seed, max(5, r.all)
	f.Workload.Run, f.Workload.Rows = run, max(1, 10*len(r.groups))
	f.Device = config.SimDevice{TokensPerSecond: peak, Half: half, Update: duration(update), SamplingShare: .5}
	f.Algorithm = config.SimAlgorithm{GroupSize: file.Algorithm.GroupSize, GroupsPerStep: file.Algorithm.GroupsPerStep}
	f.Schedule, f.OffPolicy, f.Runner = file.Schedule, file.OffPolicy, config.SimRunner{Slots: file.Runner.Slots}
	if len(calls) > 0 { // every endpoint of ours takes tokens
		f.Schedule.Drain = min(f.Schedule.Drain, config.Duration(cutAfter))
	}
	r.base = f
	return r, nil
}

// newestTraining returns the newest training rollouts that have ended, in order
// of creation.
func newestTraining(ctx context.Context, rec records, run fulgur.RunID, most int) ([]fulgur.Rollout, error) {
	var out []fulgur.Rollout
	q := fulgur.RolloutQuery{Run: run, States: []fulgur.RolloutState{fulgur.Succeeded, fulgur.Failed}}
	for {
		page, err := rec.Rollouts(ctx, q)
		if err != nil {
			return nil, err
		}
		if len(page) == 0 {
			return out, nil
		}
		q.After = page[len(page)-1].ID
		for _, r := range page {
			if r.IsTrain && r.LastAttempt != "" {
				out = append(out, r)
			}
		}
		if most > 0 && len(out) > most {
			out = slices.Clone(out[len(out)-most:])
		}
	}
}

// stepTimes are what a line of metrics.jsonl says of a step's time; the drain is
// part of the update.
type stepTimes struct {
	At         time.Time `json:"time"` // behind the update and the validation
	Rollout    float64   `json:"time/rollout"`
	Update     *float64  `json:"time/update"`
	Drain      float64   `json:"time/drain"`
	Validation float64   `json:"time/validation"`
}

// times reads how long steps took: the first fifth is left out, as it is in the
// simulation. It returns the seconds of an update, and when updates held calls,
// in seconds since began.
func (r *recordedRun) times(dir runDir, began time.Time) (update float64, holds []sim.Hold, err error) {
	lines, err := readLines[stepTimes](dir.metrics())
	if err != nil {
		return 0, nil, err
	}
	lines = slices.DeleteFunc(lines, func(l stepTimes) bool { return l.Update == nil })
	r.all = len(lines)
	last := 0.0
	for i, l := range lines {
		to := l.At.Sub(began).Seconds() - l.Validation
		pause := max(last, to-*l.Update)
		if from := pause + l.Drain; to > from {
			holds, last = append(holds, sim.Hold{Pause: pause, From: from, To: to}), to
		}
		if i >= r.all/5 {
			r.steps++
			update += *l.Update - l.Drain
			r.perStep += l.Rollout + *l.Update
		}
	}
	if r.steps == 0 {
		return 0, nil, notFound("simulate "+string(dir), "the run has finished no step")
	}
	r.perStep /= float64(r.steps)
	return update / float64(r.steps), holds, nil
}

// read turns the record of rollouts into groups; it returns all calls, in
// seconds since the first attempt began, and how many tokens they sampled.
func (r *recordedRun) read(ctx context.Context, rec records, rollouts []fulgur.Rollout, file *runFile) (served []sim.Served, tokens int, err error) {
	slots := int(file.Runner.Slots)
	if slots == 0 {
		slots = autoSlots(file.File)
	}
	queued := slots < scheduleOf(file.File).Slots() // the simulation has the wait for a slot
	groups := map[fulgur.GroupID]int{}
	began := rollouts[0].CreatedAt
	overlapping := 0
	for i := range rollouts {
		ro := &rollouts[i]
		attempts, err := rec.Attempts(ctx, ro.ID)
		if err != nil {
			return nil, 0, err
		}
		k := slices.IndexFunc(attempts, func(a fulgur.Attempt) bool { return a.ID == ro.LastAttempt })
		if k < 0 || attempts[k].StartedAt == nil || attempts[k].EndedAt == nil {
			continue
		}
		calls, err := rec.Calls(ctx, ro.ID, ro.LastAttempt)
		if err != nil {
			return nil, 0, err
		}
		slices.SortFunc(calls, func(x, y fulgur.Call) int { return x.StartedAt.Compare(y.StartedAt) })
		from, to := *attempts[k].StartedAt, attempts[k].EndedAt.Add(readWithin)
		if !queued {
			from = ro.CreatedAt
		}
		if ro.UpdatedAt.Before(to) { // when it was graded
			to = ro.UpdatedAt
		}
		shape, n := shapeOf(calls, from, to)
		overlapping += n
		for i := range calls {
			c := &calls[i]
			n := sampledBy(c)
			tokens += n
			at := c.StartedAt.Sub(began).Seconds()
			served = append(served, sim.Served{Start: at, End: at + c.Latency.Seconds(), Tokens: float64(n)})
		}
		g, ok := groups[cmp.Or(ro.Group, fulgur.GroupID(ro.ID))]
		if !ok {
			g = len(r.groups)
			groups[cmp.Or(ro.Group, fulgur.GroupID(ro.ID))] = g
			r.groups = append(r.groups, nil)
		}
		r.groups[g] = append(r.groups[g], shape)
	}
	if len(r.groups) == 0 {
		return nil, 0, notFound("simulate the run", "no attempt of its rollouts has a start and an end on record")
	}
	if overlapping > 0 {
		r.facts = append(r.facts, fmt.Sprintf("%d of %d calls began before the one before them had ended (sub-agents): they are simulated one after another.", overlapping, len(served)))
	}
	return served, tokens, nil
}

// shapeOf is a rollout's calls, in order, as the simulator takes them, and how
// many of them overlap the one before.
func shapeOf(calls []fulgur.Call, began, ended time.Time) (out sim.Rollout, overlapping int) {
	free := began // when the agent had its last answer
	for i := range calls {
		c := &calls[i]
		gap := c.StartedAt.Sub(free).Seconds()
		if gap < 0 && i > 0 {
			overlapping++
		}
		prompt := len(c.PromptIDs)
		if prompt == 0 && c.Usage != nil {
			prompt = c.Usage.PromptTokens
		}
		out.Calls = append(out.Calls, sim.Call{Gap: max(0, gap), Prompt: float64(prompt), Tokens: float64(sampledBy(c))})
		if end := c.StartedAt.Add(c.Latency); end.After(free) {
			free = end
		}
	}
	out.Tail = max(0, ended.Sub(free).Seconds())
	return out, overlapping
}

func sampledBy(c *fulgur.Call) int {
	if len(c.SampledIDs) == 0 && c.Usage != nil {
		return c.Usage.CompletionTokens
	}
	return len(c.SampledIDs)
}

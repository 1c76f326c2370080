package sim

import (
	"errors"
	"math"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/fulgur-rl/fulgur/internal/trainer/schedule"
)

// config is a preset's schedule in a mode, with everything else at its default.
func config(p Preset, mode schedule.Mode) schedule.Config {
	return schedule.Config{Mode: mode, Order: schedule.Order{Rows: 4096, Seed: 1}, GroupsPerStep: p.GroupsPerStep, GroupSize: p.GroupSize}
}

func run(t *testing.T, o Options) Result {
	t.Helper()
	r, err := Run(o)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// preset runs 40 steps, and leaves the first eighth out of the times.
func preset(t *testing.T, p Preset, c schedule.Config, pause Pause, seed uint64) Result {
	t.Helper()
	p.Workload.Seed = 100 + seed
	return run(t, Options{Workload: p.Workload, Machine: p.Machine, Schedule: c, Pause: pause, Steps: 40, Warmup: 8, Seed: seed})
}

// The figures that the default schedule is held to: seconds a step of the
// synchronous schedule as an independent program gives them (16 seeds), and the
// speed-up that an adaptive schedule with a mean staleness of at most 4 reached
// there (3 seeds).
func TestTheDefaultScheduleReachesTheTable(t *testing.T) {
	if testing.Short() {
		t.Skip("15 s of CPU: left out by -short, make test runs it")
	}
	want := map[string]struct {
		synchronous, speedUp float64
	}{
		"light": {477, 1.74}, "heavy": {2984, 7.45}, "pareto": {3745, 8.67}, "engine": {2290, 2.90},
		"cpu-instant": {2.04, 1.03}, "cpu-waiting": {6.99, 3.20}, "cpu-pareto": {40.1, 11.4},
	}
	for _, p := range Presets() {
		w, ok := want[p.Name]
		if !ok {
			continue
		}
		var sync, def Result
		for seed := range p.Seeds {
			s := preset(t, p, config(p, schedule.Synchronous), DefaultPause(), uint64(seed))
			d := preset(t, p, config(p, schedule.Collocated), DefaultPause(), uint64(seed))
			sync.SecondsPerStep += s.SecondsPerStep / float64(p.Seeds)
			def.SecondsPerStep += d.SecondsPerStep / float64(p.Seeds)
			if m := max(d.MeanStaleness, d.AskedStaleness); m > 4 {
				t.Errorf("%s, seed %d: mean staleness %.2f, at most 4 is wanted", p.Name, seed, m)
			}
			if d.MaxStaleness > schedule.DefaultMaxStaleness {
				t.Errorf("%s, seed %d: staleness of %d, above the bound", p.Name, seed, d.MaxStaleness)
			}
			if d.LongestDrain > 10+1e-6 {
				t.Errorf("%s, seed %d: a drain of %.1f s", p.Name, seed, d.LongestDrain)
			}
			def.MeanStaleness = max(def.MeanStaleness, d.MeanStaleness)
		}
		got := sync.SecondsPerStep / def.SecondsPerStep
		ideal := Ideal(p.Workload, p.Machine, p.GroupsPerStep, p.GroupSize)
		t.Logf("%-12s synchronous %7.2f s a step, default %6.2f: %.2fx (%.2f wanted), %.0f %% of the ideal, mean staleness %.2f",
			p.Name, sync.SecondsPerStep, def.SecondsPerStep, got, w.speedUp, 100*ideal/def.SecondsPerStep, def.MeanStaleness)
		if math.Abs(sync.SecondsPerStep/w.synchronous-1) > .05 {
			t.Errorf("%s: a synchronous step takes %.2f s, want %.2f within 5 %%", p.Name, sync.SecondsPerStep, w.synchronous)
		}
		if got < .95*w.speedUp {
			t.Errorf("%s: %.2fx, want %.2f within 5 %%", p.Name, got, w.speedUp)
		}
	}
}

// Long calls must not stop training: the drain is bounded, and nothing that was
// sampled is thrown away.
func TestADrainWithLongCallsCostsTenSecondsAtMost(t *testing.T) {
	if testing.Short() {
		t.Skip("8 s of CPU: left out by -short, make test runs it")
	}
	for _, p := range Presets() {
		if p.Name != "long-calls" && p.Name != "one-call" {
			continue
		}
		c := config(p, schedule.Collocated)
		c.Active = 2 // as the figures that are known
		def := preset(t, p, c, DefaultPause(), 1)
		unbounded := preset(t, p, c, Pause{Drain: -1}, 1)
		restart := preset(t, p, c, Pause{Drain: 10, Cut: Restart}, 1)
		t.Logf("%s: %.0f s a step and %.1f s of drain; without limit %.0f and %.1f; restarted %.0f, %.1f %% wasted",
			p.Name, def.SecondsPerStep, def.DrainPerStep, unbounded.SecondsPerStep, unbounded.DrainPerStep, restart.SecondsPerStep, 100*restart.WastedShare)
		if def.LongestDrain > 10+1e-6 || def.WastedShare != 0 {
			t.Errorf("%s: a drain of %.2f s, %.1f %% wasted", p.Name, def.LongestDrain, 100*def.WastedShare)
		}
		if unbounded.DrainPerStep < 2*def.DrainPerStep || restart.WastedShare == 0 {
			t.Errorf("%s: the calls are not long enough to tell", p.Name)
		}
	}
}

// small is a workload that takes no time to simulate.
func small(slow float64) Workload {
	return workload(func(g schedule.Group, k int) Rollout {
		gap := 1 + .1*float64(k)
		if g.Row%2 == 1 {
			gap *= slow
		}
		return Rollout{Calls: []Call{{Gap: gap, Tokens: 20}, {Gap: gap, Prompt: 20, Tokens: 20}}, Tail: .1}
	})
}

type workload func(schedule.Group, int) Rollout

func (w workload) Rollout(g schedule.Group, k int) Rollout { return w(g, k) }

func modes() []schedule.Mode {
	return []schedule.Mode{schedule.Synchronous, schedule.Collocated, schedule.Disaggregated}
}

func TestEachRowTrainsOncePerEpochInEveryMode(t *testing.T) { // AS-07
	for _, mode := range modes() {
		count := map[schedule.Group]int{}
		r := run(t, Options{
			Workload: small(10), Machine: Machine{Peak: 100, Half: 2, Prefill: 50, Update: 2}, Pause: DefaultPause(),
			Schedule: schedule.Config{Mode: mode, Order: schedule.Order{Rows: 45, Seed: 3}, GroupsPerStep: 4, GroupSize: 3, Epochs: 3},
			Trained: func(_ int64, groups []schedule.Group) {
				for _, g := range groups {
					count[g]++
				}
			},
		})
		for epoch := range 3 {
			for row := range 45 {
				if n := count[schedule.Group{Epoch: epoch, Row: row}]; n != 1 {
					t.Errorf("%s: row %d of epoch %d trained %d times", mode, row, epoch, n)
				}
			}
		}
		if want := 3.0 * 45 * 3 * 40; math.Abs(r.Tokens-want) > 1e-6 || r.WastedShare != 0 {
			t.Errorf("%s: %g tokens sampled, %g wasted, want %g and none", mode, r.Tokens, r.WastedShare, want)
		}
	}
}

// Half the prompts are ten times slower: none is left out, and none gets older
// than the bound (AS-06).
func TestSlowPromptsAreNotStarved(t *testing.T) {
	for _, mode := range modes() {
		for _, most := range []int64{1, 3, 16} {
			var slow, all int
			r := run(t, Options{
				Workload: small(10), Machine: Machine{Peak: 1000, Half: 2, Update: .5}, Pause: DefaultPause(), Steps: 20,
				Schedule: schedule.Config{Mode: mode, Order: schedule.Order{Rows: 1000, Seed: 3}, GroupsPerStep: 8, GroupSize: 4,
					MeanStaleness: min(4, float64(most)), MaxStaleness: most},
				Trained: func(_ int64, groups []schedule.Group) {
					for _, g := range groups {
						slow, all = slow+g.Row%2, all+1
					}
				},
			})
			if r.MaxStaleness > most {
				t.Errorf("%s: staleness of %d, at most %d was allowed", mode, r.MaxStaleness, most)
			}
			// What is under way at the end may be slow ones: the bound on them is the
			// bound on groups in the system.
			if share := float64(slow) / float64(all); share < .3 {
				t.Errorf("%s, staleness %d: %.2f of the groups that trained are slow, half of the prompts are", mode, most, share)
			}
		}
	}
}

// One member of each group hangs: the straggler rule, where it is on, closes the
// group without it, and what it sampled is wasted (AS-09).
func TestAHungMemberIsClosedWhereTheRuleIsOn(t *testing.T) {
	hung := workload(func(_ schedule.Group, k int) Rollout {
		calls := []Call{{Gap: 1, Tokens: 20}, {Gap: 1, Tokens: 20}}
		if k == 0 {
			calls = append(calls, Call{Gap: 1, Tokens: 5000}, Call{Gap: 500, Tokens: 20})
		}
		return Rollout{Calls: calls}
	})
	o := Options{Workload: hung, Machine: Machine{Peak: 100, Update: 1}, Pause: DefaultPause(), Steps: 10,
		Schedule: schedule.Config{Mode: schedule.Collocated, Order: schedule.Order{Rows: 100}, GroupsPerStep: 2, GroupSize: 4, MeanStaleness: 1}}
	off := run(t, o)
	o.Schedule.Straggler = schedule.Straggler{Done: .5, Factor: 3}
	on := run(t, o)
	if off.WastedShare != 0 || on.WastedShare == 0 {
		t.Errorf("wasted: %g without the rule, %g with it", off.WastedShare, on.WastedShare)
	}
	if on.SecondsPerStep > off.SecondsPerStep/10 || on.Running > float64(o.Schedule.Slots()) || on.Slots > o.Schedule.Slots() {
		t.Errorf("%.1f s a step with the rule, %.1f without; %.1f run, %d at once", on.SecondsPerStep, off.SecondsPerStep, on.Running, on.Slots)
	}
}

func TestTheSameSeedGivesTheSameRun(t *testing.T) {
	p := Presets()[6]
	one := func(seed uint64) Result {
		r := preset(t, p, config(p, schedule.Collocated), Pause{Drain: -1, Retry: 5}, seed)
		return r
	}
	if diff := cmp.Diff(one(1), one(1)); diff != "" {
		t.Errorf("two runs of one seed differ:\n%s", diff)
	}
	if cmp.Equal(one(1), one(2)) {
		t.Error("another seed changed nothing")
	}
}

func TestSlotsBoundWhatRuns(t *testing.T) {
	p := Presets()[5]
	p.Workload.Seed = 1
	o := Options{Workload: p.Workload, Machine: p.Machine, Schedule: config(p, schedule.Collocated), Pause: DefaultPause(), Steps: 10, Warmup: 2}
	all := run(t, o)
	if all.Slots != o.Schedule.Slots() {
		t.Errorf("%d rollouts ran at once; the schedule says that it needs %d slots", all.Slots, o.Schedule.Slots())
	}
	o.Slots = 48
	few := run(t, o)
	if few.Slots != 48 || few.SecondsPerStep <= all.SecondsPerStep {
		t.Errorf("48 slots: %d ran at once, %.2f s a step against %.2f", few.Slots, few.SecondsPerStep, all.SecondsPerStep)
	}
}

// What is known in closed form: one rollout at a time, and a full engine.
func TestTimesOfPlainCases(t *testing.T) {
	one := workload(func(schedule.Group, int) Rollout {
		return Rollout{Calls: []Call{{Gap: 1, Tokens: 100}, {Gap: 2, Tokens: 50}}, Tail: .5}
	})
	c := schedule.Config{Order: schedule.Order{Rows: 9}, GroupsPerStep: 1, GroupSize: 1}
	for name, x := range map[string]struct {
		machine Machine
		size    int
		want    float64
	}{
		"alone: X(1) = 100·1/(1+1) tokens a second":    {Machine{Peak: 100, Half: 1, Update: 10}, 1, 1 + 2 + 2 + 1 + .5 + 10},
		"two alike share X(2) = 100·2/(2+2)":           {Machine{Peak: 100, Half: 2, Update: 10}, 2, 1 + 4 + 2 + 2 + .5 + 10},
		"no half: the peak for however many in flight": {Machine{Peak: 100, Update: 3}, 4, 1 + 4 + 2 + 2 + .5 + 3},
	} {
		c.GroupSize = x.size
		r := run(t, Options{Workload: one, Machine: x.machine, Schedule: c, Steps: 3})
		if math.Abs(r.SecondsPerStep-x.want) > 1e-9 {
			t.Errorf("%s: %g s a step, want %g", name, r.SecondsPerStep, x.want)
		}
	}
}

func TestATimelineHasTheRunsTime(t *testing.T) {
	p := Presets()[6]
	p.Workload.Seed = 1
	r := run(t, Options{Workload: p.Workload, Machine: p.Machine, Schedule: config(p, schedule.Collocated), Pause: DefaultPause(), Steps: 20, Bins: 100})
	var sampling, training float64
	for i := range r.Timeline.Sampling {
		sampling += r.Timeline.Sampling[i] * r.Timeline.Width
		training += r.Timeline.Training[i] * r.Timeline.Width
	}
	all := r.SecondsPerStep * float64(r.Steps)
	for i := range r.Timeline.Sampling {
		if use := r.Timeline.Sampling[i] + r.Timeline.Training[i]; use > 1+1e-9 || r.Timeline.Running[i] > float64(r.Slots)+1e-9 {
			t.Errorf("bin %d: %g of the device, %g rollouts of %d", i, use, r.Timeline.Running[i], r.Slots)
		}
	}
	if n := len(r.Timeline.Sampling); n > 100 || n < 50 {
		t.Errorf("%d bins", n)
	}
	if math.Abs(training-20*1.5) > 1e-6 || math.Abs(sampling-r.Sampling*all) > 1e-6*all || math.Abs(training-r.Training*all) > 1e-6*all {
		t.Errorf("the timeline has %g s of sampling and %g of training; the result %g and %g", sampling, training, r.Sampling*all, r.Training*all)
	}
}

func TestWhatCannotBeSimulatedIsSaid(t *testing.T) {
	good := func() Options {
		return Options{Workload: small(1), Machine: Machine{Peak: 100}, Steps: 2,
			Schedule: schedule.Config{Order: schedule.Order{Rows: 9}, GroupsPerStep: 1, GroupSize: 1}}
	}
	run(t, good())
	for name, change := range map[string]func(*Options){
		"no workload":       func(o *Options) { o.Workload = nil },
		"no engine":         func(o *Options) { o.Machine.Peak = 0 },
		"not a number":      func(o *Options) { o.Machine.Update = math.NaN() },
		"no end":            func(o *Options) { o.Steps = 0 },
		"no group size":     func(o *Options) { o.Schedule.GroupSize = 0 },
		"no rows":           func(o *Options) { o.Schedule.Order.Rows = 0 },
		"an unknown cut":    func(o *Options) { o.Pause.Cut = "melt" },
		"all of the device": func(o *Options) { o.Machine.Share = 1 },
	} {
		o := good()
		change(&o)
		if _, err := Run(o); err == nil || errors.Is(err, errStuck) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

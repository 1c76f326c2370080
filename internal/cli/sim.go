package cli

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"github.com/fulgur-rl/fulgur"
	"github.com/fulgur-rl/fulgur/internal/config"
	"github.com/fulgur-rl/fulgur/internal/trainer/schedule"
	"github.com/fulgur-rl/fulgur/internal/trainer/sim"
)

// simFlags are the flags of fulgur sim.
type simFlags struct {
	set       []string
	schedules []string
	compare   bool
	plot      string
	seeds     int
	steps     int
	list      bool
	rollouts  int
}

func (a *app) simCommand() *cobra.Command {
	var f simFlags
	c := &cobra.Command{
		Use: "sim PRESET|RUN|FILE", Short: "how long steps would take under other schedules, in virtual time", GroupID: "look", Args: cobra.MaximumNArgs(1),
		Long: `Run schedules in virtual time: the code that schedules real runs, on rollouts
that were drawn or recorded, and on a model of the device. It says how long a
step takes, how old rollouts are when they train, what is wasted, and what the
device does meanwhile: choose before paying for GPUs.

What is simulated is one of
  a preset      heavy, cpu-waiting, …; --list shows them
  a run         its folder, or its name below runs/: the recorded call lengths and
                tool times, the measured engine and update, against what the run took
  a file        YAML: a workload and a device, and schedule, off_policy, algorithm
                and runner as in the run file (docs/sim.md)

Without --schedule or --compare two schedules run: synchronous, and the file's or
run's own, or collocated with its defaults. "Of the ideal" compares with a step's
tokens at the engine's peak plus the update. Learning is not simulated: staleness
is what a schedule costs it.`,
		Example: `  fulgur sim heavy --compare --plot sim.html
  fulgur sim runs/calc --compare
  fulgur sim heavy --schedule mean_staleness=1 --schedule mean_staleness=2
  fulgur sim heavy --set device.update=60s --set algorithm.groups_per_step=64
  fulgur sim cluster.yaml --json | jq '.schedules[].seconds_per_step'`,
		RunE: func(c *cobra.Command, args []string) error {
			if f.list {
				return a.listPresets()
			}
			if len(args) == 0 {
				return usageErr(errors.New("name what is to be simulated: a preset (fulgur sim --list), a run's folder, or a file"))
			}
			return a.sim(c, args[0], f)
		},
	}
	c.Flags().StringArrayVar(&f.set, "set", nil, "set a key of the simulation, such as --set device.update=60s (repeatable)")
	c.Flags().StringArrayVar(&f.schedules, "schedule", nil, "a schedule to simulate, such as mode=collocated,mean_staleness=2 (repeatable; keys of schedule and off_policy)")
	c.Flags().BoolVar(&f.compare, "compare", false, "simulate the usual schedules side by side")
	c.Flags().StringVar(&f.plot, "plot", "", "write what the device does over time to this file (HTML that needs nothing else)")
	c.Flags().IntVar(&f.seeds, "seeds", 0, "simulations that are averaged (key seeds)")
	c.Flags().IntVar(&f.steps, "steps", 0, "training steps of each (key steps)")
	c.Flags().BoolVar(&f.list, "list", false, "list the presets")
	c.Flags().IntVar(&f.rollouts, "rollouts", 4096, "of a run: its newest training rollouts, at most so many")
	return c
}

// simulation is what is simulated, under several schedules.
type simulation struct {
	name     string
	facts    []string
	recorded *recordedRun // nil: nothing is
	file     config.SimFile
	variants []simVariant
}

// simVariant is one schedule.
type simVariant struct {
	name string
	file config.SimFile
	out  simOutcome
}

// sim reads what is to be simulated, simulates it and prints what came out.
func (a *app) sim(c *cobra.Command, what string, f simFlags) error {
	s, err := a.readSim(c, what, f)
	if err != nil {
		return err
	}
	if err := s.run(c.Context()); err != nil {
		return err
	}
	if f.plot != "" {
		if err := s.plot(f.plot); err != nil {
			return err
		}
	}
	if a.json {
		return a.printJSON(s.result())
	}
	if err := s.print(a.Stdout); err != nil {
		return err
	}
	if f.plot != "" {
		a.say("plot       %s", f.plot)
	}
	return nil
}

// readSim finds out what is named, and reads it for each schedule.
func (a *app) readSim(c *cobra.Command, what string, f simFlags) (*simulation, error) {
	s := &simulation{name: what}
	src, name := []byte(nil), what
	if p, ok := presetOf(what); ok {
		src, name = fmt.Appendf(nil, "workload: {preset: %s}\n", p.Name), "--set"
		s.facts = append(s.facts, p.Title+".")
	} else if dir, err := openRunDir(what); err == nil {
		src, name = fmt.Appendf(nil, "workload: {run: %q}\n", string(dir)), "--set"
		s.name = filepath.Base(string(dir))
	} else if src, err = os.ReadFile(what); err != nil {
		return nil, usageErr(notFound("simulate "+what, "it is no preset (fulgur sim --list), no run's folder and no file"))
	}
	over, err := f.overrides()
	if err != nil {
		return nil, usageErr(err)
	}
	base := func(preset, run string) (config.SimFile, error) {
		switch {
		case run != "" && preset != "":
			return config.SimFile{}, fulgur.E(fulgur.KindInvalid, "read "+name, "workload.preset and workload.run exclude each other: rollouts are drawn or recorded", nil)
		case run != "" && s.recorded == nil:
			if !filepath.IsAbs(run) && src != nil {
				if near := filepath.Join(filepath.Dir(what), run); fileExists(filepath.Join(near, "config.yaml")) {
					run = near
				}
			}
			r, err := a.readRecorded(c, run, f.rollouts)
			if err != nil {
				return config.SimFile{}, err
			}
			s.recorded, s.facts = r, append(s.facts, r.facts...)
			return r.base, nil
		case run != "":
			return s.recorded.base, nil
		}
		return presetBase(preset)
	}
	if s.file, err = config.ParseSim(src, name, base, over...); err != nil {
		return nil, usageErr(err)
	}
	variants, err := f.variants(s.file)
	if err != nil {
		return nil, usageErr(err)
	}
	for _, v := range variants {
		file, err := config.ParseSim(src, name, base, append(slices.Clone(over), v.over...)...)
		if err != nil {
			return nil, usageErr(err)
		}
		if _, err := s.options(file, 1); err != nil { // before any of them runs
			return nil, usageErr(err)
		}
		s.variants = append(s.variants, simVariant{name: v.name, file: file})
	}
	return s, nil
}

func fileExists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

func (f simFlags) overrides() ([]config.Override, error) {
	over, err := config.ParseOverrides("--set", f.set)
	if f.seeds > 0 {
		over = append(over, config.Override{Path: "seeds", Value: fmt.Sprint(f.seeds), Source: "--seeds"})
	}
	if f.steps > 0 {
		over = append(over, config.Override{Path: "steps", Value: fmt.Sprint(f.steps), Source: "--steps"})
	}
	return over, err
}

// namedSchedule is a schedule by what it sets.
type namedSchedule struct {
	name string
	over []config.Override
}

// usualSchedules are those of --compare.
var usualSchedules = []string{
	"synchronous: mode=synchronous",
	"v1, twice a step under way: mode=collocated,active=2,refill=update,pause.unbounded=true,pause.retry=5s",
	"collocated, staleness 1: mode=collocated,active=0,mean_staleness=1",
	"collocated, staleness 2: mode=collocated,active=0,mean_staleness=2",
	"collocated, staleness 4: mode=collocated,active=0,mean_staleness=4",
	"disaggregated, staleness 4: mode=disaggregated,active=0,mean_staleness=4",
}

// variants lists the schedules to simulate; the first one is what others are
// compared with.
func (f simFlags) variants(file config.SimFile) ([]namedSchedule, error) {
	own := file.Schedule.Mode + ", as it is set"
	list := []string{"synchronous: mode=synchronous"}
	switch {
	case f.compare:
		list = usualSchedules
	case len(f.schedules) == 0 && file.Schedule.Mode == string(schedule.Synchronous):
		list = append(list, "collocated: mode=collocated")
	case len(f.schedules) == 0:
		list = append(list, own+": mode="+file.Schedule.Mode)
	}
	var out []namedSchedule
	for _, text := range append(slices.Clone(list), f.schedules...) {
		name, keys, named := strings.Cut(text, ": ")
		if !named {
			name, keys = text, text
		}
		v := namedSchedule{name: name}
		if !strings.Contains(keys, "mode=") && file.Schedule.Mode == string(schedule.Synchronous) {
			keys = "mode=collocated," + keys
		}
		for key := range strings.SplitSeq(keys, ",") {
			path, value, ok := strings.Cut(key, "=")
			if !ok {
				return nil, fulgur.E(fulgur.KindInvalid, "--schedule "+text, "want keys and values, such as mode=collocated,mean_staleness=2", nil)
			}
			v.over = append(v.over, config.Override{Path: schedulePath(strings.TrimSpace(path)), Value: value, Source: "--schedule " + text})
		}
		out = append(out, v)
	}
	return out, nil
}

// schedulePath completes a key that is written alone.
func schedulePath(key string) string {
	switch {
	case strings.Contains(key, "."):
		return key
	case key == "mean_staleness" || key == "max_staleness":
		return "off_policy." + key
	case key == "slots":
		return "runner." + key
	}
	return "schedule." + key
}

func presetOf(name string) (sim.Preset, bool) {
	all := sim.Presets()
	i := slices.IndexFunc(all, func(p sim.Preset) bool { return p.Name == name })
	if i < 0 {
		return sim.Preset{}, false
	}
	return all[i], true
}

// presetBase is a simulation as a preset has it; "" is heavy's with nothing of
// its workload.
func presetBase(name string) (config.SimFile, error) {
	run := config.Default()
	f := config.SimFile{
		Seed: 1, Seeds: 3, Steps: 40, Schedule: run.Schedule, OffPolicy: run.OffPolicy,
		Workload: config.SimWorkload{Rows: 4096}, Pause: config.SimPause{Then: string(sim.Resume)},
	}
	f.Schedule.Mode = string(schedule.Collocated)
	p, ok := presetOf(name)
	if name != "" && !ok {
		return f, fulgur.E(fulgur.KindInvalid, "workload.preset", fmt.Sprintf("there is no preset %q; `fulgur sim --list` shows them", name), nil)
	}
	if !ok {
		f.Algorithm = config.SimAlgorithm{GroupSize: run.Algorithm.GroupSize, GroupsPerStep: run.Algorithm.GroupsPerStep}
		return f, nil
	}
	d, m := p.Workload, p.Machine
	f.Seeds = p.Seeds
	f.Algorithm = config.SimAlgorithm{GroupSize: p.GroupSize, GroupsPerStep: p.GroupsPerStep}
	f.Workload = config.SimWorkload{
		Preset: name, Rows: f.Workload.Rows, Calls: config.SimLogNormal(d.Calls), Tokens: config.SimLogNormal(d.Tokens), Tools: config.SimLogNormal(d.Tools),
		SlowTail: d.SlowTail, RowShare: d.RowShare, LongCalls: config.SimLongCalls{Share: d.LongShare, Times: d.LongTimes}, Limit: duration(d.Limit),
	}
	f.Device = config.SimDevice{TokensPerSecond: m.Peak, Half: m.Half, Prefill: m.Prefill, Update: duration(m.Update), SamplingShare: .5}
	return f, nil
}

func duration(seconds float64) config.Duration {
	return config.Duration(time.Duration(seconds * float64(time.Second)).Round(time.Microsecond))
}

func inSeconds(d config.Duration) float64 { return time.Duration(d).Seconds() }

// options are the simulator's for one schedule and seed.
func (s *simulation) options(f config.SimFile, seed uint64) (sim.Options, error) {
	run := &config.File{Schedule: f.Schedule, OffPolicy: f.OffPolicy}
	run.Algorithm.GroupSize, run.Algorithm.GroupsPerStep = f.Algorithm.GroupSize, f.Algorithm.GroupsPerStep
	w, d := f.Workload, f.Device
	o := sim.Options{
		Machine:  sim.Machine{Peak: d.TokensPerSecond, Half: d.Half, Prefill: d.Prefill, Update: inSeconds(d.Update), Share: d.SamplingShare},
		Schedule: scheduleOf(run), Pause: sim.Pause{Drain: inSeconds(f.Schedule.Drain), Cut: sim.Cut(f.Pause.Then), Retry: inSeconds(f.Pause.Retry)},
		Slots: int(f.Runner.Slots), Steps: f.Steps, Warmup: f.Steps / 5, Seed: seed,
	}
	if f.Pause.Unbounded {
		o.Pause.Drain = -1
	}
	o.Schedule.Order = schedule.Order{Rows: w.Rows, Seed: seed}
	if s.recorded != nil {
		o.Workload = sim.Recorded{Seed: seed, Groups: s.recorded.groups}
		o.Schedule.Steps = int64(f.Steps) // the run's last steps have nothing behind them
		if o.Slots == 0 {
			o.Slots = autoSlots(run)
		}
		return o, nil
	}
	if w.Calls.Median <= 0 || w.Tokens.Median <= 0 {
		return o, fulgur.E(fulgur.KindInvalid, "simulate "+s.name, "the file says no workload: set workload.preset, workload.run, or workload.calls, tokens and tools with a median and a sigma", nil)
	}
	o.Workload = sim.Drawn{
		Seed: seed, Calls: sim.LogNormal(w.Calls), Tokens: sim.LogNormal(w.Tokens), Tools: sim.LogNormal(w.Tools), SlowTail: w.SlowTail, RowShare: w.RowShare,
		LongShare: w.LongCalls.Share, LongTimes: w.LongCalls.Times, Limit: inSeconds(w.Limit),
	}
	return o, nil
}

// run simulates every schedule with every seed, as many at once as there are cores.
func (s *simulation) run(ctx context.Context) error {
	var wg sync.WaitGroup
	slots := make(chan struct{}, runtime.NumCPU())
	errs := make([]error, len(s.variants))
	for i := range s.variants {
		v := &s.variants[i]
		v.out.runs = make([]sim.Result, v.file.Seeds)
		failed := make([]error, v.file.Seeds)
		wg.Add(1)
		go func() {
			defer wg.Done()
			var each sync.WaitGroup
			for k := range v.file.Seeds {
				each.Go(func() {
					slots <- struct{}{}
					defer func() { <-slots }()
					if failed[k] = ctx.Err(); failed[k] == nil {
						v.out.runs[k], failed[k] = s.one(v.file, k)
					}
				})
			}
			each.Wait()
			for _, err := range failed {
				if err != nil {
					errs[i] = fmt.Errorf("%s: %w", v.name, err)
				}
			}
		}()
	}
	wg.Wait()
	if ctx.Err() != nil {
		return fulgur.E(fulgur.KindCanceled, "simulate", "stopped", ctx.Err())
	}
	for _, err := range errs {
		if err != nil {
			return fulgur.E(fulgur.KindInvalid, "simulate "+s.name, err.Error(), nil)
		}
	}
	s.measure()
	return nil
}

// plotBins are the bins of a timeline; the page averages them to its columns.
const plotBins = 4000

func (s *simulation) one(f config.SimFile, k int) (sim.Result, error) {
	o, err := s.options(f, uint64(f.Seed)+uint64(k))
	if err != nil {
		return sim.Result{}, err
	}
	if k == 0 {
		o.Bins = plotBins
	}
	return sim.Run(o)
}

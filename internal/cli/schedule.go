package cli

import (
	"runtime"
	"time"

	"github.com/fulgur-rl/fulgur/internal/config"
	"github.com/fulgur-rl/fulgur/internal/trainer"
	"github.com/fulgur-rl/fulgur/internal/trainer/schedule"
)

// scheduleOf is the run file's schedule.
func scheduleOf(f *config.File) schedule.Config {
	s, o := f.Schedule, f.OffPolicy
	c := schedule.Config{
		Mode: schedule.Mode(s.Mode), GroupsPerStep: f.Algorithm.GroupsPerStep, GroupSize: f.Algorithm.GroupSize,
		Active: s.Active, Refill: schedule.Refill(s.Refill), MeanStaleness: o.MeanStaleness, MaxStaleness: int64(o.MaxStaleness),
		Straggler: schedule.Straggler{Done: s.Straggler.Done, Factor: s.Straggler.Factor},
	}
	if s.Mode != string(schedule.Synchronous) && s.Active == 0 && o.MeanStaleness == 0 {
		c.Active = 1 // the package takes 0 for its default
	}
	if s.Straggler.Factor == 0 {
		c.Straggler = schedule.Straggler{}
	}
	return c
}

// overlap maps the run file's keys about the schedule to the trainer's options.
func overlap(o *trainer.Options, f *config.File) {
	refills := o.Schedule.Refills
	o.Schedule = scheduleOf(f)
	o.Schedule.Refills = refills
	o.Drain = max(time.Millisecond, time.Duration(f.Schedule.Drain)) // the trainer takes 0 for its default
}

// Agents a core, where the run file says auto.
const (
	workersPerCore = 2   // warm workers cost memory each
	agentsPerCore  = 32  // that wait for the model: more would wait for the engine only
	idlePerCore    = 256 // that wait for their tools, where the schedule looks ahead
)

// autoSlots is as many agents as the schedule has rollouts under way, within
// reason.
func autoSlots(f *config.File) int {
	most := agentsPerCore
	switch {
	case f.Agent.Worker:
		most = workersPerCore
	case f.Schedule.Mode != string(schedule.Synchronous):
		most = idlePerCore
	}
	return max(1, min(scheduleOf(f).Slots(), most*runtime.NumCPU()))
}

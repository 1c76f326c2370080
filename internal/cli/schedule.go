package cli

import (
	"fmt"
	"math"
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

// What an agent is taken to need, where the run file sets no lower limit: a Python
// program with an HTTP client has some 50 MB, a worker that has loaded a framework
// some hundred. Three quarters of the memory are the agents'.
const (
	agentMemory  = 48 << 20
	workerMemory = 256 << 20
)

// autoSlots is as many agents as the schedule has rollouts under way, within
// reason and this machine's memory.
func autoSlots(f *config.File) int { return slotsWithin(f, runtime.NumCPU(), machineMemory()) }

// slotsWithin are the slots on so many cores and bytes of memory; 0: not known. A
// cluster has its own.
func slotsWithin(f *config.File, cores int, memory int64) int {
	wanted := scheduleOf(f).Slots()
	if f.Runner.Kind == "kubernetes" {
		return wanted
	}
	most := agentsPerCore
	switch {
	case f.Agent.Worker:
		most = workersPerCore
	case f.Schedule.Mode != string(schedule.Synchronous):
		most = idlePerCore
	}
	each := int64(agentMemory)
	if f.Agent.Worker {
		each = workerMemory
	}
	if l := int64(f.Runner.Limits.Memory); l > 0 {
		each = min(each, l)
	}
	return max(1, min(wanted, room(most*cores, each, memory)))
}

// room is how many agents, at most so many, each of which needs so much memory, are
// at once within memory (0: not known).
func room(most int, each, memory int64) int {
	if memory > 0 {
		most = min(most, int(memory/4*3/each))
	}
	return max(1, most)
}

// Open files of this process that an agent needs while it runs, as measured (4 without a
// sandbox, 8 in one, with one connection to the gateway), with some for a second
// connection, and what this process itself needs beside: the store, the engine, agents
// that start.
const (
	agentFiles   = 6
	sandboxFiles = 14
	podFiles     = 3
	ownFiles     = 100
)

// slotsOf are the most slots for which so many open files are enough; 0: that is not known.
func slotsOf(f *config.File, files int) int {
	each := sandboxFiles
	switch {
	case f.Runner.Kind == "kubernetes":
		each = podFiles
	case f.Runner.Kind == "local" && f.Runner.Sandbox == "none" && !f.Agent.Worker:
		each = agentFiles
	}
	if files <= 0 {
		return math.MaxInt
	}
	return max(1, (files-ownFiles)/each)
}

// fewFiles says where the limit on open files leaves fewer slots than the run file asks
// for; "": nowhere.
func fewFiles(f *config.File, files int) string {
	most := slotsOf(f, files)
	if int(f.Runner.Slots) <= most {
		return ""
	}
	return fmt.Sprintf("runner.slots: %d is more than the %d open files of this process are enough for: at most %d agents run at once (raise the limit: ulimit -n, LimitNOFILE= of systemd)", f.Runner.Slots, files, most)
}

// Package sim runs a schedule in virtual time: the code of trainer/schedule, as
// it is, on rollouts that were drawn or recorded and on a model of the device.
// It says how long a step takes, how old rollouts are when they train, and what
// the device does meanwhile, in a second for a week of training.
//
// The model: rollouts are sequences of tool time and model calls; the calls in
// flight share the engine's throughput X(b) = Peak·b/(b+Half) evenly; a training
// step takes a fixed time. Learning is not simulated.
package sim

import (
	"fmt"

	"github.com/fulgur-rl/fulgur/internal/trainer/schedule"
)

// Cut is what becomes of calls that the drain's limit finds in flight.
type Cut string

// The cuts.
const (
	Freeze  Cut = "freeze"  // they stand still and go on: the engine keeps their context
	Resume  Cut = "resume"  // they go on from their own tokens; their context is read again
	Restart Cut = "restart" // they begin anew; what they had is wasted
)

// Pause is how calls are held during an update on the device that samples.
type Pause struct {
	// Drain is how many seconds calls in flight may take to end; below 0: no limit.
	Drain float64
	Cut   Cut // "": Resume
	// Retry: calls that come during a pause are refused, and come again up to so
	// many seconds after its end, evenly spread (Agent Lightning v1). 0: they are
	// held, and go on at its end.
	Retry float64
}

// DefaultPause is what the gateway does: it holds, waits for ten seconds, and
// goes on with what it cut off.
func DefaultPause() Pause { return Pause{Drain: 10, Cut: Resume} }

// Options of a simulation.
type Options struct {
	Workload Workload
	Machine  Machine
	Schedule schedule.Config
	Pause    Pause
	Slots    int // rollouts that run at once; 0: all that the schedule asks for
	Steps    int // end after so many; 0: when the schedule ends
	// Warmup is how many of them the times leave out, so that they are those of a
	// long run. Staleness is over all steps.
	Warmup int
	Seed   uint64 // of what is drawn during the run
	Bins   int    // of the timeline, at most; 0: no timeline
	// Trained, if set, sees each step's groups.
	Trained func(step int64, groups []schedule.Group)
}

// Result is what came out.
type Result struct {
	Steps          int     `json:"steps"` // that the times are of
	SecondsPerStep float64 `json:"seconds_per_step"`
	// MeanStaleness and MaxStaleness: versions published between a group's first
	// call and the step that trains it, of all steps.
	MeanStaleness float64 `json:"mean_staleness"`
	MaxStaleness  int64   `json:"max_staleness"`
	// AskedStaleness is the mean from when groups were asked for.
	AskedStaleness float64 `json:"asked_staleness"`
	Tokens         float64 `json:"tokens"`       // sampled, of all steps
	WastedShare    float64 `json:"wasted_share"` // of them, thrown away
	DrainPerStep   float64 `json:"drain_seconds_per_step"`
	LongestDrain   float64 `json:"longest_drain_seconds"`
	// Sampling and Training are shares of the whole device's time: what the engine
	// samples over what it can, and updates.
	Sampling float64 `json:"sampling"`
	Training float64 `json:"training"`
	Running  float64 `json:"running"` // rollouts that run, mean
	// Slots is the most rollouts that ran at once.
	Slots    int       `json:"slots"`
	Timeline *Timeline `json:"-"`
}

func (o *Options) check() error {
	if o.Workload == nil {
		return fmt.Errorf("there is no workload")
	}
	if err := o.Machine.check(); err != nil {
		return err
	}
	switch o.Pause.Cut {
	case "":
		o.Pause.Cut = Resume
	case Freeze, Resume, Restart:
	default:
		return fmt.Errorf("%q is no way to cut calls; there are %s, %s and %s", o.Pause.Cut, Freeze, Resume, Restart)
	}
	switch {
	case o.Schedule.GroupSize < 1:
		return fmt.Errorf("group_size is %d; it must be at least 1", o.Schedule.GroupSize)
	case o.Steps < 1 && o.Schedule.Steps < 1 && o.Schedule.Epochs < 1:
		return fmt.Errorf("the simulation has no end: set steps or epochs")
	case o.Warmup < 0 || o.Slots < 0 || !(o.Pause.Retry >= 0):
		return fmt.Errorf("warm-up, slots and retry can't be below 0")
	}
	return nil
}

// Run simulates.
func Run(o Options) (Result, error) {
	if err := o.check(); err != nil {
		return Result{}, err
	}
	s, err := schedule.New(o.Schedule, schedule.State{})
	if err != nil {
		return Result{}, err
	}
	w := newWorld(o, s)
	if err := w.run(); err != nil {
		return Result{}, err
	}
	return w.result(), nil
}

// idealRows is how many rows Ideal looks at.
const idealRows = 500

// Ideal is the least that a step can take on a machine that samples and trains
// in turn: its tokens at the engine's peak, and the update. (Limits of rollouts
// are not looked at, so a workload with many cut rollouts may beat it.)
func Ideal(w Workload, m Machine, groupsPerStep, groupSize int) float64 {
	tokens := 0.0
	for row := range idealRows {
		for k := range groupSize {
			tokens += w.Rollout(schedule.Group{Row: row}, k).Tokens()
		}
	}
	return tokens/idealRows*float64(groupsPerStep)/m.Peak + m.Update
}

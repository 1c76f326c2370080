package view

import "time"

// Event is something that the view shows: one of the structs of this file.
type Event interface{ event() }

// PhaseName says what a run is doing.
type PhaseName string

// The phases of a run, in order.
const (
	PhaseBefore   PhaseName = "before"   // measuring the start on data.test
	PhaseTraining PhaseName = "training" //
	PhaseAfter    PhaseName = "after"    // measuring the result on data.test
)

// Phase opens a part of the run.
type Phase struct {
	Name PhaseName
	Note string // for people: "measuring the start on 500 problems"
}

// StepProgress tells how far the rollouts of a step, or of a measurement, are.
type StepProgress struct {
	Step   int    // that is being made, from 1; 0 in a measurement
	Steps  int    // to make at most; 0: not known
	Label  string // "", or what is measured: "validation", "greedy"
	Done   int    // rollouts that have ended
	Total  int
	Active int // agents that run now
}

// StepDone tells of a training step.
type StepDone struct {
	Step, Steps int     // made, and to make at most (0: not known)
	Reward      float64 // mean of the step's rollouts
	Groups      int     // of the step
	Mixed       int     // of those, the ones whose rewards differ: only they teach
	Rollouts    int     // of the step
	Masked      int     // of those, the ones that neither train nor vote
	Tokens      int     // sampled in the step
	Rollout     time.Duration
	Update      time.Duration
	Total       time.Duration // of the step, validation aside
}

// Interval is a score with its 95 % confidence interval.
type Interval struct{ Value, Low, High float64 }

// Validation tells of a measurement.
type Validation struct {
	Name     string // "before", "after": what is measured; "": a validation
	Step     int
	Problems int
	Score    Interval  // pass@1 at the training temperature
	Greedy   *Interval // with greedy decoding; nil: not measured
	// Reward is the mean reward where it is not the score: fractional rewards, of
	// which only those of at least Pass are passes. nil: it is the score.
	Reward, GreedyReward *float64
	Pass                 float64
	Best                 bool // the best so far: its checkpoint is kept
}

// Warning is something that the user should look at.
type Warning struct{ Text string }

// Done closes the run. What is zero is not shown.
type Done struct {
	Title         string // "reached 0.9 in step 120", "interrupted in step 12"
	Problems      int    // of Before and After
	Before, After *Interval
	// Mean rewards, as in Validation.
	BeforeReward, AfterReward *float64
	Pass                      float64
	Wall, CPU                 time.Duration // CPU: of all processes
	Rollouts                  int
	Updates                   int
	Files                     []File // what to look at
	Next                      string // what to do next: "fulgur resume runs/calc"
}

// File is a result that stays.
type File struct{ Name, Path string }

func (Phase) event()        {}
func (StepProgress) event() {}
func (StepDone) event()     {}
func (Validation) event()   {}
func (Warning) event()      {}
func (Done) event()         {}

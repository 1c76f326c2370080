// Package schedule decides which rows of the dataset become rollouts and when a
// training step starts. A schedule gets events and answers with effects; it
// reads no clock and does nothing itself, so that the same code runs in training
// and in simulation. New makes one of Config.Mode.
//
// A group goes through: asked for, incomplete (its rollouts run), complete
// (waits for a step), trained. Policy versions are counted in finished steps.
package schedule

import (
	"fmt"
	"time"
)

// Mode is how rollouts and updates share the time.
type Mode string

// The modes.
const (
	// Synchronous asks for one step's groups, waits for all of them, updates, and
	// asks for the next. Its steps are a function of the data and the seed.
	Synchronous Mode = "synchronous"
	// Collocated keeps groups of several steps under way. One device samples and
	// trains in turn: calls are held while it updates (Update.Hold).
	Collocated Mode = "collocated"
	// Disaggregated does the same on devices of their own: nothing is held, and
	// groups are asked for while an update is at work.
	Disaggregated Mode = "disaggregated"
)

// Group says which row of the dataset is asked for, in which epoch.
type Group struct {
	Epoch int `json:"epoch"`
	Row   int `json:"row"`
}

// Cursor is where training stands in the data: all places of the epochs before
// Epoch, and the first Position places of Epoch, belong to finished steps or are
// carried over (State.Carried).
type Cursor struct {
	Step     int64 `json:"step"` // finished training steps
	Epoch    int   `json:"epoch"`
	Position int   `json:"position"`
}

// State is what a schedule resumes from, as of the last finished step. The
// cursor of rows asked for runs ahead of training; what lies between are the
// carried groups, so that a resumed run trains each row exactly once per epoch
// (case AS-07).
type State struct {
	Cursor
	// Carried are the groups that were asked for and not trained, in the order
	// in which they were asked for. A resumed schedule asks for them first.
	Carried []Carried `json:"carried,omitempty"`
	// Rows is the order of the cursor's epoch where Config.Rows made it.
	Rows []int `json:"rows,omitempty"`
}

// Carried is a group that a step left over.
type Carried struct {
	Group
	Version int64 `json:"version"` // when it was asked for
}

// An Event is what happened.
type Event interface{ event() }

// The events.
type (
	// Begin starts the schedule, or goes on after resume. It comes once, first.
	Begin struct{}
	// Member says that one rollout of a group is terminal. Only the straggler
	// rule looks at it.
	Member struct{ Group Group }
	// Complete says that all members of a group are terminal. Version is the
	// policy that sampled its first token, below 0: the one when it was asked for.
	Complete struct {
		Group   Group
		Version int64
	}
	// Rejected is Complete for a group that a filter does not want to train. The
	// answer is Drop, and Ask for another row, as long as Config.Refills allows;
	// else the group trains as it is.
	Rejected struct {
		Group   Group
		Version int64
	}
	// Updated says that the step's new weights are published.
	Updated struct{}
	// Clock says that time has passed. Only the straggler rule needs it.
	Clock struct{}
)

// An Effect is what is to be done.
type Effect interface{ effect() }

// The effects.
type (
	// Ask wants the rollouts of these groups created.
	Ask struct{ Groups []Group }
	// Update wants a training step on these groups, which are complete; Updated
	// answers it. Step counts from 1; the step's policy is version Step-1.
	Update struct {
		Step   int64
		Groups []Group // synchronous: as asked for; else the oldest first
		Hold   bool    // hold calls, drain within the bound or freeze, and go on after publishing
		Stats  Stats
	}
	// Drop takes a rejected group out: it counts as seen and does not train.
	Drop struct{ Group Group }
	// Close ends a group's members that still run (the straggler rule); what has
	// ended trains. Complete follows.
	Close struct{ Group Group }
	// Finished says that no step is left.
	Finished struct{}
)

// Stats describe a step.
type Stats struct {
	MeanStaleness float64 // over the step's groups: versions between its first token and its training
	MaxStaleness  int64
	Active        int // wanted number of groups under way
	Incomplete    int // groups whose rollouts run, after this step's were taken
	Ready         int // complete groups that wait for a later step
}

func (Begin) event()     {}
func (Member) event()    {}
func (Complete) event()  {}
func (Rejected) event()  {}
func (Updated) event()   {}
func (Clock) event()     {}
func (Ask) effect()      {}
func (Update) effect()   {}
func (Drop) effect()     {}
func (Close) effect()    {}
func (Finished) effect() {}

// A Schedule is the rule of a mode. It belongs to one goroutine.
type Schedule interface {
	// Handle takes an event and returns what is to be done now, in this order. At
	// is the time since any fixed moment; it never goes back. Events about groups
	// that are not open change nothing.
	Handle(at time.Duration, e Event) []Effect
	// State is what to resume from. While an update is at work it is the state
	// before it.
	State() State
}

// Refill is when a finished group is replaced.
type Refill string

// The rules of refill.
const (
	RefillOnUpdate     Refill = "update"     // behind each new version: Active counts incomplete and waiting groups
	RefillOnCompletion Refill = "completion" // at once: Active counts incomplete groups
)

// Straggler closes a group of which some members do not end: once Done of them
// (a share, 0 to 1) have ended and the group has run for Factor times as long as
// its median ended member took. The zero value is off: closing groups favours
// short runs (case AS-09).
type Straggler struct {
	Done   float64
	Factor float64
}

// The defaults of the asynchronous modes.
const (
	DefaultMeanStaleness = 4
	// DefaultMaxStaleness binds where it must: with log-normal lengths no group
	// gets older than 14 versions at the default mean, and where tools of some
	// rollouts take sixty times as long (fulgur sim cpu-pareto) a bound of 16 makes
	// every step wait for one of them, 6.7 s in place of 3.5.
	DefaultMaxStaleness = 40
)

// Config of a schedule.
type Config struct {
	Mode          Mode // "": Synchronous
	Order         Order
	GroupsPerStep int
	GroupSize     int   // only Straggler and Slots need it
	Steps         int64 // end after so many steps; 0: no limit
	Epochs        int   // end after so many passes; the last step takes what is left; 0: no limit
	// Rows replaces Order's shuffle: the rows of an epoch in the order in which
	// they are asked for, each at most once. It is called once when an epoch begins.
	Rows func(epoch int) []int
	// Refills is how many rejected groups a step may replace.
	Refills int

	// The rest is for the asynchronous modes.

	// Active is the number of groups under way in units of GroupsPerStep, at
	// least 1; 0: what MeanStaleness allows (see Admission).
	Active float64
	// Refill says when what has left is replaced, where Active is set; "":
	// RefillOnUpdate. (v1's schedule is Active 1.5 or 2 with RefillOnUpdate.)
	Refill Refill
	// MeanStaleness caps the mean over a step's groups of the versions between a
	// group's first token and its training, where Active is 0. 0: DefaultMeanStaleness.
	MeanStaleness float64
	// MaxStaleness is never exceeded: an update that would make an incomplete
	// group older waits for it, and no more groups are asked for than steps
	// within the bound can train. Nothing is discarded. 0: DefaultMaxStaleness.
	MaxStaleness int64
	Straggler    Straggler
}

// Slots is how many rollouts run at once under this schedule, at most.
func (c Config) Slots() int {
	groups := c.GroupsPerStep
	if c.Mode != Synchronous && c.Mode != "" {
		c.defaults()
		groups = c.most()
	}
	return groups * max(1, c.GroupSize)
}

func (c *Config) defaults() {
	if c.Mode == "" {
		c.Mode = Synchronous
	}
	if c.Refill == "" {
		c.Refill = RefillOnUpdate
	}
	if c.MaxStaleness == 0 {
		c.MaxStaleness = DefaultMaxStaleness
	}
	if c.MeanStaleness == 0 {
		c.MeanStaleness = min(DefaultMeanStaleness, float64(c.MaxStaleness))
	}
}

// New returns a schedule that goes on at a state; the zero State begins.
func New(cfg Config, at State) (Schedule, error) {
	cfg.defaults()
	if err := cfg.check(); err != nil {
		return nil, err
	}
	if at.Position < 0 || at.Position > cfg.Order.Rows {
		return nil, fmt.Errorf("position %d lies outside the %d rows of the data", at.Position, cfg.Order.Rows)
	}
	rows := rowSource{cfg: &cfg, at: at.Cursor, order: at.Rows, epoch: -1}
	if at.Rows != nil {
		rows.epoch = at.Epoch
	}
	if cfg.Mode == Synchronous {
		return &synchronous{cfg: cfg, rows: rows, state: at}, nil
	}
	return newAsynchronous(cfg, rows, at), nil
}

func (c *Config) check() error {
	switch {
	case c.Mode != Synchronous && c.Mode != Collocated && c.Mode != Disaggregated:
		return fmt.Errorf("%q is no schedule; there are %s, %s and %s", c.Mode, Synchronous, Collocated, Disaggregated)
	case c.Refill != RefillOnCompletion && c.Refill != RefillOnUpdate:
		return fmt.Errorf("refill is %q; it is %s or %s", c.Refill, RefillOnCompletion, RefillOnUpdate)
	case c.Order.Rows < 1:
		return fmt.Errorf("the training data has no row")
	case c.GroupsPerStep < 1:
		return fmt.Errorf("groups_per_step is %d; it must be at least 1", c.GroupsPerStep)
	case c.Active == 0 && c.Refill == RefillOnCompletion:
		return fmt.Errorf("refill on completion needs active: the mean staleness is held by refilling on updates")
	case c.Active != 0 && c.Active < 1:
		return fmt.Errorf("active is %g steps; below 1 no step would ever be full", c.Active)
	case c.MeanStaleness < 0 || c.MaxStaleness < 0:
		return fmt.Errorf("staleness can't be below 0")
	case c.MeanStaleness > float64(c.MaxStaleness):
		return fmt.Errorf("mean_staleness is %g, more than max_staleness, %d", c.MeanStaleness, c.MaxStaleness)
	case c.Straggler.Done < 0 || c.Straggler.Done > 1 || c.Straggler.Factor < 0:
		return fmt.Errorf("the straggler rule needs a share of 0 to 1 and a factor of at least 0")
	}
	return nil
}

// Package schedule decides which rows of the dataset become rollouts and when a
// training step starts. A schedule gets events and answers with effects; it
// reads no clock and does nothing itself, so that the same code runs in training
// and in simulation. The first schedule is Synchronous.
package schedule

import "fmt"

// Group says which row of the dataset is asked for, in which epoch.
type Group struct {
	Epoch int `json:"epoch"`
	Row   int `json:"row"`
}

// Cursor is where training stands in the data: all places of the epochs before
// Epoch, and the first Position places of Epoch, belong to finished steps. It
// moves when a step is finished, not when rows are asked for, so that a resumed
// run trains each row exactly once per epoch (case AS-07).
type Cursor struct {
	Step     int64 `json:"step"` // finished training steps
	Epoch    int   `json:"epoch"`
	Position int   `json:"position"`
}

// An Event is what happened.
type Event interface{ event() }

// The events.
type (
	// Begin starts the schedule, or goes on after resume.
	Begin struct{}
	// Complete says that all members of a group are terminal.
	Complete struct{ Group Group }
	// Updated says that the step's new weights are published.
	Updated struct{}
)

// An Effect is what is to be done.
type Effect interface{ effect() }

// The effects.
type (
	// Ask wants the rollouts of these groups created.
	Ask struct{ Groups []Group }
	// Update wants a training step on these groups, which are complete. Step
	// counts from 1.
	Update struct {
		Step   int64
		Groups []Group
	}
	// Finished says that no step is left.
	Finished struct{}
)

func (Begin) event()     {}
func (Complete) event()  {}
func (Updated) event()   {}
func (Ask) effect()      {}
func (Update) effect()   {}
func (Finished) effect() {}

// Config of a schedule.
type Config struct {
	Order         Order
	GroupsPerStep int
	Steps         int64 // end after so many steps; 0: no limit
	Epochs        int   // end after so many passes; the last step takes what is left; 0: no limit
}

// Synchronous asks for one step's groups, waits for all of them, updates, and
// asks for the next.
type Synchronous struct {
	cfg     Config
	cursor  Cursor
	next    Cursor // the cursor after the step at work
	asked   []Group
	open    map[Group]bool
	epoch   int
	shuffle []int
}

// NewSynchronous returns a schedule that goes on at the cursor.
func NewSynchronous(cfg Config, at Cursor) (*Synchronous, error) {
	switch {
	case cfg.Order.Rows < 1:
		return nil, fmt.Errorf("the training data has no row")
	case cfg.GroupsPerStep < 1:
		return nil, fmt.Errorf("groups_per_step is %d; it must be at least 1", cfg.GroupsPerStep)
	case at.Position < 0 || at.Position > cfg.Order.Rows:
		return nil, fmt.Errorf("position %d lies outside the %d rows of the data", at.Position, cfg.Order.Rows)
	}
	return &Synchronous{cfg: cfg, cursor: at, epoch: -1}, nil
}

// Cursor returns where finished steps have come to.
func (s *Synchronous) Cursor() Cursor { return s.cursor }

// Handle takes an event and returns what is to be done now. Events about groups
// that were not asked for, or are complete already, change nothing.
func (s *Synchronous) Handle(e Event) []Effect {
	switch e := e.(type) {
	case Begin:
		return s.ask()
	case Complete:
		if !s.open[e.Group] {
			return nil
		}
		delete(s.open, e.Group)
		if len(s.open) == 0 {
			return []Effect{Update{Step: s.cursor.Step + 1, Groups: s.asked}}
		}
	case Updated:
		s.cursor = s.next
		return s.ask()
	}
	return nil
}

func (s *Synchronous) ask() []Effect {
	if s.cfg.Steps > 0 && s.cursor.Step >= s.cfg.Steps {
		return []Effect{Finished{}}
	}
	at := s.cursor
	s.asked, s.open = nil, map[Group]bool{}
	for len(s.asked) < s.cfg.GroupsPerStep {
		if at.Position == s.cfg.Order.Rows {
			at.Epoch, at.Position = at.Epoch+1, 0
		}
		if s.cfg.Epochs > 0 && at.Epoch >= s.cfg.Epochs {
			break
		}
		if s.epoch != at.Epoch {
			s.epoch, s.shuffle = at.Epoch, s.cfg.Order.Epoch(at.Epoch)
		}
		g := Group{Epoch: at.Epoch, Row: s.shuffle[at.Position]}
		s.asked = append(s.asked, g)
		s.open[g] = true
		at.Position++
	}
	if len(s.asked) == 0 {
		return []Effect{Finished{}}
	}
	at.Step++
	s.next = at
	return []Effect{Ask{Groups: s.asked}}
}

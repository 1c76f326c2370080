package schedule

import (
	"slices"
	"time"
)

// synchronous is the Synchronous mode. Rejected groups are replaced when all
// others are complete, in the order in which they were asked for: which ones are
// does not depend on who was quick.
type synchronous struct {
	cfg      Config
	rows     rowSource
	state    State // after the last finished step
	asked    []Group
	open     map[Group]bool
	rejected map[Group]bool
	refills  int // of this step
}

func (s *synchronous) State() State { return s.state }

func (s *synchronous) Handle(_ time.Duration, e Event) []Effect {
	switch e := e.(type) {
	case Begin:
		return s.ask()
	case Complete:
		return s.complete(e.Group, false)
	case Rejected:
		return s.complete(e.Group, true)
	case Updated:
		step := s.state.Step + 1
		s.state = State{Cursor: s.rows.at, Rows: s.rows.kept()}
		s.state.Step = step
		return s.ask()
	}
	return nil
}

func (s *synchronous) complete(g Group, rejected bool) []Effect {
	if !s.open[g] {
		return nil
	}
	delete(s.open, g)
	if rejected {
		s.rejected[g] = true
	}
	if len(s.open) > 0 {
		return nil
	}
	if effects := s.replace(); effects != nil {
		return effects
	}
	return []Effect{Update{Step: s.state.Step + 1, Groups: s.asked, Hold: true, Stats: Stats{Active: s.cfg.GroupsPerStep}}}
}

// replace drops rejected groups for which there is another row.
func (s *synchronous) replace() []Effect {
	var drops []Effect
	var fresh []Group
	for _, g := range slices.Clone(s.asked) {
		if !s.rejected[g] || s.refills == 0 {
			continue
		}
		n, ok := s.rows.next()
		if !ok {
			break
		}
		s.refills--
		s.asked = slices.DeleteFunc(s.asked, func(o Group) bool { return o == g })
		drops = append(drops, Drop{Group: g})
		fresh = append(fresh, n)
	}
	clear(s.rejected)
	if fresh == nil {
		return nil
	}
	s.put(fresh)
	return append(drops, Ask{Groups: fresh})
}

func (s *synchronous) put(groups []Group) {
	s.asked = append(s.asked, groups...)
	for _, g := range groups {
		s.open[g] = true
	}
}

func (s *synchronous) ask() []Effect {
	if s.cfg.Steps > 0 && s.state.Step >= s.cfg.Steps {
		return []Effect{Finished{}}
	}
	s.asked, s.open, s.rejected, s.refills = nil, map[Group]bool{}, map[Group]bool{}, s.cfg.Refills
	var groups []Group
	for len(groups) < s.cfg.GroupsPerStep {
		g, ok := s.rows.next()
		if !ok {
			break
		}
		groups = append(groups, g)
	}
	if len(groups) == 0 {
		return []Effect{Finished{}}
	}
	s.put(groups)
	return []Effect{Ask{Groups: groups}}
}

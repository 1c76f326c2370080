package schedule

import (
	"cmp"
	"slices"
	"time"
)

// asynchronous is the Collocated and the Disaggregated mode.
type asynchronous struct {
	cfg      Config
	rows     rowSource
	step     int64 // finished
	asked    int   // groups so far; numbers them
	admit    *Admission
	refills  int  // left for the step to come
	drained  bool // no row is left
	open     []*group
	ready    []*group
	taken    []*group // by the update at work
	updating bool
	carried  []Carried // until Begin
}

// group is one that was asked for and is not trained.
type group struct {
	Group
	number  int
	version int64         // of its first token, as far as known
	at      time.Duration // when it was asked for
	took    []time.Duration
	closed  bool
}

func newAsynchronous(cfg Config, rows rowSource, at State) *asynchronous {
	s := &asynchronous{cfg: cfg, step: at.Step, admit: cfg.admission(), refills: cfg.Refills, carried: at.Carried}
	rows.cfg = &s.cfg
	s.rows = rows
	return s
}

func (c *Config) admission() *Admission {
	return NewAdmission(c.GroupsPerStep, c.MeanStaleness, int(c.MaxStaleness))
}

// most is the largest number of groups that run at once.
func (c *Config) most() int {
	if c.Active == 0 {
		return c.admission().Most()
	}
	return min(int(c.Active*float64(c.GroupsPerStep)), int(c.MaxStaleness+1)*c.GroupsPerStep)
}

// active is the wanted number of groups under way.
func (s *asynchronous) active() int {
	if s.cfg.Active == 0 {
		return s.admit.Target()
	}
	return s.cfg.most()
}

func (s *asynchronous) State() State {
	at := State{Cursor: s.rows.at, Rows: s.rows.kept()}
	at.Step = s.step
	at.Carried = append(at.Carried, s.carried...)
	all := slices.Concat(s.open, s.ready, s.taken)
	slices.SortFunc(all, func(a, b *group) int { return a.number - b.number })
	for _, g := range all {
		at.Carried = append(at.Carried, Carried{Group: g.Group, Version: g.version})
	}
	return at
}

func (s *asynchronous) Handle(at time.Duration, e Event) []Effect {
	switch e := e.(type) {
	case Begin:
		return s.begin(at)
	case Member:
		if g := s.find(e.Group); g != nil {
			g.took = append(g.took, at-g.at)
		}
		return s.stragglers(at)
	case Clock:
		return s.stragglers(at)
	case Complete:
		return s.complete(at, e.Group, e.Version, false)
	case Rejected:
		return s.complete(at, e.Group, e.Version, true)
	case Updated:
		if !s.updating {
			return nil
		}
		s.updating, s.taken, s.refills = false, nil, s.cfg.Refills
		s.step++
		s.admit.Take(len(s.ready))
		return s.goOn(at, true)
	}
	return nil
}

// begin asks for what was carried over, then as usual.
func (s *asynchronous) begin(at time.Duration) []Effect {
	var groups []Group
	for _, c := range s.carried {
		s.put(at, c.Group, c.Version)
		groups = append(groups, c.Group)
	}
	s.carried = nil
	return join(groups, s.goOn(at, true))
}

// join asks for groups in one effect with those that the effects begin with.
func join(groups []Group, effects []Effect) []Effect {
	if len(groups) == 0 {
		return effects
	}
	if len(effects) > 0 {
		if a, ok := effects[0].(Ask); ok {
			groups, effects = append(groups, a.Groups...), effects[1:]
		}
	}
	return append([]Effect{Ask{Groups: groups}}, effects...)
}

func (s *asynchronous) find(g Group) *group {
	for _, o := range s.open {
		if o.Group == g {
			return o
		}
	}
	return nil
}

func (s *asynchronous) put(at time.Duration, g Group, version int64) {
	s.open = append(s.open, &group{Group: g, number: s.asked, version: version, at: at})
	s.asked++
}

func (s *asynchronous) complete(at time.Duration, which Group, version int64, rejected bool) []Effect {
	g := s.find(which)
	if g == nil {
		return nil
	}
	if version >= 0 {
		g.version = version
	}
	s.open = slices.DeleteFunc(s.open, func(o *group) bool { return o == g })
	if rejected && s.refills > 0 {
		if n, ok := s.next(); ok {
			s.refills--
			s.put(at, n, s.step)
			return append([]Effect{Drop{Group: which}}, join([]Group{n}, s.goOn(at, false))...)
		}
	}
	s.ready = append(s.ready, g)
	return s.goOn(at, false)
}

// goOn returns what an event leads to: rows to fill up what is under way, within the
// bounds of staleness and of steps, and an update as soon as a step's groups are there.
func (s *asynchronous) goOn(at time.Duration, updated bool) []Effect {
	if s.cfg.Steps > 0 && s.step >= s.cfg.Steps {
		return []Effect{Finished{}}
	}
	var effects []Effect
	if groups := s.refill(at, updated); len(groups) > 0 {
		effects = append(effects, Ask{Groups: groups})
	}
	if s.updating {
		return effects
	}
	if len(s.open)+len(s.ready) == 0 {
		return append(effects, Finished{})
	}
	if u, ok := s.update(); ok {
		effects = append(effects, u)
	}
	return effects
}

// refill asks for rows as long as fewer groups are under way than wanted.
func (s *asynchronous) refill(at time.Duration, updated bool) (groups []Group) {
	if s.updating && s.cfg.Mode == Collocated {
		return nil // they would wait for the new weights
	}
	if s.cfg.Refill == RefillOnUpdate && !updated {
		return nil
	}
	for {
		under := len(s.open)
		if s.cfg.Refill == RefillOnUpdate {
			under += len(s.ready)
		}
		if under >= s.active() || !s.admits() {
			return groups
		}
		g, ok := s.next()
		if !ok {
			return groups
		}
		s.put(at, g, s.step)
		groups = append(groups, g)
	}
}

// admits says whether one more group can train within the bounds: of steps, and
// of staleness if every step from now on takes the oldest.
func (s *asynchronous) admits() bool {
	n := len(s.open) + len(s.ready)
	steps := s.cfg.MaxStaleness + 1
	if s.updating { // the next step's policy is one version further
		steps--
	}
	if n >= int(steps)*s.cfg.GroupsPerStep {
		return false
	}
	left := s.cfg.Steps - s.step
	if s.updating {
		left--
	}
	return s.cfg.Steps == 0 || n < int(left)*s.cfg.GroupsPerStep
}

func (s *asynchronous) next() (Group, bool) {
	if s.drained {
		return Group{}, false
	}
	g, ok := s.rows.next()
	s.drained = !ok
	return g, ok
}

// update takes the oldest complete groups, if they fill a step and the rest
// stays within the bound of staleness.
func (s *asynchronous) update() (Update, bool) {
	n := s.cfg.GroupsPerStep
	if len(s.ready) < n {
		if len(s.open) > 0 || len(s.ready) == 0 || !s.drained {
			return Update{}, false
		}
		n = len(s.ready) // the last step takes what is left
	}
	slices.SortFunc(s.ready, older)
	if len(s.open) > 0 && !s.fits(s.ready[n:]) {
		return Update{}, false
	}
	s.taken, s.ready = slices.Clone(s.ready[:n]), s.ready[n:]
	s.updating = true
	u := Update{Step: s.step + 1, Hold: s.cfg.Mode == Collocated}
	for _, g := range s.taken {
		u.Groups = append(u.Groups, g.Group)
		age := s.step - g.version
		u.Stats.MeanStaleness += float64(age) / float64(n)
		u.Stats.MaxStaleness = max(u.Stats.MaxStaleness, age)
	}
	u.Stats.Active, u.Stats.Incomplete, u.Stats.Ready = s.active(), len(s.open), len(s.ready)
	return u, true
}

func older(a, b *group) int {
	return cmp.Or(cmp.Compare(a.version, b.version), a.number-b.number)
}

// fits says whether, after a step now, the groups that run and those that wait
// can all train within the bound: the k-th oldest of them in the step of its
// place or before.
func (s *asynchronous) fits(ready []*group) bool {
	left := slices.Concat(s.open, ready)
	slices.SortFunc(left, older)
	for i, g := range left {
		if s.step+1+int64(i/s.cfg.GroupsPerStep)-g.version > s.cfg.MaxStaleness {
			return false
		}
	}
	return true
}

// stragglers closes groups by the straggler rule.
func (s *asynchronous) stragglers(at time.Duration) (effects []Effect) {
	rule := s.cfg.Straggler
	if rule == (Straggler{}) {
		return nil
	}
	for _, g := range s.open {
		n := len(g.took)
		if g.closed || n == 0 || n >= s.cfg.GroupSize || float64(n) < rule.Done*float64(s.cfg.GroupSize) {
			continue
		}
		took := slices.Sorted(slices.Values(g.took))
		if float64(at-g.at) > rule.Factor*float64(took[n/2]) {
			g.closed = true
			effects = append(effects, Close{Group: g.Group})
		}
	}
	return effects
}

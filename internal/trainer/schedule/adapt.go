package schedule

import "math"

// Admission is the rule for how many groups an asynchronous schedule has in the
// system: started and not yet trained, complete or not.
//
// A group's staleness is the number of versions published between its start and
// its training. Each step takes B groups (groups_per_step) of the system, and
// every group that stays is one version older afterwards. So with N groups in
// the system when a step takes its B, staleness is N/B - 1 on average, whatever
// the lengths of rollouts are (Little's law in versions), and N = (1 + mean)·B
// holds a mean exactly, with no control loop. Of all rules with this mean, the
// one that fills up right behind each new version gives rollouts the most time:
// a group that starts later in the step has the same version and less of the
// step to run in. With a bound on the groups that are not complete, refilled one
// by one, complete groups come on top, and for the same mean half a step's
// groups fewer run (docs/sim.md has the figures).
//
// Fewer are enough where groups wait for training in place of training for
// groups: what is complete beyond a step's need at every step of a window buys
// nothing but age, and is given back.
type Admission struct {
	groups  int // of a step
	most    int // the bound that the mean staleness sets
	target  int
	spare   int // the least that was complete beyond a step's need, in this window
	seen    int // steps in this window
	waiting bool
}

// admissionWindow is how many steps Admission looks at before it gives groups
// back: long enough that a step of short rollouts is no reason.
const admissionWindow = 4

// NewAdmission returns the rule for a step of so many groups and a staleness of
// at most mean on average and maximum for each group (versions, both at least 0).
func NewAdmission(groupsPerStep int, mean float64, maximum int) *Admission {
	mean = max(0, min(mean, float64(maximum)))
	most := groupsPerStep + int(math.Floor(mean*float64(groupsPerStep)+1e-9))
	return &Admission{groups: groupsPerStep, most: most, target: most, spare: math.MaxInt}
}

// Target returns how many groups are to be in the system behind a new version:
// fill up to this many then, and start none until the next version.
func (a *Admission) Target() int { return a.target }

// Most returns the largest Target: what slots must be there for.
func (a *Admission) Most() int { return a.most }

// Take tells the rule how many groups were complete when a step could have
// taken its own, that is when the step before it was published: where that is
// fewer than a step needs, training waited for them.
func (a *Admission) Take(complete int) {
	spare := complete - a.groups
	a.waiting = a.waiting || spare < 0
	a.spare = min(a.spare, spare)
	if a.seen++; a.seen < admissionWindow {
		return
	}
	switch {
	case a.waiting:
		a.target = min(a.most, a.target+a.groups)
	case a.spare > 0:
		a.target = max(a.groups, a.target-a.spare)
	}
	a.spare, a.seen, a.waiting = math.MaxInt, 0, false
}

package trainer

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"

	"github.com/fulgur-rl/fulgur"
)

// What makes a rise in the rate of an outcome worth a warning: it is no chance
// (in standard deviations of a difference of two shares), and it is not small.
const (
	driftRollouts = 256 // that a rate is measured over, at least
	driftSigma    = 4
	driftRise     = 0.05
)

// tally counts ways to end under some policy versions. Rates are watched by
// version: what a policy learns to bring about shows there first.
type tally struct {
	First    fulgur.PolicyVersion `json:"first"`
	Last     fulgur.PolicyVersion `json:"last"`
	Rollouts int                  `json:"rollouts"`
	Ways     map[string]int       `json:"ways"` // all but ok, by name
}

func (a *tally) add(b tally) {
	if a.Rollouts == 0 {
		a.First, a.Last = b.First, b.Last
	}
	a.First, a.Last = min(a.First, b.First), max(a.Last, b.Last)
	a.Rollouts += b.Rollouts
	if a.Ways == nil {
		a.Ways = map[string]int{}
	}
	for way, n := range b.Ways {
		a.Ways[way] += n
	}
}

func (a *tally) rate(way string) float64 { return float64(a.Ways[way]) / float64(a.Rollouts) }

func (a *tally) versions() string {
	if a.First == a.Last {
		return fmt.Sprintf("policy version %d", a.First)
	}
	return fmt.Sprintf("policy versions %d to %d", a.First, a.Last)
}

// drift compares the newest policy versions with those of an earlier time.
type drift struct {
	Base   tally   `json:"base"`
	Recent []tally `json:"recent,omitempty"` // one per version, oldest first
}

// way names how a rollout ended, as metrics do. One that went well has a way of its
// own where it asked the model nothing (case CL-09), or where nothing came of its
// reward: both may be what agents learn.
func way(l *RolloutLine) string {
	why := l.Outcome
	if l.Class == fulgur.OutcomeOK {
		switch why = ""; {
		case slices.Contains([]string{maskGrader, maskNotFinite, maskRange, maskAudit}, l.Masked):
			why = l.Masked
		case l.Outcome == CauseNoCalls:
			why = l.Outcome
		}
	}
	return strings.TrimSuffix(string(l.Class)+"_"+why, "_")
}

// add counts a step's rollouts under the policies that they began with.
func (d *drift) add(lines []RolloutLine) {
	byVersion := map[fulgur.PolicyVersion]*tally{}
	for i := range lines {
		l := &lines[i]
		t := byVersion[l.Version]
		if t == nil {
			t = &tally{First: l.Version, Last: l.Version, Ways: map[string]int{}}
			byVersion[l.Version] = t
		}
		t.Rollouts++
		if w := way(l); w != string(fulgur.OutcomeOK) {
			t.Ways[w]++
		}
	}
	for _, v := range slices.Sorted(maps.Keys(byVersion)) {
		if d.Base.Rollouts < driftRollouts {
			d.Base.add(*byVersion[v])
			continue
		}
		i := slices.IndexFunc(d.Recent, func(t tally) bool { return t.First == v })
		if i < 0 {
			d.Recent = append(d.Recent, tally{First: v, Last: v})
			i = len(d.Recent) - 1
		}
		d.Recent[i].add(*byVersion[v])
	}
	n := d.recent().Rollouts
	for len(d.Recent) > 1 && n-d.Recent[0].Rollouts >= driftRollouts {
		n -= d.Recent[0].Rollouts
		d.Recent = d.Recent[1:]
	}
}

// recent sums up the newest versions.
func (d *drift) recent() (sum tally) {
	for _, t := range d.Recent {
		sum.add(t)
	}
	return sum
}

// risen returns what has become more frequent, and takes the newest versions for
// the base then: a rise is told once, and a slow one as well as a quick one.
func (d *drift) risen() (told []string) {
	now := d.recent()
	if now.Rollouts < driftRollouts || d.Base.Rollouts < driftRollouts {
		return nil
	}
	for _, w := range slices.Sorted(maps.Keys(now.Ways)) {
		before, after := d.Base.rate(w), now.rate(w)
		n, m := float64(d.Base.Rollouts), float64(now.Rollouts)
		p := float64(d.Base.Ways[w]+now.Ways[w]) / (n + m)
		if deviation := math.Sqrt(p * (1 - p) * (1/n + 1/m)); after-before > driftRise && after-before > driftSigma*deviation {
			told = append(told, fmt.Sprintf("%s rose from %.1f %% (%s) to %.1f %% (%s)", w, 100*before, d.Base.versions(), 100*after, now.versions()))
		}
	}
	if told != nil {
		d.Base, d.Recent = now, nil
	}
	return told
}

// watchOutcomes measures the rates of a step's outcomes and warns of those that rise.
func (t *trainer) watchOutcomes(step int64, lines []RolloutLine, values map[string]float64) {
	d := &t.state.Drift
	d.add(lines)
	if now := d.recent(); now.Rollouts > 0 {
		for w := range now.Ways {
			values["outcome_rates/"+w] = now.rate(w)
		}
	}
	for _, rise := range d.risen() {
		t.warn(step, "outcome_drift", "%s: if agents can bring that about, it may be what they learn; `fulgur rollouts list` shows which, and `outcomes` what it is worth to them", rise)
	}
}

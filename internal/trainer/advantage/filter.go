package advantage

// Filter says which groups are left out of an update: their rollouts are dropped
// whole, as if they had not been asked for. It looks at rewards as they were
// given, not at shaped ones (case AL-14).
type Filter struct {
	Equal bool // drop groups whose rewards are all equal: they teach nothing, but count in every mean
	Valid int  // drop groups with fewer voters than this; 0: none
}

// Verdict says why a group is dropped; "": it is kept.
type Verdict string

// The verdicts.
const (
	Kept         Verdict = ""
	EqualRewards Verdict = "equal_rewards"
	TooFewValid  Verdict = "too_few_valid"
)

// Judge returns a verdict for each group.
func (f Filter) Judge(members []Member) map[string]Verdict {
	type seen struct {
		n     int
		first float64
		mixed bool
	}
	groups := map[string]*seen{}
	for _, m := range members {
		g := groups[m.Group]
		if g == nil {
			g = &seen{}
			groups[m.Group] = g
		}
		if m.Masked || !finite(m) {
			continue
		}
		if g.n++; g.n == 1 {
			g.first = m.Reward
		}
		g.mixed = g.mixed || m.Reward != g.first
	}
	out := make(map[string]Verdict, len(groups))
	for name, g := range groups {
		switch {
		case g.n < f.Valid:
			out[name] = TooFewValid
		case f.Equal && !g.mixed:
			out[name] = EqualRewards
		default:
			out[name] = Kept
		}
	}
	return out
}

// Curriculum weighs rows by how often their rollouts pass, so that what is never
// solved and what always is are asked for less often: a row weighs 4p(1-p), the
// variance of a pass as a share of its largest, at least Floor. Rows that were not
// tried weigh 1.
type Curriculum struct {
	Floor float64 // of a row's weight, in (0, 1]; 0: 0.1
	Decay float64 // of older passes at each new group, in [0, 1); 0: all count alike
}

// Passes is what is known of a row: decayed counts.
type Passes struct {
	Passed float64 `json:"passed"`
	Tried  float64 `json:"tried"`
}

// Add returns the counts after a group.
func (c Curriculum) Add(p Passes, passed, tried int) Passes {
	if tried == 0 {
		return p
	}
	keep := 1.0
	if c.Decay > 0 {
		keep = 1 - c.Decay
	}
	return Passes{p.Passed*keep + float64(passed), p.Tried*keep + float64(tried)}
}

// Weight of a row. The pass rate is taken with one pass and one failure added, so
// that a single group does not decide.
func (c Curriculum) Weight(p Passes) float64 {
	if p.Tried == 0 {
		return 1
	}
	floor := c.Floor
	if floor == 0 {
		floor = 0.1
	}
	rate := (p.Passed + 1) / (p.Tried + 2)
	return max(floor, 4*rate*(1-rate))
}

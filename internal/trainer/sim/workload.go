package sim

import (
	"math"

	"github.com/fulgur-rl/fulgur/internal/trainer/schedule"
)

// Call is one model call of a rollout.
type Call struct {
	Gap    float64 // seconds before it in which the agent uses no model: its start, its tools
	Prompt float64 // tokens that it reads; only a call that is cut off reads them twice
	Tokens float64 // tokens that it samples
}

// Rollout is what one rollout does.
type Rollout struct {
	Calls []Call
	Tail  float64 // seconds from its last call to its end
	// Limit is the rollout's own time limit in seconds; 0: none. It holds from the
	// first answer on: a call under way ends, a tool under way is cut short.
	Limit float64
}

// Tokens is what the rollout samples, were there no limit.
func (r Rollout) Tokens() (n float64) {
	for _, c := range r.Calls {
		n += c.Tokens
	}
	return n
}

// Workload says what the rollouts of a run are like. A member's rollout is a
// function of the arguments alone, so that all schedules get the same work.
type Workload interface {
	Rollout(g schedule.Group, member int) Rollout
}

// LogNormal is a distribution by its median and the standard deviation of its
// logarithm.
type LogNormal struct{ Median, Sigma float64 }

// Drawn is a workload of independent draws (research: heavy-tailed agents).
type Drawn struct {
	Seed   uint64
	Calls  LogNormal // of a rollout, rounded, at least 1
	Tokens LogNormal // of a call, at least 1
	Tools  LogNormal // seconds before each call
	// SlowTail above 0 multiplies the tools of a whole rollout by a Pareto draw of
	// this exponent, at most 60: slow machines, long test suites.
	SlowTail float64
	// RowShare is the share of the variance of log calls that belongs to the row:
	// a hard row is hard for its whole group.
	RowShare float64
	// LongShare of the calls sample LongTimes as many tokens.
	LongShare, LongTimes float64
	Limit                float64 // seconds; 0: none
}

// mostSlow bounds SlowTail's draw.
const mostSlow = 60

// mostCalls bounds a rollout's calls: a wide distribution draws more than memory
// has room for.
const mostCalls = 100_000

// Rollout implements Workload.
func (d Drawn) Rollout(g schedule.Group, member int) Rollout {
	row := rng(schedule.Mix(d.Seed, uint64(g.Row)))
	hard := row.normal()
	r := rng(schedule.Mix(schedule.Mix(d.Seed+1, uint64(g.Epoch)), schedule.Mix(uint64(g.Row), uint64(member))))
	share := min(max(d.RowShare, 0), 1)
	z := math.Sqrt(share)*hard + math.Sqrt(1-share)*r.normal()
	n := int(min(mostCalls, max(1, math.Round(d.Calls.Median*math.Exp(d.Calls.Sigma*z)))))
	slow := 1.0
	if d.SlowTail > 0 {
		slow = min(mostSlow, math.Pow(1-r.uniform(), -1/d.SlowTail))
	}
	out := Rollout{Calls: make([]Call, n), Limit: d.Limit}
	read := 0.0
	for i := range out.Calls {
		c := &out.Calls[i]
		c.Prompt = read
		c.Tokens = max(1, r.logNormal(d.Tokens))
		if d.LongShare > 0 && r.uniform() < d.LongShare {
			c.Tokens *= d.LongTimes
		}
		c.Gap = r.logNormal(d.Tools) * slow
		read += c.Tokens
	}
	return out
}

// Recorded is a workload that was seen: each group is one of the recorded
// groups, drawn by its row and epoch, each member one of that group's rollouts.
type Recorded struct {
	Seed   uint64
	Groups [][]Rollout // at least one, none empty
}

// Rollout implements Workload.
func (w Recorded) Rollout(g schedule.Group, member int) Rollout {
	h := schedule.Mix(w.Seed, schedule.Mix(uint64(g.Epoch), uint64(g.Row)))
	group := w.Groups[h%uint64(len(w.Groups))]
	return group[member%len(group)]
}

// rng is SplitMix64 with the distributions that workloads need; its value is
// its seed.
type rng uint64

func (r *rng) uniform() float64 {
	*r += 0x9e3779b97f4a7c15
	return float64(schedule.Mix(uint64(*r), 0)>>11) / (1 << 53)
}

// normal is Box and Muller's.
func (r *rng) normal() float64 {
	return math.Sqrt(-2*math.Log(1-r.uniform())) * math.Cos(2*math.Pi*r.uniform())
}

func (r *rng) logNormal(d LogNormal) float64 { return d.Median * math.Exp(d.Sigma*r.normal()) }

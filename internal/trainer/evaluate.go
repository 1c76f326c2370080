package trainer

import (
	"context"
	"time"

	"github.com/fulgur-rl/fulgur"
	"github.com/fulgur-rl/fulgur/internal/trainer/data"
	"github.com/fulgur-rl/fulgur/internal/trainer/stats"
)

// Score is a pass rate over rollouts. Every rollout counts, also one that failed
// (case AL-11): a failure is no pass.
type Score struct {
	Rollouts       int     `json:"rollouts"`
	Passes         int     `json:"passes"`
	AgentFailures  int     `json:"agent_failures"` // and shortcuts that the audit masks
	Infrastructure int     `json:"infrastructure"` // failures that are not the agent's, and grader failures
	Rate           float64 `json:"rate"`           // pass@1
	Low            float64 `json:"low"`            // Wilson interval, 95 %
	High           float64 `json:"high"`
	Reward         float64 `json:"reward"` // mean; 0 for a rollout without one
	// Repeats is what several runs of each row say; nil if there was one.
	Repeats *stats.Summary `json:"repeats,omitempty"`
}

// Evaluation is the score of one policy on one set of rows.
type Evaluation struct {
	Part    string               `json:"part"` // "val", "before", "after", …
	Step    int64                `json:"step"`
	Version fulgur.PolicyVersion `json:"version"`
	Sampled Score                `json:"sampled"` // at temperature 1
	Greedy  Score                `json:"greedy"`
	Wall    time.Duration        `json:"wall"`
	Lines   []RolloutLine        `json:"-"`
}

// Wilson returns the 95 % interval of a rate of passes among n trials (Wilson
// 1927); 0 to 1 if n is 0.
func Wilson(passes, n int) (low, high float64) {
	return stats.Wilson(float64(passes)/max(1, float64(n)), float64(n))
}

// greedySuffix tells the greedy half of an evaluation from the sampled one.
const greedySuffix = "-greedy"

// evaluate runs every row EvaluationRuns times at temperature 1 and once greedily,
// all at the same time. The ids are a function of part and step.
func (t *trainer) evaluate(ctx context.Context, part string, step int64, rows []data.Row) (*Evaluation, error) {
	start := t.o.Now()
	var asks []ask
	modes := []bool{false, true}
	if t.o.NoGreedy {
		modes = modes[:1]
	}
	for _, greedy := range modes {
		p := part
		if greedy {
			p += greedySuffix
		}
		runs := 1 // greedy ones are all the same
		if !greedy {
			runs = max(1, t.o.EvaluationRuns)
		}
		for _, row := range rows {
			for k := range runs {
				asks = append(asks, ask{row: row, greedy: greedy,
					key: fulgur.RolloutKey{Run: t.o.Run, Part: p, Epoch: int(step), Row: row.Index, K: k}})
			}
		}
	}
	all, err := t.collect(ctx, step, asks)
	if err != nil {
		return nil, err
	}
	e := &Evaluation{Part: part, Step: step, Version: t.state.Version}
	sampled := all[:len(rows)*max(1, t.o.EvaluationRuns)]
	e.Sampled = score(sampled, t.o.Pass)
	e.Greedy = score(all[len(sampled):], t.o.Pass)
	e.Sampled.repeated(sampled, t.o.EvaluationRuns, t.o.Pass)
	for i := range all {
		e.Lines = append(e.Lines, all[i].line)
	}
	e.Wall = t.o.Now().Sub(start)
	t.state.Timing.Evaluation += e.Wall
	t.state.Evaluated += int64(len(all))
	t.o.Observer(Evaluated{*e})
	if n := e.Sampled.Infrastructure + e.Greedy.Infrastructure; n > 0 {
		t.warn(step, "evaluation_failures", "%d of %d evaluation rollouts failed through no fault of the agent; they count as not passed", n, len(all))
	}
	t.warnCauses(step, all)
	return e, nil
}

func score(rollouts []ended, pass float64) Score {
	s := Score{Rollouts: len(rollouts)}
	for i := range rollouts {
		l := &rollouts[i].line
		switch {
		case l.Class == fulgur.OutcomeAgent || l.Masked == maskAudit:
			s.AgentFailures++
		case l.Masked != "":
			s.Infrastructure++
		}
		if l.Masked == "" && l.Reward != nil {
			s.Reward += *l.Reward / float64(len(rollouts))
		}
		if l.Passes(pass) {
			s.Passes++
		}
	}
	if s.Rollouts > 0 {
		s.Rate = float64(s.Passes) / float64(s.Rollouts)
	}
	s.Low, s.High = Wilson(s.Passes, s.Rollouts)
	return s
}

// repeated adds what runs of the same row say together: runs of a row are next to
// each other. The interval of pass@1 is then over rows, since a row's runs are
// not independent.
func (s *Score) repeated(rollouts []ended, runs int, pass float64) {
	if runs < 2 || len(rollouts) == 0 {
		return
	}
	tasks := make([]stats.Task, 0, len(rollouts)/runs)
	for i := range rollouts {
		if i%runs == 0 {
			tasks = append(tasks, stats.Task{Runs: runs})
		}
		if rollouts[i].line.Passes(pass) {
			tasks[len(tasks)-1].Passes++
		}
	}
	sum := stats.Summarise(tasks)
	s.Repeats, s.Low, s.High = &sum, sum.Pass.Low, sum.Pass.High
}

func (e *Evaluation) values(prefix string) map[string]float64 {
	out := map[string]float64{}
	for name, s := range map[string]Score{"": e.Sampled, "_greedy": e.Greedy} {
		if s.Rollouts == 0 {
			continue // greedy ones were not wanted
		}
		out[prefix+"/pass@1"+name] = s.Rate
		out[prefix+"/pass@1"+name+"_low"] = s.Low
		out[prefix+"/pass@1"+name+"_high"] = s.High
		out[prefix+"/reward"+name] = s.Reward
		out[prefix+"/failures"+name] = float64(s.AgentFailures + s.Infrastructure)
	}
	if r := e.Sampled.Repeats; r != nil {
		for name, x := range map[string]stats.Interval{"pass@k": r.PassAny, "pass^k": r.PassAll, "flips": r.FlipRate} {
			out[prefix+"/"+name], out[prefix+"/"+name+"_low"], out[prefix+"/"+name+"_high"] = x.Value, x.Low, x.High
		}
		out[prefix+"/runs"], out[prefix+"/unstable"] = float64(r.Runs), float64(r.Unstable)
	}
	out["time/"+prefix] = e.Wall.Seconds()
	return out
}

// Request is one evaluation outside of training.
type Request struct {
	Part    string // names the evaluation; with Number it makes the rollouts' ids, which must be new
	Number  int64
	Rows    []data.Row
	Version fulgur.PolicyVersion // of the weights that the engine holds
}

// Evaluate measures the policy that the engine holds: it publishes it and runs
// every row at temperature 1 and greedily. It holds the run's trainer lease.
func Evaluate(ctx context.Context, o Options, r Request) (*Evaluation, error) {
	if len(r.Rows) == 0 {
		return nil, fulgur.E(fulgur.KindInvalid, "evaluate", "there are no rows to evaluate on", nil)
	}
	o.defaults()
	t := &trainer{o: o}
	t.state.Version = r.Version
	ctx, release, err := t.lease(ctx)
	if err != nil {
		return nil, err
	}
	defer release()
	if err := t.publish(ctx, r.Version, true); err != nil {
		return nil, err
	}
	return t.evaluate(ctx, r.Part, r.Number, r.Rows)
}

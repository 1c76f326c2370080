package trainer

import (
	"strings"
	"testing"

	"github.com/fulgur-rl/fulgur"
	"github.com/fulgur-rl/fulgur/internal/trainer/advantage"
	"github.com/fulgur-rl/fulgur/internal/trainer/schedule"
)

// steps feeds a drift with steps of n rollouts, of which share(version) end badly.
func feed(d *drift, n, from, to int, share func(version int) float64) (told []string) {
	for v := from; v < to; v++ {
		lines := make([]RolloutLine, n)
		for i := range lines {
			lines[i] = RolloutLine{Class: fulgur.OutcomeOK, Outcome: "ok", Version: fulgur.PolicyVersion(v)}
			if float64(i) < share(v)*float64(n) {
				lines[i].Class, lines[i].Outcome = fulgur.OutcomeAgent, "memory"
			}
		}
		d.add(lines)
		told = append(told, d.risen()...)
	}
	return told
}

func TestDriftOfOutcomes(t *testing.T) {
	for name, c := range map[string]struct {
		share func(version int) float64
		want  []string // a part of each warning
	}{
		"a steady rate is no news":       {func(int) float64 { return 0.3 }, nil},
		"a fall is what training is for": {func(v int) float64 { return max(0, 0.5-float64(v)/40) }, nil},
		"a jump is told once": {func(v int) float64 {
			return map[bool]float64{true: 0.02}[v < 20] + map[bool]float64{true: 0.25}[v >= 20]
		}, []string{"agent_failure_memory rose from "}},
		"what comes out of nothing is told":      {func(v int) float64 { return map[bool]float64{true: 0.25}[v >= 20] }, []string{"rose from 0.0 % (policy versions 0 to 3)"}},
		"a slow rise is told, and told again":    {func(v int) float64 { return float64(v) / 60 }, []string{"rose", "rose", "rose"}},
		"a rise that is too small is left alone": {func(v int) float64 { return 0.02 + map[bool]float64{true: 0.03}[v >= 20] }, nil},
	} {
		t.Run(name, func(t *testing.T) {
			var d drift
			told := feed(&d, 64, 0, 60, c.share)
			if len(told) < len(c.want) || len(c.want) == 0 && len(told) > 0 || len(c.want) == 1 && len(told) > 2 {
				t.Fatalf("told %q", told)
			}
			for i, want := range c.want {
				if !strings.Contains(told[i], want) {
					t.Errorf("told %q, want %q", told[i], want)
				}
			}
			if len(d.Recent) > 5 {
				t.Errorf("%d versions are kept", len(d.Recent))
			}
		})
	}
}

// A group whose members all end alike has equal rewards, which a filter drops: what
// has become more frequent is seen there first.
func TestDriftSeesWhatAFilterDrops(t *testing.T) {
	g := schedule.Group{Row: 3}
	b := &batch{why: "equal_rewards", out: []ended{{line: RolloutLine{Class: fulgur.OutcomeAgent, Outcome: "memory"}}, {line: RolloutLine{Class: fulgur.OutcomeInfrastructure, Outcome: "node", Masked: maskInfrastructure}}}}
	tr := &trainer{o: Options{Observer: func(Event) {}}, flow: flow{groups: map[schedule.Group]*batch{g: b}}}
	tr.drop(g)
	if d := tr.dropped; len(d) != 2 || d[0].Masked != "filtered: equal_rewards" || d[1].Masked != maskInfrastructure {
		t.Fatalf("dropped %+v", d)
	}
	tr.record(&StepDone{Step: 1}, advantage.Result{}, []ended{{line: RolloutLine{Class: fulgur.OutcomeOK}}}, &measured{})
	if base := tr.state.Drift.Base; base.Rollouts != 3 || base.Ways["agent_failure_memory"] != 1 || base.Ways["infrastructure_node"] != 1 {
		t.Errorf("counted %+v", base)
	}
}

func TestWaysToEnd(t *testing.T) {
	const ok, agent, infra = fulgur.OutcomeOK, fulgur.OutcomeAgent, fulgur.OutcomeInfrastructure
	for want, l := range map[string]RolloutLine{
		"ok":                   {Class: ok, Outcome: "ok"},
		"ok_no_calls":          {Class: ok, Outcome: "no_calls"}, // CL-09
		"ok_reward_not_finite": {Class: ok, Outcome: "ok", Masked: maskNotFinite},
		"ok_audit":             {Class: ok, Outcome: "ok", Masked: maskAudit},
		"agent_failure_memory": {Class: agent, Outcome: "memory", Masked: maskOutcome},
		"agent_failure":        {Class: agent},
		"infrastructure_node":  {Class: infra, Outcome: "node", Masked: maskInfrastructure},
	} {
		if got := way(&l); got != want {
			t.Errorf("%+v ends as %s, want %s", l, got, want)
		}
	}
	if got := way(&RolloutLine{Class: ok, Outcome: "ok", Masked: maskFiltered + ": equal_rewards"}); got != "ok" {
		t.Errorf("of a group that is dropped one ends as %s", got)
	}
}

package trainer

import (
	"fmt"
	"strings"
	"testing"

	"github.com/fulgur-rl/fulgur"
	"github.com/fulgur-rl/fulgur/internal/trainer/advantage"
	"github.com/fulgur-rl/fulgur/internal/trainer/trace"
)

// UI-03: what looks like training and teaches little is told while it runs.
func TestTrainingThatLearnsLittleIsTold(t *testing.T) {
	lines := func(n int, change func(i int, l *RolloutLine)) counted {
		all := make([]ended, n)
		for i := range all {
			one := 1.0
			all[i].line = RolloutLine{ID: fulgur.RolloutID(fmt.Sprint("r", i)), Class: fulgur.OutcomeOK, Reward: &one, Calls: 4, Samples: 1}
			change(i, &all[i].line)
		}
		return count(all, 1)
	}
	none := func(int, *RolloutLine) {}
	for name, c := range map[string]struct {
		state  State
		lines  counted
		adv    advantage.Result
		m      measured
		want   string // of the code
		within string // of its message
	}{
		"all is well":                        {State{}, lines(8, none), advantage.Result{Groups: 2}, measured{values: map[string]float64{"policy/ratio": 1.05}}, "", ""},
		"AL-04: most groups have one member": {State{}, lines(8, none), advantage.Result{Groups: 8, Alone: 8}, measured{}, "groups_of_one", "8 of 8 groups"},
		"AL-10: infrastructure fails": {State{}, lines(8, func(i int, l *RolloutLine) {
			if i < 2 {
				l.Class, l.Masked = fulgur.OutcomeInfrastructure, maskInfrastructure
			}
		}), advantage.Result{Groups: 2}, measured{}, "infrastructure", "25 %"},
		"AL-14: all rewards of groups are equal": {State{}, lines(8, func(_ int, l *RolloutLine) { *l.Reward = 0.5 }), advantage.Result{Groups: 2, Unanimous: 2}, measured{}, "unanimous", "in 100 % of the groups"},
		"AL-09: rewards that are no numbers": {State{}, lines(8, func(i int, l *RolloutLine) {
			if i == 3 {
				l.Masked = maskNotFinite
			}
		}), advantage.Result{Groups: 2}, measured{}, "reward_not_finite", "rollouts show r3"},
		"calls do not train": {State{}, lines(8, func(_ int, l *RolloutLine) { l.Untrained = map[string]int{"aborted": 2} }), advantage.Result{Groups: 2}, measured{}, "untrained_calls", "16 of 32 calls"},
		"histories break": {State{}, lines(8, func(i int, l *RolloutLine) { l.Samples, l.Breaks = 3, map[string]int{string(trace.Template): 2} }), advantage.Result{Groups: 2}, measured{},
			"fragmented", "16 × template), 3.0 samples a rollout"},
		"histories are compacted on purpose":       {State{}, lines(8, func(i int, l *RolloutLine) { l.Samples, l.Breaks = 3, map[string]int{string(trace.Compaction): 2} }), advantage.Result{Groups: 2}, measured{}, "", ""},
		"one step's mean ratio is far from 1":      {State{OffRatio: 3}, lines(8, none), advantage.Result{Groups: 2}, measured{values: map[string]float64{"policy/ratio": 0.6}}, "", ""},
		"WE-03: the mean ratio stays far from 1":   {State{OffRatio: -4}, lines(8, none), advantage.Result{Groups: 2}, measured{values: map[string]float64{"policy/ratio": 0.6}}, "ratio", "now 0.60 times"},
		"WE-03: log probs differ under one policy": {State{}, lines(8, none), advantage.Result{Groups: 2}, measured{mismatch: 5, mismatchTokens: 100}, "sampler_difference", "0.050 nats"},
	} {
		var codes, said []string
		tr := trainer{state: c.state, o: Options{Observer: func(e Event) {
			if w, ok := e.(Warning); ok {
				codes, said = append(codes, w.Code), append(said, w.Message)
			}
		}}}
		tr.warnings(1, c.adv, &c.lines, &c.m, 8, false)
		if strings.Join(codes, " ") != c.want || c.want != "" && !strings.Contains(said[0], c.within) {
			t.Errorf("%s: warned %q %q, want %s with %q", name, codes, said, c.want, c.within)
		}
	}
}

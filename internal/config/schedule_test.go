package config

import (
	"strings"
	"testing"
)

func TestScheduleKeysAreRefusedOrWarnedOf(t *testing.T) {
	const async = "schedule: {mode: collocated"
	for name, c := range map[string]struct{ file, want, warning string }{
		"less than a step under way":        {file: async + ", active: 0.5}", want: "schedule.active: below 1 no step would ever be full"},
		"refill without a number":           {file: async + ", refill: completion}", want: "schedule.refill: completion needs schedule.active"},
		"no staleness at all":               {file: async + "}\noff_policy: {mean_staleness: 0, max_staleness: 0}", want: "want schedule.mode synchronous"},
		"a mean above the largest":          {file: async + "}\noff_policy: {mean_staleness: 9, max_staleness: 8}", want: "off_policy.mean_staleness: a mean of 9 is above the largest, off_policy.max_staleness 8"},
		"more under way than can train":     {file: async + ", active: 9}\noff_policy: {max_staleness: 4, mean_staleness: 4}", warning: "never more than off_policy.max_staleness + 1 = 5"},
		"a mean beside a number":            {file: async + ", active: 2}\noff_policy: {mean_staleness: 3}", warning: "off_policy.mean_staleness: has no effect with schedule.active"},
		"half a rule for stragglers":        {file: async + ", straggler: {done: 0.5}}", warning: "has no effect without schedule.straggler.factor"},
		"stragglers are closed":             {file: async + ", straggler: {done: 0.5, factor: 4}}", warning: "favours short ones"},
		"looking ahead without doing so":    {file: "schedule: {active: 2}", warning: "schedule.active: has no effect with schedule.mode synchronous"},
		"staleness of the synchronous mode": {file: "off_policy: {mean_staleness: 2}", warning: "off_policy.mean_staleness: has no effect with schedule.mode synchronous"},
		"collocated":                        {file: async + "}"},
		"disaggregated":                     {file: "schedule: {mode: disaggregated, active: 2, refill: completion}"},
	} {
		_, warnings, err := Parse([]byte(small+c.file), "run.yaml", nil)
		var all []string
		for _, w := range warnings {
			all = append(all, w.Text)
		}
		text := strings.Join(all, "\n")
		switch {
		case c.want != "":
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("%s: got %v, want %q", name, err, c.want)
			}
		case err != nil:
			t.Errorf("%s: %v", name, err)
		case c.warning == "" && text != "" || !strings.Contains(text, c.warning):
			t.Errorf("%s: warnings %q, want %q", name, text, c.warning)
		}
	}
}

func TestTheCorrectionFollowsTheSchedule(t *testing.T) {
	const async = "schedule: {mode: collocated}\n"
	for name, c := range map[string]struct{ file, want string }{
		"one policy samples and trains":      {"", "none"},
		"tokens of older policies":           {async, "token"},
		"asked for":                          {async + "off_policy: {correction: sequence}", "sequence"},
		"refused":                            {async + "off_policy: {correction: none}", "none"},
		"the loss has the sampler's ratio":   {async + "algorithm: {loss: importance_sampling}", "none"},
		"the reference's numbers":            {async + "compat: [v1]", "none"},
		"asked for where kernels may differ": {"off_policy: {correction: token}", "token"},
	} {
		f, _, err := Parse([]byte(small+c.file), "run.yaml", nil)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if got := f.Correction(); got != c.want {
			t.Errorf("%s: correction %s, want %s", name, got, c.want)
		}
	}
}

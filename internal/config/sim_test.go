package config

import (
	"strings"
	"testing"
	"time"

	"github.com/fulgur-rl/fulgur"
)

func TestParseSim(t *testing.T) {
	base := func(preset, run string) (SimFile, error) {
		if preset == "none" {
			return SimFile{}, fulgur.E(fulgur.KindInvalid, "", "no such preset", nil)
		}
		f := SimFile{Seeds: 3, Steps: 40, Schedule: Default().Schedule, OffPolicy: Default().OffPolicy}
		f.Workload.Preset, f.Workload.Run, f.Workload.Calls = preset, run, SimLogNormal{20, 1}
		return f, nil
	}
	f, err := ParseSim([]byte("workload: {preset: heavy, calls: {median: 5}}\ndevice: {update: 90s}\nrunner: {slots: auto}\n"), "sim.yaml", base,
		Override{Path: "steps", Value: "7", Source: "--steps"}, Override{Path: "schedule.mode", Value: "disaggregated", Source: "--set"})
	if err != nil {
		t.Fatal(err)
	}
	if f.Workload.Calls != (SimLogNormal{5, 1}) || f.Steps != 7 || f.Seeds != 3 || time.Duration(f.Device.Update) != 90*time.Second || f.Schedule.Mode != "disaggregated" {
		t.Errorf("%+v", f)
	}
	for name, c := range map[string]struct{ src, want string }{
		"an unknown key":       {"workload: {tols: {}}", `did you mean "workload.tools"?`},
		"a wrong type":         {"steps: many", "want a whole number"},
		"out of bounds":        {"device: {sampling_share: 1}", "want at most 0.99"},
		"an unknown name":      {"pause: {then: stop}", `unknown name "stop"`},
		"an unknown schedule":  {"schedule: {mode: fast}", `unknown name "fast"`},
		"what base refuses":    {"workload: {preset: none}", "no such preset"},
		"beyond any memory":    {"workload: {calls: {sigma: 100}}", "want at most 5"},
		"no text":              {"\xff", "not UTF-8"},
		"all problems at once": {"steps: 0\nseeds: 0", "seeds: want at least 1"},
	} {
		_, err := ParseSim([]byte(c.src), "sim.yaml", base)
		if fulgur.KindOf(err) != fulgur.KindInvalid || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

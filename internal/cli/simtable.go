package cli

import (
	"bytes"
	"fmt"
	"io"
	"text/tabwriter"

	"github.com/fulgur-rl/fulgur/internal/report"
	"github.com/fulgur-rl/fulgur/internal/trainer/sim"
)

// simOutcome is what came of one schedule: the mean over its seeds.
type simOutcome struct {
	runs []sim.Result

	Name           string  `json:"name"`
	Mode           string  `json:"mode"`
	SecondsPerStep float64 `json:"seconds_per_step"`
	Low            float64 `json:"seconds_per_step_low"` // of the seeds, the least and the most
	High           float64 `json:"seconds_per_step_high"`
	SpeedUp        float64 `json:"speed_up"` // over the first schedule
	Ideal          float64 `json:"share_of_ideal"`
	MeanStaleness  float64 `json:"mean_staleness"`
	MaxStaleness   int64   `json:"max_staleness"`
	Wasted         float64 `json:"wasted_share"`
	Drain          float64 `json:"drain_seconds_per_step"`
	LongestDrain   float64 `json:"longest_drain_seconds"`
	Sampling       float64 `json:"device_sampling"`
	Training       float64 `json:"device_training"`
	Running        float64 `json:"rollouts_running"`
	Slots          int     `json:"slots"`
}

// simResult is what --json prints.
type simResult struct {
	Workload  string        `json:"workload"`
	Facts     []string      `json:"facts"`
	Ideal     float64       `json:"ideal_seconds_per_step"`
	Seeds     int           `json:"seeds"`
	Steps     int           `json:"steps"`
	Schedules []simOutcome  `json:"schedules"`
	Recorded  *recordedStep `json:"recorded,omitempty"`
}

// recordedStep is what the run took that was recorded.
type recordedStep struct {
	Mode           string  `json:"mode"`
	Steps          int     `json:"steps"`
	SecondsPerStep float64 `json:"seconds_per_step"`
	// Simulated is the same from the simulation of the run's own mode; 0: that was
	// not simulated.
	Simulated float64 `json:"simulated_seconds_per_step,omitempty"`
}

// ideal is the least that a step of a schedule's can take.
func (s *simulation) ideal(v *simVariant) float64 {
	o, err := s.options(v.file, uint64(v.file.Seed))
	if err != nil {
		return 0
	}
	return sim.Ideal(o.Workload, o.Machine, o.Schedule.GroupsPerStep, o.Schedule.GroupSize)
}

// measure averages over the seeds and compares.
func (s *simulation) measure() {
	for i := range s.variants {
		v := &s.variants[i]
		o := &v.out
		o.Name, o.Mode = v.name, v.file.Schedule.Mode
		n := float64(len(o.runs))
		for k, r := range o.runs {
			o.SecondsPerStep += r.SecondsPerStep / n
			if o.Low, o.High = min(o.Low, r.SecondsPerStep), max(o.High, r.SecondsPerStep); k == 0 {
				o.Low = r.SecondsPerStep
			}
			o.MeanStaleness += r.MeanStaleness / n
			o.MaxStaleness = max(o.MaxStaleness, r.MaxStaleness)
			o.Wasted += r.WastedShare / n
			o.Drain += r.DrainPerStep / n
			o.LongestDrain = max(o.LongestDrain, r.LongestDrain)
			o.Sampling += r.Sampling / n
			o.Training += r.Training / n
			o.Running += r.Running / n
			o.Slots = max(o.Slots, r.Slots)
		}
		o.SpeedUp = s.variants[0].out.SecondsPerStep / o.SecondsPerStep
		o.Ideal = s.ideal(v) / o.SecondsPerStep
	}
}

func (s *simulation) result() simResult {
	r := simResult{Workload: s.name, Facts: s.facts, Ideal: s.ideal(&s.variants[0]), Seeds: s.file.Seeds, Steps: s.file.Steps}
	for _, v := range s.variants {
		r.Schedules = append(r.Schedules, v.out)
	}
	if s.recorded != nil {
		r.Recorded = &recordedStep{Mode: s.recorded.mode, Steps: s.recorded.steps, SecondsPerStep: s.recorded.perStep}
		for _, v := range s.variants {
			if v.out.Mode == s.recorded.mode && v.file.Schedule == s.recorded.base.Schedule && v.file.OffPolicy == s.recorded.base.OffPolicy {
				r.Recorded.Simulated = v.out.SecondsPerStep
			}
		}
	}
	return r
}

// print writes the table for people.
func (s *simulation) print(w io.Writer) error {
	r := s.result()
	for _, f := range s.facts {
		fmt.Fprintln(w, f)
	}
	fmt.Fprintf(w, "%d steps, %d seeds. The ideal step takes %s s.\n\n", r.Steps, r.Seeds, threeDigits(r.Ideal))
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "schedule\ts/step\tspeed-up\tof ideal\tstaleness\tmost\twasted\tdrain s\tsamples\ttrains\tidle\trunning\tslots")
	for _, o := range r.Schedules {
		fmt.Fprintf(t, "%s\t%s\t%.2fx\t%.0f %%\t%.1f\t%d\t%.1f %%\t%s\t%.0f %%\t%.0f %%\t%.0f %%\t%.0f\t%d\n", o.Name, threeDigits(o.SecondsPerStep), o.SpeedUp, 100*o.Ideal,
			o.MeanStaleness, o.MaxStaleness, 100*o.Wasted, threeDigits(o.Drain), 100*o.Sampling, 100*o.Training, 100*max(0, 1-o.Sampling-o.Training), o.Running, o.Slots)
	}
	if err := t.Flush(); err != nil {
		return err
	}
	if rec := r.Recorded; rec != nil {
		fmt.Fprintf(w, "\nThe run itself took %s s a step (%s, %d steps)", threeDigits(rec.SecondsPerStep), rec.Mode, rec.Steps)
		if rec.Simulated > 0 {
			fmt.Fprintf(w, "; its simulation %s, %+.0f %%", threeDigits(rec.Simulated), 100*(rec.Simulated/rec.SecondsPerStep-1))
		}
		fmt.Fprintln(w, ".")
	}
	return nil
}

func threeDigits(x float64) string {
	switch {
	case x >= 100 || x == 0:
		return fmt.Sprintf("%.0f", x)
	case x >= 10:
		return fmt.Sprintf("%.1f", x)
	}
	return fmt.Sprintf("%.2f", x)
}

// plot writes the page.
func (s *simulation) plot(path string) error {
	r := s.result()
	d := report.Simulation{Title: "Schedules of " + s.name, Program: "fulgur " + version(), Facts: s.facts, Ideal: r.Ideal}
	best := r.Schedules[0]
	for i, o := range r.Schedules {
		if o.SecondsPerStep < best.SecondsPerStep {
			best = o
		}
		x := report.SimulatedSchedule{Name: o.Name, SecondsPerStep: o.SecondsPerStep, SpeedUp: o.SpeedUp, IdealShare: o.Ideal, MeanStaleness: o.MeanStaleness,
			MaxStaleness: o.MaxStaleness, WastedShare: o.Wasted, Drain: o.Drain, Sampling: o.Sampling, Training: o.Training, Running: o.Running, Slots: o.Slots}
		if l := s.variants[i].out.runs[0].Timeline; l != nil {
			x.Width, x.Sample, x.Train, x.Rollouts = l.Width, l.Sampling, l.Training, l.Running
		}
		d.Outcomes = append(d.Outcomes, x)
	}
	d.Verdict = fmt.Sprintf("%s: %s s a step, %.2f times as fast as %s, %.0f %% of the ideal, mean staleness %.1f",
		best.Name, threeDigits(best.SecondsPerStep), best.SpeedUp, r.Schedules[0].Name, 100*best.Ideal, best.MeanStaleness)
	var page bytes.Buffer
	if err := report.WriteSimulation(&page, d); err != nil {
		return err
	}
	return writeFile(path, page.Bytes(), 0o644)
}

// listPresets prints the presets.
func (a *app) listPresets() error {
	t := tabwriter.NewWriter(a.Stdout, 0, 0, 2, ' ', 0)
	for _, p := range sim.Presets() {
		if a.json {
			if err := a.printJSON(map[string]any{"name": p.Name, "title": p.Title, "groups_per_step": p.GroupsPerStep, "group_size": p.GroupSize}); err != nil {
				return err
			}
			continue
		}
		fmt.Fprintf(t, "%s\t%s; %d groups of %d\n", p.Name, p.Title, p.GroupsPerStep, p.GroupSize)
	}
	return t.Flush()
}

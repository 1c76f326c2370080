package sim

import (
	"math"
	"testing"

	"github.com/fulgur-rl/fulgur/internal/trainer/schedule"
)

// What a simulated engine serves must show the engine it was.
func TestTheEngineIsFoundInItsCalls(t *testing.T) {
	for name, m := range map[string]Machine{"half 6": {Peak: 900, Half: 6, Update: 1}, "half 64": {Peak: 20000, Half: 64, Update: 1}} {
		for _, mode := range modes() {
			var calls []Served
			var holds []Hold
			w := newWorldForFit(t, m, mode, &calls, &holds)
			if err := w.run(); err != nil {
				t.Fatal(err)
			}
			want := w.machine // a part of it where devices are apart
			peak, half := Fit(calls, holds)
			got, off := Machine{Peak: peak, Half: half}, 0.0
			for _, b := range []int{20, 60, 200} { // what is in flight, mostly
				off = max(off, math.Abs(got.throughput(b)/want.throughput(b)-1))
			}
			t.Logf("%s, %s: %.0f tokens/s, half at %.1f, off by %.3f", name, mode, peak, half, off)
			if off > .05 {
				t.Errorf("%s, %s: %d calls say %.0f tokens/s and half at %.1f, want %.0f and %.1f", name, mode, len(calls), peak, half, want.Peak, want.Half)
			}
		}
	}
}

// newWorldForFit is a run whose calls are seen from the outside: held time counts
// as theirs.
func newWorldForFit(t *testing.T, m Machine, mode schedule.Mode, calls *[]Served, holds *[]Hold) *world {
	t.Helper()
	p := Presets()[5]
	p.Workload.Seed = 4
	o := Options{Workload: p.Workload, Machine: m, Schedule: config(p, mode), Pause: Pause{Drain: .25, Cut: Resume}, Steps: 30}
	if err := o.check(); err != nil {
		t.Fatal(err)
	}
	s, err := schedule.New(o.Schedule, schedule.State{})
	if err != nil {
		t.Fatal(err)
	}
	w := newWorld(o, s)
	w.seen = func(c Served) { *calls = append(*calls, c) }
	w.stood = func(h Hold) { *holds = append(*holds, h) }
	return w
}

func TestFitOfLittleSaysWhatWasSeen(t *testing.T) {
	for name, c := range map[string]struct {
		calls []Served
		peak  float64
	}{
		"nothing":          {nil, 0},
		"one call":         {[]Served{{0, 2, 100}}, 50},
		"no tokens":        {[]Served{{0, 2, 0}}, 0},
		"no time":          {[]Served{{1, 1, 5}}, 0},
		"one load only":    {[]Served{{0, 2, 100}, {0, 2, 100}}, 100},
		"slower with more": {[]Served{{0, 1, 100}, {2, 4, 10}, {2, 4, 10}}, 40},
	} {
		peak, half := Fit(c.calls, nil)
		if math.Abs(peak-c.peak) > 1e-9 || half != 0 {
			t.Errorf("%s: peak %g, half %g, want %g and 0", name, peak, half, c.peak)
		}
	}
}

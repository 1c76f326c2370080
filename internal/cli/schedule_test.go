package cli

import (
	"testing"

	"github.com/fulgur-rl/fulgur/internal/config"
)

func TestAutoSlotsAreWhatTheScheduleWantsWithinCoresAndMemory(t *testing.T) {
	const gib = 1 << 30
	for name, c := range map[string]struct {
		change func(*config.File)
		cores  int
		memory int64
		want   int
	}{
		"a synchronous step on many cores":      {func(*config.File) {}, 64, 64 * gib, 64},
		"two cores":                             {func(*config.File) {}, 1, 64 * gib, 32},
		"little memory":                         {func(*config.File) {}, 64, gib, 16},
		"agents with a lower limit":             {func(f *config.File) { f.Runner.Limits.Memory = 16 << 20 }, 64, gib, 48},
		"workers are larger":                    {func(f *config.File) { f.Agent.Worker = true }, 64, 4 * gib, 12},
		"memory that is not known bounds none":  {func(*config.File) {}, 64, 0, 64},
		"no memory to speak of is still a slot": {func(*config.File) {}, 64, 1 << 20, 1},
		"steps that overlap":                    {func(f *config.File) { f.Schedule.Mode = "collocated" }, 64, 64 * gib, 320},
		"a cluster has cores of its own":        {func(f *config.File) { f.Runner.Kind = "kubernetes" }, 1, gib, 64},
	} {
		f := config.Default()
		f.Algorithm.GroupSize, f.Algorithm.GroupsPerStep = 8, 8
		c.change(f)
		if got := slotsWithin(f, c.cores, c.memory); got != c.want {
			t.Errorf("%s: %d slots, want %d", name, got, c.want)
		}
	}
	for want, read := range map[int64][]string{
		3 << 30: {"MemTotal:  8388608 kB\nMemFree: 1 kB\n", "3221225472\n", ""}, 8 << 30: {"MemTotal: 8388608 kB\n", "max\n", "9223372036854771712\n"}, 0: {"", "", "9223372036854771712"},
	} {
		if got := leastMemory(read[0], read[1], read[2]); got != want {
			t.Errorf("%q: %d bytes, want %d", read, got, want)
		}
	}
}

// A pool of runs that nobody has named has the room that there is.
func TestPoolSlots(t *testing.T) {
	t.Parallel()
	of := func(slots int) *runFile {
		f := config.Default()
		f.Runner.Slots = config.Slots(slots)
		return &runFile{File: f}
	}
	for name, c := range map[string]struct {
		asked  int
		files  []*runFile
		memory int64
		want   int
	}{
		"asked for":                   {7, []*runFile{of(3)}, 1 << 30, 7},
		"the most that a run has":     {0, []*runFile{of(3), of(5)}, 1 << 30, 5},
		"no run file, much memory":    {0, nil, 64 << 30, 128},
		"no run file, little memory":  {0, nil, 1 << 30, 16},
		"no run file, memory unknown": {0, nil, 0, 128},
	} {
		if got := poolSlots(c.asked, c.files, 4, c.memory); got != c.want {
			t.Errorf("%s: %d, want %d", name, got, c.want)
		}
	}
}

func TestSlotsWithinOpenFiles(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		kind, sandbox string
		files, want   int
	}{
		"in a sandbox":             {"local", "auto", 256, 11},
		"without one":              {"local", "none", 256, 26},
		"containers":               {"container", "auto", 1024, 66},
		"pods":                     {"kubernetes", "auto", 1024, 308},
		"enough":                   {"local", "auto", 1 << 20, 0},
		"not known":                {"local", "auto", 0, 0},
		"nothing to speak of":      {"local", "auto", 20, 1},
		"pods, as many as allowed": {"kubernetes", "auto", 1600, 0},
	} {
		f := config.Default()
		f.Runner.Kind, f.Runner.Sandbox, f.Runner.Slots = c.kind, c.sandbox, 500
		if said := fewFiles(f, c.files); (said == "") != (c.want == 0) || c.want > 0 && slotsOf(f, c.files) != c.want {
			t.Errorf("%s: %d slots, want %d; said %q", name, slotsOf(f, c.files), c.want, said)
		}
	}
}

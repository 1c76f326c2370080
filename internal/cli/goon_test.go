package cli

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/fulgur-rl/fulgur/internal/engine/embedded"
)

// What a run cost is that of all its processes, as are its steps; and a
// checkpoint without its optimizer's state is told of.
func TestResumeGoesOnCounting(t *testing.T) {
	t.Parallel()
	dir := tinyDir(t)
	run(t, dir, "train", "run.yaml")
	d := runDir(filepath.Join(dir, "runs", "tiny"))
	var was, is result
	if err := d.readJSON("result.json", &was); err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(d.path("checkpoints", "step-000002", embedded.OptimizerFile)); err != nil {
		t.Fatal(err)
	}
	start(t, dir, nil, "resume", string(d), "--steps", "3").ends(soon, 0, "no "+embedded.OptimizerFile, "the optimizer starts anew")
	if err := d.readJSON("result.json", &is); err != nil {
		t.Fatal(err)
	}
	if is.Steps != 3 || is.WallSeconds <= was.WallSeconds || is.CPUSeconds <= was.CPUSeconds || is.AgentSeconds < was.AgentSeconds {
		t.Errorf("after the resume %d steps, %g s, %g and %g CPU seconds; before it %d, %g, %g, %g",
			is.Steps, is.WallSeconds, is.CPUSeconds, is.AgentSeconds, was.Steps, was.WallSeconds, was.CPUSeconds, was.AgentSeconds)
	}
}

// A run that was killed goes on from what its last checkpoint knew; one of a build
// without cost.json from its result.
func TestCostOfEarlierProcesses(t *testing.T) {
	for name, file := range map[string]string{"killed": costFile, "ended, of an earlier build": "result.json", "killed before its first checkpoint": "other"} {
		t.Run(name, func(t *testing.T) {
			d := runDir(t.TempDir())
			if err := d.writeJSON(file, spent{Wall: 1000, CPU: 2000, Build: 3, Agents: 500}, 0o600); err != nil {
				t.Fatal(err)
			}
			m := startMeter()
			m.goOn(d)
			s := m.spent()
			want := file != "other"
			if got := s.Wall >= 1000 && s.CPU >= 2000 && s.Build == 3 && s.Agents == 500; got != want {
				t.Errorf("got %+v", s)
			}
		})
	}
}

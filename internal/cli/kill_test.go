package cli

import (
	"crypto/sha256"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// killCase is a run that is killed and resumed.
type killCase struct {
	name  string
	kills int
	seed  uint64
	alone bool // one engine worker and one agent at a time: the same bits as undisturbed
	long  bool // only with FULGUR_LONG
	mode  string
}

const (
	killSteps   = 6
	killPerStep = 8
)

// TestKill is kill -9 of a whole run at random moments, then fulgur resume: no
// rollout counts twice, none is lost, and with one worker the final weights are
// the same bits as undisturbed.
func TestKill(t *testing.T) {
	t.Parallel()
	for _, c := range []killCase{
		{name: "once, one worker", kills: 1, seed: 1, alone: true},
		{name: "once, as many workers as there are", kills: 1, seed: 2},
		{name: "once, steps that overlap", kills: 1, seed: 6, mode: "collocated"},
		{name: "five times, steps that overlap", kills: 5, seed: 7, mode: "collocated", long: true},
		{name: "five times, one worker", kills: 5, seed: 3, alone: true, long: true},
		{name: "five times, one worker, other moments", kills: 5, seed: 4, alone: true, long: true},
		{name: "five times, as many workers as there are", kills: 5, seed: 5, long: true},
	} {
		t.Run(c.name, func(t *testing.T) {
			if c.long && os.Getenv("FULGUR_LONG") == "" {
				t.Skip("FULGUR_LONG=1 runs it (make test-long)")
			}
			if testing.Short() {
				t.Skip("takes some seconds")
			}
			c.run(t)
		})
	}
}

func (c killCase) run(t *testing.T) {
	dir := tinyDir(t, "steps: 2", fmt.Sprintf("steps: %d", killSteps), "group_size: 2", "group_size: 4",
		"validation: {every: 0}", "validation: {every: 3, problems: 4}\ncheckpoints: {every: 2}")
	flags := []string{}
	var one []string
	if c.alone {
		one = []string{"--threads", "1"}
		flags = append(one, "--set", "runner.slots=1")
	}
	if c.mode != "" {
		flags = append(flags, "--set", "schedule.mode="+c.mode)
	}
	flags = append(flags, copied(t)...)
	began := time.Now()
	run(t, dir, append([]string{"train", "run.yaml", "--out", "calm"}, flags...)...)
	calm := time.Since(began)
	trainedOnce(t, runDir(filepath.Join(dir, "calm", "tiny")), killSteps, killPerStep)

	rnd := rand.New(rand.NewPCG(c.seed, 0))
	killed := runDir(filepath.Join(dir, "killed", "tiny"))
	args := append([]string{"train", "run.yaml", "--out", "killed"}, flags...)
	hit := 0
	for range c.kills {
		p := start(t, dir, nil, args...)
		// Not before there is a run to resume; then at any moment of it.
		if hit == 0 {
			p.notes("measuring the start")
		}
		after := time.Duration((0.02 + 0.25*rnd.Float64()) * float64(calm))
		select {
		case <-time.After(after):
			hit++
		case <-p.done:
		}
		p.kill()
		t.Logf("killed after %s more", after.Round(time.Millisecond))
		args = append([]string{"resume", string(killed)}, one...)
	}
	if hit == 0 {
		t.Error("no kill came before the end: the test tests nothing")
	}
	run(t, dir, args...)
	trainedOnce(t, killed, killSteps, killPerStep)
	if c.alone {
		model := filepath.Join("checkpoints", fmt.Sprintf("step-%06d", killSteps), "model.safetensors")
		want, got := hashOf(t, filepath.Join(dir, "calm", "tiny", model)), hashOf(t, killed.path(model))
		if start := hashOf(t, "../../examples/calc/model/model.safetensors"); want == start {
			t.Error("the weights are those of the start: nothing was trained")
		}
		if want != got {
			t.Errorf("the final weights are not those of the undisturbed run: sha256 %x, want %x", got, want)
		}
	}
	if left := agentsOf(t, killed.path("agent")); len(left) > 0 {
		t.Errorf("agents are left over:\n%s", strings.Join(left, "\n"))
	}
}

func hashOf(t *testing.T, path string) [sha256.Size]byte {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return sha256.Sum256(b)
}

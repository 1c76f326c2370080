package cli

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/fulgur-rl/fulgur"
	"github.com/fulgur-rl/fulgur/examples/calc"
	"github.com/fulgur-rl/fulgur/internal/trainer"
)

// calcDir is a folder with the calc example, as fulgur demo unpacks it.
func calcDir(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	if err := unpack(calc.Files, dir); err != nil {
		t.Fatal(err)
	}
	return dir
}

// copied is the flags that give a run an agent of its own: a copy below its
// folder, so that its processes can be told from others'.
func copied(t *testing.T) []string {
	t.Helper()
	agent, err := calcAgent()
	if err != nil {
		t.Fatal(err)
	}
	return []string{"--set", fmt.Sprintf(`agent.build=[cp, %q, "{run}/agent"]`, agent)}
}

// TestThreeProcesses trains with server, controller and trainer as processes in
// folders of their own, and kills the controller in the middle.
func TestThreeProcesses(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("takes half a minute")
	}
	const steps, perStep = 12, 128
	serverDir, controllerDir, trainerDir := t.TempDir(), calcDir(t), calcDir(t)
	server := start(t, serverDir, nil, "serve", "--listen", "127.0.0.1:0", "--key", "K", "--model-dir", "builtin:calc")
	url := server.says("listening on ")
	// What they share is the model alone: the trainer never reads the agent's
	// source, the controller never reads the data.
	for _, p := range []string{filepath.Join(trainerDir, "agent"), filepath.Join(controllerDir, "data")} {
		if err := os.RemoveAll(p); err != nil {
			t.Fatal(err)
		}
	}
	env := []string{"FULGUR_SERVER=" + url, "FULGUR_KEY=K"}
	control := append([]string{"controller", "run.yaml"}, copied(t)...)
	controller := start(t, controllerDir, env, control...)
	controller.notes("running the agents of calc")

	train := start(t, trainerDir, env, "train", "run.yaml", "--set", fmt.Sprintf("steps=%d", steps), "--set", "validation.every=0", "--set", "data.test=",
		"--set", "algorithm.kl.coefficient=0.001") // the engine behind a server keeps a frozen copy too
	train.notes("step 4/12")
	controller.kill()
	controller = start(t, controllerDir, env, control...)
	train.ends(3*time.Minute, exitOK, "step 12/12")

	dir := runDir(filepath.Join(trainerDir, "runs", "calc"))
	rewards := trainedOnce(t, dir, steps, perStep)
	first, last := mean(rewards[:3]), mean(rewards[steps-3:])
	t.Logf("reward of the steps: %.2f", rewards)
	if last < first+0.15 {
		t.Errorf("mean reward of the last three steps %.2f, of the first three %.2f: it has not learned", last, first)
	}

	// The server has the same, once each.
	out, _ := run(t, trainerDir, "rollouts", "list", "--server", url, "--key", "K", "--run", "calc", "--limit", "0", "--json")
	seen := map[fulgur.RolloutID]bool{}
	for line := range strings.Lines(out) {
		var r fulgur.Rollout
		if err := json.Unmarshal([]byte(line), &r); err != nil {
			t.Fatal(err)
		}
		if seen[r.ID] || !r.State.Terminal() {
			t.Errorf("rollout %s: seen before: %v, state %s", r.ID, seen[r.ID], r.State)
		}
		seen[r.ID] = true
	}
	if len(seen) != steps*perStep {
		t.Errorf("the server has %d rollouts, want %d", len(seen), steps*perStep)
	}
	// What trained can be built again from the server's record.
	out, _ = run(t, trainerDir, "samples", "build", "calc", "--server", url, "--key", "K", "--step", "3")
	if want := fmt.Sprintf("the same as in training, to the bit: %d of %d rollouts", perStep, perStep); !strings.Contains(out, want) {
		t.Errorf("samples built again:\n%s", out)
	}

	controller.signal(os.Interrupt)
	controller.ends(20*time.Second, exitOK)
	server.signal(os.Interrupt)
	server.ends(20*time.Second, exitOK)
	agent := filepath.Join(controllerDir, "runs", "calc-agents", "agent")
	if _, err := os.Stat(agent); err != nil {
		t.Fatal(err)
	}
	if left := agentsOf(t, agent); len(left) > 0 {
		t.Errorf("agents are left over:\n%s", strings.Join(left, "\n"))
	}
}

// trainedOnce checks that a run's files count every step and every training
// rollout once, and returns the steps' mean rewards.
func trainedOnce(t *testing.T, dir runDir, steps, perStep int) []float64 {
	t.Helper()
	lines, err := readRolloutLines(dir)
	if err != nil {
		t.Fatal(err)
	}
	at := map[fulgur.RolloutID]int64{}
	inStep := map[int64]int{}
	for _, l := range lines {
		if l.Part != "train" {
			continue
		}
		if s, ok := at[l.ID]; ok {
			t.Errorf("rollout %s counted in step %d and in step %d", l.ID, s, l.Step)
		}
		at[l.ID] = l.Step
		inStep[l.Step]++
	}
	metrics, err := readMetrics(dir)
	if err != nil {
		t.Fatal(err)
	}
	rewards := make([]float64, steps)
	next := 1
	for _, m := range metrics {
		if r, ok := m["train/reward"]; ok && int(m["step"]) == next && next <= steps {
			rewards[next-1] = r
			next++
		} else if ok {
			t.Errorf("metrics.jsonl has step %g where step %d belongs", m["step"], next)
		}
	}
	if next != steps+1 {
		t.Errorf("metrics.jsonl ends with step %d, want %d", next-1, steps)
	}
	for s := 1; s <= steps; s++ {
		if inStep[int64(s)] != perStep {
			t.Errorf("rollouts.jsonl has %d training rollouts of step %d, want %d", inStep[int64(s)], s, perStep)
		}
	}
	if len(inStep) != steps {
		t.Errorf("rollouts.jsonl has %d steps, want %d", len(inStep), steps)
	}
	_, state, err := trainer.Last(string(dir))
	if err != nil {
		t.Fatal(err)
	}
	if state.Rollouts != int64(steps*perStep) || state.Cursor.Step != int64(steps) {
		t.Errorf("the checkpoint counts %d rollouts in %d steps, want %d in %d", state.Rollouts, state.Cursor.Step, steps*perStep, steps)
	}
	return rewards
}

func mean(v []float64) float64 {
	sum := 0.0
	for _, x := range v {
		sum += x
	}
	return sum / float64(len(v))
}

// TestEachProcessKilled kills server, controller and trainer in turn while a run
// goes on; each comes back, and everything counts once.
func TestEachProcessKilled(t *testing.T) {
	if testing.Short() {
		t.Skip("waits for a lease")
	}
	t.Parallel()
	const steps, perStep = 40, 4
	dir, serverDir := tinyDir(t, "steps: 2", fmt.Sprintf("steps: %d", steps), "validation: {every: 0}", "validation: {every: 0}\ncheckpoints: {every: 5}"), t.TempDir()
	args := func(listen string) []string {
		return []string{"serve", "--listen", listen, "--key", "K", "--model-dir", "builtin:calc"}
	}
	server := start(t, serverDir, nil, args("127.0.0.1:0")...)
	url := server.says("listening on ")
	env := []string{"FULGUR_SERVER=" + url, "FULGUR_KEY=K"}
	control := append([]string{"controller", "run.yaml"}, copied(t)...)
	controller := start(t, dir, env, control...)
	train := start(t, dir, env, "train", "run.yaml", "--set", "data.test=")

	train.notes("step 6/40")
	server.kill()
	server = start(t, serverDir, nil, args(strings.TrimPrefix(url, "http://"))...)
	server.says("listening on ")
	train.notes("step 12/40")
	controller.kill()
	controller = start(t, dir, env, control...)
	train.notes("step 18/40")
	train.kill()
	train = start(t, dir, env, "resume", "tiny")
	train.notes("step 24/40")
	server.kill()
	server = start(t, serverDir, nil, args(strings.TrimPrefix(url, "http://"))...)
	train.ends(2*time.Minute, exitOK, "step 40/40")

	trainedOnce(t, runDir(filepath.Join(dir, "runs", "tiny")), steps, perStep)
	controller.signal(os.Interrupt)
	controller.ends(20*time.Second, exitOK)
	server.signal(os.Interrupt)
	server.ends(20*time.Second, exitOK)
	if left := agentsOf(t, filepath.Join(dir, "runs", "tiny-agents", "agent")); len(left) > 0 {
		t.Errorf("agents are left over:\n%s", strings.Join(left, "\n"))
	}
}

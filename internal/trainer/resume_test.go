package trainer

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/fulgur-rl/fulgur"
)

// childEnv makes this test binary train in that folder and exit, so that a test
// can kill it.
const childEnv = "FULGUR_TRAINER_TEST_CHILD"

// TestChild is not a test of its own: the kill test runs it as a process.
func TestChild(t *testing.T) {
	dir := os.Getenv(childEnv)
	if dir == "" {
		t.Skip("run by TestKilledRunEndsAsUndisturbed")
	}
	st, e := openStore(t, dir), newBigram(vocab)
	o := options(dir, st, e)
	o.Resume, o.LeaseTTL = true, 200*time.Millisecond
	o.Observer = func(ev Event) {
		if s, ok := ev.(StepDone); ok {
			fmt.Printf("step %d\n", s.Step)
		}
	}
	if _, err := train(t, t.Context(), o, &agents{st: st, gen: e, slots: 1}); err != nil {
		t.Fatal(err)
	}
}

// undisturbed trains without a break and returns what is left of the run.
func undisturbed(t *testing.T) remains {
	t.Helper()
	dir := t.TempDir()
	st, e := openStore(t, dir), newBigram(vocab)
	if _, err := train(t, t.Context(), options(dir, st, e), &agents{st: st, gen: e, slots: 1}); err != nil {
		t.Fatal(err)
	}
	return remainsOf(t, dir)
}

// remains are what a run leaves, without times and ids.
type remains struct {
	Weights  string
	State    State
	Metrics  []map[string]any
	Rollouts []RolloutLine
}

func remainsOf(t *testing.T, dir string) remains {
	t.Helper()
	path, state, err := Last(dir)
	if err != nil {
		t.Fatal(err)
	}
	raw, err := os.ReadFile(filepath.Join(path, "bigram.json"))
	if err != nil {
		t.Fatal(err)
	}
	sum := sha256.Sum256(raw)
	out := remains{Weights: hex.EncodeToString(sum[:]), State: state}
	out.State.Timing = Timing{}
	for _, e := range []**Evaluation{&out.State.Before, &out.State.After, &out.State.Validated} {
		if *e != nil {
			c := **e
			c.Wall = 0
			*e = &c
		}
	}
	for _, line := range linesOf(t, filepath.Join(dir, "metrics.jsonl")) {
		m := map[string]any{}
		if err := json.Unmarshal(line, &m); err != nil {
			t.Fatal(err)
		}
		for k := range m {
			if k == "time" || k == "schedule/calls" || strings.HasPrefix(k, "time/") {
				delete(m, k)
			}
		}
		out.Metrics = append(out.Metrics, m)
	}
	for _, l := range rolloutLines(t, dir) {
		l.ID, l.Seconds = "", 0
		out.Rollouts = append(out.Rollouts, l)
	}
	return out
}

func linesOf(t *testing.T, path string) [][]byte {
	t.Helper()
	raw, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return bytes.Split(bytes.TrimSpace(raw), []byte("\n"))
}

// rolloutLines reads a run's rollouts.jsonl.
func rolloutLines(t *testing.T, dir string) (lines []RolloutLine) {
	t.Helper()
	for _, raw := range linesOf(t, filepath.Join(dir, "rollouts.jsonl")) {
		var l RolloutLine
		if err := json.Unmarshal(raw, &l); err != nil {
			t.Fatal(err)
		}
		lines = append(lines, l)
	}
	return lines
}

func TestInterruptedRunEndsAsUndisturbed(t *testing.T) { // AS-07
	want := undisturbed(t)
	for _, at := range []Progress{
		{Part: "before", Done: 7}, {Part: "train", Step: 5, Done: 8},
		{Part: "val", Step: 4, Done: 9}, {Part: "after", Step: 8, Done: 11},
	} {
		if testing.Short() && at.Part == "val" {
			continue
		}
		t.Run(fmt.Sprintf("stopped at %s of step %d", at.Part, at.Step), func(t *testing.T) {
			dir := t.TempDir()
			st := openStore(t, dir)
			e := newBigram(vocab)
			o := options(dir, st, e)
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			o.Observer = func(ev Event) {
				if p, ok := ev.(Progress); ok && p.Part == at.Part && p.Step == at.Step && p.Done == at.Done {
					cancel()
				}
			}
			if _, err := train(t, ctx, o, &agents{st: st, gen: e, slots: 1}); !errors.Is(err, &fulgur.Error{Kind: fulgur.KindCanceled}) {
				t.Fatalf("got %v", err)
			}
			e = newBigram(vocab)
			o = options(dir, st, e)
			o.Resume = true
			if _, err := train(t, t.Context(), o, &agents{st: st, gen: e, slots: 1}); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(want, remainsOf(t, dir)); diff != "" {
				t.Errorf("resumed run differs (-undisturbed +resumed):\n%s", diff)
			}
		})
	}
}

// untilDone runs a test as a process until it ends, with the run in dir, and kills it up
// to so many times: some time after its first, second or third step.
func untilDone(t *testing.T, child, dir string, kills int, rng *rand.Rand) {
	t.Helper()
	for kill := 0; ; kill++ {
		cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^"+child+"$", "-test.v")
		cmd.Env = append(os.Environ(), childEnv+"="+dir)
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		left, killed := 1+rng.IntN(3), false
		var log strings.Builder
		in := bufio.NewScanner(out)
		for in.Scan() {
			log.WriteString(in.Text() + "\n")
			if !strings.HasPrefix(in.Text(), "step ") || kill >= kills {
				continue
			}
			if left--; left == 0 {
				time.Sleep(time.Duration(rng.IntN(60)) * time.Millisecond)
				killed = true
				if err := cmd.Process.Kill(); err != nil {
					t.Fatal(err)
				}
			}
		}
		err = cmd.Wait()
		if err == nil {
			t.Logf("ended after %d kills", kill)
			return
		}
		if !killed {
			t.Fatalf("the run failed: %v\n%s", err, log.String())
		}
	}
}

func TestKilledRunEndsAsUndisturbed(t *testing.T) {
	if testing.Short() {
		t.Skip("starts and kills processes")
	}
	want := undisturbed(t)
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 0))
	dir := t.TempDir()
	untilDone(t, "TestChild", dir, 5, rng)
	if diff := cmp.Diff(want, remainsOf(t, dir)); diff != "" {
		t.Errorf("killed and resumed run differs (-undisturbed +killed):\n%s", diff)
	}
}

func TestAFinishedRunGoesOnWithMoreSteps(t *testing.T) {
	dir := t.TempDir()
	st := openStore(t, dir)
	for _, steps := range []int64{3, 3, 5} {
		e := newBigram(vocab)
		o := options(dir, st, e)
		o.Resume, o.Steps = true, steps
		r, err := train(t, t.Context(), o, &agents{st: st, gen: e, slots: 1})
		if err != nil {
			t.Fatal(err)
		}
		if r.Steps != steps || r.After == nil || r.Rollouts != steps*12 {
			t.Errorf("%d steps, %d rollouts, want %d steps", r.Steps, r.Rollouts, steps)
		}
		if n := len(linesOf(t, filepath.Join(dir, "metrics.jsonl"))); int64(n) != steps+1 {
			t.Errorf("%d rows of metrics after %d steps", n, steps)
		}
	}
}

func TestResumeRefusesWhatDoesNotFit(t *testing.T) {
	dir := t.TempDir()
	st, e := openStore(t, dir), newBigram(vocab)
	o := options(dir, st, e)
	o.Steps, o.Test = 3, nil
	if _, err := train(t, t.Context(), o, &agents{st: st, gen: e, slots: 2}); err != nil {
		t.Fatal(err)
	}
	for name, change := range map[string]func(*Options){
		"other configuration": func(o *Options) { o.ConfigHash = "x" },
		"other data":          func(o *Options) { o.Train.Hash = "x" },
		"other seed":          func(o *Options) { o.Seed = 8 },
		"train, not resume":   func(o *Options) { o.Resume = false },
	} {
		t.Run(name, func(t *testing.T) {
			o := options(dir, st, newBigram(vocab))
			o.Resume = true
			change(&o)
			if _, err := Run(t.Context(), o); fulgur.KindOf(err) != fulgur.KindConflict {
				t.Errorf("got %v, want a conflict", err)
			}
		})
	}
}

// A run folder of which something was deleted goes on, and says what is missing.
func TestResumeOfHalfAFolder(t *testing.T) {
	for name, c := range map[string]struct {
		remove string
		want   []string
	}{
		"whole":          {"", nil},
		"no metrics":     {"metrics.jsonl", []string{"metrics.jsonl ends at step 0 of 3"}},
		"no rollouts":    {"rollouts.jsonl", []string{"rollouts.jsonl ends at step 0 of 3"}},
		"no checkpoints": {"checkpoints", []string{"what metrics.jsonl held is dropped", "what rollouts.jsonl held is dropped"}},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			st := openStore(t, dir)
			var said []string
			for _, steps := range []int64{3, 4} {
				e := newBigram(vocab)
				o := options(dir, st, e)
				o.Resume, o.Steps = true, steps
				o.Observer = func(ev Event) {
					if w, ok := ev.(Warning); ok && w.Code == "lost_files" {
						said = append(said, w.Message)
					}
				}
				if _, err := train(t, t.Context(), o, &agents{st: st, gen: e, slots: 2}); err != nil {
					t.Fatal(err)
				}
				if steps == 3 && c.remove != "" {
					if err := os.RemoveAll(filepath.Join(dir, c.remove)); err != nil {
						t.Fatal(err)
					}
				}
			}
			if len(said) != len(c.want) {
				t.Fatalf("said %q, want %q", said, c.want)
			}
			for i, w := range c.want {
				if !strings.Contains(said[i], w) {
					t.Errorf("said %q, want %q", said[i], w)
				}
			}
		})
	}
}

// A step whose agents all failed is not trained on what is on record for ever: once
// the cause is mended, resuming runs them anew, and then the run is what it would
// have been without the failure.
func TestAStepThatCouldNotTrainIsRunAnew(t *testing.T) {
	want := undisturbed(t)
	for name, outcome := range map[string]fulgur.Outcome{
		"all agents failed":            {Class: fulgur.OutcomeAgent, Reason: "exit"},
		"none could be started at all": {Class: fulgur.OutcomeInfrastructure, Reason: "spawn"},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			st := openStore(t, dir)
			for try := range 3 {
				e := newBigram(vocab)
				o := options(dir, st, e)
				o.Resume = try > 0
				a := &agents{st: st, gen: e, slots: 1}
				ran := 0
				a.fail = func(r fulgur.Rollout, _ fulgur.AttemptID) *fulgur.AttemptReport {
					if !r.IsTrain || try == 2 {
						return nil
					}
					ran++
					return &fulgur.AttemptReport{Phase: fulgur.PhaseEnded, Outcome: &outcome}
				}
				_, err := train(t, t.Context(), o, a)
				if try == 2 && err != nil {
					t.Fatalf("mended: %v", err)
				}
				if try < 2 && (err == nil || ran != 12) {
					t.Fatalf("try %d: %d agents ran, error %v", try, ran, err)
				}
			}
			if diff := cmp.Diff(want, remainsOf(t, dir)); diff != "" {
				t.Errorf("the mended run differs (-undisturbed +mended):\n%s", diff)
			}
		})
	}
}

package trainer

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/fulgur-rl/fulgur"
	"github.com/fulgur-rl/fulgur/internal/trainer/sample"
)

// inputs are routed experts that can be told apart: the expert of a pass is the
// number of its input.
func inputs(c *fulgur.Call) json.RawMessage {
	passes := slices.Concat(c.PromptIDs, c.SampledIDs)
	rows := make([][]int32, len(passes)-1)
	for i := range rows {
		rows[i] = passes[i : i+1]
	}
	raw, err := json.Marshal(rows)
	if err != nil {
		panic(err)
	}
	return raw
}

// Routed experts go to the engine where they are replayed, each with the pass that
// chose them; a call without them is refused and counted. Without replay neither
// happens.
func TestRoutedExpertsAreReplayedOrNot(t *testing.T) {
	secondOnly := func(c *fulgur.Call) json.RawMessage {
		if c.Index == 0 {
			return nil
		}
		return inputs(c)
	}
	for name, c := range map[string]struct {
		replay        bool
		experts       func(*fulgur.Call) json.RawMessage
		with, refused bool
	}{
		"on, and all calls have them":     {true, inputs, true, false},
		"on, and every second call lacks": {true, secondOnly, true, true},
		"off, and all calls have them":    {false, inputs, false, false},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			st, e := openStore(t, dir), newBigram(vocab)
			e.replays = true
			o := options(dir, st, e)
			o.Steps, o.Validation, o.Test, o.ValidateEvery = 3, nil, nil, 0
			o.Samples = sample.Options{Replay: c.replay}
			refused, lines := 0, []RolloutLine(nil)
			o.Observer = func(ev Event) {
				if s, ok := ev.(StepDone); ok {
					lines = append(lines, s.Rollouts...)
					for _, l := range s.Rollouts {
						refused += l.Untrained[sample.MissingExperts]
					}
				}
			}
			if _, err := train(t, t.Context(), o, &agents{st: st, gen: e, slots: 4, experts: c.experts}); err != nil {
				t.Fatal(err)
			}
			if (e.with > 0) != c.with || (e.without > 0) == c.with || (refused > 0) != c.refused {
				t.Errorf("%d sequences with experts, %d without, %d calls refused", e.with, e.without, refused)
			}
			for _, l := range lines { // built again from the whole record they are the same, to the bit
				calls, err := st.Calls(t.Context(), l.ID, "0")
				if err != nil {
					t.Fatal(err)
				}
				again := sample.Build(l.Group, calls, SamplesConfig{MaxTokens: 64, Replay: c.replay}.Options())
				if again.Hash() != l.SamplesHash {
					t.Fatalf("rollout %s: samples built again have another hash", l.ID)
				}
			}
		})
	}
}

func TestReplayIsRefusedWhereNothingCanBeReplayed(t *testing.T) {
	run := func(replays bool, narrow func(Store) Store) error {
		dir := t.TempDir()
		st, e := openStore(t, dir), newBigram(vocab)
		e.replays = replays
		o := options(dir, narrow(st), e)
		o.Samples.Replay, o.Validation, o.Test, o.ValidateEvery = true, nil, nil, 0
		_, err := train(t, t.Context(), o, &agents{st: st, gen: e, slots: 4})
		return err
	}
	whole := func(st Store) Store { return st }
	if err := run(false, whole); fulgur.KindOf(err) != fulgur.KindUnsupported || !strings.Contains(err.Error(), "algorithm.replay") {
		t.Errorf("an engine without replay: %v", err)
	}
	// No model server gave any: the step says why nothing trains.
	recordsOnly := func(st Store) Store { return struct{ Store }{st} }
	if err := run(true, recordsOnly); fulgur.KindOf(err) != fulgur.KindUnsupported || !strings.Contains(err.Error(), "this store") {
		t.Errorf("a store without routed experts: %v", err)
	}
	if err := run(true, whole); err == nil || !strings.Contains(err.Error(), "24 × "+sample.MissingExperts) {
		t.Errorf("calls without experts: %v", err)
	}
}

// A step that stops the run has its rollouts' lines in the file, with why; who
// resumes gets rid of them.
func TestAStepThatStopsTheRunLeavesItsLines(t *testing.T) {
	dir := t.TempDir()
	st, e := openStore(t, dir), newBigram(vocab)
	o := options(dir, st, e)
	o.Validation, o.Test, o.ValidateEvery, o.Steps = nil, nil, 0, 2
	bad := true
	a := &agents{st: st, gen: e, slots: 4, fail: func(fulgur.Rollout, fulgur.AttemptID) *fulgur.AttemptReport {
		if !bad {
			return nil
		}
		return &fulgur.AttemptReport{Phase: fulgur.PhaseEnded, Outcome: &fulgur.Outcome{Class: fulgur.OutcomeInfrastructure, Reason: "spawn"}}
	}}
	lines := func() string {
		raw, err := os.ReadFile(filepath.Join(dir, "rollouts.jsonl"))
		if err != nil {
			t.Fatal(err)
		}
		return string(raw)
	}
	if _, err := train(t, t.Context(), o, a); err == nil || strings.Count(lines(), `"masked":"infrastructure"`) != 12 {
		t.Fatalf("%v; lines:\n%s", err, lines())
	}
	bad, o.Resume, o.Engine = false, true, newBigram(vocab)
	a.gen = o.Engine.(*bigram)
	if _, err := train(t, t.Context(), o, a); err != nil {
		t.Fatal(err)
	}
	if got := lines(); strings.Contains(got, "masked") || strings.Count(got, "\n") != 24 {
		t.Errorf("lines after resuming:\n%s", got)
	}
}

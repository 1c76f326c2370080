package trainer

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/fulgur-rl/fulgur"
	"github.com/fulgur-rl/fulgur/internal/trainer/schedule"
)

// overlapping are options of a small run with rollouts of several steps under
// way: 13 rows, three to a step, three epochs.
func overlapping(dir string, st Store, e *bigram, mode schedule.Mode) Options {
	o := options(dir, st, e)
	o.Steps, o.Epochs = 0, 3
	o.Schedule = schedule.Config{Mode: mode, MeanStaleness: 2, MaxStaleness: 5}
	return o
}

const (
	overlapRows  = 13
	overlapSteps = 13 // 39 groups, three a step
)

// trainedOnce checks a finished run's record: each row once per epoch, whole
// groups, one row of metrics a step.
func trainedOnce(t *testing.T, dir string, o Options) {
	t.Helper()
	members := map[fulgur.GroupID]int{}
	perRow := map[int]int{}
	ids := map[fulgur.RolloutID]bool{}
	for _, l := range rolloutLines(t, dir) {
		if ids[l.ID] {
			t.Errorf("%s is there twice", l.ID)
		}
		ids[l.ID] = true
		if l.Part != "train" {
			continue
		}
		if members[l.Group]++; members[l.Group] == o.GroupSize {
			perRow[l.Row]++
		}
		if age := l.Step - 1 - int64(l.Version); age < 0 || age > o.Schedule.MaxStaleness {
			t.Errorf("%s: trained in step %d, sampled under version %d", l.ID, l.Step, l.Version)
		}
	}
	for g, n := range members {
		if n != o.GroupSize {
			t.Errorf("group %s has %d members", g, n)
		}
	}
	for row := range overlapRows {
		if perRow[row] != o.Epochs {
			t.Errorf("row %d trained %d times in %d epochs", row, perRow[row], o.Epochs)
		}
	}
	if n := len(linesOf(t, filepath.Join(dir, "metrics.jsonl"))); n != overlapSteps+1 {
		t.Errorf("%d rows of metrics after %d steps", n, overlapSteps)
	}
	_, state, err := Last(dir)
	if err != nil || state.Cursor.Step != overlapSteps || state.Version != overlapSteps || len(state.Cursor.Carried) != 0 {
		t.Errorf("the last state is %+v (%v)", state.Cursor, err)
	}
	if want := int64(overlapRows * o.Epochs * o.GroupSize); state.Rollouts != want {
		t.Errorf("%d rollouts counted, want %d", state.Rollouts, want)
	}
}

func TestOverlappingStepsTrainEachRowOncePerEpoch(t *testing.T) { // AS-06
	for _, mode := range []schedule.Mode{schedule.Collocated, schedule.Disaggregated} {
		t.Run(string(mode), func(t *testing.T) {
			dir := t.TempDir()
			st, e := openStore(t, dir), newBigram(vocab)
			o := overlapping(dir, st, e, mode)
			gate := &countingGate{}
			o.Gate = gate
			if _, err := train(t, t.Context(), o, &agents{st: st, gen: e, slots: 8}); err != nil {
				t.Fatal(err)
			}
			trainedOnce(t, dir, o)
			if gate.held {
				t.Error("calls are still held")
			}
			// At the start, and behind the best policy; only collocated runs hold for each update.
			if many := gate.pauses > overlapSteps; many != (mode == schedule.Collocated) {
				t.Errorf("%d pauses in %d steps", gate.pauses, overlapSteps)
			}
		})
	}
}

// countingGate counts pauses, and refuses what no gateway would take.
type countingGate struct {
	mu      sync.Mutex
	held    bool
	pauses  int
	partial int
}

func (g *countingGate) PauseCalls(_ context.Context, run fulgur.RunID, p fulgur.PauseRequest) (fulgur.Pause, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.held = true
	g.pauses++
	if p.Partial {
		g.partial++
	}
	return fulgur.Pause{Run: run, Paused: true, Owner: p.Owner}, nil
}

func (g *countingGate) ResumeCalls(_ context.Context, run fulgur.RunID, _ string) (fulgur.Pause, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.held = false
	return fulgur.Pause{Run: run}, nil
}

func TestInterruptedOverlapGoesOnWithCarriedGroups(t *testing.T) { // AS-07
	dir := t.TempDir()
	st := openStore(t, dir)
	for k := 0; ; k++ {
		e := newBigram(vocab)
		o := overlapping(dir, st, e, schedule.Collocated)
		o.Resume = true
		ctx, cancel := context.WithCancel(t.Context())
		ends := 0
		o.Observer = func(ev Event) {
			if _, ok := ev.(Progress); ok && k < 6 {
				if ends++; ends == 25+7*k {
					cancel()
				}
			}
		}
		_, err := train(t, ctx, o, &agents{st: st, gen: e, slots: 8})
		cancel()
		if err == nil {
			trainedOnce(t, dir, o)
			return
		}
		if !errors.Is(err, &fulgur.Error{Kind: fulgur.KindCanceled}) {
			t.Fatal(err)
		}
	}
}

// TestOverlapChild is not a test of its own: the kill test runs it as a process.
func TestOverlapChild(t *testing.T) {
	dir := os.Getenv(childEnv)
	if dir == "" {
		t.Skip("a process of TestKilledOverlapLosesNoPrompt, which sets " + childEnv)
	}
	st, e := openStore(t, dir), newBigram(vocab)
	o := overlapping(dir, st, e, schedule.Collocated)
	o.Resume, o.LeaseTTL = true, 200*time.Millisecond
	o.Observer = func(ev Event) {
		if s, ok := ev.(StepDone); ok {
			fmt.Printf("step %d\n", s.Step)
		}
	}
	if _, err := train(t, t.Context(), o, &agents{st: st, gen: e, slots: 8}); err != nil {
		t.Fatal(err)
	}
}

func TestKilledOverlapLosesNoPrompt(t *testing.T) { // AS-07
	if testing.Short() {
		t.Skip("starts and kills processes: left out by -short, make test runs it")
	}
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 0))
	dir := t.TempDir()
	untilDone(t, "TestOverlapChild", dir, 6, rng)
	trainedOnce(t, dir, overlapping(dir, nil, nil, schedule.Collocated))
}

func TestOverlappingStepsLearn(t *testing.T) {
	dir := t.TempDir()
	st, e := openStore(t, dir), newBigram(vocab)
	o := options(dir, st, e)
	o.Steps, o.GroupSize, o.GroupsPerStep, o.Test = 60, 6, 4, rows(24)
	o.Schedule = schedule.Config{Mode: schedule.Collocated, MeanStaleness: 2}
	var mean float64
	o.Observer = func(ev Event) {
		if w, ok := ev.(Warning); ok && w.Code != "unanimous" && w.Code != "zero_reward" {
			t.Errorf("warning %s: %s", w.Code, w.Message)
		}
	}
	r, err := train(t, t.Context(), o, &agents{st: st, gen: e, slots: 8})
	if err != nil {
		t.Fatal(err)
	}
	// Which rollouts are in a step depends on time here, so the end varies: .79 has been seen after 40 steps.
	if r.After.Sampled.Rate < 0.7 {
		t.Errorf("pass@1 went from %.2f to %.2f; want at least 0.7", r.Before.Sampled.Rate, r.After.Sampled.Rate)
	}
	lines := linesOf(t, filepath.Join(dir, "metrics.jsonl"))
	for _, raw := range lines[1:] {
		m := map[string]any{}
		if err := json.Unmarshal(raw, &m); err != nil {
			t.Fatal(err)
		}
		v, ok := m["staleness/mean"].(float64)
		if !ok {
			t.Fatalf("no staleness in %s", raw)
		}
		mean += v / float64(o.Steps)
	}
	if mean > 2 || mean < 0.5 {
		t.Errorf("mean staleness %.2f, want about 2", mean)
	}
}

func TestTheStopRuleEndsWhatIsStillUnderWay(t *testing.T) {
	dir := t.TempDir()
	st, e := openStore(t, dir), newBigram(vocab)
	o := options(dir, st, e)
	o.Steps, o.GroupSize, o.GroupsPerStep, o.ValidateEvery, o.Stop = 100, 6, 4, 2, Stop{Validation: 0.6}
	o.Schedule = schedule.Config{Mode: schedule.Collocated, MeanStaleness: 2}
	r, err := train(t, t.Context(), o, &agents{st: st, gen: e, slots: 8})
	if err != nil || !r.Reached {
		t.Fatalf("reached %v: %v", r.Reached, err)
	}
	open, err := st.Rollouts(t.Context(), fulgur.RolloutQuery{Run: "r", States: []fulgur.RolloutState{fulgur.Queuing, fulgur.Running}, Limit: 100})
	if err != nil || len(open) > 0 {
		t.Errorf("%d rollouts are still open: %v", len(open), err)
	}
}

func TestAFilteredGroupIsReplaced(t *testing.T) { // AL-14
	const filtered = 4 // never among an epoch's last, when no other row is left to take its place
	for _, mode := range []schedule.Mode{schedule.Synchronous, schedule.Collocated} {
		dir := t.TempDir()
		st, e := openStore(t, dir), newBigram(vocab)
		o := overlapping(dir, st, e, mode)
		o.Schedule.Refills = o.Epochs // groups of two epochs may end in one step
		o.Filter = func(group []RolloutLine) string {
			if group[0].Row == filtered {
				return "filtered"
			}
			return ""
		}
		if _, err := train(t, t.Context(), o, &agents{st: st, gen: e, slots: 8}); err != nil {
			t.Fatal(err)
		}
		seen, trained := 0, 0
		for _, l := range rolloutLines(t, dir) {
			if l.Part == "train" && l.Row == filtered {
				seen++
				if l.Masked == "" {
					trained++
				}
			}
		}
		if seen != o.Epochs*o.GroupSize || trained != 0 {
			t.Errorf("%s: the row was seen %d times and trained %d times", mode, seen, trained)
		}
	}
}

func TestQuantile(t *testing.T) {
	x := []float64{5, 1, 3, 2, 4}
	for share, want := range map[float64]float64{0: 1, .5: 3, .95: 5, 1: 5} {
		if got := quantile(slices.Clone(x), share); got != want {
			t.Errorf("quantile %g is %g, want %g", share, got, want)
		}
	}
}

func TestAGroupIsClosedWithoutItsStraggler(t *testing.T) { // AS-09
	dir := t.TempDir()
	st, e := openStore(t, dir), newBigram(vocab)
	o := overlapping(dir, st, e, schedule.Collocated)
	o.Epochs, o.Test, o.ValidateEvery = 1, nil, 0
	o.Schedule.Straggler = schedule.Straggler{Done: 0.5, Factor: 3}
	stuck := fulgur.NewRolloutID(fulgur.RolloutKey{Run: "r", Part: "train", Row: 5, K: 2})
	var warned int
	o.Observer = func(ev Event) {
		if w, ok := ev.(Warning); ok && w.Code == "straggler" {
			warned++
		}
	}
	a := &agents{st: st, gen: e, slots: 8}
	a.fail = func(r fulgur.Rollout, _ fulgur.AttemptID) *fulgur.AttemptReport {
		for seq := fulgur.Seq(0); r.ID == stuck; { // until it is ended from outside
			now, err := st.Rollout(t.Context(), stuck)
			if err != nil || now.State.Terminal() {
				break
			}
			changes, err := st.Changes(t.Context(), "r", seq)
			if err != nil {
				break
			}
			seq = changes[len(changes)-1].Seq
		}
		return nil
	}
	if _, err := train(t, t.Context(), o, a); err != nil {
		t.Fatal(err)
	}
	for _, l := range rolloutLines(t, dir) {
		if l.ID == stuck && (l.Masked != maskInfrastructure || l.Outcome != "straggler") {
			t.Errorf("the straggler is %+v", l)
		}
		if l.ID == stuck {
			stuck = ""
		}
	}
	if stuck != "" || warned == 0 {
		t.Errorf("the straggler is not on record, or nobody was told (%d warnings)", warned)
	}
}

// A reward that is no number is not the same as none: its rollout is left out,
// and neither is a silent zero.
func TestRewardsThatAreNoNumbers(t *testing.T) {
	dir := t.TempDir()
	st, e := openStore(t, dir), newBigram(vocab)
	o := options(dir, st, e)
	o.Grader, o.Steps, o.Validation, o.Test, o.ValidateEvery = nil, 1, nil, nil, 0
	warned := map[string]string{}
	o.Observer = func(ev Event) {
		if w, ok := ev.(Warning); ok {
			warned[w.Code] = w.Message
		}
	}
	a := &agents{st: st, gen: e, slots: 2}
	a.fail = func(r fulgur.Rollout, at fulgur.AttemptID) *fulgur.AttemptReport {
		data := map[string]string{"0": `{"value":1}`, "1": `{"value":null}`, "2": `{"value":"high"}`}[strings.Split(string(r.ID), "-")[3]]
		if data != "" {
			if _, err := st.AppendEvent(t.Context(), fulgur.Event{Rollout: r.ID, Attempt: at, Type: fulgur.EventReward, Data: []byte(data)}); err != nil {
				t.Error(err)
			}
		}
		return nil
	}
	if _, err := train(t, t.Context(), o, a); err != nil {
		t.Fatal(err)
	}
	got := map[string]int{}
	for _, l := range rolloutLines(t, dir) {
		got[l.Why+" "+l.Masked]++
	}
	want := map[string]int{"reported by the agent ": 3, whyNoNumber + " " + maskNotFinite: 6, whyNoReward + " ": 3}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	if !strings.HasPrefix(warned["reward_not_finite"], "6 rewards") || !strings.HasPrefix(warned["no_reward"], "3 of 12") {
		t.Errorf("warned of %q", warned)
	}
}

package trainer

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/fulgur-rl/fulgur"
	"github.com/fulgur-rl/fulgur/internal/engine"
	"github.com/fulgur-rl/fulgur/internal/store"
	"github.com/fulgur-rl/fulgur/internal/trainer/advantage"
	"github.com/fulgur-rl/fulgur/internal/trainer/loss"
)

// With all that keeps a state of its own (the start weights of a KL term, what a
// curriculum knows, refills of a filter), a run that was stopped ends as one that
// was not.
func TestAnInterruptedObjectiveEndsAsUndisturbed(t *testing.T) {
	settings := func(dir string, st *store.Store, resume, stop bool) error {
		e := newBigram(vocab)
		o := options(dir, st, e)
		o.Resume = resume
		o.Objective = Objective{KL: KL{Coefficient: 0.05, Kind: "k3"}, Discount: 0.9, DualClip: 3,
			Correction: loss.Correction{By: loss.CorrectSequence, Truncate: 2, Low: .1, High: 10}}
		o.Curriculum = &advantage.Curriculum{Decay: 0.3}
		o.Filter, o.Schedule.Refills = GroupFilter(advantage.Filter{Equal: true, Valid: 2}), 2
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		o.Observer = func(ev Event) {
			if p, ok := ev.(Progress); ok && stop && p.Part == "train" && p.Step == 5 && p.Done == 8 {
				cancel()
			}
		}
		_, err := train(t, ctx, o, &agents{st: st, gen: e, slots: 1})
		return err
	}
	whole, broken := t.TempDir(), t.TempDir()
	st := openStore(t, broken)
	if err := settings(whole, openStore(t, whole), false, false); err != nil {
		t.Fatal(err)
	}
	if err := settings(broken, st, false, true); !errors.Is(err, &fulgur.Error{Kind: fulgur.KindCanceled}) {
		t.Fatalf("got %v", err)
	}
	if err := settings(broken, st, true, false); err != nil {
		t.Fatal(err)
	}
	want, got := remainsOf(t, whole), remainsOf(t, broken)
	if want.State.Passes == nil || want.Metrics[3]["policy/reference_kl"] == nil {
		t.Error("curriculum or KL term did nothing")
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("resumed run differs (-undisturbed +resumed):\n%s", diff)
	}
}

// AL-01, AL-08: under every aggregation the weights of a step add up as they are
// meant to, whatever the rollouts' splits.
func TestWeightsOfEachAggregation(t *testing.T) {
	for seed := range uint64(30) {
		r := rand.New(rand.NewPCG(seed, 3))
		rollouts := make([]ended, 3+r.IntN(9))
		tokens, sequences := 0.0, 0.0
		for i := range rollouts {
			lengths := make([]int, 1+r.IntN(4))
			for k := range lengths {
				lengths[k] = 1 + r.IntN(9)
				tokens += float64(lengths[k])
				sequences++
			}
			rollouts[i] = rolloutOf(i, 1, lengths...)
		}
		n := float64(len(rollouts))
		for name, want := range map[string]float64{loss.ByRollout: 1, loss.ByToken: 1, loss.BySequence: 1, loss.ByConstant: tokens / n / 50} {
			batches, err := split(rollouts, 1, seed, 0, Objective{Aggregate: name, Constant: 50})
			if err != nil {
				t.Fatal(err)
			}
			total, count := 0.0, 0.0
			for _, row := range batches[0].rows {
				for j, m := range row.Mask {
					total += float64(m) * row.Coefficient * row.Advantages[j]
				}
				count++
			}
			if math.Abs(total-want) > 1e-9 || count != sequences {
				t.Errorf("seed %d, %s: weights add up to %g over %g sequences, want %g over %g", seed, name, total, count, want, sequences)
			}
		}
	}
}

// What compat v1 makes of records is what its arithmetic makes of the same rows: a
// rollout weighs |A| over the number of rows, in bfloat16.
func TestV1WeighsByRows(t *testing.T) {
	b := newBandit(t, 0, func(o *Options) { o.Objective.V1, o.Minibatches = true, 1 })
	var all []ended
	for n := range tasks {
		for k := range b.o.GroupSize {
			e := b.roll(b.policy.Weights, 0, 0, n, k)
			reward := float64(k % 2)
			e.line.Reward = &reward
			all = append(all, e)
		}
	}
	all[0].line.Masked, all[0].line.Reward = maskInfrastructure, nil
	m := measured{values: map[string]float64{}}
	_, batches, err := b.batches(t.Context(), 1, all, &m)
	if err != nil {
		t.Fatal(err)
	}
	rows := m.values["training/n_sample_trained"]
	size := float64(b.o.GroupSize * b.o.GroupsPerStep)
	if rows == 0 || math.Mod(rows, size) != 0 || float64(len(batches)) != rows/size || m.values["training/n_sample_collected"] <= rows-1 {
		t.Fatalf("%g rows in %d mini-batches: %v", rows, len(batches), m.values)
	}
	mass, tokens := map[int]float64{}, map[int]float64{}
	for _, x := range batches {
		for _, row := range x.rows {
			for j, on := range row.Mask {
				mass[row.Rollout] += float64(on) * row.Advantages[j]
				tokens[row.Rollout] += float64(on)
			}
		}
	}
	for i, w := range mass {
		if i == 0 {
			t.Error("a masked rollout trains")
		}
		if want := all[i].line.Advantage / rows; math.Abs(w-want) > 0.01*math.Abs(want) || all[i].line.Weight != advantage.BFloat16(all[i].line.Weight) {
			t.Errorf("rollout %d: %g over %g tokens, want %g", i, w, tokens[i], want)
		}
	}
}

func TestImpossibleObjectivesAreRefused(t *testing.T) {
	type bare struct{ engine.Engine }
	for name, settle := range map[string]func(*Options){
		"a KL term without a frozen copy": func(o *Options) { o.Objective.KL.Coefficient = 1; o.Engine = bare{o.Engine} },
		"a constant of nothing":           func(o *Options) { o.Objective.Aggregate = loss.ByConstant },
		"a dual clip below 1":             func(o *Options) { o.Objective.DualClip = 0.5 },
		"a discount above 1":              func(o *Options) { o.Objective.Discount = 2 },
		"v1 with rewards of calls":        func(o *Options) { o.Objective.V1, o.Objective.CallRewards = true, true },
	} {
		o := options(t.TempDir(), nil, newBigram(vocab))
		settle(&o)
		if err := o.fill(); fulgur.KindOf(err) != fulgur.KindInvalid && fulgur.KindOf(err) != fulgur.KindUnsupported {
			t.Errorf("%s: %v", name, err)
		}
	}
	// What can only be seen at work is an error there, not a panic.
	b := newBandit(t, 0, func(o *Options) { o.Objective.KL = KL{Coefficient: 1, Kind: "k9"} })
	if _, err := b.step(t); err == nil {
		t.Error("an unknown estimate of the divergence is taken")
	}
	b = newBandit(t, 0, func(o *Options) { o.Estimator = "x" })
	if _, err := b.step(t); fulgur.KindOf(err) != fulgur.KindInvalid {
		t.Errorf("an unknown estimator: %v", fmt.Sprint(err))
	}
}

// Events reward calls by number or id, add up, and are counted where they name none.
func TestCallRewardsAreReadFromEvents(t *testing.T) {
	ctx, st := t.Context(), openStore(t, t.TempDir())
	if err := st.PutRun(ctx, fulgur.Run{ID: "r"}); err != nil {
		t.Fatal(err)
	}
	if _, err := st.CreateRollouts(ctx, []fulgur.RolloutSpec{{ID: "x", Run: "r", Input: []byte("{}"), IsTrain: true}}); err != nil {
		t.Fatal(err)
	}
	at, err := st.OpenAttempt(ctx, "x")
	if err != nil {
		t.Fatal(err)
	}
	for _, data := range []string{`{"call":0,"value":0.5}`, `{"call":"b","value":1}`, `{"call":0,"value":0.25}`, `{"call":7,"value":1}`, `{"call":0,"value":"high"}`} {
		if _, err := st.AppendEvent(ctx, fulgur.Event{Rollout: "x", Attempt: at.ID, Type: fulgur.EventCallReward, Data: []byte(data)}); err != nil {
			t.Fatal(err)
		}
	}
	var warned []string
	tr := trainer{o: Options{Store: st, Observer: func(e Event) { warned = append(warned, e.(Warning).Message) }}}
	all := []ended{{attempt: at.ID, calls: []fulgur.CallID{"a", "b"}, line: RolloutLine{ID: "x"}}, {attempt: at.ID, calls: []fulgur.CallID{"a", "b"}, line: RolloutLine{ID: "x", Audited: AuditZero}}}
	if err := tr.readCallRewards(ctx, 1, all); err != nil {
		t.Fatal(err)
	}
	if all[1].callRewards != nil {
		t.Errorf("a rollout that took a shortcut has %v for its calls", all[1].callRewards)
	}
	if diff := cmp.Diff([]float64{0.75, 1}, all[0].callRewards); diff != "" || len(warned) != 1 || !strings.HasPrefix(warned[0], "2 rewards") {
		t.Errorf("%s, warned of %q", diff, warned)
	}
}

func TestASingleTokenStopsNoRun(t *testing.T) {
	b := Band{RatioLow: 0.5, RatioHigh: 2, KL: 1}
	row := loss.Row{Mask: make([]float32, 100), Sampled: make([]float32, 100), Proximal: make([]float32, 100)}
	for j := range row.Mask {
		row.Mask[j] = 1
	}
	row.Sampled[3] = -15 // sampled when it was unlikely, and sure by now
	if d := loss.Correct([]loss.Row{row}, loss.Correction{}); d.Ratio < 1000 || b.outside(d) != "" {
		t.Errorf("%+v: %s", d, b.outside(d))
	}
	for j := range row.Mask {
		row.Sampled[j] = -3 // the sampler holds other weights
	}
	if d := loss.Correct([]loss.Row{row}, loss.Correction{}); b.outside(d) == "" {
		t.Errorf("%+v is inside", d)
	}
	row.Sampled[0] = float32(math.NaN())
	if d := loss.Correct([]loss.Row{row}, loss.Correction{}); b.outside(d) == "" {
		t.Errorf("%+v is inside", d)
	}
	if why := b.outside(loss.Drift{}); why != "" {
		t.Errorf("nothing was measured, and %s", why)
	}
}

// Of calls with one prompt v1 takes the last, also where that one failed.
func TestV1ReadsCallsAsItsManagerDoes(t *testing.T) {
	call := func(prompt, sampled int32, status int) fulgur.Call {
		return fulgur.Call{PromptIDs: []int32{prompt}, SampledIDs: []int32{sampled}, LogProbs: []float32{-1}, HTTPStatus: status}
	}
	failed := call(2, 4, 200)
	failed.Error = "upstream"
	got := v1Completed(&ended{}, 3, []fulgur.Call{call(1, 1, 200), call(1, 2, 200), call(2, 3, 200), failed, call(3, 5, 500), call(4, 6, 200), {PromptIDs: []int32{5}, HTTPStatus: 200}})
	if len(got.Calls) != 2 || got.Calls[0].Response[0] != 2 || got.Calls[1].Response[0] != 6 || got.Index != 3 {
		t.Errorf("%+v", got)
	}
}

// AL-03: one vote a rollout; by sample, a rollout in three pieces has three.
func TestVotes(t *testing.T) {
	for bySample, want := range map[bool]float64{false: 0.5, true: 0.25} {
		one, zero := 1.0, 0.0
		split, whole := rolloutOf(0, 0, 3, 3, 3), rolloutOf(1, 0, 9)
		split.line.Reward, whole.line.Reward = &one, &zero
		all := []ended{split, whole}
		if _, err := assign(advantage.DrGRPO, Objective{VoteBySample: bySample}, all); err != nil {
			t.Fatal(err)
		}
		if all[0].line.Advantage != want || all[1].line.Advantage != want-1 {
			t.Errorf("by sample %t: advantages %g and %g", bySample, all[0].line.Advantage, all[1].line.Advantage)
		}
	}
}

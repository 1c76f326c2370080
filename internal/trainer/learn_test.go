package trainer

import (
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/fulgur-rl/fulgur"
	"github.com/fulgur-rl/fulgur/internal/engine"
	"github.com/fulgur-rl/fulgur/internal/trainer/advantage"
	"github.com/fulgur-rl/fulgur/internal/trainer/loss"
	"github.com/fulgur-rl/fulgur/internal/trainer/sample"
	"github.com/fulgur-rl/fulgur/internal/trainer/schedule"
)

// bandit is the loop's step without agents and store: a policy that is sampled,
// graded and updated in memory. lag is how many versions the sampler is behind.
type bandit struct {
	*trainer
	policy *bigram
	old    [][]float64
	lag    int
	last   measured
}

func newBandit(t testing.TB, lag int, settle func(*Options)) *bandit {
	t.Helper()
	b := &bandit{policy: newBigram(vocab), lag: lag}
	o := Options{Engine: b.policy, Seed: 3, GroupSize: 8, GroupsPerStep: tasks, Minibatches: 2, Estimator: advantage.GRPO, Steps: 1,
		Loss: engine.Loss{Name: engine.PPO, ClipLow: 0.2, ClipHigh: 0.28}, Adam: engine.AdamW{Beta1: 0.9, Beta2: 0.98, Eps: 1e-8}, LearningRate: LearningRate{Start: 0.3}}
	settle(&o)
	if err := o.fill(); err != nil {
		t.Fatal(err)
	}
	b.trainer = &trainer{o: o, maxTokens: 64}
	if err := b.policy.Freeze(t.Context()); err != nil {
		t.Fatal(err)
	}
	return b
}

// roll samples and grades one rollout of two calls, the second of which is now
// and then a conversation of its own.
func (b *bandit) roll(table []float64, version int64, step, n, k int) ended {
	id := fmt.Sprintf("%d-%d-%d", step, n, k)
	var calls []fulgur.Call
	prompt := []int32{int32(n)}
	seed := schedule.Mix(uint64(step), uint64(n*100+k))
	for i := range 2 {
		c := fulgur.Call{ID: fulgur.CallID(fmt.Sprint(id, "/", i)), PromptIDs: slices.Clone(prompt), Trainable: true, HTTPStatus: 200, Spans: []fulgur.Span{{Version: fulgur.PolicyVersion(version)}}}
		for range 2 - i {
			lp := logSoftmax(b.policy.row(table, prompt[len(prompt)-1]))
			seed = schedule.Mix(seed, 1)
			u, pick := float64(seed>>11)/(1<<53), 0
			for u -= math.Exp(lp[0]); u > 0 && pick < vocab-1; u -= math.Exp(lp[pick]) {
				pick++
			}
			c.SampledIDs, c.LogProbs = append(c.SampledIDs, int32(pick)), append(c.LogProbs, float32(lp[pick]))
			prompt = append(prompt, int32(pick))
		}
		calls = append(calls, c)
		if prompt = append(prompt, vocab-1); k%3 == 0 {
			prompt = []int32{vocab - 1}
		}
	}
	reward := 0.0
	if calls[0].SampledIDs[0] == int32(n+tasks) {
		reward = 1
	}
	e := ended{built: sample.Build(fulgur.GroupID(fmt.Sprint(n)), calls, sample.Options{}), recorded: calls}
	if b.o.Objective.perCall() {
		e.calls = ownCalls(calls)
	}
	e.line = RolloutLine{ID: fulgur.RolloutID(id), Group: fulgur.GroupID(fmt.Sprint(n)), Class: fulgur.OutcomeOK, Reward: &reward, Sampled: e.built.Sampled, Trained: e.built.Trained}
	return e
}

// step makes one training step and returns its pass rate.
func (b *bandit) step(t testing.TB) (float64, error) {
	t.Helper()
	now := int64(b.state.Version)
	b.old = append(b.old, slices.Clone(b.policy.Weights))
	at := max(0, now-int64(b.lag))
	var all []ended
	passed := 0.0
	for n := range tasks {
		for k := range b.o.GroupSize {
			e := b.roll(b.old[at], at, int(now), n, k)
			passed += *e.line.Reward
			all = append(all, e)
		}
	}
	b.last = measured{values: map[string]float64{}}
	_, batches, err := b.batches(t.Context(), now+1, all, &b.last)
	if err == nil {
		err = b.prepare(t.Context(), now+1, batches, &b.last)
	}
	for i := range batches {
		if err == nil && len(batches[i].data) > 0 {
			err = b.update(t.Context(), now+1, &batches[i], &b.last)
		}
	}
	b.state.Version++
	var d StepDone
	b.last.into(&d)
	return passed / float64(len(all)), err
}

// learn makes steps and returns the pass rate of the last one.
func (b *bandit) learn(t testing.TB, steps int) (rate float64) {
	t.Helper()
	for range steps {
		var err error
		if rate, err = b.step(t); err != nil {
			t.Fatal(err)
		}
	}
	return rate
}

// Each estimator, loss, aggregation and correction learns what the reward says;
// chance passes 1 in 14.
func TestEachObjectiveLearns(t *testing.T) {
	type settle = func(*Options)
	cases := map[string]settle{
		"dual clip":                      func(o *Options) { o.Objective.DualClip = 3 },
		"aggregated by token":            func(o *Options) { o.Objective.Aggregate = loss.ByToken },
		"aggregated by sequence":         func(o *Options) { o.Objective.Aggregate = loss.BySequence },
		"aggregated by a constant":       func(o *Options) { o.Objective.Aggregate, o.Objective.Constant = loss.ByConstant, 4 },
		"KL in the loss":                 func(o *Options) { o.Objective.KL = KL{Coefficient: 0.01, Kind: "k3"} },
		"KL in the reward":               func(o *Options) { o.Objective.KL = KL{Coefficient: 0.01, Kind: "k1", InReward: true} },
		"a discount":                     func(o *Options) { o.Objective.Discount = 0.9 },
		"compat v1":                      func(o *Options) { o.Objective.V1 = true },
		"corrected by token":             func(o *Options) { o.Objective.Correction = loss.Correction{By: loss.CorrectToken, Truncate: 2} },
		"corrected by sequence":          func(o *Options) { o.Objective.Correction = loss.Correction{By: loss.CorrectSequence, Truncate: 2} },
		"a band of ratios":               func(o *Options) { o.Objective.Correction = loss.Correction{By: loss.CorrectNone, Low: .2, High: 5} },
		"a mini-batch per step":          func(o *Options) { o.Minibatches = 1 },
		"gspo":                           func(o *Options) { o.Loss = engine.Loss{Name: loss.GSPO, ClipLow: .2, ClipHigh: .28} },
		"dro":                            func(o *Options) { o.Loss.Name, o.Objective.Beta = loss.DRO, 0.1 },
		"cispo with what v1 has of drop": func(o *Options) { o.Loss.Name, o.Objective.V1 = engine.CISPO, true },
	}
	for _, e := range advantage.Estimators() {
		cases["estimator "+string(e)] = func(o *Options) { o.Estimator = e }
	}
	for _, l := range []string{engine.ImportanceSampling, engine.CISPO} {
		cases["loss "+l] = func(o *Options) { o.Loss.Name = l }
	}
	for name, c := range cases {
		for _, lag := range []int{0, 3} {
			t.Run(fmt.Sprintf("%s, %d versions behind", name, lag), func(t *testing.T) {
				b := newBandit(t, lag, c)
				if rate := b.learn(t, 40); rate < 0.5 {
					t.Errorf("the last step passed %.2f", rate)
				}
				if age := b.last.values["policy/staleness"]; age != float64(lag) {
					t.Errorf("staleness %g, want %d", age, lag)
				}
			})
		}
	}
}

// What the engine's own loss does and what goes by log probs, our derivative and a
// signed cross entropy are the same updates.
func TestBothWaysToALossGiveTheSameWeights(t *testing.T) {
	for _, c := range []loss.Correction{{}, {By: loss.CorrectToken, Truncate: 1.5, Low: .1, High: 10}} {
		for _, name := range []string{engine.PPO, engine.ImportanceSampling, engine.CISPO} {
			var ends [2][]float64
			var last [2]measured
			for way := range ends {
				b := newBandit(t, 2, func(o *Options) { o.Loss.Name, o.Objective.Correction = name, c })
				if way == 1 {
					b.losses = []string{engine.CrossEntropy, "x"}
				}
				b.learn(t, 12)
				ends[way], last[way] = b.policy.Weights, b.last
			}
			for i := range ends[0] {
				if math.Abs(ends[0][i]-ends[1][i]) > 1e-4 {
					t.Fatalf("%s, %+v: weight %d is %g one way and %g the other", name, c, i, ends[0][i], ends[1][i])
				}
			}
			if x, y := last[0], last[1]; math.Abs(x.loss-y.loss) > 1e-4 && name != engine.CISPO || math.Abs(x.kl-y.kl) > 1e-3 || x.clipped != y.clipped && name != engine.CISPO ||
				math.Abs(x.values["policy/ratio"]-y.values["policy/ratio"]) > 1e-4 {
				t.Errorf("%s, %+v: measured %+v one way and %+v the other", name, c, x, y)
			}
		}
	}
}

// The pull towards the start policy, in loss or reward, keeps it near.
func TestKLPullsTowardsTheStart(t *testing.T) {
	far := func(k KL) float64 {
		b := newBandit(t, 0, func(o *Options) { o.Objective.KL = k })
		b.learn(t, 40)
		return b.last.values["policy/reference_kl"]
	}
	for _, k := range []KL{{Kind: "k3"}, {Kind: "k1", InReward: true}} {
		weak, strong := k, k
		weak.Coefficient, strong.Coefficient = 1e-6, 1
		if a, b := far(weak), far(strong); !(b < a/2) {
			t.Errorf("%+v: divergence %g with a weak pull, %g with a strong one", k, a, b)
		}
	}
}

// A forward pass at the step's start where sampler and policy are two, none where
// they are one.
func TestTheProximalPolicyIsAskedForWhereItIsNeeded(t *testing.T) {
	correct := func(o *Options) { o.Objective.Correction = loss.Correction{By: loss.CorrectToken, Truncate: 2} }
	for name, c := range map[string]struct {
		lag, want int
		settle    func(*Options)
	}{
		"one policy":                            {0, 0, func(*Options) {}},
		"an older sampler":                      {2, 2, func(*Options) {}}, // from the second step on, for the second mini-batch
		"an older sampler and one mini-batch":   {2, 0, func(o *Options) { o.Minibatches = 1 }},
		"a correction":                          {0, 3, correct},
		"a sampler in the ratio itself":         {2, 0, func(o *Options) { o.Loss.Name = engine.ImportanceSampling }},
		"a loss of ours, one policy":            {0, 6, func(o *Options) { o.Objective.DualClip = 3 }}, // one per mini-batch
		"a loss of ours and a correction share": {0, 6, func(o *Options) { correct(o); o.Objective.DualClip = 3 }},
	} {
		b := newBandit(t, c.lag, c.settle)
		b.learn(t, 3)
		if b.policy.forwards != c.want {
			t.Errorf("%s: %d forward passes, want %d", name, b.policy.forwards, c.want)
		}
	}
}

// The band that a run must stay in; two engines that differ under one policy
// (WE-02) stop it in loop_test.go.
func TestARunStopsWhereSamplerAndTrainerAreTooFarApart(t *testing.T) {
	narrow := newBandit(t, 5, func(o *Options) { o.Objective.Band = Band{RatioLow: .999, RatioHigh: 1.001, KL: 0.5} })
	var steps int
	var err error
	for ; err == nil && steps < 40; steps++ {
		_, err = narrow.step(t)
	}
	if fulgur.KindOf(err) != fulgur.KindInternal || !strings.Contains(err.Error(), "too far from the one that trains") {
		t.Errorf("after %d steps: %v", steps, err)
	}
	// A resume refuses other settings, so it is not what leads on with a wider band.
	if err != nil && !strings.Contains(err.Error(), "wider off_policy.stop, needs a new run, for a resume keeps the settings: `fulgur train") {
		t.Errorf("the error does not say how other settings are had: %v", err)
	}
	if before := narrow.last.updates; before != 0 {
		t.Errorf("%d updates were made of a step that was stopped", before)
	}
}

// AL-09: rewards that are not numbers are left out and counted, until most are.
func TestRewardsThatAreNotFinite(t *testing.T) {
	b := newBandit(t, 0, func(*Options) {})
	all := make([]ended, 4)
	for i := range all {
		all[i] = b.roll(b.policy.Weights, 0, 0, 1, i)
		all[i].line.Masked, all[i].line.Reward = maskNotFinite, nil
	}
	m := measured{values: map[string]float64{}}
	if _, _, err := b.batches(t.Context(), 1, all, &m); fulgur.KindOf(err) != fulgur.KindInvalid {
		t.Errorf("four of four: %v", err)
	}
	one := 1.0
	all[0].line.Masked, all[0].line.Reward = "", &one
	all[1].line.Masked, all[1].line.Reward = "", &one
	if _, batches, err := b.batches(t.Context(), 1, all, &m); err != nil || len(batches[0].data)+len(batches[1].data) != 0 {
		t.Errorf("two of four, with equal rewards: %v", err)
	}
}

type given float64

func (g given) Grade(json.RawMessage, []fulgur.Call) (float64, string, error) {
	return float64(g), "given", nil
}

// What can't be compared with other rewards is left out, and says so.
func TestRewardsBeyondAllMeasureAreLeftOut(t *testing.T) {
	for value, masked := range map[given]string{given(math.NaN()): maskNotFinite, given(math.Inf(-1)): maskNotFinite, 1e308: maskRange, -1e19: maskRange, 1e18: "", -3: ""} {
		line := RolloutLine{Class: fulgur.OutcomeOK}
		tr := trainer{o: Options{Grader: value}}
		tr.grade(&line, fulgur.Rollout{}, nil)
		if line.Masked != masked || (line.Reward == nil) != (masked != "") || masked != "" && !strings.Contains(line.Why, "(given)") {
			t.Errorf("%g: masked %q, reward %v, why %q", float64(value), line.Masked, line.Reward, line.Why)
		}
	}
	if i, _ := callReward([]byte(`{"call":0,"value":1e308}`), []fulgur.CallID{"a"}); i >= 0 {
		t.Error("a call's reward of 1e308 counts")
	}
}

// A call's own reward reaches the tokens that it sampled, and those before it.
func TestRewardsOfCalls(t *testing.T) {
	calls := []fulgur.CallID{"a", "b"}
	for data, want := range map[string]int{`{"call":1,"value":2}`: 1, `{"call":"a","value":2}`: 0, `{"call":2,"value":2}`: -1, `{"call":"c","value":2}`: -1,
		`{"call":0}`: -1, `{"call":null,"value":2}`: -1, `{"call":0,"value":"2"}`: -1, `{"value":2}`: -1, `[]`: -1} {
		if k, v := callReward([]byte(data), calls); k != want || k >= 0 && v != 2 {
			t.Errorf("%s: call %d, value %g", data, k, v)
		}
	}
	o := Objective{CallRewards: true, Discount: 0.5}
	b := newBandit(t, 0, func(opt *Options) { opt.Objective = o; opt.Estimator = advantage.DrGRPO })
	all := []ended{b.roll(b.policy.Weights, 0, 0, 1, 1), b.roll(b.policy.Weights, 0, 0, 1, 2)}
	zero := 0.0
	for i := range all {
		all[i].line.Reward, all[i].callRewards = &zero, make([]float64, 2)
	}
	all[0].callRewards = []float64{0, 1}
	if _, err := assign(advantage.DrGRPO, o, all); err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(all[0].advantages, []float64{0.25, 0.5}) || !slices.Equal(all[1].advantages, []float64{-0.25, -0.5}) {
		t.Errorf("advantages %v and %v", all[0].advantages, all[1].advantages)
	}
	batches, err := split(all, 1, 1, 0, o)
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range batches[0].rows {
		var got []float64
		for j, m := range r.Mask {
			if m != 0 {
				got = append(got, math.Abs(r.Advantages[j]))
			}
		}
		if !slices.Equal(got, []float64{0.25, 0.25, 0.5}) {
			t.Errorf("tokens have %v", got)
		}
	}
}

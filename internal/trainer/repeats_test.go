package trainer

import "testing"

// Several runs of a row are other rollouts with other samples; what they say
// together is over rows.
func TestEvaluationRunsEachRowSeveralTimes(t *testing.T) {
	dir := t.TempDir()
	st, e := openStore(t, dir), newBigram(vocab)
	for i := range tasks { // some answers it knows, others it draws
		e.Weights[i*vocab+i+tasks] = float64(i%3) * 2.5
	}
	o := options(dir, st, e)
	o.EvaluationRuns = 4
	stop := (&agents{st: st, gen: e, slots: 2}).start(t.Context(), t)
	ev, err := Evaluate(t.Context(), o, Request{Part: "eval", Number: 1, Rows: rows(12), Version: 3})
	if err != nil {
		t.Fatal(err)
	}
	o.NoGreedy = true
	sampled, err := Evaluate(t.Context(), o, Request{Part: "eval", Number: 2, Rows: rows(12), Version: 3})
	stop()
	if err != nil {
		t.Fatal(err)
	}
	if _, has := sampled.values("val")["val/pass@1_greedy"]; has || sampled.Greedy.Rollouts != 0 || len(sampled.Lines) != 48 || sampled.Sampled.Repeats == nil {
		t.Errorf("without greedy ones: %+v", sampled)
	}
	r := ev.Sampled.Repeats
	if ev.Sampled.Rollouts != 48 || ev.Greedy.Rollouts != 12 || ev.Greedy.Repeats != nil || r == nil || r.Tasks != 12 || r.Runs != 4 {
		t.Fatalf("got %+v, %+v", ev.Sampled, r)
	}
	if r.Pass.Value != ev.Sampled.Rate || !(r.PassAll.Value < r.Pass.Value && r.Pass.Value < r.PassAny.Value) || r.FlipRate.Value <= 0 || r.Unstable == 0 {
		t.Errorf("got %+v", r)
	}
	if v := ev.values("val"); v["val/pass@k"] != r.PassAny.Value || v["val/pass^k_low"] != r.PassAll.Low || v["val/flips"] != r.FlipRate.Value || v["val/runs"] != 4 {
		t.Errorf("metrics are %v", v)
	}
}

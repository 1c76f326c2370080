package gateway

import (
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/fulgur-rl/fulgur"
	"github.com/fulgur-rl/fulgur/internal/gateway/call"
)

// v1's rule: sorted endpoints, the first 8 bytes of sha256(rollout id) modulo
// their number. The wanted ones were seen on v1's server.
func TestPickIsV1s(t *testing.T) {
	list := []fulgur.Endpoint{{URL: "http://h/c/v1/"}, {URL: "http://h/a/v1"}, {URL: "http://h/b/v1"}}
	for id, want := range map[string]string{"tr-p0": "http://h/c/v1/", "tr-p1": "http://h/c/v1/", "tr-p2": "http://h/b/v1", "tr-p3": "http://h/a/v1",
		"tr-p4": "http://h/b/v1", "tr-p5": "http://h/c/v1/"} {
		if got := pick(list, id); got.URL != want {
			t.Errorf("%s goes to %s, want %s", id, got.URL, want)
		}
	}
}

// What a server answers although the gateway could not read it was sampled
// nobody knows how: it does not train.
func TestUnreadParametersAreOffContract(t *testing.T) {
	req := &call.Request{}
	to := &target{spec: &fulgur.RolloutSpec{ID: "r"}, mode: fulgur.ModeTrain}
	if decide(req, to, 0, &Options{}).offContract {
		t.Error("a plain call is off contract")
	}
	req.Invalid = fulgur.E(fulgur.KindInvalid, "read", `The field "top_p" has the wrong type: got a JSON string`, nil)
	if !decide(req, to, 0, &Options{}).offContract {
		t.Error("a call with a top_p that is text counts as one without")
	}
}

// Where a run fixes nothing the server's temperatures are forced, v1's way;
// plain calls have the client's own.
func TestTemperatures(t *testing.T) {
	train, val, wish := 0.9, 0.25, 0.3
	req := &call.Request{Wishes: call.Wishes{Temperature: &wish}}
	spec := &fulgur.RolloutSpec{ID: "r"}
	for is, c := range map[string]struct {
		spec  *fulgur.RolloutSpec
		mode  fulgur.Mode
		train *float64
		want  float64
		force bool
	}{
		"train":              {spec, fulgur.ModeTrain, &train, 0.9, true},
		"validation":         {spec, fulgur.ModeVal, &train, 0.25, true},
		"nothing is forced":  {spec, fulgur.ModeTrain, nil, 0.3, false},
		"plain":              {nil, fulgur.ModeVal, &train, 0.3, false},
		"greedy":             {&fulgur.RolloutSpec{Greedy: true, Sampling: &fulgur.Sampling{Temperature: 1}}, fulgur.ModeVal, &train, 0, true},
		"the run's is first": {&fulgur.RolloutSpec{Sampling: &fulgur.Sampling{Temperature: 0.8}}, fulgur.ModeTrain, &train, 0.8, true},
	} {
		t.Run(is, func(t *testing.T) {
			opts := &Options{TrainTemperature: c.train, ValTemperature: &val}
			if d := decide(req, &target{spec: c.spec, mode: c.mode}, 0, opts); d.sampling.Temperature != c.want || d.force != c.force {
				t.Errorf("%+v", d)
			}
		})
	}
}

func TestMetricsAreShared(t *testing.T) {
	r := prometheus.NewRegistry()
	a, b := newMetrics(r), newMetrics(r)
	c := &fulgur.Call{Dialect: "openai-chat", Mode: fulgur.ModeTrain, HTTPStatus: 200, Fate: fulgur.FateDelivered, Retries: 2,
		Usage: &fulgur.Usage{PromptTokens: 3, CompletionTokens: 4}, Untrainable: []string{fulgur.UntrainableSampling}}
	a.done(c, 0)
	b.done(c, 0)
	families, err := r.Gather()
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]float64{}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			got[f.GetName()] += m.GetCounter().GetValue()
		}
	}
	for name, want := range map[string]float64{"fulgur_gateway_calls_total": 2, "fulgur_gateway_untrainable_total": 2,
		"fulgur_gateway_upstream_retries_total": 4, "fulgur_gateway_tokens_total": 14} {
		if got[name] != want {
			t.Errorf("%s is %v, want %v", name, got[name], want)
		}
	}
}

// qwen-code drops a request that has no status line after 120 s, and clients drop a
// stream that is silent for 240 (harnesses.md 2 and 3).
func TestDefaultsThatHarnessesStand(t *testing.T) {
	o := Options{}.defaults()
	if o.SpaceAfter > 100*time.Second || o.KeepAlive > 15*time.Second || o.HoldLimit < time.Minute {
		t.Errorf("headers after %s, signs of life every %s, held at most %s", o.SpaceAfter, o.KeepAlive, o.HoldLimit)
	}
}

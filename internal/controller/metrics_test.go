package controller_test

import (
	"fmt"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil/promlint"

	"github.com/fulgur-rl/fulgur/internal/controller"
	"github.com/fulgur-rl/fulgur/internal/controller/plan"
	"github.com/fulgur-rl/fulgur/internal/controller/runnertest"
)

// Queue depth, what agents do, how long starts took, and why attempts were followed by
// others are metrics, under names as Prometheus wants them.
func TestMetrics(t *testing.T) {
	h := open(t)
	cl := &cluster{runs: map[plan.Key]bool{}}
	r, c, _ := h.outside(cl, controller.Options{Limits: plan.Limits{Slots: 2, Table: plan.Table{Retries: 3}}, RunWindow: -1})
	reg := prometheus.NewRegistry()
	reg.MustRegister(controller.NewCollector(c))
	value := func() map[string]float64 {
		families, err := reg.Gather()
		if err != nil {
			t.Fatal(err)
		}
		if problems, err := promlint.NewWithMetricFamilies(families).Lint(); err != nil || len(problems) > 0 {
			t.Errorf("%+v, %v", problems, err)
		}
		out := map[string]float64{}
		for _, f := range families {
			for _, m := range f.GetMetric() {
				name := f.GetName()
				for _, l := range m.GetLabel() {
					if l.GetName() != "run" && l.GetName() != "runner" {
						name += " " + l.GetValue()
					}
				}
				out[name] = m.GetGauge().GetValue() + m.GetCounter().GetValue() + float64(m.GetHistogram().GetSampleCount())
			}
		}
		return out
	}
	wait := func(want map[string]float64) {
		t.Helper()
		runnertest.Until(t, fmt.Sprint(want), func() bool {
			got := value()
			for name, v := range want {
				if got["fulgur_controller_"+name] != v {
					return false
				}
			}
			return true
		})
	}
	ids := h.create(nil, "", "", "", "", "")
	wait(map[string]float64{"queued": 3, "executions running": 2, "executions waiting": 0, "started_total": 2, "start_seconds": 2})
	r.events <- controller.Event{Key: plan.Key{Rollout: ids[0], Attempt: "0"}, Exit: &plan.Exit{Code: -1, Failure: "node_lost", Cause: plan.CauseTransient}}
	r.events <- controller.Event{Key: plan.Key{Rollout: ids[1], Attempt: "0"}, Exit: &plan.Exit{}}
	wait(map[string]float64{"retries_total node_lost": 1, "outcomes_total infrastructure node_lost": 1, "outcomes_total ok no_calls": 1, "start_seconds": 4, "executions running": 2})
}

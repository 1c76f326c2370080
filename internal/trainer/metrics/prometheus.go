package metrics

import (
	"fmt"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/fulgur-rl/fulgur"
)

// Gauges shows the newest record as Prometheus gauges: fulgur_trainer_value with
// the labels run and name, and fulgur_trainer_step with the label run.
type Gauges struct {
	reg   prometheus.Registerer
	value *prometheus.GaugeVec
	step  *prometheus.GaugeVec
	run   string
}

// NewGauges registers the gauges; Close takes them out again.
func NewGauges(reg prometheus.Registerer, run fulgur.RunID) (*Gauges, error) {
	g := &Gauges{
		reg: reg, run: string(run),
		value: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "fulgur_trainer_value", Help: "What the last training step measured, by name.",
		}, []string{"run", "name"}),
		step: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "fulgur_trainer_step", Help: "The last finished training step.",
		}, []string{"run"}),
	}
	for _, c := range []prometheus.Collector{g.value, g.step} {
		if err := reg.Register(c); err != nil {
			return nil, fmt.Errorf("registering the trainer's gauges: %w", err)
		}
	}
	return g, nil
}

// Write sets the gauges.
func (g *Gauges) Write(r Record) error {
	for name, v := range r.Values {
		g.value.WithLabelValues(g.run, name).Set(v)
	}
	g.step.WithLabelValues(g.run).Set(float64(r.Step))
	return nil
}

// Close unregisters the gauges.
func (g *Gauges) Close() error {
	g.reg.Unregister(g.value)
	g.reg.Unregister(g.step)
	return nil
}

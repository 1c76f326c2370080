package controller

import (
	"strings"

	"github.com/prometheus/client_golang/prometheus"
)

// Collector gives a controller's Stats to Prometheus, labelled with its run.
type Collector struct {
	c                                                       *Controller
	queued, executions, started, retries, outcomes, latency *prometheus.Desc
}

// NewCollector returns what is to be registered.
func NewCollector(c *Controller) *Collector {
	labels := prometheus.Labels{"run": string(c.o.Run), "runner": c.runner.Name()}
	desc := func(name, help string, variable ...string) *prometheus.Desc {
		return prometheus.NewDesc("fulgur_controller_"+name, help, variable, labels)
	}
	return &Collector{c,
		desc("queued", "Rollouts that wait for an agent, with those that wait for a new attempt."),
		desc("executions", "Agents by what they do: starting, waiting (for a quota or an admission), running, grading (ended, and without a slot).", "phase"),
		desc("started_total", "Agents that ran."),
		desc("retries_total", "Attempts that another one followed, by why they ended.", "reason"),
		desc("outcomes_total", "Attempts that ended, by class and reason.", "class", "reason"),
		desc("start_seconds", "From a rollout's creation to its first agent's start, so with what it waited for a slot."),
	}
}

// Describe implements prometheus.Collector.
func (m *Collector) Describe(out chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{m.queued, m.executions, m.started, m.retries, m.outcomes, m.latency} {
		out <- d
	}
}

// Collect implements prometheus.Collector.
func (m *Collector) Collect(out chan<- prometheus.Metric) {
	s := m.c.Stats()
	send := func(d *prometheus.Desc, kind prometheus.ValueType, v float64, labels ...string) {
		out <- prometheus.MustNewConstMetric(d, kind, v, labels...)
	}
	send(m.queued, prometheus.GaugeValue, float64(s.Queued))
	send(m.executions, prometheus.GaugeValue, float64(s.Starting), "starting")
	send(m.executions, prometheus.GaugeValue, float64(s.Waiting), "waiting")
	send(m.executions, prometheus.GaugeValue, float64(s.Running), "running")
	send(m.executions, prometheus.GaugeValue, float64(s.Grading), "grading")
	send(m.started, prometheus.CounterValue, float64(s.Started))
	for reason, n := range s.RetriesBy {
		send(m.retries, prometheus.CounterValue, float64(n), reason)
	}
	for way, n := range s.Outcomes {
		class, reason, _ := strings.Cut(way, "/")
		send(m.outcomes, prometheus.CounterValue, float64(n), class, reason)
	}
	within := make(map[float64]uint64, len(startBounds))
	for i, bound := range startBounds {
		within[bound] = s.Starts.Within[i]
	}
	out <- prometheus.MustNewConstHistogram(m.latency, s.Starts.Count, s.Starts.Sum, within)
}

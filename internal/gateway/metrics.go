package gateway

import (
	"errors"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/fulgur-rl/fulgur"
)

// metrics are the gateway's Prometheus metrics.
type metrics struct {
	calls       *prometheus.CounterVec
	refused     *prometheus.CounterVec
	untrainable *prometheus.CounterVec
	auxiliary   *prometheus.CounterVec
	forced      *prometheus.CounterVec
	ejections   prometheus.Counter
	ejected     prometheus.Gauge
	tokens      *prometheus.CounterVec
	retries     prometheus.Counter
	joined      prometheus.Counter
	lost        prometheus.Counter
	seconds     *prometheus.HistogramVec
	inflight    prometheus.Gauge
	held        prometheus.Gauge
}

func newMetrics(r prometheus.Registerer) *metrics {
	counter := func(name, help string, labels ...string) *prometheus.CounterVec {
		return register(r, prometheus.NewCounterVec(prometheus.CounterOpts{Namespace: "fulgur", Subsystem: "gateway", Name: name, Help: help}, labels))
	}
	gauge := func(name, help string) prometheus.Gauge {
		return register(r, prometheus.NewGauge(prometheus.GaugeOpts{Namespace: "fulgur", Subsystem: "gateway", Name: name, Help: help}))
	}
	single := func(name, help string) prometheus.Counter {
		return register(r, prometheus.NewCounter(prometheus.CounterOpts{Namespace: "fulgur", Subsystem: "gateway", Name: name, Help: help}))
	}
	return &metrics{
		calls:       counter("calls_total", "Model calls that were answered, by dialect, mode, HTTP status and what became of the client.", "dialect", "mode", "status", "fate"),
		refused:     counter("refused_total", "Requests that never became a call, by kind of error; paused: while calls were paused; rate, concurrency, bodies: above an attempt's limit.", "kind"),
		untrainable: counter("untrainable_total", "Calls on record that do not train, by reason.", "reason"),
		auxiliary:   counter("auxiliary_total", "Calls that a rule labelled as not the agent's own conversation, by rule.", "rule"),
		forced:      counter("forced_total", "Calls whose sampling parameter was replaced by the run's, by parameter.", "parameter"),
		ejections:   single("endpoint_ejections_total", "Times that a model server failed and got no calls for a while."),
		ejected:     gauge("endpoints_ejected", "Model servers that get no calls for a while, because they failed."),
		tokens:      counter("tokens_total", "Tokens of calls, by kind: prompt, cached, sampled.", "kind"),
		retries:     single("upstream_retries_total", "Tries after the first one, to model servers."),
		joined:      single("joined_total", "Retries of clients that were answered by the generation that they repeat."),
		lost:        single("record_failures_total", "Calls that could not be put on record; their clients got an error."),
		seconds: register(r, prometheus.NewHistogramVec(prometheus.HistogramOpts{Namespace: "fulgur", Subsystem: "gateway", Name: "call_seconds",
			Help: "Time from a call's arrival to its record.", Buckets: prometheus.ExponentialBuckets(0.001, 2.5, 14)}, []string{"dialect"})),
		inflight: gauge("in_flight", "Calls at an upstream now."),
		held:     gauge("held", "Calls that are held on pause now."),
	}
}

// register registers a collector, or takes the one that is there: two gateways
// of one process share theirs.
func register[C prometheus.Collector](r prometheus.Registerer, c C) C {
	if r == nil {
		return c
	}
	err := r.Register(c)
	var dup prometheus.AlreadyRegisteredError
	if errors.As(err, &dup) {
		if old, ok := dup.ExistingCollector.(C); ok {
			return old
		}
	}
	return c
}

// force counts the parameters of a call that are not the client's.
func (m *metrics) force(names []string) {
	for _, n := range names {
		m.forced.WithLabelValues(n).Inc()
	}
}

func (m *metrics) done(c *fulgur.Call, took time.Duration) {
	m.calls.WithLabelValues(c.Dialect, string(c.Mode), strconv.Itoa(c.HTTPStatus), string(c.Fate)).Inc()
	m.seconds.WithLabelValues(c.Dialect).Observe(took.Seconds())
	for _, r := range c.Untrainable {
		m.untrainable.WithLabelValues(r).Inc()
	}
	if u := c.Usage; u != nil {
		m.tokens.WithLabelValues("prompt").Add(float64(max(0, u.PromptTokens)))
		m.tokens.WithLabelValues("cached").Add(float64(max(0, u.CachedTokens)))
		m.tokens.WithLabelValues("sampled").Add(float64(max(0, u.CompletionTokens)))
	}
	m.retries.Add(float64(c.Retries))
}

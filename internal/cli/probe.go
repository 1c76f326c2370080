package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/fulgur-rl/fulgur"
	"github.com/fulgur-rl/fulgur/internal/gateway"
	"github.com/fulgur-rl/fulgur/internal/store"
)

// probeLimit bounds what is learned of one endpoint; a server that is just
// starting is waited for.
const probeLimit = 2 * time.Minute

// prober looks once at each model server that a policy is given, and tells what
// it lacks: a run would show it only by calls that do not train (GW-19, UI-06).
type prober struct {
	gateway *gateway.Gateway
	log     *slog.Logger
	say     func(format string, args ...any)
	found   *prometheus.CounterVec
	lacks   *prometheus.GaugeVec

	// start runs a look, at most a few at once, in a context that ends with close:
	// it outlives the request that registers the server.
	start  func(look func(context.Context))
	cancel context.CancelFunc
	wg     sync.WaitGroup

	mu     sync.Mutex
	closed bool
	seen   map[probed]bool
}

type probed struct {
	kind       fulgur.EndpointKind
	url, model string
}

func newProber(g *gateway.Gateway, r prometheus.Registerer, log *slog.Logger, say func(string, ...any)) *prober {
	p := &prober{gateway: g, log: log, say: say, seen: map[probed]bool{},
		found: prometheus.NewCounterVec(prometheus.CounterOpts{Namespace: "fulgur", Subsystem: "gateway", Name: "probes_total",
			Help: "Model servers that were looked at when they were registered: whole, lacking or failed."}, []string{"found"}),
		lacks: prometheus.NewGaugeVec(prometheus.GaugeOpts{Namespace: "fulgur", Subsystem: "gateway", Name: "endpoint_lacks",
			Help: "1 for each thing that training needs and a model server did not give when it was registered."}, []string{"endpoint", "lack"}),
	}
	r.MustRegister(p.found, p.lacks)
	base, cancel := context.WithCancel(context.Background())
	slots := make(chan struct{}, 4)
	p.cancel = cancel
	p.start = func(look func(context.Context)) {
		p.wg.Go(func() {
			slots <- struct{}{}
			defer func() { <-slots }()
			ctx, done := context.WithTimeout(base, probeLimit)
			defer done()
			look(ctx)
		})
	}
	return p
}

// close ends the looks that are under way.
func (p *prober) close() {
	p.mu.Lock()
	p.closed = true
	p.mu.Unlock()
	p.cancel()
	p.wg.Wait()
}

// look starts a look at each endpoint of a policy that is new.
func (p *prober) look(run fulgur.RunID, eps []fulgur.Endpoint) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return
	}
	for _, ep := range eps {
		key := probed{ep.Kind, ep.URL, ep.Model}
		if p.seen[key] || strings.HasPrefix(ep.URL, "inproc") {
			continue
		}
		p.seen[key] = true
		p.start(func(ctx context.Context) {
			if found := p.gateway.Probe(ctx, run, ep); !errors.Is(ctx.Err(), context.Canceled) {
				p.tell(found)
			}
		})
	}
}

func (p *prober) tell(found gateway.Probe) {
	ep := found.Endpoint
	switch {
	case found.Failed != "":
		p.found.WithLabelValues("failed").Inc()
		p.lacks.WithLabelValues(ep.URL, "answers").Set(1)
		p.say("warning: the model server %s (%s, %s) does not answer a call: %s", ep.URL, ep.Model, ep.Kind, found.Failed)
	case len(found.Lacks) > 0:
		p.found.WithLabelValues("lacking").Inc()
		for _, n := range found.Lacks {
			p.lacks.WithLabelValues(ep.URL, string(n)).Set(1)
		}
		p.say("%s", probeTable(found))
	default:
		p.found.WithLabelValues("whole").Inc()
		p.log.Info("model server", "url", ep.URL, "model", ep.Model, "kind", ep.Kind, "gives", "all that training needs", "log_probs", found.LogProbs)
	}
}

// probeTable is what a model server gives and lacks, a line each.
func probeTable(found gateway.Probe) string {
	ep := found.Endpoint
	var b strings.Builder
	fmt.Fprintf(&b, "warning: calls to the model server %s (%s, %s) will not train:", ep.URL, ep.Model, ep.Kind)
	for _, n := range gateway.Needs {
		state := "yes"
		if slices.Contains(found.Lacks, n) {
			state = "missing"
		} else if n == gateway.NeedLogProbs {
			state = "yes, " + string(found.LogProbs)
		}
		fmt.Fprintf(&b, "\n  %-18s %s", n, state)
	}
	b.WriteString("\n  vLLM gives all of them since 0.10.2 when it is asked, and it is asked; other servers through --model-dir and an endpoint of kind tokens")
	return b.String()
}

// registrar is the store as v2 sees it: endpoints that are registered are looked
// at. Those of v1's trainers are not, whose servers expect v1's calls alone.
type registrar struct {
	*store.Store
	prober *prober
}

// PutEndpoints is the store's.
func (r registrar) PutEndpoints(ctx context.Context, run fulgur.RunID, model string, eps []fulgur.Endpoint) error {
	err := r.Store.PutEndpoints(ctx, run, model, eps)
	if err == nil {
		r.lookAt(ctx, run, model, eps)
	}
	return err
}

// lookAt has the policy's endpoints looked at: other models are somebody else's
// servers, and never train.
func (r registrar) lookAt(ctx context.Context, id fulgur.RunID, model string, eps []fulgur.Endpoint) {
	run, err := r.Run(ctx, id)
	if err != nil {
		return // it has just been deleted
	}
	var of []fulgur.Endpoint
	for _, ep := range eps {
		if ep.Model = cmp.Or(ep.Model, model); run.Model == "" || ep.Model == run.Model {
			of = append(of, ep)
		}
	}
	r.prober.look(id, of)
}

// lookAtAll has the endpoints that are on record looked at, at a server's start.
func (r registrar) lookAtAll(ctx context.Context) error {
	runs, err := r.Runs(ctx)
	if err != nil {
		return err
	}
	for _, run := range runs {
		if run.EndedAt != nil {
			continue
		}
		eps, err := r.Endpoints(ctx, run.ID, "")
		if err != nil {
			return err
		}
		r.lookAt(ctx, run.ID, run.Model, eps)
	}
	return nil
}

package cli

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/fulgur-rl/fulgur"
	"github.com/fulgur-rl/fulgur/internal/api"
	v1 "github.com/fulgur-rl/fulgur/internal/api/v1"
	v2 "github.com/fulgur-rl/fulgur/internal/api/v2"
	"github.com/fulgur-rl/fulgur/internal/controller"
	"github.com/fulgur-rl/fulgur/internal/engine"
	"github.com/fulgur-rl/fulgur/internal/engine/tinker"
	"github.com/fulgur-rl/fulgur/internal/gateway"
	"github.com/fulgur-rl/fulgur/internal/gateway/dialect"
	"github.com/fulgur-rl/fulgur/internal/gateway/dialect/anthropic"
	"github.com/fulgur-rl/fulgur/internal/gateway/dialect/openaichat"
	"github.com/fulgur-rl/fulgur/internal/gateway/dialect/openaicompletions"
	"github.com/fulgur-rl/fulgur/internal/gateway/dialect/openairesponses"
	"github.com/fulgur-rl/fulgur/internal/gateway/render"
	"github.com/fulgur-rl/fulgur/internal/gateway/sampler"
	"github.com/fulgur-rl/fulgur/internal/gateway/sampler/chat"
	"github.com/fulgur-rl/fulgur/internal/gateway/sampler/tokens"
	"github.com/fulgur-rl/fulgur/internal/store"
)

// serverOptions say what the serving half of the house is made of.
type serverOptions struct {
	Store         string // "sqlite:PATH", "sqlite::memory:", "postgres://…"
	Power         bool
	Listen        string
	Key           string // server key; "": open
	Gateway       gateway.Options
	Renderer      *render.Renderer // nil: no endpoint of kind tokens can be served
	Local         engine.Generator // of inproc endpoints; nil: none
	ContextLength int
	Limits        modelLimits // of the renderer's model, for servers that check nothing
	History       string
	Retry         sampler.Retry
	NoLogProbs    bool
	RoutedExperts bool            // training calls ask for them
	AgentsRead    bool            // attempts may read their own rollout over v1
	Events        api.EventLimits // of what agents post
	Artifacts     int64           // bytes that an attempt may leave; 0: 512 MiB, negative: nothing
	// Probe, if not nil, says what is found of model servers: each is looked at when
	// it is registered, and at the start.
	Probe func(format string, args ...any)
	Log   *slog.Logger
}

// server is the serving half of the house: store, gateway and API behind one
// listener.
type server struct {
	store    *store.Store
	gateway  *gateway.Gateway
	registry *prometheus.Registry
	tokens   *tokens.Sampler
	tinker   *tinker.Client
	http     *listener
	prober   *prober // nil: none looks
}

// URL is the server's base address.
func (s *server) URL() string { return s.http.url }

// openStore opens a store by its URL.
func openStore(ctx context.Context, url string, key string, power bool) (*store.Store, error) {
	d, err := storeDriver(url, power)
	if err != nil {
		return nil, err
	}
	return store.Open(ctx, d, store.Options{ServerKey: key})
}

// openServer takes its address, and then starts store, gateway, API and
// listener, in this order: a taken address leaves no store behind.
func openServer(ctx context.Context, o serverOptions) (_ *server, err error) {
	s := &server{registry: prometheus.NewRegistry()}
	s.registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	defer func() {
		if err != nil {
			err = errors.Join(err, s.close(ctx))
		}
	}()
	ln, err := bind(o.Listen)
	if err != nil {
		return nil, err
	}
	if s.store, err = openStore(ctx, o.Store, o.Key, o.Power); err != nil {
		return nil, errors.Join(err, ln.Close())
	}
	s.gateway = s.newGateway(o)
	if err := s.gateway.Restore(ctx); err != nil {
		return nil, errors.Join(err, ln.Close())
	}
	if o.Probe != nil {
		s.prober = newProber(s.gateway, s.registry, o.Log, o.Probe)
	}
	s.http = serveOn(ln, s.routes(o), o.Log)
	if s.prober != nil {
		return s, registrar{s.store, s.prober}.lookAtAll(ctx)
	}
	return s, nil
}

func (s *server) newGateway(o serverOptions) *gateway.Gateway {
	samplers := map[fulgur.EndpointKind]sampler.Sampler{
		fulgur.EndpointChat: chat.New(chat.Options{Retry: o.Retry, RoutedExperts: o.RoutedExperts}),
	}
	if o.Renderer != nil {
		s.tinker = tinker.New(tinker.Options{ContextLength: max(o.ContextLength, o.Limits.Context), VocabSize: o.Limits.Vocabulary,
			Tries: o.Retry.Tries, Backoff: o.Retry.Backoff, Total: o.Retry.Total})
		s.tokens = tokens.New(tokens.Options{
			Renderer: tokens.FromRender(o.Renderer), Local: o.Local, ContextLength: o.ContextLength,
			Vocabulary: o.Limits.Vocabulary, History: o.History, Records: s.store, Retry: o.Retry,
			Protocols: map[string]tokens.Open{tinker.Scheme: s.tinker.Generator},
		})
		samplers[fulgur.EndpointTokens] = s.tokens
	}
	g := o.Gateway
	g.Directory, g.Models, g.Records, g.Leases, g.Rules = s.store, s.store, s.store, s.store, defaultRules()
	g.Dialects = []dialect.Dialect{openaichat.New(), openaicompletions.Dialect{}, openairesponses.Dialect{}, anthropic.Dialect{}}
	g.Samplers = samplers
	g.Vocabulary = o.Limits.Vocabulary
	g.ServerKey, g.NoLogProbs, g.Metrics, g.Log = o.Key, o.NoLogProbs, s.registry, o.Log
	return gateway.New(g)
}

// routes puts every handler at its place: the gateway owns /proxy/rollout and
// the paths of the dialects, the API owns /api and v1's pause routes.
func (s *server) routes(o serverOptions) http.Handler {
	refused := prometheus.NewCounterVec(prometheus.CounterOpts{Namespace: "fulgur", Subsystem: "api", Name: "events_refused_total",
		Help: "Events of agents that were refused, by limit: size or nesting of one, concurrency, count or bytes of an attempt's."}, []string{"limit"})
	s.registry.MustRegister(refused)
	events := api.NewEventBudget(o.Events, s.store, func(limit string) { refused.WithLabelValues(limit).Inc() })
	var kept v2.Store = s.store
	if s.prober != nil {
		kept = registrar{s.store, s.prober}
	}
	two := v2.New(v2.Options{Store: kept, Events: events, MaxArtifact: o.Artifacts, Gate: s.gateway, Capabilities: api.Capabilities{Version: version(), APIs: []string{"v1", "v2"}, Features: features()}})
	one := v1.New(v1.Options{Store: s.store, Events: events, Pauser: pauser{s.gateway}, Own: s.ownRollout(o.AgentsRead)})
	mux := http.NewServeMux()
	for _, p := range s.gateway.Patterns() {
		mux.Handle(p, s.gateway.Handler())
	}
	mux.Handle("/api/v2/", two)
	mux.Handle("/docs", two)
	mux.Handle("/", one)
	mux.Handle("GET /metrics", s.forServerKey(promhttp.HandlerFor(s.registry, promhttp.HandlerOpts{})))
	mux.HandleFunc("GET "+streamPath, serveStream)
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, r *http.Request) {
		// A call that nobody has: an answer that comes from the database itself.
		if _, err := s.store.Call(r.Context(), "none"); fulgur.KindOf(err) != fulgur.KindNotFound {
			http.Error(w, "the store does not answer: "+fulgur.PublicMessage(err), http.StatusServiceUnavailable)
			return
		}
		fmt.Fprintln(w, "ok")
	})
	return mux
}

// forServerKey lets the server key in alone. Agents reach this listener too, and
// metrics tell of the run what an agent could learn to play to: rewards, how many
// rollouts of its group are done, that it is being validated.
func (s *server) forServerKey(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		who, err := api.Identify(r, s.store)
		if err == nil && who.Scope != fulgur.ScopeServer {
			err = fulgur.E(fulgur.KindForbidden, "", "this needs the server key", nil)
		}
		if err != nil {
			w.Header().Set("WWW-Authenticate", "Bearer")
			http.Error(w, fulgur.PublicMessage(err)+": give the server key, Authorization: Bearer KEY", fulgur.KindOf(err).HTTPStatus())
			return
		}
		h.ServeHTTP(w, r)
	})
}

// ownRollout is what agents may see of their rollouts over v1: nothing, unless
// the server (all) or the run says compat v1-agents; never what is withheld.
func (s *server) ownRollout(all bool) func(context.Context, fulgur.Rollout) (fulgur.Rollout, bool) {
	return func(ctx context.Context, r fulgur.Rollout) (fulgur.Rollout, bool) {
		if !all {
			var own struct {
				Compat []string `json:"compat"`
			}
			run, err := s.store.Run(ctx, r.Run)
			if err != nil || json.Unmarshal(run.Config, &own) != nil || !slices.Contains(own.Compat, compatAgents) {
				return fulgur.Rollout{}, false
			}
		}
		r.Input = controller.Withhold(r.Input, r.Withhold)
		return r, true
	}
}

// compatAgents lets agents read their own rollout, as v1's do.
const compatAgents = "v1-agents"

// close ends what openServer started, in reverse: no new calls, then those in
// flight, then the record.
func (s *server) close(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
	defer cancel()
	var errs []error
	if s.prober != nil {
		s.prober.close()
	}
	if s.gateway != nil {
		errs = append(errs, s.gateway.Close(ctx))
	}
	if s.http != nil {
		errs = append(errs, s.http.close(ctx))
	}
	if s.tokens != nil {
		errs = append(errs, s.tokens.Close(), s.tinker.Close())
	}
	if s.store != nil {
		errs = append(errs, s.store.Close())
	}
	return errors.Join(errs...)
}

// listener is an HTTP server on an address of its own.
type listener struct {
	srv  *http.Server
	url  string
	done chan struct{}
	// cancel ends the requests that last until they are told: watches.
	cancel context.CancelFunc
}

// bind takes an address.
func bind(addr string) (net.Listener, error) {
	ln, err := net.Listen("tcp", addr)
	if err != nil {
		return nil, fulgur.E(fulgur.KindExhausted, "listen on "+addr,
			"the address is taken or not ours: stop what uses it, or choose another (serve: --listen, train: --set listen=…; port 0: any free one)", err)
	}
	return ln, nil
}

// listen serves h at addr until close.
func listen(addr string, h http.Handler, log *slog.Logger) (*listener, error) {
	ln, err := bind(addr)
	if err != nil {
		return nil, err
	}
	return serveOn(ln, h, log), nil
}

// serveOn serves h on a listener that it takes over, until close.
func serveOn(ln net.Listener, h http.Handler, log *slog.Logger) *listener {
	host := ln.Addr().String()
	if tcp, ok := ln.Addr().(*net.TCPAddr); ok && tcp.IP.IsUnspecified() {
		host = fmt.Sprintf("127.0.0.1:%d", tcp.Port)
	}
	base, cancel := context.WithCancel(context.Background())
	l := &listener{url: "http://" + host, done: make(chan struct{}), cancel: cancel, srv: &http.Server{
		BaseContext: func(net.Listener) context.Context { return base },
		Handler:     gateway.BoundBodies(h, gateway.BodyLimit), ReadHeaderTimeout: 20 * time.Second, IdleTimeout: 5 * time.Minute, MaxHeaderBytes: 1 << 20,
		ErrorLog: slog.NewLogLogger(log.Handler(), slog.LevelWarn), // a handler that panicked is told there
	}}
	go func() {
		defer close(l.done)
		if err := l.srv.Serve(ln); !errors.Is(err, http.ErrServerClosed) {
			log.Error("the HTTP server ended", "err", err)
		}
	}()
	return l
}

// close drains the server until ctx ends, then cuts what is left.
func (l *listener) close(ctx context.Context) error {
	grace, done := context.WithTimeout(ctx, 2*time.Second)
	defer done()
	l.cancel()
	if l.srv.Shutdown(grace) != nil {
		_ = l.srv.Close()
	}
	<-l.done
	return nil
}

// newKey makes a random server key.
func newKey() string { return "fulgur-" + strings.ToLower(rand.Text()) }

// logger logs to w at a level named as in the run file.
func (a *app) logger(level string) *slog.Logger {
	var l slog.Level
	if l.UnmarshalText([]byte(level)) != nil {
		l = slog.LevelInfo
	}
	return slog.New(slog.NewTextHandler(a.Stderr, &slog.HandlerOptions{Level: l}))
}

// fileLogger logs to a file in the run's folder.
func fileLogger(d runDir, level string) (*slog.Logger, func() error, error) {
	f, err := os.OpenFile(d.path("fulgur.log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return nil, nil, fulgur.E(fulgur.KindExhausted, "open the log", "the run's folder can't be written", err)
	}
	var l slog.Level
	if l.UnmarshalText([]byte(level)) != nil {
		l = slog.LevelInfo
	}
	return slog.New(slog.NewTextHandler(f, &slog.HandlerOptions{Level: l})), f.Close, nil
}

// features are what a client may ask this server for.
func features() []string {
	return []string{"openai-chat", "openai-completions", "openai-responses", "anthropic-messages", "streaming", "tokens", "hold", "credentials"}
}

// pauser is the gateway as v1's pause routes see it.
type pauser struct{ g *gateway.Gateway }

func (p pauser) PauseAll(retryAfter int, reason *string) v1.Pause {
	return v1.Pause(p.g.PauseAll(retryAfter, reason))
}
func (p pauser) ResumeAll() v1.Pause { return v1.Pause(p.g.ResumeAll()) }
func (p pauser) StateAll() v1.Pause  { return v1.Pause(p.g.StateAll()) }

// Package v2 serves Fulgur's own control API under /api/v2: runs, rollouts,
// attempts, records, models, pauses, and the watch that trainer and controller
// react to. It is described by /api/v2/openapi.json and a page at /docs.
package v2

import (
	"context"
	_ "embed"
	"net/http"
	"slices"
	"time"

	"github.com/danielgtaylor/huma/v2"
	"github.com/danielgtaylor/huma/v2/adapters/humago"
	"github.com/fulgur-rl/fulgur"
	"github.com/fulgur-rl/fulgur/internal/api"
)

// What the API asks of the store, in groups.
type (
	// Runs keeps runs, leases and endpoints.
	Runs interface {
		PutRun(ctx context.Context, r fulgur.Run) error
		Run(ctx context.Context, id fulgur.RunID) (fulgur.Run, error)
		Runs(ctx context.Context) ([]fulgur.Run, error)
		AcquireLease(ctx context.Context, run fulgur.RunID, name, holder string, ttl time.Duration) (fulgur.Lease, error)
		Lease(ctx context.Context, run fulgur.RunID, name string) (fulgur.Lease, error)
		ReleaseLease(ctx context.Context, run fulgur.RunID, name, holder string) error
		PutEndpoints(ctx context.Context, run fulgur.RunID, model string, eps []fulgur.Endpoint) error
		Endpoints(ctx context.Context, run fulgur.RunID, model string) ([]fulgur.Endpoint, error)
	}
	// Rollouts keeps rollouts and their attempts.
	Rollouts interface {
		CreateRollouts(ctx context.Context, specs []fulgur.RolloutSpec) ([]fulgur.Rollout, error)
		Rollout(ctx context.Context, id fulgur.RolloutID) (fulgur.Rollout, error)
		Rollouts(ctx context.Context, q fulgur.RolloutQuery) ([]fulgur.Rollout, error)
		Terminal(ctx context.Context, after, limit int) (fulgur.TerminalPage, error)
		EndRollout(ctx context.Context, id fulgur.RolloutID, o fulgur.Outcome) (fulgur.Rollout, error)
		SetReward(ctx context.Context, id fulgur.RolloutID, a fulgur.AttemptID, value float64, source string) error
		OpenAttempt(ctx context.Context, id fulgur.RolloutID) (fulgur.OpenedAttempt, error)
		OpenAttempts(ctx context.Context, ids []fulgur.RolloutID) ([]fulgur.OpenedAttempt, error)
		ReportAttempt(ctx context.Context, id fulgur.RolloutID, a fulgur.AttemptID, r fulgur.AttemptReport) (fulgur.Rollout, error)
		Attempts(ctx context.Context, id fulgur.RolloutID) ([]fulgur.Attempt, error)
		SetRewards(ctx context.Context, rs []fulgur.Reward) error
		ReportAttempts(ctx context.Context, rs []fulgur.Report) error
	}
	// Records keeps calls and events, and tells what changed.
	Records interface {
		Records(ctx context.Context, ids []fulgur.RolloutID) ([]fulgur.Record, error)
		Calls(ctx context.Context, id fulgur.RolloutID, a fulgur.AttemptID) ([]fulgur.Call, error)
		Call(ctx context.Context, id fulgur.CallID) (fulgur.Call, error)
		AppendEvent(ctx context.Context, ev fulgur.Event) (fulgur.Event, error)
		Events(ctx context.Context, id fulgur.RolloutID, a fulgur.AttemptID) ([]fulgur.Event, error)
		Head(ctx context.Context) (fulgur.Seq, error)
		Changes(ctx context.Context, run fulgur.RunID, after fulgur.Seq) ([]fulgur.Change, error)
	}
	// Identifier says who presents a secret.
	Identifier interface {
		Identify(ctx context.Context, secret string) (fulgur.Identity, error)
	}
	// Store is all of these.
	Store interface {
		Runs
		Rollouts
		Records
		Artifacts
		Identifier
	}
	// Gate holds calls and knows what they do; the gateway is one.
	Gate interface {
		PauseCalls(ctx context.Context, run fulgur.RunID, p fulgur.PauseRequest) (fulgur.Pause, error)
		ResumeCalls(ctx context.Context, run fulgur.RunID, owner string) (fulgur.Pause, error)
		PauseState(ctx context.Context, run fulgur.RunID) (fulgur.Pause, error)
		Activity(ctx context.Context, id fulgur.RolloutID, a fulgur.AttemptID) (fulgur.Activity, error)
		Activities(ctx context.Context, keys []fulgur.AttemptKey) ([]fulgur.Activity, error)
	}
)

// Options are what the API serves.
type Options struct {
	Store        Store
	Gate         Gate // nil: a server without a gateway; its routes answer 400
	Capabilities api.Capabilities
	Heartbeat    time.Duration // of a watch; 0: 15 s
	MaxBody      int64         // bytes of a request; 0: 64 MiB
	// MaxArtifact is how many bytes an attempt may leave with its own credential; 0: 512 MiB,
	// negative: nothing.
	MaxArtifact int64
	// Events bounds what agents post; nil: the default limits.
	Events *api.EventBudget
}

// Prefix is where the API's routes are.
const Prefix = "/api/v2"

//go:embed docs.html
var docsPage []byte

// New returns the handler of /api/v2/… and /docs.
func New(o Options) http.Handler {
	if o.Heartbeat == 0 {
		o.Heartbeat = 15 * time.Second
	}
	if o.MaxBody == 0 {
		o.MaxBody = 64 << 20
	}
	if o.MaxArtifact == 0 {
		o.MaxArtifact = 512 << 20
	}
	if o.Events == nil {
		o.Events = api.NewEventBudget(api.EventLimits{}, o.Store, nil)
	}
	if o.Gate == nil {
		o.Gate = noGate{}
	}
	mux := http.NewServeMux()
	config := huma.DefaultConfig("Fulgur", o.Capabilities.Version)
	config.OpenAPIPath, config.DocsPath, config.SchemasPath = Prefix+"/openapi", "", ""
	config.CreateHooks = nil // no $schema in answers
	config.Transformers = append(config.Transformers, withKind)
	config.Components.SecuritySchemes = map[string]*huma.SecurityScheme{
		"bearer": {Type: "http", Scheme: "bearer"},
		"header": {Type: "apiKey", In: "header", Name: "x-api-key"},
	}
	config.Security = []map[string][]string{{"bearer": {}}, {"header": {}}}
	s := &server{Options: o, api: humago.New(mux, config)}
	s.routes()
	s.artifactRoutes(mux)
	amend(s.api.OpenAPI().Components.Schemas.Map())
	mux.HandleFunc("GET /docs", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/html; charset=utf-8")
		_, _ = w.Write(docsPage) // the reader may have left
	})
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, pattern := mux.Handler(r)
		if pattern == "" {
			mux.ServeHTTP(problemWriter{w}, r) // 404 or 405
			return
		}
		if open := r.URL.Path == "/docs" || r.URL.Path == Prefix+"/openapi.json" || r.URL.Path == Prefix+"/openapi.yaml" || pattern == readArtifact; !open {
			id, err := api.Identify(r, s.Store)
			if err != nil {
				writeProblem(w, err)
				return
			}
			if pattern != putArtifact { // it holds no body
				leave, err := s.Events.Read(w, r, id)
				if err != nil {
					writeProblem(w, err)
					return
				}
				defer leave()
			}
			r = r.WithContext(context.WithValue(r.Context(), identityKey{}, id))
		}
		mux.ServeHTTP(w, r)
	})
}

// withKind gives the framework's own problems (a body that is not as described)
// the kind that all of ours have.
func withKind(_ huma.Context, _ string, v any) (any, error) {
	m, ok := v.(*huma.ErrorModel)
	if !ok {
		return v, nil
	}
	kind := fulgur.KindInvalid
	if m.Status == http.StatusRequestEntityTooLarge {
		kind = fulgur.KindTooLarge
	}
	return struct {
		*huma.ErrorModel
		Kind fulgur.Kind `json:"kind"`
	}{m, kind}, nil
}

// amend adds to the schemas what is not in the Go types: how we write problems,
// and log probs that are no number.
func amend(schemas map[string]*huma.Schema) {
	schemas["ErrorModel"].Properties["kind"] = &huma.Schema{Type: huma.TypeString, Description: "what went wrong, in a word that programs branch on"}
	schemas["Call"].Properties["log_probs"].Items = &huma.Schema{OneOf: []*huma.Schema{
		{Type: huma.TypeNumber}, {Type: huma.TypeString, Enum: []any{"NaN", "+Inf", "-Inf"}}}}
}

type server struct {
	Options
	api huma.API
}

type identityKey struct{}

// allow says whether the caller may act as the server.
func allow(ctx context.Context) error {
	if id, _ := ctx.Value(identityKey{}).(fulgur.Identity); id.Scope != fulgur.ScopeServer {
		return fulgur.E(fulgur.KindForbidden, "", "this needs the server key: an attempt's credential is for its own model calls and events", nil)
	}
	return nil
}

// allowEvent says whether the caller may post an event of this type there.
func allowEvent(ctx context.Context, rollout fulgur.RolloutID, a fulgur.AttemptID, kind string) error {
	id, _ := ctx.Value(identityKey{}).(fulgur.Identity)
	switch {
	case id.Scope == fulgur.ScopeServer:
		return nil
	case id.Scope != fulgur.ScopeAttempt, id.Rollout != rollout, id.Attempt != a:
		return fulgur.E(fulgur.KindForbidden, "", "this credential is good for the events of its own attempt only", nil)
	case kind == "model_request":
		return fulgur.E(fulgur.KindForbidden, "", "model calls are recorded by the gateway, an agent cannot post them", nil)
	case id.Ended:
		return fulgur.E(fulgur.KindGone, "", "the attempt has ended", nil)
	}
	return nil
}

// op describes an operation; its id is made of method and path.
func op(method, path, summary string, change ...func(*huma.Operation)) huma.Operation {
	o := huma.Operation{Method: method, Path: Prefix + path, Summary: summary, OperationID: operationID(method, path),
		Errors: []int{400, 401, 403, 404, 409}}
	for _, f := range change {
		f(&o)
	}
	return o
}

func operationID(method, path string) string {
	out := []byte{}
	for _, c := range []byte(method + path) {
		switch {
		case c >= 'A' && c <= 'Z':
			out = append(out, c+'a'-'A')
		case c >= 'a' && c <= 'z' || c >= '0' && c <= '9':
			out = append(out, c)
		case c == '/':
			out = append(out, '-')
		}
	}
	return string(out)
}

func status(code int) func(*huma.Operation) {
	return func(o *huma.Operation) { o.DefaultStatus = code }
}

type body[T any] struct{ Body T }

// register adds an operation of the server key that answers with JSON.
func register[I, O any](s *server, o huma.Operation, f func(context.Context, *I) (O, error)) {
	o.MaxBodyBytes = s.MaxBody
	huma.Register(s.api, o, func(ctx context.Context, in *I) (*body[O], error) {
		if err := allow(ctx); err != nil {
			return nil, api.ProblemOf(err)
		}
		out, err := f(ctx, in)
		if err != nil {
			return nil, api.ProblemOf(err)
		}
		return &body[O]{out}, nil
	})
}

// list makes a nil list an empty one.
func list[T any](v []T, err error) ([]T, error) {
	if v == nil {
		v = []T{}
	}
	return v, err
}

func writeProblem(w http.ResponseWriter, err error) {
	p := api.ProblemOf(err)
	w.Header().Set("Content-Type", p.ContentType(""))
	if p.Status == http.StatusUnauthorized {
		w.Header().Set("WWW-Authenticate", "Bearer")
	}
	w.WriteHeader(p.Status)
	_, _ = w.Write(marshal(p)) // the reader may have left
}

// problemWriter turns the mux's plain 404 and 405 into problems.
type problemWriter struct{ http.ResponseWriter }

func (w problemWriter) WriteHeader(code int) {
	p := &api.Problem{Title: http.StatusText(code), Status: code, Kind: fulgur.KindNotFound, Detail: "no such route; " + Prefix + "/openapi.json lists them"}
	if code == http.StatusMethodNotAllowed {
		p.Kind, p.Detail = fulgur.KindInvalid, "this route takes "+w.Header().Get("Allow")
	}
	h := w.Header()
	h.Del("Content-Length")
	h.Set("Content-Type", p.ContentType(""))
	w.ResponseWriter.WriteHeader(code)
	_, _ = w.ResponseWriter.Write(marshal(p))
}

// Write drops the mux's own text.
func (w problemWriter) Write(b []byte) (int, error) { return len(b), nil }

// noGate stands where a server has no gateway.
type noGate struct{}

func (noGate) err(op string) error {
	return fulgur.E(fulgur.KindUnsupported, op, "this server has no gateway", nil)
}

func (g noGate) PauseCalls(context.Context, fulgur.RunID, fulgur.PauseRequest) (fulgur.Pause, error) {
	return fulgur.Pause{}, g.err("pause calls")
}

func (g noGate) ResumeCalls(context.Context, fulgur.RunID, string) (fulgur.Pause, error) {
	return fulgur.Pause{}, g.err("resume calls")
}

func (g noGate) PauseState(context.Context, fulgur.RunID) (fulgur.Pause, error) {
	return fulgur.Pause{}, g.err("get pause")
}

func (g noGate) Activities(context.Context, []fulgur.AttemptKey) ([]fulgur.Activity, error) {
	return nil, g.err("get activities")
}

func (g noGate) Activity(context.Context, fulgur.RolloutID, fulgur.AttemptID) (fulgur.Activity, error) {
	return fulgur.Activity{}, g.err("get activity")
}

// sortFeatures keeps the answer stable.
func sortFeatures(c api.Capabilities) api.Capabilities {
	c.Features = slices.Sorted(slices.Values(c.Features))
	if c.Features == nil {
		c.Features = []string{}
	}
	if c.APIs == nil {
		c.APIs = []string{"v1", "v2"}
	}
	return c
}

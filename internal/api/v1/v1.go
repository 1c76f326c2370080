// Package v1 serves the control routes of Agent Lightning v1.0 under /api and
// /proxy/{pause,resume,state}, with its shapes, its lax scalars and its errors,
// so that its trainer, controllers and agents run against Fulgur unchanged. It
// acts on the run fulgur.DefaultRun; only the events route takes the agents of
// every run.
package v1

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"mime"
	"net/http"
	"net/url"
	"strconv"
	"strings"

	"github.com/fulgur-rl/fulgur"
	"github.com/fulgur-rl/fulgur/internal/api"
)

type (
	// Rollouts keeps rollouts.
	Rollouts interface {
		CreateRollouts(ctx context.Context, specs []fulgur.RolloutSpec) ([]fulgur.Rollout, error)
		Rollout(ctx context.Context, id fulgur.RolloutID) (fulgur.Rollout, error)
		Rollouts(ctx context.Context, q fulgur.RolloutQuery) ([]fulgur.Rollout, error)
		Terminal(ctx context.Context, after, limit int) (fulgur.TerminalPage, error)
		PatchStatus(ctx context.Context, id fulgur.RolloutID, p fulgur.StatusPatch) (fulgur.Rollout, error)
		DeleteRollout(ctx context.Context, id fulgur.RolloutID) error
	}
	// Records keeps calls and events.
	Records interface {
		Calls(ctx context.Context, id fulgur.RolloutID, a fulgur.AttemptID) ([]fulgur.Call, error)
		// Responses is Calls with no more than the responses of the large parts.
		Responses(ctx context.Context, id fulgur.RolloutID, a fulgur.AttemptID) ([]fulgur.Call, error)
		Call(ctx context.Context, id fulgur.CallID) (fulgur.Call, error)
		AppendEvent(ctx context.Context, ev fulgur.Event) (fulgur.Event, error)
		Events(ctx context.Context, id fulgur.RolloutID, a fulgur.AttemptID) ([]fulgur.Event, error)
		RecordedAttempts(ctx context.Context, id fulgur.RolloutID) ([]fulgur.AttemptID, error)
	}
	// Store is both, with models, and knows who calls.
	Store interface {
		Rollouts
		Records
		UpsertEndpoints(ctx context.Context, run fulgur.RunID, eps []fulgur.Endpoint) error
		ClearEndpoints(ctx context.Context, run fulgur.RunID) error
		Identify(ctx context.Context, secret string) (fulgur.Identity, error)
	}
	// Pauser pauses the calls of all runs; the gateway is one.
	Pauser interface {
		PauseAll(retryAfter int, reason *string) Pause
		ResumeAll() Pause
		StateAll() Pause
	}
)

// Pause is the state of v1's pause, as it is answered.
type Pause struct {
	Paused            bool    `json:"paused"`
	RetryAfterSeconds int     `json:"retry_after_seconds"`
	Reason            *string `json:"reason"`
	InFlight          int     `json:"inflight"`
}

// Options are what v1 serves.
type Options struct {
	Store   Store
	Pauser  Pauser // nil: /proxy/{pause,resume,state} are not there
	MaxBody int64  // bytes of a request; 0: 64 MiB
	// Events bounds what agents post; nil: the default limits.
	Events *api.EventBudget
	// Own gives what an attempt's credential may see of its rollout, as v1's
	// agents read it; false: nothing. nil: nobody sees anything.
	Own func(context.Context, fulgur.Rollout) (fulgur.Rollout, bool)
}

// New returns the handler of /healthz, /api/… and /proxy/{pause,resume,state}.
func New(o Options) http.Handler {
	if o.MaxBody == 0 {
		o.MaxBody = 64 << 20
	}
	if o.Events == nil {
		o.Events = api.NewEventBudget(api.EventLimits{}, o.Store, nil)
	}
	s := &server{Options: o}
	return http.HandlerFunc(s.serve)
}

type server struct{ Options }

// in is a request that was let in.
type in struct {
	*http.Request
	who     fulgur.Identity
	rollout fulgur.RolloutID
	attempt fulgur.AttemptID
	one     bool // the path is a rollout's
}

type handler func(context.Context, *in) (status int, body any, err error)

// route finds what serves a path: its methods, and the ids in it.
func (s *server) route(seg []string, r *in) map[string]handler {
	switch {
	case match(seg, "api", "rollouts"):
		return map[string]handler{"POST": s.create, "GET": s.list}
	case match(seg, "api", "models"):
		return map[string]handler{"POST": s.putModels, "DELETE": s.clearModels}
	case match(seg, "api", "rollouts", "*"):
		r.rollout = fulgur.RolloutID(seg[2])
		m := map[string]handler{"GET": s.get, "PATCH": s.patch, "DELETE": s.delete}
		if r.one = true; seg[2] == "terminal" {
			m["GET"], r.one = s.terminal, false
		}
		return m
	case match(seg, "api", "rollouts", "*", "events"):
		r.rollout = fulgur.RolloutID(seg[2])
		return map[string]handler{"GET": s.events}
	case match(seg, "api", "rollouts", "*", "attempt", "*", "events"):
		r.rollout, r.attempt = fulgur.RolloutID(seg[2]), fulgur.AttemptID(seg[4])
		return map[string]handler{"POST": s.postEvent}
	case s.Pauser == nil:
	case match(seg, "proxy", "pause"):
		return map[string]handler{"POST": s.pause}
	case match(seg, "proxy", "resume"):
		return map[string]handler{"POST": s.resume}
	case match(seg, "proxy", "state"):
		return map[string]handler{"GET": s.state}
	}
	return nil
}

func match(seg []string, want ...string) bool {
	if len(seg) != len(want) {
		return false
	}
	for i, w := range want {
		if w == "*" && seg[i] == "" || w != "*" && seg[i] != w {
			return false
		}
	}
	return true
}

// segments splits a path and decodes its parts: an id may hold %2F.
func segments(u *url.URL) []string {
	seg := strings.Split(strings.TrimPrefix(u.EscapedPath(), "/"), "/")
	for i := range seg {
		if s, err := url.PathUnescape(seg[i]); err == nil {
			seg[i] = s
		}
	}
	return seg
}

func (s *server) serve(w http.ResponseWriter, r *http.Request) {
	if r.URL.Path == "/healthz" && r.Method == http.MethodGet {
		answer(w, http.StatusOK, map[string]string{"status": "ok"})
		return
	}
	req := &in{Request: r}
	seg := segments(r.URL)
	methods := s.route(seg, req)
	if methods == nil {
		if n := len(seg); n > 1 && seg[n-1] == "" && s.route(seg[:n-1], req) != nil {
			redirect(w, r)
			return
		}
		answer(w, http.StatusNotFound, detail{"Not Found"})
		return
	}
	h, ok := methods[r.Method]
	if !ok {
		for m := range methods {
			w.Header().Add("Allow", m)
		}
		answer(w, http.StatusMethodNotAllowed, detail{"Method Not Allowed"})
		return
	}
	if err := s.admit(req); err != nil {
		fail(w, err)
		return
	}
	leave, err := s.Events.Read(w, r, req.who)
	if err != nil {
		fail(w, err)
		return
	}
	defer leave()
	r.Body = http.MaxBytesReader(w, r.Body, s.MaxBody)
	status, body, err := h(r.Context(), req)
	if err != nil {
		fail(w, err)
		return
	}
	answer(w, status, body)
}

// redirect sends a path with a trailing slash to the one without.
func redirect(w http.ResponseWriter, r *http.Request) {
	to := url.URL{Scheme: "http", Host: r.Host, Path: strings.TrimSuffix(r.URL.Path, "/"), RawPath: strings.TrimSuffix(r.URL.EscapedPath(), "/"), RawQuery: r.URL.RawQuery}
	if r.TLS != nil {
		to.Scheme = "https"
	}
	w.Header().Set("Location", to.String())
	w.WriteHeader(http.StatusTemporaryRedirect)
}

// admit lets the server key in everywhere, an attempt's credential to its own
// events, and where Own is set to a look at its rollout. Either header may hold
// the right key.
func (s *server) admit(r *in) error {
	who, err := api.Identify(r.Request, s.Store)
	if err != nil {
		return err
	}
	r.who = who
	switch {
	case who.Scope == fulgur.ScopeServer:
		return nil
	case s.Own != nil && r.one && r.Method == http.MethodGet && r.rollout == who.Rollout:
		return nil
	case r.attempt == "" || r.rollout != who.Rollout || r.attempt != who.Attempt:
		return fulgur.E(fulgur.KindForbidden, "", "This credential is good for the events of its own attempt only", nil)
	case who.Ended:
		return fulgur.E(fulgur.KindGone, "", "The attempt has ended", nil)
	}
	return nil
}

type detail struct {
	Detail any `json:"detail"`
}

func answer(w http.ResponseWriter, status int, body any) {
	if status == http.StatusNoContent {
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(status)
		return
	}
	parts, ready := body.(written)
	if !ready {
		b, err := encode(body)
		if err != nil {
			status, b = http.StatusInternalServerError, []byte(`{"detail":"Internal Server Error"}`)
		}
		parts = written{b}
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Content-Length", strconv.Itoa(parts.size()))
	w.WriteHeader(status)
	for _, part := range parts {
		if _, err := w.Write(part); err != nil {
			return // the caller has left
		}
	}
}

// encode is json.Marshal without the escapes for HTML.
func encode(v any) ([]byte, error) {
	var b strings.Builder
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	err := e.Encode(v)
	return []byte(strings.TrimSuffix(b.String(), "\n")), err
}

func fail(w http.ResponseWriter, err error) {
	var p problems
	if errors.As(err, &p) {
		answer(w, http.StatusUnprocessableEntity, detail{p})
		return
	}
	k := fulgur.KindOf(err)
	if k == fulgur.KindGone {
		w.Header().Set("X-Should-Retry", "false")
	}
	answer(w, k.HTTPStatus(), detail{fulgur.PublicMessage(err)})
}

// body reads a JSON body; what is wrong with it are problems.
func (s *server) body(r *in) (any, json.RawMessage, error) {
	b, err := io.ReadAll(r.Body)
	if err != nil {
		var tooLarge *http.MaxBytesError
		if errors.As(err, &tooLarge) {
			return nil, nil, fulgur.E(fulgur.KindTooLarge, "read body", "The body is too large", err)
		}
		return nil, nil, fulgur.E(fulgur.KindCanceled, "read body", "The body broke off", err)
	}
	if len(b) == 0 {
		return nil, nil, problems{{"missing", []any{"body"}, "Field required", nil}}
	}
	mt, _, err := mime.ParseMediaType(r.Header.Get("Content-Type"))
	if err != nil || mt != "application/json" && !(strings.HasPrefix(mt, "application/") && strings.HasSuffix(mt, "+json")) {
		return nil, nil, problems{{"model_attributes_type", []any{"body"}, "Input should be sent as application/json", nil}}
	}
	v, err := decode(b)
	if err != nil { // Python writes NaN, and v1 reads it: a reward that is none must not be lost
		b = mendNaN(b)
		v, err = decode(b)
	}
	if err != nil {
		return nil, nil, problems{{"json_invalid", []any{"body"}, "JSON decode error", nil}}
	}
	return v, b, nil
}

func (s *server) pause(_ context.Context, r *in) (int, any, error) {
	v, _, err := s.body(r)
	if err != nil {
		return 0, nil, err
	}
	c := &checker{}
	o := c.object(v, "body")
	after := int(c.intField(o, "retry_after_seconds", 5, "body"))
	reason := c.textField(o, "reason", "body")
	if err := c.err(); err != nil {
		return 0, nil, err
	}
	return http.StatusOK, s.Pauser.PauseAll(after, reason), nil
}

func (s *server) resume(context.Context, *in) (int, any, error) {
	return http.StatusOK, s.Pauser.ResumeAll(), nil
}

func (s *server) state(context.Context, *in) (int, any, error) {
	return http.StatusOK, s.Pauser.StateAll(), nil
}

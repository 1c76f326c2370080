package gateway

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"net/http"
	"net/url"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/fulgur-rl/fulgur"
	"github.com/fulgur-rl/fulgur/internal/gateway/call"
	"github.com/fulgur-rl/fulgur/internal/gateway/dialect"
)

// split takes a request's path apart: what it says of whose call it is, and what is
// left. Each segment is unescaped by itself, so that an id may have a slash.
func split(u *url.URL) (p path, sub string) {
	all := u.EscapedPath()
	if rest, ok := strings.CutPrefix(all, "/proxy/rollout/"); ok {
		if s := strings.SplitN(rest, "/", 6); len(s) == 6 && s[1] == "attempt" && s[3] == "mode" {
			return path{rollout: fulgur.RolloutID(unescape(s[0])), attempt: fulgur.AttemptID(unescape(s[2])), mode: fulgur.Mode(unescape(s[4]))}, unescape(s[5])
		}
	}
	return path{}, unescape(strings.TrimPrefix(all, "/"))
}

func unescape(s string) string {
	if plain, err := url.PathUnescape(s); err == nil {
		return plain
	}
	return s
}

// ServeHTTP implements http.Handler.
func (g *Gateway) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	bound(w, r, g.o.ReadTimeout)
	p, sub := split(r.URL) // sub is the path below the prefix
	at := g.paths.find(sub, r.Header)
	p.v1 = p.rollout != "" && at.v1
	look := r.Method == http.MethodGet || r.Method == http.MethodHead
	if look && at.do == doNothing && !p.v1 { // harnesses ask for what is not there at their start: a quick answer, whoever asks
		g.refuse(w, at.d, false, errNoRoute)
		return
	}
	who, err := g.identify(r.Context(), r)
	v1 := p.v1 && who.Scope != fulgur.ScopeAttempt
	if err != nil {
		g.drain(r)
		g.refuse(w, at.d, v1, err)
		return
	}
	p.run = fulgur.RunID(r.Header.Get(runHeader))
	if at.do == doModels && look {
		g.models(w, r, at, who, p)
		return
	}
	if err := checkPath(r, p, sub, at); err != nil {
		g.refuse(w, at.d, v1, err)
		return
	}
	if r.Method != http.MethodPost {
		w.Header().Set("Allow", http.MethodPost)
		g.refuseStatus(w, at.d, v1, http.StatusMethodNotAllowed, fulgur.E(fulgur.KindInvalid, "route", "Method Not Allowed", nil))
		return
	}
	t, err := g.resolve(r.Context(), who, p)
	if err != nil {
		g.drain(r)
		g.refuse(w, at.d, v1, err)
		return
	}
	release, err := g.limit(r, &t)
	if err != nil {
		g.drain(r)
		g.refuse(w, at.d, v1, err)
		return
	}
	defer release()
	if at.do == doCount {
		g.count(w, r, at.count, t)
		return
	}
	if g.call(w, r, at.d, t) {
		panic(http.ErrAbortHandler) // the answer broke off: an end that looks whole would be taken for it
	}
}

// runHeader says whose models the server key asks for where the path names no
// rollout; without it, those of Options.Run.
const runHeader = "X-Fulgur-Run"

var errForAgents = fulgur.E(fulgur.KindForbidden, "identify", "This path is for agents: use the credential of an attempt, or the path /proxy/rollout/…", nil)

var errNoRoute = fulgur.E(fulgur.KindNotFound, "route", "Not Found", nil)

// checkPath is v1's first two checks: mode, then path.
func checkPath(r *http.Request, p path, sub string, at spot) error {
	if p.rollout != "" && p.mode != fulgur.ModeTrain && p.mode != fulgur.ModeVal && r.Method == http.MethodPost {
		return fulgur.E(fulgur.KindNotFound, "route", "Unsupported proxy mode: "+string(p.mode), nil)
	}
	if at.do == doCall || at.do == doCount {
		return nil
	}
	if rest, ok := strings.CutPrefix(sub, "openai/v1/"); ok && p.rollout != "" {
		return fulgur.E(fulgur.KindNotFound, "route", "Unsupported upstream path: "+rest, nil)
	}
	return errNoRoute
}

// call answers one model call. True: the connection is to be broken.
func (g *Gateway) call(w http.ResponseWriter, r *http.Request, d dialect.Dialect, t target) bool {
	start := time.Now()
	body, release, err := g.read(w, r, &t)
	defer release()
	if err != nil {
		g.refuseCall(w, d, t, err)
		return false
	}
	req, err := d.Parse(body)
	if err == nil && req.N > 1 && t.mode == fulgur.ModeTrain {
		err = fulgur.E(fulgur.KindUnsupported, "read request", "n must be 1 in training: each answer is a call of its own", nil)
	}
	if err != nil {
		g.refuseCall(w, d, t, err)
		return false
	}
	t.label(req, r.Header)
	if t.frozenOnly && !t.frozen() {
		g.refuseCall(w, d, t, errForAgents)
		return false
	}
	if joined, broken := g.rejoin(w, r, d, t, req, start); joined {
		return broken
	}
	id := newCallID()
	// An update may take the endpoints away while calls are held; they are looked up
	// again when the call goes on.
	if _, err := g.endpoints(r.Context(), &t); err != nil && !g.gates.holds(t.run) {
		g.refuseCall(w, d, t, err)
		return false
	}
	if err := g.gates.check(t.run); err != nil {
		g.refuseCall(w, d, t, err)
		return false
	}
	g.noteLabel(&t, req)
	f := &flow{g: g, w: w, d: d, t: t, req: req, start: start, id: id}
	if t.rollout != "" {
		f.attempt = g.attempts.get(attemptKey{t.rollout, t.attempt})
		if f.index, err = g.attempts.index(r.Context(), f.attempt); err != nil {
			g.refuseCall(w, d, t, err)
			return false
		}
	}
	return f.run(r.Context())
}

// read reads a request's body, within limits. release is to be called when the
// body is not held any more.
func (g *Gateway) read(w http.ResponseWriter, r *http.Request, t *target) (body []byte, release func(), err error) {
	held := &metered{ReadCloser: r.Body, all: &g.bodies, most: g.o.MaxBodies}
	if t.limited {
		held.own = &g.attempts.get(attemptKey{t.rollout, t.attempt}).bodies
	}
	body, err = g.readAll(w, r, held)
	return body, held.release, err
}

func (g *Gateway) readAll(w http.ResponseWriter, r *http.Request, from *metered) ([]byte, error) {
	if enc := r.Header.Get("Content-Encoding"); enc != "" && enc != "identity" {
		g.drain(r)
		return nil, fulgur.E(fulgur.KindUnsupported, "read request", fmt.Sprintf("The request's body is compressed (Content-Encoding: %.20q): send it as plain JSON", enc), nil)
	}
	most := g.o.MaxBody
	if most < 0 {
		most = math.MaxInt64 - 1
	}
	room := int64(0)
	if n := r.ContentLength; n > 0 && n <= most { // what a client only says takes no more memory than that
		room = min(n, 256<<10)
	}
	body, err := call.ReadAll(http.MaxBytesReader(w, from, most), int(room))
	var big *http.MaxBytesError
	switch {
	case errors.As(err, &big):
		from.release()
		g.drain(r)
		return nil, fulgur.E(fulgur.KindTooLarge, "read request", fmt.Sprintf("The request is larger than %d bytes, the most that is taken", g.o.MaxBody), nil)
	case errors.Is(err, errBodies), errors.Is(err, errShare):
		from.release()
		g.drain(r)
		return nil, err
	case errors.Is(err, os.ErrDeadlineExceeded):
		return nil, fulgur.E(fulgur.KindInvalid, "read request", fmt.Sprintf("The request's body did not arrive within %s", g.o.ReadTimeout), err)
	case err != nil:
		return nil, fulgur.E(fulgur.KindInvalid, "read request", "The request's body did not arrive whole", err)
	}
	return body, nil
}

// newCallID returns a new id, random but for its rough order in time.
func newCallID() fulgur.CallID {
	b := strconv.AppendUint(make([]byte, 0, 32), uint64(time.Now().UnixMilli()), 36)
	return fulgur.CallID(strconv.AppendUint(b, rand.Uint64()|1<<63, 36))
}

func writeJSON(w http.ResponseWriter, status int, body []byte) {
	h := w.Header()
	h.Set("Content-Type", "application/json")
	h.Set("Content-Length", strconv.Itoa(len(body)))
	w.WriteHeader(status)
	_, _ = w.Write(body) // a client that left is no failure of ours
}

// refuse answers a request that became no call.
func (g *Gateway) refuse(w http.ResponseWriter, d dialect.Dialect, v1 bool, err error) {
	g.refuseStatus(w, d, v1, 0, err)
}

// refuseCall is refuse for a request whose attempt is known.
func (g *Gateway) refuseCall(w http.ResponseWriter, d dialect.Dialect, t target, err error) {
	if t.rollout != "" {
		a := g.attempts.get(attemptKey{t.rollout, t.attempt})
		a.came(ownFault(err), "")
		why := fulgur.PublicMessage(err)
		if many := (*tooMany)(nil); errors.As(err, &many) {
			why = many.msg
		}
		a.refuse(why)
	}
	g.refuse(w, d, t.v1, err)
}

// ownFault is what of an error counts as the model server's or the gateway's
// failure; "" if it is the caller's, or a pause.
func ownFault(err error) string {
	var paused *refusal
	var many *tooMany
	if errors.As(err, &paused) || errors.As(err, &many) || fulgur.KindOf(err).HTTPStatus() < 500 {
		return ""
	}
	return fulgur.PublicMessage(err)
}

func (g *Gateway) refuseStatus(w http.ResponseWriter, d dialect.Dialect, v1 bool, status int, err error) {
	var paused *refusal
	if errors.As(err, &paused) {
		g.m.refused.WithLabelValues("paused").Inc()
		g.refusePaused(w, d, v1, paused)
		return
	}
	var many *tooMany
	if errors.As(err, &many) {
		g.m.refused.WithLabelValues(many.limit).Inc()
		g.o.Log.Info("request refused", "status", http.StatusTooManyRequests, "err", err)
		w.Header().Set("Retry-After", strconv.Itoa(many.retryAfter))
		writeJSON(w, http.StatusTooManyRequests, d.AppendError(nil, dialect.Failure{Status: http.StatusTooManyRequests,
			Message: many.msg, Type: "rate_limit_error", Code: "rate_limit_exceeded"}))
		return
	}
	f := failureOf(err)
	if status != 0 {
		f.Status = status
	}
	g.m.refused.WithLabelValues(string(fulgur.KindOf(err))).Inc()
	g.o.Log.Info("request refused", "status", f.Status, "err", err)
	setRetry(w.Header(), fulgur.KindOf(err))
	writeJSON(w, f.Status, g.errorBody(d, v1, f))
}

// setRetry tells SDKs what the status alone does not.
func setRetry(h http.Header, k fulgur.Kind) {
	switch k {
	case fulgur.KindGone, fulgur.KindContextFull, fulgur.KindInvalid, fulgur.KindUnsupported, fulgur.KindTooLarge:
		h.Set("X-Should-Retry", "false")
	case fulgur.KindTimeout: // minutes of tries are behind it: three times as many help nobody
		h.Set("X-Should-Retry", "false")
	case fulgur.KindUnavailable:
		h.Set("Retry-After", "2")
	}
}

// errorBody is v1's on its paths for what v1 knows, else the dialect's.
func (g *Gateway) errorBody(d dialect.Dialect, v1 bool, f dialect.Failure) []byte {
	if v1 && f.Code != codeContext {
		b, _ := json.Marshal(map[string]string{"detail": f.Message}) // a map of strings can't fail
		return b
	}
	return d.AppendError(nil, f)
}

// refusePaused answers a call while calls are refused. The header tells it from
// a model server's own 429.
func (g *Gateway) refusePaused(w http.ResponseWriter, d dialect.Dialect, v1 bool, p *refusal) {
	h := w.Header()
	h.Set("Retry-After", strconv.Itoa(p.retryAfter))
	h.Set("X-Agl-Paused", "true")
	if v1 {
		b, _ := json.Marshal(map[string]any{"error": "gateway paused", "reason": p.reason})
		writeJSON(w, http.StatusTooManyRequests, b)
		return
	}
	writeJSON(w, http.StatusTooManyRequests, d.AppendError(nil, dialect.Failure{Status: http.StatusTooManyRequests,
		Message: "The model is being updated: try again", Type: "rate_limit_error", Code: "gateway_paused"}))
}

const codeContext = "context_length_exceeded"

// failureOf says an error as a client gets to see it.
func failureOf(err error) dialect.Failure {
	kind := fulgur.KindOf(err)
	f := dialect.Failure{Status: kind.HTTPStatus(), Message: fulgur.PublicMessage(err), Type: "api_error", Code: string(kind)}
	switch kind {
	case fulgur.KindInvalid, fulgur.KindUnsupported:
		f.Type = "invalid_request_error"
	case fulgur.KindContextFull:
		f.Type, f.Code = "invalid_request_error", codeContext
	case fulgur.KindTooLarge:
		f.Type = "request_too_large"
	case fulgur.KindDenied:
		f.Type, f.Code = "authentication_error", "invalid_api_key"
	case fulgur.KindForbidden:
		f.Type = "permission_error"
	case fulgur.KindNotFound:
		f.Type = "not_found_error"
	case fulgur.KindGone:
		f.Type = "invalid_request_error"
	case fulgur.KindTimeout:
		f.Type = "timeout_error"
	}
	var field *dialect.FieldError
	if errors.As(err, &field) {
		f.Param = field.Param
	}
	return f
}

// order makes the order of a call.
func (f *flow) order(ep fulgur.Endpoint, dec decision) *call.Order {
	o := &call.Order{Request: f.req, Call: f.id, Run: f.t.run, Rollout: f.t.rollout, Attempt: f.t.attempt, Index: f.index,
		Mode: f.t.mode, Endpoint: ep, Target: cmp.Or(f.t.model, ep.Model), Sampling: dec.sampling, ForceTemperature: dec.force, ForceCut: dec.cut, Neutral: dec.neutral, CapTokens: dec.cap, Frozen: dec.frozen, Held: f.held,
		NeedLogProbs: f.t.mode == fulgur.ModeTrain && !f.g.o.NoLogProbs && !f.t.frozen()}
	if f.t.spec != nil {
		o.Group = f.t.spec.Group
	}
	if (f.t.spec == nil || f.t.frozen()) && f.req.Wishes.Seed == nil {
		o.Sampling.Seed = rand.Uint64() >> 1
	}
	if ep.Kind == fulgur.EndpointTokens {
		o.Sampling.Others = nil // it samples with none of them
	}
	return o
}

// recordLimit is how long a call waits for its place in the record. What was sampled
// is lost at its end: 2,000 agent-sized calls that a resume let go at once waited
// longer than half a minute on two busy cores.
const recordLimit = 5 * time.Minute

// detached is a context for what must be done after the client has left.
func detached(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.WithoutCancel(ctx), recordLimit)
}

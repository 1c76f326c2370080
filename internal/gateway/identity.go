package gateway

import (
	"cmp"
	"context"
	"crypto/subtle"
	"net/http"
	"slices"
	"strings"

	"github.com/fulgur-rl/fulgur"
)

// target is whose call a request is.
type target struct {
	run     fulgur.RunID
	rollout fulgur.RolloutID // "": plain serving
	attempt fulgur.AttemptID
	mode    fulgur.Mode
	spec    *fulgur.RolloutSpec // nil: plain serving
	policy  string              // the policy's name
	model   string              // of what answers: the policy, but for calls that rules route away
	rules   *rules
	// auxiliary is the rule that labelled the call; "": it is the agent's own.
	auxiliary  string
	frozenOnly bool // the server key without a rollout: only models besides the policy
	limited    bool // an attempt's own credential: its limits count
	v1         bool // the server key on a v1 path: answered exactly as v1 does
}

// secretsOf returns the credentials of a request: a bearer key, and x-api-key.
// Either one that is right is enough, as in v1.
func secretsOf(r *http.Request) []string {
	var out []string
	if s, ok := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer "); ok && s != "" {
		out = append(out, s)
	}
	if s := r.Header.Get("X-Api-Key"); s != "" && !slices.Contains(out, s) {
		out = append(out, s)
	}
	return out
}

func sameSecret(a, b string) bool { return subtle.ConstantTimeCompare([]byte(a), []byte(b)) == 1 }

var errNoKey = fulgur.E(fulgur.KindDenied, "identify", "Invalid or missing API key", nil)

// identify says who calls: the server key (v1: either header will do), or an
// attempt's credential. With an empty server key everyone is the server, but a
// credential that is presented counts.
func (g *Gateway) identify(ctx context.Context, r *http.Request) (fulgur.Identity, error) {
	server := fulgur.Identity{Scope: fulgur.ScopeServer, Run: g.o.Run}
	secrets := secretsOf(r)
	for _, s := range secrets {
		if g.o.ServerKey != "" && sameSecret(s, g.o.ServerKey) {
			return server, nil
		}
	}
	for _, secret := range secrets {
		id, err := g.o.Directory.Identify(ctx, secret)
		switch kind := fulgur.KindOf(err); kind {
		case "":
			return id, nil
		case fulgur.KindDenied, fulgur.KindNotFound:
		default:
			return id, err
		}
	}
	if g.o.ServerKey == "" {
		return server, nil
	}
	return fulgur.Identity{}, errNoKey
}

// path is what a request's path says; rollout is "" if it says nothing.
type path struct {
	rollout fulgur.RolloutID
	attempt fulgur.AttemptID
	mode    fulgur.Mode
	run     fulgur.RunID // "": the path's rollout says, or Options.Run
	v1      bool         // with the server key, v1's own words
}

// resolve finds whose call it is, from credential and path: where both say it,
// they must agree.
func (g *Gateway) resolve(ctx context.Context, who fulgur.Identity, p path) (target, error) {
	if who.Scope == fulgur.ScopeAttempt {
		return g.resolveAttempt(ctx, who, p)
	}
	if p.rollout == "" {
		run := cmp.Or(p.run, g.o.Run)
		model, _, err := g.run(ctx, run)
		t := target{run: run, mode: fulgur.ModeVal, policy: model, model: model}
		if !g.o.Plain {
			t.rules, t.frozenOnly = &rules{}, true
		}
		return t, err
	}
	ro, err := g.o.Directory.Rollout(ctx, p.rollout)
	if err != nil {
		if fulgur.KindOf(err) == fulgur.KindNotFound {
			err = fulgur.E(fulgur.KindNotFound, "find rollout", "Rollout not found: "+string(p.rollout), err)
		}
		return target{}, err
	}
	if ro.State.Terminal() {
		return target{v1: p.v1}, g.late(g.attempts.get(attemptKey{p.rollout, p.attempt}))
	}
	run := ro.Run
	if run == "" {
		run = fulgur.DefaultRun
	}
	model, rules, err := g.run(ctx, run)
	if p.v1 && rules != nil && !rules.own {
		rules = nil // v1 knows of none
	}
	return target{run: run, rollout: p.rollout, attempt: p.attempt, mode: p.mode, spec: &ro.RolloutSpec, policy: model, model: model, rules: rules, v1: p.v1}, err
}

// resolveAttempt is resolve for an attempt's own credential. What never changes
// of its rollout is read once.
func (g *Gateway) resolveAttempt(ctx context.Context, who fulgur.Identity, p path) (target, error) {
	const op = "identify attempt"
	if p.rollout != "" && (p.rollout != who.Rollout || p.attempt != who.Attempt) {
		return target{}, fulgur.E(fulgur.KindForbidden, op, "This credential is for another rollout or attempt than the path", nil)
	}
	a := g.attempts.get(attemptKey{who.Rollout, who.Attempt})
	a.mu.Lock()
	spec, model, rules := a.spec, a.model, a.rules
	a.mu.Unlock()
	if who.Ended {
		return target{}, g.late(a)
	}
	if spec == nil {
		ro, err := g.o.Directory.Rollout(ctx, who.Rollout)
		if err != nil {
			return target{}, err
		}
		if model, rules, err = g.run(ctx, who.Run); err != nil {
			return target{}, err
		}
		// What is asked of it: its input, of any size, would be kept as long as the attempt.
		spec = &fulgur.RolloutSpec{ID: ro.ID, Group: ro.Group, IsTrain: ro.IsTrain, Greedy: ro.Greedy, Sampling: ro.Sampling, Seed: ro.Seed}
		a.mu.Lock()
		a.spec, a.model, a.rules = spec, model, rules
		a.mu.Unlock()
	}
	mode := fulgur.ModeVal
	if spec.IsTrain {
		mode = fulgur.ModeTrain
	}
	if p.rollout != "" && p.mode != mode {
		return target{}, fulgur.E(fulgur.KindForbidden, op, "This rollout's calls are of mode "+string(mode)+", not "+string(p.mode), nil)
	}
	return target{run: who.Run, rollout: who.Rollout, attempt: who.Attempt, mode: mode, spec: spec, policy: model, model: model, rules: rules, limited: true}, nil
}

// late answers requests after an attempt's end: 410 first, then the one error
// that ends every harness tried at once.
func (g *Gateway) late(a *attempt) error {
	a.mu.Lock()
	a.late++
	n := a.late
	a.mu.Unlock()
	if n > 2 {
		return fulgur.E(fulgur.KindContextFull, "admit call", "The attempt has ended; no call is answered any more (maximum context length: 0 tokens left, prompt is too long)", nil)
	}
	return fulgur.E(fulgur.KindGone, "admit call", "The attempt has ended: stop calling the model", nil)
}

package gateway

import (
	"context"
	"encoding/json"
	"maps"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/fulgur-rl/fulgur"
	"github.com/fulgur-rl/fulgur/internal/gateway/call"
	"github.com/fulgur-rl/fulgur/internal/gateway/dialect"
	"github.com/fulgur-rl/fulgur/internal/gateway/sampler"
)

// count answers how many tokens a request has. It is no call: nothing is
// sampled or recorded. It goes through the run's gate all the same, because a
// model server may be asked.
func (g *Gateway) count(w http.ResponseWriter, r *http.Request, d dialect.Counter, t target) {
	n, err := g.tokens(w, r, d, t)
	if err != nil {
		g.refuse(w, d, t.v1, err)
		return
	}
	writeJSON(w, http.StatusOK, d.AppendCount(nil, n))
}

func (g *Gateway) tokens(w http.ResponseWriter, r *http.Request, d dialect.Counter, t target) (int, error) {
	body, release, err := g.read(w, r, &t)
	defer release()
	if err != nil {
		return 0, err
	}
	req, err := d.Parse(body)
	if err != nil {
		return 0, err
	}
	t.label(req, r.Header)
	ctx, cancel := context.WithCancelCause(r.Context())
	defer cancel(nil)
	fl, err := g.gates.enter(ctx, t.run, g.o.HoldLimit, func() {}, cancel)
	if err != nil {
		return 0, err
	}
	defer g.gates.leave(fl)
	f := &flow{g: g, d: d, t: t, req: req, start: time.Now(), id: newCallID()}
	ep, done, err := g.admit(ctx, t, f.id)
	if err != nil {
		return 0, err
	}
	c, ok := g.o.Samplers[ep.Kind].(sampler.Counter)
	if !ok {
		done(&call.Result{}, nil)
		return 0, fulgur.E(fulgur.KindUnsupported, "count tokens", "This model's server does not count tokens", nil)
	}
	n, err := c.Count(ctx, f.order(ep, decide(req, &t, 0, &g.o)))
	done(&call.Result{}, err)
	return n, err
}

// models answers a request for the list of models, or for one of them.
func (g *Gateway) models(w http.ResponseWriter, r *http.Request, at spot, who fulgur.Identity, p path) {
	t, err := g.resolve(r.Context(), who, p)
	if err != nil {
		g.refuse(w, at.d, t.v1, err)
		return
	}
	names, err := g.policyNames(r.Context(), t)
	if err != nil {
		g.refuse(w, at.d, t.v1, err)
		return
	}
	if t.rules != nil {
		names = append(names, slices.Sorted(maps.Keys(t.rules.open))...)
	}
	if at.model == "" {
		writeJSON(w, http.StatusOK, at.d.AppendModels(nil, names))
		return
	}
	if !slices.Contains(names, at.model) {
		g.refuse(w, at.d, t.v1, fulgur.E(fulgur.KindNotFound, "find model", "There is no model '"+at.model+"' here: ask for '"+strings.Join(names, "' or '")+"'", nil))
		return
	}
	var list struct {
		Data []json.RawMessage `json:"data"`
	}
	if err := json.Unmarshal(at.d.AppendModels(nil, []string{at.model}), &list); err != nil || len(list.Data) != 1 {
		g.refuse(w, at.d, t.v1, fulgur.E(fulgur.KindInternal, "find model", "The model can't be described", err))
		return
	}
	writeJSON(w, http.StatusOK, list.Data[0])
}

// policyNames are the names under which a target's policy is had: the run's name
// for it, or, where the run has none (v1's runs), those of its endpoints, any of
// which answers.
func (g *Gateway) policyNames(ctx context.Context, t target) ([]string, error) {
	if t.policy != "" {
		return []string{t.policy}, nil
	}
	list, err := g.o.Models.Endpoints(ctx, t.run, "")
	if err != nil && fulgur.KindOf(err) != fulgur.KindNotFound {
		return nil, err
	}
	names := make([]string, len(list))
	for i, ep := range list {
		names[i] = ep.Model
	}
	slices.Sort(names)
	return slices.Compact(names), nil
}

package gateway

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/fulgur-rl/fulgur"
	"github.com/fulgur-rl/fulgur/internal/gateway/call"
	"github.com/fulgur-rl/fulgur/internal/gateway/route"
)

// pick chooses the endpoint of a rollout by v1's rule, so that a rollout stays
// on one server and finds its prefix cache warm.
func pick(list []fulgur.Endpoint, key string) fulgur.Endpoint {
	sorted := slices.Clone(list)
	slices.SortFunc(sorted, func(a, b fulgur.Endpoint) int { return strings.Compare(a.URL, b.URL) })
	sum := sha256.Sum256([]byte(key))
	return sorted[binary.BigEndian.Uint64(sum[:8])%uint64(len(sorted))]
}

// router is the table of endpoints under its lock.
type router struct {
	mu    sync.Mutex
	table *route.Table
	// served are the models that have had an endpoint, as servedModel.
	served sync.Map
}

type servedModel struct {
	run   fulgur.RunID
	model string
}

// gapLook is how often a model without an endpoint is looked up while a call waits.
const gapLook = 20 * time.Millisecond

// endpoints lists where a call may go now. A model that has none but had some is
// waited for, for a short time.
func (g *Gateway) endpoints(ctx context.Context, t *target) ([]fulgur.Endpoint, error) {
	name := servedModel{t.run, t.model}
	var until time.Time
	for {
		list, err := g.o.Models.Endpoints(ctx, t.run, t.model)
		if err != nil && fulgur.KindOf(err) != fulgur.KindNotFound {
			return nil, err
		}
		_, served := g.router.served.Load(name)
		if len(list) > 0 && !served {
			g.router.served.Store(name, true)
		}
		now := time.Now()
		if until.IsZero() {
			until = now.Add(g.o.ModelGap)
		}
		if len(list) > 0 || !served || !now.Before(until) || g.gates.holds(t.run) {
			return g.usable(list, t)
		}
		select {
		case <-time.After(gapLook):
		case <-ctx.Done():
			return nil, fulgur.E(fulgur.KindCanceled, "find endpoint", "The call was cancelled", context.Cause(ctx))
		}
	}
}

// usable returns endpoints that there are, of kinds that are served.
func (g *Gateway) usable(list []fulgur.Endpoint, t *target) ([]fulgur.Endpoint, error) {
	if len(list) == 0 {
		return nil, fulgur.E(fulgur.KindUnavailable, "find endpoint", "No servers available for model '"+t.model+"'", nil)
	}
	for _, ep := range list {
		if g.o.Samplers[ep.Kind] == nil {
			return nil, fulgur.E(fulgur.KindUnavailable, "find endpoint", "The endpoint of model '"+t.model+"' is of kind '"+string(ep.Kind)+"', which this gateway does not serve", nil)
		}
	}
	return list, nil
}

// admit chooses the endpoint of a call, with the version that it has now: what
// is published later does not change where and as what the call is on record.
// What became of it there is told by done; telling twice is telling once.
func (g *Gateway) admit(ctx context.Context, t target, id fulgur.CallID) (ep fulgur.Endpoint, done func(*call.Result, error), err error) {
	none := func(*call.Result, error) {}
	list, err := g.endpoints(ctx, &t)
	if err != nil {
		return ep, none, err
	}
	key := cmp.Or(string(t.rollout), string(id))
	if t.v1 {
		return pick(list, key), none, nil
	}
	if len(list) == 1 {
		return list[0], none, nil
	}
	names := make([]string, len(list))
	for i := range list {
		names[i] = list[i].URL
	}
	r := &g.router
	r.mu.Lock()
	now := time.Now()
	i := r.table.Pick(now, key, names)
	g.m.ejected.Set(float64(r.table.Ejected(now)))
	r.mu.Unlock()
	var once sync.Once
	return list[i], func(res *call.Result, err error) {
		once.Do(func() {
			r.mu.Lock()
			defer r.mu.Unlock()
			now := time.Now()
			out := r.table.Done(now, names[i], outcome(res, err))
			g.m.ejected.Set(float64(r.table.Ejected(now)))
			if out {
				g.m.ejections.Inc()
				g.o.Log.Warn("a model server fails and gets no calls for a while", "model", t.model, "endpoint", names[i], "err", err)
			}
		})
	}, nil
}

// outcome is what a call says of its endpoint's health.
func outcome(res *call.Result, err error) route.Outcome {
	switch kind := fulgur.KindOf(err); {
	case kind == fulgur.KindUpstream, kind == fulgur.KindTimeout, kind == fulgur.KindUnavailable:
		return route.Failed
	case err != nil:
		return route.Unknown
	case res.Status >= 500:
		return route.Failed
	case res.Status == 0, res.Status == 429:
		return route.Unknown
	}
	return route.OK
}

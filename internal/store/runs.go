package store

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"github.com/fulgur-rl/fulgur"
)

// PutRun creates a run or changes its model, config and end. The version never
// goes down; CreatedAt is the first one's.
func (s *Store) PutRun(ctx context.Context, r fulgur.Run) error {
	const op = "put run"
	if r.ID == "" {
		return fulgur.E(fulgur.KindInvalid, op, "the run's id is missing", nil)
	}
	if len(r.Config) > 0 && !json.Valid(r.Config) {
		return fulgur.E(fulgur.KindInvalid, op, "the run's config is not JSON", nil)
	}
	return s.do(ctx, op, func(b *batch) error {
		r := r
		if old, ok := b.run(r.ID); ok {
			r.CreatedAt, r.Version = old.CreatedAt, max(r.Version, old.Version)
		} else {
			r.CreatedAt = b.now
		}
		if r.EndedAt != nil {
			end := r.EndedAt.UTC().Truncate(time.Microsecond)
			r.EndedAt = &end
		}
		b.putRun(r)
		return nil
	})
}

// Run returns a run.
func (s *Store) Run(_ context.Context, id fulgur.RunID) (fulgur.Run, error) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	r, ok := s.live.runs[id]
	if !ok {
		return r, unknownRun("get run", id)
	}
	return r, nil
}

// Runs returns all runs, the oldest first.
func (s *Store) Runs(context.Context) ([]fulgur.Run, error) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	out := make([]fulgur.Run, 0, len(s.live.runs))
	for _, r := range s.live.runs {
		out = append(out, r)
	}
	slices.SortFunc(out, func(a, b fulgur.Run) int {
		return cmp.Or(a.CreatedAt.Compare(b.CreatedAt), cmp.Compare(a.ID, b.ID))
	})
	return out, nil
}

func unknownRun(op string, id fulgur.RunID) error {
	return fulgur.E(fulgur.KindNotFound, op, fmt.Sprintf("Run not found: %s", id), nil)
}

// AcquireLease acquires or renews the lease name of a run for ttl;
// KindConflict while another holds it.
func (s *Store) AcquireLease(ctx context.Context, run fulgur.RunID, name, holder string, ttl time.Duration) (out fulgur.Lease, err error) {
	const op = "acquire lease"
	if name == "" || holder == "" || ttl <= 0 {
		return out, fulgur.E(fulgur.KindInvalid, op, "a lease needs a name, a holder and a time", nil)
	}
	err = s.do(ctx, op, func(b *batch) error {
		if _, ok := b.run(run); !ok {
			return unknownRun(op, run)
		}
		k := leaseKey{run, name}
		if cur := b.lease(k); cur.Holder != "" && cur.Holder != holder && b.now.Before(cur.Expires) {
			return fulgur.E(fulgur.KindConflict, op, fmt.Sprintf("%s of run %s is held by %s until %s: stop that one, or wait",
				name, run, cur.Holder, cur.Expires.Format(time.RFC3339)), nil)
		}
		out = fulgur.Lease{Run: run, Name: name, Holder: holder, Expires: b.now.Add(ttl).Truncate(time.Microsecond)}
		b.leases[k] = out
		return nil
	})
	return out, err
}

// ReleaseLease ends a lease that holder has; another's is left alone.
func (s *Store) ReleaseLease(ctx context.Context, run fulgur.RunID, name, holder string) error {
	return s.do(ctx, "release lease", func(b *batch) error {
		if k := (leaseKey{run, name}); b.lease(k).Holder == holder {
			b.leases[k] = fulgur.Lease{}
		}
		return nil
	})
}

// Lease returns a lease as it was acquired or renewed last; it may have ended.
// KindNotFound: nobody had it, or it was released.
func (s *Store) Lease(_ context.Context, run fulgur.RunID, name string) (fulgur.Lease, error) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	l := s.live.leases[leaseKey{run, name}]
	if l.Holder == "" {
		return l, fulgur.E(fulgur.KindNotFound, "read lease", "nobody has the lease "+name+" of run "+string(run), nil)
	}
	return l, nil
}

// Leases returns all leases that have not ended, in no order.
func (s *Store) Leases(context.Context) ([]fulgur.Lease, error) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	now := s.now()
	var out []fulgur.Lease
	for _, l := range s.live.leases {
		if now.Before(l.Expires) {
			out = append(out, l)
		}
	}
	return out, nil
}

func (b *batch) lease(k leaseKey) fulgur.Lease {
	if l, ok := b.leases[k]; ok {
		return l
	}
	return b.s.live.leases[k]
}

func (b *batch) endpointsOf(run fulgur.RunID) []fulgur.Endpoint {
	if e, ok := b.endpoints[run]; ok {
		return e
	}
	return b.s.live.endpoints[run]
}

// PutEndpoints replaces a model's endpoints atomically and raises the run's
// version to the newest of them.
func (s *Store) PutEndpoints(ctx context.Context, run fulgur.RunID, model string, eps []fulgur.Endpoint) error {
	return s.changeEndpoints(ctx, "put endpoints", run, eps, func(old []fulgur.Endpoint) []fulgur.Endpoint {
		out := slices.DeleteFunc(slices.Clone(old), func(e fulgur.Endpoint) bool { return e.Model == model })
		for _, e := range eps {
			e.Model = model
			out = append(out, e)
		}
		return out
	})
}

// UpsertEndpoints adds endpoints or replaces those of the same model and URL,
// as v1's POST /api/models does.
func (s *Store) UpsertEndpoints(ctx context.Context, run fulgur.RunID, eps []fulgur.Endpoint) error {
	return s.changeEndpoints(ctx, "upsert endpoints", run, eps, func(old []fulgur.Endpoint) []fulgur.Endpoint {
		out := slices.Clone(old)
		for _, e := range eps {
			same := func(o fulgur.Endpoint) bool { return o.Model == e.Model && o.URL == e.URL }
			if i := slices.IndexFunc(out, same); i >= 0 {
				out[i] = e
			} else {
				out = append(out, e)
			}
		}
		return out
	})
}

// ClearEndpoints removes all endpoints of a run.
func (s *Store) ClearEndpoints(ctx context.Context, run fulgur.RunID) error {
	return s.changeEndpoints(ctx, "clear endpoints", run, nil, func([]fulgur.Endpoint) []fulgur.Endpoint { return nil })
}

func (s *Store) changeEndpoints(ctx context.Context, op string, run fulgur.RunID, eps []fulgur.Endpoint, f func([]fulgur.Endpoint) []fulgur.Endpoint) error {
	for _, e := range eps {
		if e.URL == "" || e.Kind != fulgur.EndpointChat && e.Kind != fulgur.EndpointTokens {
			return fulgur.E(fulgur.KindInvalid, op, "an endpoint needs a url and a kind, chat or tokens", nil)
		}
	}
	return s.do(ctx, op, func(b *batch) error {
		r, ok := b.run(run)
		if !ok {
			return unknownRun(op, run)
		}
		for _, e := range eps {
			r.Version = max(r.Version, e.Version)
		}
		b.endpoints[run] = f(b.endpointsOf(run))
		b.putRun(r)
		return nil
	})
}

// Endpoints returns the endpoints of a model ("": of all models) of a run.
func (s *Store) Endpoints(_ context.Context, run fulgur.RunID, model string) ([]fulgur.Endpoint, error) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	if _, ok := s.live.runs[run]; !ok {
		return nil, unknownRun("get endpoints", run)
	}
	var out []fulgur.Endpoint
	for _, e := range s.live.endpoints[run] {
		if model == "" || e.Model == model {
			out = append(out, e)
		}
	}
	return out, nil
}

package gateway

import (
	"context"
	"encoding/json"
	"time"

	"github.com/fulgur-rl/fulgur"
)

// Leases keep the pauses of runs, so that they outlive this process. A pause is
// the lease pauseLease of its run: it has a holder, and ends by itself.
type Leases interface {
	AcquireLease(ctx context.Context, run fulgur.RunID, name, holder string, ttl time.Duration) (fulgur.Lease, error)
	ReleaseLease(ctx context.Context, run fulgur.RunID, name, holder string) error
	// Leases returns all leases that have not ended.
	Leases(ctx context.Context) ([]fulgur.Lease, error)
}

// pauseLease is the name of the lease of a paused run.
const pauseLease = "pause"

// pauseHolder is the holder of such a lease, as JSON: who paused, and how.
type pauseHolder struct {
	Owner  string `json:"owner"`
	Refuse bool   `json:"refuse,omitempty"`
	Reason string `json:"reason,omitempty"`
}

// remember puts a pause into the store before it counts; the caller holds
// g.order. A run that the store does not know is paused in memory only.
func (s *gates) remember(ctx context.Context, g *gate, req fulgur.PauseRequest, ttl time.Duration) error {
	if s.leases == nil {
		return nil
	}
	b, err := json.Marshal(pauseHolder{req.Owner, req.Refuse, req.Reason})
	if err != nil {
		return fulgur.E(fulgur.KindInvalid, "pause run "+string(g.run), "The pause's owner or reason can't be kept", err)
	}
	if holder := string(b); g.stored != holder {
		if err := s.forget(ctx, g); err != nil {
			return err
		}
	}
	_, err = s.leases.AcquireLease(ctx, g.run, pauseLease, string(b), ttl)
	switch fulgur.KindOf(err) {
	case "":
		g.stored = string(b)
	case fulgur.KindNotFound:
		return nil
	}
	return err
}

// forget takes a pause out of the store; the caller holds g.order.
func (s *gates) forget(ctx context.Context, g *gate) error {
	if s.leases == nil || g.stored == "" {
		return nil
	}
	if err := s.leases.ReleaseLease(ctx, g.run, pauseLease, g.stored); err != nil {
		return err
	}
	g.stored = ""
	return nil
}

// Restore takes up the pauses that an earlier process has left, each for what
// remains of its lease. It is called before the first request.
func (g *Gateway) Restore(ctx context.Context) error {
	s := g.gates
	if s.leases == nil {
		return nil
	}
	list, err := s.leases.Leases(ctx)
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, l := range list {
		var h pauseHolder
		left := time.Until(l.Expires)
		if l.Name != pauseLease || left <= 0 || json.Unmarshal([]byte(l.Holder), &h) != nil {
			continue
		}
		gt := s.gateLocked(l.Run)
		gt.stored = l.Holder
		gt.startLocked(fulgur.PauseRequest{Owner: h.Owner, Refuse: h.Refuse, Reason: h.Reason}, left)
		s.leaseLocked(gt, left)
	}
	return nil
}

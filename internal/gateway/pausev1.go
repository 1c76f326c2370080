package gateway

// PauseV1 is the state that v1's /proxy/pause, /proxy/resume and /proxy/state
// answer with. It is over all runs.
type PauseV1 struct {
	Paused            bool    `json:"paused"`
	RetryAfterSeconds int     `json:"retry_after_seconds"`
	Reason            *string `json:"reason"`
	InFlight          int     `json:"inflight"`
}

// PauseAll pauses all runs, v1's way: calls are refused (held with
// Options.HoldV1) until ResumeAll. Asked again it replaces both values.
func (g *Gateway) PauseAll(retryAfter int, reason *string) PauseV1 {
	s := g.gates
	s.mu.Lock()
	defer s.mu.Unlock()
	s.all.paused, s.all.refuse = true, !g.o.HoldV1
	s.all.retryAfter, s.all.reason = retryAfter, reason
	return s.v1Locked()
}

// ResumeAll ends PauseAll's pause; the number of seconds stays.
func (g *Gateway) ResumeAll() PauseV1 {
	s := g.gates
	s.mu.Lock()
	defer s.mu.Unlock()
	s.all.resumeLocked()
	return s.v1Locked()
}

// StateAll is the state of PauseAll's pause.
func (g *Gateway) StateAll() PauseV1 {
	s := g.gates
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.v1Locked()
}

func (s *gates) v1Locked() PauseV1 {
	p := PauseV1{Paused: s.all.paused, RetryAfterSeconds: s.all.retryAfter, Reason: s.all.reason}
	for _, g := range s.runs {
		p.InFlight += len(g.inflight)
	}
	return p
}

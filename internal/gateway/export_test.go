package gateway

// Orphans says how many generations run without a client, and how many finished
// ones wait for a retry.
func (g *Gateway) Orphans() (running, kept int) {
	g.retries.mu.Lock()
	defer g.retries.mu.Unlock()
	for _, list := range g.retries.live {
		for _, gen := range list {
			switch {
			case gen.open == 0 && gen.stage == stageSampling:
				running++
			case gen.open == 0 && gen.stage != stageOver:
				kept++
			}
		}
	}
	return running, kept
}

// Bodies is how many bytes of requests' bodies are held.
func (g *Gateway) Bodies() int64 { return g.bodies.Load() }

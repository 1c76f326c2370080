package cli

import (
	"fmt"
	"maps"
	"net/http"
	"slices"
	"sync"

	"github.com/fulgur-rl/fulgur"
)

// health is what a controller's /healthz and /readyz say: which runs' agents are not run
// here, and why. It answers with 503 where that is all of them.
type health struct {
	mu   sync.Mutex
	runs map[fulgur.RunID]func() string // why not; "": they are
}

// set notes where the answer for a run is had; nil: it has ended.
func (h *health) set(id fulgur.RunID, why func() string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.runs[id] = why; why == nil {
		delete(h.runs, id)
	}
}

func (h *health) ServeHTTP(w http.ResponseWriter, _ *http.Request) {
	h.mu.Lock()
	runs := maps.Clone(h.runs)
	h.mu.Unlock()
	var lines []string
	for _, id := range slices.Sorted(maps.Keys(runs)) {
		if why := runs[id](); why != "" {
			lines = append(lines, fmt.Sprintf("the agents of run %s are not run: %s", id, why))
		}
	}
	if len(lines) > 0 && len(lines) == len(runs) {
		w.WriteHeader(http.StatusServiceUnavailable)
	} else {
		_, _ = fmt.Fprintln(w, "ok")
	}
	for _, l := range lines {
		_, _ = fmt.Fprintln(w, l)
	}
}

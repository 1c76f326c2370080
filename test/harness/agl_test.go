package harness

import (
	"strings"
	"testing"
	"time"
)

// TestAgentLightning runs the package agentlightning 1.0.2, unchanged, against
// fulgur serve: client, local controller, Kubernetes controller's calls, rollout
// managers, pause and drain (agl.py). The package itself registers the model.
func TestAgentLightning(t *testing.T) {
	needHarness(t, false)
	g := startGateway(t)
	m := newModel(t, "", []step{{text: "One turn."}, {text: "Another turn."}}, nil)
	out := runScript(t, "agentlightning", 2*time.Minute, g.url, serverKey, t.TempDir(), m.URL)
	for _, part := range []string{"client", "local controller and rollout managers", "pause, drain, resume", "Kubernetes controller", "cursor"} {
		if !strings.Contains(out, "ok: "+part+"\n") {
			t.Errorf("%s did not pass", part)
		}
	}
	if t.Failed() {
		t.Logf("it said:\n%s", tail(out, 8000))
	}
}

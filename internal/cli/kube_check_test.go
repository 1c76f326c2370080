package cli

import (
	"strings"
	"testing"

	"github.com/fulgur-rl/fulgur/internal/config"
)

// What keeps pods from the gateway shows before a run starts, where the addresses tell.
func TestWarningsOfTheGatewayForPods(t *testing.T) {
	for name, test := range map[string]struct{ listen, agentURL, server, want string }{
		"the defaults":                      {"127.0.0.1:0", "", "", "neither server nor runner.agent_url"},
		"a loopback address":                {"0.0.0.0:8080", "http://127.0.0.1:8080", "", "own loopback"},
		"localhost of a server":             {"127.0.0.1:0", "", "http://localhost:8080", "own loopback"},
		"another port at each start":        {"0.0.0.0:0", "http://10.0.0.1:8080", "", "another port at each start"},
		"it listens to this machine alone":  {"127.0.0.1:8080", "http://trainer:8080", "", "through a forwarder"},
		"another port":                      {"0.0.0.0:8081", "http://10.0.0.1:8080", "", "another port, which"},
		"a Service may have another port":   {"0.0.0.0:8081", "http://gateway.fulgur.svc:8080", "", ""},
		"as it should be":                   {"0.0.0.0:8080", "http://10.0.0.1:8080", "", ""},
		"a server":                          {"127.0.0.1:0", "", "http://gateway:8080", ""},
		"a server that pods reach elsewise": {"127.0.0.1:0", "http://gateway.fulgur.svc:8080", "http://127.0.0.1:8080", ""},
	} {
		f := config.Default()
		f.Runner.Kind, f.Listen, f.Runner.AgentURL = "kubernetes", test.listen, test.agentURL
		got := strings.Join(gatewayWarnings(&runFile{File: f}, test.server), "\n")
		if test.want == "" && got != "" || !strings.Contains(got, test.want) {
			t.Errorf("%s: %q, want %q", name, got, test.want)
		}
	}
}

package cli

import (
	"fmt"
	"os/exec"
	"strings"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"
)

// TestScript runs the command line as people type it. Each script finds the
// tiny run (run.yaml and its data) and $AGENT, the calc example's agent.
func TestScript(t *testing.T) {
	agent, err := calcAgent()
	if err != nil {
		t.Fatal(err)
	}
	testscript.Run(t, testscript.Params{
		Dir: "testdata/script",
		Setup: func(e *testscript.Env) error {
			e.Setenv("AGENT", agent)
			e.Setenv("GOCACHE", goEnv("GOCACHE"))
			e.Setenv("GOMODCACHE", goEnv("GOMODCACHE"))
			return writeRun(e.WorkDir, fmt.Sprintf(tinyRun, agent))
		},
		RequireExplicitExec: true,
		RequireUniqueNames:  true,
	})
}

// goEnv asks the go command for a setting, because scripts have a home of their
// own.
func goEnv(name string) string {
	out, _ := exec.Command("go", "env", name).Output() // without go, the script that needs it fails
	return strings.TrimSpace(string(out))
}

package cli

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"testing"

	"github.com/fulgur-rl/fulgur/internal/controller/runnertest"
)

// What agents without a sandbox have started dies with a run that is killed, before anybody
// resumes it.
func TestKilledRunLeavesNoChildrenOfAgents(t *testing.T) {
	t.Parallel()
	if runtime.GOOS != "linux" {
		t.Skip("daemons are found by their environment, which macOS does not show; make test runs it on Linux")
	}
	dir := tinyDir(t)
	p := start(t, dir, nil, "train", "run.yaml", "--set", "runner.sandbox=none", "--set",
		`agent.command=[/bin/sh, -c, 'sleep 600 & echo $! > child; setsid sh -c "echo \$\$ > daemon; exec sleep 600" & env -i sleep 600 & echo $! > bare; wait']`)
	pids := map[string]int{}
	for _, name := range []string{"child", "daemon", "bare"} {
		waitFor(t, name, func() bool {
			b, _ := os.ReadFile(filepath.Join(dir, name))
			var pid int
			n, _ := fmt.Sscanf(string(b), "%d\n", &pid)
			pids[name] = pid
			return n == 1
		})
	}
	p.kill()
	for name, pid := range pids {
		waitFor(t, name+" is dead", func() bool { return runnertest.Dead(pid) })
	}
}

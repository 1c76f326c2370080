package cli

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/fulgur-rl/fulgur/internal/config"
)

// A runner that cannot be made leaves none of its sandboxes open: each holds this
// program's own file.
func TestRunnerThatCannotBeMadeHoldsNothing(t *testing.T) {
	needBwrap(t)
	open := func() (n int) {
		self, err := os.Executable()
		if err != nil {
			t.Fatal(err)
		}
		fds, err := filepath.Glob("/proc/self/fd/*")
		if err != nil {
			t.Fatal(err)
		}
		for _, fd := range fds {
			if to, err := os.Readlink(fd); err == nil && to == self {
				n++
			}
		}
		return n
	}
	f := config.Default()
	f.Agent.Command, f.Agent.Workspace, f.Reward.Command = []string{"./no-such-agent"}, true, []string{"true"}
	dir := t.TempDir()
	j := controllerJob{file: &runFile{File: f, Dir: dir}, dir: runDir(filepath.Join(dir, "runs", "run")), run: "run", url: "http://127.0.0.1:1", log: (&app{}).logger("error"), say: t.Logf}
	before := open()
	if r, err := newLocal(t.Context(), j); err == nil {
		_ = r.Close()
		t.Fatal("a program that is not there was taken")
	}
	if after := open(); after != before {
		t.Errorf("%d sandboxes are open", after-before)
	}
}

package cli

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// TestRunKeepsItsServer: a run that was trained with a server goes on with it,
// never without its record; one whose record is in its folder never at a server.
func TestRunKeepsItsServer(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("starts three processes: left out by -short, make test runs it")
	}
	serverDir, dir := t.TempDir(), tinyDir(t)
	server := start(t, serverDir, nil, "serve", "--listen", "127.0.0.1:0", "--key", "K", "--model-dir", "builtin:calc")
	url := server.says("listening on ")
	env := []string{"FULGUR_SERVER=" + url, "FULGUR_KEY=K"}
	controller := start(t, dir, env, "controller", "run.yaml")
	train := []string{"train", "run.yaml", "--set", "data.test=", "--server", url, "--key", "K"}
	start(t, dir, nil, train...).ends(time.Minute, exitOK, "step 2/2")
	folder := filepath.Join(dir, "runs", "tiny")

	// A second run of the name: what is there is named, and no folder is left.
	start(t, dir, nil, train...).ends(time.Minute, exitFailed, url, `rollouts of a run "tiny" already`, "fulgur resume "+folder+"`", "--set run=NAME")
	if left, err := filepath.Glob(filepath.Join(dir, "runs", "tiny-[0-9]*")); err != nil || len(left) > 0 {
		t.Errorf("left behind: %v %v", left, err)
	}

	start(t, dir, nil, "resume", "tiny", "--steps", "3").ends(time.Minute, exitFailed, "reach "+url, "--key KEY")
	start(t, dir, nil, "resume", "tiny", "--steps", "3", "--key", "K").ends(time.Minute, exitOK, "step 3/3")
	if _, err := os.Stat(filepath.Join(folder, "store.db")); err == nil {
		t.Error("resume made a store of its own")
	}
	start(t, dir, nil, "rollouts", "list", "--run", "tiny").ends(time.Minute, exitFailed, "--server "+url+" --run tiny")

	// A server that does not know the run.
	other := start(t, t.TempDir(), nil, "serve", "--listen", "127.0.0.1:0", "--key", "K", "--model-dir", "builtin:calc")
	elsewhere := other.says("listening on ")
	start(t, dir, nil, "resume", "tiny", "--steps", "4", "--key", "K", "--server", elsewhere).ends(time.Minute, exitFailed, "no rollouts of the run")
	// A folder of before the server was noted in it.
	origin := filepath.Join(folder, "origin.json")
	b, err := os.ReadFile(origin)
	if err == nil {
		err = os.WriteFile(origin, []byte(strings.Replace(string(b), url, "", 1)), 0o644)
	}
	if err != nil {
		t.Fatal(err)
	}
	start(t, dir, nil, "resume", "tiny", "--steps", "4").ends(time.Minute, exitUsage, "was trained with a server")

	// And the other way round.
	alone := tinyDir(t)
	run(t, alone, "train", "run.yaml", "--set", "data.test=")
	start(t, alone, env, "resume", "tiny", "--steps", "3").ends(time.Minute, exitUsage, "its record is in its folder")
	run(t, alone, "resume", "tiny", "--steps", "3")

	controller.signal(os.Interrupt)
	controller.ends(20*time.Second, exitOK)
}

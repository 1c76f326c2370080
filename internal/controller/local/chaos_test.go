package local

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/fulgur-rl/fulgur"
	"github.com/fulgur-rl/fulgur/internal/controller/runnertest"
)

// The controller is killed 20 times while 300 rollouts run (FULGUR_LONG; 4 times
// and 60 without it): every rollout ends well, by one attempt; no two processes of
// one rollout ever live at once; nothing is left over.
func TestLongControllerIsKilledAtRandom(t *testing.T) { chaos(t) }

func TestLongSandboxedControllerIsKilledAtRandom(t *testing.T) {
	needBwrap(t)
	t.Setenv("FULGUR_TEST_BOX", "1")
	chaos(t)
}

func chaos(t *testing.T) {
	rollouts, kills := 60, 4
	if os.Getenv("FULGUR_LONG") != "" {
		rollouts, kills = 300, 20
	} else if testing.Short() {
		t.Skip("seconds of killing; FULGUR_LONG=1 makes it longer")
	}
	dir := t.TempDir()
	db := filepath.Join(dir, "store.db")
	var specs []fulgur.RolloutSpec
	for i := range rollouts {
		id := fmt.Sprintf("r-%d", i)
		input, _ := json.Marshal(map[string]string{"do": "alone " + filepath.Join(dir, id) + "; child " + filepath.Join(dir, id) + ".child; sleep 150"})
		specs = append(specs, fulgur.RolloutSpec{ID: fulgur.RolloutID(id), Run: "calc", Input: input})
	}
	runnertest.Record(t, db, specs)

	begun := 0
	begin := func() *exec.Cmd {
		begun++
		c := exec.Command(os.Args[0])
		told := []string{"late", "early"}[begun%2] // when a start is on record
		c.Env = append(os.Environ(), "FULGUR_TEST_CONTROLLER="+db, "FULGUR_TEST_CHAOS="+told)
		c.Stderr = os.Stderr
		if err := c.Start(); err != nil {
			t.Fatal(err)
		}
		return c
	}
	runnertest.Kills{Begin: begin, Times: kills, After: 100 * time.Millisecond, Spread: 600 * time.Millisecond, Done: db + ".done", Patience: 2 * time.Minute}.Run(t)

	s, ctrl, r, err := house(t.Context(), db, false, false)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = s.Close() }()
	defer func() { _ = r.Close() }()
	runnertest.EndedOnce(t, s, specs)
	if twice, _ := filepath.Glob(filepath.Join(dir, "*.twice")); len(twice) > 0 {
		t.Errorf("two processes at once: %v", twice)
	}
	// The last controller was killed too; what it left, its successor ends.
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- ctrl.Run(ctx) }()
	mine := r.(unproven).owner
	scope, _, _ := strings.Cut(mine, "/")
	runnertest.Until(t, "no process is left", func() bool {
		return len(marked(func(m string) bool { return strings.HasPrefix(m, scope+"/") })) == 0
	})
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

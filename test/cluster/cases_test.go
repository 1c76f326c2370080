package cluster

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/fulgur-rl/fulgur"
	"github.com/fulgur-rl/fulgur/internal/controller/plan"
	"github.com/fulgur-rl/fulgur/internal/controller/runnertest"
)

// Whatever a rollout is called, its Job has a name that the cluster takes, of its
// own, and says in full whose it is.
func TestOddIDs_CK05(t *testing.T) {
	h := build(t)
	h.control(h.options(shell), plan.Limits{})
	ids := []fulgur.RolloutID{fulgur.RolloutID(strings.Repeat("x", 52)), fulgur.RolloutID(strings.Repeat("x", 100)), fulgur.RolloutID(strings.Repeat("x", 99) + "y"), "UPPER_x/..", "upper_x/..", "ünïcödé 日本", "a b", "-a"}
	inputs := map[fulgur.RolloutID]map[string]string{}
	for _, id := range ids {
		inputs[id] = in(`printf %s "$FULGUR_ROLLOUT_ID" > ` + h.share + `/$(hostname); until [ -e ` + h.share + `/go ]; do sleep 0.1; done`)
	}
	h.rollouts(inputs)
	runnertest.Until(t, "each has a Job and a pod of its own", func() bool { return len(h.jobs()) == len(ids) && len(h.pods()) == len(ids) })
	whose := map[string]bool{}
	for _, j := range h.jobs() {
		whose[j.Annotations["fulgur/rollout-id"]] = true
	}
	for _, id := range ids {
		if !whose[string(id)] {
			t.Errorf("no Job says that it is %q's", id)
		}
	}
	if err := os.WriteFile(filepath.Join(h.share, "go"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	for _, id := range ids {
		if r := h.ended(id); r.State != fulgur.Succeeded || len(h.attempts(id)) != 1 {
			t.Errorf("%q: %+v", id, *r.Outcome)
		}
	}
	h.empty()
}

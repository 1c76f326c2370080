package cluster

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

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

// A quota on pods lets Jobs in and their pods not: they wait all the same, and none
// is taken for one that does not start.
func TestQuotaOnPods_CK03(t *testing.T) {
	if os.Getenv("FULGUR_LONG") == "" {
		t.Skip("takes 3 minutes, for the Job controller takes its time: FULGUR_LONG=1 runs it")
	}
	h := build(t)
	h.create(h.Core("resourcequotas"), map[string]any{"metadata": map[string]string{"name": "few"}, "spec": map[string]any{"hard": map[string]string{"pods": "2"}}}, nil)
	h.Until("the quota is counted", func() bool {
		var q corev1.ResourceQuota
		h.get(h.Core("resourcequotas/few"), &q)
		return len(q.Status.Used) > 0
	})
	c, _ := h.control(h.options(shell), plan.Limits{Slots: 8, Starting: 8, Start: 30 * time.Second})
	inputs := map[fulgur.RolloutID]map[string]string{}
	for i := range 8 {
		inputs[fulgur.RolloutID(fmt.Sprint("r-", i))] = in("until [ -e " + h.share + "/go ]; do sleep 0.1; done")
	}
	h.rollouts(inputs)
	h.Until("six wait for room", func() bool { s := c.Stats(); return s.Waiting == 6 && s.Running == 2 })
	time.Sleep(35 * time.Second) // longer than a start may take
	if err := os.WriteFile(filepath.Join(h.share, "go"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	h.settle(4 * time.Minute)
	for id := range inputs {
		if r := h.rollout(id); r.State != fulgur.Succeeded || len(h.attempts(id)) != 1 {
			t.Errorf("%s: %+v, %d attempts", id, *r.Outcome, len(h.attempts(id)))
		}
	}
	h.empty()
}

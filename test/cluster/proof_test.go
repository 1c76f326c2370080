package cluster

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/fulgur-rl/fulgur"
	"github.com/fulgur-rl/fulgur/internal/controller"
	"github.com/fulgur-rl/fulgur/internal/controller/kube"
	"github.com/fulgur-rl/fulgur/internal/controller/plan"
)

// filled is a controller of a run whose probes have to run. What it leaves is left when it
// is stopped.
func (h *house) filled(o kube.Options, slots int) (stop func() error, told func() string) {
	h.t.Helper()
	r, err := kube.New(o)
	if err != nil {
		h.t.Fatal(err)
	}
	var mu sync.Mutex
	var said []string
	c, err := controller.New(controller.Options{Run: run, AgentURL: h.model.url, Model: "m", Limits: plan.Limits{Slots: slots, Lost: 3}, LeaseTTL: 2 * time.Second, RunWindow: -1, Leave: true, Log: logger(h.t),
		Tell: func(s string) { mu.Lock(); defer mu.Unlock(); said = append(said, s) }}, h.store, nil, r)
	if err != nil {
		h.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- c.Run(ctx) }()
	stop = sync.OnceValue(func() error {
		cancel()
		err := <-done
		if e := r.Close(); e != nil {
			h.t.Error("close:", e)
		}
		return err
	})
	h.t.Cleanup(func() { _ = stop() })
	return stop, func() string { mu.Lock(); defer mu.Unlock(); return strings.Join(said, "\n") }
}

// A quota as large as the run's slots is full of its agents, so that a controller that
// is started again has no room for its probes. It takes the agents over all the same,
// tells their ends, and starts others when the probes have had their room. (CK-03, CK-11)
func TestTakingOverAFullQuota(t *testing.T) {
	const slots = 3
	h := build(t)
	bin := program(t)
	o := h.options(shell)
	o.ProbeImage, o.ProbeCommand = hostImage, []string{bin}
	h.create(h.Core("resourcequotas"), &corev1.ResourceQuota{ObjectMeta: metav1.ObjectMeta{Name: "slots"}, Spec: corev1.ResourceQuotaSpec{Hard: corev1.ResourceList{"count/jobs.batch": resource.MustParse(fmt.Sprint(slots))}}}, nil)
	h.Until("the quota is counted", func() bool {
		var q corev1.ResourceQuota
		h.get(h.Core("resourcequotas/slots"), &q)
		return len(q.Status.Hard) > 0
	})
	stop, _ := h.filled(o, slots)
	all := map[fulgur.RolloutID]map[string]string{}
	for i := range 2 * slots {
		id := fulgur.RolloutID(fmt.Sprint("r-", i))
		all[id] = in(h.noted(id, fmt.Sprintf("until [ -e %s/go ]; do sleep 0.2; done", h.share)))
	}
	h.rollouts(all)
	h.Until("the quota is full of agents that run", func() bool {
		n := 0
		for _, p := range h.pods() {
			if p.Status.Phase == corev1.PodRunning && p.Labels["batch.kubernetes.io/job-name"] != "" {
				n++
			}
		}
		return n == slots
	})
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	begin := time.Now()
	_, told := h.filled(o, slots)
	h.Until("it is told what starts wait for", func() bool { return strings.Contains(told(), "exceeded quota") })
	t.Logf("waits after %s: %s", time.Since(begin).Round(time.Millisecond), told())
	if jobs := h.jobs(); len(jobs) != slots {
		t.Errorf("%d Jobs, want the %d that were left", len(jobs), slots)
	}
	if err := os.WriteFile(filepath.Join(h.share, "go"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	h.settle(patience)
	t.Logf("all had ended after %s", time.Since(begin).Round(time.Millisecond))
	h.accounts(2 * slots)
	for id := range all {
		if a := h.attempts(id); len(a) != 1 {
			t.Errorf("%s had %d attempts", id, len(a))
		}
	}
	if !strings.Contains(told(), "are started again") {
		t.Errorf("told %q", told())
	}
}

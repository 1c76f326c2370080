package kube

import (
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/fulgur-rl/fulgur"
	"github.com/fulgur-rl/fulgur/internal/controller/runnertest"
)

// What a start waits for that takes long is told, once a minute at most.
func TestASlowStartSaysWhatItWaitsFor(t *testing.T) {
	a := newAPI(t)
	r := testRunner(t, a)
	runnertest.Start(t, r, runnertest.Execution("a", "x"))
	a.has(name("a"), true)
	waits := func(message string) {
		a.pod(name("a"), func(p *corev1.Pod) {
			p.Status.Phase = corev1.PodPending
			p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: "Unschedulable", Message: message}}
		})
		runnertest.Until(t, "it is seen", func() bool {
			r.mu.Lock()
			defer r.mu.Unlock()
			for _, a := range r.live {
				return strings.Contains(a.why, message)
			}
			return false
		})
	}
	tells := func(after time.Duration, why string) {
		t.Helper()
		r.tellSlow(time.Now().Add(after))
		if why == "" {
			r.mu.Lock()
			defer r.mu.Unlock()
			if len(r.outbox) > 0 {
				t.Errorf("told %+v", r.outbox)
			}
			return
		}
		if ev := event(t, r); ev.Phase != fulgur.PhaseStarting || !strings.Contains(ev.Why, why) {
			t.Errorf("event %+v, want %q", ev, why)
		}
	}
	waits("0/3 nodes: cpu")
	tells(0, "") // it may still start as others do
	tells(explainEvery, "no node takes its pod (Unschedulable): 0/3 nodes: cpu")
	tells(explainEvery+2*retellEvery, "") // it is no news
	waits("0/4 nodes: memory")
	tells(explainEvery+retellEvery/2, "")
	tells(explainEvery+2*retellEvery, "0/4 nodes: memory")
	a.running(name("a"))
	if ev := event(t, r); ev.Phase != fulgur.PhaseRunning {
		t.Errorf("event %+v", ev)
	}
	tells(time.Hour, "")
}

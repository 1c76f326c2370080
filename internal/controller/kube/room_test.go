package kube

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/fulgur-rl/fulgur"
	"github.com/fulgur-rl/fulgur/internal/controller"
	"github.com/fulgur-rl/fulgur/internal/controller/plan"
	"github.com/fulgur-rl/fulgur/internal/controller/runnertest"
)

// failedCreate is the Event of a Job whose pod a quota does not let be.
func failedCreate(job, uid string) corev1.Event {
	return corev1.Event{InvolvedObject: corev1.ObjectReference{Kind: "Job", Name: job, UID: types.UID(uid)}, Reason: "FailedCreate", Message: `pods "x" is forbidden: exceeded quota: small`}
}

// Under a quota of pods each Job has such an Event, and a list has 500 at once: those
// behind them wait too.
func TestAllJobsWithoutAPodWait_CK03(t *testing.T) {
	a := newAPI(t)
	a.noPods = true
	r := testRunner(t, a)
	runnertest.Start(t, r, runnertest.Execution("a", "x"))
	a.has(name("a"), true)
	runnertest.Until(t, "its Job is known", func() bool {
		r.mu.Lock()
		defer r.mu.Unlock()
		return r.byName[name("a")].uid != ""
	})
	a.mu.Lock()
	for i := range 1200 {
		a.failed = append(a.failed, failedCreate(fmt.Sprintf("other-%d", i), "u"))
	}
	a.failed = append(a.failed, failedCreate(name("a"), string(a.jobs[name("a")].UID)))
	a.mu.Unlock()
	if err := r.explainNow(t.Context()); err != nil {
		t.Fatal(err)
	}
	if ev := event(t, r); ev.Phase != fulgur.PhaseWaiting || !strings.Contains(ev.Why, "exceeded quota") {
		t.Errorf("event %+v", ev)
	}
}

// A quota that leaves probes no room is what a controller waits for: it is no refusal
// of the run.
func TestProbesWaitForAQuota(t *testing.T) {
	for name, play := range map[string]func(a *api){
		"of Jobs": func(a *api) {
			a.setFault(func(q *http.Request) (int, string) {
				if q.Method == http.MethodPost && strings.HasSuffix(q.URL.Path, "/jobs") {
					return refusalText(http.StatusForbidden, "Forbidden", `jobs.batch "x" is forbidden: exceeded quota: small`)
				}
				return 0, ""
			})
		},
		"of pods": func(a *api) {
			a.quotaOfPods()
		},
	} {
		t.Run(name, func(t *testing.T) {
			if name == "of pods" {
				long(t)
			}
			a := newAPI(t)
			r := testRunner(t, a, func(o *Options) { o.ProbeImage = "probe" })
			play(a)
			if err := r.Prove(t.Context(), "http://gateway:1"); fulgur.KindOf(err) != fulgur.KindExhausted || !strings.Contains(err.Error(), "exceeded quota") {
				t.Errorf("%s: %v", fulgur.KindOf(err), err)
			}
		})
	}
}

// Where a quota leaves room for one probe, one is sent at a time, and the Jobs of those
// that have ended make room for it.
func TestProbesMakeDoWithAQuotaOfOne(t *testing.T) {
	a := newAPI(t)
	r := testRunner(t, a, func(o *Options) { o.ProbeImage = "probe" })
	a.log = `{"closed":["x"]}` + "\n"
	a.setFault(func(q *http.Request) (int, string) {
		a.mu.Lock()
		defer a.mu.Unlock()
		if q.Method == http.MethodPost && strings.HasSuffix(q.URL.Path, "/jobs") && len(a.jobs) > 0 {
			return refusalText(http.StatusForbidden, "Forbidden", `jobs.batch "x" is forbidden: exceeded quota: one`)
		}
		return 0, ""
	})
	ctx, done := context.WithCancel(t.Context())
	defer done()
	go func() { // a cluster of two nodes; a third probe comes to one of them
		seen := 0
		for ctx.Err() == nil {
			a.mu.Lock()
			for _, p := range a.pods {
				if p.Spec.NodeName == "" {
					p.Spec.NodeName = fmt.Sprintf("n%d", min(seen, 1))
					seen++
					p.Status.Phase = corev1.PodSucceeded
					p.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: probeName, State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{}}}}
				}
			}
			a.mu.Unlock()
			pause(ctx, 5*time.Millisecond)
		}
	}()
	var found []string
	mark := r.newMark()
	nodes, err := r.scout(t.Context(), "http://gateway:1", mark, 20*time.Second, func(node string, f *ProbeResult, why string) error {
		found = append(found, node+why)
		if len(found) == 2 {
			return context.Canceled // enough
		}
		return nil
	})
	if len(nodes) != 2 || len(found) != 2 || found[0] != "n0" || found[1] != "n1" {
		t.Errorf("nodes %v, found %q, %v", nodes, found, err)
	}
}

// A Job that does not go, as one whose pod is on a node that is lost, keeps no controller
// from taking over the others.
func TestAdoptGoesOnBesideAJobThatDoesNotGo(t *testing.T) {
	a := newAPI(t)
	first := testRunner(t, a, func(o *Options) { o.Scope = "mine" })
	for _, id := range []string{"a", "b"} {
		runnertest.Start(t, first, runnertest.Execution(id, "x"))
		a.has(name(id), true)
		a.running(name(id))
		event(t, first)
	}
	dies(t, first)
	a.setFault(func(q *http.Request) (int, string) {
		if q.Method == http.MethodDelete {
			return http.StatusOK, "{}"
		}
		return 0, ""
	})
	r := testRunner(t, a, func(o *Options) { o.Scope = "mine" })
	r.adoptLimit, r.forceAfter, r.Grace = 300*time.Millisecond, 0, 0
	wanted := plan.Key{Rollout: "a", Attempt: "0"}
	keys, err := r.Adopt(t.Context(), []controller.Leftover{{Key: wanted, Phase: fulgur.PhaseRunning}})
	if err != nil || len(keys) != 1 || keys[0] != wanted {
		t.Errorf("adopted %v, %v", keys, err)
	}
	runnertest.Until(t, "its pod is removed by force", func() bool { return a.count("DELETE pods", time.Time{}) > 0 })
}

// What the agents of a dead run leave when they have ended has a part of a quota: it
// goes when nobody has come for it, but for what is kept for people.
func TestEndedJobsOfADeadRunGo_CK11(t *testing.T) {
	a := newAPI(t)
	dead := testRunner(t, a, func(o *Options) { o.Scope = "dead" })
	for _, id := range []string{"a", "kept"} {
		runnertest.Start(t, dead, runnertest.Execution(id, "x"))
		a.has(name(id), true)
		a.exits(name(id), 0)
		event(t, dead)
		event(t, dead)
		a.job(name(id), func(j *batchv1.Job) {
			j.Status.Conditions = []batchv1.JobCondition{{Type: batchv1.JobComplete, Status: corev1.ConditionTrue}}
			if id == "kept" {
				day := int32(24 * 3600)
				j.Spec.TTLSecondsAfterFinished = &day
			}
		})
	}
	runnertest.Until(t, "its lease is held", func() bool { a.mu.Lock(); defer a.mu.Unlock(); return a.leases[dead.leaseName()] != nil })
	dies(t, dead)
	since := func(leases int) {
		a.mu.Lock()
		defer a.mu.Unlock()
		l := a.leases[dead.leaseName()]
		l.Spec.RenewTime = metav1.NewMicroTime(time.Now().Add(-time.Duration(leases*l.Spec.LeaseDurationSeconds)*time.Second - time.Minute))
	}
	other := testRunner(t, a, func(o *Options) { o.Scope = "other" })
	since(1)
	if err := other.sweep(t.Context()); err != nil {
		t.Fatal(err)
	}
	a.has(name("a"), true) // its controller may come back
	since(2)
	if err := other.sweep(t.Context()); err != nil {
		t.Fatal(err)
	}
	a.has(name("a"), false)
	a.has(name("kept"), true)
}

// Where a quota leaves the pods that fetch images no room, that is what is said.
func TestFetchingImagesUnderAQuotaOfPods(t *testing.T) {
	long(t)
	a := newAPI(t)
	a.quotaOfPods()
	var told []string
	r := testRunner(t, a, func(o *Options) {
		o.ProbeImage, o.Prepull = "probe", 1
		o.Tell = func(format string, args ...any) { told = append(told, fmt.Sprintf(format, args...)) }
	})
	if _, err := r.prepull(t.Context(), r.newMark(), []string{"one", "two"}); err != nil {
		t.Fatal(err)
	}
	all := strings.Join(told, "\n")
	if !strings.Contains(all, "a quota leaves the others no room yet") || !strings.Contains(all, "a quota left no room: pods") || strings.Contains(all, "still fetching") || strings.Contains(all, "0 nodes fetched") {
		t.Errorf("told:\n%s", all)
	}
}

// quotaOfPods has no Job get its pod, and Events say why.
func (a *api) quotaOfPods() {
	a.noPods = true
	a.setFault(func(q *http.Request) (int, string) {
		if strings.HasSuffix(q.URL.Path, "/events") {
			a.mu.Lock()
			defer a.mu.Unlock()
			a.failed = nil
			for job := range a.jobs {
				a.failed = append(a.failed, failedCreate(job, "u"))
			}
		}
		return 0, ""
	})
}

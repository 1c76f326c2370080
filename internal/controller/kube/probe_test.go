package kube

import (
	"net/http"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// A probe that has ended keeps no other away from its node: on a small cluster a
// second one comes, which is not waited for. But one that was only late says nothing
// of other nodes.
func TestASecondProbeOnANodeMeansThereIsNoOther(t *testing.T) {
	ended, running := corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{}}, corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}
	on := func(uid, node string, s corev1.ContainerState) corev1.Pod {
		p := corev1.Pod{}
		p.UID, p.Spec.NodeName = types.UID(uid), node
		p.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: probeName, State: s}}
		return p
	}
	nowhere := func(uid string) corev1.Pod {
		p := corev1.Pod{}
		p.UID = types.UID(uid)
		p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: corev1.PodReasonUnschedulable}}
		return p
	}
	for name, c := range map[string]struct {
		before, now []corev1.Pod
		again       bool
		ended       int
	}{
		"one node":                    {[]corev1.Pod{on("a", "n1", running), nowhere("b")}, []corev1.Pod{on("a", "n1", ended), on("b", "n1", running)}, true, 1},
		"both over":                   {[]corev1.Pod{on("a", "n1", running), nowhere("b")}, []corev1.Pod{on("a", "n1", ended), on("b", "n1", ended)}, true, 2},
		"still nowhere":               {[]corev1.Pod{on("a", "n1", running), nowhere("b")}, []corev1.Pod{on("a", "n1", ended), nowhere("b")}, false, 1},
		"another node became free":    {[]corev1.Pod{on("a", "n1", running), nowhere("b")}, []corev1.Pod{on("a", "n1", ended), on("b", "n2", running)}, false, 1},
		"only late":                   {[]corev1.Pod{on("a", "n1", running)}, []corev1.Pod{on("a", "n1", ended), on("b", "n1", running)}, false, 1},
		"another node's is under way": {[]corev1.Pod{on("a", "n1", running), on("c", "n2", running), nowhere("b")}, []corev1.Pod{on("a", "n1", ended), on("c", "n2", running), on("b", "n1", running)}, false, 1},
		"only late, after one waited": {[]corev1.Pod{nowhere("a"), on("c", "n2", running)}, []corev1.Pod{on("a", "n1", running), on("c", "n2", ended)}, false, 1},
	} {
		refused := map[types.UID]bool{}
		if s := tally(c.before, refused); s.again || len(s.ended) > 0 {
			t.Errorf("%s: before: %+v", name, s)
		}
		if s := tally(c.now, refused); s.again != c.again || len(s.ended) != c.ended {
			t.Errorf("%s: again %v, %d ended", name, s.again, len(s.ended))
		}
		if name == "only late, after one waited" {
			if s := tally([]corev1.Pod{on("a", "n1", ended), on("b", "n1", ended), on("c", "n2", ended)}, refused); s.again {
				t.Errorf("%s: again", name)
			}
		}
	}
}

// A probe is there though the request's answer was lost: asked for again, it is in
// its own way.
func TestAProbeThatIsThereIsTaken(t *testing.T) {
	a := newAPI(t)
	r := testRunner(t, a)
	a.setFault(func(q *http.Request) (int, string) {
		if q.Method == http.MethodPost && strings.HasSuffix(q.URL.Path, "/jobs") {
			return refusalText(http.StatusConflict, "AlreadyExists", "jobs is there")
		}
		return 0, ""
	})
	if err := r.sendProbe(t.Context(), r.probeJob(r.newMark()+"-0", "0", nil, nil)); err != nil {
		t.Error(err)
	}
}

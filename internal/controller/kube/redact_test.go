package kube

import (
	"strings"
	"testing"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"

	"github.com/google/go-cmp/cmp"

	"github.com/fulgur-rl/fulgur"
	"github.com/fulgur-rl/fulgur/internal/controller"
	"github.com/fulgur-rl/fulgur/internal/controller/plan"
	"github.com/fulgur-rl/fulgur/internal/controller/runnertest"
)

func TestMarksFindWhatTheyAreOf(t *testing.T) {
	const one, two = "fk-0123456789abcdef", "other secret"
	for name, c := range map[string]struct {
		marks, text string
		want        []string
		ok          bool
	}{
		"none":            {marks(nil), "x " + one, nil, true},
		"in the middle":   {marks([]string{one}), "key=" + one + "&", []string{one}, true},
		"all there is":    {marks([]string{one}), one, []string{one}, true},
		"cut off":         {marks([]string{one}), one[1:], nil, true},
		"several":         {marks([]string{one, two}), two + one, []string{one, two}, true},
		"a hash alone":    {mark(one), one, nil, false},
		"no length":       {mark(one) + ".x", one, nil, false},
		"longer than all": {marks([]string{one}), "", nil, true},
	} {
		got, ok := marked(c.marks, c.text)
		if d := cmp.Diff(c.want, got); d != "" || ok != c.ok {
			t.Errorf("%s: %v %s", name, ok, d)
		}
	}
}

// What an attempt says is on its rollout, and in the cluster's Events: without its
// credential, also where this controller never had that.
func TestNobodySaysACredential(t *testing.T) {
	a := newAPI(t)
	a.log = "key secret-a of a\n"
	old := testRunner(t, a)
	for _, id := range []string{"a", "b", "c"} {
		begun(t, a, old, id)
	}
	fails := func(id string) {
		a.pod(name(id), func(p *corev1.Pod) {
			p.Status.Phase = corev1.PodFailed
			p.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "agent", State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{
				ExitCode: 128, Reason: "StartError", Message: "no program secret-" + id}}}}
		})
	}
	said := func(r *Runner, id, tail, message string) {
		t.Helper()
		fails(id)
		x := runnertest.Exit(t, r, id)
		if x.Tail != tail || !strings.Contains(x.Message, message) || strings.Contains(x.Message, "secret-") {
			t.Errorf("%s: exit %+v", id, x)
		}
	}
	events := func(n int) {
		t.Helper()
		runnertest.Until(t, "their Events are there", func() bool { a.mu.Lock(); defer a.mu.Unlock(); return len(a.events) >= n })
	}
	said(old, "b", "key secret-a of a", "no program [credential]")
	events(1)
	dies(t, old)
	a.job(name("c"), func(j *batchv1.Job) { delete(j.Annotations, noteCredential) })
	r := testRunner(t, a)
	if _, err := r.Adopt(t.Context(), []controller.Leftover{
		{Key: plan.Key{Rollout: "a", Attempt: "0"}, Phase: fulgur.PhaseRunning}, {Key: plan.Key{Rollout: "c", Attempt: "0"}, Phase: fulgur.PhaseRunning},
	}); err != nil {
		t.Fatal(err)
	}
	said(r, "a", "key [credential] of a", "no program [credential]")
	said(r, "c", unmarked, unmarked)
	events(3)
	a.mu.Lock()
	defer a.mu.Unlock()
	if all := strings.Join(a.events, "\n"); strings.Contains(all, "secret-") {
		t.Errorf("events %s", all)
	}
}

package cluster

import (
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/fulgur-rl/fulgur"
	"github.com/fulgur-rl/fulgur/internal/controller"
	"github.com/fulgur-rl/fulgur/internal/controller/kube"
	"github.com/fulgur-rl/fulgur/internal/controller/plan"
	"github.com/fulgur-rl/fulgur/internal/controller/runnertest"
)

// conformant is the Job of the conformance suite: its agent is this test binary.
const conformant = `
apiVersion: batch/v1
kind: Job
metadata: {name: "{{ job_name }}"}
spec:
  template:
    spec:
      terminationGracePeriodSeconds: 1
      hostPID: true # process 1 of a namespace cannot kill itself, as one agent does
      containers:
      - name: agent
        image: kubebox.test/host:1
        command: [BINARY]
        volumeMounts: [{name: share, mountPath: SHARE}, {name: bin, mountPath: BINFOLDER, readOnly: true}]
      volumes:
      - {name: share, hostPath: {path: SHARE}}
      - {name: bin, hostPath: {path: BINFOLDER}}
`

func TestConformance(t *testing.T) {
	share := t.TempDir()
	fresh := func(t *testing.T, s runnertest.Setup, ns string) controller.Runner {
		o := options(t, os.Getenv("FULGUR_TEST_KUBE"), ns, share, strings.NewReplacer("BINARY", os.Args[0], "BINFOLDER", filepath.Dir(os.Args[0])).Replace(conformant))
		o.Env = map[string]string{runnertest.AgentEnv: "process", "DO": "input.do"}
		o.InputFile = s.Input == "file"
		r, err := kube.New(o)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = r.Close() })
		return r
	}
	var namespace string
	runnertest.Run(t, runnertest.Variant{
		New: func(t *testing.T, s runnertest.Setup) controller.Runner {
			namespace = open(t).ns
			return fresh(t, s, namespace)
		},
		Again: func(t *testing.T, s runnertest.Setup, _ controller.Runner) controller.Runner {
			return fresh(t, s, namespace)
		},
		Lacks: runnertest.Lacks{Stdin: true, Signal: true, Redact: true, Grader: true},
		Wait:  patience, Grace: time.Second,
		Dir: func(t *testing.T) string {
			dir, err := os.MkdirTemp(share, "")
			if err != nil {
				t.Fatal(err)
			}
			return dir
		},
	})
}

// A bad image is told early, with its name, and is no agent that runs.
func TestBadImage_CK01(t *testing.T) {
	h := build(t)
	o := h.options(strings.ReplaceAll(shell, "kubebox.test/host:1", `"{{ input.image }}"`))
	o.ImageLimit = 5 * time.Second
	h.control(o, plan.Limits{Start: 2 * time.Minute, Table: plan.Table{Retries: 1}})
	h.rollouts(map[fulgur.RolloutID]map[string]string{
		"bad":  in("", "image", "does-not-exist:1"),
		"good": in("exit 0", "image", hostImage),
	})
	for !h.rollout("bad").State.Terminal() {
		if a := h.attempts("bad"); len(a) > 0 && a[len(a)-1].Phase == fulgur.PhaseRunning {
			t.Fatal("an attempt whose image cannot be had is told to run")
		}
		time.Sleep(20 * time.Millisecond)
	}
	r := h.rollout("bad")
	if r.Outcome.Class != fulgur.OutcomeInfrastructure || r.Outcome.Reason != plan.ReasonImage || !strings.Contains(r.Outcome.Message, "does-not-exist:1") {
		t.Errorf("outcome %+v", *r.Outcome)
	}
	if r := h.ended("good"); r.State != fulgur.Succeeded {
		t.Errorf("its neighbour: %+v", *r.Outcome)
	}
	h.empty()
}

// The end of the agent is the end, whatever runs beside it.
func TestSidecarHoldsNothingUp_CK08(t *testing.T) {
	h := build(t)
	o := h.options(strings.Replace(shell, "      volumes:", `      - name: proxy
        image: kubebox.test/host:1
        command: [sleep, "3600"]
      volumes:`, 1))
	h.control(o, plan.Limits{})
	begin := time.Now()
	h.rollouts(map[fulgur.RolloutID]map[string]string{"good": in("exit 0"), "bad": in("exit 3")})
	if r := h.ended("good"); r.State != fulgur.Succeeded {
		t.Errorf("outcome %+v", *r.Outcome)
	}
	if r := h.ended("bad"); r.Outcome.Reason != plan.ReasonExit || r.Outcome.ExitCode == nil || *r.Outcome.ExitCode != 3 {
		t.Errorf("outcome %+v", *r.Outcome)
	}
	t.Logf("both ended after %s", time.Since(begin))
	h.empty()
}

// What ended a pod is told apart, and what was not the agent's fault is tried again.
func TestEndsAreToldApart_CK09(t *testing.T) {
	h := build(t)
	o := h.options(strings.Replace(shell, "        volumeMounts:", "        resources: {limits: {memory: 48Mi}}\n        volumeMounts:", 1))
	h.control(o, plan.Limits{Table: plan.Table{Retries: 2}})
	once := fmt.Sprintf(`[ "$FULGUR_ATTEMPT_ID" = 0 ] || exit 0; touch %s/`, h.share)
	inputs := map[fulgur.RolloutID]map[string]string{
		"exits": in("echo the last words; exit 1"),
		"evict": in(once + "evict; sleep 300"),
		"drain": in(once + "drain; sleep 300"),
	}
	var n corev1.Node
	h.get("/api/v1/nodes/node-1", &n)
	limited := n.Labels["kubebox.test/memory"] == "limited"
	if limited {
		inputs["eats"] = in("head -c 300000000 /dev/zero | tail; exit 137")
	}
	h.rollouts(inputs)

	h.wrote("evict")
	pod, _ := h.podOf("evict")
	h.annotate(pod, "kubebox.test/evict", "The node was low on resource: memory.")
	h.wrote("drain")
	pod, _ = h.podOf("drain")
	h.create(h.Core("pods/"+pod+"/eviction"), map[string]any{"apiVersion": "policy/v1", "kind": "Eviction", "metadata": map[string]string{"name": pod, "namespace": h.ns}}, nil)

	if r := h.ended("exits"); r.Outcome.Class != fulgur.OutcomeAgent || r.Outcome.Reason != plan.ReasonExit || !strings.Contains(r.Outcome.Message, "the last words") {
		t.Errorf("exit 1: %+v", *r.Outcome)
	}
	if limited {
		r := h.ended("eats")
		if r.Outcome.Class != fulgur.OutcomeAgent || r.Outcome.Reason != plan.ReasonMemory || len(h.attempts("eats")) != 1 {
			t.Errorf("out of memory: %+v, %d attempts", *r.Outcome, len(h.attempts("eats")))
		}
	}
	for id, reason := range map[fulgur.RolloutID]string{"evict": plan.ReasonEvicted, "drain": plan.ReasonNode} {
		r, a := h.ended(id), h.attempts(id)
		if r.State != fulgur.Succeeded || len(a) != 2 || a[0].Outcome.Reason != reason || a[0].Outcome.Class != fulgur.OutcomeInfrastructure {
			t.Errorf("%s: %+v, first attempt %+v", id, *r.Outcome, *a[0].Outcome)
		}
	}
	h.empty()
}

// A rollout that is deleted takes its Job and its pods along.
func TestDeletedRollout_CK11(t *testing.T) {
	h := build(t)
	h.control(h.options(shell), plan.Limits{})
	h.rollouts(map[fulgur.RolloutID]map[string]string{"a": in("touch " + h.share + "/a; sleep 600")})
	h.wrote("a")
	if err := h.store.DeleteRollout(t.Context(), "a"); err != nil {
		t.Fatal(err)
	}
	h.empty()
}

// A Job of the right name that belongs to somebody else is no start, and is left alone.
func TestNameIsTaken_CK12(t *testing.T) {
	h := build(t)
	first := h.options(shell)
	first.Scope = "an older run"
	r, err := kube.New(first)
	if err != nil {
		t.Fatal(err)
	}
	input, _ := json.Marshal(in("sleep 600"))
	_, err = r.Start(t.Context(), controller.Execution{Key: plan.Key{Rollout: "a", Attempt: "0"}, Env: map[string]string{"OPENAI_API_KEY": "k"}, Secrets: []string{"k"}, Input: input})
	if err != nil {
		t.Fatal(err)
	}
	h.Until("the other run's Job is there", func() bool { return len(h.jobs()) == 1 })
	h.control(h.options(shell), plan.Limits{})
	h.rollouts(map[fulgur.RolloutID]map[string]string{"a": in("exit 0")})
	if r := h.ended("a"); r.State != fulgur.Succeeded {
		t.Errorf("outcome %+v", *r.Outcome)
	}
	if a := h.attempts("a"); len(a) != 1 || !strings.Contains(a[0].Handle, "/agl-attempt-a-") {
		t.Errorf("attempts %+v", a)
	}
	h.Until("only the other run's Job is left", func() bool { return len(h.jobs()) == 1 })
	if err := r.Close(); err != nil {
		t.Error(err)
	}
	h.empty()
}

// What is starting is bounded, and no agent's clock runs before its container does.
func TestSlowImages_CK13(t *testing.T) {
	h := build(t)
	o := h.options(strings.Replace(shell, "    spec:\n      termination", "    metadata: {annotations: {kubebox.test/pull-delay: 3s}}\n    spec:\n      termination", 1))
	h.control(o, plan.Limits{Slots: 40, Starting: 6, Total: 2 * time.Second})
	inputs := map[fulgur.RolloutID]map[string]string{}
	for i := range 24 {
		inputs[fulgur.RolloutID(fmt.Sprint("r-", i))] = in("exit 0")
	}
	h.rollouts(inputs)
	most := 0
	h.Until("all have ended", func() bool {
		starting := 0
		for _, p := range h.pods() {
			if p.Status.Phase == corev1.PodPending {
				starting++
			}
		}
		most = max(most, starting)
		return h.unfinished() == 0
	})
	if most > 6 || most < 2 {
		t.Errorf("up to %d pods were starting at once, with a cap of 6", most)
	}
	for id := range inputs {
		if r := h.rollout(id); r.State != fulgur.Succeeded {
			t.Errorf("%s: %+v", id, *r.Outcome)
		}
	}
	h.empty()
}

// More than the quota holds is queued, and all of it runs in the end.
func TestQuota_CK03(t *testing.T) {
	h := build(t)
	h.create(h.Core("resourcequotas"), map[string]any{"metadata": map[string]string{"name": "few"}, "spec": map[string]any{"hard": map[string]string{"count/jobs.batch": "5"}}}, nil)
	h.Until("the quota is counted", func() bool {
		var q corev1.ResourceQuota
		h.get(h.Core("resourcequotas/few"), &q)
		return len(q.Status.Used) > 0
	})
	h.control(h.options(shell), plan.Limits{Slots: 30, Table: plan.Table{Retries: 0}})
	inputs := map[fulgur.RolloutID]map[string]string{}
	for i := range 30 {
		inputs[fulgur.RolloutID(fmt.Sprint("r-", i))] = in("exit 0")
	}
	h.rollouts(inputs)
	waits := ""
	h.Until("all have ended", func() bool {
		for id := range inputs {
			if at := h.attempts(id); waits == "" && len(at) > 0 && at[0].Phase == fulgur.PhaseWaiting {
				waits = at[0].Why
			}
		}
		return h.unfinished() == 0
	})
	if !strings.Contains(waits, "exceeded quota") {
		t.Errorf("no attempt was on record as waiting for the quota: %q", waits)
	}
	for id := range inputs {
		if r := h.rollout(id); r.State != fulgur.Succeeded || len(h.attempts(id)) != 1 {
			t.Errorf("%s: %+v, %d attempts", id, *r.Outcome, len(h.attempts(id)))
		}
	}
	h.empty()
}

// Values are data: no input adds a field to the Job.
func TestInputIsData_CK14(t *testing.T) {
	h := build(t)
	o := h.options(strings.Replace(shell, "        volumeMounts:", "        env: [{name: TASK, value: {{ input.task | yaml_escape }}}]\n        volumeMounts:", 1))
	h.control(o, plan.Limits{})
	task := "fix: a\n  image: evil\n\"quote\" $(HOME) {{ x }}"
	h.rollouts(map[fulgur.RolloutID]map[string]string{"a": in(`printf %s "$TASK" > `+h.share+"/task", "task", task)})
	if r := h.ended("a"); r.State != fulgur.Succeeded {
		t.Fatalf("outcome %+v", *r.Outcome)
	}
	if got, _ := os.ReadFile(filepath.Join(h.share, "task")); string(got) != task {
		t.Errorf("the agent got %q, want %q", got, task)
	}
}

// A suspended Job waits, visibly, and runs when it is let go.
func TestSuspendedJobWaits(t *testing.T) {
	h := build(t)
	h.control(h.options(strings.Replace(shell, "spec:\n  template", "spec:\n  suspend: true\n  template", 1)), plan.Limits{Start: 15 * time.Second}) // of which its start, later on, may need most on a busy machine
	h.rollouts(map[fulgur.RolloutID]map[string]string{"a": in("exit 0")})
	h.Until("its Job is there", func() bool { return len(h.jobs()) == 1 })
	time.Sleep(17 * time.Second) // longer than its start may take
	if r := h.rollout("a"); r.State.Terminal() {
		t.Fatalf("a suspended one ended: %+v", *r.Outcome)
	}
	if at := h.attempts("a"); len(at) != 1 || at[0].Phase != fulgur.PhaseWaiting || !strings.Contains(at[0].Why, "suspended") || at[0].Handle == "" {
		t.Errorf("on record: %+v", at)
	}
	job := h.jobs()[0]
	if err := h.Call(t.Context(), http.MethodPatch, h.Batch("jobs/"+job.Name), json.RawMessage(`{"spec":{"suspend":false}}`), nil); err != nil {
		t.Fatal(err)
	}
	if r := h.ended("a"); r.State != fulgur.Succeeded {
		t.Errorf("outcome %+v", *r.Outcome)
	}
	h.empty()
}

// What a pod may do is little, unless its template says otherwise; its credential
// is in no manifest.
func TestPodsAreKeptShort(t *testing.T) {
	h := build(t)
	h.control(h.options(shell), plan.Limits{})
	h.rollouts(map[fulgur.RolloutID]map[string]string{"a": in("touch " + h.share + "/a; ls /var/run/secrets/kubernetes.io 2>/dev/null && exit 4; sleep 600")})
	h.wrote("a")
	var pods []corev1.Pod
	h.Until("its pod is there", func() bool { pods = h.pods(); return len(pods) == 1 })
	spec := pods[0].Spec
	c := spec.Containers[0].SecurityContext
	switch {
	case spec.AutomountServiceAccountToken == nil || *spec.AutomountServiceAccountToken:
		t.Error("it gets a service account's token")
	case spec.EnableServiceLinks == nil || *spec.EnableServiceLinks:
		t.Error("it gets service links")
	case c == nil || c.Capabilities == nil || len(c.Capabilities.Drop) != 1 || c.Capabilities.Drop[0] != "ALL":
		t.Errorf("its capabilities are not dropped: %+v", c)
	case spec.SecurityContext == nil || spec.SecurityContext.SeccompProfile == nil:
		t.Error("it has no seccomp profile")
	}
	raw, err := json.Marshal([]any{pods, h.jobs()})
	if err != nil {
		t.Fatal(err)
	}
	var secrets corev1.SecretList
	h.get(h.Core("secrets"), &secrets)
	held := 0
	for _, s := range secrets.Items {
		for key, v := range s.Data {
			if len(v) > 8 && strings.Contains(string(raw), string(v)) {
				t.Errorf("the value of %s/%s stands in a manifest", s.Name, key)
			}
		}
		for _, o := range s.OwnerReferences {
			if o.Kind == "Job" {
				held++
			}
		}
	}
	if held != 1 {
		t.Errorf("%d Secrets belong to a Job", held)
	}
	if err := h.store.DeleteRollout(t.Context(), "a"); err != nil {
		t.Fatal(err)
	}
	h.empty()
	h.Until("its Secret went along", func() bool {
		var l corev1.SecretList
		h.get(h.Core("secrets"), &l)
		return len(l.Items) == 0
	})
}

package kube

import (
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"

	"github.com/fulgur-rl/fulgur"
	"github.com/fulgur-rl/fulgur/internal/controller"
	"github.com/fulgur-rl/fulgur/internal/controller/plan"
	"github.com/fulgur-rl/fulgur/internal/controller/runnertest"
)

func TestMain(m *testing.M) {
	runnertest.Main()
	goleak.VerifyTestMain(m)
}

func testRunner(t *testing.T, a *api, change ...func(*Options)) *Runner {
	t.Helper()
	o := Options{Image: "alpine:3", Command: []string{"agent"}, Env: map[string]string{"DO": "input.do"}, Run: "calc", Scope: t.Name(), Grace: time.Second, QPS: 500}
	for _, f := range change {
		f(&o)
	}
	r, err := newRunner(o, newClient(a.URL, &http.Client{Transport: &http.Transport{}}, "default", o.QPS))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		a.setFault(nil)
		_ = r.Close()
		r.c.http.CloseIdleConnections()
	})
	return r
}

func long(t *testing.T) {
	t.Helper()
	if testing.Short() {
		t.Skip("takes longer than 5 s")
	}
}

// event waits for the next event.
func event(t *testing.T, r *Runner) controller.Event {
	t.Helper()
	select {
	case ev := <-r.Events():
		return ev
	case <-time.After(15 * time.Second):
		t.Fatal("no event")
	}
	return controller.Event{}
}

func name(id string) string { return "agl-rollout-" + id }

func TestAnAttemptsWay(t *testing.T) {
	a := newAPI(t)
	a.log = "first\nwith secret-a\nlast\n"
	r := testRunner(t, a)
	begin := time.Now()
	runnertest.Start(t, r, runnertest.Execution("a", "x"))
	a.has(name("a"), true)
	a.running(name("a"))
	if ev := event(t, r); ev.Phase != fulgur.PhaseRunning || !strings.HasPrefix(ev.Handle, "default/agl-rollout-a/uid-") {
		t.Errorf("event %+v", ev)
	}
	a.mu.Lock()
	s := a.secrets[name("a")]
	a.mu.Unlock()
	if s == nil || string(s.Data["OPENAI_API_KEY"]) != "secret-a" || len(s.OwnerReferences) != 1 || s.OwnerReferences[0].Kind != "Job" {
		t.Errorf("secret %+v", s)
	}
	a.exits(name("a"), 3)
	ev := event(t, r)
	if ev.Exit == nil || ev.Exit.Code != 3 || ev.Exit.Tail != "first\nwith [credential]\nlast" {
		t.Errorf("event %+v, exit %+v", ev, ev.Exit)
	}
	if keys, _ := r.List(t.Context()); len(keys) > 0 {
		t.Errorf("list %v", keys)
	}
	a.has(name("a"), true) // until its end is on record
	r.Acknowledge([]plan.Key{ev.Key})
	a.has(name("a"), false)
	runnertest.Until(t, "its Event is there", func() bool { a.mu.Lock(); defer a.mu.Unlock(); return len(a.events) > 0 })
	// Job, Secret, log, Event, deletion; beside them two lists, two watches, three of leases.
	if n := a.count("", begin) - 7; n > 5 {
		t.Errorf("%d requests: %v", n, a.requests)
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if len(a.events) != 1 || !strings.Contains(a.events[0], `"reason":"AgentExit"`) || !strings.Contains(a.events[0], "exited with code 3") {
		t.Errorf("events %v", a.events)
	}
}

func TestKeptJobsGetTheirTTLWhenAcknowledged_CK04(t *testing.T) {
	a := newAPI(t)
	r := testRunner(t, a, func(o *Options) { o.Keep = 20 * time.Minute })
	runnertest.Start(t, r, runnertest.Execution("a", "x"))
	a.has(name("a"), true)
	a.exits(name("a"), 0)
	runnertest.Exit(t, r, "a") // the pod's: the Job takes a second more to notice
	a.mu.Lock()
	if ttl := *a.jobs[name("a")].Spec.TTLSecondsAfterFinished; ttl < 86400 {
		t.Errorf("TTL of %d s before its end is on record", ttl)
	}
	a.mu.Unlock()
	r.Acknowledge([]plan.Key{{Rollout: "a", Attempt: "0"}})
	runnertest.Until(t, "its TTL is set", func() bool {
		a.mu.Lock()
		defer a.mu.Unlock()
		return *a.jobs[name("a")].Spec.TTLSecondsAfterFinished == 1200
	})
}

func TestQuotaWaits_CK03(t *testing.T) {
	long(t)
	a := newAPI(t)
	var refusals atomic.Int32
	a.setFault(func(r *http.Request) (int, string) {
		if r.Method == http.MethodPost && strings.HasSuffix(r.URL.Path, "/jobs") && refusals.Add(1) <= 3 {
			return refusalText(403, "Forbidden", `jobs.batch "x" is forbidden: exceeded quota: jobs, requested: count/jobs.batch=1, used: 50, limited: 50`)
		}
		return 0, ""
	})
	r := testRunner(t, a)
	begin := time.Now()
	runnertest.Start(t, r, runnertest.Execution("a", "x"))
	ev := event(t, r)
	if ev.Phase != fulgur.PhaseWaiting || !strings.Contains(ev.Why, "exceeded quota: jobs") {
		t.Fatalf("event %+v", ev)
	}
	if ev := event(t, r); ev.Phase != fulgur.PhaseStarting {
		t.Fatalf("event %+v", ev)
	}
	took := time.Since(begin)
	if n := a.count("POST jobs", begin); n != 4 || took < 5*time.Second {
		t.Errorf("%d creations in %s", n, took)
	}
	a.running(name("a"))
	if ev := event(t, r); ev.Phase != fulgur.PhaseRunning {
		t.Fatalf("event %+v", ev)
	}
}

// A quota of 5 and 60 Jobs: as many as fit run, each that goes makes room for one,
// and requests stay in proportion.
func TestQuotaIsNoStorm_CK03(t *testing.T) {
	long(t)
	a := newAPI(t)
	const quota, jobs = 5, 60
	a.setFault(func(r *http.Request) (int, string) {
		if r.Method == http.MethodPost && strings.HasSuffix(r.URL.Path, "/jobs") {
			a.mu.Lock()
			defer a.mu.Unlock()
			if len(a.jobs) >= quota {
				return refusalText(403, "Forbidden", "exceeded quota: jobs")
			}
		}
		return 0, ""
	})
	r := testRunner(t, a)
	begin := time.Now()
	for i := range jobs {
		runnertest.Start(t, r, runnertest.Execution(fmt.Sprintf("j%d", i), "x"))
	}
	stop := make(chan struct{})
	defer close(stop)
	go func() { // the cluster: each Job takes a moment
		done := map[string]bool{}
		for {
			a.mu.Lock()
			names := []string{}
			for n := range a.jobs {
				if !done[n] && a.pods[n+"-x"] != nil {
					names = append(names, n)
					done[n] = true
				}
			}
			a.mu.Unlock()
			for _, n := range names {
				time.Sleep(10 * time.Millisecond)
				a.exits(n, 0)
			}
			select {
			case <-stop:
				return
			case <-time.After(20 * time.Millisecond):
			}
		}
	}()
	ended := 0
	for ended < jobs {
		if ev := event(t, r); ev.Exit != nil {
			if ev.Exit.Failure != "" || ev.Exit.Code != 0 {
				t.Errorf("%s: %+v", ev.Key.Rollout, ev.Exit)
			}
			ended++
			r.Acknowledge([]plan.Key{ev.Key})
		}
	}
	if n := a.count("", begin); n > 8*jobs {
		t.Errorf("%d requests for %d Jobs", n, jobs)
	} else {
		t.Logf("%d requests for %d Jobs in %s", n, jobs, time.Since(begin))
	}
}

func TestOtherRefusals(t *testing.T) {
	for name, test := range map[string]struct {
		status  int
		reason  string
		message string
		failure string
	}{
		"an invalid Job is the run's fault": {422, "Invalid", `Job.batch "x" is invalid: spec.template.spec.containers[0].image: Required value`, plan.ReasonAdmission},
		"one that is too large":             {413, "RequestEntityTooLarge", "limit is 3145728", plan.ReasonInput},
	} {
		t.Run(name, func(t *testing.T) {
			a := newAPI(t)
			a.setFault(func(r *http.Request) (int, string) {
				if r.Method == http.MethodPost && strings.HasSuffix(r.URL.Path, "/jobs") {
					return refusalText(test.status, test.reason, test.message)
				}
				return 0, ""
			})
			r := testRunner(t, a)
			runnertest.Start(t, r, runnertest.Execution("a", "x"))
			if x := runnertest.Exit(t, r, "a"); x.Failure != test.failure || !strings.Contains(x.Message, test.message) {
				t.Errorf("exit %+v", x)
			}
		})
	}
}

// A webhook that does not answer is no API server that is away: Jobs wait, say why, and
// one is tried now and then; what asks no webhook goes on.
func TestWebhookIsAway(t *testing.T) {
	long(t)
	a := newAPI(t)
	a.setFault(func(r *http.Request) (int, string) {
		if r.Method == http.MethodPost && strings.HasSuffix(r.URL.Path, "/jobs") {
			return refusalText(500, "InternalError", `failed calling webhook "guard.example.com": connection refused`)
		}
		return 0, ""
	})
	r := testRunner(t, a)
	begin := time.Now()
	const jobs = 20
	for i := range jobs {
		runnertest.Start(t, r, runnertest.Execution(fmt.Sprint("w", i), "x"))
	}
	for range jobs {
		if ev := event(t, r); ev.Phase != fulgur.PhaseWaiting || !strings.Contains(ev.Why, "guard.example.com") {
			t.Fatalf("event %+v", ev)
		}
	}
	time.Sleep(time.Until(begin.Add(5 * time.Second)))
	if n := a.count("POST jobs", begin); n > 12 { // eight at once, then one by one
		t.Errorf("%d creations in %s", n, time.Since(begin))
	}
	a.setFault(nil)
	runnertest.Until(t, "the Jobs are created", func() bool { return a.count("POST jobs", begin) >= jobs })
}

// The watch of Jobs and pods is answered with 410, the list that follows with 500,
// and the watches after that with nothing at all: what happens is seen all the same,
// with less than two requests a second.
func TestBrokenWatches_CK07(t *testing.T) {
	long(t)
	a := newAPI(t)
	r := testRunner(t, a)
	begun(t, a, r, "a")

	var lists atomic.Int32
	broken := time.Now()
	a.mu.Lock()
	a.watch = func(_ *http.Request, w io.Writer) bool { return true } // an empty 200
	a.fault = func(r *http.Request) (int, string) {
		q := r.URL.Query()
		if r.Method == http.MethodGet && q.Get("watch") == "" && lists.Add(1) <= 2 {
			return refusalText(500, "InternalError", "etcd is away")
		}
		return 0, ""
	}
	// What is being watched ends with 410.
	a.history = append(a.history, change{version: 1 << 30, kind: "jobs", typ: "ERROR", object: []byte(`{"kind":"Status","code":410,"message":"too old"}`), scope: r.scope},
		change{version: 1 << 30, kind: "pods", typ: "ERROR", object: []byte(`{"kind":"Status","code":410,"message":"too old"}`), scope: r.scope})
	close(a.moved)
	a.moved = make(chan struct{})
	a.mu.Unlock()

	a.exits(name("a"), 7)
	x := runnertest.Exit(t, r, "a")
	if x.Code != 7 {
		t.Errorf("exit %+v", x)
	}
	t.Logf("seen after %s", time.Since(broken))
	for time.Since(broken) < 20*time.Second {
		time.Sleep(100 * time.Millisecond)
	}
	if n, s := a.count("", broken), time.Since(broken).Seconds(); float64(n)/s >= 2 {
		t.Errorf("%d requests in %.0f s: %v", n, s, a.requests)
	} else {
		t.Logf("%d requests in %.0f s", n, s)
	}
}

// With the API server down, everything that wants something of it asks about once
// a second in all; when it is back, all of it happens.
func TestAPIServerAway(t *testing.T) {
	long(t)
	a := newAPI(t)
	r := testRunner(t, a)
	a.setFault(func(*http.Request) (int, string) { return 503, "" })
	begin := time.Now()
	for i := range 40 {
		runnertest.Start(t, r, runnertest.Execution(fmt.Sprintf("j%d", i), "x"))
	}
	time.Sleep(5 * time.Second)
	if n := a.count("", begin); n > 10+creators {
		t.Errorf("%d requests in 5 s", n)
	}
	a.setFault(nil)
	for i := range 40 {
		a.has(name(fmt.Sprintf("j%d", i)), true)
	}
}

func TestStop(t *testing.T) {
	a := newAPI(t)
	a.noPods = true
	r := testRunner(t, a)
	e := runnertest.Execution("a", "x")
	runnertest.Start(t, r, e)
	a.has(name("a"), true)
	if err := r.Stop(t.Context(), e.Key); err != nil {
		t.Error(err)
	}
	if x := runnertest.Exit(t, r, "a"); x.Code != -1 || !strings.HasPrefix(x.Message, "its Job ") {
		t.Errorf("exit %+v", x)
	}
	a.has(name("a"), false)
}

func TestBadImageFailsEarly_CK01(t *testing.T) {
	a := newAPI(t)
	r := testRunner(t, a, func(o *Options) { o.ImageLimit = 300 * time.Millisecond })
	runnertest.Start(t, r, runnertest.Execution("a", "x"))
	a.has(name("a"), true)
	a.pod(name("a"), func(p *corev1.Pod) {
		p.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "agent", State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "ImagePullBackOff", Message: "Back-off pulling image: not found"}}}}
	})
	x := runnertest.Exit(t, r, "a")
	if x.Failure != plan.ReasonImage || x.Cause != plan.CausePermanent || !strings.Contains(x.Message, `"alpine:3"`) || !strings.Contains(x.Message, "ImagePullBackOff") {
		t.Errorf("exit %+v", x)
	}
}

func TestANameThatSomebodyElseHas_CK12(t *testing.T) {
	a := newAPI(t)
	other := testRunner(t, a, func(o *Options) { o.Scope, o.Run = "another", "old" })
	runnertest.Start(t, other, runnertest.Execution("a", "x"))
	a.has(name("a"), true)
	r := testRunner(t, a)
	e := runnertest.Execution("a", "x")
	runnertest.Start(t, r, e)
	mine := hashedName(r.scope, e.Key)
	a.has(mine, true)
	runnertest.Until(t, "its Secret is there", func() bool { a.mu.Lock(); defer a.mu.Unlock(); return a.secrets[mine] != nil })
	a.mu.Lock()
	for _, v := range a.jobs[mine].Spec.Template.Spec.Containers[0].Env {
		if v.ValueFrom != nil && v.ValueFrom.SecretKeyRef.Name != mine {
			t.Errorf("%s comes from the Secret %s", v.Name, v.ValueFrom.SecretKeyRef.Name)
		}
	}
	a.mu.Unlock()
	a.exits(mine, 0)
	if x := runnertest.Exit(t, r, "a"); x.Code != 0 {
		t.Errorf("exit %+v", x)
	}
	a.has(name("a"), true)
}

func TestACreationWhoseAnswerWasLost(t *testing.T) {
	a := newAPI(t)
	var lost atomic.Bool
	a.setFault(func(r *http.Request) (int, string) {
		if r.Method == http.MethodPost && strings.HasSuffix(r.URL.Path, "/jobs") && lost.CompareAndSwap(false, true) {
			body, _ := io.ReadAll(r.Body)
			a.mu.Lock()
			defer a.mu.Unlock()
			a.actLocked(r, "jobs", "", body)
			return 504, ""
		}
		return 0, ""
	})
	r := testRunner(t, a)
	runnertest.Start(t, r, runnertest.Execution("a", "x"))
	a.has(name("a"), true)
	endsWell(t, a, r, "a")
}

func TestAdoption_CK04_CK11_CK12(t *testing.T) {
	a := newAPI(t)
	old := testRunner(t, a)
	for _, id := range []string{"runs", "ended", "unwanted", "removed"} {
		begun(t, a, old, id)
	}
	handle := func(id string) string {
		a.mu.Lock()
		defer a.mu.Unlock()
		return "default/" + name(id) + "/" + string(a.jobs[name(id)].UID)
	}
	left := []controller.Leftover{}
	for _, id := range []string{"runs", "ended", "removed"} {
		left = append(left, controller.Leftover{Key: plan.Key{Rollout: fulgur.RolloutID(id), Attempt: "0"}, Phase: fulgur.PhaseRunning, Handle: handle(id)})
	}
	left = append(left, controller.Leftover{Key: plan.Key{Rollout: "never", Attempt: "0"}, Phase: fulgur.PhaseStarting, Handle: "default/agl-rollout-never"})
	// The old controller is dead, and does not hear of what follows.
	dies(t, old)
	a.exits(name("ended"), 0)
	a.mu.Lock()
	delete(a.jobs, name("removed"))
	delete(a.pods, name("removed")+"-x")
	a.mu.Unlock()

	r := testRunner(t, a)
	keys, err := r.Adopt(t.Context(), left)
	if err != nil {
		t.Fatal(err)
	}
	ids := []string{}
	for _, k := range keys {
		ids = append(ids, string(k.Rollout))
	}
	slices.Sort(ids)
	if want := []string{"ended", "removed", "runs"}; !slices.Equal(ids, want) {
		t.Errorf("adopted %v, want %v", ids, want)
	}
	a.has(name("unwanted"), false)
	exits := map[string]plan.Exit{}
	for len(exits) < 2 {
		if ev := event(t, r); ev.Exit != nil {
			exits[string(ev.Key.Rollout)] = *ev.Exit
		}
	}
	if x, ok := exits["ended"]; !ok || x.Code != 0 || x.Failure != "" {
		t.Errorf("ended: %+v", x)
	}
	if x, ok := exits["removed"]; !ok || x.Failure != plan.ReasonUnknown || x.Cause != plan.CausePermanent {
		t.Errorf("removed: %+v", x)
	}
	a.exits(name("runs"), 4)
	if x := runnertest.Exit(t, r, "runs"); x.Code != 4 {
		t.Errorf("runs: %+v", x)
	}
}

func TestJobsOfARunThatIsGoneAreRemoved_CK11(t *testing.T) {
	a := newAPI(t)
	old := testRunner(t, a, func(o *Options) { o.Scope, o.Run, o.Lease = "old", "old", time.Second })
	for _, id := range []string{"x1", "x2"} {
		runnertest.Start(t, old, runnertest.Execution(id, "x"))
		a.has(name(id), true)
	}
	a.exits(name("x2"), 0)
	a.job(name("x2"), func(j *batchv1.Job) {
		j.Status.Conditions = []batchv1.JobCondition{{Type: batchv1.JobComplete, Status: corev1.ConditionTrue}}
	})
	runnertest.Until(t, "the lease is there", func() bool { a.mu.Lock(); defer a.mu.Unlock(); return len(a.leases) == 1 })
	dies(t, old)
	r := testRunner(t, a, func(o *Options) { o.Lease = 3 * time.Second })
	runnertest.Start(t, r, runnertest.Execution("y", "x"))
	a.has(name("y"), true)
	a.has(name("x1"), false)
	a.has(name("x2"), true)
	a.has(name("y"), true)
}

func TestIdleCostsNothing(t *testing.T) {
	long(t)
	a := newAPI(t)
	r := testRunner(t, a)
	begun(t, a, r, "a")
	time.Sleep(time.Second)
	begin := time.Now()
	time.Sleep(10 * time.Second)
	if n := a.count("", begin); n > 1 { // 0.2 a second would be 2
		t.Errorf("%d requests in 10 s: %v", n, a.requests)
	}
}

// The Job of an older owner keeps its name; the other name is told at once, and
// so is on record however the attempt ends.
func TestTheHandleFollowsTheName_CK12(t *testing.T) {
	a := newAPI(t)
	first := testRunner(t, a, func(o *Options) { o.Scope = "older" })
	runnertest.Start(t, first, runnertest.Execution("a", "x"))
	a.has(name("a"), true)
	r := testRunner(t, a)
	e := runnertest.Execution("a", "x")
	runnertest.Start(t, r, e)
	other := hashedName(r.scope, e.Key)
	if ev := event(t, r); ev.Handle != "default/"+other || ev.Phase != fulgur.PhaseStarting || ev.Exit != nil {
		t.Errorf("event %+v", ev)
	}
	a.has(other, true)
	a.running(other)
	if ev := event(t, r); ev.Phase != fulgur.PhaseRunning || !strings.HasPrefix(ev.Handle, "default/"+other+"/uid-") {
		t.Errorf("event %+v", ev)
	}
	a.exits(other, 0)
	runnertest.Exit(t, r, "a")
	r.Acknowledge([]plan.Key{e.Key})
	a.has(other, false)
	a.has(name("a"), true)
}

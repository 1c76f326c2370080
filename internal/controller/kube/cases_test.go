package kube

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/fulgur-rl/fulgur"
	"github.com/fulgur-rl/fulgur/internal/controller"
	"github.com/fulgur-rl/fulgur/internal/controller/plan"
	"github.com/fulgur-rl/fulgur/internal/controller/runnertest"
	"github.com/fulgur-rl/fulgur/internal/store"
	"github.com/fulgur-rl/fulgur/internal/store/sqlite"
)

// led is a store with rollouts r-0, r-1, …, and a controller that leads them on r.
func led(t *testing.T, r *Runner, n int, o controller.Options) *store.Store {
	t.Helper()
	s, err := store.Open(t.Context(), sqlite.New(filepath.Join(t.TempDir(), "store.db"), sqlite.Options{}), store.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	if err := s.PutRun(t.Context(), fulgur.Run{ID: "calc", Model: "m"}); err != nil {
		t.Fatal(err)
	}
	var specs []fulgur.RolloutSpec
	for i := range n {
		input, _ := json.Marshal(map[string]string{"do": "x"})
		specs = append(specs, fulgur.RolloutSpec{ID: fulgur.RolloutID(fmt.Sprintf("r-%d", i)), Run: "calc", Input: input, IsTrain: true})
	}
	if _, err := s.CreateRollouts(t.Context(), specs); err != nil {
		t.Fatal(err)
	}
	o.Run, o.AgentURL, o.RunWindow = "calc", "http://127.0.0.1:1", -1
	c, err := controller.New(o, s, nil, r)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- c.Run(ctx) }()
	t.Cleanup(sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	}))
	return s
}

func over(t *testing.T, s *store.Store, id fulgur.RolloutID) (r fulgur.Rollout) {
	t.Helper()
	runnertest.Until(t, string(id)+" has ended", func() (ok bool) {
		var err error
		if r, err = s.Rollout(t.Context(), id); err != nil {
			t.Fatal(err)
		}
		return r.State.Terminal()
	})
	return r
}

// A registry that does not answer is waited for, but not for longer than the start
// may take; then the image's name and what its node says of it are told.
func TestAnImageThatIsWaitedForTooLong_CK01(t *testing.T) {
	a := newAPI(t)
	r := testRunner(t, a, func(o *Options) { o.Image, o.ImageLimit = "does-not-exist:1", 50*time.Millisecond })
	s := led(t, r, 1, controller.Options{Limits: plan.Limits{Slots: 1, Start: time.Second}})
	a.has(name("r-0"), true)
	a.pod(name("r-0"), func(p *corev1.Pod) {
		p.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "agent", State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "ImagePullBackOff", Message: "dial tcp: i/o timeout"}}}}
	})
	ended := over(t, s, "r-0")
	if o := ended.Outcome; o.Class != fulgur.OutcomeInfrastructure || o.Reason != plan.ReasonStartTimeout || !strings.Contains(o.Message, `"does-not-exist:1"`) || !strings.Contains(o.Message, "ImagePullBackOff") {
		t.Errorf("outcome %+v", *o)
	}
	all, err := s.Attempts(t.Context(), "r-0")
	if err != nil || len(all) != 1 || all[0].StartedAt != nil {
		t.Errorf("one that never ran: %+v, %v", all, err)
	}
	a.has(name("r-0"), false)
}

// One attempt that the quota can never hold waits; the others are not starved.
func TestOneThatAsksForTooMuchHoldsUpNobody_CK03(t *testing.T) {
	a := newAPI(t)
	a.setFault(func(r *http.Request) (int, string) {
		if r.Method != http.MethodPost || !strings.HasSuffix(r.URL.Path, "/jobs") {
			return 0, ""
		}
		body, _ := io.ReadAll(r.Body)
		r.Body = io.NopCloser(bytes.NewReader(body))
		if strings.Contains(string(body), name("big")) {
			return refusalText(403, "Forbidden", "exceeded quota: mem, requested: limits.memory=1Ti")
		}
		return 0, ""
	})
	r := testRunner(t, a)
	begin := time.Now()
	runnertest.Start(t, r, runnertest.Execution("big", "x"))
	for i := range 8 {
		runnertest.Start(t, r, runnertest.Execution(fmt.Sprintf("j%d", i), "x"))
	}
	for i := range 8 {
		a.has(name(fmt.Sprintf("j%d", i)), true)
	}
	if took := time.Since(begin); took > 5*time.Second {
		t.Errorf("the others waited %s", took)
	}
	keys, err := r.List(t.Context())
	if err != nil || len(keys) != 9 {
		t.Errorf("list %v, %v", keys, err)
	}
}

// A Job of this run and rollout that an earlier life of the attempt made, with
// another credential, is no start: it is removed, and the attempt gets its own.
func TestAnEarlierLifesJobIsReplaced_CK12(t *testing.T) {
	a := newAPI(t)
	old := testRunner(t, a)
	runnertest.Start(t, old, runnertest.Execution("a", "x"))
	a.has(name("a"), true)
	a.mu.Lock()
	first := a.jobs[name("a")].UID
	a.mu.Unlock()
	old.cancel() // killed
	r := testRunner(t, a)
	e := runnertest.Execution("a", "x")
	e.Secrets, e.Env["OPENAI_API_KEY"] = []string{"another"}, "another"
	runnertest.Start(t, r, e)
	runnertest.Until(t, "another Job is there, with its own Secret", func() bool {
		a.mu.Lock()
		defer a.mu.Unlock()
		j, s := a.jobs[name("a")], a.secrets[name("a")]
		return j != nil && j.UID != first && s != nil && string(s.Data["OPENAI_API_KEY"]) == "another"
	})
	endsWell(t, a, r, "a")
}

// The Jobs of a run whose trainer died go, with their pods, while its controller
// lives; and none is made until the trainer is back.
func TestJobsOfARunWhoseTrainerIsGone_CK11(t *testing.T) {
	a := newAPI(t)
	r := testRunner(t, a)
	const n = 40
	s := led(t, r, n, controller.Options{Limits: plan.Limits{Slots: n / 2, Starting: n}, Orphaned: 900 * time.Millisecond})
	if _, err := s.AcquireLease(t.Context(), "calc", controller.TrainerLease, "one", 10*time.Millisecond); err != nil {
		t.Fatal(err)
	}
	for i := range n / 2 {
		a.has(name(fmt.Sprintf("r-%d", i)), true)
		a.running(name(fmt.Sprintf("r-%d", i)))
	}
	for i := range n / 2 {
		if o := over(t, s, fulgur.RolloutID(fmt.Sprintf("r-%d", i))).Outcome; o.Reason != plan.ReasonOrphaned || o.Class != fulgur.OutcomeInfrastructure {
			t.Errorf("outcome %+v", *o)
		}
	}
	left := func() (jobs, pods int) { a.mu.Lock(); defer a.mu.Unlock(); return len(a.jobs), len(a.pods) }
	runnertest.Until(t, "no Job and no pod is left", func() bool { jobs, pods := left(); return jobs+pods == 0 })
	before := a.count(http.MethodPost+" jobs", time.Time{})
	time.Sleep(300 * time.Millisecond) // in which nothing is to happen
	if n := a.count(http.MethodPost+" jobs", time.Time{}); n != before {
		t.Errorf("%d Jobs were made for a run without a trainer", n-before)
	}
	if _, err := s.AcquireLease(t.Context(), "calc", controller.TrainerLease, "two", time.Hour); err != nil {
		t.Fatal(err)
	}
	runnertest.Until(t, "the others run when it is back", func() bool { jobs, _ := left(); return jobs == n/2 })
}

// Watches that are answered with nothing, again and again, hide no end: what they
// may have missed is listed.
func TestEmptyWatchesHideNothing_CK07(t *testing.T) {
	long(t)
	a := newAPI(t)
	r := testRunner(t, a)
	begun(t, a, r, "a")
	a.mu.Lock()
	a.watch = func(*http.Request, io.Writer) bool { return true }
	a.mu.Unlock()
	a.CloseClientConnections() // those that were open
	from := time.Now()
	runnertest.Until(t, "it watches again, for nothing", func() bool { return a.count("WATCH pods", from) > 0 && a.count("WATCH jobs", from) > 0 })
	begin := time.Now()
	a.exits(name("a"), 7)
	if x := runnertest.ExitWithin(t, r, "a", time.Minute); x.Code != 7 {
		t.Errorf("exit %+v", x)
	}
	n, took := a.count("", from), time.Since(begin)
	t.Logf("seen after %s, with %d requests", took, n)
	if float64(n) >= 2*max(took.Seconds(), 1) {
		t.Errorf("%d requests in %s: %v", n, took, a.requests)
	}
}

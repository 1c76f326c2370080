package kube

import (
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/fulgur-rl/fulgur/internal/controller/runnertest"
)

// isolated is a runner that has made its policy, and left what an earlier life of
// its run did: a lease that is over.
func isolated(t *testing.T, a *api, lived bool) *Runner {
	t.Helper()
	r := testRunner(t, a, func(o *Options) { o.Scope, o.Isolated = "mine", true })
	if lived {
		if err := r.hold(t.Context()); err != nil {
			t.Fatal(err)
		}
		a.expire(r.leaseName())
	}
	enclose(t, r)
	runnertest.Until(t, "the lease is kept", func() bool { return a.count("GET leases", time.Time{}) > 0 })
	return r
}

func enclose(t *testing.T, r *Runner) {
	t.Helper()
	u, err := url.Parse("http://127.0.0.1:8080")
	if err != nil {
		t.Fatal(err)
	}
	if err := r.isolate(t.Context(), u); err != nil {
		t.Fatal(err)
	}
}

// expire has a lease be over.
func (a *api) expire(name string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.leases[name].Spec.RenewTime.Time = time.Now().Add(-24 * time.Hour)
}

func (a *api) walled(name string) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.policies[name] != nil
}

// A run has no agent yet when its policy is made, and so no Job by which another
// run's controller sees that it lives.
func TestAFreshPolicyOutlivesOtherRuns(t *testing.T) {
	a := newAPI(t)
	r := isolated(t, a, true)
	other := testRunner(t, a, func(o *Options) { o.Scope = "other" })
	if err := other.sweep(t.Context()); err != nil {
		t.Fatal(err)
	}
	if !a.walled(r.leaseName()) {
		t.Error("the policy is gone before the first agent")
	}
}

// The other run has seen the lease before it was taken up again.
func TestAPolicyStaysWhereTheLeaseIsTakenUpMeanwhile(t *testing.T) {
	a := newAPI(t)
	r := isolated(t, a, true)
	a.expire(r.leaseName())
	held := false
	a.setFault(func(q *http.Request) (int, string) {
		if q.Method == http.MethodGet && strings.HasSuffix(q.URL.Path, "/jobs") && !held {
			held = true
			if err := r.hold(t.Context()); err != nil {
				t.Error(err)
			}
		}
		return 0, ""
	})
	other := testRunner(t, a, func(o *Options) { o.Scope = "other" })
	if err := other.sweep(t.Context()); err != nil {
		t.Fatal(err)
	}
	if !held || !a.walled(r.leaseName()) {
		t.Errorf("taken up: %v, the policy is there: %v", held, a.walled(r.leaseName()))
	}
}

// A controller that was away for longer than its lease comes back to no policy.
func TestAPolicyIsMadeAgainWithItsLease(t *testing.T) {
	a := newAPI(t)
	r := isolated(t, a, false)
	a.expire(r.leaseName())
	other := testRunner(t, a, func(o *Options) { o.Scope = "other" })
	if err := other.sweep(t.Context()); err != nil {
		t.Fatal(err)
	}
	if a.walled(r.leaseName()) {
		t.Fatal("a dead run's policy stays")
	}
	if err := r.hold(t.Context()); err != nil {
		t.Fatal(err)
	}
	if !a.walled(r.leaseName()) {
		t.Error("agents would run without a policy")
	}
	enclose(t, r) // which is there
}

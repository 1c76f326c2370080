package cluster

import (
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	networkingv1 "k8s.io/api/networking/v1"

	"github.com/fulgur-rl/fulgur"
	"github.com/fulgur-rl/fulgur/internal/controller/kube"
	"github.com/fulgur-rl/fulgur/test/kubeapi"
)

// program builds fulgur where pods see it: they have a /tmp of their own, and the
// rest of the machine.
func program(t *testing.T) string {
	t.Helper()
	cache, err := os.UserCacheDir()
	if err != nil {
		t.Fatal(err)
	}
	dir, err := os.MkdirTemp(cache, "fulgur-probe")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	bin := filepath.Join(dir, "fulgur")
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command("go", "build", "-o", bin, "github.com/fulgur-rl/fulgur/cmd/fulgur").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return bin
}

// The probe finds what can be reached where agents run. No network policy holds on
// this cluster, whose pods share the machine's network: isolation is refused, with
// what was reached, and what is open runs.
func TestProve(t *testing.T) {
	h := build(t)
	bin := program(t)
	up := httptest.NewServer(http.HandlerFunc(kubeapi.Health))
	t.Cleanup(up.Close)
	for name, test := range map[string]struct {
		isolated bool
		gateway  string
		image    string
		want     string // in the error; "": none
	}{
		"open, and the gateway is there":   {gateway: up.URL, image: hostImage},
		"isolation that does not hold":     {isolated: true, gateway: up.URL, image: hostImage, want: "agents reach more than the gateway: "},
		"no gateway there":                 {gateway: "http://127.0.0.1:9", image: hostImage, want: "do not reach the gateway"},
		"no such image":                    {gateway: up.URL, image: "does-not-exist:1", want: `"does-not-exist:1"`},
		"isolation without an image":       {isolated: true, gateway: up.URL, want: "runner.kubernetes.probe_image"},
		"open, and nothing is to be tried": {gateway: up.URL},
	} {
		t.Run(name, func(t *testing.T) {
			o := h.options(shell)
			o.Isolated, o.ProbeImage, o.ProbeCommand, o.ImageLimit = test.isolated, test.image, []string{bin}, 3*time.Second
			o.Scope = t.Name()
			r, err := kube.New(o)
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = r.Close() }()
			begin := time.Now()
			err = r.Prove(t.Context(), test.gateway)
			t.Logf("%s: %v", time.Since(begin).Round(time.Millisecond), err)
			if test.want == "" && err != nil || test.want != "" && (err == nil || !strings.Contains(err.Error(), test.want)) {
				t.Errorf("error %v, want %q", err, test.want)
			}
			if test.want != "" && fulgur.KindOf(err) == fulgur.KindInternal {
				t.Errorf("kind %s", fulgur.KindOf(err))
			}
			if jobs := h.jobs(); len(jobs) > 0 {
				t.Errorf("%d probes are left", len(jobs))
			}
		})
	}
}

// The cluster removes the policy of a run whose lease another run's controller took
// away, and no other; a run that comes back before has it.
func TestAPolicyGoesWithItsLease(t *testing.T) {
	h := build(t)
	isolated := func(scope string) *kube.Runner {
		o := h.options(shell)
		o.Scope, o.Isolated, o.Lease = scope, true, 6*time.Second
		r, err := kube.New(o)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = r.Close() })
		// Without an image nothing is tried; the policy is there.
		if err := r.Prove(t.Context(), h.model.url); err == nil || !strings.Contains(err.Error(), "no image for the probe") {
			t.Fatal(err)
		}
		return r
	}
	policies := func() (uids map[string]bool) {
		var l networkingv1.NetworkPolicyList
		h.get("/apis/networking.k8s.io/v1/namespaces/"+h.ns+"/networkpolicies", &l)
		uids = map[string]bool{}
		for _, p := range l.Items {
			uids[string(p.UID)] = true
		}
		return uids
	}
	dead := isolated("dead")
	first := policies()
	if len(first) != 1 {
		t.Fatalf("%d policies", len(first))
	}
	dead.Leave()
	if err := dead.Close(); err != nil {
		t.Error(err)
	}
	time.Sleep(3 * time.Second) // within the lease
	back := isolated("dead")
	if d := cmp.Diff(first, policies()); d != "" {
		t.Errorf("it comes back to another policy: %s", d)
	}
	back.Leave()
	if err := back.Close(); err != nil {
		t.Error(err)
	}
	isolated("other")
	h.Until("one policy is left, and it is the other run's", func() bool {
		left := policies()
		return len(left) == 1 && cmp.Diff(first, left) != ""
	})
}

package cluster

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	authv1 "k8s.io/api/authentication/v1"
	coordv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/tools/clientcmd/api"

	"github.com/fulgur-rl/fulgur"
	"github.com/fulgur-rl/fulgur/internal/controller"
	"github.com/fulgur-rl/fulgur/internal/controller/kube"
	"github.com/fulgur-rl/fulgur/internal/controller/plan"
	"github.com/fulgur-rl/fulgur/test/kubeapi"
)

// examined is a namespace that is to be looked at with the program's probes.
type examined struct {
	*house
	o       kube.Options
	gateway string
}

func toExamine(t *testing.T, bin string) *examined {
	t.Helper()
	h := build(t)
	up := httptest.NewServer(http.HandlerFunc(kubeapi.Health))
	t.Cleanup(up.Close)
	o := h.options(strings.ReplaceAll(shell, "kubebox.test/host:1", `"{{ input.image }}"`))
	o.ProbeImage, o.ProbeCommand, o.ImageLimit, o.Prepull = hostImage, []string{bin}, 3*time.Second, 20
	o.Inputs = []json.RawMessage{json.RawMessage(`{"image":"` + hostImage + `","sh":"true"}`)}
	return &examined{h, o, up.URL}
}

// look examines, and returns the lines by name; none of what was made may be left.
func (x *examined) look(ctx context.Context, slots int) map[string]kube.Check {
	x.t.Helper()
	out := map[string]kube.Check{}
	for _, c := range kube.Examine(ctx, x.o, x.gateway, slots) {
		x.t.Logf("%-28s %-8s %s", c.Name, c.Status, c.Detail)
		if c.Status == kube.CheckFailed && c.Do == "" && c.Detail == "" {
			x.t.Errorf("%s: nothing is said of it", c.Name)
		}
		out[c.Name] = c
	}
	x.nothingLeft()
	return out
}

func (x *examined) nothingLeft() {
	x.t.Helper()
	x.empty()
	x.Until("no lease and no policy is left", func() bool {
		var leases coordv1.LeaseList
		var policies networkingv1.NetworkPolicyList
		x.get("/apis/coordination.k8s.io/v1/namespaces/"+x.ns+"/leases", &leases)
		x.get("/apis/networking.k8s.io/v1/namespaces/"+x.ns+"/networkpolicies", &policies)
		return len(leases.Items)+len(policies.Items) == 0
	})
}

// wantCheck compares one line.
func wantCheck(t *testing.T, got map[string]kube.Check, name, status string, says ...string) {
	t.Helper()
	c, ok := got[name]
	text := c.Detail + " → " + c.Do
	if !ok || c.Status != status || slices.ContainsFunc(says, func(s string) bool { return !strings.Contains(text, s) }) {
		t.Errorf("%s: %s %q, want %s and %q", name, c.Status, text, status, says)
	}
}

// What doctor says of a cluster that is fit, but for the policy that nobody enforces
// here; and of each thing that may be amiss. Nothing is left of any look.
func TestExamine(t *testing.T) {
	bin := program(t)
	t.Run("open", func(t *testing.T) {
		x := toExamine(t, bin)
		got := x.look(t.Context(), 8)
		for _, name := range []string{"API server", "namespace " + x.ns, "rights", "Job", "pod", "quota", "node node-1: gateway", "node node-1: stream", "node node-2: gateway"} {
			wantCheck(t, got, name, kube.CheckOK)
		}
		wantCheck(t, got, "images", kube.CheckSkipped) // the probe's own
		wantCheck(t, got, "NetworkPolicy", kube.CheckWarning, "isolation is none")
		wantCheck(t, got, "node node-1: closed", kube.CheckWarning, "the API server")
	})
	t.Run("a policy that nobody enforces", func(t *testing.T) {
		x := toExamine(t, bin)
		x.o.Isolated = true
		got := x.look(t.Context(), 8)
		wantCheck(t, got, "NetworkPolicy", kube.CheckOK)
		// The machine's own network: what is there at all is reached.
		wantCheck(t, got, "node node-1: closed", kube.CheckFailed, "ESCAPED", "the API server (", "another agent (", "does not enforce NetworkPolicies")
	})
	t.Run("an image that is not there", func(t *testing.T) {
		x := toExamine(t, bin)
		x.o.Inputs = append(x.o.Inputs, json.RawMessage(`{"image":"does-not-exist:1","sh":"true"}`))
		wantCheck(t, x.look(t.Context(), 8), "images", kube.CheckFailed, `"does-not-exist:1"`)
		r, err := kube.New(x.o)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = r.Close() }()
		if err := r.Prove(t.Context(), x.gateway); fulgur.KindOf(err) != fulgur.KindInvalid || !strings.Contains(err.Error(), `"does-not-exist:1"`) {
			t.Errorf("a run's start: %v", err)
		}
		x.empty()
	})
	t.Run("quotas", func(t *testing.T) {
		x := toExamine(t, bin)
		for name, hard := range map[string]corev1.ResourceList{
			"few":  {"pods": resource.MustParse("3"), "count/jobs.batch": resource.MustParse("100")},
			"none": {"secrets": resource.MustParse("0")}, // and probes need none
		} {
			x.create(x.Core("resourcequotas"), &corev1.ResourceQuota{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.ResourceQuotaSpec{Hard: hard}}, nil)
		}
		got := x.look(t.Context(), 8)
		wantCheck(t, got, "quota few", kube.CheckWarning, "3 agents at once, not the run's 8 slots", "runner.slots")
		wantCheck(t, got, "quota none", kube.CheckFailed, "no agent at all")
		wantCheck(t, got, "node node-2: gateway", kube.CheckOK) // though the last probes find no room
	})
	t.Run("a pod that the namespace refuses", func(t *testing.T) {
		x := toExamine(t, bin) // its agents mount a folder of the node's
		x.Do(http.MethodPatch, "/api/v1/namespaces/"+x.ns, json.RawMessage(`{"metadata":{"labels":{"pod-security.kubernetes.io/enforce":"baseline"}}}`), nil)
		got := x.look(t.Context(), 8)
		wantCheck(t, got, "namespace "+x.ns, kube.CheckOK, "baseline")
		wantCheck(t, got, "Job", kube.CheckOK)
		wantCheck(t, got, "pod", kube.CheckFailed, "hostPath")
	})
	t.Run("no such namespace", func(t *testing.T) {
		x := toExamine(t, bin)
		x.o.Namespace = "nowhere"
		wantCheck(t, x.look(t.Context(), 8), "namespace nowhere", kube.CheckFailed, "kubectl create namespace nowhere")
	})
	t.Run("nobody answers", func(t *testing.T) {
		x := toExamine(t, bin)
		cfg := x.kubeconfig("")
		for _, c := range cfg.Clusters {
			c.Server = "https://127.0.0.1:1"
		}
		x.use(cfg)
		wantCheck(t, x.look(t.Context(), 8), "API server", kube.CheckFailed, "https://127.0.0.1:1")
	})
}

// Each right that is not there is named, with the rule that gives it; no probe is sent.
func TestExamineRights(t *testing.T) {
	x := toExamine(t, "/bin/false")
	x.o.Isolated = true
	all := kube.Rights(true)
	x.use(x.kubeconfig(x.account(all)))
	wantCheck(t, x.look(t.Context(), 1), "rights", kube.CheckOK, "system:serviceaccount:"+x.ns+":controller-", "has the")
	for i, r := range all {
		some := slices.Clone(all)
		some[i].Verbs = r.Verbs[1:]
		x.use(x.kubeconfig(x.account(some)))
		got := x.look(t.Context(), 1)
		status := kube.CheckFailed
		if r.Optional {
			status = kube.CheckWarning
		}
		wantCheck(t, got, "right "+r.String(), status, "may not "+r.Verbs[0], r.For, "verbs: ["+strings.Join(r.Verbs, ", ")+"]")
		if !r.Optional {
			wantCheck(t, got, "nodes", kube.CheckSkipped, "no probe can be sent")
		}
	}
}

// Ctrl-C in the midst of it leaves nothing.
func TestExamineInterrupted(t *testing.T) {
	x := toExamine(t, program(t))
	x.o.Isolated = true
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		defer cancel()
		x.Until("a probe runs", func() bool {
			return slices.ContainsFunc(x.pods(), func(p corev1.Pod) bool { return p.Status.Phase == corev1.PodRunning })
		})
	}()
	x.look(ctx, 8)
	if ctx.Err() == nil {
		t.Error("it ended before it was interrupted")
	}
}

// account makes a service account with these rights, and returns its token.
func (x *examined) account(rights []kube.Right) string {
	x.t.Helper()
	name := "controller-" + strings.ToLower(rand.Text()[:8])
	role := &rbacv1.Role{ObjectMeta: metav1.ObjectMeta{Name: name}}
	for _, r := range rights {
		if len(r.Verbs) > 0 {
			role.Rules = append(role.Rules, rbacv1.PolicyRule{APIGroups: []string{r.Group}, Resources: []string{r.Resource}, Verbs: r.Verbs})
		}
	}
	rbac := "/apis/rbac.authorization.k8s.io/v1/namespaces/" + x.ns + "/"
	x.create(rbac+"roles", role, nil)
	x.create(rbac+"rolebindings", &rbacv1.RoleBinding{ObjectMeta: metav1.ObjectMeta{Name: name}, RoleRef: rbacv1.RoleRef{APIGroup: "rbac.authorization.k8s.io", Kind: "Role", Name: name},
		Subjects: []rbacv1.Subject{{Kind: "ServiceAccount", Name: name, Namespace: x.ns}}}, nil)
	x.create(x.Core("serviceaccounts"), &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: name}}, nil)
	var token authv1.TokenRequest
	x.create(x.Core("serviceaccounts/"+name+"/token"), &authv1.TokenRequest{}, &token)
	return token.Status.Token
}

// kubeconfig is the cluster's, with a token in place of its credentials if there is one.
func (x *examined) kubeconfig(token string) *api.Config {
	x.t.Helper()
	cfg, err := clientcmd.LoadFromFile(filepath.Join(x.dir, "kubeconfig"))
	if err != nil {
		x.t.Fatal(err)
	}
	if token != "" {
		for name := range cfg.AuthInfos {
			cfg.AuthInfos[name] = &api.AuthInfo{Token: token}
		}
	}
	return cfg
}

func (x *examined) use(cfg *api.Config) {
	x.t.Helper()
	x.o.Kubeconfig = filepath.Join(x.t.TempDir(), "kubeconfig")
	if err := clientcmd.WriteToFile(*cfg, x.o.Kubeconfig); err != nil {
		x.t.Fatal(err)
	}
}

// A controller that is started again finds its namespace full of the run's own agents,
// which it has taken over; another run's finds it full too. Both wait for room for probes.
func TestProveWithoutRoom(t *testing.T) {
	x := toExamine(t, program(t))
	x.o.ProbeLimit = 6 * time.Second
	x.create(x.Core("resourcequotas"), &corev1.ResourceQuota{ObjectMeta: metav1.ObjectMeta{Name: "one"}, Spec: corev1.ResourceQuotaSpec{Hard: corev1.ResourceList{"pods": resource.MustParse("1")}}}, nil)
	runner := func(scope string) *kube.Runner {
		o := x.o
		o.Scope = scope
		r, err := kube.New(o)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = r.Close() })
		return r
	}
	first := runner("mine")
	if _, err := first.Start(t.Context(), controller.Execution{Key: plan.Key{Rollout: "r", Attempt: "0"}, Input: json.RawMessage(`{"image":"` + hostImage + `","sh":"sleep 600"}`), Env: map[string]string{}}); err != nil {
		t.Fatal(err)
	}
	x.Until("its agent runs", func() bool {
		return slices.ContainsFunc(x.pods(), func(p corev1.Pod) bool { return p.Status.Phase == corev1.PodRunning })
	})
	first.Leave()
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	next := runner("mine")
	left := []controller.Leftover{{Key: plan.Key{Rollout: "r", Attempt: "0"}, Phase: fulgur.PhaseRunning}}
	if keys, err := next.Adopt(t.Context(), left); err != nil || len(keys) != 1 {
		t.Errorf("adopted %v, %v", keys, err)
	}
	for _, r := range []*kube.Runner{runner("another"), next} {
		if err := r.Prove(t.Context(), x.gateway); fulgur.KindOf(err) != fulgur.KindExhausted {
			t.Errorf("%v", err)
		}
	}
	if _, err := next.Adopt(t.Context(), nil); err != nil { // nobody wants it
		t.Error(err)
	}
	x.empty()
}

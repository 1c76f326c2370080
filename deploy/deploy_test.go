// Package deploy holds the manifests to what the cluster will read: they are
// built with kustomize and decoded strictly.
package deploy

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer/json"
	"sigs.k8s.io/kustomize/api/krusty"
	"sigs.k8s.io/kustomize/kyaml/filesys"

	"github.com/fulgur-rl/fulgur/internal/config"
)

// build renders a folder and decodes every object; a field that the API does not
// have is an error.
func build(t *testing.T, dir string) []runtime.Object {
	t.Helper()
	m, err := krusty.MakeKustomizer(krusty.MakeDefaultOptions()).Run(filesys.MakeFsOnDisk(), dir)
	if err != nil {
		t.Fatal(err)
	}
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{appsv1.AddToScheme, batchv1.AddToScheme, corev1.AddToScheme, networkingv1.AddToScheme, rbacv1.AddToScheme} {
		if err := add(scheme); err != nil {
			t.Fatal(err)
		}
	}
	strict := json.NewSerializerWithOptions(json.DefaultMetaFactory, scheme, scheme, json.SerializerOptions{Yaml: true, Strict: true})
	var out []runtime.Object
	for _, r := range m.Resources() {
		y, err := r.AsYAML()
		if err != nil {
			t.Fatal(err)
		}
		o, _, err := strict.Decode(y, nil, nil)
		if err != nil {
			t.Errorf("%s %s: %v", r.GetKind(), r.GetName(), err)
			continue
		}
		out = append(out, o)
	}
	return out
}

// pods are the pod templates, by the name of what makes them.
func pods(objects []runtime.Object) map[string]corev1.PodSpec {
	out := map[string]corev1.PodSpec{}
	for _, o := range objects {
		switch o := o.(type) {
		case *appsv1.StatefulSet:
			out[o.Name] = o.Spec.Template.Spec
		case *appsv1.Deployment:
			out[o.Name] = o.Spec.Template.Spec
		case *batchv1.Job:
			out[o.Name] = o.Spec.Template.Spec
		}
	}
	return out
}

func TestManifestsAreValid(t *testing.T) {
	for dir, want := range map[string][]string{
		"base": {"fulgur-controller", "fulgur-gateway"},
		"calc": {"fulgur-controller", "fulgur-gateway", "fulgur-trainer"},
	} {
		t.Run(dir, func(t *testing.T) {
			var names []string
			for name, p := range pods(build(t, dir)) {
				names = append(names, name)
				restricted(t, name, p)
			}
			slices.Sort(names)
			if !slices.Equal(names, want) {
				t.Errorf("pods of %v, want %v", names, want)
			}
		})
	}
}

// restricted holds a pod to the Pod Security Standard of that name, which its
// namespace enforces, and to what is ours.
func restricted(t *testing.T, name string, p corev1.PodSpec) {
	t.Helper()
	sc := p.SecurityContext
	if sc == nil || sc.RunAsNonRoot == nil || !*sc.RunAsNonRoot || *sc.RunAsUser != 65532 || sc.SeccompProfile == nil || sc.SeccompProfile.Type != corev1.SeccompProfileTypeRuntimeDefault {
		t.Errorf("%s: security context %+v", name, sc)
	}
	if p.EnableServiceLinks == nil || *p.EnableServiceLinks {
		t.Errorf("%s: service links would set FULGUR_… variables", name)
	}
	if name != "fulgur-controller" && (p.AutomountServiceAccountToken == nil || *p.AutomountServiceAccountToken) {
		t.Errorf("%s: it has a token that it does not need", name)
	}
	for _, c := range p.Containers {
		sc := c.SecurityContext
		if sc == nil || *sc.AllowPrivilegeEscalation || !*sc.ReadOnlyRootFilesystem || sc.Capabilities == nil || !slices.Equal(sc.Capabilities.Drop, []corev1.Capability{"ALL"}) {
			t.Errorf("%s: container's security context %+v", name, sc)
		}
		if !strings.HasSuffix(c.Image, "/fulgur:devel") {
			t.Errorf("%s: image %q", name, c.Image)
		}
		for _, e := range c.Env {
			if strings.Contains(e.Name, "KEY") && e.ValueFrom == nil {
				t.Errorf("%s: %s is written out", name, e.Name)
			}
		}
	}
}

func TestGatewayIsProbedAndKeepsItsRecord(t *testing.T) {
	for _, o := range build(t, "base") {
		s, ok := o.(*appsv1.StatefulSet)
		if !ok {
			continue
		}
		c := s.Spec.Template.Spec.Containers[0]
		if c.LivenessProbe.HTTPGet.Path != "/healthz" || c.ReadinessProbe.HTTPGet.Path != "/readyz" || c.StartupProbe == nil {
			t.Errorf("probes %+v, %+v", c.LivenessProbe, c.ReadinessProbe)
		}
		if n := len(s.Spec.VolumeClaimTemplates); n != 1 || c.VolumeMounts[0].MountPath != "/data" {
			t.Errorf("%d volumes, mounts %+v", n, c.VolumeMounts)
		}
		return
	}
	t.Error("there is no gateway")
}

// requests are what a request of the runner of Jobs looks like in its source.
var requests = regexp.MustCompile(`(?:http\.Method(\w+), |path: )r\.c\.path\("([^"]+)"(\+)?(?:[\w.\[\]()]*\+"/(\w+)")?`)

// needed reads the rights that the runner of Jobs uses off its source.
func needed(t *testing.T) map[string][]string {
	t.Helper()
	files, err := filepath.Glob("../internal/controller/kube/*.go")
	if err != nil || len(files) == 0 {
		t.Fatal("the runner of Jobs is not where it was: ", err)
	}
	out := map[string][]string{}
	for _, f := range files {
		if strings.HasSuffix(f, "_test.go") {
			continue
		}
		src, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range requests.FindAllStringSubmatch(string(src), -1) {
			method, path, named, sub := m[1], strings.TrimSuffix(m[2], "/"), m[3] != "", m[4]
			parts := strings.Split(path, "/")
			resource := parts[len(parts)-1]
			if len(parts) == 3 { // group, version, resource
				resource = parts[0] + "/" + resource
			}
			if sub != "" {
				resource += "/" + sub
			}
			verbs := map[string][]string{"": {"list", "watch"}, "Post": {"create"}, "Put": {"update"}, "Patch": {"patch"}, "Delete": {"delete"}, "Get": {"list"}}[method]
			if method == "Get" && named {
				verbs = []string{"get"}
			}
			for _, v := range verbs {
				if !slices.Contains(out[resource], v) {
					out[resource] = append(out[resource], v)
				}
			}
		}
	}
	for _, v := range out {
		slices.Sort(v)
	}
	return out
}

// The controller may do what it does and no more, and nothing outside the agents'
// namespace.
func TestControllerHasTheLeastRights(t *testing.T) {
	granted := map[string][]string{}
	for _, o := range build(t, "base") {
		switch o := o.(type) {
		case *rbacv1.ClusterRole, *rbacv1.ClusterRoleBinding:
			t.Errorf("a right in the whole cluster: %v", o)
		case *rbacv1.Role:
			if o.Namespace != "fulgur-agents" {
				t.Errorf("a role in %s", o.Namespace)
			}
			for _, r := range o.Rules {
				for _, resource := range r.Resources {
					if g := r.APIGroups[0]; g != "" {
						resource = g + "/" + resource
					}
					granted[resource] = append(granted[resource], r.Verbs...)
					slices.Sort(granted[resource])
				}
			}
		}
	}
	if d := cmp.Diff(needed(t), granted); d != "" {
		t.Errorf("rights (-what the runner asks for +what the Role gives):\n%s", d)
	}
}

func TestAgentsHaveNoWayOutByDefault(t *testing.T) {
	found := false
	for _, o := range build(t, "base") {
		if p, ok := o.(*networkingv1.NetworkPolicy); ok && p.Namespace == "fulgur-agents" {
			found = true
			if len(p.Spec.PodSelector.MatchLabels) > 0 || len(p.Spec.Egress) > 0 || len(p.Spec.Ingress) > 0 || len(p.Spec.PolicyTypes) != 2 {
				t.Errorf("policy %+v", p.Spec)
			}
		}
	}
	if !found {
		t.Error("there is no policy")
	}
}

// The run file is one that the controller takes, and it names the images that are
// installed.
func TestRunFileIsTaken(t *testing.T) {
	src, err := os.ReadFile("calc/run.yaml")
	if err != nil {
		t.Fatal(err)
	}
	f, warnings, err := config.Parse(src, "run.yaml", nil)
	if err != nil || len(warnings) > 0 {
		t.Fatal(err, warnings)
	}
	for name, p := range pods(build(t, "calc")) {
		if image := p.Containers[0].Image; image != f.Runner.Kubernetes.ProbeImage {
			t.Errorf("%s has the image %s, the probe %s", name, image, f.Runner.Kubernetes.ProbeImage)
		}
	}
	for _, o := range build(t, "calc") {
		if s, ok := o.(*corev1.Service); ok {
			if d := cmp.Diff(s.Spec.Selector, f.Runner.Kubernetes.GatewayPods); d != "" || s.Namespace != f.Runner.Kubernetes.GatewayNamespace {
				t.Errorf("the gateway's pods are others: %s", d)
			}
		}
	}
}

// The example's run file is the one of examples/calc but for where the agent runs.
func TestCalcIsTheExample(t *testing.T) {
	ours, err := os.ReadFile("calc/run.yaml")
	if err != nil {
		t.Fatal(err)
	}
	theirs, err := os.ReadFile("../examples/calc/run.yaml")
	if err != nil {
		t.Fatal(err)
	}
	runner := false
	for _, line := range strings.Split(string(ours), "\n") {
		key, _, ok := strings.Cut(strings.TrimSpace(line), ":")
		switch {
		case strings.HasPrefix(line, "  ") && runner: // what is the cluster's
		case !ok, strings.HasPrefix(key, "#"), key == "agent", key == "runner", key == "version", key == "model":
			runner = key == "runner"
		case !strings.Contains(string(theirs), strings.TrimSpace(line)):
			t.Errorf("%q is not in the example's run file", line)
		}
	}
}

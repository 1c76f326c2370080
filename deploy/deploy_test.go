// Package deploy holds the manifests to what the cluster will read: they are
// built with kustomize and decoded strictly.
package deploy

import (
	"os"
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer/json"
	"sigs.k8s.io/kustomize/api/krusty"
	"sigs.k8s.io/kustomize/kyaml/filesys"
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

// The controller may do this and no more, and nothing outside the agents' namespace.
func TestControllerHasTheLeastRights(t *testing.T) {
	for _, o := range build(t, "base") {
		switch o := o.(type) {
		case *rbacv1.ClusterRole, *rbacv1.ClusterRoleBinding:
			t.Errorf("a right in the whole cluster: %v", o)
		case *rbacv1.Role:
			if o.Namespace != "fulgur-agents" {
				t.Errorf("a role in %s", o.Namespace)
			}
			for _, r := range o.Rules {
				if slices.Contains(r.Verbs, "*") || slices.Contains(r.Resources, "*") || slices.Contains(r.Resources, "pods/exec") {
					t.Errorf("too wide: %+v", r)
				}
				if slices.Contains(r.Resources, "secrets") && (slices.Contains(r.Verbs, "get") || slices.Contains(r.Verbs, "list") || slices.Contains(r.Verbs, "watch")) {
					t.Errorf("it may read secrets: %+v", r)
				}
			}
		}
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
	for _, line := range strings.Split(string(ours), "\n") {
		key, _, ok := strings.Cut(strings.TrimSpace(line), ":")
		switch {
		case !ok, strings.HasPrefix(key, "#"), key == "agent", key == "runner", key == "version", key == "model":
		case !strings.Contains(string(theirs), strings.TrimSpace(line)):
			t.Errorf("%q is not in the example's run file", line)
		}
	}
}

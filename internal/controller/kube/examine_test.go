package kube

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"go.yaml.in/yaml/v3"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// What doctor asks for is what deploy/base gives: no more, no less.
func TestRightsAreTheRolesRules(t *testing.T) {
	raw, err := os.ReadFile("../../../deploy/base/rbac.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var role struct {
		Kind  string
		Rules []struct {
			Groups    []string `yaml:"apiGroups"`
			Resources []string
			Verbs     []string
		}
	}
	d := yaml.NewDecoder(strings.NewReader(string(raw)))
	for role.Kind != "Role" {
		if err := d.Decode(&role); err != nil {
			t.Fatal(err)
		}
	}
	given := map[string][]string{}
	for _, r := range role.Rules {
		for _, g := range r.Groups {
			for _, what := range r.Resources {
				name := Right{Group: g, Resource: what}.String()
				given[name] = slices.Sorted(slices.Values(append(given[name], r.Verbs...)))
			}
		}
	}
	asked := map[string][]string{}
	for _, r := range Rights(true) {
		asked[r.String()] = slices.Sorted(slices.Values(r.Verbs))
	}
	if d := cmp.Diff(given, asked); d != "" {
		t.Errorf("given -, asked +:\n%s", d)
	}
}

func TestRoomInAQuota(t *testing.T) {
	list := func(pairs ...string) corev1.ResourceList {
		out := corev1.ResourceList{}
		for i := 0; i < len(pairs); i += 2 {
			out[corev1.ResourceName(pairs[i])] = resource.MustParse(pairs[i+1])
		}
		return out
	}
	always := corev1.ContainerRestartPolicyAlways
	pod := &corev1.PodSpec{
		InitContainers: []corev1.Container{
			{RestartPolicy: &always, Resources: corev1.ResourceRequirements{Limits: list("memory", "128Mi"), Requests: list("cpu", "10m", "memory", "32Mi")}},
			{Resources: corev1.ResourceRequirements{Requests: list("cpu", "2")}},
		},
		Containers: []corev1.Container{
			{Resources: corev1.ResourceRequirements{Limits: list("memory", "1Gi")}},
			{Resources: corev1.ResourceRequirements{Limits: list("memory", "384Mi"), Requests: list("cpu", "500m")}},
		},
	}
	need := needs(pod)
	for name, want := range map[string]string{"limits.memory": "1536Mi", "requests.memory": "1440Mi", "memory": "1440Mi", "requests.cpu": "2", "pods": "1", "count/jobs.batch": "1"} {
		if got := need[corev1.ResourceName(name)]; got.Cmp(resource.MustParse(want)) != 0 {
			t.Errorf("%s: a pod needs %s, want %s", name, got.String(), want)
		}
	}
	for name, test := range map[string]struct {
		hard  corev1.ResourceList
		n     int64
		least string
		lacks []string
	}{
		"nothing that agents need":     {list("services", "3"), -1, "", nil},
		"pods":                         {list("pods", "50", "count/jobs.batch", "60"), 50, "pods", nil},
		"the least of several":         {list("pods", "50", "limits.memory", "16Gi"), 10, "limits.memory", nil},
		"petabytes":                    {list("requests.memory", "8Pi"), 5965232, "requests.memory", nil},
		"thousandths of a core":        {list("requests.cpu", "9500m"), 4, "requests.cpu", nil},
		"none at all":                  {list("limits.memory", "1Gi"), 0, "limits.memory", nil},
		"what the pod does not name":   {list("limits.cpu", "10", "pods", "5"), 5, "pods", []string{"limits.cpu"}},
		"storage that no agent claims": {list("requests.storage", "1Gi", "persistentvolumeclaims", "0"), -1, "", nil},
	} {
		t.Run(name, func(t *testing.T) {
			n, least, lacks := room(&corev1.ResourceQuota{Spec: corev1.ResourceQuotaSpec{Hard: test.hard}}, need)
			if n != test.n || least != test.least || !slices.Equal(lacks, test.lacks) {
				t.Errorf("%d of %q, lacks %q; want %d of %q, lacks %q", n, least, lacks, test.n, test.least, test.lacks)
			}
		})
	}
}

func TestImagesThatAreFetchedAhead(t *testing.T) {
	template := func(image string) string {
		return "apiVersion: batch/v1\nkind: Job\nmetadata: {name: '{{ job_name }}'}\nspec: {template: {spec: {initContainers: [{name: tools, image: 'tools:1'}], containers: [{name: agent, image: '" + image + "', imagePullPolicy: Always}]}}}\n"
	}
	rows := func(images ...string) (out []json.RawMessage) {
		for _, i := range images {
			out = append(out, json.RawMessage(fmt.Sprintf(`{"image":%q}`, i)))
		}
		return out
	}
	many := slices.Collect(func(yield func(string) bool) {
		for i := range 30 {
			if !yield(fmt.Sprintf("task:%d", i)) {
				return
			}
		}
	})
	for name, test := range map[string]struct {
		template string
		o        Options
		want     []string
		note     string
		none     bool
	}{
		"the built-in template":                                 {"", Options{Image: "agent:1", Inputs: rows("a", "b")}, []string{"agent:1"}, "", false},
		"a relay's too":                                         {"", Options{Image: "agent:1", RelayImage: "relay:1", Gateway: "http://g"}, []string{"agent:1", "relay:1"}, "", false},
		"the probe's is there":                                  {"", Options{Image: "agent:1", ProbeImage: "agent:1"}, nil, "", false},
		"a template of one image":                               {template("agent:2"), Options{}, []string{"tools:1", "agent:2"}, "", false},
		"an image that depends on the input":                    {template("{{ input.image }}"), Options{Inputs: rows("a:1", "b:1", "b:1", "a:1", "b:1")}, []string{"tools:1", "b:1", "a:1"}, "", false},
		"rows of which no Job can be made":                      {template("{{ input.image }}"), Options{Inputs: append(rows("a:1"), json.RawMessage(`{}`))}, []string{"tools:1", "a:1"}, "", false},
		"an image that depends on the input, and there is none": {template("{{ input.image }}"), Options{}, nil, "", false},
		"more images than may be":                               {template("{{ input.image }}"), Options{Inputs: rows(many...)}, []string{"tools:1"}, "30 of the 31 images of agents are not fetched ahead: more than runner.kubernetes.prepull (20)", false},
		"none wanted":                                           {"", Options{Image: "agent:1"}, nil, "", true},
	} {
		t.Run(name, func(t *testing.T) {
			o := test.o
			o.Prepull = 20
			if test.none {
				o.Prepull = 0
			}
			if test.template != "" {
				var err error
				if o.Template, err = ParseTemplate("job.yaml", test.template); err != nil {
					t.Fatal(err)
				}
			}
			m, err := newMaker(o)
			if err != nil {
				t.Fatal(err)
			}
			images, note := m.ahead()
			var got []string
			for _, i := range images {
				got = append(got, i.Name)
				if i.Name == "a:1" && i.Policy != corev1.PullAlways {
					t.Errorf("%s is pulled %q", i.Name, i.Policy)
				}
			}
			if !slices.Equal(got, test.want) || note != test.note {
				t.Errorf("%q, note %q; want %q, note %q", got, note, test.want, test.note)
			}
		})
	}
}

// Each thing that a probe can find has its line, and its word for what to do.
func TestWhatDoctorSaysOfANode(t *testing.T) {
	good := ProbeResult{Closed: []string{"the internet (1.1.1.1:443)"}}
	for name, test := range map[string]struct {
		found    *ProbeResult
		isolated bool
		want     map[string]string // status by line
	}{
		"all is well":          {&good, true, map[string]string{"gateway": CheckOK, "stream": CheckOK, "closed": CheckOK}},
		"no probe":             {nil, true, map[string]string{"": CheckFailed}},
		"no gateway":           {&ProbeResult{Reached: "connection refused"}, true, map[string]string{"gateway": CheckFailed}},
		"held back":            {&ProbeResult{Streams: "3 of 4 parts were held back"}, true, map[string]string{"gateway": CheckOK, "stream": CheckFailed, "closed": CheckOK}},
		"a way out":            {&ProbeResult{Escaped: []string{"the API server"}}, true, map[string]string{"gateway": CheckOK, "stream": CheckOK, "closed": CheckFailed}},
		"a way out, as wanted": {&ProbeResult{Escaped: []string{"the API server"}}, false, map[string]string{"gateway": CheckOK, "stream": CheckOK, "closed": CheckWarning}},
	} {
		t.Run(name, func(t *testing.T) {
			o := &maker{Options: Options{Isolated: test.isolated}}
			got := map[string]string{}
			refused := false
			for _, c := range o.nodeChecks("n", test.found, "why") {
				got[strings.TrimPrefix(strings.TrimPrefix(c.Name, "node n"), ": ")] = c.Status
				refused = refused || c.Status == CheckFailed
				if c.Status == CheckFailed && c.Do == "" {
					t.Errorf("%s: nothing is said to do", c.Name)
				}
			}
			if !maps.Equal(got, test.want) {
				t.Errorf("%v, want %v", got, test.want)
			}
			if err := o.judge("n", test.found, "why"); (err != nil) != refused {
				t.Errorf("doctor refuses: %v; a run: %v", refused, err)
			}
		})
	}
}

// Probes keep to the nodes that the template's agents may go to.
func TestProbesGoWhereAgentsGo(t *testing.T) {
	tmpl, err := ParseTemplate("job.yaml", `
apiVersion: batch/v1
kind: Job
metadata: {name: "{{ job_name }}"}
spec:
  template:
    spec:
      nodeSelector: {pool: "{{ input.pool }}"}
      tolerations: [{key: gpu}]
      securityContext: {runAsNonRoot: true, runAsUser: 1000}
      affinity: {nodeAffinity: {requiredDuringSchedulingIgnoredDuringExecution: {nodeSelectorTerms: [{matchExpressions: [{key: a, operator: Exists}]}, {matchExpressions: [{key: b, operator: Exists}]}]}}}
      containers: [{name: agent, image: "i:1"}]
`)
	if err != nil {
		t.Fatal(err)
	}
	m, err := newMaker(Options{Template: tmpl, Scope: "s", Inputs: []json.RawMessage{json.RawMessage(`{"pool":"agents"}`)}})
	if err != nil {
		t.Fatal(err)
	}
	r := &Runner{maker: m}
	pod := r.probeJob(r.newMark()+"-0", "0", nil, []string{"n1", "n2"}).Spec.Template.Spec
	terms := pod.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms
	if u := pod.SecurityContext.RunAsUser; u == nil || *u != 1000 || pod.SecurityContext.SeccompProfile == nil {
		t.Errorf("%+v", pod.SecurityContext)
	}
	if pod.NodeSelector["pool"] != "agents" || len(pod.Tolerations) != 1 || len(terms) != 2 {
		t.Fatalf("%+v", pod)
	}
	for _, term := range terms {
		if len(term.MatchExpressions) != 1 || len(term.MatchFields) != 2 {
			t.Errorf("%+v", term)
		}
	}
	if again := r.probeJob(r.newMark()+"-0", "0", nil, nil).Spec.Template.Spec.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms; len(again[0].MatchFields) != 0 {
		t.Error("the template's own affinity was changed")
	}
}

// An image's program is never run: each has a copy of the probe's, one after the other,
// on the node that is named.
func TestImagesAreFetchedByAProgramOfOurs(t *testing.T) {
	m, err := newMaker(Options{Image: "i:1", ProbeImage: "fulgur:1", Scope: "s"})
	if err != nil {
		t.Fatal(err)
	}
	r := &Runner{maker: m}
	job := r.pullJob(r.newMark()+"-p0", "0", "n1", []Image{{Name: "a:1", Policy: corev1.PullAlways}, {Name: "b:1"}})
	pod := job.Spec.Template.Spec
	if f := pod.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms[0].MatchFields; len(f) != 1 || f[0].Operator != corev1.NodeSelectorOpIn || f[0].Values[0] != "n1" {
		t.Errorf("it goes to %+v", f)
	}
	if len(pod.InitContainers) != 3 || len(pod.Containers) != 1 || pod.Containers[0].Image != "fulgur:1" || pod.InitContainers[0].Image != "fulgur:1" {
		t.Fatalf("%+v", pod)
	}
	program := pod.InitContainers[0].Args[len(pod.InitContainers[0].Args)-1]
	for i, c := range pod.InitContainers[1:] {
		if c.Image != []string{"a:1", "b:1"}[i] || c.Command[0] != program || len(c.VolumeMounts) != 1 || *c.SecurityContext.AllowPrivilegeEscalation {
			t.Errorf("%+v", c)
		}
	}
	if pod.InitContainers[1].ImagePullPolicy != corev1.PullAlways {
		t.Error("its own policy is not kept")
	}
}

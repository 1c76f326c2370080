package kube

import (
	"encoding/json"
	"fmt"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"

	"github.com/fulgur-rl/fulgur"
	"github.com/fulgur-rl/fulgur/internal/controller"
	"github.com/fulgur-rl/fulgur/internal/controller/plan"
)

func TestNames_CK05(t *testing.T) {
	ids := []string{"a", "r-1", strings.Repeat("x", 51), strings.Repeat("x", 52), strings.Repeat("x", 100), strings.Repeat("x", 101), "UPPER_x/..", "upper_x/..", "-a", "a-", "", "ünïcödé", "日本語", "a b", "a.b", "a-1",
		"a-" + hash("s", "a", "1")[:24], "agl-attempt-a"}
	legal := regexp.MustCompile(`^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$`)
	seen := map[string]string{}
	for _, id := range ids {
		for _, attempt := range []string{"0", "1", "2"} {
			key := plan.Key{Rollout: fulgur.RolloutID(id), Attempt: fulgur.AttemptID(attempt)}
			for _, n := range []string{jobName("s", key), hashedName("s", key)} {
				if !legal.MatchString(n) {
					t.Errorf("%q gives %q", id, n)
				}
				if who := seen[n]; who != "" && who != id+"/"+attempt {
					t.Errorf("%s and %s/%s are both %s", who, id, attempt, n)
				}
				seen[n] = id + "/" + attempt
			}
			if hashedName("s", key) == hashedName("s2", key) {
				t.Errorf("%q: not a function of scope and key", id)
			}
			if v := labelValue(id); id != "" && !legalLabel.MatchString(v) {
				t.Errorf("label %q", v)
			}
		}
	}
	if n := jobName("s", plan.Key{Rollout: "calc-0-17-3", Attempt: "0"}); n != "agl-rollout-calc-0-17-3" {
		t.Errorf("v1's name became %s", n)
	}
}

func builder(t *testing.T, change ...func(*Options)) *maker {
	t.Helper()
	o := Options{Namespace: "ns", Run: "calc", Scope: "s", Image: "alpine:3", Command: []string{"agent", "$(HOME)"}, Env: map[string]string{"Q": "input.q"}}
	for _, f := range change {
		f(&o)
	}
	m, err := newMaker(o)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

func execution(input any) controller.Execution {
	raw, _ := json.Marshal(input)
	return controller.Execution{Key: plan.Key{Rollout: "r/1", Attempt: "0"}, Input: raw, Timeout: time.Minute, Secrets: []string{"s3cret"},
		Env: map[string]string{"OPENAI_BASE_URL": "http://gw/x", "OPENAI_API_KEY": "s3cret", "AGL_KEY": "s3cret"}}
}

func from(path string, t *testing.T) func(*Options) {
	return func(o *Options) {
		tmpl, err := ParseTemplate("job.yaml", path)
		if err != nil {
			t.Fatal(err)
		}
		o.Template = tmpl
	}
}

func TestBuiltInJob(t *testing.T) {
	o, err := builder(t, func(o *Options) { o.Memory, o.InputFile = 1<<30, true }).build("n", execution(map[string]string{"q": "what is $(OPENAI_API_KEY)?"}))
	if err != nil {
		t.Fatal(err)
	}
	raw, _ := json.Marshal(o.job)
	if strings.Contains(string(raw), "s3cret") {
		t.Error("the credential is in the manifest")
	}
	pod := o.job.Spec.Template.Spec
	c := pod.Containers[0]
	env := map[string]string{}
	for _, v := range c.Env {
		env[v.Name] = v.Value
		if v.ValueFrom != nil {
			env[v.Name] = "secret " + v.ValueFrom.SecretKeyRef.Name + " " + v.ValueFrom.SecretKeyRef.Key
		}
	}
	if d := cmp.Diff(map[string]string{"OPENAI_BASE_URL": "http://gw/x", "OPENAI_API_KEY": "secret n OPENAI_API_KEY", "AGL_KEY": "secret n AGL_KEY", "Q": "what is $$(OPENAI_API_KEY)?", "FULGUR_INPUT_FILE": "/fulgur-input/input.json"}, env); d != "" {
		t.Error(d)
	}
	if d := cmp.Diff([]string{"agent", "$$(HOME)"}, c.Command); d != "" {
		t.Error(d)
	}
	for what, ok := range map[string]bool{
		"no service account token":   pod.AutomountServiceAccountToken != nil && !*pod.AutomountServiceAccountToken,
		"no service links":           pod.EnableServiceLinks != nil && !*pod.EnableServiceLinks,
		"a seccomp profile":          pod.SecurityContext.SeccompProfile.Type == corev1.SeccompProfileTypeRuntimeDefault,
		"no capability":              c.SecurityContext.Capabilities.Drop[0] == "ALL",
		"no privilege escalation":    !*c.SecurityContext.AllowPrivilegeEscalation,
		"never started again":        pod.RestartPolicy == corev1.RestartPolicyNever && *o.job.Spec.BackoffLimit == 0,
		"a deadline far away":        *o.job.Spec.ActiveDeadlineSeconds > 86400,
		"v1's labels":                o.job.Labels["app.kubernetes.io/managed-by"] == "agentlightning" && strings.HasPrefix(o.job.Labels["agentlightning/rollout-id"], "id-"),
		"the id in full":             o.job.Annotations["fulgur/rollout-id"] == "r/1",
		"the pod is known by them":   o.job.Spec.Template.Labels["fulgur/scope"] != "",
		"a limit of memory":          c.Resources.Limits.Memory().Value() == 1<<30,
		"the input is in the Secret": string(o.secret.Data["input.json"]) == `{"q":"what is $(OPENAI_API_KEY)?"}`,
	} {
		if !ok {
			t.Error("it lacks: " + what)
		}
	}
}

func TestTemplatesJobIsKept(t *testing.T) {
	const source = `apiVersion: batch/v1
kind: Job
metadata: {name: other, namespace: elsewhere, labels: {team: x}, finalizers: [a/b]}
spec:
  backoffLimit: 6
  ttlSecondsAfterFinished: 1
  suspend: true
  template:
    metadata: {labels: {queue: q}}
    spec:
      automountServiceAccountToken: true
      restartPolicy: OnFailure
      terminationGracePeriodSeconds: 99
      securityContext: {seccompProfile: {type: Unconfined}}
      containers:
      - {name: proxy, image: proxy:1, env: [{name: AGL_KEY, value: old}, {name: MINE, value: kept}]}
      - name: agent
        image: ghcr.io/a/b:1@sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef
        securityContext: {capabilities: {add: [NET_RAW]}, allowPrivilegeEscalation: true}
`
	o, err := builder(t, from(source, t)).build("n", execution(map[string]string{"q": "x"}))
	if err != nil {
		t.Fatal(err)
	}
	pod := o.job.Spec.Template.Spec
	for what, ok := range map[string]bool{
		"ours: name and namespace":                    o.job.Name == "n" && o.job.Namespace == "ns",
		"ours: no finalizers":                         len(o.job.Finalizers) == 0,
		"ours: back-off, TTL, restarts":               *o.job.Spec.BackoffLimit == 0 && *o.job.Spec.TTLSecondsAfterFinished > 1 && pod.RestartPolicy == "Never",
		"theirs: labels":                              o.job.Labels["team"] == "x" && o.job.Spec.Template.Labels["queue"] == "q",
		"theirs: suspend":                             *o.job.Spec.Suspend,
		"theirs: the token":                           *pod.AutomountServiceAccountToken,
		"theirs: the profile":                         pod.SecurityContext.SeccompProfile.Type == "Unconfined",
		"theirs: capabilities":                        len(pod.Containers[1].SecurityContext.Capabilities.Drop) == 0 && *pod.Containers[1].SecurityContext.AllowPrivilegeEscalation,
		"theirs: the grace":                           *pod.TerminationGracePeriodSeconds == 99,
		"the agent is the one called so":              o.job.Annotations[noteAgent] == "agent",
		"variables in every container":                len(pod.Containers[0].Env) == 4 && pod.Containers[0].Env[0].Name == "MINE",
		"an entry of the name is replaced":            pod.Containers[0].Env[1].Name == "AGL_KEY" && pod.Containers[0].Env[1].ValueFrom != nil,
		"the input's variables are the agent's alone": len(pod.Containers[1].Env) == 4 && pod.Containers[1].Env[3].Name == "Q",
	} {
		if !ok {
			t.Errorf("not so: %s", what)
		}
	}
}

func TestBuildRefuses_CK10(t *testing.T) {
	big := strings.Repeat("x", 200_000)
	head := "apiVersion: batch/v1\nkind: Job\nspec:\n  template:\n    spec:\n      containers:\n      - name: agent\n        image: a:1\n"
	for name, test := range map[string]struct {
		change func(*Options)
		input  any
		kind   fulgur.Kind
		want   string
	}{
		"200 KB in a variable of the template": {from(head+"        env: [{name: TASK, value: {{ input.q | yaml_escape }}}]\n", t), map[string]string{"q": big}, fulgur.KindTooLarge, "the environment variable TASK would hold 200000 bytes"},
		"200 KB in a variable of the run file": {func(*Options) {}, map[string]string{"q": big}, fulgur.KindTooLarge, "the environment variable Q would hold 200000 bytes"},
		"200 KB in an argument":                {func(o *Options) { from(head+"        args: [{{ input.q | yaml_escape }}]\n", t)(o); o.Env = nil }, map[string]string{"q": big}, fulgur.KindTooLarge, "agent.input.file"},
		"more than a Secret takes":             {func(o *Options) { o.InputFile, o.Env = true, nil }, map[string]string{"q": strings.Repeat(big, 6)}, fulgur.KindTooLarge, "a Secret takes less"},
		"more than a cluster takes":            {from(head+"        args: ["+strings.Repeat("{{ input.q }}, ", 12)+"]\n", t), map[string]string{"q": big[:100_000]}, fulgur.KindTooLarge, "the Job would be"},
		"a zero byte":                          {from(head+"        args: [{{ input.q }}]\n", t), map[string]string{"q": "a\x00b"}, fulgur.KindInvalid, "zero byte"},
		"a path that is not there":             {func(o *Options) { o.Env = map[string]string{"X": "input.nothing"} }, map[string]string{"q": "x"}, fulgur.KindInvalid, "X asks for input.nothing"},
		"an image that is no name":             {from(strings.Replace(head, "a:1", "\"{{ input.q }}\"", 1), t), map[string]string{"q": "Not An Image"}, fulgur.KindInvalid, `"Not An Image", which is no image's name`},
		"the node's network under a policy": {func(o *Options) {
			o.Isolated = true
			from(strings.Replace(head, "      containers:", "      hostNetwork: true\n      containers:", 1), t)(o)
		}, map[string]string{"q": "x"}, fulgur.KindInvalid, "no NetworkPolicy holds"},
		"no container":                         {from("apiVersion: batch/v1\nkind: Job\n", t), map[string]string{"q": "x"}, fulgur.KindInvalid, "no container"},
		"an agent container that is not there": {func(o *Options) { o.Agent = "main" }, map[string]string{"q": "x"}, fulgur.KindInvalid, `no container called "main"`},
		"several pods":                         {from(strings.Replace(head, "spec:\n", "spec:\n  completions: 3\n", 1), t), map[string]string{"q": "x"}, fulgur.KindInvalid, "several pods"},
		"a policy that starts pods again":      {from(strings.Replace(head, "spec:\n", "spec:\n  podFailurePolicy: {rules: [{action: Ignore, onPodConditions: [{type: DisruptionTarget}]}]}\n", 1), t), map[string]string{"q": "x"}, fulgur.KindInvalid, "Ignore"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := builder(t, test.change).build("n", execution(test.input))
			if fulgur.KindOf(err) != test.kind || !strings.Contains(fmt.Sprint(err), test.want) {
				t.Errorf("error %.300v", err)
			}
		})
	}
}

func TestV1TemplateOfARollout(t *testing.T) {
	e := execution(map[string]string{"q": "fix: a\n  image: evil\n\"quote\""})
	e.Template = wrap("        env:\n        - name: QUESTION\n          value: {{ input.q | yaml_escape }}\n")
	o, err := builder(t).build("agl-rollout-x", e)
	if err != nil {
		t.Fatal(err)
	}
	c := o.job.Spec.Template.Spec.Containers[0]
	if c.Image != "python:3.12" || c.Env[0].Value != "fix: a\n  image: evil\n\"quote\"" {
		t.Errorf("%+v", c)
	}
	e.Template = wrap("        env: [{{ nothing }}]\n")
	if _, err := builder(t).build("n", e); err == nil || !strings.Contains(err.Error(), "config.k8s.job_template:11") {
		t.Errorf("error %v", err)
	}
}

func TestImageNames(t *testing.T) {
	for image, ok := range map[string]bool{
		"a": true, "alpine:3": true, "python:3.12-slim": true, "localhost:5000/a/b": true, "ghcr.io/o/r/i:v1.2@sha256:" + strings.Repeat("0", 64): true, "kubebox.test/host:1": true, "reg.example/My": false,
		"": false, "a b": false, "A": false, "-a": false, "a:": false, "a@sha256:1": false, "http://a/b": false, "a/../b": false, "a:b:c": false,
	} {
		if imageName.MatchString(image) != ok {
			t.Errorf("%q: %v", image, !ok)
		}
	}
}

func TestRelay(t *testing.T) {
	const gateway = "https://gw.example/base"
	with := func(template string) *maker {
		return builder(t, func(o *Options) {
			o.RelayImage, o.Gateway, o.InputFile = "fulgur:1", gateway+"/", true
			if template != "" {
				parsed, err := ParseTemplate("job.yaml", "{apiVersion: batch/v1, kind: Job, metadata: {name: x}, spec: {template: {spec: {"+template+"}}}}")
				if err != nil {
					t.Fatal(err)
				}
				o.Template, o.Image = parsed, ""
			}
		})
	}
	e := controller.Execution{Key: plan.Key{Rollout: "a", Attempt: "0"}, Secrets: []string{"hunter2"}, Input: json.RawMessage(`{"q":"1"}`), Env: map[string]string{
		"OPENAI_API_KEY": "hunter2", "HEADER": "Bearer hunter2", "OPENAI_BASE_URL": gateway + "/proxy/rollout/a%2Fb/openai/v1", "OTHER": gateway + "-not", "FULGUR_ROLLOUT_ID": "a"}}
	o, err := with(`containers: [{name: agent, image: "alpine:3"}, {name: proxy, image: "proxy:1"}]`).build("agl-rollout-a", e)
	if err != nil {
		t.Fatal(err)
	}
	pod := o.job.Spec.Template.Spec
	for _, c := range pod.Containers {
		got := map[string]string{}
		for _, v := range c.Env {
			if v.ValueFrom != nil {
				t.Errorf("%s: %s comes from a Secret", c.Name, v.Name)
			}
			got[v.Name] = v.Value
		}
		for n, want := range map[string]string{"OPENAI_API_KEY": "the-relay-adds-the-key", "HEADER": "Bearer the-relay-adds-the-key",
			"OPENAI_BASE_URL": "http://127.0.0.1:41457/proxy/rollout/a%2Fb/openai/v1", "OTHER": gateway + "-not", "FULGUR_ROLLOUT_ID": "a"} {
			if got[n] != want {
				t.Errorf("%s: %s is %q, want %q", c.Name, n, got[n], want)
			}
		}
		for _, m := range c.VolumeMounts {
			if m.Name == relayName {
				t.Errorf("%s has the relay's key", c.Name)
			}
		}
	}
	relay := pod.InitContainers[0]
	if relay.Name != relayName || relay.Image != "fulgur:1" || relay.RestartPolicy == nil || *relay.RestartPolicy != corev1.ContainerRestartPolicyAlways || relay.SecurityContext.Capabilities == nil {
		t.Errorf("relay %+v", relay)
	}
	if diff := cmp.Diff([]string{"relay", "--listen", "127.0.0.1:41457", "--upstream", gateway + "/", "--key-file", "/fulgur-relay/relay-key", "--allow", "/anthropic/", "--allow", "/openai/",
		"--allow", "/proxy/rollout/a%2Fb/openai/v1", "--allow", "/proxy/rollout/a%2Fb/openai/v1/"}, relay.Args); diff != "" {
		t.Error(diff)
	}
	if string(o.secret.Data[relayKey]) != "hunter2" || len(o.secret.Data) != 2 { // and the input
		t.Errorf("secret %v", o.secret.Data)
	}
	renameSecret(o.job, o.secret.Name, "other")
	for _, v := range pod.Volumes {
		if v.Secret.SecretName != "other" {
			t.Errorf("volume %s is of the Secret %s", v.Name, v.Secret.SecretName)
		}
	}
	for template, want := range map[string]string{
		`hostNetwork: true, containers: [{name: agent, image: a}]`:           "hostNetwork",
		`hostPID: true, containers: [{name: agent, image: a}]`:               "hostPID",
		`shareProcessNamespace: true, containers: [{name: agent, image: a}]`: "shareProcessNamespace",
		`containers: [{name: fulgur-relay, image: a}]`:                       "fulgur-relay",
	} {
		if _, err := with(template).build("x", e); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", template, err)
		}
	}
}

package cluster

import (
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// sh makes a pod of one container that runs a shell script.
func sh(script string, change ...func(*corev1.Pod)) *corev1.Pod {
	grace := int64(1)
	p := &corev1.Pod{Spec: corev1.PodSpec{RestartPolicy: corev1.RestartPolicyNever, TerminationGracePeriodSeconds: &grace,
		Containers: []corev1.Container{{Name: "main", Image: hostImage, Command: []string{"sh", "-c", script}}}}}
	p.GenerateName = "p-"
	for _, c := range change {
		c(p)
	}
	return p
}

// start creates a pod.
func (b *box) start(p *corev1.Pod) string {
	b.t.Helper()
	var made corev1.Pod
	b.create(b.Core("pods"), p, &made)
	return made.Name
}

func (b *box) pod(name string) *corev1.Pod {
	b.t.Helper()
	var p corev1.Pod
	b.get(b.Core("pods/"+name), &p)
	return &p
}

// over waits for a pod's end.
func (b *box) over(name string) (p *corev1.Pod) {
	b.t.Helper()
	b.Until("pod "+name+" has ended", func() bool {
		p = b.pod(name)
		return p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed
	})
	return p
}

func (b *box) logOf(pod, container string) string {
	b.t.Helper()
	var text []byte
	b.get(b.Core("pods/"+pod+"/log?container="+container), &text)
	return string(text)
}

// The node under the tests does what a kubelet does, as far as they rely on it.
func TestNodeTellsEndsApart(t *testing.T) {
	b := open(t)
	for name, c := range map[string]struct {
		pod    *corev1.Pod
		phase  corev1.PodPhase
		code   int32
		reason string
		msg    string
	}{
		"exit 0":   {sh("exit 0"), corev1.PodSucceeded, 0, "Completed", ""},
		"exit 3":   {sh("echo why > /dev/termination-log; exit 3"), corev1.PodFailed, 3, "Error", "why"},
		"a signal": {sh("sh -c 'kill -9 $$$$'; exit $?"), corev1.PodFailed, 137, "Error", ""},
		"no such program": {sh("", func(p *corev1.Pod) { p.Spec.Containers[0].Command = []string{"no-such-program"} }),
			corev1.PodFailed, 128, "StartError", "executable file not found"},
		"a deadline": {sh("sleep 60", func(p *corev1.Pod) { d := int64(1); p.Spec.ActiveDeadlineSeconds = &d }), corev1.PodFailed, 137, "Error", ""},
		"a failed init container": {sh("exit 0", func(p *corev1.Pod) {
			p.Spec.InitContainers = []corev1.Container{{Name: "init", Image: hostImage, Command: []string{"sh", "-c", "exit 5"}}}
		}), corev1.PodFailed, 137, "ContainerStatusUnknown", ""},
		"too much in an argument": {sh("", func(p *corev1.Pod) {
			p.Spec.Containers[0].Env = []corev1.EnvVar{{Name: "BIG", Value: strings.Repeat("x", 200_000)}}
		}), corev1.PodFailed, 128, "StartError", "argument list too long"},
	} {
		t.Run(name, func(t *testing.T) {
			b := *b
			b.t = t
			p := b.over(b.start(c.pod))
			s := p.Status.ContainerStatuses[0].State.Terminated
			if p.Status.Phase != c.phase || s.ExitCode != c.code || s.Reason != c.reason || !strings.Contains(s.Message, c.msg) {
				t.Errorf("phase %s, %+v", p.Status.Phase, s)
			}
		})
	}
}

func TestNodeKillsForMemory(t *testing.T) {
	b := open(t)
	var n corev1.Node
	b.get("/api/v1/nodes/node-1", &n)
	if n.Labels["kubebox.test/memory"] != "limited" {
		t.Skip("control groups cannot be made on this machine, so memory limits do not hold")
	}
	p := b.over(b.start(sh("head -c 200000000 /dev/zero | tail", func(p *corev1.Pod) {
		p.Spec.Containers[0].Resources.Limits = corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("32Mi")}
	})))
	if s := p.Status.ContainerStatuses[0].State.Terminated; s.Reason != "OOMKilled" || s.ExitCode != 137 {
		t.Errorf("%+v", s)
	}
}

func TestNodeEvicts(t *testing.T) {
	b := open(t)
	name := b.start(sh("sleep 100"))
	b.Until("it runs", func() bool { return b.pod(name).Status.Phase == corev1.PodRunning })
	b.annotate(name, "kubebox.test/evict", "The node was low on resource: memory.")
	if p := b.over(name); p.Status.Reason != "Evicted" || !strings.Contains(p.Status.Message, "low on resource") {
		t.Errorf("%+v", p.Status)
	}
}

func TestNodeWaitsForImages(t *testing.T) {
	b := open(t)
	name := b.start(sh("", func(p *corev1.Pod) { p.Spec.Containers[0].Image = "does-not-exist:1" }))
	seen := map[string]bool{}
	b.Until("both reasons were told", func() bool {
		p := b.pod(name)
		if len(p.Status.ContainerStatuses) > 0 && p.Status.ContainerStatuses[0].State.Waiting != nil {
			w := p.Status.ContainerStatuses[0].State.Waiting
			seen[w.Reason] = strings.Contains(w.Message, "does-not-exist:1")
		}
		return seen["ErrImagePull"] && seen["ImagePullBackOff"]
	})
	b.remove(b.Core("pods/" + name))
	b.empty()
}

func TestNodeGivesEnvironmentAndVolumes(t *testing.T) {
	b := open(t)
	b.create(b.Core("secrets"), &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "key"}, StringData: map[string]string{"token": "s3"}}, nil)
	yes := true
	name := b.start(sh(`echo $BOTH; cat /in/token; echo; cat /var/run/info/who; echo; ls /in | wc -l; touch /in/x 2>&1 | grep -c Read-only; id -u; hostname; cat /proc/1/comm; cat /etc/hosts | grep gateway`, func(p *corev1.Pod) {
		uid := int64(1234)
		p.Spec.SecurityContext = &corev1.PodSecurityContext{RunAsUser: &uid}
		p.Spec.HostAliases = []corev1.HostAlias{{IP: "10.1.2.3", Hostnames: []string{"gateway"}}}
		p.Spec.Volumes = []corev1.Volume{
			{Name: "in", VolumeSource: corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: "key"}}},
			{Name: "info", VolumeSource: corev1.VolumeSource{DownwardAPI: &corev1.DownwardAPIVolumeSource{Items: []corev1.DownwardAPIVolumeFile{
				{Path: "who", FieldRef: &corev1.ObjectFieldSelector{FieldPath: "metadata.namespace"}}}}}},
		}
		c := &p.Spec.Containers[0]
		c.SecurityContext = &corev1.SecurityContext{ReadOnlyRootFilesystem: &yes, Capabilities: &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}}}
		c.VolumeMounts = []corev1.VolumeMount{{Name: "in", MountPath: "/in", ReadOnly: true}, {Name: "info", MountPath: "/var/run/info"}}
		c.Env = []corev1.EnvVar{{Name: "TOKEN", ValueFrom: &corev1.EnvVarSource{SecretKeyRef: &corev1.SecretKeySelector{
			LocalObjectReference: corev1.LocalObjectReference{Name: "key"}, Key: "token"}}}, {Name: "BOTH", Value: "a-$(TOKEN)"}}
	}))
	p := b.over(name)
	want := "a-s3\ns3\n" + b.ns + "\n1\n1\n1234\n" + name + "\nsh\n10.1.2.3\tgateway\n"
	if got := b.logOf(name, "main"); got != want || p.Status.Phase != corev1.PodSucceeded {
		t.Errorf("phase %s, log\n%s\nwant\n%s", p.Status.Phase, got, want)
	}
}

func TestNodeEndsSidecars(t *testing.T) {
	b := open(t)
	always := corev1.ContainerRestartPolicyAlways
	begin := time.Now()
	name := b.start(sh("sleep 1; exit 4", func(p *corev1.Pod) {
		p.Spec.InitContainers = []corev1.Container{{Name: "proxy", Image: hostImage, RestartPolicy: &always,
			Command: []string{"sh", "-c", "trap 'echo bye; exit 0' TERM; echo up; while :; do sleep 0.1; done"}}}
	}))
	p := b.over(name)
	if p.Status.Phase != corev1.PodFailed || p.Status.ContainerStatuses[0].State.Terminated.ExitCode != 4 {
		t.Errorf("%+v", p.Status)
	}
	if got := b.logOf(name, "proxy"); got != "up\nbye\n" {
		t.Errorf("the sidecar said %q", got)
	}
	t.Logf("it took %s", time.Since(begin))
}

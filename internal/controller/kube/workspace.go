package kube

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/fulgur-rl/fulgur/internal/controller/grade"
	"github.com/fulgur-rl/fulgur/internal/controller/plan"
)

const (
	workName = "fulgur-workspace" // the volume
	workPath = "/workspace"

	// WorkArtifact is what an agent has left, as its sidecar hands it over, and
	// RefusedArtifact why that is not taken.
	WorkArtifact    = "workspace"
	RefusedArtifact = "refused"

	// A workspace as a whole, with what its agent has fetched, may be wholeWork times what may be
	// graded of it, and take fullWork times as much while it runs.
	wholeWork   = 8
	fullWork    = 4
	defaultSize = 32 << 20

	// handOver is how long a sidecar may take to hand a workspace over, and wait for a
	// gateway that is away. Agents that do not heed SIGTERM have as long.
	handOver = 30 * time.Second

	copyName     = "fulgur-copy" // the tests' init container, and its volume
	copyFolder   = "/fulgur-copy"
	copyKey      = "key"
	testsName    = "tests"
	labelTests   = "fulgur/tests"
	noteTestsOf  = "fulgur/tests-of"
	testsTTL     = 10 * time.Minute
	testsWaitFor = 15 * time.Minute // a place, an image; beside a queue's or a quota's
)

// graded says whether a program grades what agents leave.
func (o *maker) graded() bool { return o.Grading != nil }

// workSize is how many bytes of a workspace are taken.
func (o *maker) workSize() int64 {
	if o.Grading == nil {
		return WorkBytes(0)
	}
	return WorkBytes(o.Grading.Size)
}

// WorkBytes is how large a workspace may be of which so much may be graded; 0: the default.
func WorkBytes(size int64) int64 {
	if size <= 0 {
		size = defaultSize
	}
	return wholeWork * size
}

// addWorkspace gives the agent its workspace. Where it is graded, the relay, which is
// there already, takes it when the agent's container has ended; nobody else has it.
func (o *maker) addWorkspace(pod *corev1.PodSpec, agent int, key plan.Key) error {
	c := &pod.Containers[agent]
	for _, m := range c.VolumeMounts {
		if strings.TrimRight(m.MountPath, "/") == workPath {
			return invalid("the agent's container has something mounted at %s, where its workspace is: mount it elsewhere, or leave out agent.workspace", workPath)
		}
	}
	if slices.ContainsFunc(pod.Volumes, func(v corev1.Volume) bool { return v.Name == workName }) {
		return invalid("the pod has a volume called %s, as the workspace is: call it something else", workName)
	}
	limit := resource.NewQuantity(fullWork*o.workSize(), resource.BinarySI)
	pod.Volumes = append(pod.Volumes, corev1.Volume{Name: workName, VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{SizeLimit: limit}}})
	c.VolumeMounts = append(c.VolumeMounts, corev1.VolumeMount{Name: workName, MountPath: workPath})
	if c.WorkingDir == "" {
		c.WorkingDir = workPath
	}
	if !o.graded() {
		return nil
	}
	if len(pod.Containers) > 1 {
		return invalid("the pod has other containers beside the agent, and its workspace is taken when all have ended: make them sidecars (initContainers with restartPolicy: Always)")
	}
	relay := &pod.InitContainers[0]
	user, err := readerOf(pod, c)
	if err != nil {
		return err
	}
	relay.SecurityContext, relay.TerminationMessagePolicy = user, corev1.TerminationMessageFallbackToLogsOnError
	for _, s := range []string{"--take", workPath, "--take-bytes", strconv.FormatInt(o.workSize(), 10), "--rollout", string(key.Rollout), "--attempt", string(key.Attempt)} {
		relay.Args = append(relay.Args, verbatim(s))
	}
	relay.VolumeMounts = append(relay.VolumeMounts, corev1.VolumeMount{Name: workName, MountPath: workPath, ReadOnly: true})
	relay.Resources.Limits[corev1.ResourceMemory] = resource.MustParse("256Mi")
	if grace := int64(handOver / time.Second); *pod.TerminationGracePeriodSeconds < grace {
		pod.TerminationGracePeriodSeconds = &grace
	}
	return nil
}

// readerOf is how a sidecar runs that is to read whatever the agent has written: as the
// same user or, where only the image knows which that is, as root with the one
// capability that reading needs.
func readerOf(pod *corev1.PodSpec, agent *corev1.Container) (*corev1.SecurityContext, error) {
	no, yes, root := false, true, int64(0)
	out := &corev1.SecurityContext{AllowPrivilegeEscalation: &no, ReadOnlyRootFilesystem: &yes, Capabilities: &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}}}
	var user *int64
	nonRoot := false
	if s := pod.SecurityContext; s != nil {
		user, nonRoot = s.RunAsUser, s.RunAsNonRoot != nil && *s.RunAsNonRoot
	}
	if s := agent.SecurityContext; s != nil {
		if s.RunAsUser != nil {
			user = s.RunAsUser
		}
		nonRoot = nonRoot || s.RunAsNonRoot != nil && *s.RunAsNonRoot
	}
	switch {
	case user != nil:
		out.RunAsUser = user
	case nonRoot:
		return nil, invalid("the pod has runAsNonRoot and no runAsUser: who takes the agent's workspace must be the same user, so write securityContext.runAsUser")
	default:
		out.RunAsUser = &root
		out.Capabilities.Add = []corev1.Capability{"DAC_OVERRIDE"}
	}
	return out, nil
}

// testObjects are the Job of an attempt's tests, made of the agent's own: the same image,
// place and rights, and nothing that was the attempt's. An init container fetches the
// copy that is tested, with a key that is good for that alone and is mounted nowhere else.
func (o *maker) testObjects(of *batchv1.Job, agentName string, t grade.Test, artifact, key string) (objects, error) {
	src := &of.Spec.Template.Spec
	at := slices.IndexFunc(src.Containers, func(c corev1.Container) bool { return c.Name == agentName })
	if at < 0 {
		return objects{}, fmt.Errorf("the Job %s has no container %s", of.Name, agentName)
	}
	agent := &src.Containers[at]
	no, grace := false, int64(1)
	limit := resource.NewQuantity(fullWork*o.workSize(), resource.BinarySI)
	pod := corev1.PodSpec{
		RestartPolicy: corev1.RestartPolicyNever, TerminationGracePeriodSeconds: &grace, AutomountServiceAccountToken: &no, EnableServiceLinks: &no,
		NodeSelector: src.NodeSelector, Affinity: src.Affinity, Tolerations: src.Tolerations, SecurityContext: src.SecurityContext, RuntimeClassName: src.RuntimeClassName,
		ImagePullSecrets: src.ImagePullSecrets, ServiceAccountName: src.ServiceAccountName, PriorityClassName: src.PriorityClassName, SchedulerName: src.SchedulerName,
		HostAliases: src.HostAliases, HostUsers: src.HostUsers, OS: src.OS,
	}
	c := corev1.Container{
		Name: testsName, Image: agent.Image, ImagePullPolicy: agent.ImagePullPolicy, WorkingDir: workPath, SecurityContext: agent.SecurityContext,
		Resources: corev1.ResourceRequirements{Limits: agent.Resources.Limits, Requests: agent.Resources.Requests},
		Env:       []corev1.EnvVar{{Name: "HOME", Value: "/tmp"}, {Name: "PYTHONDONTWRITEBYTECODE", Value: "1"}},
	}
	for _, s := range o.Grading.Tests {
		c.Command = append(c.Command, verbatim(s))
	}
	empty := func(name, path string) {
		pod.Volumes = append(pod.Volumes, corev1.Volume{Name: name, VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{SizeLimit: limit}}})
		c.VolumeMounts = append(c.VolumeMounts, corev1.VolumeMount{Name: name, MountPath: path})
	}
	empty(workName, workPath)
	if s := c.SecurityContext; s != nil && s.ReadOnlyRootFilesystem != nil && *s.ReadOnlyRootFilesystem {
		empty("fulgur-tmp", "/tmp")
	}
	keepReadable(&pod, &c, src, agent)
	args := []string{"fetch-copy", "--upstream", o.Gateway, "--key-file", copyFolder + "/" + copyKey, "--rollout", string(t.Key.Rollout), "--attempt", string(t.Key.Attempt), "--artifact", artifact, "--into", workPath}
	for i := range args {
		args[i] = verbatim(args[i])
	}
	pod.InitContainers = []corev1.Container{{
		Name: copyName, Image: o.RelayImage, Command: o.RelayCommand, Args: args, TerminationMessagePolicy: corev1.TerminationMessageFallbackToLogsOnError,
		VolumeMounts: []corev1.VolumeMount{{Name: workName, MountPath: workPath}, {Name: copyName, MountPath: copyFolder, ReadOnly: true}},
		Resources: corev1.ResourceRequirements{
			Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("10m"), corev1.ResourceMemory: resource.MustParse("32Mi")},
			Limits:   corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("256Mi")},
		},
	}}
	pod.Containers = []corev1.Container{c}
	name := testsJobName(o.scope, t.Key, artifact)
	pod.Volumes = append(pod.Volumes, corev1.Volume{Name: copyName, VolumeSource: corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: name}}})
	secure(&pod)

	none, ttl, deadline := int32(0), int32(testsTTL/time.Second), int64((t.Timeout+farDeadline)/time.Second)
	job := &batchv1.Job{TypeMeta: metav1.TypeMeta{APIVersion: "batch/v1", Kind: "Job"},
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: o.Namespace, Labels: o.testLabels(of.Labels), Annotations: o.testNotes(of.Annotations, t.Key),
			// Who removes the agent's Job removes this one.
			OwnerReferences: []metav1.OwnerReference{{APIVersion: "batch/v1", Kind: "Job", Name: of.Name, UID: of.UID}}},
		Spec: batchv1.JobSpec{BackoffLimit: &none, TTLSecondsAfterFinished: &ttl, ActiveDeadlineSeconds: &deadline}}
	tmpl := &of.Spec.Template.ObjectMeta
	job.Spec.Template = corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: o.testLabels(tmpl.Labels), Annotations: o.testNotes(tmpl.Annotations, t.Key)}, Spec: pod}
	secret := &corev1.Secret{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Secret"}, Type: corev1.SecretTypeOpaque,
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: o.Namespace, Labels: maps.Clone(job.Labels)}, Data: map[string][]byte{copyKey: []byte(key)}}
	return objects{job, secret}, nil
}

// keepReadable gives tests what the agent could only read: files, but nothing secret.
func keepReadable(pod *corev1.PodSpec, c *corev1.Container, src *corev1.PodSpec, agent *corev1.Container) {
	for _, m := range agent.VolumeMounts {
		i := slices.IndexFunc(src.Volumes, func(v corev1.Volume) bool { return v.Name == m.Name })
		if i < 0 {
			continue
		}
		v := src.Volumes[i]
		if v.ConfigMap == nil && v.Image == nil && (!m.ReadOnly || v.HostPath == nil && v.PersistentVolumeClaim == nil && v.NFS == nil) {
			continue
		}
		m.ReadOnly = true
		c.VolumeMounts = append(c.VolumeMounts, m)
		if !slices.ContainsFunc(pod.Volumes, func(have corev1.Volume) bool { return have.Name == v.Name }) {
			pod.Volumes = append(pod.Volumes, v)
		}
	}
}

// testsJobName is that of one run of an attempt's tests.
func testsJobName(scope string, key plan.Key, artifact string) string {
	return "agl-tests-" + hash(scope, string(key.Rollout), string(key.Attempt), artifact)[:24]
}

// foreign drops what is ours or the cluster's of an attempt's labels or annotations: what
// is left is the template's, which a queue or a mesh goes by.
func foreign(m map[string]string) map[string]string {
	out := maps.Clone(m)
	maps.DeleteFunc(out, func(name, _ string) bool {
		return strings.HasPrefix(name, "fulgur/") || strings.HasPrefix(name, "agentlightning/") || strings.HasPrefix(name, "batch.kubernetes.io/") || name == "controller-uid" || name == "job-name"
	})
	if out == nil {
		out = map[string]string{}
	}
	return out
}

func (o *maker) testLabels(of map[string]string) map[string]string {
	out := foreign(of)
	maps.Copy(out, map[string]string{labelManaged: managedBy, labelScope: o.scope, labelRun: labelValue(o.Run), labelTests: "true"})
	return out
}

func (o *maker) testNotes(of map[string]string, key plan.Key) map[string]string {
	out := foreign(of)
	out[noteTestsOf] = string(key.Rollout) + " " + string(key.Attempt)
	return out
}

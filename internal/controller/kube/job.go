package kube

import (
	"encoding/json"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/fulgur-rl/fulgur"
	"github.com/fulgur-rl/fulgur/internal/controller"
	"github.com/fulgur-rl/fulgur/internal/controller/sandbox"
)

const (
	// farDeadline is what a Job may last beyond its attempt's own time: the clocks of
	// the controller end it long before, but for a controller that never comes back.
	farDeadline = 24 * time.Hour
	// farTTL keeps a finished Job for a controller that is away; what is
	// acknowledged goes at once, or after Options.Keep.
	farTTL = 48 * time.Hour

	maxObject = 1 << 20   // bytes of a Secret's data, and what we ask of a Job: the API server takes 1.5 MiB
	maxArg    = 128 << 10 // of one argument (MAX_ARG_STRLEN)

	inputFolder = "/fulgur-input"
	inputName   = "input.json"
	inputEnv    = "FULGUR_INPUT_FILE"
)

// objects are what one attempt is made of.
type objects struct {
	job    *batchv1.Job
	secret *corev1.Secret
}

// build makes the objects of an attempt. It is pure: what it refuses never
// reaches the cluster.
func (o *maker) build(name string, e controller.Execution) (objects, error) {
	mapping := e.EnvMap
	if mapping == nil {
		mapping = o.Env
	}
	mapped, err := controller.InputEnv(mapping, e.Input)
	if err != nil {
		return objects{}, err
	}
	job, err := o.manifest(name, e)
	if err != nil {
		return objects{}, err
	}
	pod := &job.Spec.Template.Spec
	agent, err := agentOf(pod, o.Agent)
	if err != nil {
		return objects{}, err
	}
	if err := onePod(&job.Spec); err != nil {
		return objects{}, err
	}
	if o.Isolated && pod.HostNetwork {
		return objects{}, invalid("the pod has hostNetwork, for which no NetworkPolicy holds: leave it out, or say runner.kubernetes.isolation: none")
	}
	o.own(job, name, e, pod.Containers[agent].Name)
	secret := &corev1.Secret{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Secret"},
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: o.Namespace, Labels: maps.Clone(job.Labels)},
		Type:       corev1.SecretTypeOpaque, Data: map[string][]byte{},
	}
	vars := e.Env
	if o.RelayImage != "" {
		inside, pass := sandbox.Through(o.Gateway, e.Env, e.Secrets)
		if err := o.addRelay(pod, secret, pass); err != nil {
			return objects{}, err
		}
		vars = inside
	}
	if o.Workspace {
		if err := o.addWorkspace(pod, agent, e.Key); err != nil {
			return objects{}, err
		}
	}
	secure(pod)
	for i := range pod.Containers {
		env := maps.Clone(vars)
		if i == agent {
			for n, v := range mapped {
				if _, ours := env[n]; !ours {
					env[n] = v
				}
			}
			if o.InputFile {
				env[inputEnv] = inputFolder + "/" + inputName
			}
		}
		setEnv(&pod.Containers[i], env, e.Secrets, secret)
	}
	if o.InputFile {
		mountInput(pod, agent, secret, e.Input)
	}
	if o.alias != nil {
		pod.HostAliases = append(pod.HostAliases, *o.alias)
	}
	if err := limits(job, secret); err != nil {
		return objects{}, err
	}
	return objects{job, secret}, nil
}

// manifest is the Job as the template, or the built-in default, has it.
func (o *maker) manifest(name string, e controller.Execution) (*batchv1.Job, error) {
	switch {
	case e.Template != "":
		t, err := o.compiled(e.Template)
		if err != nil {
			return nil, err
		}
		return t.Job(name, e.Input)
	case o.Template != nil:
		return o.Template.Job(name, e.Input)
	}
	c := corev1.Container{Name: "agent", Image: o.Image, ImagePullPolicy: o.PullPolicy}
	for _, s := range o.Command {
		c.Command = append(c.Command, verbatim(s))
	}
	if o.Memory > 0 {
		q := resource.NewQuantity(o.Memory, resource.BinarySI)
		c.Resources.Limits = corev1.ResourceList{corev1.ResourceMemory: *q}
		c.Resources.Requests = corev1.ResourceList{corev1.ResourceMemory: *q}
	}
	job := &batchv1.Job{TypeMeta: metav1.TypeMeta{APIVersion: "batch/v1", Kind: "Job"}}
	job.Spec.Template.Spec.Containers = []corev1.Container{c}
	return job, nil
}

// agentOf is the index of the container whose end is the attempt's end: the one of
// that name, else the one called agent, else the first.
func agentOf(pod *corev1.PodSpec, name string) (int, error) {
	if len(pod.Containers) == 0 {
		return 0, invalid("the Job's pod has no container (spec.template.spec.containers)")
	}
	find := func(name string) int {
		return slices.IndexFunc(pod.Containers, func(c corev1.Container) bool { return c.Name == name })
	}
	if name != "" {
		i := find(name)
		if i < 0 {
			return 0, invalid("the Job's pod has no container called %q (runner.kubernetes.agent_container)", name)
		}
		return i, nil
	}
	return max(find("agent"), 0), nil
}

// onePod refuses what would run an attempt more than once.
func onePod(s *batchv1.JobSpec) error {
	switch {
	case s.Parallelism != nil && *s.Parallelism != 1, s.Completions != nil && *s.Completions != 1:
		return invalid("the Job asks for several pods (parallelism, completions): an attempt is one pod, so leave them out")
	case s.BackoffLimitPerIndex != nil || s.MaxFailedIndexes != nil:
		return invalid("the Job starts failed pods again by index (backoffLimitPerIndex): leave it out, Fulgur starts new attempts itself")
	}
	if p := s.PodFailurePolicy; p != nil {
		for _, r := range p.Rules {
			if r.Action != batchv1.PodFailurePolicyActionFailJob && r.Action != batchv1.PodFailurePolicyActionCount {
				return invalid("the Job's podFailurePolicy has the action %s, which starts the pod again within one attempt: leave it out, Fulgur starts new attempts itself", r.Action)
			}
		}
	}
	return nil
}

// own sets what is the controller's: names, labels, and the fields that v1 sets.
func (o *maker) own(job *batchv1.Job, name string, e controller.Execution, agent string) {
	job.APIVersion, job.Kind = "batch/v1", "Job"
	m := &job.ObjectMeta
	m.Name, m.Namespace = name, o.Namespace
	m.GenerateName, m.Finalizers, m.OwnerReferences, m.UID, m.ResourceVersion = "", nil, nil, "", ""
	labels := map[string]string{
		labelManaged: managedBy,
		labelRollout: labelValue(string(e.Key.Rollout)),
		labelAttempt: labelValue(string(e.Key.Attempt)),
		labelScope:   o.scope,
		labelRun:     labelValue(o.Run),
	}
	notes := map[string]string{
		noteRollout: string(e.Key.Rollout), noteAttempt: string(e.Key.Attempt),
		noteCredential: marks(e.Secrets), noteAgent: agent,
	}
	for _, m := range []*metav1.ObjectMeta{m, &job.Spec.Template.ObjectMeta} {
		if m.Labels == nil {
			m.Labels = map[string]string{}
		}
		maps.Copy(m.Labels, labels)
		if m.Annotations == nil {
			m.Annotations = map[string]string{}
		}
		maps.Copy(m.Annotations, notes)
	}
	s := &job.Spec
	none, ttl := int32(0), int32(farTTL/time.Second)
	deadline := int64((e.Timeout + farDeadline) / time.Second)
	s.BackoffLimit, s.TTLSecondsAfterFinished, s.ActiveDeadlineSeconds = &none, &ttl, &deadline
	s.Selector, s.ManualSelector = nil, nil
	pod := &s.Template.Spec
	pod.RestartPolicy = corev1.RestartPolicyNever
	if pod.TerminationGracePeriodSeconds == nil {
		grace := int64((o.Grace + time.Second - 1) / time.Second)
		pod.TerminationGracePeriodSeconds = &grace
	}
}

// secure sets the defaults of a pod that runs what a model says; what the
// template says goes before.
func secure(pod *corev1.PodSpec) {
	no := false
	if pod.AutomountServiceAccountToken == nil {
		pod.AutomountServiceAccountToken = &no
	}
	if pod.EnableServiceLinks == nil {
		pod.EnableServiceLinks = &no
	}
	if pod.SecurityContext == nil {
		pod.SecurityContext = &corev1.PodSecurityContext{}
	}
	if pod.SecurityContext.SeccompProfile == nil {
		pod.SecurityContext.SeccompProfile = &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault}
	}
	for _, list := range [][]corev1.Container{pod.InitContainers, pod.Containers} {
		for i := range list {
			c := &list[i]
			if c.SecurityContext == nil {
				c.SecurityContext = &corev1.SecurityContext{}
			}
			s := c.SecurityContext
			privileged := s.Privileged != nil && *s.Privileged
			if s.AllowPrivilegeEscalation == nil && !privileged && (s.Capabilities == nil || !slices.Contains(s.Capabilities.Add, "SYS_ADMIN")) {
				s.AllowPrivilegeEscalation = &no
			}
			if s.Capabilities == nil && !privileged {
				s.Capabilities = &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}}
			}
		}
	}
}

// setEnv puts variables into a container, in place of those of the same name. What
// holds a credential goes by the attempt's Secret.
func setEnv(c *corev1.Container, env map[string]string, secrets []string, secret *corev1.Secret) {
	kept := c.Env[:0:0]
	for _, v := range c.Env {
		if _, ours := env[v.Name]; !ours {
			kept = append(kept, v)
		}
	}
	c.Env = kept
	for _, name := range slices.Sorted(maps.Keys(env)) {
		value := env[name]
		if !slices.ContainsFunc(secrets, func(s string) bool { return s != "" && strings.Contains(value, s) }) {
			c.Env = append(c.Env, corev1.EnvVar{Name: name, Value: verbatim(value)})
			continue
		}
		secret.Data[name] = []byte(value)
		c.Env = append(c.Env, corev1.EnvVar{Name: name, ValueFrom: &corev1.EnvVarSource{SecretKeyRef: &corev1.SecretKeySelector{
			LocalObjectReference: corev1.LocalObjectReference{Name: secret.Name}, Key: name}}})
	}
}

// mountInput gives the agent its input as a file, which the Secret carries.
func mountInput(pod *corev1.PodSpec, agent int, secret *corev1.Secret, input json.RawMessage) {
	const volume = "fulgur-input"
	if len(input) == 0 {
		input = json.RawMessage("null")
	}
	secret.Data[inputName] = input
	pod.Volumes = append(pod.Volumes, corev1.Volume{Name: volume, VolumeSource: corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{
		SecretName: secret.Name, Items: []corev1.KeyToPath{{Key: inputName, Path: inputName}}}}})
	c := &pod.Containers[agent]
	c.VolumeMounts = append(c.VolumeMounts, corev1.VolumeMount{Name: volume, MountPath: inputFolder, ReadOnly: true})
}

var (
	envName = regexp.MustCompile(`^[ -<>-~]+$`)
	// imageName is what the container runtimes take: [registry[:port]/]path[:tag][@digest].
	imageName = regexp.MustCompile(`^([A-Za-z0-9]([A-Za-z0-9.-]*[A-Za-z0-9])?(:[0-9]+)?/)?[a-z0-9]+((\.|_|__|-+)[a-z0-9]+)*(/[a-z0-9]+((\.|_|__|-+)[a-z0-9]+)*)*(:[A-Za-z0-9_][A-Za-z0-9_.-]{0,127})?(@[a-z0-9]+:[a-f0-9]{32,128})?$`)
)

// limits refuses what the API server would take and the node would not, or what
// the API server would refuse with less to go by.
func limits(job *batchv1.Job, secret *corev1.Secret) error {
	pod := &job.Spec.Template.Spec
	for _, list := range [][]corev1.Container{pod.InitContainers, pod.Containers} {
		for _, c := range list {
			if !imageName.MatchString(c.Image) {
				return invalid("the container %s has the image %q, which is no image's name ([registry/]name[:tag])", c.Name, c.Image)
			}
			for _, v := range c.Env {
				if !envName.MatchString(v.Name) {
					return invalid("%q is no name for an environment variable", v.Name)
				}
				if err := controller.CheckVar(v.Name, v.Value); err != nil {
					return err
				}
			}
			for _, s := range slices.Concat(c.Command, c.Args) {
				if len(s) >= maxArg {
					return fulgur.E(fulgur.KindTooLarge, "", fmt.Sprintf("an argument of the container %s would hold %d bytes; the system takes less than %d: give the input by agent.input.file", c.Name, len(s), maxArg), nil)
				}
				if strings.Contains(s, "\x00") {
					return invalid("an argument of the container %s would hold a zero byte, which no system passes on: give the input by agent.input.file", c.Name)
				}
			}
		}
	}
	sum := 0
	for name, v := range secret.Data {
		if name != inputName {
			if err := controller.CheckVar(name, string(v)); err != nil {
				return err
			}
		}
		sum += len(v)
	}
	if sum > maxObject-4096 {
		return fulgur.E(fulgur.KindTooLarge, "", fmt.Sprintf("the input and what goes with it are %d bytes; a Secret takes less than %d: let the agent fetch it by an address instead", sum, maxObject-4096), nil)
	}
	raw, err := json.Marshal(job)
	if err != nil {
		return invalid("the Job cannot be written: %s", err)
	}
	if len(raw) > maxObject {
		return fulgur.E(fulgur.KindTooLarge, "", fmt.Sprintf("the Job would be %d bytes; a cluster takes about %d: give the input by agent.input.file, or by an address", len(raw), maxObject), nil)
	}
	return nil
}

package config

import (
	"regexp"
	"time"
)

// Kubernetes is what only runner.kind: kubernetes looks at.
type Kubernetes struct {
	// The kubeconfig that leads to the cluster; empty: the variable KUBECONFIG, the cluster that this process runs in, or ~/.kube/config.
	Kubeconfig string `json:"kubeconfig"`
	// The kubeconfig's context; empty: its current one.
	Context string `json:"context"`
	// The container whose end is the attempt's; empty: the one called agent, else the first.
	AgentContainer string `json:"agent_container"`
	// When nodes fetch the image of the built-in template; auto: Kubernetes' own rule (Always for the tag latest, else IfNotPresent).
	Pull string `json:"pull" jsonschema:"enum=auto,enum=Always,enum=IfNotPresent,enum=Never"`
	// How long a Job stays after its end is on record; 0s: it goes at once.
	Keep Duration `json:"keep"`
	// How long the Jobs of a run outlive its last controller, before those of other runs remove them.
	Lease Duration `json:"lease"`
	// What keeps agents from everything but the gateway (docs/kubernetes.md). policy: a NetworkPolicy per run, which a probe on each node shows to hold before the first rollout, or the run is refused. none: nothing of Fulgur's; for code that you trust, or a namespace that has policies of its own.
	Isolation string `json:"isolation" jsonschema:"enum=policy,enum=none"`
	// The image of the probe: one with the program fulgur. With isolation: none, empty: nothing is tried.
	ProbeImage string `json:"probe_image"`
	// Images that each node fetches before the first rollout, at most: those of the pods of the data's rows (of each file the first 2,000), so that none is found missing in the middle of a run. If they are more, those that all rows need; 0: none. It needs probe_image.
	Prepull int `json:"prepull" jsonschema:"minimum=0"`
	// A relay beside each agent adds its key: the agent never holds it. It is a sidecar (Kubernetes 1.29 or later). With reward.command there always is one: it takes what the agent has left.
	Relay bool `json:"relay"`
	// The relay's image: one with the program fulgur; empty: that of the probe.
	RelayImage string `json:"relay_image"`
	// Labels of the gateway's pods, where they run in this cluster: a policy sees pods, not Services.
	GatewayPods map[string]string `json:"gateway_pods"`
	// Their namespace; empty: that of the Jobs.
	GatewayNamespace string `json:"gateway_namespace"`
}

// namespace is what a Kubernetes namespace may be called (RFC 1123's label).
var namespace = regexp.MustCompile(`^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$`)

// kubernetes checks what kind kubernetes has of its own.
func (c *checker) kubernetes() {
	r := c.f.Runner
	k := r.Kubernetes
	if r.Image == "" && r.JobTemplate == "" {
		c.fail("runner.image", "missing: name the image that agents run in, or a runner.job_template")
	}
	if r.Image != "" && r.JobTemplate != "" {
		c.noEffect("runner.image", "with runner.job_template: the template names its images")
	}
	for _, key := range []string{"runner.limits.processes", "runner.limits.file_size", "runner.limits.cpu_time", "runner.limits.workspace"} {
		c.noEffect(key, "with runner.kind: kubernetes: a cluster limits these by its nodes")
	}
	if r.JobTemplate != "" {
		c.noEffect("runner.limits.memory", "with runner.job_template: write it there")
		c.noEffect("agent.command", "with runner.job_template: write it there")
	}
	if r.Namespace == "" {
		c.fail("runner.namespace", "want the namespace that the Jobs are made in")
	} else if !namespace.MatchString(r.Namespace) {
		c.fail("runner.namespace", "want a name of lower-case letters, digits and dashes, at most 63, got %q", r.Namespace)
	}
	if k.GatewayNamespace != "" && !namespace.MatchString(k.GatewayNamespace) {
		c.fail("runner.kubernetes.gateway_namespace", "want a name of lower-case letters, digits and dashes, at most 63, got %q", k.GatewayNamespace)
	}
	if time.Duration(k.Lease) < time.Minute {
		c.fail("runner.kubernetes.lease", "want at least 1m: a controller that is started again must find its Jobs")
	}
	if k.Isolation == "policy" && k.ProbeImage == "" {
		c.fail("runner.kubernetes.probe_image", "missing: name an image with the program fulgur, which shows on each node that agents reach the gateway and nothing else; or write isolation: none")
	}
	graded := len(c.f.Reward.Command) > 0
	if graded && k.RelayImage == "" && k.ProbeImage == "" {
		c.fail("runner.kubernetes.relay_image", "missing: with reward.command, name an image with the program fulgur, which takes what the agent has left out of its pod")
	} else if k.Relay && k.RelayImage == "" && k.ProbeImage == "" {
		c.fail("runner.kubernetes.relay_image", "missing: name an image with the program fulgur, which stands beside each agent and adds its key; or leave out runner.kubernetes.relay")
	}
	if k.ProbeImage == "" {
		c.noEffect("runner.kubernetes.prepull", "without runner.kubernetes.probe_image: its program stands in for theirs")
	}
	if !k.Relay && !graded {
		c.noEffect("runner.kubernetes.relay_image", "without runner.kubernetes.relay: true")
	}
	if c.f.Agent.Worker {
		c.fail("agent.worker", "a Job runs one rollout: use runner.kind: local for workers")
	}
	if c.f.Agent.Input.Stdin {
		c.fail("agent.input.stdin", "a Job has no standard input: use agent.input.env or agent.input.file, or the template")
	}
}

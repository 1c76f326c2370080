package config

// Kubernetes is what only runner.kind: kubernetes looks at.
type Kubernetes struct {
	// The kubeconfig that leads to the cluster; empty: the variable KUBECONFIG, the cluster that this process runs in, or ~/.kube/config.
	Kubeconfig string `json:"kubeconfig"`
}

// kubernetes checks what kind kubernetes has of its own.
func (c *checker) kubernetes() {
	r := c.f.Runner
	if r.Image == "" && r.JobTemplate == "" {
		c.fail("runner.image", "missing: name the image that agents run in, or a runner.job_template")
	}
	if r.Namespace == "" {
		c.fail("runner.namespace", "want the namespace that the Jobs are made in")
	}
}

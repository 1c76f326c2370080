package config

import (
	"net/url"
	"slices"
)

// Runner says where agents run. What only one kind has is in a file of that
// kind's: runner_container.go, runner_kubernetes.go, runner_sandbox.go.
type Runner struct {
	// local: processes on this machine. container: containers of an image on this machine. kubernetes: Jobs of a cluster.
	Kind string `json:"kind" jsonschema:"enum=local,enum=container,enum=kubernetes"`
	// Agents that run at once; auto: what the schedule asks for, within memory.
	Slots Slots `json:"slots" jsonschema:"minimum=1"`
	// Agents that may be starting at once; 0: as many as suit the kind (kubernetes: 100; else twice the cores, at least 4).
	Starting int `json:"starting" jsonschema:"minimum=0,maximum=100000"`
	// Agents that are started per minute at most; 0: no limit.
	StartRate int `json:"start_rate" jsonschema:"minimum=0,maximum=1000000"`
	// The gateway's URL as agents reach it, where that is not the one that it listens on.
	AgentURL string `json:"agent_url"`
	// What keeps an agent from the rest of the machine (docs/sandbox.md). auto: bubblewrap where it works, with a warning where it does not. bubblewrap: that, or the run is refused. none: nothing, for code that you trust.
	Sandbox string `json:"sandbox" jsonschema:"enum=auto,enum=none,enum=bubblewrap"`
	// Files and folders that a sandboxed agent sees beside the system and the run file's folder, read-only; relative to that folder, ~/ is the home.
	Read []string `json:"read"`
	// What it may write as well; what one agent writes there, others find.
	Write []string `json:"write"`
	// What it does not see: paths in the run file's folder, or names at any depth there, with * and ?. The run's folder, its data files and the grader are always hidden.
	Hide []string `json:"hide"`
	// What one agent may use.
	Limits Limits `json:"limits"`
	// The image that agents run in; kinds container and kubernetes.
	Image string `json:"image"`
	// Template of the Kubernetes Job, relative to the run file; empty: a built-in one, from image and agent.command.
	JobTemplate string `json:"job_template"`
	// Kubernetes namespace of the Jobs.
	Namespace string `json:"namespace"`
	// What only kind container looks at.
	Container Container `json:"container"`
	// What only kind kubernetes looks at.
	Kubernetes Kubernetes `json:"kubernetes"`
}

// runner checks what the kinds of runners share, and what each kind adds.
func (c *checker) runner() {
	r := c.f.Runner
	if r.AgentURL != "" {
		if u, err := url.Parse(r.AgentURL); err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
			c.fail("runner.agent_url", "want a URL such as http://10.0.0.5:8080, got %q", r.AgentURL)
		}
	}
	for _, only := range []struct {
		key   string
		kinds []string
	}{
		{"runner.image", []string{"container", "kubernetes"}},
		{"runner.job_template", []string{"kubernetes"}},
		{"runner.namespace", []string{"kubernetes"}},
		{"runner.container", []string{"container"}},
		{"runner.kubernetes", []string{"kubernetes"}},
		{"runner.sandbox", []string{"local"}},
		{"runner.read", []string{"local"}},
		{"runner.write", []string{"local"}},
		{"runner.hide", []string{"local"}},
	} {
		if !slices.Contains(only.kinds, r.Kind) {
			c.noEffect(only.key, "with runner.kind: "+r.Kind)
		}
	}
	switch r.Kind {
	case "local":
		c.local()
	case "container":
		c.container()
	case "kubernetes":
		c.kubernetes()
	}
}

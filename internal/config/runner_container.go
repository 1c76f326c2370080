package config

import (
	"path"
	"strings"
)

// Container is what only runner.kind: container looks at.
type Container struct {
	// The program that runs containers, with a command line like docker's; auto: podman or docker, the first that is there.
	Program string `json:"program"`
	// missing: the image is fetched if it is not on this machine. never: it has to be there.
	Pull string `json:"pull" jsonschema:"enum=missing,enum=never"`
	// gateway: a container reaches the gateway and nothing else, and never holds its credential. Else a network of the program's, such as bridge or host.
	Network string `json:"network"`
	// Folders of this machine that agents see, as FOLDER:PATH or FOLDER:PATH:ro; relative to the run file.
	Mounts []string `json:"mounts"`
	// CPUs that one agent may keep busy, such as 1.5; 0: no limit.
	CPUs float64 `json:"cpus" jsonschema:"minimum=0,maximum=4096"`
	// The container's root cannot be written, but for /tmp.
	ReadOnly bool `json:"read_only"`
	// More options of the program's run command, such as --gpus=all.
	Options []string `json:"options"`
}

// container checks what kind container has of its own.
func (c *checker) container() {
	r := c.f.Runner
	if r.Image == "" {
		c.fail("runner.image", "missing: name the image that agents run in")
	}
	if r.Container.Program == "" {
		c.fail("runner.container.program", "want auto, or a program such as podman")
	}
	if r.Container.Network == "" {
		c.fail("runner.container.network", "want gateway, or a network of the program's")
	}
	for _, m := range r.Container.Mounts {
		if parts := strings.Split(m, ":"); len(parts) < 2 || len(parts) > 3 || parts[0] == "" || !path.IsAbs(parts[1]) {
			c.fail("runner.container.mounts", "%q: want FOLDER:PATH or FOLDER:PATH:ro, the path absolute", m)
		}
	}
	for _, o := range r.Container.Options {
		if !strings.HasPrefix(o, "-") {
			c.fail("runner.container.options", "%q: want options with their values in one, such as --gpus=all", o)
		}
	}
	if c.f.Agent.Worker {
		c.fail("agent.worker", "a container runs one rollout: use runner.kind: local for workers")
	}
}

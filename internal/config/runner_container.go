package config

// Container is what only runner.kind: container looks at.
type Container struct {
	// The program that runs containers, with a command line like docker's; auto: podman or docker, the first that is there.
	Program string `json:"program"`
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
}

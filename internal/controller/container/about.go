package container

import (
	"context"
	"encoding/json"
	"os"
	"slices"
	"strings"
)

// Client is the container program that a Runner would use.
type Client struct {
	Path     string
	Version  string // as it says
	Rootless bool   // containers are made without root's rights
	// Unbounded: limits of memory, processes and CPUs hold nothing, as without root's
	// rights on control groups of version 1.
	Unbounded bool
}

// FindClient finds the program and asks it what it is; program is Options.Program.
func FindClient(ctx context.Context, program string) (Client, error) {
	c, err := findClient(ctx, program, os.Environ())
	if err != nil {
		return Client{}, err
	}
	return c.about, nil
}

// String says what containers of it are.
func (c Client) String() string {
	whose := "its containers are root's: what gets out of one is root here"
	if c.Rootless {
		whose = "containers have this user's rights outside, and no more (rootless)"
	}
	if c.Unbounded {
		whose += "; " + unbounded
	}
	return c.Path + ": " + c.Version + "; " + whose
}

const unbounded = "runner.limits of memory and processes, and runner.container.cpus, hold nothing here: without root's rights that takes control groups of version 2 alone (systemd.unified_cgroup_hierarchy=1)"

// tell reads what `info` says: Podman in host, Docker at the top.
func (c *Client) tell(info []byte) {
	var said struct {
		Host struct {
			CgroupVersion string
			Security      struct{ Rootless bool }
		}
		SecurityOptions []string
		CgroupDriver    string
	}
	if json.Unmarshal(info, &said) != nil {
		return
	}
	docker := slices.ContainsFunc(said.SecurityOptions, func(o string) bool { return strings.Contains(o, "name=rootless") })
	c.Rootless = docker || said.Host.Security.Rootless
	c.Unbounded = docker && said.CgroupDriver == "none" || said.Host.Security.Rootless && said.Host.CgroupVersion == "v1"
}

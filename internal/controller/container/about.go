package container

import (
	"context"
	"encoding/json"
	"os"
	"strings"
)

// Client is the container program that a Runner would use.
type Client struct {
	Path     string
	Version  string // as it says
	Rootless bool   // containers are made without root's rights
}

// FindClient finds the program and asks it what it is; program is Options.Program.
func FindClient(ctx context.Context, program string) (Client, error) {
	c, err := findClient(ctx, program, os.Environ())
	if err != nil {
		return Client{}, err
	}
	out := Client{Path: c.path}
	if text, err := c.run(ctx, "--version"); err == nil {
		out.Version = strings.TrimSpace(string(text))
	}
	if text, err := c.run(ctx, "info", "--format", "{{json .}}"); err == nil {
		out.Rootless = rootless(text)
	}
	return out, nil
}

// rootless reads what `info` says: Podman in host.security, Docker among its
// security options.
func rootless(info []byte) bool {
	var said struct {
		Host struct {
			Security struct{ Rootless bool }
		}
		SecurityOptions []string
	}
	if json.Unmarshal(info, &said) != nil {
		return false
	}
	for _, o := range said.SecurityOptions {
		if strings.Contains(o, "name=rootless") {
			return true
		}
	}
	return said.Host.Security.Rootless
}

package cli

import (
	"cmp"
	"context"
	"errors"
	"net"
	"path/filepath"

	"github.com/fulgur-rl/fulgur/internal/controller"
	"github.com/fulgur-rl/fulgur/internal/controller/container"
	"github.com/fulgur-rl/fulgur/internal/controller/sandbox"
)

// checkRunContainers looks at the container program and the run's image, and starts
// the container that a run would start first.
func checkRunContainers(ctx context.Context, p patient) (out []finding) {
	if p.file == nil || p.file.Runner.Kind != "container" {
		return nil
	}
	add := func(name string, status, detail, do string) {
		out = append(out, finding{Name: name, Status: status, Detail: detail, Do: do})
	}
	client, err := container.FindClient(ctx, p.file.Runner.Container.Program)
	if err != nil {
		add("program", failed, err.Error(), "docs/container.md")
		return out
	}
	if client.Unbounded {
		add("program", warned, client.String(), "docs/container.md")
	} else {
		add("program", healthy, client.String(), "")
	}

	s, err := sandbox.NewScene("") // its server stands for the gateway, and its folder for the run's
	if err != nil {
		add("image", failed, err.Error(), "")
		return out
	}
	defer s.Close()
	f := *p.file.File
	gateway := s.Gateway
	network := f.Runner.Container.Network
	if network == container.NetworkGateway {
		f.Runner.AgentURL = ""
	} else { // it leads to where the run's own gateway is to be
		gateway = gatewayOfRun(p.file)
		if _, port, _ := net.SplitHostPort(f.Listen); f.Server == "" && port == "0" {
			add("gateway", failed, "listen: "+f.Listen+" is another port at each start, which no container is told", "set listen to an address with a port, such as 0.0.0.0:8080, and runner.agent_url to how containers reach it")
			return out
		}
		if stop, stands := standIn(p.file); stands {
			defer stop()
		}
	}
	r, err := newContainer(ctx, controllerJob{file: &runFile{File: &f, Dir: p.file.Dir}, dir: runDir(filepath.Join(s.Dir, "doctor")), url: gateway, log: p.app.logger("error")})
	if err != nil {
		add("image "+f.Runner.Image, failed, err.Error(), "docs/container.md")
		return out
	}
	add("image "+f.Runner.Image, healthy, "it is here, and "+cmp.Or(first(f.Agent.Command), "its own program")+" in it", "")
	if prover, ok := r.(controller.Prover); ok {
		err = prover.Prove(ctx, gateway)
	}
	switch err := errors.Join(err, r.Close()); {
	case err != nil:
		add("network "+network, failed, err.Error(), "docs/container.md")
	case network == container.NetworkGateway && container.CheckProgram() != nil:
		add("network "+network, failed, container.CheckProgram().Error(), "")
	case network == container.NetworkGateway:
		add("network "+network, healthy, "a container reached the gateway through its relay; it has no interface but its own loopback, and no way past the relay", "")
	default:
		add("network "+network, warned, "a container reached the gateway at "+gateway+"; it reaches whatever that network does, and holds its credential", "runner.container.network: gateway closes both")
	}
	return out
}

// first is a command's program, "" of none.
func first(command []string) string {
	if len(command) == 0 {
		return ""
	}
	return command[0]
}

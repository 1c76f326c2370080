package cli

import (
	"cmp"
	"fmt"
	"net"
	"net/url"
	"os"
	"strings"

	"github.com/fulgur-rl/fulgur/internal/controller/kube"
)

// jobsOf says, for train --check, what would be made in the cluster, and what of it
// was looked at without one. What is wrong with it the runner's check has said.
func jobsOf(r *runFile) (out []string) {
	if r.Runner.Kind != "kubernetes" {
		return nil
	}
	o, err := kubeOptions(r)
	if err != nil {
		return nil
	}
	o.Gateway, o.Inputs = gatewayOfRun(r), sampleInputs(r)
	trial, err := kube.NewTrial(o)
	if err != nil || len(o.Inputs) == 0 {
		return nil
	}
	made, err := trial.Outline(o.Inputs[0])
	if err != nil {
		return nil
	}
	say := func(format string, args ...any) { out = append(out, fmt.Sprintf(format, args...)) }
	say("each attempt: a Job and a Secret, such as %s, in the namespace %s of %s", made.Job, r.Runner.Namespace, clusterOf(r))
	for _, p := range made.Parts {
		say("  %-10s %s: %s%s; limits: %s", p.Role, p.Name, p.Image, commandLine(p.Command), cmp.Or(p.Limits, "none"))
	}
	if len(made.Opened) > 0 {
		say("  its template opens: %s", strings.Join(made.Opened, "; "))
	}
	all, inputs, ahead, note := trial.Images()
	if inputs > 1 {
		say("  images: %d, in %d rows of the data", len(all), inputs)
	}
	k := r.Runner.Kubernetes
	switch {
	case k.Isolation == "policy":
		say("before the first rollout: a NetworkPolicy of the run (out: %s alone; in: nothing), and on each node a probe (%s) that tries it", o.Gateway, k.ProbeImage)
	case k.ProbeImage != "":
		say("before the first rollout: on each node a probe (%s) of the way to %s; ISOLATION IS NONE, agents reach what pods reach there", k.ProbeImage, o.Gateway)
	default:
		say("before the first rollout: nothing is tried; ISOLATION IS NONE, agents reach what pods reach there")
	}
	if k.ProbeImage != "" && len(ahead) > 0 {
		say("  and each node fetches the images of agents: %d", len(ahead))
	}
	if note != "" {
		say("  %s", note)
	}
	if o.RelayImage != "" {
		say("agents hold no key: the sidecar adds it")
	} else {
		say("agents hold a key, which is good for their own attempt alone (runner.kubernetes.relay: true keeps it from them)")
	}
	say("looked at without the cluster: the template, the Jobs of the first %d rows of each file of data, their images' names, variables and sizes; `fulgur doctor` with this file asks the cluster: rights, quotas, whether it takes the Jobs, whether images can be had, what agents reach", sampleRows)
	return out
}

// gatewayWarnings says where pods cannot reach a run's gateway, as far as the addresses
// tell; server is where it is, if it is not the process's own.
func gatewayWarnings(r *runFile, server string) []string {
	if r.Runner.Kind != "kubernetes" {
		return nil
	}
	const remedy = "set listen to an address with a port, such as 0.0.0.0:8080, and runner.agent_url to how pods reach it (docs/kubernetes.md)"
	own := server == ""
	if own && r.Runner.AgentURL == "" {
		return []string{"pods are not told where the gateway is: neither server nor runner.agent_url is set, and it listens at " + r.Listen + "; " + remedy + ", or train with --server"}
	}
	given := cmp.Or(r.Runner.AgentURL, server)
	u, err := url.Parse(given)
	if err != nil {
		return nil // it is refused
	}
	if loops(u.Hostname()) {
		return []string{given + " is a pod's own loopback, where no gateway is: set runner.agent_url to how pods reach it"}
	}
	if !own {
		return nil
	}
	host, port, _ := net.SplitHostPort(r.Listen)
	reached := cmp.Or(u.Port(), map[string]string{"https": "443"}[u.Scheme], "80")
	switch {
	case port == "0":
		return []string{"listen: " + r.Listen + " is another port at each start, and " + given + " cannot lead there; " + remedy}
	case loops(host):
		return []string{"listen: " + r.Listen + " is this machine's own loopback, and " + given + " leads there only through a forwarder of yours; else " + remedy}
	case port != reached && net.ParseIP(u.Hostname()) != nil:
		return []string{fmt.Sprintf("the gateway listens at %s, and runner.agent_url is %s: another port, which something has to forward", r.Listen, given)}
	}
	return nil
}

// loops says whether a host is the machine that asks.
func loops(host string) bool {
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}

// clusterOf names the cluster that a run file leads to.
func clusterOf(r *runFile) string {
	k := r.Runner.Kubernetes
	name := "the cluster of " + cmp.Or(k.Kubeconfig, os.Getenv("KUBECONFIG"), "~/.kube/config (or that this runs in)")
	if k.Context != "" {
		name += ", context " + k.Context
	}
	return name
}

func commandLine(command []string) string {
	if len(command) == 0 {
		return ", its own command"
	}
	text := fmt.Sprintf(" %q", command)
	if len(text) > 200 {
		text = text[:200] + "…"
	}
	return text
}

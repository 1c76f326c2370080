package cli

import (
	"cmp"
	"fmt"
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

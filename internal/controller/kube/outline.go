package kube

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// Outline is what the attempt of an input would be made of.
type Outline struct {
	Job    string // its name, for a rollout called ROLLOUT
	Parts  []Part
	Opened []string // what the template gives its containers that Fulgur would not
}

// Part is a container of it.
type Part struct {
	Name, Role, Image string // Role: "the agent", "beside it", "sidecar", "before it"
	Command           []string
	Limits            string // "": none
}

// Outline says what the attempt of an input would be made of.
func (t *Trial) Outline(input json.RawMessage) (Outline, error) {
	made, err := t.objects("agl-rollout-ROLLOUT", input)
	if err != nil {
		return Outline{}, err
	}
	pod := &made.job.Spec.Template.Spec
	agent, err := agentOf(pod, t.m.Agent)
	if err != nil {
		return Outline{}, err
	}
	out := Outline{Job: made.job.Name, Opened: opened(pod)}
	part := func(c *corev1.Container, role string) {
		out.Parts = append(out.Parts, Part{c.Name, role, c.Image, append(slices.Clone(c.Command), c.Args...), amounts(c.Resources.Limits)})
	}
	part(&pod.Containers[agent], "the agent")
	for i := range pod.Containers {
		if i != agent {
			part(&pod.Containers[i], "beside it")
		}
	}
	for i := range pod.InitContainers {
		c := &pod.InitContainers[i]
		if c.RestartPolicy != nil && *c.RestartPolicy == corev1.ContainerRestartPolicyAlways {
			part(c, "sidecar")
		} else {
			part(c, "before it")
		}
	}
	return out, nil
}

// amounts writes limits out.
func amounts(l corev1.ResourceList) string {
	var out []string
	for name, q := range l {
		out = append(out, string(name)+" "+q.String())
	}
	slices.Sort(out)
	return strings.Join(out, ", ")
}

// opened lists what of a pod goes beyond what Fulgur's own template has.
func opened(pod *corev1.PodSpec) (out []string) {
	add := func(so bool, format string, args ...any) {
		if so {
			out = append(out, fmt.Sprintf(format, args...))
		}
	}
	yes := func(b *bool) bool { return b != nil && *b }
	add(yes(pod.AutomountServiceAccountToken), "a service account's token")
	add(pod.HostNetwork, "the node's network")
	add(pod.HostPID, "the node's processes")
	add(pod.HostIPC, "the node's shared memory")
	for _, v := range pod.Volumes {
		if v.HostPath != nil {
			add(true, "the node's folder %s", v.HostPath.Path)
		}
	}
	for _, list := range [][]corev1.Container{pod.InitContainers, pod.Containers} {
		for i := range list {
			s := list[i].SecurityContext
			if s == nil {
				continue
			}
			add(yes(s.Privileged), "all of the node's rights (%s is privileged)", list[i].Name)
			add(s.Capabilities != nil && len(s.Capabilities.Add) > 0, "capabilities of %s: %v", list[i].Name, capabilitiesOf(s))
			add(s.SeccompProfile != nil && s.SeccompProfile.Type == corev1.SeccompProfileTypeUnconfined, "all system calls (%s)", list[i].Name)
		}
	}
	if s := pod.SecurityContext; s != nil && s.SeccompProfile != nil {
		add(s.SeccompProfile.Type == corev1.SeccompProfileTypeUnconfined, "all system calls")
	}
	return out
}

func capabilitiesOf(s *corev1.SecurityContext) []corev1.Capability {
	if s.Capabilities == nil {
		return nil
	}
	return s.Capabilities.Add
}

// Images are those of the inputs' pods, how many inputs there were, and those of them
// that nodes would fetch ahead, with a note of what is left out.
func (t *Trial) Images() (all []Image, inputs int, ahead []Image, note string) {
	all, inputs = t.m.Images()
	ahead, note = t.m.ahead()
	return all, inputs, ahead, note
}

package kube

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// Right is something that the runner has to be allowed to do in its namespace.
type Right struct {
	Group, Resource string // "batch", "jobs"; a part of one is "pods/log"
	Verbs           []string
	For             string // what it is for
	Optional        bool   // the runner works without
}

// Rights are all that the runner asks for; deploy/base/rbac.yaml gives them.
func Rights(isolated bool) []Right {
	all := []Right{
		{"batch", "jobs", []string{"get", "list", "watch", "create", "patch", "delete"}, "each attempt is a Job", false},
		{"", "pods", []string{"list", "watch", "delete"}, "how an attempt goes", false},
		{"", "pods/log", []string{"get"}, "the end of an attempt's log, and what probes find", false},
		{"", "secrets", []string{"create", "update"}, "an attempt's credential", false},
		{"", "events", []string{"list", "create"}, "why a pod waits, and what failed", true},
		{"coordination.k8s.io", "leases", []string{"list", "create", "patch", "delete"}, "that the run lives", false},
	}
	if isolated {
		all = append(all, Right{"networking.k8s.io", "networkpolicies", []string{"create", "patch"}, "the agents' isolation", false})
	}
	return all
}

func (r Right) String() string {
	if r.Group == "" {
		return r.Resource
	}
	return r.Resource + "." + r.Group
}

// rule is the rule of a Role that gives the right.
func (r Right) rule() string {
	return fmt.Sprintf(`{apiGroups: [%q], resources: [%s], verbs: [%s]}`, r.Group, r.Resource, strings.Join(r.Verbs, ", "))
}

// needs is what one pod takes of each resource that a quota may count, and one Job and
// one Secret with it. What the pod does not name is not there.
func needs(pod *corev1.PodSpec) corev1.ResourceList {
	one := resource.MustParse("1")
	out := corev1.ResourceList{}
	for _, n := range []corev1.ResourceName{"pods", "count/pods", "count/jobs.batch", "secrets", "count/secrets"} {
		out[n] = one
	}
	for prefix, of := range map[string]func(*corev1.Container) corev1.ResourceList{
		"requests.": func(c *corev1.Container) corev1.ResourceList {
			all := c.Resources.Limits.DeepCopy() // what a request is where only the limit is named
			if all == nil {
				all = corev1.ResourceList{}
			}
			for n, q := range c.Resources.Requests {
				all[n] = q
			}
			return all
		},
		"limits.": func(c *corev1.Container) corev1.ResourceList { return c.Resources.Limits },
	} {
		for name, q := range together(pod, of) {
			out[corev1.ResourceName(prefix)+name] = q
			if prefix == "requests." {
				out[name] = q
			}
		}
	}
	return out
}

// together is what a pod's containers take: those that run at once, or the init
// container that takes more than they.
func together(pod *corev1.PodSpec, of func(*corev1.Container) corev1.ResourceList) corev1.ResourceList {
	sum := corev1.ResourceList{}
	add := func(c *corev1.Container) {
		for n, q := range of(c) {
			total := sum[n]
			total.Add(q)
			sum[n] = total
		}
	}
	for i := range pod.InitContainers {
		if p := pod.InitContainers[i].RestartPolicy; p != nil && *p == corev1.ContainerRestartPolicyAlways {
			add(&pod.InitContainers[i])
		}
	}
	for i := range pod.Containers {
		add(&pod.Containers[i])
	}
	for i := range pod.InitContainers {
		for n, q := range of(&pod.InitContainers[i]) {
			if have := sum[n]; q.Cmp(have) > 0 {
				sum[n] = q
			}
		}
	}
	return sum
}

// room says how many agents a quota holds at once, and what there is least of. lacks
// are the resources that it counts and the pod does not name: the cluster refuses
// such a pod, unless a LimitRange fills them in.
func room(q *corev1.ResourceQuota, need corev1.ResourceList) (agents int64, least string, lacks []string) {
	agents = -1 // it counts nothing that agents need
	for name, hard := range q.Spec.Hard {
		one, ok := need[name]
		base := strings.TrimPrefix(strings.TrimPrefix(string(name), "requests."), "limits.")
		if !ok && (base == "cpu" || base == "memory") {
			lacks = append(lacks, string(name))
		}
		if !ok || one.IsZero() {
			continue
		}
		n := hard.MilliValue() / max(one.MilliValue(), 1)
		if one.Value() > 1<<40 || hard.Value() > 1<<40 { // thousandths would not fit
			n = hard.Value() / max(one.Value(), 1)
		}
		if agents < 0 || n < agents || n == agents && string(name) < least {
			agents, least = n, string(name)
		}
	}
	slices.Sort(lacks)
	return agents, least, lacks
}

package node

import (
	"fmt"
	"maps"
	"slices"
	"sort"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/kubernetes/pkg/fieldpath"
	"k8s.io/kubernetes/third_party/forked/golang/expansion"
)

// objects reads what environments and volumes refer to, of the pod's namespace.
// A missing object is an error of the API, NotFound.
type objects interface {
	configMap(name string) (map[string][]byte, error)
	secret(name string) (map[string][]byte, error)
}

// environment returns a container's variables: the image's, then envFrom, then
// env in its order, with $(NAME) of what stands before, as a kubelet does it.
func environment(pod *v1.Pod, c *v1.Container, image []string, extra map[string]string, o objects) (map[string]string, error) {
	env := map[string]string{"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}
	for _, e := range image {
		for i := range e {
			if e[i] == '=' {
				env[e[:i]] = e[i+1:]
				break
			}
		}
	}
	env["HOSTNAME"] = hostname(pod)
	maps.Copy(env, extra)
	own := map[string]string{} // what $(NAME) sees
	for _, from := range c.EnvFrom {
		data, err := envFrom(from, o)
		if err != nil {
			return nil, err
		}
		for k, v := range data {
			own[from.Prefix+k] = string(v)
		}
	}
	expand := expansion.MappingFuncFor(own, extra)
	for _, e := range c.Env {
		value, ok := expansion.Expand(e.Value, expand), true
		if e.ValueFrom != nil {
			var err error
			if value, ok, err = valueFrom(pod, c, e.ValueFrom, o); err != nil {
				return nil, err
			}
		}
		if ok {
			own[e.Name] = value
		}
	}
	maps.Copy(env, own)
	return env, nil
}

func envFrom(from v1.EnvFromSource, o objects) (map[string][]byte, error) {
	switch {
	case from.ConfigMapRef != nil:
		return optional(from.ConfigMapRef.Optional, func() (map[string][]byte, error) { return o.configMap(from.ConfigMapRef.Name) })
	case from.SecretRef != nil:
		return optional(from.SecretRef.Optional, func() (map[string][]byte, error) { return o.secret(from.SecretRef.Name) })
	}
	return nil, nil
}

func optional(flag *bool, read func() (map[string][]byte, error)) (map[string][]byte, error) {
	data, err := read()
	if err != nil && notFound(err) && flag != nil && *flag {
		return nil, nil
	}
	return data, err
}

// valueFrom returns a value and whether there is one.
func valueFrom(pod *v1.Pod, c *v1.Container, s *v1.EnvVarSource, o objects) (string, bool, error) {
	key := func(data map[string][]byte, err error, kind, name, key string, opt *bool) (string, bool, error) {
		if err != nil {
			return "", false, err
		}
		v, ok := data[key]
		if !ok && (opt == nil || !*opt) {
			return "", false, fmt.Errorf("couldn't find key %s in %s %s/%s", key, kind, pod.Namespace, name)
		}
		return string(v), ok, nil
	}
	switch {
	case s.ConfigMapKeyRef != nil:
		r := s.ConfigMapKeyRef
		data, err := optional(r.Optional, func() (map[string][]byte, error) { return o.configMap(r.Name) })
		return key(data, err, "ConfigMap", r.Name, r.Key, r.Optional)
	case s.SecretKeyRef != nil:
		r := s.SecretKeyRef
		data, err := optional(r.Optional, func() (map[string][]byte, error) { return o.secret(r.Name) })
		return key(data, err, "Secret", r.Name, r.Key, r.Optional)
	case s.FieldRef != nil:
		v, err := field(pod, s.FieldRef.FieldPath)
		return v, true, err
	case s.ResourceFieldRef != nil:
		v, err := resourceField(pod, c, s.ResourceFieldRef)
		return v, true, err
	}
	return "", false, fmt.Errorf("an environment variable has a source that this node does not know")
}

// field is the downward API's.
func field(pod *v1.Pod, path string) (string, error) {
	switch path {
	case "spec.nodeName":
		return pod.Spec.NodeName, nil
	case "spec.serviceAccountName":
		return pod.Spec.ServiceAccountName, nil
	case "status.hostIP", "status.hostIPs", "status.podIP", "status.podIPs":
		return podIP, nil
	}
	return fieldpath.ExtractFieldPathAsString(pod, path)
}

func resourceField(pod *v1.Pod, c *v1.Container, f *v1.ResourceFieldSelector) (string, error) {
	if f.ContainerName != "" {
		for _, list := range [][]v1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
			if i := slices.IndexFunc(list, func(c v1.Container) bool { return c.Name == f.ContainerName }); i >= 0 {
				c = &list[i]
			}
		}
	}
	var q resource.Quantity
	switch f.Resource {
	case "limits.cpu":
		q = c.Resources.Limits[v1.ResourceCPU]
	case "limits.memory":
		q = c.Resources.Limits[v1.ResourceMemory]
	case "requests.cpu":
		q = c.Resources.Requests[v1.ResourceCPU]
	case "requests.memory":
		q = c.Resources.Requests[v1.ResourceMemory]
	default:
		return "", fmt.Errorf("unsupported container resource: %s", f.Resource)
	}
	divisor := f.Divisor
	if divisor.IsZero() {
		divisor = resource.MustParse("1")
	}
	// Rounded up, as the downward API is.
	return fmt.Sprint((q.MilliValue() + divisor.MilliValue() - 1) / divisor.MilliValue()), nil
}

// command is what a container runs: command and args replace the image's entry
// point and command.
func command(c *v1.Container, entrypoint, cmd []string, env map[string]string) []string {
	expand := expansion.MappingFuncFor(env)
	all := func(list []string) (out []string) {
		for _, s := range list {
			out = append(out, expansion.Expand(s, expand))
		}
		return out
	}
	switch {
	case len(c.Command) > 0:
		return append(all(c.Command), all(c.Args)...)
	case len(c.Args) > 0:
		return append(slices.Clone(entrypoint), all(c.Args)...)
	}
	return append(slices.Clone(entrypoint), cmd...)
}

func hostname(pod *v1.Pod) string {
	name := pod.Spec.Hostname
	if name == "" {
		name = pod.Name
	}
	return name[:min(len(name), 63)]
}

func list(env map[string]string) []string {
	out := make([]string, 0, len(env))
	for k, v := range env {
		out = append(out, k+"="+v)
	}
	sort.Strings(out)
	return out
}

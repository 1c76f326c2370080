package node

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	authv1 "k8s.io/api/authentication/v1"
	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
)

func notFound(err error) bool { return apierrors.IsNotFound(err) }

// reader reads objects of one namespace from the API server.
type reader struct {
	ctx context.Context
	cs  kubernetes.Interface
	ns  string
}

func (r reader) configMap(name string) (map[string][]byte, error) {
	o, err := r.cs.CoreV1().ConfigMaps(r.ns).Get(r.ctx, name, metav1.GetOptions{})
	if err != nil {
		return nil, err
	}
	data := make(map[string][]byte, len(o.Data)+len(o.BinaryData))
	for k, v := range o.Data {
		data[k] = []byte(v)
	}
	for k, v := range o.BinaryData {
		data[k] = v
	}
	return data, nil
}

func (r reader) secret(name string) (map[string][]byte, error) {
	o, err := r.cs.CoreV1().Secrets(r.ns).Get(r.ctx, name, metav1.GetOptions{})
	if err != nil {
		return nil, err
	}
	return o.Data, nil
}

// volumes makes a pod's volumes below dir and returns where each is.
func (p *provider) volumes(ctx context.Context, pod *v1.Pod, dir string) (map[string]string, error) {
	out := map[string]string{}
	from := reader{ctx, p.cs, pod.Namespace}
	for _, v := range pod.Spec.Volumes {
		at := filepath.Join(dir, v.Name)
		if err := os.MkdirAll(at, 0o755); err != nil {
			return nil, err
		}
		// The pod's user is not ours.
		if err := os.Chmod(at, 0o777); err != nil {
			return nil, err
		}
		var err error
		switch {
		case v.EmptyDir != nil:
		case v.ConfigMap != nil:
			err = project(at, v.ConfigMap.Items, v.ConfigMap.DefaultMode, v.ConfigMap.Optional, func() (map[string][]byte, error) { return from.configMap(v.ConfigMap.Name) })
		case v.Secret != nil:
			err = project(at, v.Secret.Items, v.Secret.DefaultMode, v.Secret.Optional, func() (map[string][]byte, error) { return from.secret(v.Secret.SecretName) })
		case v.DownwardAPI != nil:
			err = downward(pod, at, v.DownwardAPI.Items)
		case v.Projected != nil:
			for _, s := range v.Projected.Sources {
				err = errors.Join(err, p.source(ctx, pod, at, s, v.Projected.DefaultMode))
			}
		case v.HostPath != nil:
			at = v.HostPath.Path
			if t := v.HostPath.Type; t != nil && *t == v1.HostPathDirectoryOrCreate {
				err = os.MkdirAll(at, 0o755)
			} else {
				_, err = os.Stat(at)
			}
		default:
			err = errors.New("this node has no volumes of that kind")
		}
		if err != nil {
			return nil, fmt.Errorf("MountVolume.SetUp failed for volume %q: %w", v.Name, err)
		}
		out[v.Name] = at
	}
	return out, nil
}

// source writes one part of a projected volume.
func (p *provider) source(ctx context.Context, pod *v1.Pod, at string, s v1.VolumeProjection, mode *int32) error {
	from := reader{ctx, p.cs, pod.Namespace}
	switch {
	case s.ConfigMap != nil:
		return project(at, s.ConfigMap.Items, mode, s.ConfigMap.Optional, func() (map[string][]byte, error) { return from.configMap(s.ConfigMap.Name) })
	case s.Secret != nil:
		return project(at, s.Secret.Items, mode, s.Secret.Optional, func() (map[string][]byte, error) { return from.secret(s.Secret.Name) })
	case s.DownwardAPI != nil:
		return downward(pod, at, s.DownwardAPI.Items)
	case s.ServiceAccountToken != nil:
		t := s.ServiceAccountToken
		req := &authv1.TokenRequest{Spec: authv1.TokenRequestSpec{ExpirationSeconds: t.ExpirationSeconds,
			BoundObjectRef: &authv1.BoundObjectReference{APIVersion: "v1", Kind: "Pod", Name: pod.Name, UID: pod.UID}}}
		if t.Audience != "" {
			req.Spec.Audiences = []string{t.Audience}
		}
		tok, err := p.cs.CoreV1().ServiceAccounts(pod.Namespace).CreateToken(ctx, pod.Spec.ServiceAccountName, req, metav1.CreateOptions{})
		if err != nil {
			return err
		}
		return write(at, t.Path, []byte(tok.Status.Token), 0o644)
	}
	return errors.New("this node has no projected sources of that kind")
}

// project writes the keys of an object, all or those of items.
func project(dir string, items []v1.KeyToPath, mode *int32, opt *bool, read func() (map[string][]byte, error)) error {
	data, err := optional(opt, read)
	if err != nil {
		return err
	}
	perm := os.FileMode(0o644)
	if mode != nil {
		perm = os.FileMode(*mode)
	}
	if len(items) == 0 {
		for k, v := range data {
			if err := write(dir, k, v, perm); err != nil {
				return err
			}
		}
	}
	for _, it := range items {
		v, ok := data[it.Key]
		if !ok {
			if opt != nil && *opt {
				continue
			}
			return fmt.Errorf("references non-existent key: %s", it.Key)
		}
		m := perm
		if it.Mode != nil {
			m = os.FileMode(*it.Mode)
		}
		if err := write(dir, it.Path, v, m); err != nil {
			return err
		}
	}
	return nil
}

func downward(pod *v1.Pod, dir string, items []v1.DownwardAPIVolumeFile) error {
	for _, it := range items {
		var value string
		var err error
		switch {
		case it.FieldRef != nil:
			value, err = field(pod, it.FieldRef.FieldPath)
		case it.ResourceFieldRef != nil:
			value, err = resourceField(pod, &pod.Spec.Containers[0], it.ResourceFieldRef)
		}
		if err == nil {
			err = write(dir, it.Path, []byte(value), 0o644)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func write(dir, name string, data []byte, mode os.FileMode) error {
	file := filepath.Join(dir, name)
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		return err
	}
	if err := os.WriteFile(file, data, mode); err != nil {
		return err
	}
	// Like fsGroup, in effect: whoever the pod runs as may read it.
	return os.Chmod(file, mode|0o044)
}

// etc writes the files of /etc that a kubelet manages, and returns where.
func etc(pod *v1.Pod, dir string) (hosts, resolv string, err error) {
	var b strings.Builder
	b.WriteString("127.0.0.1\tlocalhost\n::1\tlocalhost\n" + podIP + "\t" + hostname(pod) + "\n")
	for _, a := range pod.Spec.HostAliases {
		fmt.Fprintf(&b, "%s\t%s\n", a.IP, strings.Join(a.Hostnames, "\t"))
	}
	if err := write(dir, "hosts", []byte(b.String()), 0o644); err != nil {
		return "", "", err
	}
	text, _ := os.ReadFile("/etc/resolv.conf")
	if pod.Spec.DNSPolicy == v1.DNSNone {
		text = nil
		if d := pod.Spec.DNSConfig; d != nil {
			for _, n := range d.Nameservers {
				text = fmt.Appendf(text, "nameserver %s\n", n)
			}
			if len(d.Searches) > 0 {
				text = fmt.Appendf(text, "search %s\n", strings.Join(d.Searches, " "))
			}
		}
	}
	return filepath.Join(dir, "hosts"), filepath.Join(dir, "resolv.conf"), write(dir, "resolv.conf", text, 0o644)
}

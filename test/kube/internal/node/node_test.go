package node

import (
	"context"
	"errors"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/virtual-kubelet/virtual-kubelet/node/api"
	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// store has one secret and one config map.
type store struct{}

func (store) configMap(name string) (map[string][]byte, error) {
	if name != "conf" {
		return nil, apierrors.NewNotFound(schema.GroupResource{Resource: "configmaps"}, name)
	}
	return map[string][]byte{"level": []byte("high")}, nil
}

func (store) secret(name string) (map[string][]byte, error) {
	if name != "key" {
		return nil, apierrors.NewNotFound(schema.GroupResource{Resource: "secrets"}, name)
	}
	return map[string][]byte{"token": []byte("s3")}, nil
}

func pod() *v1.Pod {
	return &v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p", Namespace: "ns", UID: "u", Labels: map[string]string{"app": "x"}}, Spec: v1.PodSpec{NodeName: "node-1"}}
}

func secretRef(name, key string, optional bool) *v1.EnvVarSource {
	return &v1.EnvVarSource{SecretKeyRef: &v1.SecretKeySelector{LocalObjectReference: v1.LocalObjectReference{Name: name}, Key: key, Optional: &optional}}
}

func TestEnvironment(t *testing.T) {
	c := v1.Container{
		EnvFrom: []v1.EnvFromSource{{Prefix: "C_", ConfigMapRef: &v1.ConfigMapEnvSource{LocalObjectReference: v1.LocalObjectReference{Name: "conf"}}}},
		Env: []v1.EnvVar{
			{Name: "TOKEN", ValueFrom: secretRef("key", "token", false)},
			{Name: "BOTH", Value: "$(TOKEN)-$(C_level)-$(LATER)-$$(TOKEN)"},
			{Name: "LATER", Value: "l"},
			{Name: "NONE", ValueFrom: secretRef("nobody", "token", true)},
			{Name: "NODE", ValueFrom: &v1.EnvVarSource{FieldRef: &v1.ObjectFieldSelector{FieldPath: "spec.nodeName"}}},
			{Name: "APP", ValueFrom: &v1.EnvVarSource{FieldRef: &v1.ObjectFieldSelector{FieldPath: "metadata.labels['app']"}}},
			{Name: "MEM", ValueFrom: &v1.EnvVarSource{ResourceFieldRef: &v1.ResourceFieldSelector{Resource: "limits.memory", Divisor: resource.MustParse("1Mi")}}},
		},
		Resources: v1.ResourceRequirements{Limits: v1.ResourceList{v1.ResourceMemory: resource.MustParse("64Mi")}},
	}
	got, err := environment(pod(), &c, []string{"PATH=/app", "IMAGE=yes"}, map[string]string{"KUBERNETES_SERVICE_HOST": "h"}, store{})
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]string{"PATH": "/app", "IMAGE": "yes", "HOSTNAME": "p", "KUBERNETES_SERVICE_HOST": "h", "C_level": "high", "TOKEN": "s3",
		"BOTH": "s3-high-$(LATER)-$(TOKEN)", "LATER": "l", "NODE": "node-1", "APP": "x", "MEM": "64"}
	if !maps.Equal(got, want) {
		t.Errorf("got  %v\nwant %v", got, want)
	}
	for _, bad := range []*v1.EnvVarSource{secretRef("nobody", "token", false), secretRef("key", "nothing", false)} {
		if _, err := environment(pod(), &v1.Container{Env: []v1.EnvVar{{Name: "X", ValueFrom: bad}}}, nil, nil, store{}); err == nil {
			t.Errorf("%v is no error", bad.SecretKeyRef)
		}
	}
}

func TestCommand(t *testing.T) {
	for name, c := range map[string]struct {
		command, args []string
		want          string
	}{
		"the image's own":                       {nil, nil, "entry cmd"},
		"args replace the image's command":      {nil, []string{"$(A)"}, "entry 1"},
		"command replaces both":                 {[]string{"run"}, nil, "run"},
		"what is no variable stays as it is":    {[]string{"run", "$(B)", "$$(A)"}, []string{"x"}, "run $(B) $(A) x"},
		"the image's own words are not changed": {nil, []string{}, "entry cmd"},
	} {
		t.Run(name, func(t *testing.T) {
			got := command(&v1.Container{Command: c.command, Args: c.args}, []string{"entry"}, []string{"cmd"}, map[string]string{"A": "1"})
			if strings.Join(got, " ") != c.want {
				t.Errorf("got %q, want %q", got, c.want)
			}
		})
	}
}

func TestCapabilities(t *testing.T) {
	if got := capabilities(nil); len(got) != 14 {
		t.Errorf("%d by default", len(got))
	}
	got := capabilities(&v1.Capabilities{Drop: []v1.Capability{"ALL"}, Add: []v1.Capability{"KILL"}})
	if !slices.Equal(got, []int{5}) || got == nil {
		t.Errorf("all but KILL dropped: %v", got)
	}
	if got := capabilities(&v1.Capabilities{Drop: []v1.Capability{"ALL"}}); got == nil || len(got) > 0 {
		t.Errorf("all dropped: %v (nil would keep all)", got)
	}
}

func TestProject(t *testing.T) {
	dir := t.TempDir()
	read := func() (map[string][]byte, error) { return store{}.secret("key") }
	if err := project(dir, []v1.KeyToPath{{Key: "token", Path: "deep/t"}}, nil, nil, read); err != nil {
		t.Fatal(err)
	}
	if b, _ := os.ReadFile(filepath.Join(dir, "deep/t")); string(b) != "s3" {
		t.Errorf("file %q", b)
	}
	if err := project(dir, []v1.KeyToPath{{Key: "nothing", Path: "t"}}, nil, nil, read); err == nil {
		t.Error("a key that is not there is no error")
	}
	yes := true
	if err := project(dir, nil, nil, &yes, func() (map[string][]byte, error) { return store{}.secret("nobody") }); err != nil {
		t.Error("an optional secret:", err)
	}
}

func TestLogs(t *testing.T) {
	for name, c := range map[string]struct {
		text string
		o    api.ContainerLogOpts
		want string
	}{
		"everything":                 {"a\nb\n", api.ContainerLogOpts{}, "a\nb\n"},
		"the last line":              {"a\nb\n", api.ContainerLogOpts{Tail: 1}, "b\n"},
		"a line that has not ended":  {"a\nb\nc", api.ContainerLogOpts{Tail: 2}, "b\nc"},
		"more lines than there are":  {"a\nb\n", api.ContainerLogOpts{Tail: 9}, "a\nb\n"},
		"lines longer than a buffer": {"a\n" + strings.Repeat("x", 100_000) + "\n" + "b\n", api.ContainerLogOpts{Tail: 2}, strings.Repeat("x", 100_000) + "\nb\n"},
		"at most so many bytes":      {"abcdef\n", api.ContainerLogOpts{LimitBytes: 3}, "abc"},
		"an empty log":               {"", api.ContainerLogOpts{Tail: 3}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			file := filepath.Join(t.TempDir(), "log")
			if err := os.WriteFile(file, []byte(c.text), 0o600); err != nil {
				t.Fatal(err)
			}
			f, err := os.Open(file)
			if err != nil {
				t.Fatal(err)
			}
			r, err := logs(t.Context(), f, c.o, nil)
			if err != nil {
				t.Fatal(err)
			}
			b, err := io.ReadAll(r)
			if err := errors.Join(err, r.Close()); err != nil || string(b) != c.want {
				t.Errorf("%d bytes, %v, want %d", len(b), err, len(c.want))
			}
		})
	}
}

func TestFollow(t *testing.T) {
	file := filepath.Join(t.TempDir(), "log")
	w, err := os.Create(file)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = w.Close() }()
	f, err := os.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	finished := make(chan struct{})
	r, err := logs(context.Background(), f, api.ContainerLogOpts{Follow: true}, finished)
	if err != nil {
		t.Fatal(err)
	}
	got := make(chan string)
	go func() { b, _ := io.ReadAll(r); got <- string(b) }()
	_, _ = w.WriteString("one\n")
	_, _ = w.WriteString("two\n")
	close(finished)
	if text := <-got; text != "one\ntwo\n" {
		t.Errorf("followed %q", text)
	}
}

package kube

import (
	"slices"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/fulgur-rl/fulgur/internal/controller/sandbox"
)

const (
	relayName   = "fulgur-relay" // the sidecar and its volume
	relayFolder = "/fulgur-relay"
	relayKey    = "relay-key" // in the attempt's Secret; no variable's name
)

// addRelay puts the relay before a pod's other containers, as a sidecar that ends
// with them; it alone has the key. Its error is of a pod in which that would be no
// secret.
func (o *maker) addRelay(pod *corev1.PodSpec, secret *corev1.Secret, pass sandbox.Pass) error {
	shared := func(b *bool) bool { return b != nil && *b }
	switch {
	case pod.HostNetwork:
		return invalid("the pod has hostNetwork: its relay would add the key for whatever runs on the node; leave it out, or runner.kubernetes.relay")
	case pod.HostPID || shared(pod.ShareProcessNamespace):
		return invalid("the pod's containers see each other's processes (hostPID, shareProcessNamespace), and so the relay's key: leave that out, or runner.kubernetes.relay")
	}
	for _, list := range [][]corev1.Container{pod.InitContainers, pod.Containers} {
		if slices.ContainsFunc(list, func(c corev1.Container) bool { return c.Name == relayName }) {
			return invalid("the pod has a container called %s, as the relay is: call it something else", relayName)
		}
	}
	always := corev1.ContainerRestartPolicyAlways
	args := []string{"relay", "--listen", "127.0.0.1:" + strconv.Itoa(sandbox.Port), "--upstream", o.Gateway, "--key-file", relayFolder + "/" + relayKey}
	for _, p := range pass.Paths {
		args = append(args, "--allow", p)
	}
	for i := range args {
		args[i] = verbatim(args[i])
	}
	c := corev1.Container{
		Name: relayName, Image: o.RelayImage, Command: o.RelayCommand, Args: args, RestartPolicy: &always,
		VolumeMounts: []corev1.VolumeMount{{Name: relayName, MountPath: relayFolder, ReadOnly: true}},
		Resources: corev1.ResourceRequirements{
			Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("10m"), corev1.ResourceMemory: resource.MustParse("32Mi")},
			Limits:   corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("128Mi")},
		},
	}
	pod.InitContainers = append([]corev1.Container{c}, pod.InitContainers...)
	pod.Volumes = append(pod.Volumes, corev1.Volume{Name: relayName, VolumeSource: corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{
		SecretName: secret.Name, Items: []corev1.KeyToPath{{Key: relayKey, Path: relayKey}}}}})
	secret.Data[relayKey] = []byte(pass.Key)
	return nil
}

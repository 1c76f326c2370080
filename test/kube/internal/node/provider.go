// Package node is a Kubernetes node whose containers are processes of this
// machine: the provider behind a virtual kubelet.
//
// It has what Jobs and simple Deployments need: images from OCI layouts, init
// containers and sidecars, environments, volumes, users and capabilities,
// memory limits, restarts, grace periods, deadlines, eviction, logs. It has no
// probes, no exec, attach or port-forward, no limits on CPU and no network of a
// pod's own: every pod is on the machine's.
package node

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"sync"
	"time"

	dto "github.com/prometheus/client_model/go"
	"github.com/virtual-kubelet/virtual-kubelet/errdefs"
	"github.com/virtual-kubelet/virtual-kubelet/node/api"
	"github.com/virtual-kubelet/virtual-kubelet/node/nodeutil"
	v1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/record"
	stats "k8s.io/kubelet/pkg/apis/stats/v1alpha1"

	"github.com/fulgur-rl/fulgur/test/kube/internal/image"
)

// podIP is every pod's address and the node's.
const podIP = "127.0.0.1"

type provider struct {
	cfg              nodeutil.ProviderConfig
	cs               kubernetes.Interface
	events           record.EventRecorder
	images           *image.Store
	groups           groups
	dir, initBin     string
	apiHost, apiPort string
	notify           func(*v1.Pod)

	mu   sync.Mutex
	pods map[string]*podRun // by namespace/name
}

func key(p *v1.Pod) string { return p.Namespace + "/" + p.Name }

func (p *provider) event(pod *v1.Pod, kind, reason, msg string) {
	p.events.Event(pod, kind, reason, msg)
}

// service is how a pod finds the API server.
func (p *provider) service() map[string]string {
	return map[string]string{"KUBERNETES_SERVICE_HOST": p.apiHost, "KUBERNETES_SERVICE_PORT": p.apiPort}
}

// NotifyPods gets the function that takes statuses.
func (p *provider) NotifyPods(_ context.Context, f func(*v1.Pod)) { p.notify = f }

// CreatePod starts a pod.
func (p *provider) CreatePod(_ context.Context, pod *v1.Pod) error {
	r := newPodRun(p, pod)
	if err := os.MkdirAll(r.dir, 0o755); err != nil {
		return err
	}
	p.mu.Lock()
	p.pods[key(pod)] = r
	p.mu.Unlock()
	// A pod that was running and is not known ran before this node was restarted.
	if pod.Status.Phase == v1.PodRunning && pod.Spec.RestartPolicy == v1.RestartPolicyNever {
		go r.lost()
		return nil
	}
	go r.run()
	return nil
}

func (p *provider) get(ns, name string) (*podRun, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if r, ok := p.pods[ns+"/"+name]; ok {
		return r, nil
	}
	return nil, errdefs.NotFoundf("pod %s/%s is not on this node", ns, name)
}

// UpdatePod takes new metadata. It evicts a pod that is marked so.
func (p *provider) UpdatePod(_ context.Context, pod *v1.Pod) error {
	r, err := p.get(pod.Namespace, pod.Name)
	if err != nil {
		return err
	}
	if r.pod.UID != pod.UID {
		return fmt.Errorf("an older pod of the name %s is still ending", key(pod))
	}
	r.mu.Lock()
	r.seen = pod
	r.mu.Unlock()
	if msg, ok := pod.Annotations[EvictAnnotation]; ok {
		r.terminate(evicted{errors.New("evicted"), msg}, time.Second)
	}
	return nil
}

// DeletePod ends a pod; it is forgotten, with its logs, when it has ended.
func (p *provider) DeletePod(_ context.Context, pod *v1.Pod) error {
	r, err := p.get(pod.Namespace, pod.Name)
	if err != nil {
		return err
	}
	grace := time.Duration(0)
	if g := pod.DeletionGracePeriodSeconds; g != nil {
		grace = time.Duration(*g) * time.Second
	}
	r.terminate(deleted{errors.New("deleted")}, grace)
	go func() {
		<-r.finished
		p.mu.Lock()
		if p.pods[key(pod)] == r {
			delete(p.pods, key(pod))
		}
		p.mu.Unlock()
		_ = os.RemoveAll(r.dir)
	}()
	return nil
}

// GetPod returns a pod of this node.
func (p *provider) GetPod(_ context.Context, ns, name string) (*v1.Pod, error) {
	r, err := p.get(ns, name)
	if err != nil {
		return nil, err
	}
	return r.current(), nil
}

// GetPodStatus returns the status of a pod of this node.
func (p *provider) GetPodStatus(_ context.Context, ns, name string) (*v1.PodStatus, error) {
	r, err := p.get(ns, name)
	if err != nil {
		return nil, err
	}
	return &r.current().Status, nil
}

// GetPods returns the pods of this node.
func (p *provider) GetPods(context.Context) ([]*v1.Pod, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	out := make([]*v1.Pod, 0, len(p.pods))
	for _, r := range p.pods {
		out = append(out, r.current())
	}
	return out, nil
}

// GetContainerLogs opens a container's log.
func (p *provider) GetContainerLogs(ctx context.Context, ns, name, c string, o api.ContainerLogOpts) (io.ReadCloser, error) {
	r, err := p.get(ns, name)
	if err != nil {
		return nil, err
	}
	f, err := os.Open(filepath.Join(r.dir, c+".log"))
	if errors.Is(err, os.ErrNotExist) {
		return nil, errdefs.NotFoundf("container %q in pod %q is waiting to start: ContainerCreating", c, name)
	}
	if err != nil {
		return nil, err
	}
	return logs(ctx, f, o, r.finished)
}

var errNot = errors.New("this node cannot do that")

// RunInContainer is not there.
func (p *provider) RunInContainer(context.Context, string, string, string, []string, api.AttachIO) error {
	return errNot
}

// AttachToContainer is not there.
func (p *provider) AttachToContainer(context.Context, string, string, string, api.AttachIO) error {
	return errNot
}

// GetStatsSummary is not there.
func (p *provider) GetStatsSummary(context.Context) (*stats.Summary, error) { return nil, errNot }

// GetMetricsResource is not there.
func (p *provider) GetMetricsResource(context.Context) ([]*dto.MetricFamily, error) {
	return nil, errNot
}

// PortForward is not there.
func (p *provider) PortForward(context.Context, string, string, int32, io.ReadWriteCloser) error {
	return errNot
}

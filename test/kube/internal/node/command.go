package node

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	vk "github.com/virtual-kubelet/virtual-kubelet/node"
	"github.com/virtual-kubelet/virtual-kubelet/node/nodeutil"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	corev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/tools/record"
	"k8s.io/client-go/util/cert"
	"k8s.io/client-go/util/workqueue"

	"github.com/fulgur-rl/fulgur/test/kube/internal/image"
)

// MemoryLabel on a node says whether memory limits hold there: "limited" or "unlimited".
const MemoryLabel = "kubebox.test/memory"

type options struct {
	kubeconfig, name, dir, images string
	port                          int32
}

// Command is `kubebox node`.
func Command() *cobra.Command {
	var o options
	cmd := &cobra.Command{Use: "node", Short: "a node that runs containers as processes", SilenceUsage: true, RunE: func(*cobra.Command, []string) error {
		ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
		defer stop()
		return run(ctx, o)
	}}
	cmd.Flags().StringVar(&o.kubeconfig, "kubeconfig", "", "kubeconfig file")
	cmd.Flags().StringVar(&o.name, "name", "node-1", "name of the node")
	cmd.Flags().StringVar(&o.dir, "dir", "node", "where pods are kept")
	cmd.Flags().StringVar(&o.images, "images", "images", "folder of OCI image layouts")
	cmd.Flags().Int32Var(&o.port, "port", 10250, "the port for logs")
	return cmd
}

func run(ctx context.Context, o options) error {
	cfg, err := clientcmd.BuildConfigFromFlags("", o.kubeconfig)
	if err != nil {
		return err
	}
	cfg.QPS, cfg.Burst, cfg.UserAgent = 500, 1000, "kubelet"
	cs, err := kubernetes.NewForConfig(cfg)
	if err != nil {
		return err
	}
	host, port, err := net.SplitHostPort(strings.TrimPrefix(cfg.Host, "https://"))
	if err != nil {
		return err
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	// What an earlier process of this node left can only be garbage: its containers died with it.
	if err := os.RemoveAll(filepath.Join(o.dir, "pods")); err != nil {
		return err
	}
	events := record.NewBroadcaster()
	events.StartRecordingToSink(&corev1.EventSinkImpl{Interface: cs.CoreV1().Events("")})
	defer events.Shutdown()
	p := &provider{cs: cs, dir: o.dir, apiHost: host, apiPort: port, groups: newGroups(o.name), pods: map[string]*podRun{},
		initBin: filepath.Join(filepath.Dir(self), "kubebox-init"), images: &image.Store{Layouts: o.images, Cache: filepath.Join(o.dir, "images")},
		events: events.NewRecorder(scheme.Scheme, v1.EventSource{Component: "kubelet", Host: o.name})}
	defer p.groups.close()
	if err := os.MkdirAll(p.images.Cache, 0o755); err != nil {
		return err
	}
	certPEM, keyPEM, err := cert.GenerateSelfSignedCertKey("127.0.0.1", []net.IP{net.ParseIP(podIP)}, nil)
	if err != nil {
		return err
	}
	pair, err := tls.X509KeyPair(certPEM, keyPEM)
	if err != nil {
		return err
	}
	mux := http.NewServeMux()
	n, err := nodeutil.NewNode(o.name, func(c nodeutil.ProviderConfig) (nodeutil.Provider, vk.NodeProvider, error) {
		p.cfg = c
		describe(c.Node, o, p.groups.enforced())
		return p, nil, nil
	}, nodeutil.WithClient(cs), nodeutil.AttachProviderRoutes(mux), nodeutil.WithTLSConfig(func(t *tls.Config) error {
		t.Certificates = []tls.Certificate{pair}
		return nil
	}), func(c *nodeutil.NodeConfig) error {
		c.HTTPListenAddr, c.Handler, c.NumWorkers = fmt.Sprintf("127.0.0.1:%d", o.port), mux, 10
		c.SkipDownwardAPIResolution = true       // environment is nearer to what a kubelet does
		c.EventRecorder = &record.FakeRecorder{} // its two events a pod say nothing that a kubelet would
		c.PodControllerConfigOpts = append(c.PodControllerConfigOpts, unhurried)
		return nil
	})
	if err != nil {
		return err
	}
	return n.Run(ctx)
}

// unhurried takes the limit of ten pods a second away, which all queues have by
// default: a kubelet has none.
func unhurried(c *vk.PodControllerConfig) error {
	limit := func() workqueue.TypedRateLimiter[any] {
		return workqueue.NewTypedItemExponentialFailureRateLimiter[any](5*time.Millisecond, time.Second)
	}
	c.SyncPodsFromKubernetesRateLimiter, c.DeletePodsFromKubernetesRateLimiter, c.SyncPodStatusFromProviderRateLimiter = limit(), limit(), limit()
	// Nor does it ever give up: what ended while the API server was away is still told.
	again := func(context.Context, string, int, time.Time, error) (*time.Duration, error) { return nil, nil }
	c.SyncPodsFromKubernetesShouldRetryFunc, c.DeletePodsFromKubernetesShouldRetryFunc, c.SyncPodStatusFromProviderShouldRetryFunc = again, again, again
	return nil
}

func describe(n *v1.Node, o options, limited bool) {
	res := v1.ResourceList{v1.ResourceCPU: resource.MustParse("64"), v1.ResourceMemory: resource.MustParse("256Gi"),
		v1.ResourcePods: resource.MustParse("500"), v1.ResourceEphemeralStorage: resource.MustParse("100Gi"), "nvidia.com/gpu": resource.MustParse("8")}
	n.Status.Capacity, n.Status.Allocatable = res, res
	n.Status.Addresses = []v1.NodeAddress{{Type: v1.NodeInternalIP, Address: podIP}, {Type: v1.NodeHostName, Address: o.name}}
	n.Status.DaemonEndpoints.KubeletEndpoint.Port = o.port
	n.Status.NodeInfo = v1.NodeSystemInfo{OperatingSystem: "linux", Architecture: "amd64", KubeletVersion: "v1.37.2-kubebox"}
	n.Labels[v1.LabelOSStable], n.Labels[v1.LabelArchStable], n.Labels[v1.LabelHostname] = "linux", "amd64", o.name
	n.Labels[MemoryLabel] = "limited"
	if !limited {
		n.Labels[MemoryLabel] = "unlimited"
	}
}

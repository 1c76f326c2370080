package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apiserver/pkg/quota/v1/generic"
	cacheddiscovery "k8s.io/client-go/discovery/cached/memory"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/metadata/metadatainformer"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/restmapper"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/util/keyutil"
	"k8s.io/controller-manager/pkg/informerfactory"
	"k8s.io/klog/v2"
	pkgcontroller "k8s.io/kubernetes/pkg/controller"
	"k8s.io/kubernetes/pkg/controller/certificates/rootcacertpublisher"
	"k8s.io/kubernetes/pkg/controller/clusterroleaggregation"
	"k8s.io/kubernetes/pkg/controller/deployment"
	"k8s.io/kubernetes/pkg/controller/garbagecollector"
	"k8s.io/kubernetes/pkg/controller/job"
	"k8s.io/kubernetes/pkg/controller/namespace"
	"k8s.io/kubernetes/pkg/controller/nodelifecycle"
	"k8s.io/kubernetes/pkg/controller/podgc"
	"k8s.io/kubernetes/pkg/controller/replicaset"
	"k8s.io/kubernetes/pkg/controller/resourcequota"
	sacontroller "k8s.io/kubernetes/pkg/controller/serviceaccount"
	"k8s.io/kubernetes/pkg/controller/tainteviction"
	"k8s.io/kubernetes/pkg/controller/ttlafterfinished"
	quotainstall "k8s.io/kubernetes/pkg/quota/v1/install"
	"k8s.io/kubernetes/pkg/serviceaccount"
)

// The controllers are kube-controller-manager's own packages, wired as its app
// wires them. The app itself is left out: it draws in every cloud provider,
// volume plugin and autoscaler, a fifth of the whole build, for parts that no
// Job ever meets.

// options of the controllers.
type controllerOptions struct {
	kubeconfig, saKey, rootCA string
	nodeGrace                 time.Duration
}

// manager holds what the controllers share.
type manager struct {
	o         controllerOptions
	cfg       *rest.Config
	cs        *kubernetes.Clientset
	factory   informers.SharedInformerFactory
	metadata  metadata.Interface
	both      informerfactory.InformerFactory
	mapper    *restmapper.DeferredDiscoveryRESTMapper
	informing chan struct{} // closed when the informers have been started
	run       []func(context.Context)
}

func controllersCommand() *cobra.Command {
	var o controllerOptions
	cmd := &cobra.Command{Use: "controllers", Short: "the controllers that Jobs need", SilenceUsage: true, RunE: func(*cobra.Command, []string) error {
		ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
		defer stop()
		m, err := newManager(o)
		if err != nil {
			return err
		}
		return m.start(ctx)
	}}
	cmd.Flags().StringVar(&o.kubeconfig, "kubeconfig", "", "kubeconfig file")
	cmd.Flags().StringVar(&o.saKey, "service-account-private-key-file", "", "signs tokens")
	cmd.Flags().StringVar(&o.rootCA, "root-ca-file", "", "published to every namespace")
	cmd.Flags().DurationVar(&o.nodeGrace, "node-monitor-grace-period", 30*time.Second, "how long a node may be silent")
	return cmd
}

func newManager(o controllerOptions) (*manager, error) {
	cfg, err := clientcmd.BuildConfigFromFlags("", o.kubeconfig)
	if err != nil {
		return nil, err
	}
	cfg.QPS, cfg.Burst = 500, 1000
	cfg.UserAgent = "kube-controller-manager"
	m := &manager{o: o, cfg: cfg, informing: make(chan struct{})}
	if m.cs, err = kubernetes.NewForConfig(cfg); err != nil {
		return nil, err
	}
	if m.metadata, err = metadata.NewForConfig(cfg); err != nil {
		return nil, err
	}
	resync := 12 * time.Hour
	trim := func(obj any) (any, error) {
		if a, err := meta.Accessor(obj); err == nil {
			a.SetManagedFields(nil)
		}
		return obj, nil
	}
	m.factory = informers.NewSharedInformerFactoryWithOptions(m.cs, resync, informers.WithTransform(trim))
	m.both = informerfactory.NewInformerFactory(m.factory, metadatainformer.NewSharedInformerFactoryWithOptions(m.metadata, resync, metadatainformer.WithTransform(trim)))
	m.mapper = restmapper.NewDeferredDiscoveryRESTMapper(cacheddiscovery.NewMemCacheClient(m.cs.Discovery()))
	return m, nil
}

func (m *manager) start(ctx context.Context) error {
	go wait.Until(m.mapper.Reset, 30*time.Second, ctx.Done())
	for _, add := range []func(context.Context) error{m.accounts, m.jobs, m.workloads, m.nodes, m.quota, m.garbage} {
		if err := add(ctx); err != nil {
			return err
		}
	}
	m.both.Start(ctx.Done())
	close(m.informing)
	for _, run := range m.run {
		go run(ctx)
	}
	<-ctx.Done()
	return nil
}

func (m *manager) add(run func(context.Context)) { m.run = append(m.run, run) }

// accounts: namespaces, service accounts, their tokens, the certificate that they trust, aggregated roles.
func (m *manager) accounts(ctx context.Context) error {
	ca, err := os.ReadFile(m.o.rootCA)
	if err != nil {
		return err
	}
	key, err := keyutil.PrivateKeyFromFile(m.o.saKey)
	if err != nil {
		return err
	}
	gen, err := serviceaccount.JWTTokenGenerator(serviceaccount.LegacyIssuer, key)
	if err != nil {
		return err
	}
	core := m.factory.Core().V1()
	tokens, err := sacontroller.NewTokensController(klog.FromContext(ctx), core.ServiceAccounts(), core.Secrets(), m.cs,
		sacontroller.TokensControllerOptions{TokenGenerator: gen, RootCA: ca})
	if err != nil {
		return err
	}
	accounts, err := sacontroller.NewServiceAccountsController(klog.FromContext(ctx), core.ServiceAccounts(), core.Namespaces(), m.cs,
		sacontroller.DefaultServiceAccountsControllerOptions())
	if err != nil {
		return err
	}
	publisher, err := rootcacertpublisher.NewPublisher(core.ConfigMaps(), core.Namespaces(), m.cs, ca)
	if err != nil {
		return err
	}
	namespaces := namespace.NewNamespaceController(ctx, m.cs, m.metadata, m.cs.Discovery().ServerPreferredNamespacedResources,
		core.Namespaces(), 5*time.Minute, v1.FinalizerKubernetes)
	roles := clusterroleaggregation.NewClusterRoleAggregation(m.factory.Rbac().V1().ClusterRoles(), m.cs.RbacV1())
	m.add(func(ctx context.Context) { tokens.Run(ctx, 5) })
	m.add(func(ctx context.Context) { accounts.Run(ctx, 1) })
	m.add(func(ctx context.Context) { publisher.Run(ctx, 1) })
	m.add(func(ctx context.Context) { namespaces.Run(ctx, 10) })
	m.add(func(ctx context.Context) { roles.Run(ctx, 1) })
	return nil
}

// jobs: Jobs, and their removal by ttlSecondsAfterFinished.
func (m *manager) jobs(ctx context.Context) error {
	// Nil informers: the feature that reads workloads and pod groups is off by default.
	jobs, err := job.NewController(ctx, m.cs, m.factory.Core().V1().Pods(), m.factory.Batch().V1().Jobs(), nil, nil)
	if err != nil {
		return err
	}
	ttl := ttlafterfinished.New(ctx, m.factory.Batch().V1().Jobs(), m.cs)
	m.add(func(ctx context.Context) { jobs.Run(ctx, 10) })
	m.add(func(ctx context.Context) { ttl.Run(ctx, 5) })
	return nil
}

// workloads: Deployments, for what is installed in the cluster.
func (m *manager) workloads(ctx context.Context) error {
	apps, pods := m.factory.Apps().V1(), m.factory.Core().V1().Pods()
	deployments, err := deployment.NewDeploymentController(ctx, apps.Deployments(), apps.ReplicaSets(), pods, m.cs)
	if err != nil {
		return err
	}
	sets := replicaset.NewReplicaSetController(ctx, apps.ReplicaSets(), pods, m.cs, replicaset.BurstReplicas)
	m.add(func(ctx context.Context) { deployments.Run(ctx, 2) })
	m.add(func(ctx context.Context) { sets.Run(ctx, 2) })
	return nil
}

// nodes: what becomes of pods whose node is silent, tainted or gone.
func (m *manager) nodes(ctx context.Context) error {
	core := m.factory.Core().V1()
	life, err := nodelifecycle.NewNodeLifecycleController(ctx, m.factory.Coordination().V1().Leases(), core.Pods(), core.Nodes(),
		m.factory.Apps().V1().DaemonSets(), m.cs, time.Second, time.Minute, m.o.nodeGrace, 10, 1, 50, 0.99)
	if err != nil {
		return err
	}
	taints, err := tainteviction.New(ctx, m.cs, core.Pods(), core.Nodes(), "taint-eviction-controller")
	if err != nil {
		return err
	}
	gc := podgc.NewPodGC(ctx, m.cs, core.Pods(), core.Nodes(), 12500)
	m.add(life.Run)
	m.add(taints.Run)
	m.add(gc.Run)
	return nil
}

// quota: what a ResourceQuota counts as used.
func (m *manager) quota(ctx context.Context) error {
	discover := m.cs.Discovery().ServerPreferredNamespacedResources
	conf, err := quotainstall.NewQuotaConfigurationForControllers(generic.ListerFuncForResourceFunc(m.factory.ForResource), m.factory)
	if err != nil {
		return err
	}
	q, err := resourcequota.NewController(ctx, &resourcequota.ControllerOptions{
		QuotaClient:               m.cs.CoreV1(),
		ResourceQuotaInformer:     m.factory.Core().V1().ResourceQuotas(),
		ResyncPeriod:              pkgcontroller.StaticResyncPeriodFunc(5 * time.Minute),
		InformerFactory:           m.both,
		ReplenishmentResyncPeriod: pkgcontroller.StaticResyncPeriodFunc(12 * time.Hour),
		DiscoveryFunc:             discover,
		IgnoredResourcesFunc:      conf.IgnoredResources,
		InformersStarted:          m.informing,
		Registry:                  generic.NewRegistry(conf.Evaluators()),
		UpdateFilter:              quotainstall.DefaultUpdateFilter(),
	})
	if err != nil {
		return err
	}
	m.add(func(ctx context.Context) { q.Run(ctx, 5) })
	m.add(func(ctx context.Context) { q.Sync(ctx, discover, 30*time.Second) })
	return nil
}

// garbage: objects whose owner is gone.
func (m *manager) garbage(ctx context.Context) error {
	ignored := map[schema.GroupResource]struct{}{}
	for r := range garbagecollector.DefaultIgnoredResources() {
		ignored[r] = struct{}{}
	}
	graph := garbagecollector.NewDependencyGraphBuilder(ctx, m.metadata, m.mapper, ignored, m.both, m.informing)
	gc, err := garbagecollector.NewComposedGarbageCollector(ctx, m.cs, m.metadata, m.mapper, graph)
	if err != nil {
		return err
	}
	m.add(func(ctx context.Context) { gc.Run(ctx, 20, 30*time.Second) })
	m.add(func(ctx context.Context) { gc.Sync(ctx, m.cs.Discovery(), 30*time.Second) })
	return nil
}

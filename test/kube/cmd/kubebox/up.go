package main

import (
	"context"
	"crypto/rand"
	"crypto/rsa"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
)

// cluster is what `up` starts.
type cluster struct {
	dir, images string
	nodes       int
	began       time.Time
	token       string
	etcd, peer  int // ports, all on the loopback interface
	api         int
	*supervisor
}

func upCommand() *cobra.Command {
	c := &cluster{}
	var untilEOF bool
	cmd := &cobra.Command{Use: "up", Short: "start a cluster and stay", SilenceUsage: true, RunE: func(*cobra.Command, []string) (err error) {
		ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
		defer stop()
		if untilEOF {
			// Whoever started this holds the other end: when it is gone, however it
			// ended, so is the cluster.
			go func() { _, _ = io.Copy(io.Discard, os.Stdin); stop() }()
		}
		if c.dir, err = filepath.Abs(c.dir); err != nil {
			return err
		}
		if c.images, err = filepath.Abs(c.images); err != nil {
			return err
		}
		return c.up(ctx)
	}}
	cmd.Flags().StringVar(&c.dir, "dir", "kubebox", "everything is kept here; D/kubeconfig appears when the cluster is ready")
	cmd.Flags().StringVar(&c.images, "images", "images", "folder of images: OCI layouts and unpacked root file systems")
	cmd.Flags().IntVar(&c.nodes, "nodes", 1, "nodes, named node-1, node-2, ...")
	cmd.Flags().BoolVar(&untilEOF, "until-eof", false, "end when standard input does")
	return cmd
}

func (c *cluster) say(format string, a ...any) {
	fmt.Printf("[%6.2fs] %s\n", time.Since(c.began).Seconds(), fmt.Sprintf(format, a...))
}

func (c *cluster) path(name string) string { return filepath.Join(c.dir, name) }

// up starts the parts in their order, waits for a ready node, and stays until
// ctx ends or a part cannot be kept alive.
func (c *cluster) up(ctx context.Context) error {
	c.began = time.Now()
	if err := c.credentials(); err != nil {
		return err
	}
	var err error
	if c.etcd, c.peer, c.api, err = ports(); err != nil {
		return err
	}
	ctx, fail := context.WithCancelCause(ctx)
	defer fail(nil)
	c.supervisor = newSupervisor(ctx, c.dir, fail)
	defer func() {
		c.supervisor.stop()
		c.say("stopped")
	}()
	// Slow machines are slow here: half a minute is nothing on two busy cores.
	ready, cancel := context.WithTimeout(ctx, 3*time.Minute)
	defer cancel()
	if err := c.start(ready); err != nil {
		return errors.Join(err, context.Cause(ctx))
	}
	if err := os.WriteFile(c.path("ready"), fmt.Appendf(nil, "%.2f\n", time.Since(c.began).Seconds()), 0o600); err != nil {
		return err
	}
	c.say("ready; KUBECONFIG=%s", c.path("kubeconfig"))
	<-ctx.Done()
	if err := context.Cause(ctx); !errors.Is(err, context.Canceled) {
		return err
	}
	return nil
}

// credentials writes the key of service account tokens and the administrator's token.
func (c *cluster) credentials() error {
	if err := os.MkdirAll(c.path("pki"), 0o700); err != nil {
		return err
	}
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		return err
	}
	pub, err := x509.MarshalPKIXPublicKey(&key.PublicKey)
	if err != nil {
		return err
	}
	c.token = rand.Text()
	for name, data := range map[string][]byte{
		"pki/sa.key":     pem.EncodeToMemory(&pem.Block{Type: "RSA PRIVATE KEY", Bytes: x509.MarshalPKCS1PrivateKey(key)}),
		"pki/sa.pub":     pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: pub}),
		"pki/tokens.csv": []byte(c.token + `,admin,admin,"system:masters"` + "\n"),
		// Who asked for what, to count requests; not what is in them.
		"audit.yaml": []byte("apiVersion: audit.k8s.io/v1\nkind: Policy\nomitStages: [RequestReceived, ResponseStarted]\nrules: [{level: Metadata}]\n"),
	} {
		if err := os.WriteFile(c.path(name), data, 0o600); err != nil {
			return err
		}
	}
	return nil
}

func (c *cluster) start(ctx context.Context) error {
	etcd := fmt.Sprintf("http://127.0.0.1:%d", c.etcd)
	peer := fmt.Sprintf("http://127.0.0.1:%d", c.peer)
	c.run("etcd", "--data-dir", c.path("etcd"), "--unsafe-no-fsync", "--log-level", "warn",
		"--listen-client-urls", etcd, "--advertise-client-urls", etcd,
		"--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer, "--initial-cluster", "default="+peer)
	if err := c.answers(ctx, etcd+"/health"); err != nil {
		return err
	}
	c.say("etcd answers")
	c.run("kube-apiserver", "--etcd-servers", etcd,
		"--bind-address", "127.0.0.1", "--advertise-address", "127.0.0.1", "--secure-port", fmt.Sprint(c.api),
		"--cert-dir", c.path("pki"), "--token-auth-file", c.path("pki/tokens.csv"), "--authorization-mode", "Node,RBAC",
		"--service-account-issuer", "https://kubernetes.default.svc",
		"--service-account-key-file", c.path("pki/sa.pub"), "--service-account-signing-key-file", c.path("pki/sa.key"),
		"--service-cluster-ip-range", "10.96.0.0/16", "--endpoint-reconciler-type", "none",
		"--kubelet-preferred-address-types", "InternalIP",
		// A lost node's pods are given up after seconds, not after the usual five minutes.
		"--default-not-ready-toleration-seconds", "4", "--default-unreachable-toleration-seconds", "4",
		"--audit-policy-file", c.path("audit.yaml"), "--audit-log-path", c.path("audit.log"), "--audit-log-maxsize", "1000",
		"--profiling=false")
	server := fmt.Sprintf("https://127.0.0.1:%d", c.api)
	if err := c.answers(ctx, server+"/readyz"); err != nil {
		return err
	}
	c.say("the API server answers at %s", server)
	kubeconfig, ca := c.path("pki/kubeconfig"), c.path("pki/apiserver.crt")
	text := fmt.Appendf(nil, `apiVersion: v1
kind: Config
clusters: [{name: kubebox, cluster: {server: %q, certificate-authority: %q}}]
users: [{name: admin, user: {token: %q}}]
contexts: [{name: kubebox, context: {cluster: kubebox, user: admin}}]
current-context: kubebox
`, server, ca, c.token)
	if err := os.WriteFile(kubeconfig, text, 0o600); err != nil {
		return err
	}
	c.run("controllers", "--kubeconfig", kubeconfig, "--service-account-private-key-file", c.path("pki/sa.key"), "--root-ca-file", ca)
	c.run("kube-scheduler", "--kubeconfig", kubeconfig, "--leader-elect=false", "--secure-port", "0", "--kube-api-qps", "500", "--kube-api-burst", "1000")
	for i := range c.nodes {
		name := fmt.Sprintf("node-%d", i+1)
		port, err := port()
		if err != nil {
			return err
		}
		c.runAs(name, "node", "--kubeconfig", kubeconfig, "--name", name, "--dir", c.path(name), "--images", c.images, "--port", fmt.Sprint(port))
	}
	if err := c.nodesReady(ctx, kubeconfig); err != nil {
		return err
	}
	return os.WriteFile(c.path("kubeconfig"), text, 0o600)
}

// nodesReady waits for every node and for the default service account, without
// which no pod is admitted.
func (c *cluster) nodesReady(ctx context.Context, kubeconfig string) error {
	cfg, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return err
	}
	cs, err := kubernetes.NewForConfig(cfg)
	if err != nil {
		return err
	}
	ready := func(n v1.Node) bool {
		for _, cond := range n.Status.Conditions {
			if cond.Type == v1.NodeReady && cond.Status == v1.ConditionTrue {
				return len(n.Spec.Taints) == 0
			}
		}
		return false
	}
	for {
		nodes, err := cs.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
		n := 0
		if err == nil {
			for _, node := range nodes.Items {
				if ready(node) {
					n++
				}
			}
		}
		_, sa := cs.CoreV1().ServiceAccounts("default").Get(ctx, "default", metav1.GetOptions{})
		if n == c.nodes && sa == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%d of %d nodes are ready (%v); default service account: %v; look at the logs in %s", n, c.nodes, err, sa, c.dir)
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// answers waits until url is answered with 200.
func (c *cluster) answers(ctx context.Context, url string) error {
	client := &http.Client{Timeout: 2 * time.Second, Transport: &http.Transport{DisableKeepAlives: true,
		// The certificate is being made right now, by the server itself.
		TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}}
	for {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
		if err != nil {
			return err
		}
		req.Header.Set("Authorization", "Bearer "+c.token)
		if r, err := client.Do(req); err == nil {
			_ = r.Body.Close()
			if r.StatusCode == http.StatusOK {
				return nil
			}
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%s does not answer; look at the logs in %s", url, c.dir)
		case <-time.After(50 * time.Millisecond):
		}
	}
}

func port() (int, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return 0, err
	}
	defer func() { _ = l.Close() }()
	return l.Addr().(*net.TCPAddr).Port, nil
}

func ports() (a, b, c int, err error) {
	a, e1 := port()
	b, e2 := port()
	c, e3 := port()
	return a, b, c, errors.Join(e1, e2, e3)
}

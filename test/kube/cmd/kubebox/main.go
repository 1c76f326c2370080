// Command kubebox is a Kubernetes cluster in one binary, for tests: etcd, the
// API server, the scheduler and the controllers that Jobs need, of the released
// version, and nodes that run containers as sandboxed processes of this machine.
//
//	kubebox up --dir D [--images D] [--nodes N]    start it; D/kubeconfig is there when it is ready
//	kubebox etcd|kube-apiserver|kube-scheduler|controllers|node ...    its parts
//
// Everything ends with the `up` that started it, also when that is killed.
package main

import (
	"fmt"
	"os"

	"github.com/spf13/cobra"
	"go.etcd.io/etcd/server/v3/etcdmain"
	"k8s.io/component-base/cli"
	_ "k8s.io/component-base/metrics/prometheus/clientgo" // the client's request counts, in each part's /metrics
	apiserver "k8s.io/kubernetes/cmd/kube-apiserver/app"
	scheduler "k8s.io/kubernetes/cmd/kube-scheduler/app"

	"github.com/fulgur-rl/fulgur/test/kube/internal/node"
)

func main() {
	if len(os.Args) < 2 {
		fmt.Fprintln(os.Stderr, "usage: kubebox up|etcd|kube-apiserver|kube-scheduler|controllers|node")
		os.Exit(2)
	}
	name := os.Args[1]
	os.Args = os.Args[1:]
	var c *cobra.Command
	switch name {
	case "etcd":
		etcdmain.Main(os.Args)
		return
	case "kube-apiserver":
		c = apiserver.NewAPIServerCommand()
	case "kube-scheduler":
		c = scheduler.NewSchedulerCommand()
	case "controllers":
		c = controllersCommand()
	case "node":
		c = node.Command()
	case "up":
		c = upCommand()
	default:
		fmt.Fprintf(os.Stderr, "kubebox has no part named %q\n", name)
		os.Exit(2)
	}
	os.Exit(cli.Run(c))
}

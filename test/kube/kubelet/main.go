// Command kubelet is the released kubelet, for the tests of run.sh beside it: a
// program of its own, so that kubebox, which most tests need, does not grow by it.
package main

import (
	"context"
	"os"

	"k8s.io/component-base/cli"
	_ "k8s.io/component-base/metrics/prometheus/clientgo" // the client's request counts, in its /metrics
	"k8s.io/kubernetes/cmd/kubelet/app"
)

func main() { os.Exit(cli.Run(app.NewKubeletCommand(context.Background()))) }

package kubelet

import (
	"os"
	"strings"
	"testing"
	"time"

	"github.com/fulgur-rl/fulgur/internal/controller"
	"github.com/fulgur-rl/fulgur/internal/controller/kube"
	"github.com/fulgur-rl/fulgur/internal/controller/runnertest"
)

// conformant is the Job of the conformance suite.
const conformant = `
apiVersion: batch/v1
kind: Job
metadata: {name: "{{ job_name }}"}
spec:
  template:
    spec:
      terminationGracePeriodSeconds: 1
      hostPID: true # process 1 of a namespace cannot kill itself, as one agent does
      containers:
      - name: agent
        image: fulgur.test/agent:1
        volumeMounts: [{name: share, mountPath: SHARE}]
      volumes: [{name: share, hostPath: {path: SHARE}}]
`

func TestConformance(t *testing.T) {
	share := t.TempDir()
	var n *node
	fresh := func(t *testing.T, s runnertest.Setup) controller.Runner {
		o := n.options()
		var err error
		if o.Template, err = kube.ParseTemplate("job.yaml", strings.ReplaceAll(conformant, "SHARE", share)); err != nil {
			t.Fatal(err)
		}
		o.InputFile = s.Input == "file"
		return n.runner(o)
	}
	runnertest.Run(t, runnertest.Variant{
		New: func(t *testing.T, s runnertest.Setup) controller.Runner {
			n = open(t)
			return fresh(t, s)
		},
		Again: func(t *testing.T, s runnertest.Setup, _ controller.Runner) controller.Runner { return fresh(t, s) },
		Lacks: runnertest.Lacks{Stdin: true, Signal: true, Grader: true},
		Wait:  patience, Grace: time.Second,
		Dir: func(t *testing.T) string {
			dir, err := os.MkdirTemp(share, "")
			if err != nil {
				t.Fatal(err)
			}
			return dir
		},
	})
}

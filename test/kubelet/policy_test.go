package kubelet

import (
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/fulgur-rl/fulgur"
	"github.com/fulgur-rl/fulgur/internal/controller/kube"
	"github.com/fulgur-rl/fulgur/internal/controller/runnertest"
)

// What the run's NetworkPolicy is worth: where the network makes it true the probe
// says that it holds, where it does not the probe escapes and the run is refused;
// and whether the gateway is there, and streams, is told apart from that.
func TestProve(t *testing.T) {
	for name, test := range map[string]struct {
		enforced bool
		gateway  string
		want     []string // in the error; none: no error
	}{
		"it holds":                            {true, "http://" + gatewayHost, nil},
		"it holds, and no DNS is needed":      {true, "http://" + gatewayName, nil},
		"it holds, but answers are held back": {true, "http://" + gatewayHost + "/held", []string{"do not stream"}},
		"it holds, but no gateway is there":   {true, "http://10.8.0.2:9", []string{"do not reach the gateway"}},
		"nobody enforces it": {false, "http://" + gatewayHost, []string{"agents reach more than the gateway: ",
			"the internet (" + internet, "a resolver of the internet (" + resolver, "the cloud's metadata (" + metadata, "the cluster's DNS (" + clusterDNS, "its node's kubelet (" + kubeletPort}},
	} {
		t.Run(name, func(t *testing.T) {
			n := open(t)
			n.startWorld()
			if test.enforced {
				n.enforce()
			}
			o := n.options()
			o.Isolated, o.ProbeImage = true, probeImage
			begin := time.Now()
			err := n.runner(o).Prove(t.Context(), test.gateway)
			t.Logf("%s: %v", time.Since(begin).Round(time.Millisecond), err)
			if len(test.want) == 0 && err != nil {
				t.Error(err)
			}
			for _, want := range test.want {
				if err == nil || !strings.Contains(err.Error(), want) {
					t.Errorf("no %q in the error %v", want, err)
				}
			}
			if err != nil && fulgur.KindOf(err) == fulgur.KindInternal {
				t.Errorf("kind %s", fulgur.KindOf(err))
			}
		})
	}
}

// Agents reach the gateway and nothing else, not even one another; what no policy
// selects goes on as before.
func TestAgentsReachTheGatewayAlone(t *testing.T) {
	for name, enforced := range map[string]bool{"enforced": true, "not enforced": false} {
		t.Run(name, func(t *testing.T) {
			n := open(t)
			n.startWorld()
			if enforced {
				n.enforce()
			}
			o := n.options()
			o.Isolated, o.ProbeImage = true, probeImage
			r := n.runner(o)
			if err := r.Prove(t.Context(), "http://"+gatewayHost); (err == nil) != enforced {
				t.Fatal(err)
			}
			runnertest.Start(t, r, runnertest.Execution("neighbour", "world 0.0.0.0:8080"))
			neighbour := n.addressOf("neighbour") + ":8080"
			n.Until("the neighbour listens", func() bool { return open4(neighbour) })
			all := []string{gatewayHost, clusterDNS, internet, resolver, metadata, kubeletPort, neighbour}
			ours, others := all, all
			if enforced {
				ours, others = []string{gatewayHost}, all[:6]
			}
			n.dials(r, "agent", all, ours)
			o.Scope = "another run" // which has made no policy
			n.dials(n.runner(o), "stranger", all, others)
		})
	}
}

// dials lets an agent dial addresses and compares with those that it should reach.
func (n *node) dials(r *kube.Runner, id string, addresses, want []string) {
	n.t.Helper()
	runnertest.Start(n.t, r, runnertest.Execution(id, "dial "+strings.Join(addresses, " ")))
	x := runnertest.ExitWithin(n.t, r, id, patience)
	for _, a := range addresses {
		if got, want := strings.Contains(x.Tail, a+" open"), slices.Contains(want, a); got != want {
			n.t.Errorf("%s: %s is open: %t, want %t", id, a, got, want)
		}
	}
	if x.Code != 6 {
		n.t.Errorf("%s: exit %+v", id, x)
	}
	n.t.Logf("%s reaches %s", id, strings.Join(strings.Fields(strings.ReplaceAll(x.Tail, "open", "")), ", "))
}

// addressOf waits for the address of a rollout's pod.
func (n *node) addressOf(id string) (ip string) {
	n.t.Helper()
	n.Until(id+" has an address", func() bool {
		var l corev1.PodList
		_ = n.Call(n.t.Context(), http.MethodGet, n.Core("pods"), nil, &l)
		for _, p := range l.Items {
			if p.Annotations["fulgur/rollout-id"] == id {
				ip = p.Status.PodIP
			}
		}
		return ip != ""
	})
	return ip
}

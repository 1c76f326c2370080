package kubelet

import (
	"encoding/json"
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
			"the internet (" + internet, "a resolver of the internet (" + resolver + ")", "a resolver of the internet (" + resolver + ", UDP)", "the cloud's metadata (" + metadata,
			"the cluster's DNS (" + clusterDNS + ")", "the cluster's DNS (" + clusterDNS + ", UDP)", "its node's kubelet (" + kubeletPort, "the API server (" + apiServer, "another agent (10.244.0."}},
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

// doctor's look at a node of the real kind: what is closed is named, as is what is
// open; images are fetched from their registry, or the one that cannot be is named;
// nothing is left.
func TestExamine(t *testing.T) {
	for name, test := range map[string]struct {
		enforced bool
		image    string
		want     map[string]string // status by line
		says     string            // in one of them
	}{
		"fit":                     {true, agentImage, map[string]string{"node node-1: gateway": kube.CheckOK, "node node-1: stream": kube.CheckOK, "node node-1: closed": kube.CheckOK, "images": kube.CheckOK}, "no way to the internet"},
		"nobody enforces it":      {false, agentImage, map[string]string{"node node-1: gateway": kube.CheckOK, "node node-1: closed": kube.CheckFailed, "images": kube.CheckSkipped}, "ESCAPED: the internet"},
		"an image of no registry": {true, "registry.nowhere.test/agent:7", map[string]string{"node node-1: closed": kube.CheckOK, "images": kube.CheckFailed}, `"registry.nowhere.test/agent:7"`},
	} {
		t.Run(name, func(t *testing.T) {
			n := open(t)
			n.startWorld()
			if test.enforced {
				n.enforce()
			}
			o := n.options()
			o.Isolated, o.ProbeImage, o.Prepull, o.Image, o.BusyLimit = true, probeImage, 20, test.image, 10*time.Second
			o.Inputs = []json.RawMessage{json.RawMessage(`{"do":"exit 0"}`)}
			got, all := map[string]string{}, ""
			for _, c := range kube.Examine(t.Context(), o, "http://"+gatewayHost, 4) {
				t.Logf("%-28s %-8s %s", c.Name, c.Status, c.Detail)
				got[c.Name], all = c.Status, all+c.Detail+"\n"
			}
			for name, status := range test.want {
				if got[name] != status {
					t.Errorf("%s is %q, want %q", name, got[name], status)
				}
			}
			if !strings.Contains(all, test.says) {
				t.Errorf("no %q", test.says)
			}
			n.Until("nothing is left", func() bool {
				left := 0
				for _, path := range []string{n.Batch("jobs"), n.Core("pods"), "/apis/networking.k8s.io/v1/namespaces/" + n.ns + "/networkpolicies"} {
					var l struct{ Items []json.RawMessage }
					n.Do(http.MethodGet, path, nil, &l)
					left += len(l.Items)
				}
				return left == 0
			})
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

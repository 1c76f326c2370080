package kube

import (
	"context"
	"crypto/rand"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/fulgur-rl/fulgur"
)

// ProbeCommand is the command of fulgur that the probe runs: with the gateway's
// URL it prints one ProbeResult.
const ProbeCommand = "probe-network"

// ProbeResult is what a probe finds where agents run.
type ProbeResult struct {
	Reached string   `json:"reached"` // "": the gateway answers; else why it does not
	Streams string   `json:"streams"` // "": what it sends arrives as it is sent; else what happens
	Escaped []string `json:"escaped"` // what else was reached
	Closed  []string `json:"closed"`  // what was tried, and was not
}

const (
	// The first round has firstProbes probes, each further one twice as many, up to
	// mostAtOnce.
	firstProbes = 2
	mostAtOnce  = 16
	mostProbed  = 500 // nodes
	probeEvery  = 500 * time.Millisecond
	// unplaced is how long the scheduler may say no to a probe, while others were
	// placed, before no node is left for it.
	unplaced = 3 * time.Second
	// crowdedLimit is how long probes are waited for where the run's own agents may have
	// all the room.
	crowdedLimit = time.Minute
	// unmade is the same where there is no pod to be placed: a quota leaves none room.
	unmade = 10 * time.Second
)

// Prove implements controller.Prover: it makes the run's NetworkPolicy, sends a
// probe to each node that agents can come to, and has those fetch the agents' images.
func (r *Runner) Prove(ctx context.Context, gateway string) error {
	u, err := r.gatewayURL(gateway)
	if err != nil {
		return err
	}
	if r.Isolated {
		if err := r.isolate(ctx, u); err != nil {
			return err
		}
	}
	if r.ProbeImage == "" {
		if r.Isolated {
			return fulgur.E(fulgur.KindInvalid, opProve, "no image for the probe: set runner.kubernetes.probe_image to one with the program fulgur, or isolation: none", nil)
		}
		r.log.Warn("agents may reach anything that pods reach here, and whether they reach the gateway is not tried: set runner.kubernetes.probe_image", "isolation", "none")
		return nil
	}
	lives, limit := r.lives(), r.ProbeLimit
	if lives {
		limit = min(limit, crowdedLimit)
	}
	mark := r.newMark()
	defer r.unmark(ctx, mark)
	nodes, err := r.scout(ctx, gateway, mark, limit, r.judge)
	if lives && fulgur.KindOf(err) == fulgur.KindTimeout && ctx.Err() == nil {
		err = fulgur.E(fulgur.KindExhausted, opProve, "the run's own agents leave no room", err)
	}
	if fulgur.KindOf(err) == fulgur.KindExhausted {
		r.keepLease() // and so sees to what dead runs left, which may be what has the room
	}
	if err != nil {
		return err
	}
	r.log.Info("the probes found what they should", "nodes", len(nodes), "isolated", r.Isolated)
	_, err = r.prepull(ctx, mark, nodes)
	return err
}

const opProve = "prove the agents' isolation"

// gatewayURL reads the gateway's address, and says where it cannot be the pods'.
func (r *Runner) gatewayURL(gateway string) (*url.URL, error) {
	u, err := url.Parse(gateway)
	if err != nil || u.Hostname() == "" {
		return nil, fulgur.E(fulgur.KindInvalid, opProve, fmt.Sprintf("the gateway's address for agents, %q, is no URL: set runner.agent_url", gateway), nil)
	}
	if ip := net.ParseIP(u.Hostname()); u.Hostname() == "localhost" || ip.IsLoopback() {
		r.loopback.Do(func() {
			r.log.Warn("agents are given a loopback address for the gateway, which is their own pod's: set runner.agent_url to an address that pods reach", "address", gateway)
		})
	}
	return u, nil
}

// lives says whether the run has agents, which an earlier proof let in. They may have all
// the room.
func (r *Runner) lives() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.live) > 0
}

// newMark names the probes of one start: several controllers of a run may start at once.
func (r *Runner) newMark() string { return r.scope + "-" + strings.ToLower(rand.Text()[:8]) }

// unmark removes the probes of a mark, also where ctx has ended.
func (r *Runner) unmark(ctx context.Context, mark string) {
	clear, done := context.WithTimeout(context.WithoutCancel(ctx), requestLimit)
	defer done()
	if err := r.clearProbes(clear, mark); err != nil {
		r.log.Warn("probes could not be removed; they go by themselves", "err", err)
	}
}

// scout sends a probe to each node that agents can come to, and returns the nodes.
// tell gets what each found, or why it did not run; its error ends the scouting.
func (r *Runner) scout(ctx context.Context, gateway, mark string, limit time.Duration, tell tellFunc) (nodes []string, err error) {
	ctx, done := context.WithTimeout(ctx, limit)
	defer done()
	x := scouting{gateway: gateway, tell: tell}
	if r.Isolated {
		if x.neighbour, err = r.neighbour(ctx, mark); err != nil {
			return nil, err
		}
	}
	for round, cleared := 0, 0; len(nodes) < mostProbed; round++ {
		seen, more, err := r.probeRound(ctx, x, roundLabel(mark, round), min(firstProbes<<round, mostAtOnce), nodes)
		nodes = append(nodes, seen...)
		if fulgur.KindOf(err) == fulgur.KindExhausted && cleared < round { // those that have ended have a part of the quota
			for ; cleared < round; cleared++ {
				if err := r.clearProbes(ctx, roundLabel(mark, cleared)); err != nil {
					return nodes, err
				}
			}
			round--
			continue
		}
		if err != nil || !more {
			return nodes, err
		}
	}
	return nodes, nil
}

// tellFunc gets what the probe of a node found; nil, and why, if it did not run.
type tellFunc func(node string, found *ProbeResult, why string) error

// scouting is what probes are sent with.
type scouting struct {
	gateway   string
	neighbour string // address of another pod of the run; "": there is none
	tell      tellFunc
}

// judge says whether agents may be started on a node whose probe found this.
func (o *maker) judge(node string, found *ProbeResult, why string) error {
	on := "on node " + node + " "
	switch {
	case found == nil:
		return fulgur.E(fulgur.KindUnavailable, opProve, on+"the probe did not run: "+why, nil)
	case found.Reached != "":
		return fulgur.E(fulgur.KindUnavailable, opProve, on+"agents do not reach the gateway: "+found.Reached+"; "+doReach, nil)
	case found.Streams != "":
		return fulgur.E(fulgur.KindUnavailable, opProve, on+"the gateway's answers do not stream: "+found.Streams+"; "+doStream, nil)
	case o.Isolated && len(found.Escaped) > 0:
		return fulgur.E(fulgur.KindForbidden, opProve, on+"agents reach more than the gateway: "+strings.Join(found.Escaped, ", ")+"; "+doClose, nil)
	}
	return nil
}

// What to do where a probe does not find what it should.
const (
	doReach  = "set runner.agent_url to an address that pods reach, and runner.kubernetes.gateway_pods if it runs in this cluster"
	doStream = "something between holds them back or takes no such path, such as a proxy that buffers: have it pass on what it gets at once, or lead runner.agent_url past it"
	doClose  = "the cluster's network plug-in does not enforce NetworkPolicies, or another policy opens this: mend that, or write runner.kubernetes.isolation: none if you trust the agents"
)

// isolate makes the run's NetworkPolicy, and gives its pods the gateway's name
// without DNS, which it closes.
func (r *Runner) isolate(ctx context.Context, u *url.URL) error {
	const op = "isolate the agents"
	ips, err := net.DefaultResolver.LookupNetIP(ctx, "ip", u.Hostname())
	if err != nil && len(r.GatewayPods) == 0 {
		return fulgur.E(fulgur.KindUnavailable, op, fmt.Sprintf("the gateway's host %s has no address from here: set runner.agent_url to a name or address that this controller can look up", u.Hostname()), err)
	}
	if net.ParseIP(u.Hostname()) == nil && len(ips) > 0 {
		r.alias = &corev1.HostAlias{IP: ips[0].Unmap().String(), Hostnames: []string{u.Hostname()}}
	}
	p := r.policy(u, ips)
	r.mu.Lock()
	r.wall, r.wallOf = p, ""
	r.mu.Unlock()
	for err = r.hold(ctx); err != nil && broken(err) && pause(ctx, 100*time.Millisecond); {
		err = r.hold(ctx)
	}
	if err != nil {
		return fulgur.E(kindOf(err), op, "the NetworkPolicy, or the run's lease, which keeps it, could not be made (the controller needs the rights of docs/kubernetes.md)", err)
	}
	r.keepLease()
	return nil
}

// enclose makes the NetworkPolicy, or makes the one that is there the same. It
// belongs to the run's lease: the cluster removes what belongs to none, and not what
// has changed its owner meanwhile, so that no other run's sweep can take it from a
// run that comes back.
func (r *Runner) enclose(ctx context.Context, p *networkingv1.NetworkPolicy, l *lease) error {
	p = p.DeepCopy()
	p.OwnerReferences = []metav1.OwnerReference{{APIVersion: "coordination.k8s.io/v1", Kind: "Lease", Name: l.Metadata.Name, UID: l.Metadata.UID}}
	patch := map[string]any{"metadata": map[string]any{"ownerReferences": p.OwnerReferences}, "spec": p.Spec}
	for {
		err := r.c.persist(ctx, http.MethodPost, r.c.path("networking.k8s.io/v1/networkpolicies"), nil, p, nil)
		if statusOf(err) != http.StatusConflict {
			return err
		}
		err = r.c.persist(ctx, http.MethodPatch, r.c.path("networking.k8s.io/v1/networkpolicies/"+p.Name), nil, patch, nil)
		if statusOf(err) != http.StatusNotFound { // else it has gone meanwhile
			return err
		}
	}
}

// policy lets the run's pods reach the gateway, and nothing in or out else.
func (r *Runner) policy(u *url.URL, ips []netip.Addr) *networkingv1.NetworkPolicy {
	port, _ := strconv.Atoi(u.Port())
	if port == 0 {
		port = map[string]int{"http": 80, "https": 443}[u.Scheme]
	}
	tcp, number := corev1.ProtocolTCP, intstr.FromInt32(int32(port))
	var to []networkingv1.NetworkPolicyPeer
	if len(r.GatewayPods) > 0 {
		ns := r.GatewayNamespace
		if ns == "" {
			ns = r.Namespace
		}
		to = append(to, networkingv1.NetworkPolicyPeer{PodSelector: &metav1.LabelSelector{MatchLabels: r.GatewayPods},
			NamespaceSelector: &metav1.LabelSelector{MatchLabels: map[string]string{corev1.LabelMetadataName: ns}}})
	}
	for _, ip := range ips {
		ip = ip.Unmap()
		to = append(to, networkingv1.NetworkPolicyPeer{IPBlock: &networkingv1.IPBlock{CIDR: netip.PrefixFrom(ip, ip.BitLen()).String()}})
	}
	return &networkingv1.NetworkPolicy{
		TypeMeta:   metav1.TypeMeta{APIVersion: "networking.k8s.io/v1", Kind: "NetworkPolicy"},
		ObjectMeta: metav1.ObjectMeta{Name: r.leaseName(), Namespace: r.Namespace, Labels: map[string]string{labelManaged: managedBy, labelScope: r.scope, labelRun: labelValue(r.Run)}},
		Spec: networkingv1.NetworkPolicySpec{
			PodSelector: metav1.LabelSelector{MatchLabels: map[string]string{labelScope: r.scope}},
			PolicyTypes: []networkingv1.PolicyType{networkingv1.PolicyTypeIngress, networkingv1.PolicyTypeEgress},
			Egress:      []networkingv1.NetworkPolicyEgressRule{{To: to, Ports: []networkingv1.NetworkPolicyPort{{Protocol: &tcp, Port: &number}}}},
		},
	}
}

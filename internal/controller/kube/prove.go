package kube

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	batchv1 "k8s.io/api/batch/v1"
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
)

// Prove implements controller.Prover: it makes the run's NetworkPolicy, and sends
// a probe to each node that agents can come to.
func (r *Runner) Prove(ctx context.Context, gateway string) error {
	const op = "prove the agents' isolation"
	u, err := url.Parse(gateway)
	if err != nil || u.Hostname() == "" {
		return fulgur.E(fulgur.KindInvalid, op, fmt.Sprintf("the gateway's address for agents, %q, is no URL: set runner.agent_url", gateway), nil)
	}
	if ip := net.ParseIP(u.Hostname()); u.Hostname() == "localhost" || ip.IsLoopback() {
		r.log.Warn("agents are given a loopback address for the gateway, which is their own pod's: set runner.agent_url to an address that pods reach", "address", gateway)
	}
	if r.Isolated {
		if err := r.isolate(ctx, u); err != nil {
			return err
		}
	}
	if r.ProbeImage == "" {
		if r.Isolated {
			return fulgur.E(fulgur.KindInvalid, op, "no image for the probe: set runner.kubernetes.probe_image to one with the program fulgur, or isolation: none", nil)
		}
		r.log.Warn("agents may reach anything that pods reach here, and whether they reach the gateway is not tried: set runner.kubernetes.probe_image", "isolation", "none")
		return nil
	}
	// Each start has probes of its own: several controllers of a run may start at once.
	mark := r.scope + "-" + strings.ToLower(rand.Text()[:8])
	defer func() {
		clear, done := context.WithTimeout(context.WithoutCancel(ctx), requestLimit)
		defer done()
		if err := r.clearProbes(clear, mark); err != nil {
			r.log.Warn("probes could not be removed; they go by themselves", "err", err)
		}
	}()
	ctx, done := context.WithTimeout(ctx, r.ProbeLimit)
	defer done()
	var nodes []string
	for round := 0; len(nodes) < mostProbed; round++ {
		seen, more, err := r.probeRound(ctx, gateway, roundLabel(mark, round), min(firstProbes<<round, mostAtOnce), nodes)
		if err != nil {
			return err
		}
		nodes = append(nodes, seen...)
		if !more {
			break
		}
	}
	r.log.Info("the probes found what they should", "nodes", len(nodes), "isolated", r.Isolated)
	return nil
}

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

// probeRound sends probes to nodes that had none. more is false when there was no
// further node for one of them.
func (r *Runner) probeRound(ctx context.Context, gateway, round string, n int, had []string) (nodes []string, more bool, err error) {
	const op = "prove the agents' isolation"
	for i := range n {
		if err := r.c.persist(ctx, http.MethodPost, r.c.path("batch/v1/jobs"), nil, r.probeJob(round, i, gateway, had), nil); err != nil {
			return nil, false, fulgur.E(kindOf(err), op, "the cluster takes no probe", err)
		}
	}
	s := &stream[corev1.Pod]{c: r.c, path: r.c.path("v1/pods"), selector: labelProbe + "=" + round, log: r.log}
	var since, bad time.Time
	why := "its pod was not made"
	for {
		pods, _, err := s.all(ctx)
		if err != nil {
			return nil, false, fulgur.E(fulgur.KindUnavailable, op, "the probes could not be watched", err)
		}
		over, placed, image := 0, 0, false
		for i := range pods {
			state := look(view{pod: &pods[i], agent: "probe", now: time.Now()})
			if pods[i].Spec.NodeName != "" {
				placed++
			}
			switch {
			case state.phase == fulgur.PhaseEnded:
				over++
			case state.why != "":
				image, why = image || state.image, state.why
			}
		}
		if over == n {
			nodes, err := r.verdict(ctx, pods)
			return nodes, true, err
		}
		switch {
		case image && bad.IsZero():
			bad = time.Now()
		case image && time.Since(bad) >= r.ImageLimit:
			return nil, false, fulgur.E(fulgur.KindInvalid, op, why, nil)
		case len(pods) < n || over < placed || placed == 0 && len(had) == 0:
			since = time.Time{}
		case since.IsZero():
			since = time.Now()
		case time.Since(since) >= unplaced: // every node has had its probe
			nodes, err := r.verdict(ctx, pods)
			return nodes, false, err
		}
		if !pause(ctx, probeEvery) {
			return nil, false, fulgur.E(fulgur.KindTimeout, op, fmt.Sprintf("the probes had not ended after %s: %s", r.ProbeLimit, why), nil)
		}
	}
}

func roundLabel(mark string, round int) string { return mark + "-" + strconv.Itoa(round) }

// verdict reads what the probes of a round found.
func (r *Runner) verdict(ctx context.Context, pods []corev1.Pod) (nodes []string, err error) {
	const op = "prove the agents' isolation"
	for i := range pods {
		p := &pods[i]
		if p.Spec.NodeName == "" {
			continue
		}
		if !slices.Contains(nodes, p.Spec.NodeName) {
			nodes = append(nodes, p.Spec.NodeName)
		}
		found, why := r.probeResult(ctx, p)
		on := "on node " + p.Spec.NodeName + " "
		switch {
		case found == nil:
			return nil, fulgur.E(fulgur.KindUnavailable, op, on+"the probe did not run: "+why, nil)
		case found.Reached != "":
			return nil, fulgur.E(fulgur.KindUnavailable, op, on+"agents do not reach the gateway: "+found.Reached+"; set runner.agent_url to an address that pods reach, and runner.kubernetes.gateway_pods if it runs in this cluster", nil)
		case found.Streams != "":
			return nil, fulgur.E(fulgur.KindUnavailable, op, on+"the gateway's answers do not stream: "+found.Streams+"; something between holds them back, such as a proxy that buffers", nil)
		case r.Isolated && len(found.Escaped) > 0:
			return nil, fulgur.E(fulgur.KindForbidden, op, on+"agents reach more than the gateway: "+strings.Join(found.Escaped, ", ")+"; the cluster's network plug-in does not enforce NetworkPolicies, or another policy opens this: mend that, or write runner.kubernetes.isolation: none if you trust the agents", nil)
		}
	}
	return nodes, nil
}

// probeResult is what one probe printed; nil, and why, if it did not.
func (r *Runner) probeResult(ctx context.Context, p *corev1.Pod) (*ProbeResult, string) {
	var raw []byte
	q := url.Values{"container": {"probe"}, "limitBytes": {strconv.Itoa(logBytes)}}
	err := r.c.call(ctx, http.MethodGet, r.c.path("v1/pods/"+p.Name+"/log"), q, nil, &raw)
	found := &ProbeResult{}
	if err == nil && json.Unmarshal(raw, found) == nil {
		return found, ""
	}
	s := look(view{pod: p, agent: "probe", now: time.Now()})
	why := s.why
	if s.exit != nil {
		why = fmt.Sprintf("exit code %d %s", s.exit.Code, s.exit.Message)
	}
	if err != nil {
		why += ": " + err.Error()
	}
	return nil, strings.TrimSpace(why + " " + strings.TrimSpace(string(raw[:min(len(raw), 300)])))
}

// probeJob is a pod as agents have it, on a node that no other probe is or was on.
func (r *Runner) probeJob(round string, i int, gateway string, had []string) *batchv1.Job {
	labels := map[string]string{labelManaged: managedBy, labelScope: r.scope, labelRun: labelValue(r.Run), labelProbe: round}
	none, one, ttl, deadline := int32(0), int64(1), int32(600), int64(r.ProbeLimit/time.Second)
	pod := corev1.PodSpec{
		RestartPolicy: corev1.RestartPolicyNever, TerminationGracePeriodSeconds: &one,
		Containers: []corev1.Container{{Name: "probe", Image: r.ProbeImage, Command: r.ProbeCommand, Args: []string{ProbeCommand, gateway},
			Env: []corev1.EnvVar{{Name: "NODE_IP", ValueFrom: &corev1.EnvVarSource{FieldRef: &corev1.ObjectFieldSelector{FieldPath: "status.hostIP"}}}}}},
		Affinity: &corev1.Affinity{PodAntiAffinity: &corev1.PodAntiAffinity{RequiredDuringSchedulingIgnoredDuringExecution: []corev1.PodAffinityTerm{{
			LabelSelector: &metav1.LabelSelector{MatchLabels: map[string]string{labelProbe: round}}, TopologyKey: corev1.LabelHostname}}}},
	}
	if r.Template == nil && r.Image != "" { // its image is on every node before the first rollout
		pod.Containers = append(pod.Containers, corev1.Container{Name: "image", Image: r.Image, ImagePullPolicy: r.PullPolicy, Command: []string{"true"}})
	}
	if len(had) > 0 {
		var not []corev1.NodeSelectorRequirement
		for _, node := range had {
			not = append(not, corev1.NodeSelectorRequirement{Key: metav1.ObjectNameField, Operator: corev1.NodeSelectorOpNotIn, Values: []string{node}})
		}
		pod.Affinity.NodeAffinity = &corev1.NodeAffinity{RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{MatchFields: not}}}}
	}
	if t := r.sample(); t != nil { // where the template's agents may go
		pod.NodeSelector, pod.Tolerations, pod.ServiceAccountName, pod.ImagePullSecrets = t.NodeSelector, t.Tolerations, t.ServiceAccountName, t.ImagePullSecrets
	}
	if r.alias != nil {
		pod.HostAliases = []corev1.HostAlias{*r.alias}
	}
	secure(&pod)
	return &batchv1.Job{
		TypeMeta:   metav1.TypeMeta{APIVersion: "batch/v1", Kind: "Job"},
		ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("fulgur-probe-%s-%d", round[12:], i), Namespace: r.Namespace, Labels: labels},
		Spec: batchv1.JobSpec{BackoffLimit: &none, TTLSecondsAfterFinished: &ttl, ActiveDeadlineSeconds: &deadline,
			Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: pod}},
	}
}

// sample is the pod of the template without an input, if it can do without.
func (r *Runner) sample() *corev1.PodSpec {
	if r.Template == nil {
		return nil
	}
	job, err := r.Template.Job("probe", json.RawMessage("{}"))
	if err != nil {
		return nil
	}
	return &job.Spec.Template.Spec
}

// clearProbes removes the probes of a mark, their pods with them.
func (r *Runner) clearProbes(ctx context.Context, mark string) error {
	s := &stream[batchv1.Job]{c: r.c, path: r.c.path("batch/v1/jobs"), selector: labelProbe + "," + labelScope + "=" + r.scope, log: r.log}
	for wait := 100 * time.Millisecond; ; wait = min(2*wait, 2*time.Second) {
		jobs, _, err := s.all(ctx)
		jobs = slices.DeleteFunc(jobs, func(j batchv1.Job) bool { return !strings.HasPrefix(j.Labels[labelProbe], mark+"-") })
		if err != nil || len(jobs) == 0 {
			return err
		}
		for i := range jobs {
			if jobs[i].DeletionTimestamp != nil {
				continue
			}
			err := r.c.persist(ctx, http.MethodDelete, r.c.path("batch/v1/jobs/"+jobs[i].Name), nil, deleteOptions(metav1.DeletePropagationForeground, ""), nil)
			if err != nil && statusOf(err) != http.StatusNotFound {
				return err
			}
		}
		if !pause(ctx, wait) {
			return context.Cause(ctx)
		}
	}
}

package kubelet

import (
	"bufio"
	"cmp"
	"context"
	"fmt"
	"net/http"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// podRange is what run.sh gives pods their addresses from.
const podRange = "10.244.0.0/24"

// state is what an enforcer knows of the cluster.
type state struct {
	pods       []corev1.Pod
	policies   []networkingv1.NetworkPolicy
	namespaces []corev1.Namespace
}

// ruleset is the nftables program that makes the policies true: each pod that one
// selects is cut off but for what a policy of its allows, either way. A pod that
// was not seen yet reaches nothing. Named ports and what is not IPv4 are errors.
func ruleset(s state) (string, error) {
	var known, egress, ingress, out, in []string
	for i := range s.pods {
		if p := &s.pods[i]; live(p) {
			known = append(known, p.Status.PodIP)
		}
	}
	for _, policy := range s.policies {
		own, err := s.selected(&policy.Spec.PodSelector, nil, policy.Namespace)
		if err != nil {
			return "", err
		}
		if len(own) == 0 {
			continue
		}
		self := "{ " + strings.Join(own, ", ") + " }"
		if slices.Contains(policy.Spec.PolicyTypes, networkingv1.PolicyTypeEgress) {
			egress = append(egress, own...)
			for _, rule := range policy.Spec.Egress {
				if out, err = s.allow(out, "ip saddr "+self, "ip daddr", rule.To, rule.Ports, policy.Namespace); err != nil {
					return "", err
				}
			}
		}
		if slices.Contains(policy.Spec.PolicyTypes, networkingv1.PolicyTypeIngress) {
			ingress = append(ingress, own...)
			for _, rule := range policy.Spec.Ingress {
				if in, err = s.allow(in, "ip daddr "+self, "ip saddr", rule.From, rule.Ports, policy.Namespace); err != nil {
					return "", err
				}
			}
		}
	}
	var b strings.Builder
	b.WriteString("table inet pods\ndelete table inet pods\ntable inet pods {\n")
	for _, set := range []struct {
		name string
		ips  []string
	}{{"known", known}, {"egress", egress}, {"ingress", ingress}} {
		slices.Sort(set.ips)
		elements := ""
		if ips := slices.Compact(set.ips); len(ips) > 0 {
			elements = " elements = { " + strings.Join(ips, ", ") + " };"
		}
		fmt.Fprintf(&b, "\tset %s { type ipv4_addr;%s }\n", set.name, elements)
	}
	fmt.Fprintf(&b, "\tchain out {\n%s\t\tip saddr @egress drop\n\t}\n", lines(out))
	fmt.Fprintf(&b, "\tchain in {\n%s\t\tip daddr @ingress drop\n\t}\n", lines(in))
	fmt.Fprintf(&b, "\tchain both {\n\t\tct state established,related accept\n\t\tip saddr %s ip saddr != @known drop\n\t\tjump out\n\t\tjump in\n\t}\n", podRange)
	// To others, and to the node itself.
	for _, hook := range []string{"forward", "input"} {
		fmt.Fprintf(&b, "\tchain %s { type filter hook %s priority 0; jump both; }\n", hook, hook)
	}
	b.WriteString("}\n")
	return b.String(), nil
}

func lines(rules []string) string {
	var b strings.Builder
	for _, r := range rules {
		b.WriteString("\t\t" + r + " return\n")
	}
	return b.String()
}

// allow adds the rules of one rule of a policy.
func (s state) allow(rules []string, self, other string, peers []networkingv1.NetworkPolicyPeer, ports []networkingv1.NetworkPolicyPort, ns string) ([]string, error) {
	hosts := []string{""} // any
	if len(peers) > 0 {
		hosts = nil
	}
	for _, p := range peers {
		if b := p.IPBlock; b != nil {
			h := other + " " + b.CIDR + " "
			if len(b.Except) > 0 {
				h += other + " != { " + strings.Join(b.Except, ", ") + " } "
			}
			hosts = append(hosts, h)
			continue
		}
		ips, err := s.selected(p.PodSelector, p.NamespaceSelector, ns)
		if err != nil {
			return nil, err
		}
		if len(ips) > 0 {
			hosts = append(hosts, other+" { "+strings.Join(ips, ", ")+" } ")
		}
	}
	doors := []string{""}
	if len(ports) > 0 {
		doors = nil
	}
	for _, p := range ports {
		proto := corev1.ProtocolTCP
		if p.Protocol != nil {
			proto = *p.Protocol
		}
		door := "meta l4proto " + strings.ToLower(string(proto)) + " "
		if p.Port != nil {
			if p.Port.Type == intstr.String {
				return nil, fmt.Errorf("the port %q: named ports are not known here", p.Port.StrVal)
			}
			door = fmt.Sprintf("%s dport %d", strings.ToLower(string(proto)), p.Port.IntVal)
			if p.EndPort != nil {
				door += fmt.Sprintf("-%d", *p.EndPort)
			}
		}
		doors = append(doors, door)
	}
	for _, h := range hosts {
		for _, d := range doors {
			rules = append(rules, strings.TrimSpace(self+" "+h+d))
		}
	}
	return rules, nil
}

// selected are the addresses of the live pods that the selectors choose: of the
// namespaces that one chooses, else of the policy's own.
func (s state) selected(pods, namespaces *metav1.LabelSelector, own string) ([]string, error) {
	podSel, nsSel := labels.Everything(), labels.Nothing()
	var err error
	if pods != nil {
		if podSel, err = metav1.LabelSelectorAsSelector(pods); err != nil {
			return nil, err
		}
	}
	if namespaces != nil {
		if nsSel, err = metav1.LabelSelectorAsSelector(namespaces); err != nil {
			return nil, err
		}
	}
	in := map[string]bool{own: namespaces == nil}
	for _, n := range s.namespaces {
		if namespaces != nil && nsSel.Matches(labels.Set(n.Labels)) {
			in[n.Name] = true
		}
	}
	var ips []string
	for i := range s.pods {
		if p := &s.pods[i]; live(p) && in[p.Namespace] && podSel.Matches(labels.Set(p.Labels)) {
			ips = append(ips, p.Status.PodIP)
		}
	}
	slices.Sort(ips)
	return ips, nil
}

// live says whether a pod has an address of its own; that of one that ended may be another's.
func live(p *corev1.Pod) bool {
	return p.Status.PodIP != "" && !p.Spec.HostNetwork && p.Status.Phase != corev1.PodSucceeded && p.Status.Phase != corev1.PodFailed
}

// enforce makes NetworkPolicies true until the test's end, from now on.
func (n *node) enforce() {
	n.t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	changed := make(chan struct{}, 1)
	nudge := func() {
		select {
		case changed <- struct{}{}:
		default:
		}
	}
	var wg sync.WaitGroup
	for _, path := range []string{podsPath, policiesPath, namespacesPath} {
		wg.Go(func() { n.watch(ctx, path, nudge) })
	}
	if err := n.program(ctx); err != nil {
		n.t.Error(err)
	}
	wg.Go(func() {
		for {
			select {
			case <-ctx.Done():
				return
			case <-changed:
			}
			if err := n.program(ctx); err != nil && ctx.Err() == nil {
				n.t.Error("enforcer:", err)
			}
		}
	})
	n.t.Cleanup(func() {
		cancel()
		wg.Wait()
		if out, err := exec.Command("nft", "delete", "table", "inet", "pods").CombinedOutput(); err != nil {
			n.t.Errorf("%v: %s", err, out)
		}
	})
}

const (
	podsPath       = "/api/v1/pods"
	policiesPath   = "/apis/networking.k8s.io/v1/networkpolicies"
	namespacesPath = "/api/v1/namespaces"
)

// watch says when something of a kind changes. A watch that ended is begun again:
// it tells at first what is there.
func (n *node) watch(ctx context.Context, path string, changed func()) {
	for ctx.Err() == nil {
		if watch, err := n.Watch(ctx, path); err == nil {
			for r := bufio.NewReader(watch); ; changed() {
				if _, err := r.ReadSlice('\n'); err != nil && err != bufio.ErrBufferFull {
					break
				}
			}
			_ = watch.Close()
		}
		select {
		case <-ctx.Done():
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// program gives the kernel the rules for what is there now.
func (n *node) program(ctx context.Context) error {
	var pods corev1.PodList
	var policies networkingv1.NetworkPolicyList
	var namespaces corev1.NamespaceList
	if err := cmp.Or(n.Call(ctx, http.MethodGet, podsPath, nil, &pods), n.Call(ctx, http.MethodGet, policiesPath, nil, &policies),
		n.Call(ctx, http.MethodGet, namespacesPath, nil, &namespaces)); err != nil {
		return err
	}
	rules, err := ruleset(state{pods.Items, policies.Items, namespaces.Items})
	if err != nil {
		return err
	}
	cmd := exec.CommandContext(ctx, "nft", "-f", "-")
	cmd.Stdin = strings.NewReader(rules)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("nft: %w: %s\n%s", err, out, rules)
	}
	return nil
}

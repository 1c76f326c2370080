package kubelet

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// The enforcer's rules, without a node.
func TestRuleset(t *testing.T) {
	pod := func(ns, app, ip string, phase corev1.PodPhase) corev1.Pod {
		return corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Labels: map[string]string{"app": app}}, Status: corev1.PodStatus{PodIP: ip, Phase: phase}}
	}
	app := func(name string) *metav1.LabelSelector {
		return &metav1.LabelSelector{MatchLabels: map[string]string{"app": name}}
	}
	tcp, port, named := corev1.ProtocolTCP, intstr.FromInt32(8080), intstr.FromString("http")
	policy := networkingv1.NetworkPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: "jobs"}, Spec: networkingv1.NetworkPolicySpec{
		PodSelector: *app("agent"), PolicyTypes: []networkingv1.PolicyType{networkingv1.PolicyTypeIngress, networkingv1.PolicyTypeEgress},
		Egress: []networkingv1.NetworkPolicyEgressRule{{
			To: []networkingv1.NetworkPolicyPeer{
				{PodSelector: app("gateway"), NamespaceSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"name": "fulgur"}}},
				{PodSelector: app("gateway")}, // none in the policy's own namespace
				{IPBlock: &networkingv1.IPBlock{CIDR: "10.8.0.0/24", Except: []string{"10.8.0.1/32"}}},
			},
			Ports: []networkingv1.NetworkPolicyPort{{Protocol: &tcp, Port: &port}},
		}},
	}}
	s := state{
		pods: []corev1.Pod{pod("jobs", "agent", "10.244.0.2", corev1.PodRunning), pod("jobs", "agent", "10.244.0.3", corev1.PodFailed),
			pod("other", "agent", "10.244.0.4", corev1.PodRunning), pod("fulgur", "gateway", "10.244.0.5", corev1.PodRunning)},
		policies:   []networkingv1.NetworkPolicy{policy},
		namespaces: []corev1.Namespace{{ObjectMeta: metav1.ObjectMeta{Name: "fulgur", Labels: map[string]string{"name": "fulgur"}}}, {ObjectMeta: metav1.ObjectMeta{Name: "jobs"}}},
	}
	got, err := ruleset(s)
	if err != nil {
		t.Fatal(err)
	}
	want := `table inet pods
delete table inet pods
table inet pods {
	set known { type ipv4_addr; elements = { 10.244.0.2, 10.244.0.4, 10.244.0.5 }; }
	set egress { type ipv4_addr; elements = { 10.244.0.2 }; }
	set ingress { type ipv4_addr; elements = { 10.244.0.2 }; }
	chain out {
		ip saddr { 10.244.0.2 } ip daddr { 10.244.0.5 } tcp dport 8080 return
		ip saddr { 10.244.0.2 } ip daddr 10.8.0.0/24 ip daddr != { 10.8.0.1/32 } tcp dport 8080 return
		ip saddr @egress drop
	}
	chain in {
		ip daddr @ingress drop
	}
	chain both {
		ct state established,related accept
		ip saddr 10.244.0.0/24 ip saddr != @known drop
		jump out
		jump in
	}
	chain forward { type filter hook forward priority 0; jump both; }
	chain input { type filter hook input priority 0; jump both; }
}
`
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
	s.policies[0].Spec.Egress[0].Ports[0].Port = &named
	if _, err := ruleset(s); err == nil || !strings.Contains(err.Error(), `"http"`) {
		t.Errorf("a named port: %v", err)
	}
}

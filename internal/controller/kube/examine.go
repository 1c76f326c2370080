package kube

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"regexp"
	"strconv"
	"strings"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
)

// Check is one thing that Examine looked at.
type Check struct{ Name, Status, Detail, Do string }

// What a Check's Status may be.
const (
	CheckOK      = "ok"
	CheckWarning = "warning"
	CheckFailed  = "failed"
	CheckSkipped = "skipped"
)

const (
	oldest      = 29 // of Kubernetes 1.x: the first with sidecars, and the oldest whose API we know to do
	rightsLimit = 20 * time.Second
	removeLimit = 45 * time.Second
)

// Examine looks at a cluster as a run would find it whose agents are given the address
// gateway and have so many slots: the API server, the namespace, the rights, whether
// a Job is taken, quotas, and from each node what agents reach, and their images. What
// it makes there it removes, also where ctx ends.
func Examine(ctx context.Context, o Options, gateway string, slots int) (checks []Check) {
	r, err := New(o)
	if err != nil {
		return []Check{failedCheck("cluster", err, "name the cluster's kubeconfig: runner.kubernetes.kubeconfig or KUBECONFIG")}
	}
	x := &examiner{r: r, slots: slots}
	defer func() {
		x.clear(ctx)
		checks = x.checks
	}()
	for _, step := range []func(context.Context) bool{x.version, x.namespace, x.rights, x.admission, x.quotas} {
		if !step(ctx) || ctx.Err() != nil {
			return x.checks
		}
	}
	x.nodes(ctx, gateway)
	return x.checks
}

func failedCheck(name string, err error, do string) Check {
	return Check{name, CheckFailed, err.Error(), do}
}

// examiner collects what Examine finds. Each step says whether to go on.
type examiner struct {
	r        *Runner
	slots    int
	checks   []Check
	user     string
	admitted bool // the API server takes a pod as agents have it
	missing  bool // a right that is needed is not there
	marked   bool // there may be something to remove
}

func (x *examiner) add(name, status, detail, do string) {
	x.checks = append(x.checks, Check{name, status, detail, do})
}

// version asks the API server who it is.
func (x *examiner) version(ctx context.Context) bool {
	var v struct{ Major, Minor, GitVersion string }
	ctx, done := context.WithTimeout(ctx, rightsLimit)
	defer done()
	if err := x.r.c.call(ctx, http.MethodGet, "/version", nil, nil, &v); err != nil {
		x.add("API server", CheckFailed, x.r.c.base+" does not answer as one: "+err.Error(), "does `kubectl version` work? Correct runner.kubernetes.kubeconfig or context, or renew its credentials")
		return false
	}
	minor, _ := strconv.Atoi(leadingDigits.FindString(v.Minor))
	detail := "Kubernetes " + v.GitVersion + " at " + x.r.c.base
	switch {
	case v.Major == "1" && minor >= oldest || v.Major > "1":
		x.add("API server", CheckOK, detail, "")
	case x.r.RelayImage != "":
		x.add("API server", CheckFailed, detail, fmt.Sprintf("runner.kubernetes.relay needs sidecars, which are there since 1.%d: leave it out, or renew the cluster", oldest))
	default:
		x.add("API server", CheckWarning, detail, fmt.Sprintf("older than 1.%d: Fulgur has not been tried with it", oldest))
	}
	return true
}

var leadingDigits = regexp.MustCompile(`^\d+`)

// namespace looks for the Jobs' namespace.
func (x *examiner) namespace(ctx context.Context) bool {
	var ns corev1.Namespace
	err := x.r.c.call(ctx, http.MethodGet, "/api/v1/namespaces/"+url.PathEscape(x.r.Namespace), nil, nil, &ns)
	name := "namespace " + x.r.Namespace
	switch {
	case statusOf(err) == http.StatusNotFound:
		x.add(name, CheckFailed, "it is not there", "kubectl create namespace "+x.r.Namespace+", or correct runner.namespace")
		return false
	case statusOf(err) == http.StatusForbidden:
		x.add(name, CheckSkipped, "this user may not look at namespaces; whether it is there shows below", "")
	case err != nil:
		x.checks = append(x.checks, failedCheck(name, err, ""))
		return false
	case ns.DeletionTimestamp != nil:
		x.add(name, CheckFailed, "it is being deleted", "wait until it is gone, and make it anew")
		return false
	default:
		detail := "it is there"
		if level := ns.Labels["pod-security.kubernetes.io/enforce"]; level != "" {
			detail += "; its pods have to be " + level + " (Pod Security)"
		}
		x.add(name, CheckOK, detail, "")
	}
	return true
}

// rights asks for each right that the runner needs.
func (x *examiner) rights(ctx context.Context) bool {
	ctx, done := context.WithTimeout(ctx, rightsLimit)
	defer done()
	var who struct {
		Status struct{ UserInfo struct{ Username string } }
	}
	if x.r.c.call(ctx, http.MethodPost, "/apis/authentication.k8s.io/v1/selfsubjectreviews", nil, map[string]any{"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"}, &who) == nil {
		x.user = who.Status.UserInfo.Username
	}
	have := 0
	for _, right := range Rights(x.r.Isolated) {
		var lacks []string
		for _, verb := range right.Verbs {
			ok, why, err := x.may(ctx, right, verb)
			switch {
			case err != nil:
				x.checks = append(x.checks, failedCheck("rights", fmt.Errorf("whether %s may be done cannot be asked: %w", verb+" "+right.String(), err), ""))
				return false
			case ok:
				have++
			default:
				lacks = append(lacks, strings.TrimSpace(verb+" "+why))
			}
		}
		if len(lacks) == 0 {
			continue
		}
		status := CheckFailed
		if right.Optional {
			status = CheckWarning
		} else {
			x.missing = true
		}
		x.add("right "+right.String(), status, fmt.Sprintf("%smay not %s (%s)", x.who(), strings.Join(lacks, ", "), right.For), "a Role in "+x.r.Namespace+" needs the rule "+right.rule()+" (docs/deploy.md, deploy/base/rbac.yaml)")
	}
	if !x.missing {
		detail := fmt.Sprintf("%shas the %d rights that a controller needs", x.who(), have)
		if !strings.HasPrefix(x.user, "system:serviceaccount:") {
			detail += "; one that runs in the cluster has those of its own service account"
		}
		x.add("rights", CheckOK, detail, "")
	}
	return true
}

func (x *examiner) who() string {
	if x.user == "" {
		return "this user "
	}
	return x.user + " "
}

// may asks the API server for one right.
func (x *examiner) may(ctx context.Context, right Right, verb string) (ok bool, why string, err error) {
	resource, sub, _ := strings.Cut(right.Resource, "/")
	review := map[string]any{"apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectAccessReview", "spec": map[string]any{"resourceAttributes": map[string]string{
		"namespace": x.r.Namespace, "verb": verb, "group": right.Group, "resource": resource, "subresource": sub}}}
	var out struct {
		Status struct {
			Allowed         bool
			EvaluationError string
		}
	}
	if err := x.r.c.call(ctx, http.MethodPost, "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", nil, review, &out); err != nil {
		return false, "", err
	}
	if e := out.Status.EvaluationError; e != "" && !out.Status.Allowed {
		why = "(" + e + ")"
	}
	return out.Status.Allowed, why, nil
}

// admission asks the API server to take a Job, and a pod, of the first input, without
// making them.
func (x *examiner) admission(ctx context.Context) bool {
	job, err := x.r.sampleJob()
	switch {
	case err != nil && len(x.r.Inputs) == 0:
		x.add("Job", CheckSkipped, "no row of the data is here to make one of: "+err.Error(), "")
		return true
	case err != nil:
		x.checks = append(x.checks, failedCheck("Job", err, "fulgur train --check says where"))
		return false
	}
	dry := url.Values{"dryRun": {"All"}}
	switch err := x.r.c.call(ctx, http.MethodPost, x.r.c.path("batch/v1/jobs"), dry, job, nil); {
	case err != nil && x.missing && statusOf(err) == http.StatusForbidden:
		x.add("Job", CheckSkipped, "no right to make one", "")
		return true
	case err != nil:
		x.checks = append(x.checks, failedCheck("Job", err, "what the API server refuses here it refuses of every attempt: mend the template, or the cluster's rule"))
		return true
	}
	x.add("Job", CheckOK, "the API server takes one as attempts have it (a dry run)", "")
	if ok, _, err := x.may(ctx, Right{Resource: "pods"}, "create"); err != nil || !ok {
		x.add("pod", CheckSkipped, "whether its pod is taken is not tried: "+x.who()+"may not create pods; one who may can run this again", "")
		return true
	}
	pod := corev1.Pod{ObjectMeta: job.Spec.Template.ObjectMeta, Spec: job.Spec.Template.Spec}
	pod.APIVersion, pod.Kind, pod.Name, pod.Namespace = "v1", "Pod", job.Name, x.r.Namespace
	if err := x.r.c.call(ctx, http.MethodPost, x.r.c.path("v1/pods"), dry, &pod, nil); err != nil {
		x.checks = append(x.checks, failedCheck("pod", err, "the Job's pods would be refused so: mend the template, or the namespace's rules (Pod Security, LimitRange, quota, service account)"))
		return true
	}
	x.admitted = true
	x.add("pod", CheckOK, "the API server takes its pod too", "")
	return true
}

// quotas compares the namespace's quotas with what all slots need.
func (x *examiner) quotas(ctx context.Context) bool {
	var all list[corev1.ResourceQuota]
	if err := x.r.c.call(ctx, http.MethodGet, x.r.c.path("v1/resourcequotas"), nil, nil, &all); err != nil {
		x.add("quota", CheckSkipped, "this user may not look at quotas: "+err.Error(), "")
		return true
	}
	job, err := x.r.sampleJob()
	if err != nil {
		x.add("quota", CheckSkipped, "what an agent needs is not known without a row of the data", "")
		return true
	}
	need := needs(&job.Spec.Template.Spec)
	for i := range all.Items {
		q := &all.Items[i]
		name := "quota " + q.Name
		if len(q.Spec.Scopes) > 0 || q.Spec.ScopeSelector != nil {
			x.add(name, CheckSkipped, "it holds for some pods alone, by scope: whether for agents is not known here", "")
			continue
		}
		n, least, lacks := room(q, need)
		hard, used := q.Spec.Hard[corev1.ResourceName(least)], q.Status.Used[corev1.ResourceName(least)]
		of := fmt.Sprintf("%s of %s, of which %s are in use", hard.String(), least, used.String())
		switch {
		case n == 0:
			x.add(name, CheckFailed, "it holds no agent at all: "+of, "raise it, or lower what the pod asks for")
		case len(lacks) > 0 && !x.admitted:
			x.add(name, CheckWarning, "it counts "+strings.Join(lacks, ", ")+", which the pod does not name", "name it in the template (runner.limits.memory without one), unless a LimitRange of the namespace does")
		case n < 0:
			x.add(name, CheckOK, "it counts nothing that agents need", "")
		case n < int64(x.slots):
			x.add(name, CheckWarning, fmt.Sprintf("it holds %d agents at once, not the run's %d slots: %s; the others wait, visibly", n, x.slots, of), "raise it, or lower runner.slots")
		default:
			x.add(name, CheckOK, fmt.Sprintf("it holds the run's %d slots: %s", x.slots, of), "")
		}
	}
	if len(all.Items) == 0 {
		x.add("quota", CheckOK, "there is none", "")
	}
	return true
}

// nodes sends the probes, and has nodes fetch the images.
func (x *examiner) nodes(ctx context.Context, gateway string) {
	r := x.r
	switch {
	case x.missing:
		x.add("nodes", CheckSkipped, "without the rights above no probe can be sent", "")
		return
	case r.ProbeImage == "":
		x.add("nodes", CheckWarning, "what agents reach is not tried: there is no image for the probe", "name one with the program fulgur: runner.kubernetes.probe_image")
		return
	}
	u, err := r.gatewayURL(gateway)
	if err == nil && r.Isolated {
		x.marked = true
		err = r.isolate(ctx, u)
	}
	switch {
	case err != nil:
		x.checks = append(x.checks, failedCheck("NetworkPolicy", err, ""))
		return
	case r.Isolated:
		x.add("NetworkPolicy", CheckOK, "one as the run's was made", "")
	default:
		x.add("NetworkPolicy", CheckWarning, "runner.kubernetes.isolation is none: agents reach what pods reach there", "write isolation: policy, unless you trust the agents")
	}
	x.marked = true
	mark := r.newMark()
	defer r.unmark(ctx, mark)
	good := true
	nodes, err := r.scout(ctx, gateway, mark, r.ProbeLimit, func(node string, found *ProbeResult, why string) error {
		checks := r.nodeChecks(node, found, why)
		for _, c := range checks {
			good = good && c.Status != CheckFailed
		}
		x.checks = append(x.checks, checks...)
		return nil
	})
	if err != nil {
		x.checks = append(x.checks, failedCheck("nodes", err, ""))
		return
	}
	if !good {
		x.add("images", CheckSkipped, "they are fetched where the nodes are fit", "")
		return
	}
	x.images(r.prepull(ctx, mark, nodes))
}

// nodeChecks are what a node's probe found, a line each.
func (o *maker) nodeChecks(node string, found *ProbeResult, why string) []Check {
	name := "node " + node
	switch {
	case found == nil:
		return []Check{{name, CheckFailed, "the probe did not run: " + why, "is runner.kubernetes.probe_image an image with the program fulgur of this version, which this node may have?"}}
	case found.Reached != "":
		return []Check{{name + ": gateway", CheckFailed, found.Reached, doReach}}
	}
	checks := []Check{{name + ": gateway", CheckOK, "it answers", ""}, {name + ": stream", CheckOK, "an answer arrives in the pieces in which it was sent", ""}}
	if found.Streams != "" {
		checks[1] = Check{checks[1].Name, CheckFailed, found.Streams, doStream}
	}
	closed := Check{name + ": closed", CheckOK, "no way to " + strings.Join(found.Closed, ", "), ""}
	if len(found.Escaped) > 0 {
		closed = Check{closed.Name, CheckFailed, "ESCAPED: " + strings.Join(found.Escaped, ", "), doClose}
		if !o.Isolated {
			closed.Status, closed.Detail, closed.Do = CheckWarning, "agents reach "+strings.Join(found.Escaped, ", "), ""
		}
	}
	return append(checks, closed)
}

// images tells what came of fetching the images.
func (x *examiner) images(p Pulled, err error) {
	var names []string
	for _, i := range p.Images {
		names = append(names, i.Name)
	}
	switch {
	case err != nil:
		x.checks = append(x.checks, failedCheck("images", err, "is it pushed, is its name right, and may the nodes have it (imagePullSecrets)?"))
	case len(names) > 0:
		x.add("images", CheckOK, fmt.Sprintf("%s can be had, on %s", strings.Join(names, ", "), count(p.Nodes, "node")), "")
	case len(p.Notes) == 0:
		x.add("images", CheckSkipped, "none is fetched ahead: agents have the probe's image, or one that depends on inputs that are not here; or runner.kubernetes.prepull is 0", "")
	}
	for _, n := range p.Notes {
		x.add("images", CheckWarning, n, "")
	}
}

// sampleJob is the Job of an attempt with the first input.
func (r *Runner) sampleJob() (*batchv1.Job, error) {
	input := json.RawMessage("{}")
	if len(r.Inputs) > 0 {
		input = r.Inputs[0]
	}
	o, err := (&Trial{r.maker}).objects("fulgur-doctor-"+strings.ToLower(r.scope[:8]), input)
	return o.job, err
}

// clear removes what was made but for the probes, which are gone.
func (x *examiner) clear(ctx context.Context) {
	r := x.r
	if err := r.Close(); err != nil {
		x.add("removed again", CheckWarning, err.Error(), "")
	}
	if !x.marked {
		return
	}
	ctx, done := context.WithTimeout(context.WithoutCancel(ctx), removeLimit)
	defer done()
	r.unlease(ctx, r.leaseName(), nil)
	left := ""
	jobs, _, err := (&stream[batchv1.Job]{c: r.c, path: r.c.path("batch/v1/jobs"), selector: labelScope + "=" + r.scope, log: r.log}).all(ctx)
	switch {
	case err != nil:
		left = "whether the probes are gone cannot be seen: " + err.Error()
	case len(jobs) > 0:
		left = count(len(jobs), "Job") + " of the probes are not gone; they go by themselves"
	}
	if left != "" {
		x.add("removed again", CheckWarning, left, fmt.Sprintf("kubectl -n %s delete jobs,leases,networkpolicies -l %s=%s", r.Namespace, labelScope, r.scope))
	}
}

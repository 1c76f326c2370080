package kube

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/fulgur-rl/fulgur"
)

// sendProbe makes a probe's Job. One of its name, which has the start's mark in it, is
// this one, by a request whose answer was lost.
func (r *Runner) sendProbe(ctx context.Context, job *batchv1.Job) error {
	err := r.c.persist(ctx, http.MethodPost, r.c.path("batch/v1/jobs"), nil, job, nil)
	if statusOf(err) == http.StatusConflict {
		return nil
	}
	return err
}

// noProbe is what it means that the cluster refuses a probe. A quota is waited for.
func noProbe(err error) error {
	kind := kindOf(err)
	if quotaMessage(err.Error()) {
		kind = fulgur.KindExhausted
	}
	return fulgur.E(kind, opProve, "the cluster takes no probe", err)
}

// crowded looks, every now and then while a probe's Job has no pod, whether that is a
// quota's doing.
func (r *Runner) crowded(ctx context.Context, none *patience, pods int, round string) error {
	if !none.over(pods == 0) {
		return nil
	}
	none.since = time.Time{}
	return r.crowdedNow(ctx, round)
}

func (r *Runner) crowdedNow(ctx context.Context, round string) error {
	if quota := r.quotaOf(ctx, round); quota != "" {
		return fulgur.E(fulgur.KindExhausted, opProve, "the quota leaves probes no room: "+quota, nil)
	}
	return nil
}

// quotaOf is what the cluster says where a quota keeps Jobs of a round from having pods.
func (r *Runner) quotaOf(ctx context.Context, round string) string {
	events, err := r.failedCreates(ctx)
	if err != nil {
		return "" // it is a word of explanation, no more
	}
	for _, ev := range events {
		if strings.HasPrefix(ev.InvolvedObject.Name, probeJobName(round, "")) && quotaMessage(ev.Message) {
			return ev.Message
		}
	}
	return ""
}

func probeJobName(round, name string) string { return "fulgur-probe-" + round[12:] + "-" + name }

// probeRound sends probes to nodes that had none. more is false when there was no
// further node for one of them.
func (r *Runner) probeRound(ctx context.Context, x scouting, round string, n int, had []string) (nodes []string, more bool, err error) {
	for i := range n {
		err := r.sendProbe(ctx, r.probeJob(round, strconv.Itoa(i), x.args(), had))
		if err != nil && i > 0 && quotaMessage(err.Error()) { // fewer at once
			n = i
			break
		}
		if err != nil {
			return nil, false, noProbe(err)
		}
	}
	s := &stream[corev1.Pod]{c: r.c, path: r.c.path("v1/pods"), selector: labelProbe + "=" + round, log: r.log}
	bad, full, short := patience{limit: r.ImageLimit}, patience{limit: unplaced}, patience{limit: unmade}
	none := patience{limit: unmade}
	why, refused := notMade, map[types.UID]bool{}
	for {
		pods, _, err := s.all(ctx)
		switch {
		case ctx.Err() != nil:
			return nil, false, r.late(ctx, why, round)
		case err != nil:
			return nil, false, fulgur.E(fulgur.KindUnavailable, opProve, "the probes could not be watched", err)
		}
		if err := r.crowded(ctx, &none, len(pods), round); err != nil {
			return nil, false, err
		}
		found := tally(pods, refused)
		over := len(found.ended)
		why = cmp.Or(found.why, why)
		if over == n || found.again {
			nodes, err := r.verdict(ctx, found.ended, x.tell)
			return nodes, !found.again, err
		}
		if bad.over(found.image) {
			return nil, false, fulgur.E(fulgur.KindInvalid, opProve, why, nil)
		}
		idle := over == found.placed && over+len(had) > 0
		if full.over(idle && len(pods) == n) || short.over(idle && len(pods) < n) { // every node has had its probe
			nodes, err := r.verdict(ctx, pods, x.tell)
			return nodes, false, err
		}
		if !pause(ctx, probeEvery) {
			return nil, false, r.late(ctx, why, round)
		}
	}
}

// standing is how far the probes of a round are.
type standing struct {
	ended  []corev1.Pod
	placed int
	again  bool   // every further node has had its probe: one came to a node a second time
	image  bool   // one's image cannot be had, so far
	why    string // what one waits for
}

// tally counts the probes of a round; refused are those that the scheduler has had no
// node for, which it notes. A probe that has ended keeps no other away from its node.
// Where one of these comes to such a node, there is no other for it: the scheduler
// would have taken that before. All of the others have to have ended too.
func tally(pods []corev1.Pod, refused map[types.UID]bool) (s standing) {
	done := map[string]bool{} // nodes; true: by a probe that has ended
	for i := range pods {
		p := &pods[i]
		state := look(view{pod: p, agent: probeName})
		switch {
		case state.phase == fulgur.PhaseEnded:
			s.ended = append(s.ended, *p)
		case state.why != "":
			s.image, s.why = s.image || state.image, state.why
		}
		switch node := p.Spec.NodeName; {
		case node != "":
			s.placed++
			done[node] = done[node] || state.phase == fulgur.PhaseEnded
		case slices.ContainsFunc(p.Status.Conditions, func(c corev1.PodCondition) bool {
			return c.Type == corev1.PodScheduled && c.Reason == corev1.PodReasonUnschedulable
		}):
			refused[p.UID] = true
		}
	}
	for i := range pods {
		switch p := &pods[i]; {
		case p.Spec.NodeName == "" || !refused[p.UID]:
		case slices.ContainsFunc(s.ended, func(e corev1.Pod) bool { return e.UID != p.UID && e.Spec.NodeName == p.Spec.NodeName }):
			s.again = true
		default: // it found a node of its own
			delete(refused, p.UID)
		}
	}
	for _, over := range done {
		s.again = s.again && over
	}
	return s
}

func roundLabel(mark string, round int) string { return mark + "-" + strconv.Itoa(round) }

// args are a probe's arguments.
func (x scouting) args() []string {
	args := []string{ProbeCommand, x.gateway}
	if x.neighbour != "" {
		args = append(args, "--try", "another agent="+x.neighbour)
	}
	return args
}

// verdict tells what the probes of a round found.
func (r *Runner) verdict(ctx context.Context, pods []corev1.Pod, tell tellFunc) (nodes []string, err error) {
	for i := range pods {
		p := &pods[i]
		if p.Spec.NodeName == "" {
			continue
		}
		if !slices.Contains(nodes, p.Spec.NodeName) {
			nodes = append(nodes, p.Spec.NodeName)
		}
		found, why := r.probeResult(ctx, p)
		if err := tell(p.Spec.NodeName, found, why); err != nil {
			return nodes, err
		}
	}
	return nodes, nil
}

// neighbour starts a pod as agents have it, which listens, and returns its address.
func (r *Runner) neighbour(ctx context.Context, mark string) (address string, err error) {
	label := mark + "-n"
	if err := r.sendProbe(ctx, r.probeJob(label, "0", []string{ProbeCommand, "--neighbour"}, nil)); err != nil {
		return "", noProbe(err)
	}
	s := &stream[corev1.Pod]{c: r.c, path: r.c.path("v1/pods"), selector: labelProbe + "=" + label, log: r.log}
	why, none := notMade, patience{limit: unmade}
	for bad := (patience{limit: r.ImageLimit}); ; {
		pods, _, err := s.all(ctx)
		if err != nil && ctx.Err() == nil {
			return "", fulgur.E(fulgur.KindUnavailable, opProve, "the probes could not be watched", err)
		}
		if err := r.crowded(ctx, &none, len(pods), label); err != nil {
			return "", err
		}
		for i := range pods {
			state := look(view{pod: &pods[i], agent: probeName, now: time.Now()})
			if state.why != "" {
				why = state.why
			}
			switch {
			case state.phase == fulgur.PhaseRunning:
				var raw []byte
				if err := r.c.call(ctx, http.MethodGet, r.c.path("v1/pods/"+pods[i].Name+"/log"), logQuery(), nil, &raw); err == nil && strings.HasSuffix(string(raw), "\n") {
					return strings.TrimSpace(string(raw)), nil
				}
			case state.phase == fulgur.PhaseEnded:
				_, why := r.probeResult(ctx, &pods[i])
				return "", fulgur.E(fulgur.KindUnavailable, opProve, "on node "+pods[i].Spec.NodeName+" the probe did not run: "+why, nil)
			case bad.over(state.image):
				return "", fulgur.E(fulgur.KindInvalid, opProve, why, nil)
			}
		}
		if !pause(ctx, probeEvery) {
			return "", r.late(ctx, why, label)
		}
	}
}

const (
	probeName = "probe" // of its container
	notMade   = "its pod was not made; a quota or another rule of the namespace may be why (kubectl describe job)"
)

// late is what it means that ctx ended before the probes.
func (r *Runner) late(ctx context.Context, why, round string) error {
	if !errors.Is(ctx.Err(), context.DeadlineExceeded) {
		return context.Cause(ctx)
	}
	if why == notMade {
		ask, done := context.WithTimeout(context.WithoutCancel(ctx), requestLimit)
		defer done()
		if err := r.crowdedNow(ask, round); err != nil {
			return err
		}
	}
	return fulgur.E(fulgur.KindTimeout, opProve, "the probes had not ended in time: "+why, nil)
}

// patience says when something has been so for too long.
type patience struct {
	limit time.Duration
	since time.Time
}

func (p *patience) over(so bool) bool {
	switch {
	case !so:
		p.since = time.Time{}
	case p.since.IsZero():
		p.since = time.Now()
	}
	return so && time.Since(p.since) >= p.limit
}

// probeResult is what one probe printed; nil, and why, if it did not.
func (r *Runner) probeResult(ctx context.Context, p *corev1.Pod) (*ProbeResult, string) {
	var raw []byte
	err := r.c.call(ctx, http.MethodGet, r.c.path("v1/pods/"+p.Name+"/log"), logQuery(), nil, &raw)
	found := &ProbeResult{}
	if err == nil && json.Unmarshal(raw, found) == nil {
		return found, ""
	}
	s := look(view{pod: p, agent: probeName, now: time.Now()})
	why := s.why
	if s.exit != nil {
		why = fmt.Sprintf("exit code %d %s", s.exit.Code, s.exit.Message)
	}
	if err != nil {
		why += ": " + err.Error()
	}
	return nil, strings.TrimSpace(why + " " + strings.TrimSpace(string(raw[:min(len(raw), 300)])))
}

func logQuery() url.Values {
	return url.Values{"container": {probeName}, "limitBytes": {strconv.Itoa(logBytes)}}
}

// probeJob is a pod as agents have it, with one container of the probe's image, on a
// node that no other probe of its round is on; had are nodes that need none any more.
func (r *Runner) probeJob(round, name string, args, had []string) *batchv1.Job {
	fields := func(path string) *corev1.EnvVarSource {
		return &corev1.EnvVarSource{FieldRef: &corev1.ObjectFieldSelector{FieldPath: path}}
	}
	pod := corev1.PodSpec{
		Containers: []corev1.Container{{Name: probeName, Image: r.ProbeImage, Command: r.ProbeCommand, Args: args,
			Env: []corev1.EnvVar{{Name: "NODE_IP", ValueFrom: fields("status.hostIP")}, {Name: "POD_IP", ValueFrom: fields("status.podIP")}}}},
		Affinity: &corev1.Affinity{PodAntiAffinity: &corev1.PodAntiAffinity{RequiredDuringSchedulingIgnoredDuringExecution: []corev1.PodAffinityTerm{{
			LabelSelector: &metav1.LabelSelector{MatchLabels: map[string]string{labelProbe: round}}, TopologyKey: corev1.LabelHostname}}}},
	}
	if len(had) > 0 {
		var not []corev1.NodeSelectorRequirement
		for _, node := range had {
			not = append(not, nodeName(node, corev1.NodeSelectorOpNotIn))
		}
		pod.Affinity.NodeAffinity = affinityTo(not)
	}
	return r.probing(round, name, pod, r.ProbeLimit)
}

// nodeName asks for one node, or for any but that.
func nodeName(node string, op corev1.NodeSelectorOperator) corev1.NodeSelectorRequirement {
	return corev1.NodeSelectorRequirement{Key: metav1.ObjectNameField, Operator: op, Values: []string{node}}
}

func affinityTo(fields []corev1.NodeSelectorRequirement) *corev1.NodeAffinity {
	return &corev1.NodeAffinity{RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{MatchFields: fields}}}}
}

// both is a node affinity that asks for what a asks for and, if there is a b, for its
// fields too.
func both(a, b *corev1.NodeAffinity) *corev1.NodeAffinity {
	if b == nil || a.RequiredDuringSchedulingIgnoredDuringExecution == nil {
		return cmp.Or(b, a)
	}
	out := a.DeepCopy()
	terms := out.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms // one of them has to hold
	for i := range terms {
		terms[i].MatchFields = append(terms[i].MatchFields, b.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms[0].MatchFields...)
	}
	return out
}

// probing is a Job of one such pod, which goes where the template's agents may go.
func (r *Runner) probing(round, name string, pod corev1.PodSpec, limit time.Duration) *batchv1.Job {
	labels := map[string]string{labelManaged: managedBy, labelScope: r.scope, labelRun: labelValue(r.Run), labelProbe: round}
	none, one, ttl, deadline := int32(0), int64(1), int32(600), int64(limit/time.Second)
	pod.RestartPolicy, pod.TerminationGracePeriodSeconds = corev1.RestartPolicyNever, &one
	if t := r.sample(); t != nil {
		pod.NodeSelector, pod.Tolerations, pod.ServiceAccountName, pod.ImagePullSecrets = t.NodeSelector, t.Tolerations, t.ServiceAccountName, t.ImagePullSecrets
		pod.SecurityContext = t.SecurityContext.DeepCopy() // whose user a namespace may ask for
		if t.Affinity != nil && t.Affinity.NodeAffinity != nil {
			pod.Affinity.NodeAffinity = both(t.Affinity.NodeAffinity, pod.Affinity.NodeAffinity)
		}
	}
	if r.alias != nil {
		pod.HostAliases = []corev1.HostAlias{*r.alias}
	}
	secure(&pod)
	return &batchv1.Job{
		TypeMeta:   metav1.TypeMeta{APIVersion: "batch/v1", Kind: "Job"},
		ObjectMeta: metav1.ObjectMeta{Name: probeJobName(round, name), Namespace: r.Namespace, Labels: labels},
		Spec: batchv1.JobSpec{BackoffLimit: &none, TTLSecondsAfterFinished: &ttl, ActiveDeadlineSeconds: &deadline,
			Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: pod}},
	}
}

// clearProbes removes the probes of a mark, or of a round, their pods with them.
func (r *Runner) clearProbes(ctx context.Context, mark string) error {
	s := &stream[batchv1.Job]{c: r.c, path: r.c.path("batch/v1/jobs"), selector: labelProbe + "," + labelScope + "=" + r.scope, log: r.log}
	for wait := 100 * time.Millisecond; ; wait = min(2*wait, 2*time.Second) {
		jobs, _, err := s.all(ctx)
		jobs = slices.DeleteFunc(jobs, func(j batchv1.Job) bool { return !strings.HasPrefix(j.Labels[labelProbe]+"-", mark+"-") })
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

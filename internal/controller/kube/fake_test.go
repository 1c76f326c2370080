package kube

import (
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/fulgur-rl/fulgur/internal/controller/runnertest"
)

// api is an API server of a few resources that plays faults: what a real one
// does on a bad day cannot be asked of a real one.
type api struct {
	*httptest.Server
	t *testing.T

	mu       sync.Mutex
	version  int
	jobs     map[string]*batchv1.Job
	pods     map[string]*corev1.Pod
	secrets  map[string]*corev1.Secret
	leases   map[string]*lease
	policies map[string]*networkingv1.NetworkPolicy
	history  []change
	moved    chan struct{} // closed at each change
	requests []request
	fault    func(r *http.Request) (status int, body string) // status 0: none
	watch    func(r *http.Request, w io.Writer) bool         // plays a watch of its own
	noPods   bool                                            // Jobs get none
	log      string
	events   []string
	failed   []corev1.Event // what GET events lists, page by page
}

type change struct {
	version int
	kind    string // "jobs", "pods"
	typ     string
	object  json.RawMessage
	scope   string
}

type request struct {
	at   time.Time
	what string
}

func newAPI(t *testing.T) *api {
	a := &api{t: t, version: 10, jobs: map[string]*batchv1.Job{}, pods: map[string]*corev1.Pod{}, secrets: map[string]*corev1.Secret{}, leases: map[string]*lease{}, policies: map[string]*networkingv1.NetworkPolicy{}, moved: make(chan struct{})}
	a.Server = httptest.NewServer(http.HandlerFunc(a.serve))
	t.Cleanup(func() {
		a.CloseClientConnections()
		a.Close()
	})
	return a
}

func (a *api) serve(w http.ResponseWriter, r *http.Request) {
	parts := strings.Split(strings.TrimPrefix(r.URL.Path, "/"), "/")
	at := slices.Index(parts, "namespaces")
	if at < 0 || len(parts) < at+3 {
		http.NotFound(w, r)
		return
	}
	kind, name := parts[at+2], ""
	if len(parts) > at+3 {
		name = parts[at+3]
	}
	watching := r.URL.Query().Get("watch") != ""
	what := r.Method + " " + kind
	if watching {
		what = "WATCH " + kind
	}
	if len(parts) > at+4 {
		what += "/" + parts[at+4]
	}
	a.mu.Lock()
	a.requests = append(a.requests, request{time.Now(), what})
	fault, watch := a.fault, a.watch
	a.mu.Unlock()
	if fault != nil {
		if status, body := fault(r); status != 0 {
			w.Header().Set("Content-Type", "application/json")
			w.WriteHeader(status)
			_, _ = io.WriteString(w, body)
			return
		}
	}
	if watching {
		if watch != nil && watch(r, w) {
			return
		}
		a.watching(w, r, kind)
		return
	}
	body, _ := io.ReadAll(r.Body)
	a.mu.Lock()
	defer a.mu.Unlock()
	if strings.HasSuffix(r.URL.Path, "/log") {
		_, _ = io.WriteString(w, logOf(a.log, r.URL.Query()))
		return
	}
	status, out := a.actLocked(r, kind, name, body)
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(out)
}

// logOf is what an API server sends of a log.
func logOf(text string, q url.Values) string {
	if n, err := strconv.Atoi(q.Get("tailLines")); err == nil {
		lines := strings.SplitAfter(text, "\n")
		text = strings.Join(lines[max(0, len(lines)-n-1):], "")
	}
	if n, err := strconv.Atoi(q.Get("limitBytes")); err == nil {
		text = text[:min(n, len(text))]
	}
	return text
}

func refusal(status int, reason, message string) (int, any) {
	return status, metav1.Status{TypeMeta: metav1.TypeMeta{Kind: "Status"}, Status: "Failure", Code: int32(status), Reason: metav1.StatusReason(reason), Message: message}
}

func refusalText(status int, reason, message string) (int, string) {
	_, s := refusal(status, reason, message)
	raw, _ := json.Marshal(s)
	return status, string(raw)
}

func (a *api) actLocked(r *http.Request, kind, name string, body []byte) (int, any) {
	selector := r.URL.Query().Get("labelSelector")
	switch r.Method + " " + kind {
	case "POST jobs":
		j := &batchv1.Job{}
		if err := json.Unmarshal(body, j); err != nil {
			return refusal(400, "BadRequest", err.Error())
		}
		if a.jobs[j.Name] != nil {
			return refusal(409, "AlreadyExists", "jobs "+j.Name+" already exists")
		}
		j.UID, j.CreationTimestamp = types.UID(fmt.Sprintf("uid-%d", a.version)), metav1.Now()
		a.jobs[j.Name] = j
		a.noteLocked("jobs", "ADDED", j)
		if !a.noPods && !suspended(j) {
			a.startLocked(j)
		}
		return 201, j
	case "GET jobs":
		if name != "" {
			if a.jobs[name] == nil {
				return refusal(404, "NotFound", "no job "+name)
			}
			return 200, a.jobs[name]
		}
		return 200, a.listLocked(selector, values(a.jobs))
	case "GET pods":
		return 200, a.listLocked(selector, values(a.pods))
	case "PATCH jobs":
		j := a.jobs[name]
		if j == nil {
			return refusal(404, "NotFound", "no job "+name)
		}
		if err := json.Unmarshal(body, j); err != nil {
			return refusal(400, "BadRequest", err.Error())
		}
		a.noteLocked("jobs", "MODIFIED", j)
		return 200, j
	case "DELETE jobs":
		j := a.jobs[name]
		var o metav1.DeleteOptions
		_ = json.Unmarshal(body, &o)
		switch {
		case j == nil:
			return refusal(404, "NotFound", "no job "+name)
		case o.Preconditions != nil && *o.Preconditions.UID != j.UID:
			return refusal(409, "Conflict", "another UID")
		}
		for _, p := range values(a.pods) {
			if p.Labels[batchv1.JobNameLabel] == name {
				delete(a.pods, p.Name)
				a.noteLocked("pods", "DELETED", p)
			}
		}
		delete(a.jobs, name)
		delete(a.secrets, name)
		a.noteLocked("jobs", "DELETED", j)
		return 200, j
	case "POST secrets", "PUT secrets":
		s := &corev1.Secret{}
		if err := json.Unmarshal(body, s); err != nil {
			return refusal(400, "BadRequest", err.Error())
		}
		if a.secrets[s.Name] != nil && r.Method == "POST" {
			return refusal(409, "AlreadyExists", "secret "+s.Name)
		}
		a.secrets[s.Name] = s
		return 201, s
	case "PATCH leases", "POST leases":
		l := &lease{}
		if name != "" {
			if l = a.leases[name]; l == nil {
				return refusal(404, "NotFound", "no lease "+name)
			}
		}
		if err := json.Unmarshal(body, l); err != nil {
			return refusal(400, "BadRequest", err.Error())
		}
		if name == "" {
			if a.leases[l.Metadata.Name] != nil {
				return refusal(409, "AlreadyExists", "lease "+l.Metadata.Name)
			}
			l.Metadata.UID = types.UID(fmt.Sprintf("lease-%d", a.version))
		}
		a.version++
		l.Metadata.ResourceVersion = strconv.Itoa(a.version)
		a.leases[l.Metadata.Name] = l
		return 200, l
	case "GET leases":
		out := list[lease]{}
		for _, l := range a.leases {
			if not := strings.Split(selector, "!="); l.Metadata.Labels[labelScope] != not[len(not)-1] {
				out.Items = append(out.Items, *l)
			}
		}
		return 200, out
	case "DELETE leases":
		l := a.leases[name]
		var o metav1.DeleteOptions
		_ = json.Unmarshal(body, &o)
		switch p := o.Preconditions; {
		case l == nil:
			return refusal(404, "NotFound", "no lease "+name)
		case p != nil && (*p.UID != l.Metadata.UID || *p.ResourceVersion != l.Metadata.ResourceVersion):
			return refusal(409, "Conflict", "another UID or version")
		}
		delete(a.leases, name)
		maps.DeleteFunc(a.policies, func(_ string, p *networkingv1.NetworkPolicy) bool { return p.OwnerReferences[0].UID == l.Metadata.UID })
		return 200, struct{}{}
	case "POST networkpolicies", "PATCH networkpolicies":
		p := &networkingv1.NetworkPolicy{}
		if err := json.Unmarshal(body, p); err != nil {
			return refusal(400, "BadRequest", err.Error())
		}
		old := a.policies[max(name, p.Name)]
		switch {
		case name != "" && old == nil:
			return refusal(404, "NotFound", "no policy "+name)
		case name != "":
			old.Spec, old.OwnerReferences = p.Spec, p.OwnerReferences
			return 200, old
		case old != nil:
			return refusal(409, "AlreadyExists", "policy "+p.Name)
		}
		a.policies[p.Name] = p
		return 201, p
	case "POST events":
		a.events = append(a.events, string(body))
		return 201, struct{}{}
	case "GET events":
		q, out := r.URL.Query(), list[corev1.Event]{}
		from, _ := strconv.Atoi(q.Get("continue"))
		limit, _ := strconv.Atoi(q.Get("limit"))
		to := min(from+limit, len(a.failed))
		if out.Items = a.failed[from:to]; to < len(a.failed) {
			out.Metadata.Continue = strconv.Itoa(to)
		}
		return 200, out
	}
	return refusal(405, "MethodNotAllowed", r.Method+" "+kind)
}

func values[T any](m map[string]T) []T { return slices.Collect(maps.Values(m)) }

// selects understands NAME and NAME=VALUE.
func selects(selector string, labels map[string]string) bool {
	for term := range strings.SplitSeq(selector, ",") {
		k, v, equals := strings.Cut(term, "=")
		if got, ok := labels[k]; !ok || equals && got != v {
			return false
		}
	}
	return true
}

func (a *api) listLocked(selector string, items any) any {
	meta := metav1.ListMeta{ResourceVersion: strconv.Itoa(a.version)}
	switch items := items.(type) {
	case []*batchv1.Job:
		out := list[batchv1.Job]{Metadata: meta}
		for _, j := range items {
			if selects(selector, j.Labels) {
				out.Items = append(out.Items, *j)
			}
		}
		return out
	case []*corev1.Pod:
		out := list[corev1.Pod]{Metadata: meta}
		for _, p := range items {
			if selects(selector, p.Labels) {
				out.Items = append(out.Items, *p)
			}
		}
		return out
	}
	return nil
}

// noteLocked writes a change down, for watches.
func (a *api) noteLocked(kind, typ string, obj metav1.Object) {
	a.version++
	obj.SetResourceVersion(strconv.Itoa(a.version))
	raw, _ := json.Marshal(obj)
	a.history = append(a.history, change{version: a.version, kind: kind, typ: typ, object: raw, scope: obj.GetLabels()[labelScope]})
	close(a.moved)
	a.moved = make(chan struct{})
}

func (a *api) watching(w http.ResponseWriter, r *http.Request, kind string) {
	q := r.URL.Query()
	after, _ := strconv.Atoi(q.Get("resourceVersion"))
	scope := strings.TrimPrefix(q.Get("labelSelector"), labelScope+"=")
	w.WriteHeader(200)
	w.(http.Flusher).Flush()
	sent := 0
	for {
		a.mu.Lock()
		news, moved := a.history[sent:], a.moved
		sent = len(a.history)
		a.mu.Unlock()
		for _, c := range news {
			if c.version > after && c.kind == kind && c.scope == scope {
				fmt.Fprintf(w, `{"type":%q,"object":%s}`+"\n", c.typ, c.object)
			}
		}
		w.(http.Flusher).Flush()
		select {
		case <-moved:
		case <-r.Context().Done():
			return
		}
	}
}

// startLocked is the Job controller.
func (a *api) startLocked(j *batchv1.Job) {
	p := &corev1.Pod{ObjectMeta: *j.Spec.Template.ObjectMeta.DeepCopy(), Spec: *j.Spec.Template.Spec.DeepCopy()}
	p.Name, p.UID, p.CreationTimestamp = j.Name+"-x", types.UID("pod-of-"+string(j.UID)), metav1.Now()
	p.Labels[batchv1.JobNameLabel] = j.Name
	p.OwnerReferences = []metav1.OwnerReference{{Kind: "Job", Name: j.Name, UID: j.UID}}
	p.Status.Phase = corev1.PodPending
	a.pods[p.Name] = p
	a.noteLocked("pods", "ADDED", p)
}

// pod changes the pod of a Job.
func (a *api) pod(job string, f func(p *corev1.Pod)) {
	a.mu.Lock()
	defer a.mu.Unlock()
	p := a.pods[job+"-x"]
	if p == nil {
		a.t.Errorf("no pod of %s", job)
		return
	}
	f(p)
	a.noteLocked("pods", "MODIFIED", p)
}

// job changes a Job.
func (a *api) job(name string, f func(j *batchv1.Job)) {
	a.mu.Lock()
	defer a.mu.Unlock()
	f(a.jobs[name])
	a.noteLocked("jobs", "MODIFIED", a.jobs[name])
}

func (a *api) running(job string) {
	a.pod(job, func(p *corev1.Pod) {
		p.Status.Phase = corev1.PodRunning
		p.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "agent", State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}}}
	})
}

func (a *api) exits(job string, code int32) {
	a.pod(job, func(p *corev1.Pod) {
		p.Status.Phase = corev1.PodSucceeded
		if code != 0 {
			p.Status.Phase = corev1.PodFailed
		}
		p.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "agent", State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: code, Reason: "Error"}}}}
	})
}

// has waits until a Job is there, or is not.
func (a *api) has(name string, want bool) {
	a.t.Helper()
	for end := time.Now().Add(10 * time.Second); ; {
		a.mu.Lock()
		_, ok := a.jobs[name]
		moved := a.moved
		a.mu.Unlock()
		if ok == want {
			return
		}
		select {
		case <-moved:
		case <-time.After(time.Until(end)):
			a.t.Fatalf("the Job %s is there: %v, want %v", name, ok, want)
		}
	}
}

// count counts requests from a time on; "" counts all.
func (a *api) count(what string, from time.Time) (n int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, r := range a.requests {
		if !r.at.Before(from) && (what == "" || r.what == what) {
			n++
		}
	}
	return n
}

func (a *api) setFault(f func(r *http.Request) (int, string)) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.fault = f
}

// dies ends a runner as the death of its controller would: its Jobs go on.
func dies(t *testing.T, r *Runner) {
	t.Helper()
	r.Leave()
	if err := r.Close(); err != nil {
		t.Error(err)
	}
}

// begun starts an attempt, and returns when its runner has told that it runs.
func begun(t *testing.T, a *api, r *Runner, id string) {
	t.Helper()
	runnertest.Start(t, r, runnertest.Execution(id, "x"))
	a.has(name(id), true)
	a.running(name(id))
	event(t, r)
}

// endsWell has an attempt exit with 0, which is all that its runner tells.
func endsWell(t *testing.T, a *api, r *Runner, id string) {
	t.Helper()
	a.exits(name(id), 0)
	if x := runnertest.Exit(t, r, id); x.Code != 0 || x.Failure != "" {
		t.Errorf("exit %+v", x)
	}
}

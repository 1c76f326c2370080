package kube

import (
	"context"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/fulgur-rl/fulgur"
	"github.com/fulgur-rl/fulgur/internal/controller"
	"github.com/fulgur-rl/fulgur/internal/controller/plan"
)

// adoptLimit is how long Adopt waits for Jobs that nobody wants to be gone.
const adoptLimit = time.Minute

// Adopt implements controller.Runner. A Job that the record still wants is taken
// over, finished or not; the others of this scope are deleted. An attempt that is
// known to have had a Job which is there no more is adopted too, and told as ended
// with nobody knowing how: it is not run again.
func (r *Runner) Adopt(ctx context.Context, left []controller.Leftover) ([]plan.Key, error) {
	const op = "take over the Jobs of an earlier controller"
	if err := r.grader.Sweep(); err != nil {
		r.log.Warn("what an earlier controller was grading could not be removed", "err", err)
	}
	selector := labelScope + "=" + r.scope
	jobs := &stream[batchv1.Job]{c: r.c, path: r.c.path("batch/v1/jobs"), selector: selector, log: r.log}
	all, at, err := jobs.all(ctx)
	if err != nil {
		return nil, fulgur.E(kindOf(err), op, "the cluster does not list the Jobs of namespace "+r.Namespace+" (it needs the rights of docs/kubernetes.md)", err)
	}
	wanted := map[plan.Key]controller.Leftover{}
	for _, l := range left {
		wanted[l.Key] = l
	}
	var keys []plan.Key
	var unwanted []*batchv1.Job
	r.mu.Lock()
	r.leaving = false
	for i := range all {
		job := &all[i]
		key := plan.Key{Rollout: fulgur.RolloutID(job.Annotations[noteRollout]), Attempt: fulgur.AttemptID(job.Annotations[noteAttempt])}
		_, ok := wanted[key]
		if a := r.live[key]; a != nil && a.name == job.Name { // this runner's own, which leads again
			if ok {
				keys = append(keys, key)
				delete(wanted, key)
			} else {
				r.stopLocked(a)
			}
			continue
		}
		if a := r.done[key]; a != nil && a.name == job.Name { // its end was told, and came on no record
			r.dropLocked(a)
		}
		switch {
		case job.Labels[labelProbe] != "": // of a controller that starts; they go by themselves
		case !ok, job.DeletionTimestamp != nil:
			unwanted = append(unwanted, job)
		default:
			a := &attempt{key: key, name: job.Name, uid: string(job.UID), created: job.CreationTimestamp.Time, job: job, agent: job.Annotations[noteAgent], phase: fulgur.PhaseStarting, adopted: true}
			r.live[key], r.byName[job.Name] = a, a
			keys = append(keys, key)
			delete(wanted, key)
		}
	}
	for key, l := range wanted {
		if r.live[key] != nil { // its Job is still to be made
			keys = append(keys, key)
			continue
		}
		// A handle with a UID is of a Job that was there.
		if l.Phase == fulgur.PhaseRunning && strings.Count(l.Handle, "/") == 2 {
			a := &attempt{key: key, name: "gone " + l.Handle, phase: fulgur.PhaseRunning, jobGone: true}
			r.live[key], r.byName[a.name] = a, a
			keys = append(keys, key)
			r.endLocked(a, plan.Failed(plan.ReasonUnknown, "its Job "+l.Handle+" is gone, removed while no controller watched: nobody knows how it ended"))
		}
	}
	r.mu.Unlock()
	if err := r.clear(ctx, unwanted); err != nil {
		return nil, fulgur.E(kindOf(err), op, "a Job that nobody wants any more could not be removed", err)
	}
	if len(keys) == 0 {
		return nil, nil
	}
	pods := &stream[corev1.Pod]{c: r.c, path: r.c.path("v1/pods"), selector: selector, log: r.log}
	list, podsAt, err := pods.all(ctx)
	if err != nil {
		return nil, fulgur.E(kindOf(err), op, "the cluster does not list the pods of namespace "+r.Namespace, err)
	}
	r.podsListed(list, podsAt)
	r.mu.Lock()
	for _, k := range keys {
		if a := r.live[k]; a != nil {
			r.lookLocked(a)
		}
	}
	r.mu.Unlock()
	r.begin(at, podsAt)
	return keys, nil
}

// kindOf is the kind of a refusal.
func kindOf(err error) fulgur.Kind {
	switch statusOf(err) {
	case http.StatusUnauthorized, http.StatusForbidden:
		return fulgur.KindInvalid
	case http.StatusNotFound:
		return fulgur.KindNotFound
	}
	return fulgur.KindUnavailable
}

// clear deletes Jobs with their pods, and waits until they are gone. One whose pod does
// not go, as on a node that is lost, is not waited for for ever: no other attempt can be
// taken for it, and its pod is removed by force.
func (r *Runner) clear(ctx context.Context, jobs []*batchv1.Job) error {
	for _, job := range jobs {
		r.log.Info("a Job that an earlier controller left, and nobody wants, is removed", "job", job.Name, "rollout", job.Annotations[noteRollout])
		err := r.c.persist(ctx, http.MethodDelete, r.c.path("batch/v1/jobs/"+job.Name), nil, deleteOptions(metav1.DeletePropagationForeground, string(job.UID)), nil)
		if s := statusOf(err); err != nil && s != http.StatusNotFound && s != http.StatusConflict {
			return err
		}
	}
	if len(jobs) == 0 {
		return nil
	}
	s := &stream[batchv1.Job]{c: r.c, path: r.c.path("batch/v1/jobs"), selector: labelScope + "=" + r.scope, log: r.log}
	wait := 200 * time.Millisecond
	for end := time.Now().Add(r.adoptLimit); ; wait = min(2*wait, 5*time.Second) {
		all, _, err := s.all(ctx)
		if err != nil {
			return err
		}
		there := map[types.UID]bool{}
		for _, job := range all {
			there[job.UID] = true
		}
		jobs = slices.DeleteFunc(jobs, func(j *batchv1.Job) bool { return !there[j.UID] })
		if len(jobs) == 0 {
			return nil
		}
		if time.Now().After(end) {
			r.log.Warn("Jobs that nobody wants any more do not go; their pods are removed by force", "jobs", len(jobs), "after", r.adoptLimit)
			for _, job := range jobs {
				r.spawn(func(ctx context.Context) { r.forcePods(ctx, job) })
			}
			return nil
		}
		if !pause(ctx, wait) {
			return context.Cause(ctx)
		}
	}
}

// forcePods removes the pods of a Job by force that was deleted, once their grace is over.
func (r *Runner) forcePods(ctx context.Context, job *batchv1.Job) {
	grace := r.Grace
	if g := job.Spec.Template.Spec.TerminationGracePeriodSeconds; g != nil {
		grace = time.Duration(*g) * time.Second
	}
	if !pause(ctx, max(grace+r.forceAfter-r.adoptLimit, 0)) {
		return
	}
	s := &stream[corev1.Pod]{c: r.c, path: r.c.path("v1/pods"), selector: labelScope + "=" + r.scope, log: r.log}
	pods, _, err := s.all(ctx)
	if err != nil {
		r.log.Warn("the pods of a Job that does not go could not be found", "job", job.Name, "err", err)
	}
	for i := range pods {
		if owned(&pods[i], string(job.UID)) {
			r.force(ctx, &pods[i])
		}
	}
}

// lease says that a run's Jobs have a controller. It is coordination.k8s.io's
// Lease, so far as it is needed.
type lease struct {
	APIVersion string            `json:"apiVersion"`
	Kind       string            `json:"kind"`
	Metadata   metav1.ObjectMeta `json:"metadata"`
	Spec       leaseSpec         `json:"spec"`
}

type leaseSpec struct {
	LeaseDurationSeconds int              `json:"leaseDurationSeconds"`
	RenewTime            metav1.MicroTime `json:"renewTime"`
}

func (l *lease) expired(now time.Time) bool {
	return now.After(l.Spec.RenewTime.Add(time.Duration(l.Spec.LeaseDurationSeconds) * time.Second))
}

// longOver says whether it is over for as long again.
func (l *lease) longOver(now time.Time) bool {
	return l.expired(now.Add(-time.Duration(l.Spec.LeaseDurationSeconds) * time.Second))
}

// unclaimed says whether nobody has taken note of a Job's end.
func unclaimed(job *batchv1.Job) bool {
	ttl := job.Spec.TTLSecondsAfterFinished
	return ttl == nil || time.Duration(*ttl)*time.Second >= farTTL
}

func (r *Runner) leaseName() string { return "fulgur-" + r.scope }

// keepLease starts renew, if it has not been.
func (r *Runner) keepLease() { r.holds.Do(func() { r.spawn(r.renew) }) }

// renew holds the run's lease, and removes what runs left whose lease is over.
func (r *Runner) renew(ctx context.Context) {
	told := false
	for {
		err := r.hold(ctx)
		if err == nil {
			err = r.sweep(ctx)
		}
		if err != nil && ctx.Err() == nil && !told {
			told = true
			r.log.Warn("the run's lease in the cluster could not be held: should this controller die, another run cannot tell that these Jobs are nobody's", "err", err)
		}
		if !pause(ctx, max(r.Lease/6, time.Second)) {
			return
		}
	}
}

// unlease removes a run's lease, as it was seen where that is said. Its
// NetworkPolicy goes after it, as the cluster has what is left without an owner go.
func (r *Runner) unlease(ctx context.Context, name string, seen *metav1.Preconditions) {
	o := deleteOptions(metav1.DeletePropagationBackground, "")
	o.Preconditions = seen
	err := r.c.call(ctx, http.MethodDelete, r.c.path("coordination.k8s.io/v1/leases/"+name), nil, o, nil)
	if s := statusOf(err); err != nil && s != http.StatusNotFound && s != http.StatusConflict && ctx.Err() == nil { // gone, or taken up again
		r.log.Info("a run's lease could not be removed", "lease", name, "err", err)
	}
}

// hold renews the run's lease, and makes the run's NetworkPolicy that lease's. A
// lease that was gone, because somebody took this controller for dead, is another
// when it is made again: the cluster removes the first one's policy.
func (r *Runner) hold(ctx context.Context) error {
	l := lease{APIVersion: "coordination.k8s.io/v1", Kind: "Lease", Metadata: metav1.ObjectMeta{Name: r.leaseName(), Labels: map[string]string{
		labelManaged: managedBy, labelScope: r.scope, labelRun: labelValue(r.Run)}},
		Spec: leaseSpec{LeaseDurationSeconds: int(r.Lease / time.Second), RenewTime: metav1.NowMicro()}}
	var held lease
	var err error
	for again := true; again; again = statusOf(err) == http.StatusConflict { // another controller of this run was faster
		err = r.c.call(ctx, http.MethodPatch, r.c.path("coordination.k8s.io/v1/leases/"+r.leaseName()), nil, map[string]any{"spec": l.Spec}, &held)
		if statusOf(err) == http.StatusNotFound {
			err = r.c.call(ctx, http.MethodPost, r.c.path("coordination.k8s.io/v1/leases"), nil, l, &held)
		}
	}
	r.mu.Lock()
	p, of := r.wall, r.wallOf
	r.mu.Unlock()
	if err != nil || p == nil || of == held.Metadata.UID {
		return err
	}
	if err := r.enclose(ctx, p, &held); err != nil {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.wall == p {
		r.wallOf = held.Metadata.UID
	}
	return nil
}

// sweep removes the Jobs of runs whose controllers are gone for longer than their
// lease. What has ended stays for one more: its controller may come back for it. Then it
// goes too, for it has a part of a quota of Jobs or Secrets; but not what was kept for
// people, which goes by itself.
func (r *Runner) sweep(ctx context.Context) error {
	var leases list[lease]
	q := url.Values{"labelSelector": {labelScope + "," + labelScope + "!=" + r.scope}, "limit": {"500"}}
	if err := r.c.call(ctx, http.MethodGet, r.c.path("coordination.k8s.io/v1/leases"), q, nil, &leases); err != nil {
		return err
	}
	for _, l := range leases.Items {
		if !l.expired(time.Now()) {
			continue
		}
		scope := l.Metadata.Labels[labelScope]
		s := &stream[batchv1.Job]{c: r.c, path: r.c.path("batch/v1/jobs"), selector: labelScope + "=" + scope, log: r.log}
		jobs, _, err := s.all(ctx)
		if err != nil {
			return err
		}
		for i := range jobs {
			if jobs[i].DeletionTimestamp != nil || settled(&jobs[i]) && !(l.longOver(time.Now()) && unclaimed(&jobs[i])) {
				continue
			}
			r.log.Warn("a Job of a run whose controller is gone is removed", "run", l.Metadata.Labels[labelRun], "job", jobs[i].Name, "since", l.Spec.RenewTime.Time)
			err := r.c.call(ctx, http.MethodDelete, r.c.path("batch/v1/jobs/"+jobs[i].Name), nil, deleteOptions(metav1.DeletePropagationBackground, string(jobs[i].UID)), nil)
			if s := statusOf(err); err != nil && s != http.StatusNotFound && s != http.StatusConflict {
				return err
			}
		}
		if len(jobs) == 0 {
			r.unlease(ctx, l.Metadata.Name, &metav1.Preconditions{UID: &l.Metadata.UID, ResourceVersion: &l.Metadata.ResourceVersion})
		}
	}
	return nil
}

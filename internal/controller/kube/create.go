package kube

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/http"
	"slices"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/fulgur-rl/fulgur"
	"github.com/fulgur-rl/fulgur/internal/controller"
	"github.com/fulgur-rl/fulgur/internal/controller/plan"
)

const (
	// creators is how many Jobs are created at once.
	creators = 8
	// While the cluster refuses, one Job is tried after roomFirst, and after more
	// refusals every roomMost; and whenever one of ours has gone, but not within roomSoon.
	roomFirst = time.Second
	roomMost  = 30 * time.Second
	roomSoon  = 500 * time.Millisecond
	// narrow is how long after a refusal Jobs are created one by one.
	narrow = 30 * time.Second
	// refusedLimit is how long a refusal that is no quota's may last: whoever wrote
	// the rule may lift it, and a whole run is not to fail by a slip.
	refusedLimit = 10 * time.Minute
)

// gate says when Jobs may be created.
type gate struct {
	flight   int       // creations under way
	refusals int       // in a row
	last     time.Time // when the last one was
	until    time.Time // nothing is tried before
}

// create takes attempts from the queue.
func (r *Runner) create(ctx context.Context) {
	for {
		a, wait := r.next()
		if a != nil {
			r.spawn(func(ctx context.Context) { r.make(ctx, a) })
			continue
		}
		t := time.NewTimer(wait)
		select {
		case <-r.wake:
		case <-t.C:
		case <-ctx.Done():
			t.Stop()
			return
		}
		t.Stop()
	}
}

// next takes the first attempt off the queue, if one may be created now; else it
// says when to ask again.
func (r *Runner) next() (*attempt, time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	g, now := &r.gate, time.Now()
	most := creators
	if now.Sub(g.last) < narrow {
		most = 1
	}
	switch {
	case len(r.queue) == 0 || g.flight >= most:
		return nil, time.Hour
	case now.Before(g.until):
		return nil, g.until.Sub(now)
	}
	a := r.queue[0]
	r.queue = slices.Delete(r.queue, 0, 1)
	a.queued = false
	g.flight++
	return a, 0
}

// roomLocked notes that a Job is gone: there may be room for another.
func (r *Runner) roomLocked() {
	g := &r.gate
	if g.refusals == 0 {
		return
	}
	if soon := g.last.Add(roomSoon); soon.Before(g.until) {
		g.until = soon
	}
	nudge(r.wake)
}

// make creates an attempt's objects, and sees to what the cluster says.
func (r *Runner) make(ctx context.Context, a *attempt) {
	job, err := r.submit(ctx, a)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.gate.flight--
	nudge(r.wake)
	if ctx.Err() != nil {
		return
	}
	switch status := statusOf(err); {
	case err == nil:
		r.gate.refusals = 0
		r.createdLocked(a, job)
		a.objects = objects{}
		if a.stopping {
			r.spawn(func(ctx context.Context) { r.remove(ctx, a) })
			return
		}
		if a.phase == fulgur.PhaseWaiting {
			r.standsLocked(a, fulgur.PhaseStarting, "its Job has no pod yet")
		}
		r.lookLocked(a)
	case a.stopping:
		r.endLocked(a, stopped(a))
	case status == http.StatusForbidden || status == http.StatusUnauthorized || status == http.StatusNotFound || webhookFailed(err) || broken(err):
		r.refuseLocked(a, err)
	case status == http.StatusRequestEntityTooLarge:
		r.endLocked(a, plan.Failed(plan.ReasonInput, "the cluster takes no Job as large as this: "+err.Error()))
	default:
		r.endLocked(a, plan.Failed(plan.ReasonAdmission, "the cluster refuses the Job: "+err.Error()))
	}
}

// refuseLocked lets an attempt wait that the cluster has no room for, or does not
// want now. It goes to the end of the queue: one that asks for too much is not to
// hold up the others.
func (r *Runner) refuseLocked(a *attempt, err error) {
	now := time.Now()
	quota := quotaMessage(err.Error())
	why := "the quota leaves no room: " + err.Error()
	if !quota {
		why = "the cluster refuses its Job, which is tried again: " + err.Error()
		if a.refused.IsZero() {
			a.refused = now
		}
		if now.Sub(a.refused) >= refusedLimit {
			r.endLocked(a, plan.Failed(plan.ReasonAdmission, fmt.Sprintf("the cluster refused its Job for %s: %s", refusedLimit, err)))
			return
		}
	}
	g := &r.gate
	if g.refusals == 0 {
		r.log.Warn("the cluster has no room for more Jobs; they wait, and are tried one at a time", "waiting", len(r.queue)+1, "err", err)
	}
	g.last = now
	if !now.Before(g.until) { // else it was tried together with one that is known to be refused
		g.refusals++
		d := min(roomFirst<<min(g.refusals-1, 8), roomMost)
		g.until = now.Add(d + time.Duration(rand.Int64N(int64(d/4))))
	}
	a.queued = true
	r.queue = append(r.queue, a)
	for _, q := range r.queue {
		if q == a || q.phase == fulgur.PhaseStarting {
			r.standsLocked(q, fulgur.PhaseWaiting, why)
		}
	}
}

// submit creates the Job, and the Secret that belongs to it: in this order, so that
// a controller that dies between them leaves no Secret that nobody owns. A node
// waits for the Secret.
func (r *Runner) submit(ctx context.Context, a *attempt) (*batchv1.Job, error) {
	r.mu.Lock()
	o := a.objects
	r.mu.Unlock()
	job, err := r.submitJob(ctx, o.job)
	if name, err := r.other(a, err); err != nil || name != "" {
		if err != nil {
			return nil, err
		}
		renameSecret(o.job, o.secret.Name, name)
		o.job.Name, o.secret.Name = name, name
		if job, err = r.submitJob(ctx, o.job); err != nil {
			return nil, err
		}
	}
	if len(o.secret.Data) == 0 {
		return job, nil
	}
	s := o.secret.DeepCopy()
	s.OwnerReferences = []metav1.OwnerReference{{APIVersion: "batch/v1", Kind: "Job", Name: job.Name, UID: job.UID}}
	err = r.c.persist(ctx, http.MethodPost, r.c.path("v1/secrets"), nil, s, nil)
	if statusOf(err) == http.StatusConflict { // of an earlier Job of that name, on its way out
		err = r.c.persist(ctx, http.MethodPut, r.c.path("v1/secrets/"+s.Name), nil, s, nil)
	}
	if err != nil {
		_ = r.c.persist(ctx, http.MethodDelete, r.c.path("batch/v1/jobs/"+job.Name), nil, deleteOptions(metav1.DeletePropagationBackground, string(job.UID)), nil)
		return nil, err
	}
	return job, nil
}

// foreignError is a Job of our name that is somebody else's.
type foreignError struct{ name, owner string }

func (e *foreignError) Error() string {
	return fmt.Sprintf("a Job called %s is there already and belongs to %s", e.name, e.owner)
}

// other answers a name that somebody else has with another name; it is "" where
// none is needed.
func (r *Runner) other(a *attempt, err error) (string, error) {
	f, ok := err.(*foreignError)
	if !ok {
		return "", err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	name := hashedName(r.scope, a.key)
	if name == f.name {
		return "", fulgur.E(fulgur.KindConflict, "", f.Error(), nil)
	}
	r.log.Warn("a Job's name is taken; this attempt gets another", "taken", f.name, "by", f.owner, "rollout", a.key.Rollout, "name", name)
	if r.byName[a.name] == a {
		delete(r.byName, a.name)
	}
	a.name = name
	r.byName[name] = a
	r.sendLocked(controller.Event{Key: a.key, Handle: r.place(a), Phase: a.phase, Why: a.why})
	return name, nil
}

// submitJob creates a Job. One that is there already is taken for it if it is the
// same attempt's with the same credential; another of ours is waited out.
func (r *Runner) submitJob(ctx context.Context, job *batchv1.Job) (*batchv1.Job, error) {
	for {
		made := &batchv1.Job{}
		err := r.c.persist(ctx, http.MethodPost, r.c.path("batch/v1/jobs"), nil, job, made)
		if statusOf(err) != http.StatusConflict {
			return made, err
		}
		err = r.c.persist(ctx, http.MethodGet, r.c.path("batch/v1/jobs/"+job.Name), nil, nil, made)
		switch {
		case statusOf(err) == http.StatusNotFound: // gone meanwhile
			continue
		case err != nil:
			return nil, err
		case made.Labels[labelScope] != r.scope:
			return nil, &foreignError{job.Name, owner(made)}
		case made.DeletionTimestamp == nil && sameAttempt(made, job):
			return made, nil
		case made.DeletionTimestamp == nil:
			r.log.Warn("an earlier Job of this attempt is removed", "job", job.Name)
			err := r.c.persist(ctx, http.MethodDelete, r.c.path("batch/v1/jobs/"+job.Name), nil, deleteOptions(metav1.DeletePropagationForeground, string(made.UID)), nil)
			if err != nil && statusOf(err) != http.StatusNotFound && statusOf(err) != http.StatusConflict {
				return nil, err
			}
		}
		if !pause(ctx, time.Second) {
			return nil, context.Cause(ctx)
		}
	}
}

func sameAttempt(a, b *batchv1.Job) bool {
	for _, note := range []string{noteRollout, noteAttempt, noteCredential} {
		if a.Annotations[note] != b.Annotations[note] {
			return false
		}
	}
	return true
}

func owner(job *batchv1.Job) string {
	if run := job.Labels[labelRun]; run != "" {
		return "the run " + run
	}
	if id := job.Labels[labelRollout]; id != "" {
		return "the rollout " + id + " of another controller"
	}
	return "somebody else"
}

// renameSecret points a Job's references to its Secret at another name.
func renameSecret(job *batchv1.Job, old, name string) {
	pod := &job.Spec.Template.Spec
	for i := range pod.Containers {
		for j := range pod.Containers[i].Env {
			if v := pod.Containers[i].Env[j].ValueFrom; v != nil && v.SecretKeyRef != nil && v.SecretKeyRef.Name == old {
				v.SecretKeyRef.Name = name
			}
		}
	}
	for i := range pod.Volumes {
		if s := pod.Volumes[i].Secret; s != nil && s.SecretName == old {
			s.SecretName = name
		}
	}
}

func deleteOptions(how metav1.DeletionPropagation, uid string) *metav1.DeleteOptions {
	o := &metav1.DeleteOptions{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "DeleteOptions"}, PropagationPolicy: &how}
	if uid != "" {
		id := types.UID(uid)
		o.Preconditions = &metav1.Preconditions{UID: &id}
	}
	return o
}

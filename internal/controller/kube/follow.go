package kube

import (
	"context"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/fulgur-rl/fulgur"
	"github.com/fulgur-rl/fulgur/internal/controller"
	"github.com/fulgur-rl/fulgur/internal/controller/plan"
)

func (r *Runner) jobChanged(job batchv1.Job, deleted bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	a := r.byName[job.Name]
	switch {
	case a == nil:
	case a.uid == "": // it may be ours: its creation is still to be answered
		a.job, a.jobGone = &job, deleted
	case string(job.UID) == a.uid:
		r.jobLocked(a, &job, deleted)
	}
}

func (r *Runner) jobLocked(a *attempt, job *batchv1.Job, deleted bool) {
	a.job = job
	if deleted {
		r.jobGoneLocked(a)
		return
	}
	r.lookLocked(a)
}

func (r *Runner) jobGoneLocked(a *attempt) {
	a.jobGone = true
	r.roomLocked()
	if r.done[a.key] == a {
		r.dropLocked(a)
		return
	}
	r.lookLocked(a)
}

// jobsListed takes a whole list: what is not in it is gone.
func (r *Runner) jobsListed(all []batchv1.Job, version string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	there := map[string]*batchv1.Job{}
	for i := range all {
		there[all[i].Name] = &all[i]
	}
	for _, a := range r.namedLocked() {
		switch job := there[a.name]; {
		case a.uid == "" && job != nil: // it may be ours: its creation is still to be answered
			a.job, a.jobGone = job, false
		case a.uid == "":
		case job != nil && string(job.UID) == a.uid:
			r.jobLocked(a, job, false)
		case a.job != nil && upTo(a.job.ResourceVersion, version) && !a.jobGone:
			r.jobGoneLocked(a)
		}
	}
}

// namedLocked is a copy of what byName holds, which changes while one goes
// through it.
func (r *Runner) namedLocked() []*attempt {
	out := make([]*attempt, 0, len(r.byName))
	for _, a := range r.byName {
		out = append(out, a)
	}
	return out
}

func (r *Runner) podChanged(pod corev1.Pod, deleted bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if a := r.ownerLocked(&pod); a != nil {
		r.podLocked(a, &pod, deleted)
	}
}

func (r *Runner) podLocked(a *attempt, pod *corev1.Pod, deleted bool) {
	if a.pod != nil && a.pod.UID != pod.UID && pod.CreationTimestamp.Before(&a.pod.CreationTimestamp) {
		return
	}
	a.pod, a.podGone, a.noPod = pod, deleted, ""
	r.lookLocked(a)
}

// ownerLocked is the attempt whose Job a pod belongs to.
func (r *Runner) ownerLocked(pod *corev1.Pod) *attempt {
	a := r.byName[pod.Labels[batchv1.JobNameLabel]]
	if a == nil {
		return nil
	}
	if a.uid == "" || owned(pod, a.uid) { // without a UID its creation is still to be answered
		return a
	}
	return nil
}

func owned(pod *corev1.Pod, uid string) bool {
	return slices.ContainsFunc(pod.OwnerReferences, func(o metav1.OwnerReference) bool { return string(o.UID) == uid })
}

// createdLocked notes that an attempt's Job is there. What was seen of its name
// before may have been of another.
func (r *Runner) createdLocked(a *attempt, job *batchv1.Job) {
	a.uid, a.created = string(job.UID), time.Now()
	if a.job == nil || a.job.UID != job.UID {
		a.job, a.jobGone = job, false
	}
	if a.pod != nil && !owned(a.pod, a.uid) {
		a.pod, a.podGone = nil, false
	}
}

func (r *Runner) podsListed(all []corev1.Pod, version string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	there := map[*attempt]bool{}
	for i := range all {
		if a := r.ownerLocked(&all[i]); a != nil {
			there[a] = true
			r.podLocked(a, &all[i], false)
		}
	}
	for _, a := range r.namedLocked() {
		if a.pod != nil && !a.podGone && !there[a] && upTo(a.pod.ResourceVersion, version) {
			a.podGone = true
			r.lookLocked(a)
		}
	}
}

// lookLocked decides where an attempt stands, and tells what is new of it.
func (r *Runner) lookLocked(a *attempt) {
	if a.ending || r.live[a.key] != a || a.uid == "" {
		return
	}
	if a.stopping { // its end is that of its whole Job, pods included
		if a.jobGone {
			r.endLocked(a, stopped(a))
		}
		return
	}
	s := look(view{job: a.job, gone: a.jobGone, pod: a.pod, podGone: a.podGone, ran: a.phase == fulgur.PhaseRunning, adopted: a.adopted, noPod: a.noPod, agent: a.agent, badSince: a.badSince, limit: r.ImageLimit, now: time.Now()})
	switch {
	case !s.image && !s.secret:
		a.badSince = time.Time{}
	case a.badSince.IsZero():
		a.badSince = time.Now()
		r.spawn(func(ctx context.Context) {
			if pause(ctx, r.ImageLimit+10*time.Millisecond) {
				r.mu.Lock()
				defer r.mu.Unlock()
				r.lookLocked(a)
			}
		})
	}
	if s.phase == fulgur.PhaseEnded {
		r.endLocked(a, *s.exit)
		return
	}
	r.standsLocked(a, s.phase, s.why)
}

// standsLocked notes a phase, and tells it where that matters to anybody.
func (r *Runner) standsLocked(a *attempt, phase fulgur.Phase, why string) {
	if a.phase == fulgur.PhaseRunning { // it never runs less
		return
	}
	news := phase != a.phase || phase == fulgur.PhaseWaiting && why != a.why
	a.phase, a.why = phase, why
	if news {
		ev := controller.Event{Key: a.key, Phase: phase, Why: why}
		a.told, a.toldAt = why, time.Now()
		if phase == fulgur.PhaseRunning { // one that starts is found by its labels: not each is worth a write to the record
			ev.Handle = r.handleLocked(a)
		}
		r.sendLocked(ev)
	}
}

// stopped is the exit of one that was stopped.
func stopped(a *attempt) plan.Exit {
	if a.pod != nil {
		if cs := containerOf(a.pod, a.agent); cs != nil && cs.State.Terminated != nil {
			return plan.Exit{Code: int(cs.State.Terminated.ExitCode)}
		}
	}
	x := plan.Exit{Code: -1}
	if a.phase != fulgur.PhaseRunning {
		x.Message = a.why
	}
	return x
}

const (
	explainEvery = 15 * time.Second
	// retellEvery is how often other words for what an attempt's start waits for are told:
	// each is a write to its record.
	retellEvery = time.Minute
)

// explain asks for the Events of Jobs that have no pod, for nothing else says why, and
// tells what slow starts wait for.
func (r *Runner) explain(ctx context.Context) {
	for pause(ctx, explainEvery) {
		if r.podless() {
			if err := r.explainNow(ctx); err != nil && ctx.Err() == nil {
				r.log.Warn("why Jobs have no pods is not known", "err", err)
			}
		}
		r.tellSlow(time.Now())
	}
}

func (r *Runner) explainNow(ctx context.Context) error {
	events, err := r.failedCreates(ctx)
	if err != nil {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, ev := range events {
		a := r.byName[ev.InvolvedObject.Name]
		if a == nil || a.pod != nil || string(ev.InvolvedObject.UID) != a.uid {
			continue
		}
		a.noPod = ev.Message
		r.lookLocked(a)
	}
	return nil
}

// failedCreates are the Events of Jobs whose pods could not be made: under a quota of
// pods one of each Job.
func (r *Runner) failedCreates(ctx context.Context) (events []corev1.Event, err error) {
	q := url.Values{"fieldSelector": {"involvedObject.kind=Job,reason=FailedCreate"}, "limit": {strconv.Itoa(listPage)}}
	for {
		var page list[corev1.Event]
		if err := r.c.call(ctx, http.MethodGet, r.c.path("v1/events"), q, nil, &page); err != nil {
			return nil, err
		}
		events = append(events, page.Items...)
		if page.Metadata.Continue == "" {
			return events, nil
		}
		q.Set("continue", page.Metadata.Continue)
	}
}

// tellSlow has the records of attempts say what their start waits for that takes longer
// than usual: a node with room, an image.
func (r *Runner) tellSlow(now time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, a := range r.live {
		if a.uid == "" || a.phase != fulgur.PhaseStarting || a.stopping || a.ending || now.Sub(a.created) < explainEvery {
			continue
		}
		if a.why == "" || a.why == a.told || now.Sub(a.toldAt) < retellEvery {
			continue
		}
		a.told, a.toldAt = a.why, now
		r.sendLocked(controller.Event{Key: a.key, Phase: a.phase, Why: a.why})
	}
}

// podless says whether a Job waits for its pod for longer than usual.
func (r *Runner) podless() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, a := range r.byName { // Jobs of tests too, which are in no other list
		if a.uid != "" && a.pod == nil && !a.stopping && time.Since(a.created) > explainEvery/3 && !suspended(a.job) {
			return true
		}
	}
	return false
}

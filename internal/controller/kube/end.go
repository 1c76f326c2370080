package kube

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	utilnet "k8s.io/apimachinery/pkg/util/net"

	"github.com/fulgur-rl/fulgur"
	"github.com/fulgur-rl/fulgur/internal/controller"
	"github.com/fulgur-rl/fulgur/internal/controller/plan"
)

// forceAfter is how long beyond its grace a pod may take to go, as on a node that
// is lost, before its object is removed by force.
const forceAfter = time.Minute

// endLocked tells an exit, with the end of the log if it did not go well.
func (r *Runner) endLocked(a *attempt, x plan.Exit) {
	if a.ending {
		return
	}
	if a.pod != nil && a.uid != "" && started(a) { // it was seen too late: that it ran is news all the same
		r.standsLocked(a, fulgur.PhaseRunning, "")
	}
	if r.takes(a, x) {
		r.takeLocked(a, x)
		return
	}
	a.ending = true
	x.Message = a.redactorLocked()(x.Message)
	if (x.Code != 0 || x.Failure != "") && a.uid != "" && !a.jobGone && !a.stopping {
		ev := r.endEvent(a, x)
		r.spawn(func(ctx context.Context) {
			if err := r.c.call(ctx, http.MethodPost, r.c.path("v1/events"), nil, ev, nil); err != nil && ctx.Err() == nil {
				r.log.Info("no Event was written on a Job", "job", ev.InvolvedObject.Name, "err", err)
			}
		})
	}
	good := x.Code == 0 && x.Failure == ""
	if good && r.Logs != controller.KeepAll || a.tail != "" || a.pod == nil || a.podGone || !started(a) {
		x.Tail, x.Log = a.tail, a.log
		r.sendLocked(controller.Event{Key: a.key, Exit: &x})
		return
	}
	r.spawn(func(ctx context.Context) {
		x.Tail, x.Log = r.keepLog(ctx, a, good)
		r.mu.Lock()
		defer r.mu.Unlock()
		r.sendLocked(controller.Event{Key: a.key, Exit: &x})
	})
}

// endEvent tells people who look at the Job, or at what there was of it, why its
// agent ended.
func (r *Runner) endEvent(a *attempt, x plan.Exit) *corev1.Event {
	reason, message := x.Failure, x.Message
	if reason == "" {
		reason = plan.ReasonExit
		message = fmt.Sprintf("the agent exited with code %d", x.Code)
	}
	if len(message) > 1000 {
		message = message[:1000]
	}
	now := metav1.Now()
	return &corev1.Event{
		TypeMeta:       metav1.TypeMeta{APIVersion: "v1", Kind: "Event"},
		ObjectMeta:     metav1.ObjectMeta{GenerateName: a.name + ".", Namespace: r.Namespace},
		InvolvedObject: corev1.ObjectReference{APIVersion: "batch/v1", Kind: "Job", Namespace: r.Namespace, Name: a.name, UID: types.UID(a.uid)},
		Reason:         "Agent" + strings.ToUpper(reason[:1]) + reason[1:], Message: strings.ToValidUTF8(message, "?"), Type: corev1.EventTypeWarning,
		Source: corev1.EventSource{Component: "fulgur"}, FirstTimestamp: now, LastTimestamp: now, Count: 1,
	}
}

// started says whether the agent's container has, or had, a log.
func started(a *attempt) bool {
	cs := containerOf(a.pod, a.agent)
	return cs != nil && (cs.State.Running != nil || cs.State.Terminated != nil)
}

// Stop implements controller.Runner. The Job is deleted with its pods: they get
// SIGTERM, and after their grace SIGKILL.
func (r *Runner) Stop(_ context.Context, key plan.Key) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if a := r.live[key]; a != nil {
		r.stopLocked(a)
	}
	return nil
}

func (r *Runner) stopLocked(a *attempt) {
	if a.stopping || a.ending {
		return
	}
	a.stopping = true
	switch {
	case a.queued:
		r.queue = slices.DeleteFunc(r.queue, func(q *attempt) bool { return q == a })
		r.endLocked(a, stopped(a))
	case a.uid == "": // make is on its way, and sees to it
	case a.jobGone:
		r.endLocked(a, stopped(a))
	default:
		r.spawn(func(ctx context.Context) { r.remove(ctx, a) })
	}
}

// remove deletes an attempt's Job and waits for nothing but the answer: its end is
// seen by the watch. Its log goes with the pod, so that it is read before.
func (r *Runner) remove(ctx context.Context, a *attempt) {
	r.mu.Lock()
	pod, uid, name := a.pod, a.uid, a.name
	read := pod != nil && !a.podGone && started(a)
	r.mu.Unlock()
	if read {
		tail, path := r.keepLog(ctx, a, false)
		r.mu.Lock()
		a.tail, a.log = tail, path
		r.mu.Unlock()
	}
	grace := r.Grace
	if pod != nil && pod.Spec.TerminationGracePeriodSeconds != nil {
		grace = time.Duration(*pod.Spec.TerminationGracePeriodSeconds) * time.Second
	}
	err := r.c.persist(ctx, http.MethodDelete, r.c.path("batch/v1/jobs/"+name), nil, deleteOptions(metav1.DeletePropagationForeground, uid), nil)
	if s := statusOf(err); s == http.StatusNotFound || s == http.StatusConflict { // gone, or another of its name
		r.mu.Lock()
		if !a.jobGone {
			r.jobGoneLocked(a)
		}
		r.mu.Unlock()
		return
	}
	if err != nil {
		if ctx.Err() == nil {
			r.log.Error("a Job could not be deleted", "job", name, "err", err)
		}
		return
	}
	if !pause(ctx, grace+r.forceAfter) {
		return
	}
	r.mu.Lock()
	pod, still := a.pod, a.pod != nil && !a.podGone && !a.jobGone
	r.mu.Unlock()
	if still {
		r.force(ctx, pod)
	}
}

// force removes the object of a pod that does not go.
func (r *Runner) force(ctx context.Context, pod *corev1.Pod) {
	r.log.Warn("a pod does not go; its object is removed by force", "pod", pod.Name, "node", pod.Spec.NodeName)
	o := deleteOptions(metav1.DeletePropagationBackground, string(pod.UID))
	now := int64(0)
	o.GracePeriodSeconds = &now
	_ = r.c.persist(ctx, http.MethodDelete, r.c.path("v1/pods/"+pod.Name), nil, o, nil)
}

// Acknowledge implements controller.Acknowledger: the Jobs go, or stay for as long
// as Options.Keep says.
func (r *Runner) Acknowledge(keys []plan.Key) {
	r.grader.Forget(keys...)
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, k := range keys {
		r.letGoLocked(k)
		a := r.done[k]
		if a == nil || a.jobGone || a.stopping {
			continue
		}
		a.stopping = true
		r.spawn(func(ctx context.Context) { r.forget(ctx, a) })
	}
}

func (r *Runner) forget(ctx context.Context, a *attempt) {
	r.mu.Lock()
	over := settles(a.job, a.pod, a.podGone)
	name, uid := a.name, a.uid
	r.mu.Unlock()
	var err error
	if r.Keep > 0 && over {
		patch := map[string]any{"spec": map[string]any{"ttlSecondsAfterFinished": int64(r.Keep / time.Second)}}
		err = r.c.persist(ctx, http.MethodPatch, r.c.path("batch/v1/jobs/"+name), nil, patch, nil)
		r.mu.Lock()
		r.dropLocked(a)
		r.mu.Unlock()
	} else {
		err = r.c.persist(ctx, http.MethodDelete, r.c.path("batch/v1/jobs/"+name), nil, deleteOptions(metav1.DeletePropagationBackground, uid), nil)
	}
	if s := statusOf(err); s == http.StatusNotFound || s == http.StatusConflict {
		r.mu.Lock()
		if !a.jobGone {
			r.jobGoneLocked(a)
		}
		r.mu.Unlock()
	} else if err != nil && ctx.Err() == nil {
		r.log.Warn("a Job that has ended could not be removed; it goes by itself later", "job", name, "err", err)
	}
}

// closeLimit is how long Close waits beyond the grace for Jobs to be gone.
const closeLimit = 30 * time.Second

// Close implements controller.Runner.
func (r *Runner) Close() error {
	r.mu.Lock()
	if r.closed {
		r.mu.Unlock()
		return nil
	}
	r.closed = true
	close(r.gone)
	leave := r.leaving
	if !leave {
		for _, a := range r.live {
			r.stopLocked(a)
		}
	}
	r.mu.Unlock()
	left := 0
	if !leave {
		left = r.waitGone()
	}
	r.cancel()
	r.wg.Wait()
	if !leave && left == 0 && r.ended() {
		ctx, done := context.WithTimeout(context.Background(), logLimit)
		defer done()
		r.unlease(ctx, r.leaseName(), nil)
	}
	r.grader.Close()
	utilnet.CloseIdleConnectionsFor(r.c.http.Transport)
	close(r.events)
	if left > 0 {
		return fulgur.E(fulgur.KindTimeout, "close the Kubernetes runner", fmt.Sprintf("%d Jobs were not gone after %s; the next start of this run removes them", left, r.Grace+closeLimit), nil)
	}
	return nil
}

// ended says whether this runner has worked, and every end that it told is
// acknowledged: nothing in the cluster waits for a successor.
func (r *Runner) ended() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.working.Load() && len(r.done) == 0
}

// Leave implements controller.Leaver: the Jobs go on, and those that have ended
// wait for the next controller to ask.
func (r *Runner) Leave() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.leaving = true
}

// waitGone waits until no Job is left, and returns how many still are when its
// patience ends.
func (r *Runner) waitGone() (left int) {
	limit := time.NewTimer(r.Grace + closeLimit)
	defer limit.Stop()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for waits := true; waits; {
		r.mu.Lock()
		left = len(r.live)
		for _, a := range r.done { // acknowledged, and on their way out
			if a.stopping && !a.jobGone {
				left++
			}
		}
		r.mu.Unlock()
		if left == 0 {
			break
		}
		select {
		case <-tick.C:
		case <-limit.C:
			waits = false
		}
	}
	return left
}

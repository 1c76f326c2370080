package kube

import (
	"fmt"
	"strings"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"

	"github.com/fulgur-rl/fulgur"
	"github.com/fulgur-rl/fulgur/internal/controller/plan"
)

// view is all that is known of an attempt's Job.
type view struct {
	job      *batchv1.Job // as last seen; nil: not yet
	gone     bool         // the Job is there no more
	pod      *corev1.Pod  // as last seen, also after it is gone; nil: none yet
	podGone  bool
	ran      bool          // its agent has been seen running
	adopted  bool          // an earlier controller made it
	noPod    string        // why the Job has no pod, by its Events; "": not known
	agent    string        // the container that is the agent
	badSince time.Time     // since when its image (or Secret) cannot be had; zero: it can, as far as is known
	limit    time.Duration // how long an image may fail to be pulled
	now      time.Time
}

// state is what a view means.
type state struct {
	phase  fulgur.Phase // waiting, starting, running, ended
	why    string       // waiting and starting: what it waits for
	image  bool         // its image cannot be had, so far
	secret bool         // nor can a Secret that its controller did not come to make
	exit   *plan.Exit   // ended
}

// look says where an attempt stands. The agent's own container decides: what
// runs beside it holds nothing up.
func look(v view) state {
	if v.pod != nil {
		if s, ok := lookPod(v); ok {
			return s
		}
	}
	if v.gone {
		x := plan.Failed(plan.ReasonDeleted, "its Job was deleted by somebody else")
		return state{phase: fulgur.PhaseEnded, exit: &x}
	}
	if v.job != nil {
		if x := jobExit(v); x != nil {
			return state{phase: fulgur.PhaseEnded, exit: x}
		}
		if suspended(v.job) {
			return state{phase: fulgur.PhaseWaiting, why: "its Job is suspended; what has suspended it (a queue such as Kueue) lets it go on"}
		}
	}
	switch {
	case v.pod != nil && !v.podGone:
		return pending(v)
	case v.noPod != "" && quotaMessage(v.noPod):
		return state{phase: fulgur.PhaseWaiting, why: "the quota leaves no room for its pod: " + v.noPod}
	case v.noPod != "":
		return state{phase: fulgur.PhaseStarting, why: "its pod cannot be made: " + v.noPod}
	}
	return state{phase: fulgur.PhaseStarting, why: "its Job has no pod yet"}
}

// lookPod reads what the pod alone says; ok is false where the Job has to say more.
func lookPod(v view) (s state, ok bool) {
	end := func(x plan.Exit) (state, bool) { return state{phase: fulgur.PhaseEnded, exit: &x}, true }
	cs := containerOf(v.pod, v.agent)
	if cs != nil && cs.State.Terminated != nil {
		t := cs.State.Terminated
		if t.ExitCode == 0 && t.Reason != "ContainerStatusUnknown" {
			return end(plan.Exit{})
		}
		// A deadline of the Job and a deletion look alike until the Job says which.
		if v.pod.DeletionTimestamp != nil && !v.podGone && !v.gone && !settled(v.job) && disruption(v.pod) == nil && v.pod.Status.Reason == "" {
			return state{phase: fulgur.PhaseRunning}, true
		}
		return end(ended(v, t))
	}
	if v.podGone && !v.ran && suspended(v.job) {
		return state{}, false // it waits again
	}
	if v.pod.Status.Phase == corev1.PodFailed || v.podGone {
		return end(ended(v, nil))
	}
	if cs != nil && cs.State.Running != nil {
		return state{phase: fulgur.PhaseRunning}, true
	}
	if w := waiting(v.pod); w != nil && v.adopted && w.noSecret() && !v.badSince.IsZero() && v.now.Sub(v.badSince) >= v.limit {
		// It died between the Job and its Secret, which nobody else can make. Not told at
		// once: the Secret may be there, and its node about to see it.
		return end(plan.Failed(plan.ReasonLost, "its controller died before its Secret was made: "+w.message))
	}
	if w := waiting(v.pod); w != nil && badImage(w.reason) {
		final := w.reason == "InvalidImageName" || w.reason == "ErrImageNeverPull"
		if final || !busyRegistry(w.message) && !v.badSince.IsZero() && v.now.Sub(v.badSince) >= v.limit {
			return end(plan.Failed(plan.ReasonImage, w.image()))
		}
	}
	return state{}, false
}

// ended says why the agent's container ended without success; t is nil where
// nothing is known of the container itself.
func ended(v view, t *corev1.ContainerStateTerminated) plan.Exit {
	p := v.pod
	x := outside(v)
	switch {
	case x != nil:
	case t == nil:
		x = neverRan(v)
	case t.Reason == "OOMKilled":
		x = failed(plan.ReasonMemory, "its container ran out of memory (OOMKilled)"+memoryLimit(p, v.agent))
	case t.Reason == "StartError" || t.Reason == "ContainerCannotRun":
		x = failed(plan.ReasonSpawn, "the container's program could not be started: "+t.Message)
	case t.Reason == "ContainerStatusUnknown":
		x = failed(plan.ReasonNode, "its node lost sight of it: "+t.Message)
	case p.DeletionTimestamp != nil || v.podGone:
		x = failed(plan.ReasonDeleted, "its pod was deleted by somebody else")
	default:
		x = &plan.Exit{Code: int(t.ExitCode)}
	}
	if t != nil && x.Failure != "" {
		x.Message += fmt.Sprintf(" (exit code %d)", t.ExitCode)
	}
	return *x
}

func failed(reason, message string) *plan.Exit {
	x := plan.Failed(reason, message)
	return &x
}

// outside looks for what ended the pod from without; nil: nothing is seen of that.
func outside(v view) *plan.Exit {
	p := v.pod
	if c := disruption(p); c != nil {
		switch c.Reason {
		case "PreemptionByScheduler":
			return failed(plan.ReasonPreempted, "a pod of higher priority took its place: "+c.Message)
		case "DeletionByTaintManager", "EvictionByEvictionAPI", "DeletionByPodGC":
			return failed(plan.ReasonNode, "its node was drained or lost: "+c.Message)
		}
	}
	switch p.Status.Reason {
	case "Evicted":
		if m := p.Status.Message; strings.Contains(m, "exceeds the total limit") || strings.Contains(m, "exceeds the limit") || strings.Contains(m, "exceeded its local ephemeral storage limit") {
			return failed(plan.ReasonDisk, "it wrote more than it may: "+m)
		}
		return failed(plan.ReasonEvicted, "its node was short of something and ended it: "+p.Status.Message)
	case "Preempting":
		return failed(plan.ReasonPreempted, "its node needed its place: "+p.Status.Message)
	case "NodeLost", "NodeShutdown", "Terminated", "Shutdown":
		return failed(plan.ReasonNode, "its node was shut down or lost: "+p.Status.Message)
	case "DeadlineExceeded":
		return failed(plan.ReasonDeadline, "its pod's deadline was over: "+p.Status.Message)
	case "UnexpectedAdmissionError", "NodeAffinity", "NodeName", "NodePorts", "PodOSNotSupported":
		return failed(plan.ReasonUnschedulable, "its node refused it: "+p.Status.Message)
	}
	if strings.HasPrefix(p.Status.Reason, "OutOf") {
		return failed(plan.ReasonUnschedulable, "its node refused it: "+p.Status.Message)
	}
	if suspended(v.job) {
		return failed(plan.ReasonPreempted, "its Job was suspended while it ran")
	}
	if c := disruption(p); c != nil {
		return failed(plan.ReasonEvicted, "it was ended from outside: "+c.Reason+": "+c.Message)
	}
	if c := condition(v.job, batchv1.JobFailureTarget, batchv1.JobFailed); c != nil && c.Reason == batchv1.JobReasonDeadlineExceeded {
		return failed(plan.ReasonDeadline, "the far deadline of its Job was over")
	}
	return nil
}

// neverRan is the end of a pod whose agent has no end of its own.
func neverRan(v view) *plan.Exit {
	for _, cs := range v.pod.Status.InitContainerStatuses {
		if cs.Name == relayName { // it is started again, and ends with the pod
			continue
		}
		if t := cs.State.Terminated; t != nil && t.ExitCode != 0 {
			return failed(plan.ReasonSpawn, fmt.Sprintf("its init container %s exited with code %d (%s)", cs.Name, t.ExitCode, t.Reason))
		}
	}
	if v.podGone {
		return failed(plan.ReasonDeleted, "its pod was deleted by somebody else")
	}
	return failed(plan.ReasonUnknown, strings.TrimSuffix("its pod failed, and nothing says why: "+v.pod.Status.Reason+" "+v.pod.Status.Message, ":  "))
}

// jobExit is what a finished Job says whose pod was never seen, or not to its end.
func jobExit(v view) *plan.Exit {
	if c := condition(v.job, batchv1.JobComplete, batchv1.JobSuccessCriteriaMet); c != nil {
		return &plan.Exit{}
	}
	c := condition(v.job, batchv1.JobFailed)
	switch {
	case c == nil:
		return nil
	case c.Reason == batchv1.JobReasonDeadlineExceeded:
		return failed(plan.ReasonDeadline, "the far deadline of its Job was over")
	case v.pod != nil && !v.podGone:
		return nil // the pod is going to say more
	}
	return failed(plan.ReasonDeleted, "its Job failed and its pod is gone (a drained or lost node, or deleted by hand): "+c.Message)
}

// settled says whether a Job has failed or completed, or is about to.
func settled(job *batchv1.Job) bool {
	return condition(job, batchv1.JobFailed, batchv1.JobFailureTarget, batchv1.JobComplete, batchv1.JobSuccessCriteriaMet) != nil
}

// settles says whether a Job has ended or is going to by itself: one whose pod
// still has a container that runs is not, but for native sidecars, which end with
// the others. A Job is seen complete only a second after its pod.
func settles(job *batchv1.Job, p *corev1.Pod, podGone bool) bool {
	switch {
	case settled(job):
		return true
	case p == nil:
		return false
	case podGone, p.Status.Phase == corev1.PodSucceeded, p.Status.Phase == corev1.PodFailed:
		return !suspended(job)
	}
	for _, c := range p.Spec.Containers {
		if cs := containerOf(p, c.Name); cs == nil || cs.State.Terminated == nil {
			return false
		}
	}
	return true
}

func suspended(job *batchv1.Job) bool {
	return job != nil && job.Spec.Suspend != nil && *job.Spec.Suspend
}

func condition(job *batchv1.Job, types ...batchv1.JobConditionType) *batchv1.JobCondition {
	if job == nil {
		return nil
	}
	for _, t := range types {
		for i := range job.Status.Conditions {
			if c := &job.Status.Conditions[i]; c.Type == t && c.Status == corev1.ConditionTrue {
				return c
			}
		}
	}
	return nil
}

func disruption(p *corev1.Pod) *corev1.PodCondition {
	for i := range p.Status.Conditions {
		if c := &p.Status.Conditions[i]; c.Type == corev1.DisruptionTarget && c.Status == corev1.ConditionTrue {
			return c
		}
	}
	return nil
}

func containerOf(p *corev1.Pod, name string) *corev1.ContainerStatus {
	for i := range p.Status.ContainerStatuses {
		if p.Status.ContainerStatuses[i].Name == name {
			return &p.Status.ContainerStatuses[i]
		}
	}
	return nil
}

func memoryLimit(p *corev1.Pod, name string) string {
	for _, c := range p.Spec.Containers {
		if q, ok := c.Resources.Limits[corev1.ResourceMemory]; ok && c.Name == name {
			return "; its limit is " + q.String()
		}
	}
	return ""
}

// hold is a container that waits.
type hold struct{ container, imageName, reason, message string }

func (h *hold) image() string {
	return strings.TrimSuffix(fmt.Sprintf("the image %q of the container %s cannot be had (%s): %s", h.imageName, h.container, h.reason, h.message), ": ")
}

func (h *hold) noSecret() bool {
	return h.reason == "CreateContainerConfigError" && strings.Contains(h.message, "not found")
}

// waiting is the first container that waits for more than its turn.
func waiting(p *corev1.Pod) *hold {
	for _, list := range [][]corev1.ContainerStatus{p.Status.InitContainerStatuses, p.Status.ContainerStatuses} {
		for _, cs := range list {
			if w := cs.State.Waiting; w != nil && w.Reason != "" && w.Reason != "PodInitializing" && w.Reason != "ContainerCreating" {
				h := &hold{container: cs.Name, imageName: cs.Image, reason: w.Reason, message: w.Message}
				for _, c := range append(append([]corev1.Container{}, p.Spec.InitContainers...), p.Spec.Containers...) {
					if c.Name == cs.Name {
						h.imageName = c.Image // as the template has it
					}
				}
				return h
			}
		}
	}
	return nil
}

func badImage(reason string) bool {
	switch reason {
	case "ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull", "ImageInspectError", "RegistryUnavailable", "SignatureValidationFailed":
		return true
	}
	return false
}

// busyRegistry says whether a pull failed by a fault that passes: those wait for
// as long as the start may take.
func busyRegistry(message string) bool {
	m := strings.ToLower(message)
	for _, s := range []string{"toomanyrequests", "too many requests", "rate limit", "429", "pull qps exceeded", "timeout", "timed out", "connection refused", "connection reset", "no such host", "temporary failure", "503", "502", "500 internal", "unavailable", "unexpected eof"} {
		if strings.Contains(m, s) {
			return true
		}
	}
	return false
}

// pending says what a pod that does not run yet waits for.
func pending(v view) state {
	s := state{phase: fulgur.PhaseStarting}
	if w := waiting(v.pod); w != nil {
		if s.image = badImage(w.reason); s.image {
			s.why = w.image()
		} else {
			s.secret = v.adopted && w.noSecret()
			s.why = strings.TrimSuffix(fmt.Sprintf("its container %s waits: %s: %s", w.container, w.reason, w.message), ": ")
		}
		return s
	}
	for _, c := range v.pod.Status.Conditions {
		if c.Type == corev1.PodScheduled && c.Status == corev1.ConditionFalse {
			if c.Reason == corev1.PodReasonSchedulingGated {
				s.phase = fulgur.PhaseWaiting
			}
			s.why = strings.TrimSuffix(fmt.Sprintf("no node takes its pod (%s): %s", c.Reason, c.Message), ": ")
			return s
		}
	}
	if v.pod.Spec.NodeName != "" {
		s.why = "its pod is being made ready on node " + v.pod.Spec.NodeName + yetToRun(v.pod)
	} else {
		s.why = "its pod waits for the scheduler"
	}
	return s
}

// yetToRun names the container that is being made now.
func yetToRun(p *corev1.Pod) string {
	for _, list := range [][]corev1.ContainerStatus{p.Status.InitContainerStatuses, p.Status.ContainerStatuses} {
		for _, cs := range list {
			if cs.State.Waiting != nil {
				return fmt.Sprintf(": its container %s does not run yet, whose image %s may still be on its way", cs.Name, cs.Image)
			}
		}
	}
	return ""
}

// quotaMessage says whether a refusal is for want of quota, which others give back.
func quotaMessage(m string) bool { return strings.Contains(m, "exceeded quota") }

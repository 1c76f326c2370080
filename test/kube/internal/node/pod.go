package node

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// podRun is a pod on this node.
type podRun struct {
	p   *provider
	pod *v1.Pod // as it was when it came; only its metadata may change
	dir string

	ctx      context.Context // ends when the pod is to end; its cause says why
	end      context.CancelCauseFunc
	hard     context.Context // ends when its grace is over
	force    context.CancelFunc
	finished chan struct{}

	vols map[string]string // set before the first container starts

	telling sync.Mutex // held while a status is told: what is told last is the newest
	mu      sync.Mutex
	seen    *v1.Pod // the newest version that was handed over
	st      v1.PodStatus
}

// Why a pod ends before its containers do.
type (
	deleted  struct{ error }
	deadline struct{ error }
	evicted  struct {
		error
		msg string
	}
)

func newPodRun(p *provider, pod *v1.Pod) *podRun {
	r := &podRun{p: p, pod: pod, seen: pod, dir: filepath.Join(p.dir, "pods", string(pod.UID)), finished: make(chan struct{})}
	r.ctx, r.end = context.WithCancelCause(context.Background())
	r.hard, r.force = context.WithCancel(context.Background())
	now := metav1.Now()
	r.st = v1.PodStatus{Phase: v1.PodPending, StartTime: &now, HostIP: podIP, HostIPs: []v1.HostIP{{IP: podIP}},
		PodIP: podIP, PodIPs: []v1.PodIP{{IP: podIP}}, QOSClass: pod.Status.QOSClass,
		Conditions: []v1.PodCondition{{Type: v1.PodScheduled, Status: v1.ConditionTrue, LastTransitionTime: now}}}
	for _, c := range pod.Spec.InitContainers {
		r.st.InitContainerStatuses = append(r.st.InitContainerStatuses, creating(c))
	}
	for _, c := range pod.Spec.Containers {
		r.st.ContainerStatuses = append(r.st.ContainerStatuses, creating(c))
	}
	return r
}

func creating(c v1.Container) v1.ContainerStatus {
	return v1.ContainerStatus{Name: c.Name, Image: c.Image, State: v1.ContainerState{Waiting: &v1.ContainerStateWaiting{Reason: "ContainerCreating"}}}
}

// terminate ends the pod, politely until grace is over. A later call can only shorten it.
func (r *podRun) terminate(why error, grace time.Duration) {
	r.end(why)
	time.AfterFunc(grace, r.force)
}

func (r *podRun) grace() time.Duration {
	if g := r.pod.Spec.TerminationGracePeriodSeconds; g != nil {
		return time.Duration(*g) * time.Second
	}
	return 30 * time.Second
}

// run sees the pod to its end.
func (r *podRun) run() {
	defer close(r.finished)
	defer r.force()
	if d := r.pod.Spec.ActiveDeadlineSeconds; d != nil {
		t := time.AfterFunc(time.Duration(*d)*time.Second, func() { r.terminate(deadline{errors.New("deadline")}, r.grace()) })
		defer t.Stop()
	}
	volumes := filepath.Join(r.dir, "volumes")
	defer func() { _ = os.RemoveAll(volumes) }()
	r.publish()
	if r.mount(volumes) {
		r.containers()
	}
	r.finish()
	r.publish()
}

// mount makes the volumes; while it cannot, the pod waits.
func (r *podRun) mount(dir string) bool {
	for {
		vols, err := r.p.volumes(r.ctx, r.pod, dir)
		if err == nil {
			r.vols = vols
			return true
		}
		if r.ctx.Err() == nil {
			r.p.event(r.pod, v1.EventTypeWarning, "FailedMount", err.Error())
		}
		if !sleep(r.ctx, time.Second) {
			return false
		}
	}
}

// containers runs init containers one after the other, sidecars beside what
// follows them, and the others all at once.
func (r *podRun) containers() {
	type sidecar struct {
		stop context.CancelFunc
		done chan struct{}
	}
	var sidecars []sidecar
	defer func() {
		if len(sidecars) > 0 {
			time.AfterFunc(r.grace(), r.force)
		}
		for _, s := range slices.Backward(sidecars) {
			s.stop()
			<-s.done
		}
	}()
	for i := range r.pod.Spec.InitContainers {
		k := &container{podRun: r, c: &r.pod.Spec.InitContainers[i], init: true, i: i}
		if !k.sidecar() {
			if !k.run(r.ctx, func() {}) {
				return
			}
			continue
		}
		ctx, stop := context.WithCancel(context.WithoutCancel(r.ctx))
		s := sidecar{stop, make(chan struct{})}
		sidecars = append(sidecars, s)
		up := make(chan struct{})
		go func() {
			defer close(s.done)
			k.run(ctx, sync.OnceFunc(func() { close(up) }))
		}()
		select {
		case <-up:
		case <-r.ctx.Done():
			return
		}
	}
	r.mu.Lock()
	r.conditionLocked(v1.PodInitialized, v1.ConditionTrue, "")
	r.mu.Unlock()
	running := sync.OnceFunc(func() {
		r.mu.Lock()
		r.st.Phase = v1.PodRunning
		r.conditionLocked(v1.PodReady, v1.ConditionTrue, "")
		r.conditionLocked(v1.ContainersReady, v1.ConditionTrue, "")
		r.mu.Unlock()
	})
	var wg sync.WaitGroup
	for i := range r.pod.Spec.Containers {
		k := &container{podRun: r, c: &r.pod.Spec.Containers[i], i: i}
		wg.Go(func() { k.run(r.ctx, running) })
	}
	wg.Wait()
}

// finish gives the pod its final phase: what its containers say, unless the node
// had a reason of its own to end it.
func (r *podRun) finish() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.st.Phase = v1.PodSucceeded
	unknown := func(list []v1.ContainerStatus) {
		for i := range list {
			if s := &list[i].State; s.Terminated == nil {
				*s = v1.ContainerState{Terminated: &v1.ContainerStateTerminated{ExitCode: 137, Reason: "ContainerStatusUnknown",
					Message: "The container could not be located when the pod was terminated"}}
			}
		}
	}
	unknown(r.st.InitContainerStatuses)
	unknown(r.st.ContainerStatuses)
	for _, s := range r.st.ContainerStatuses {
		if s.State.Terminated.ExitCode != 0 {
			r.st.Phase = v1.PodFailed
		}
	}
	var late deadline
	var out evicted
	switch why := context.Cause(r.ctx); {
	case errors.As(why, &late):
		r.st.Phase, r.st.Reason, r.st.Message = v1.PodFailed, "DeadlineExceeded", "Pod was active on the node longer than the specified deadline"
	case errors.As(why, &out):
		r.st.Phase, r.st.Reason, r.st.Message = v1.PodFailed, "Evicted", out.msg
		r.conditionLocked(v1.DisruptionTarget, v1.ConditionTrue, v1.PodReasonTerminationByKubelet)
	}
	r.conditionLocked(v1.PodReady, v1.ConditionFalse, "PodCompleted")
	r.conditionLocked(v1.ContainersReady, v1.ConditionFalse, "PodCompleted")
}

// lost says that the pod ran here before this node restarted: its containers went with it.
func (r *podRun) lost() {
	defer close(r.finished)
	r.finish()
	r.publish()
}

func (r *podRun) conditionLocked(t v1.PodConditionType, s v1.ConditionStatus, reason string) {
	c := v1.PodCondition{Type: t, Status: s, Reason: reason, LastTransitionTime: metav1.Now()}
	if i := slices.IndexFunc(r.st.Conditions, func(c v1.PodCondition) bool { return c.Type == t }); i >= 0 {
		r.st.Conditions[i] = c
		return
	}
	r.st.Conditions = append(r.st.Conditions, c)
}

// publish tells the pod's status. Everything else of it is the API server's
// newest: a status update would write old finalizers back.
func (r *podRun) publish() {
	r.telling.Lock()
	defer r.telling.Unlock()
	r.mu.Lock()
	out := r.seen.DeepCopy()
	st := *r.st.DeepCopy()
	r.mu.Unlock()
	if cur, err := r.p.cfg.Pods.Pods(out.Namespace).Get(out.Name); err == nil && cur.UID == out.UID {
		out = cur.DeepCopy()
		// Others write conditions too: the one that names a disruption.
		for _, c := range cur.Status.Conditions {
			if !slices.ContainsFunc(st.Conditions, func(o v1.PodCondition) bool { return o.Type == c.Type }) {
				st.Conditions = append(st.Conditions, c)
			}
		}
		st.QOSClass = cur.Status.QOSClass
	}
	out.Status = st
	r.p.notify(out)
}

func (r *podRun) current() *v1.Pod {
	r.mu.Lock()
	defer r.mu.Unlock()
	out := r.seen.DeepCopy()
	out.Status = *r.st.DeepCopy()
	return out
}

package kube

import (
	"strings"
	"testing"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/fulgur-rl/fulgur"
	"github.com/fulgur-rl/fulgur/internal/controller/plan"
)

var now = time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)

func pod(change ...func(*corev1.Pod)) *corev1.Pod {
	p := &corev1.Pod{Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "agent", Image: "does-not-exist:1",
		Resources: corev1.ResourceRequirements{}}, {Name: "proxy", Image: "proxy:1"}}}}
	p.Status.Phase = corev1.PodPending
	for _, f := range change {
		f(p)
	}
	return p
}

func status(name string, s corev1.ContainerState) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		p.Status.ContainerStatuses = append(p.Status.ContainerStatuses, corev1.ContainerStatus{Name: name, Image: "resolved/" + name, State: s})
	}
}

func runs(name string) func(*corev1.Pod) {
	return status(name, corev1.ContainerState{Running: &corev1.ContainerStateRunning{}})
}

func exited(code int32, reason string) func(*corev1.Pod) {
	return status("agent", corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: code, Reason: reason, Message: "its message"}})
}

func waits(reason, message string) func(*corev1.Pod) {
	return status("agent", corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: reason, Message: message}})
}

func phase(p corev1.PodPhase, reason, message string) func(*corev1.Pod) {
	return func(pod *corev1.Pod) { pod.Status.Phase, pod.Status.Reason, pod.Status.Message = p, reason, message }
}

func podCondition(t corev1.PodConditionType, s corev1.ConditionStatus, reason, message string) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		p.Status.Conditions = append(p.Status.Conditions, corev1.PodCondition{Type: t, Status: s, Reason: reason, Message: message})
	}
}

func deleted(p *corev1.Pod) { at := metav1.NewTime(now); p.DeletionTimestamp = &at }

func onNode(p *corev1.Pod) { p.Spec.NodeName = "node-7" }

func aJob(suspend bool, conditions ...batchv1.JobCondition) *batchv1.Job {
	return &batchv1.Job{Spec: batchv1.JobSpec{Suspend: &suspend}, Status: batchv1.JobStatus{Conditions: conditions}}
}

func jobCondition(t batchv1.JobConditionType, reason string) batchv1.JobCondition {
	return batchv1.JobCondition{Type: t, Status: corev1.ConditionTrue, Reason: reason}
}

func TestLook(t *testing.T) {
	const starting, waiting, running, ended = fulgur.PhaseStarting, fulgur.PhaseWaiting, fulgur.PhaseRunning, fulgur.PhaseEnded
	for name, test := range map[string]struct {
		v     view
		phase fulgur.Phase
		why   string // contained in why, or in the exit's message
		code  int    // of an exit without a failure
		fail  string
		cause plan.Cause
	}{
		"no pod yet":                                            {v: view{job: aJob(false)}, phase: starting, why: "no pod yet"},
		"a suspended Job waits (Kueue)":                         {v: view{job: aJob(true)}, phase: waiting, why: "suspended"},
		"no quota for its pod":                                  {v: view{job: aJob(false), noPod: `pods "x" is forbidden: exceeded quota: q`}, phase: waiting, why: "exceeded quota: q"},
		"no pod for another reason":                             {v: view{job: aJob(false), noPod: "violates PodSecurity"}, phase: starting, why: "violates PodSecurity"},
		"no node takes it":                                      {v: view{pod: pod(podCondition(corev1.PodScheduled, corev1.ConditionFalse, "Unschedulable", "0/3 nodes are available: 3 Insufficient memory."))}, phase: starting, why: "3 Insufficient memory"},
		"a gated pod waits":                                     {v: view{pod: pod(podCondition(corev1.PodScheduled, corev1.ConditionFalse, "SchedulingGated", ""))}, phase: waiting, why: "SchedulingGated"},
		"its node makes it ready":                               {v: view{pod: pod(onNode, waits("ContainerCreating", ""))}, phase: starting, why: "node-7"},
		"it runs":                                               {v: view{pod: pod(runs("agent"), runs("proxy"))}, phase: running},
		"a sidecar runs, it does not yet":                       {v: view{pod: pod(runs("proxy"), waits("CreateContainerError", "no such device"))}, phase: starting, why: "no such device"},
		"an image that is still fetched":                        {v: view{pod: pod(waits("ContainerCreating", ""), func(p *corev1.Pod) { p.Spec.NodeName = "n1" })}, phase: starting, why: "node n1: its container agent does not run yet, whose image"},
		"an image that fails at first":                          {v: view{pod: pod(waits("ErrImagePull", "not found"))}, phase: starting, why: `"does-not-exist:1"`},
		"and for long (CK-01)":                                  {v: view{pod: pod(waits("ImagePullBackOff", "Back-off pulling")), badSince: now.Add(-time.Minute)}, phase: ended, fail: plan.ReasonImage, cause: plan.CausePermanent, why: `"does-not-exist:1" of the container agent cannot be had (ImagePullBackOff)`},
		"a registry that throttles (CK-13)":                     {v: view{pod: pod(waits("ErrImagePull", "429 toomanyrequests: slow down")), badSince: now.Add(-time.Minute)}, phase: starting, why: "toomanyrequests"},
		"an image that is no name":                              {v: view{pod: pod(waits("InvalidImageName", "invalid reference format"))}, phase: ended, fail: plan.ReasonImage, cause: plan.CausePermanent, why: "invalid reference"},
		"no Secret yet":                                         {v: view{pod: pod(waits("CreateContainerConfigError", `secret "x" not found`))}, phase: starting, why: "not found"},
		"no Secret ever, its controller died before it made it": {v: view{adopted: true, badSince: now.Add(-time.Minute), pod: pod(waits("CreateContainerConfigError", `secret "x" not found`))}, phase: ended, fail: plan.ReasonLost, cause: plan.CauseTransient, why: "not found"},

		"it exits well":                          {v: view{pod: pod(exited(0, "Completed"))}, phase: ended},
		"it exits well beside a sidecar (CK-08)": {v: view{pod: pod(phase(corev1.PodRunning, "", ""), runs("proxy"), exited(0, "Completed"))}, phase: ended},
		"it exits with 1 (CK-09)":                {v: view{pod: pod(exited(1, "Error"))}, phase: ended, code: 1},
		"out of memory (CK-09)":                  {v: view{pod: pod(exited(137, "OOMKilled"))}, phase: ended, fail: plan.ReasonMemory, cause: plan.CauseAgent, why: "exit code 137"},
		"evicted (CK-09)":                        {v: view{pod: pod(phase(corev1.PodFailed, "Evicted", "The node was low on resource: memory."))}, phase: ended, fail: plan.ReasonEvicted, cause: plan.CauseEither, why: "low on resource"},
		"evicted for its own disk":               {v: view{pod: pod(phase(corev1.PodFailed, "Evicted", "Pod ephemeral local storage usage exceeds the total limit of containers 1Gi."))}, phase: ended, fail: plan.ReasonDisk, cause: plan.CauseAgent, why: "1Gi"},
		"drained (CK-09)":                        {v: view{pod: pod(deleted, exited(143, "Error"), podCondition(corev1.DisruptionTarget, corev1.ConditionTrue, "EvictionByEvictionAPI", "Eviction API: evicting"))}, phase: ended, fail: plan.ReasonNode, cause: plan.CauseTransient, why: "drained"},
		"preempted":                              {v: view{pod: pod(deleted, exited(143, "Error"), podCondition(corev1.DisruptionTarget, corev1.ConditionTrue, "PreemptionByScheduler", "preempting to accommodate a higher priority pod"))}, phase: ended, fail: plan.ReasonPreempted, cause: plan.CauseTransient, why: "higher priority"},
		"its node is lost":                       {v: view{podGone: true, pod: pod(deleted, runs("agent"), podCondition(corev1.DisruptionTarget, corev1.ConditionTrue, "DeletionByTaintManager", "Taint manager: deleting due to NoExecute taint"))}, phase: ended, fail: plan.ReasonNode, cause: plan.CauseTransient, why: "lost"},
		"evicted, but it had done its work":      {v: view{pod: pod(phase(corev1.PodFailed, "Evicted", "low"), exited(0, "Completed"))}, phase: ended},
		"its node goes down":                     {v: view{pod: pod(phase(corev1.PodFailed, "Terminated", "Pod was terminated in response to imminent node shutdown."), exited(143, "Error"))}, phase: ended, fail: plan.ReasonNode, cause: plan.CauseTransient, why: "shutdown"},
		"its node has no room after all":         {v: view{pod: pod(phase(corev1.PodFailed, "OutOfcpu", "Node didn't have enough resource"))}, phase: ended, fail: plan.ReasonUnschedulable, cause: plan.CauseTransient, why: "enough resource"},
		"no such program":                        {v: view{pod: pod(exited(128, "StartError"))}, phase: ended, fail: plan.ReasonSpawn, cause: plan.CausePermanent, why: "its message"},
		"an init container fails": {v: view{pod: pod(phase(corev1.PodFailed, "", ""), func(p *corev1.Pod) {
			p.Status.InitContainerStatuses = []corev1.ContainerStatus{{Name: "clone", State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: 2, Reason: "Error"}}}}
		})}, phase: ended, fail: plan.ReasonSpawn, cause: plan.CausePermanent, why: "clone exited with code 2"},
		"deleted by hand, the Job will say more": {v: view{job: aJob(false), pod: pod(deleted, exited(143, "Error"))}, phase: running},
		"deleted by hand":                        {v: view{job: aJob(false, jobCondition(batchv1.JobFailed, "BackoffLimitExceeded")), pod: pod(deleted, exited(143, "Error"))}, phase: ended, fail: plan.ReasonDeleted, cause: plan.CauseTransient, why: "by somebody else"},
		"the far deadline":                       {v: view{job: aJob(false, jobCondition(batchv1.JobFailureTarget, "DeadlineExceeded")), pod: pod(deleted, exited(143, "Error"))}, phase: ended, fail: plan.ReasonDeadline, cause: plan.CauseEither, why: "deadline"},
		"suspended while it ran":                 {v: view{job: aJob(true), ran: true, podGone: true, pod: pod(deleted, runs("agent"))}, phase: ended, fail: plan.ReasonPreempted, cause: plan.CauseTransient, why: "suspended"},
		"suspended before it ran":                {v: view{job: aJob(true), podGone: true, pod: pod(deleted)}, phase: waiting, why: "suspended"},
		"the Job is deleted":                     {v: view{job: aJob(false), gone: true}, phase: ended, fail: plan.ReasonDeleted, cause: plan.CauseTransient, why: "Job was deleted"},
		"completed while nobody looked (CK-04)":  {v: view{job: aJob(false, jobCondition(batchv1.JobComplete, ""))}, phase: ended},
		"failed while nobody looked":             {v: view{job: aJob(false, jobCondition(batchv1.JobFailed, "BackoffLimitExceeded"))}, phase: ended, fail: plan.ReasonDeleted, cause: plan.CauseTransient, why: "its pod is gone"},
		"a deadline while nobody looked":         {v: view{job: aJob(false, jobCondition(batchv1.JobFailed, "DeadlineExceeded"))}, phase: ended, fail: plan.ReasonDeadline, cause: plan.CauseEither, why: "deadline"},
		"the node has lost sight of it":          {v: view{pod: pod(exited(137, "ContainerStatusUnknown"))}, phase: ended, fail: plan.ReasonNode, cause: plan.CauseTransient, why: "lost sight"},
	} {
		t.Run(name, func(t *testing.T) {
			v := test.v
			v.agent, v.now, v.limit = "agent", now, 20*time.Second
			s := look(v)
			if s.phase != test.phase {
				t.Fatalf("phase %s, want %s (%+v, %+v)", s.phase, test.phase, s, s.exit)
			}
			said := s.why
			if s.exit != nil {
				said = s.exit.Message
				if s.exit.Failure != test.fail || test.fail == "" && s.exit.Code != test.code || test.fail != "" && s.exit.Cause != test.cause {
					t.Errorf("exit %+v", *s.exit)
				}
			}
			if !strings.Contains(said, test.why) {
				t.Errorf("it says %q, want %q", said, test.why)
			}
		})
	}
}

func TestWhatSettlesByItself(t *testing.T) {
	over := corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{}}
	for name, test := range map[string]struct {
		job     *batchv1.Job
		pod     *corev1.Pod
		podGone bool
		want    bool
	}{
		"nothing is known of it":                   {job: aJob(false)},
		"complete":                                 {job: aJob(false, jobCondition(batchv1.JobComplete, "")), want: true},
		"its pod has ended, it is to notice":       {job: aJob(false), pod: pod(phase(corev1.PodSucceeded, "", "")), want: true},
		"all containers have, the phase is behind": {job: aJob(false), pod: pod(phase(corev1.PodRunning, "", ""), exited(0, ""), status("proxy", over)), want: true},
		"what runs beside the agent would go on":   {job: aJob(false), pod: pod(phase(corev1.PodRunning, "", ""), exited(0, ""), runs("proxy"))},
		"an image that cannot be had":              {job: aJob(false), pod: pod(waits("ImagePullBackOff", ""))},
		"its pod is gone":                          {job: aJob(false), pod: pod(), podGone: true, want: true},
		"its pod is gone, and it is suspended":     {job: aJob(true), pod: pod(), podGone: true},
	} {
		t.Run(name, func(t *testing.T) {
			if got := settles(test.job, test.pod, test.podGone); got != test.want {
				t.Errorf("%v, want %v", got, test.want)
			}
		})
	}
}

package kube

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/fulgur-rl/fulgur"
	"github.com/fulgur-rl/fulgur/internal/controller"
	"github.com/fulgur-rl/fulgur/internal/controller/grade"
	"github.com/fulgur-rl/fulgur/internal/controller/plan"
)

// Artifacts are files that attempts leave with the gateway; the store's, or a client's.
type Artifacts interface {
	Artifacts(ctx context.Context, key fulgur.AttemptKey) ([]fulgur.Artifact, error)
	Artifact(ctx context.Context, key fulgur.AttemptKey, name string) (fulgur.Artifact, io.ReadCloser, error)
	PutArtifact(ctx context.Context, key fulgur.AttemptKey, name, reader string, body io.Reader, most int64) (fulgur.Artifact, bool, error)
	DeleteArtifact(ctx context.Context, key fulgur.AttemptKey, name string) error
}

const (
	takeLimit  = 3 * time.Minute // from an agent's end to its workspace's arrival
	testsTick  = 100 * time.Millisecond
	cleanLimit = 30 * time.Second
	copyPrefix = "tests-" // of artifacts that tests' pods fetch
)

// Grades implements controller.Grader.
func (r *Runner) Grades() bool { return r.grader != nil }

// Grade implements controller.Grader.
func (r *Runner) Grade(ctx context.Context, x controller.Grading) (controller.Grade, error) {
	return r.grader.Grade(ctx, x)
}

// takes says whether an exit waits for the agent's workspace.
func (r *Runner) takes(a *attempt, x plan.Exit) bool {
	return !a.taken && !r.closed && a.uid != "" && r.grader.Takes(x, a.stopping)
}

// takeLocked has an attempt end when its workspace is here, or does not come: one that has
// failed is then not graded.
func (r *Runner) takeLocked(a *attempt, x plan.Exit) {
	a.ending = true
	well := x.Code == 0 && x.Failure == "" && x.Signal == "" && !a.stopping
	r.spawn(func(ctx context.Context) {
		missing := r.collect(ctx, a)
		if ctx.Err() != nil {
			return // a successor asks for it again
		}
		r.mu.Lock()
		defer r.mu.Unlock()
		a.ending, a.taken = false, true
		switch {
		case missing == nil:
			r.works[a.key], a.well = a, well
		case well:
			x = *missing
		default:
			r.log.Info("what a failed agent has left is not graded: it is not here", "rollout", a.key.Rollout, "attempt", a.key.Attempt, "err", missing.Message)
		}
		r.endLocked(a, x)
	})
}

// letGoLocked forgets what an agent has left, whose end is on record.
func (r *Runner) letGoLocked(key plan.Key) {
	a := r.works[key]
	delete(r.works, key)
	if a == nil || r.KeepWork == "" || r.KeepWork == controller.KeepAll || r.KeepWork == controller.KeepFailures && !a.well {
		return
	}
	r.spawn(func(ctx context.Context) {
		if err := r.Artifacts.DeleteArtifact(ctx, fulgur.AttemptKey(key), WorkArtifact); err != nil && ctx.Err() == nil {
			r.log.Warn("what an agent has left could not be removed; it goes with its rollout's records", "rollout", key.Rollout, "err", err)
		}
	})
}

// collect waits for what an agent has left, which its sidecar hands over, and takes it. An
// exit says why it does not come.
func (r *Runner) collect(ctx context.Context, a *attempt) *plan.Exit {
	key := fulgur.AttemptKey(a.key)
	away := false // the server was, which no agent brings about
	missing := func(why string) *plan.Exit {
		x := failed(plan.ReasonWorkspace, "what the agent has left did not come out of its pod: "+why)
		if away {
			x.Cause = plan.CauseTransient
		}
		return x
	}
	for wait, end := testsTick, time.Now().Add(takeLimit); ; wait = min(2*wait, 2*time.Second) {
		over, said, x := r.handedOver(a)
		list, err := r.Artifacts.Artifacts(ctx, key)
		for _, f := range list {
			if f.Name == WorkArtifact {
				err = r.fetch(ctx, a.key)
			} else if f.Name == RefusedArtifact {
				err = r.refuse(ctx, a.key)
			} else {
				continue
			}
			if err == nil {
				r.clearCopies(ctx, key, list)
				return nil
			}
		}
		away = away || err != nil
		switch {
		case ctx.Err() != nil:
			return missing("its controller ended")
		case fulgur.KindOf(err) == fulgur.KindNotFound:
			return missing("its rollout is there no more")
		case err == nil && over && x != nil:
			return x
		case err == nil && over:
			return missing(strings.TrimSuffix("its sidecar ("+relayName+") ended without handing it over: "+said, ": "))
		case time.Now().After(end) && err != nil:
			return missing(err.Error())
		case time.Now().After(end):
			return missing(fmt.Sprintf("it was not there after %s", takeLimit))
		}
		pause(ctx, wait)
	}
}

// clearCopies removes what a controller that was killed has lent to tests.
func (r *Runner) clearCopies(ctx context.Context, key fulgur.AttemptKey, list []fulgur.Artifact) {
	for _, f := range list {
		if !strings.HasPrefix(f.Name, copyPrefix) {
			continue
		}
		if err := r.Artifacts.DeleteArtifact(ctx, key, f.Name); err != nil && ctx.Err() == nil {
			r.log.Warn("a copy that an earlier controller had tested could not be removed; it goes with its rollout's records", "rollout", key.Rollout, "artifact", f.Name, "err", err)
		}
	}
}

// handedOver says whether an attempt's sidecar has ended, and with it all hope, what it
// said last, and what ended it from outside, if anything did.
func (r *Runner) handedOver(a *attempt) (over bool, said string, x *plan.Exit) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if a.pod == nil {
		return a.jobGone || settled(a.job), "", nil
	}
	over = a.podGone || a.jobGone || a.pod.Status.Phase == corev1.PodSucceeded || a.pod.Status.Phase == corev1.PodFailed
	if t := initEnd(a.pod, relayName); t != nil {
		over, said = true, controller.LastLines([]byte(t.Message))
	}
	return over, said, outside(view{job: a.job, pod: a.pod, podGone: a.podGone})
}

// fetch takes a workspace that was handed over.
func (r *Runner) fetch(ctx context.Context, key plan.Key) error {
	_, body, err := r.Artifacts.Artifact(ctx, fulgur.AttemptKey(key), WorkArtifact)
	if err != nil {
		return err
	}
	defer func() { _ = body.Close() }()
	dir := filepath.Join(r.State, "workspaces", controller.FileName(key))
	if err := controller.RemoveAll(dir); err != nil {
		return err
	}
	defer func() { _ = controller.RemoveAll(dir) }()
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	src := &source{Reader: body}
	switch err := grade.Unpack(src, dir, r.workSize()); {
	case err != nil && (src.err != nil || grade.Machine(err)):
		return err
	case err != nil: // how its files are called, and who may read them, is the agent's doing
		r.grader.Refuse(key, "the workspace cannot be unpacked: "+err.Error())
	default:
		r.grader.Take(key, dir)
	}
	return nil
}

// source notes an error of the server's, or of the way to it.
type source struct {
	io.Reader
	err error
}

func (s *source) Read(p []byte) (int, error) {
	n, err := s.Reader.Read(p)
	if err != nil && err != io.EOF {
		s.err = err
	}
	return n, err
}

// refuse notes why a workspace was not handed over.
func (r *Runner) refuse(ctx context.Context, key plan.Key) error {
	_, body, err := r.Artifacts.Artifact(ctx, fulgur.AttemptKey(key), RefusedArtifact)
	if err != nil {
		return err
	}
	defer func() { _ = body.Close() }()
	why, err := io.ReadAll(io.LimitReader(body, 1000))
	if err == nil {
		r.grader.Refuse(key, strings.ToValidUTF8(string(why), "\uFFFD"))
	}
	return err
}

// test is grade.RunApart: a Job of the agent's image that gets the copy and has nothing
// of the attempt's. It is told apart from attempts by having none of their labels.
func (r *Runner) test(ctx context.Context, t grade.Test) (exit int, err error) {
	artifact := copyPrefix + strings.ToLower(rand.Text())
	secret := rand.Text()
	r.mu.Lock()
	of := r.works[t.Key]
	if of == nil || of.job == nil {
		r.mu.Unlock()
		return -1, fulgur.E(fulgur.KindUnavailable, "", "nobody knows the Job of its agent, which its tests' is made of", nil)
	}
	o, err := r.testObjects(of.job, of.agent, t, artifact, secret)
	if err == nil && of.jobGone { // it was stopped: what belongs to it would go too
		o.job.OwnerReferences = nil
	}
	r.mu.Unlock()
	if err != nil {
		return -1, err
	}
	defer func() {
		clear, done := context.WithTimeout(context.WithoutCancel(ctx), cleanLimit)
		defer done()
		if err := r.Artifacts.DeleteArtifact(clear, fulgur.AttemptKey(t.Key), artifact); err != nil {
			r.log.Warn("the copy that was tested could not be removed; it goes with its rollout's records", "rollout", t.Key.Rollout, "artifact", artifact, "err", err)
		}
	}()
	if err := r.lend(ctx, t, artifact, secret); err != nil {
		return -1, err
	}
	a := &attempt{name: o.job.Name, agent: testsName}
	r.mu.Lock()
	r.byName[a.name] = a // what is seen of its Job and pod is noted there; it is no attempt
	r.mu.Unlock()
	defer func() {
		r.mu.Lock()
		r.dropLocked(a)
		r.mu.Unlock()
	}()
	if err := r.submitTests(ctx, a, o); err != nil {
		return -1, err
	}
	defer func() {
		clear, done := context.WithTimeout(context.WithoutCancel(ctx), cleanLimit)
		defer done()
		err := r.c.call(clear, http.MethodDelete, r.c.path("batch/v1/jobs/"+a.name), nil, deleteOptions(metav1.DeletePropagationBackground, a.uid), nil)
		if s := statusOf(err); err != nil && s != http.StatusNotFound && s != http.StatusConflict {
			r.log.Warn("a Job of tests could not be removed; it goes with its agent's", "job", a.name, "err", err)
		}
	}()
	return r.watchTests(ctx, a, t)
}

// lend keeps the copy that is tested where the tests' pod can fetch it.
func (r *Runner) lend(ctx context.Context, t grade.Test, artifact, secret string) error {
	f, err := os.CreateTemp(filepath.Dir(t.Work), "copy")
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }() // it goes with its folder
	if err := grade.Pack(f, t.Work, 0); err != nil {
		return fmt.Errorf("packing the copy: %w", err)
	}
	if _, err := f.Seek(0, io.SeekStart); err != nil {
		return err
	}
	_, _, err = r.Artifacts.PutArtifact(ctx, fulgur.AttemptKey(t.Key), artifact, secret, f, math.MaxInt64)
	return err
}

// submitTests makes the tests' Job and its Secret. A cluster that has no room is waited for.
func (r *Runner) submitTests(ctx context.Context, a *attempt, o objects) error {
	var since time.Time
	for wait := time.Second; ; wait = min(2*wait, roomMost) {
		job := &batchv1.Job{}
		err := r.c.persist(ctx, http.MethodPost, r.c.path("batch/v1/jobs"), nil, o.job, job)
		if err == nil {
			r.mu.Lock()
			r.createdLocked(a, job)
			r.mu.Unlock()
			s := o.secret.DeepCopy()
			s.OwnerReferences = []metav1.OwnerReference{{APIVersion: "batch/v1", Kind: "Job", Name: job.Name, UID: job.UID}}
			return r.c.persist(ctx, http.MethodPost, r.c.path("v1/secrets"), nil, s, nil)
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if statusOf(err) != http.StatusForbidden {
			return fulgur.E(fulgur.KindUnavailable, "", "the cluster takes no Job of tests", err)
		}
		if since.IsZero() {
			since = time.Now()
			r.log.Warn("the cluster has no room for a Job of tests; it waits", "rollout", o.job.Annotations[noteTestsOf], "err", err)
		}
		if !quotaMessage(err.Error()) && time.Since(since) > refusedLimit {
			return fulgur.E(fulgur.KindUnavailable, "", fmt.Sprintf("the cluster refused a Job of tests for %s", refusedLimit), err)
		}
		if !pause(ctx, wait) {
			return ctx.Err()
		}
	}
}

// watchTests waits for the end of a Job of tests, which what the runner watches shows.
func (r *Runner) watchTests(ctx context.Context, a *attempt, t grade.Test) (int, error) {
	var running, bad time.Time
	starts := time.Now()
	for {
		now := time.Now()
		r.mu.Lock()
		s := look(view{job: a.job, gone: a.jobGone, pod: a.pod, podGone: a.podGone, ran: !running.IsZero(), noPod: a.noPod, agent: testsName, badSince: bad, limit: r.ImageLimit, now: now})
		r.mu.Unlock()
		switch {
		case !s.image:
			bad = time.Time{}
		case bad.IsZero():
			bad = now
		}
		switch {
		case s.phase == fulgur.PhaseEnded:
			return r.testsEnded(ctx, a, t, *s.exit)
		case s.phase == fulgur.PhaseRunning && running.IsZero():
			running = now
		case s.phase == fulgur.PhaseWaiting: // a queue's, or for quota
			starts = now
		}
		switch {
		case !running.IsZero() && now.Sub(running) > t.Timeout:
			r.testsLog(ctx, a, t.Out)
			return -1, context.DeadlineExceeded
		case running.IsZero() && now.Sub(starts) > testsWaitFor:
			return -1, fulgur.E(fulgur.KindUnavailable, "", fmt.Sprintf("the tests did not start within %s: %s", testsWaitFor, s.why), nil)
		}
		if !pause(ctx, testsTick) {
			return -1, ctx.Err()
		}
	}
}

// testsEnded reads how tests ended. That they used up what they may have is their own end;
// what comes from outside says nothing of the work.
func (r *Runner) testsEnded(ctx context.Context, a *attempt, t grade.Test, x plan.Exit) (int, error) {
	switch {
	case x.Failure == plan.ReasonSpawn:
		r.mu.Lock()
		t := initEnd(a.pod, copyName)
		r.mu.Unlock()
		if t != nil && t.ExitCode != 0 {
			return -1, fulgur.E(fulgur.KindUnavailable, "", strings.TrimSuffix("the copy did not come into the tests' pod: "+x.Message+": "+controller.LastLines([]byte(t.Message)), ": "), nil)
		}
		return -1, errors.New(x.Message)
	case x.Failure == plan.ReasonMemory || x.Failure == plan.ReasonDisk:
		r.testsLog(ctx, a, t.Out)
		_, _ = fmt.Fprintf(t.Out, "\n%s\n", x.Message)
		return -1, nil
	case x.Failure != "":
		return -1, fulgur.E(fulgur.KindUnavailable, "", "the tests' pod was lost: "+x.Message, nil)
	}
	return x.Code, r.testsLog(ctx, a, t.Out)
}

// initEnd is how an init container of a pod ended; nil: it has not.
func initEnd(p *corev1.Pod, name string) *corev1.ContainerStateTerminated {
	if p == nil {
		return nil
	}
	for _, cs := range p.Status.InitContainerStatuses {
		if cs.Name == name {
			return cs.State.Terminated
		}
	}
	return nil
}

// testsLog copies what tests have printed.
func (r *Runner) testsLog(ctx context.Context, a *attempt, out io.Writer) error {
	r.mu.Lock()
	pod := a.pod
	r.mu.Unlock()
	if pod == nil {
		return fulgur.E(fulgur.KindUnavailable, "", "nobody saw the tests' pod", nil)
	}
	ctx, done := context.WithTimeout(ctx, takeLimit)
	defer done()
	for {
		// Whole: what is kept of it, and that its end is, is for out to see to.
		resp, err := r.c.send(ctx, http.MethodGet, r.c.path("v1/pods/"+pod.Name+"/log"), url.Values{"container": {testsName}}, nil)
		if err != nil && broken(err) && pause(ctx, testsTick) {
			continue
		}
		if err == nil {
			_, err = io.Copy(out, resp.Body)
			_ = resp.Body.Close()
		}
		if err != nil {
			return fulgur.E(fulgur.KindUnavailable, "", "what the tests have printed cannot be read", err)
		}
		return nil
	}
}

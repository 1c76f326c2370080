// Package kube runs agents as Kubernetes Jobs, one per attempt: from v1's Jinja
// templates, from plain YAML, or from an image and a command.
//
// What an attempt is made of (template.go, job.go, names.go) and what its Job's
// state means (status.go) are decided in pure functions. Runner acts: it creates
// (create.go), watches (watch.go), stops and forgets (end.go), and takes over what
// an earlier controller left (adopt.go). Before the first attempt probes show what
// agents reach, and nodes fetch their images (prove.go, probe.go, prepull.go);
// Examine shows a person whether a cluster is fit. Nothing is asked of the API server
// but what changes: two watches, three requests an attempt, one more for the log of
// one that failed.
package kube

import (
	"context"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/fulgur-rl/fulgur"
	"github.com/fulgur-rl/fulgur/internal/controller"
	"github.com/fulgur-rl/fulgur/internal/controller/grade"
	"github.com/fulgur-rl/fulgur/internal/controller/plan"
)

// Runner runs Jobs. It implements controller.Runner, Acknowledger, Leaver, Prover and Grader.
type Runner struct {
	*maker
	c      *client
	log    *slog.Logger
	grader *grade.Grader // nil: nothing is graded

	adoptLimit, forceAfter time.Duration // the constants

	spawn   func(func(context.Context)) // runs f until it returns, or the runner's life is over
	cancel  context.CancelFunc
	wg      sync.WaitGroup
	events  chan controller.Event
	gone    chan struct{} // closed when nobody hears events any more
	wake    chan struct{} // the creator has something to do
	ring    chan struct{} // the outbox has
	begun   sync.Once
	working atomic.Bool // begin was called
	holds   sync.Once   // renew was started

	loopback sync.Once // it was warned of

	mu      sync.Mutex
	closed  bool
	leaving bool
	live    map[plan.Key]*attempt // whose exit is not sent yet
	done    map[plan.Key]*attempt // whose exit is not acknowledged yet
	works   map[plan.Key]*attempt // whose workspace is here to be graded
	byName  map[string]*attempt   // of both, by the Job's name
	queue   []*attempt            // to be created
	outbox  []controller.Event
	gate    gate
	wall    *networkingv1.NetworkPolicy // what encloses the agents; nil: nothing
	wallOf  types.UID                   // the lease that it is made for; "": it is not made
}

// attempt is one execution. Its fields are guarded by Runner.mu, but for those
// that never change.
type attempt struct {
	key     plan.Key
	secrets []string
	objects objects // what to create; empty for one that was adopted
	name    string  // of its Job
	uid     string  // of its Job, once there
	created time.Time

	queued   bool
	refused  time.Time // since when the cluster refuses it, for another reason than quota
	phase    fulgur.Phase
	why      string // what it waits for
	told     string // of why, to the controller
	toldAt   time.Time
	job      *batchv1.Job
	jobGone  bool
	pod      *corev1.Pod
	podGone  bool
	adopted  bool
	noPod    string
	badSince time.Time
	agent    string

	stopping bool
	ending   bool // its exit is being put together
	taken    bool // its workspace is, or is known not to come
	well     bool // with taken: it ended well
	tail     string
	log      string // its file
}

// New finds the cluster. It asks it nothing yet.
func New(o Options) (*Runner, error) {
	c, err := connect(o.Kubeconfig, o.Context, o.Namespace, o.QPS)
	if err != nil {
		return nil, err
	}
	return newRunner(o, c)
}

func newRunner(o Options, c *client) (*Runner, error) {
	o.Namespace = c.ns
	m, err := newMaker(o)
	if err != nil {
		return nil, err
	}
	c.log = m.Log
	ctx, cancel := context.WithCancel(context.Background())
	r := &Runner{
		maker: m, c: c, log: m.Log, cancel: cancel, adoptLimit: adoptLimit, forceAfter: forceAfter,
		events: make(chan controller.Event), gone: make(chan struct{}), wake: make(chan struct{}, 1), ring: make(chan struct{}, 1),
		live: map[plan.Key]*attempt{}, done: map[plan.Key]*attempt{}, byName: map[string]*attempt{}, works: map[plan.Key]*attempt{},
	}
	r.spawn = func(f func(context.Context)) { r.wg.Go(func() { f(ctx) }) }
	if o.Artifacts != nil {
		if r.grader, err = grade.NewApart(o.Grading, o.State, r.test); err != nil {
			cancel()
			return nil, err
		}
	}
	r.spawn(r.post)
	return r, nil
}

// Name implements controller.Runner.
func (r *Runner) Name() string { return "kubernetes" }

// Events implements controller.Runner.
func (r *Runner) Events() <-chan controller.Event { return r.events }

// begin starts what works beside the attempts: it is not needed before there is one.
func (r *Runner) begin(jobs, pods string) {
	r.begun.Do(func() {
		r.working.Store(true)
		selector := labelScope + "=" + r.scope
		r.spawn(func(ctx context.Context) {
			(&stream[batchv1.Job]{c: r.c, path: r.c.path("batch/v1/jobs"), selector: selector, log: r.log, listed: r.jobsListed, changed: r.jobChanged}).run(ctx, jobs)
		})
		r.spawn(func(ctx context.Context) {
			(&stream[corev1.Pod]{c: r.c, path: r.c.path("v1/pods"), selector: selector, log: r.log, listed: r.podsListed, changed: r.podChanged}).run(ctx, pods)
		})
		r.spawn(r.create)
		r.spawn(r.explain)
		r.keepLease()
	})
}

// Start implements controller.Runner. Its error is of what can be seen without
// the cluster; what the cluster says comes as an event.
func (r *Runner) Start(_ context.Context, e controller.Execution) (controller.Started, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return controller.Started{}, fulgur.E(fulgur.KindUnavailable, "", "the runner is closed", nil)
	}
	for _, m := range []map[plan.Key]*attempt{r.live, r.done} {
		if a := m[e.Key]; a != nil {
			return controller.Started{Handle: r.place(a), Running: a.phase == fulgur.PhaseRunning}, nil
		}
	}
	name := jobName(r.scope, e.Key)
	if r.byName[name] != nil {
		name = hashedName(r.scope, e.Key)
	}
	o, err := r.build(name, e)
	if err != nil {
		return controller.Started{}, err
	}
	a := &attempt{key: e.Key, secrets: e.Secrets, objects: o, name: name, agent: o.job.Annotations[noteAgent], phase: fulgur.PhaseStarting, why: "its Job is still to be made", queued: true}
	r.live[e.Key], r.byName[name] = a, a
	r.queue = append(r.queue, a)
	r.begin("", "")
	nudge(r.wake)
	return controller.Started{Handle: r.place(a)}, nil
}

// place names a Job that may still have to be made.
func (r *Runner) place(a *attempt) string { return r.Namespace + "/" + a.name }

// handleLocked names a Job that is there: one that Adopt does not find under it is gone.
func (r *Runner) handleLocked(a *attempt) string {
	if a.uid == "" {
		return r.place(a)
	}
	return r.place(a) + "/" + a.uid
}

// List implements controller.Runner.
func (r *Runner) List(context.Context) ([]plan.Key, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	keys := make([]plan.Key, 0, len(r.live))
	for k := range r.live {
		keys = append(keys, k)
	}
	return keys, nil
}

// sendLocked puts an event behind the others.
func (r *Runner) sendLocked(ev controller.Event) {
	r.outbox = append(r.outbox, ev)
	nudge(r.ring)
}

// post sends the events, in order, to whoever listens.
func (r *Runner) post(ctx context.Context) {
	for {
		r.mu.Lock()
		if len(r.outbox) == 0 {
			r.mu.Unlock()
			select {
			case <-r.ring:
				continue
			case <-ctx.Done():
				return
			}
		}
		ev := r.outbox[0]
		r.outbox = r.outbox[1:]
		if ev.Exit != nil {
			r.leaveLocked(ev.Key)
		}
		r.mu.Unlock()
		select {
		case r.events <- ev:
		case <-r.gone:
		case <-ctx.Done():
			return
		}
	}
}

// leaveLocked notes that an attempt's exit is told. What is left of it waits to be
// acknowledged.
func (r *Runner) leaveLocked(key plan.Key) {
	a := r.live[key]
	if a == nil {
		return
	}
	delete(r.live, key)
	if a.jobGone || a.uid == "" {
		r.dropLocked(a)
		return
	}
	r.done[key] = a
}

func (r *Runner) dropLocked(a *attempt) {
	delete(r.done, a.key)
	if r.byName[a.name] == a {
		delete(r.byName, a.name)
	}
}

// nudge rings a bell that may be ringing already.
func nudge(bell chan struct{}) {
	select {
	case bell <- struct{}{}:
	default:
	}
}

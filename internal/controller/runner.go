// Package controller starts the agents of a run and sees each one to its end:
// it opens attempts, gives them their environment and their input, watches
// their clocks, ends whole process trees, reports phases and outcomes, and
// retries what was not the agent's fault. What to do is decided in plan, which
// is pure; how an execution runs is behind Runner, with the variants local
// (processes and workers here), container and kube.
package controller

import (
	"context"
	"encoding/json"
	"time"

	"github.com/fulgur-rl/fulgur"
	"github.com/fulgur-rl/fulgur/internal/controller/plan"
)

// Runner is the driver contract: it runs executions somewhere. Every method is
// safe for concurrent use and idempotent by the execution's key; none but Close
// waits for an execution to end. The conformance suite is runnertest.
//
// Who closes what: a Runner is closed by whoever made it, after the
// controllers that use it have returned. Close ends what still runs, waits for
// it, and then closes the channel of Events.
type Runner interface {
	// Name is the word that attempts are recorded with: "local", ….
	Name() string

	// Start begins an execution. It returns when the execution exists (its
	// handle is known, or it has a place in the runner's own queue); a second
	// Start of the same key changes nothing and returns the same Started. An
	// error means that nothing runs: KindExhausted, KindUnavailable and KindTimeout are worth
	// another attempt, any other kind is not.
	Start(ctx context.Context, e Execution) (Started, error)

	// Stop asks the execution to end (SIGTERM), and after its grace ends it by
	// force with its whole tree. It returns at once, the exit comes by Events;
	// an unknown key is no error.
	Stop(ctx context.Context, key plan.Key) error

	// List returns what runs: all started or adopted executions whose exit has
	// not been sent yet.
	List(ctx context.Context) ([]plan.Key, error)

	// Events tells when an execution that was still starting runs (or waits for
	// room, Event.Phase), and, exactly once and last, that it has ended. The channel
	// must be read: executions wait to be heard.
	Events() <-chan Event

	// Adopt gets what the record says an earlier controller of this run had
	// under way, and is called before the first Start. What can be watched is
	// taken over and returned, and is listed from then on; everything else that
	// an earlier controller of this scope started is dead when Adopt returns.
	Adopt(ctx context.Context, left []Leftover) ([]plan.Key, error)

	// Close ends everything that runs.
	Close() error
}

// Meter is an optional interface of a Runner.
type Meter interface {
	// ChildCPU is the CPU time, user and system, of all executions that have
	// ended, with that of the children that they waited for.
	ChildCPU() time.Duration
}

// Acknowledger is an optional interface of a Runner that can be asked again how
// an execution ended (a Job is still there), and may forget it when it is on record.
type Acknowledger interface {
	// Acknowledge says that the ends of these executions are on record, or that
	// nobody wants them any more. It does not wait.
	Acknowledge(keys []plan.Key)
}

// Leaver is an optional interface of a Runner whose executions live on without it
// (Jobs, containers), for a successor of the same scope to adopt.
type Leaver interface {
	// Leave has Close end nothing: what runs, and what has ended and was not
	// acknowledged, is left to the successor.
	Leave()
}

// Prover is an optional interface of a Runner that shows, before the first
// Start, what its executions can reach.
type Prover interface {
	// Prove returns an error, with what to do about it, unless agents reach the
	// gateway at this URL, its answers stream, and what is to keep agents from
	// everything else holds. KindExhausted says that there is no room to try it, and is
	// waited out; any other ends the controller. It may come beside, or after, Adopt.
	Prove(ctx context.Context, gateway string) error
}

// Execution is one attempt, ready to run.
type Execution struct {
	Key    plan.Key
	Env    map[string]string // addresses, credential, ids
	EnvMap map[string]string // v1's env_map of the rollout; nil: the runner's own
	// Template is v1's k8s.job_template of the rollout; "": the runner's own. Only a
	// runner of Jobs looks at it.
	Template string
	Input    json.RawMessage // without what is withheld
	Timeout  time.Duration   // of the active time; for the agent to know, 0: none
	Secrets  []string        // never to be written to a log
}

// Started is what Start returns.
type Started struct {
	Handle  string // what the execution is found by again: process and its start time, Job
	Running bool   // it runs already; otherwise an Event will say so
}

// Event is what a runner tells of an execution.
type Event struct {
	Key    plan.Key
	Handle string     // with Exit nil: what it is found by again, where that is news since Started.Handle; "": as before
	Exit   *plan.Exit // it has ended, with its whole tree

	// Phase, with Exit nil, is where it stands now. "" and running: it runs. waiting:
	// there is no room for it (a quota, an admission, a suspended Job), which Why
	// says; its start clock stands until the next event. starting: it starts now,
	// and its start clock begins anew; with Why and after another such event, it only says what
	// its start waits for (a node, an image): once a minute at most, for that is put on record.
	Phase fulgur.Phase
	Why   string
}

// Leftover is an attempt that an earlier controller had under way.
type Leftover struct {
	Key    plan.Key
	Phase  fulgur.Phase
	Handle string
}

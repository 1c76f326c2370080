// Package trainer is the training loop: it asks for rollouts, grades them, turns
// their recorded calls into weighted tokens, has the engine make optimizer steps,
// publishes the new policy, validates, and writes metrics and checkpoints from
// which a run resumes bit for bit. What is decided is decided by pure code
// (schedule, trace, sample, advantage, loss); this package acts.
package trainer

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"time"

	"github.com/fulgur-rl/fulgur"
	"github.com/fulgur-rl/fulgur/internal/engine"
	"github.com/fulgur-rl/fulgur/internal/trainer/advantage"
	"github.com/fulgur-rl/fulgur/internal/trainer/data"
	"github.com/fulgur-rl/fulgur/internal/trainer/metrics"
	"github.com/fulgur-rl/fulgur/internal/trainer/sample"
	"github.com/fulgur-rl/fulgur/internal/trainer/schedule"
)

// What the trainer needs from the store, or from a server over its client.
type (
	// Runs keeps the run's record.
	Runs interface {
		PutRun(ctx context.Context, r fulgur.Run) error
	}
	// Leases keep two trainers from one run.
	Leases interface {
		AcquireLease(ctx context.Context, run fulgur.RunID, name, holder string, ttl time.Duration) (fulgur.Lease, error)
		ReleaseLease(ctx context.Context, run fulgur.RunID, name, holder string) error
	}
	// Rollouts creates, lists and ends rollouts.
	Rollouts interface {
		CreateRollouts(ctx context.Context, specs []fulgur.RolloutSpec) ([]fulgur.Rollout, error)
		Rollouts(ctx context.Context, q fulgur.RolloutQuery) ([]fulgur.Rollout, error)
		Rollout(ctx context.Context, id fulgur.RolloutID) (fulgur.Rollout, error)
		EndRollout(ctx context.Context, id fulgur.RolloutID, o fulgur.Outcome) (fulgur.Rollout, error)
	}
	// Records reads what was recorded and keeps the rewards.
	Records interface {
		Records(ctx context.Context, ids []fulgur.RolloutID) ([]fulgur.Record, error)
		SetRewards(ctx context.Context, rs []fulgur.Reward) error
	}
	// Watch tells what changed.
	Watch interface {
		Head(ctx context.Context) (fulgur.Seq, error)
		Changes(ctx context.Context, run fulgur.RunID, after fulgur.Seq) ([]fulgur.Change, error)
	}
	// Models says where the policy is sampled.
	Models interface {
		PutEndpoints(ctx context.Context, run fulgur.RunID, model string, e []fulgur.Endpoint) error
	}
	// Store is all of these.
	Store interface {
		Runs
		Leases
		Rollouts
		Records
		Watch
		Models
	}
)

// Gate holds a run's calls; the gateway is one.
type Gate interface {
	PauseCalls(ctx context.Context, run fulgur.RunID, p fulgur.PauseRequest) (fulgur.Pause, error)
	ResumeCalls(ctx context.Context, run fulgur.RunID, owner string) (fulgur.Pause, error)
}

// Grader gives the reward of an ended attempt from its input and its calls, in
// order of arrival. It does no I/O. An error is the grader's own failure: the
// rollout is masked. The reason is for people.
type Grader interface {
	Grade(input json.RawMessage, calls []fulgur.Call) (value float64, reason string, err error)
}

// LearningRate goes linearly from Start to End over the first Over training
// steps, and stays. Over 0 or End 0: constant.
type LearningRate struct {
	Start, End float64
	Over       int64
}

// At returns the rate of a training step, from 1.
func (l LearningRate) At(step int64) float64 {
	if l.Over <= 0 || l.End == 0 {
		return l.Start
	}
	return l.Start + (l.End-l.Start)*min(1, float64(step-1)/float64(l.Over))
}

// Stop ends a run early: when validation's pass@1 reaches Validation, on two
// validations in a row if Twice. Validation 0: never.
type Stop struct {
	Validation float64
	Twice      bool
	Patience   int // end after so many validations in a row without a better one; 0: never
}

// Options are everything a run is made of.
type Options struct {
	Run    fulgur.RunID
	Model  string          // the name under which agents ask for the policy
	Dir    string          // the run folder: metrics and checkpoints go there
	Config json.RawMessage // the effective run file, for the run's record
	// ConfigHash tells whether a resumed run is the same run: a checkpoint with
	// another hash is refused. "" is not compared.
	ConfigHash string
	Seed       uint64
	Resume     bool // go on from the last checkpoint in Dir, or from the start if there is none

	Store  Store
	Gate   Gate // nil: calls are not held while weights change
	Engine engine.Engine
	Grader Grader // nil: the agents' own rewards count, unless Graded
	Graded bool   // the controller has a program grade, before an attempt ends

	Train      data.Set
	Validation []data.Row
	Test       []data.Row // only before and after

	Steps         int64 // 0: no limit
	Epochs        int   // 0: no limit; one of the two must be there
	GroupSize     int
	GroupsPerStep int
	Minibatches   int // optimizer steps per training step
	// Schedule says when rollouts run beside updates: Mode, Active, Refill, Refills,
	// staleness, Straggler and Rows; the rest is filled in from here.
	Schedule schedule.Config
	// Filter looks at a complete group and says why it is not to train; "": it
	// trains. Such a group is replaced as often as Schedule.Refills allows.
	Filter       func(group []RolloutLine) (why string)
	Curriculum   *advantage.Curriculum // nil: each row once per epoch
	Estimator    advantage.Estimator
	Loss         engine.Loss // its name may also be one that loss.Spec knows and no engine
	Objective    Objective
	Adam         engine.AdamW // its LearningRate is taken from the field below
	LearningRate LearningRate

	Sampling fulgur.Sampling // of training calls; evaluations replace the temperature
	Withhold []string        // paths that no agent may see
	Timeout  time.Duration   // of an attempt; 0: the controller's
	// AgentFailure is the reward of a rollout that failed by its agent's fault;
	// nil: it is graded on what it left.
	AgentFailure *float64
	// Follow says what each outcome counts for; nil: infrastructure failures are
	// masked, failures of agents are AgentFailure's.
	Follow    func(class fulgur.OutcomeClass, reason string) fulgur.Follow
	Audit     Audit // shortcuts that are looked for
	MaxTokens int   // longest sample; 0: the engine's context
	// Samples says how calls become samples: Level, OverLong and Replay.
	Samples sample.Options
	Pass    float64 // a reward of at least this is a pass; 0: 1

	ValidateEvery   int64 // steps; 0: never
	EvaluationRuns  int   // of each row of validation and test at temperature 1; 0: 1
	NoGreedy        bool  // evaluations leave greedy decoding out
	Stop            Stop
	CheckpointEvery int64 // steps; 0: 10
	Keep            int   // checkpoints kept besides the best; 0: 2

	Sinks    []metrics.Sink // besides the run folder's own; closed by the caller
	Observer func(Event)    // called from one goroutine; nil: nobody looks
	Holder   string         // of leases and pauses; unique per process
	LeaseTTL time.Duration  // 0: 10 s
	Drain    time.Duration  // how long a publish waits for calls in flight; 0: 10 s
	Patience time.Duration  // without any change for so long, a warning is given; 0: 1 minute
	Now      func() time.Time
}

// Result of a run.
type Result struct {
	Reached     bool // the stop rule's score was reached
	Interrupted bool // the context ended first; Resume says how to go on
	Before      *Evaluation
	After       *Evaluation
	Best        *Best
	Steps       int64
	Updates     int64 // optimizer steps
	Rollouts    int64 // training rollouts, each counted once
	Evaluated   int64 // rollouts of validation, before and after
	Tokens      int64 // trained
	Timing      Timing
	Final       string // folder of the last checkpoint
	Resume      string // command that goes on, when interrupted
}

// Best is the best policy by validation; without validation, the last one.
type Best struct {
	Step  int64   `json:"step"`
	Score float64 `json:"score"` // pass@1 at temperature 1
	Dir   string  `json:"dir"`   // name of the checkpoint's folder
}

// defaults fills in what may be left out.
func (o *Options) defaults() {
	def := func(p *int64, v int64) {
		if *p == 0 {
			*p = v
		}
	}
	def(&o.CheckpointEvery, 10)
	if o.Keep == 0 {
		o.Keep = 2
	}
	if o.Pass == 0 {
		o.Pass = 1
	}
	if o.LeaseTTL == 0 {
		o.LeaseTTL = 10 * time.Second
	}
	if o.Drain == 0 {
		o.Drain = 10 * time.Second
	}
	if o.Patience == 0 {
		o.Patience = time.Minute
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.Observer == nil {
		o.Observer = func(Event) {}
	}
	if o.Holder == "" {
		o.Holder = fmt.Sprintf("trainer-%d-%d", os.Getpid(), o.Now().UnixNano())
	}
}

// fill fills in the defaults and refuses what can't train.
func (o *Options) fill() error {
	o.defaults()
	bad := func(msg string) error {
		return fulgur.E(fulgur.KindInvalid, "start training", msg, nil)
	}
	switch {
	case o.Steps == 0 && o.Epochs == 0 && o.Stop.Validation == 0:
		return bad("nothing ends the run: set `steps`, `epochs` or `stop`")
	case o.GroupSize < 1 || o.GroupsPerStep < 1 || o.Minibatches < 1:
		return bad("group_size, groups_per_step and minibatches must be at least 1")
	case o.GroupSize == 1:
		return bad("group_size is 1: a group of one has nothing to be compared with and nothing would be learned; use at least 2")
	case o.Minibatches > o.GroupSize*o.GroupsPerStep:
		return bad(fmt.Sprintf("minibatches is %d, more than the %d rollouts of a step", o.Minibatches, o.GroupSize*o.GroupsPerStep))
	case o.LearningRate.Start <= 0:
		return bad("learning_rate must be above 0")
	case o.Stop.Validation > 0 && (o.ValidateEvery == 0 || len(o.Validation) == 0):
		return bad("`stop: validation` needs data.validation and `validation: every`")
	case o.ValidateEvery > 0 && len(o.Validation) == 0:
		return bad("`validation: every` needs data.validation")
	case o.Stop.Patience > 0 && (o.ValidateEvery == 0 || len(o.Validation) == 0):
		return bad("`stop: patience` needs data.validation and `validation: every`")
	}
	return o.checkObjective()
}

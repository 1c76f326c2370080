package fulgur

import (
	"encoding/json"
	"time"
)

// RolloutState is a rollout's state, with v1's words.
type RolloutState string

// The states.
const (
	Queuing   RolloutState = "queuing"
	Running   RolloutState = "running"
	Succeeded RolloutState = "succeeded"
	Failed    RolloutState = "failed"
)

// Terminal says whether a rollout in this state has ended.
func (s RolloutState) Terminal() bool { return s == Succeeded || s == Failed }

// Valid says whether s is one of the four states.
func (s RolloutState) Valid() bool {
	return s == Queuing || s == Running || s == Succeeded || s == Failed
}

// CanBecome says whether a rollout may go from s to next: queuing → running or
// failed, running → succeeded or failed, and nothing else, not even itself.
func (s RolloutState) CanBecome(next RolloutState) bool {
	switch s {
	case Queuing:
		return next == Running || next == Failed
	case Running:
		return next == Succeeded || next == Failed
	}
	return false
}

// OutcomeClass says how an ended rollout counts.
type OutcomeClass string

// The outcome classes (architecture: Outcome classes).
const (
	OutcomeOK             OutcomeClass = "ok"             // trains on its reward
	OutcomeAgent          OutcomeClass = "agent_failure"  // the agent's own fault: graded, or the configured value
	OutcomeInfrastructure OutcomeClass = "infrastructure" // not the agent's fault: a new attempt, else masked
)

// Outcome says how an attempt or rollout ended, and why.
type Outcome struct {
	Class    OutcomeClass `json:"class"`
	Reason   string       `json:"reason"`            // a word: "exit", "timeout", "idle", "spawn", "no_calls", "upstream", "lost", …
	Message  string       `json:"message,omitempty"` // for people: exit code, last lines of the log
	ExitCode *int         `json:"exit_code,omitempty"`
	Calls    int          `json:"calls"` // model calls on record
	Graded   *Graded      `json:"graded,omitempty"`
}

// Graded is what is known, beside the reward, of how a program has graded an attempt:
// who looks for the cause of a reward looks there.
type Graded struct {
	Tests *TestsEnd `json:"tests,omitempty"` // nil: there are none, or they were not run
	Log   string    `json:"log,omitempty"`   // last lines of what the grader printed on standard error
	Flags []string  `json:"flags,omitempty"` // traces of an attempt to be graded for something else than the work
}

// TestsEnd is how tests ended, seen from outside.
type TestsEnd struct {
	ExitCode int    `json:"exit_code"` // -1: a signal, or their time was over
	TimedOut bool   `json:"timed_out,omitempty"`
	Output   string `json:"output,omitempty"` // last lines of what they printed
}

// Follow is what an outcome counts for in training: nothing (Mask: it neither
// trains nor votes in its group's baseline), the reward Value, or, as the zero
// value, what its grader gives.
type Follow struct {
	Mask  bool
	Value *float64
}

// RolloutSpec is what creates a rollout. Creation is idempotent by ID: a known
// one gives the stored rollout untouched.
type RolloutSpec struct {
	ID       RolloutID       `json:"id" required:"false"` // "": the store makes 32 hex digits
	Run      RunID           `json:"run"`
	Group    GroupID         `json:"group,omitempty"`
	Input    json.RawMessage `json:"input"`                     // the dataset row, whole; what is withheld is taken out before an agent sees it
	IsTrain  bool            `json:"is_train" required:"false"` //
	Greedy   bool            `json:"greedy,omitempty"`          // temperature 0: a greedy evaluation
	Withhold []string        `json:"withhold,omitempty"`        // paths such as "input.answer" that no agent may see
	Rewards  RewardSource    `json:"rewards,omitempty"`         // whose rewards count
	Sampling *Sampling       `json:"sampling,omitempty"`        // what the run fixes for the calls of this rollout
	Config   json.RawMessage `json:"v1_config,omitempty"`       // v1's RolloutConfig, kept as it came
	Metadata json.RawMessage `json:"metadata,omitempty"`        // v1's metadata, kept as it came
	Timeout  time.Duration   `json:"timeout,omitempty"`         // of an attempt's active time; 0: the controller's default
	Seed     uint64          `json:"seed,omitempty"`            // of the rollout's sampling; 0: from its id
}

// RewardSource says who may give a rollout's reward.
type RewardSource string

// The reward sources.
const (
	RewardsGraded RewardSource = ""      // a grader of the run; what agents post is kept as unused
	RewardsAgent  RewardSource = "agent" // the agent posts it, v1's way
)

// Rollout is one run of an agent on one input.
type Rollout struct {
	RolloutSpec
	State       RolloutState `json:"state"`
	Outcome     *Outcome     `json:"outcome,omitempty"`      // set when it ended
	LastAttempt AttemptID    `json:"last_attempt,omitempty"` // "" before the first
	Reward      *float64     `json:"reward,omitempty"`       // what counts, once it is graded
	Error       string       `json:"error,omitempty"`        // v1's error_message
	JobName     string       `json:"job_name,omitempty"`     // v1's k8s_job_name
	Version     int          `json:"status_version"`         // +1 at each change of status
	CreatedAt   time.Time    `json:"created_at"`
	UpdatedAt   time.Time    `json:"updated_at"`
}

// StatusPatch changes a rollout's status the way v1's PATCH does. nil leaves a
// field, a pointer to nil text clears it.
type StatusPatch struct {
	State       *RolloutState
	JobName     **string
	LastAttempt **string
	Error       **string
}

// Phase is where an attempt stands.
type Phase string

// The phases.
const (
	PhaseWaiting  Phase = "waiting"
	PhaseStarting Phase = "starting"
	PhaseRunning  Phase = "running"
	PhaseGrading  Phase = "grading"
	PhaseEnded    Phase = "ended"
)

// Attempt is one execution of a rollout. Only the last attempt of a rollout
// trains; all can be looked at.
type Attempt struct {
	Rollout   RolloutID  `json:"rollout"`
	ID        AttemptID  `json:"id"`
	Phase     Phase      `json:"phase"`
	Why       string     `json:"why,omitempty"`    // in PhaseWaiting and PhaseStarting: what it waits for, as its runner says it; "": its start
	Runner    string     `json:"runner,omitempty"` // "local", …
	Holder    string     `json:"holder,omitempty"` // the controller that started it
	Handle    string     `json:"handle,omitempty"` // what the runner finds it by again: process group, Job name
	Outcome   *Outcome   `json:"outcome,omitempty"`
	StartedAt *time.Time `json:"started_at,omitempty"`
	EndedAt   *time.Time `json:"ended_at,omitempty"`
}

// OpenedAttempt is a new attempt with its credential, which is shown only once:
// the store keeps its hash.
type OpenedAttempt struct {
	Attempt
	Credential string `json:"credential"`
}

// AttemptKey names one attempt.
type AttemptKey struct {
	Rollout RolloutID `json:"rollout"`
	Attempt AttemptID `json:"attempt"`
}

// AttemptReport is what a controller reports of an attempt.
type AttemptReport struct {
	Phase   Phase    `json:"phase"`
	Why     string   `json:"why,omitempty"`    // with PhaseWaiting: there is no room for it (a quota, an admission); with PhaseStarting: its start takes long
	Runner  string   `json:"runner,omitempty"` // "local", …; "" leaves what is on record, so do Holder and Handle
	Holder  string   `json:"holder,omitempty"` // the controller that runs it
	Handle  string   `json:"handle,omitempty"`
	Outcome *Outcome `json:"outcome,omitempty"` // with PhaseEnded
	// Retry, with PhaseEnded: another attempt will follow, the rollout stays
	// running. Otherwise the rollout ends: succeeded if the class is ok, else failed.
	Retry bool `json:"retry,omitempty"`
	// StartedAt is when it began to run; nil: when the first report that it runs came.
	StartedAt *time.Time `json:"started_at,omitempty"`
}

// Report is one of several reports.
type Report struct {
	AttemptKey
	AttemptReport
}

// Reward is what a grader gives an attempt.
type Reward struct {
	AttemptKey
	Value  float64 `json:"value"`
	Source string  `json:"source"`
}

// Record is a rollout with the calls of its last attempt, in order of arrival,
// as training and grading need them: without Request, Sent, Response and Tools.
type Record struct {
	Rollout Rollout `json:"rollout"`
	Calls   []Call  `json:"calls"`
}

// RolloutQuery selects rollouts, in order of creation.
type RolloutQuery struct {
	Run    RunID
	States []RolloutState // empty: all
	Group  GroupID
	After  RolloutID // start behind this one; "": from the first
	Limit  int       // 0: 500
}

// TerminalItem is a place in the completion log.
type TerminalItem struct {
	ID      RolloutID
	State   RolloutState
	DataID  string // v1's data id: input.data_id, else input.instance_id, else ""
	IsTrain bool
}

// TerminalPage is a page of the completion log, in order of completion.
type TerminalPage struct {
	Items []TerminalItem
	Next  int // pass it as after to go on; places of deleted rollouts count
	Total int
}

// ChangeKind says what a Change is about.
type ChangeKind string

// The kinds of changes.
const (
	ChangeRollout ChangeKind = "rollout" // created, or its state or reward changed
	ChangeAttempt ChangeKind = "attempt"
	ChangeRun     ChangeKind = "run"
)

// Change is an item of a watch: something with this id changed at Seq. Readers
// fetch what they need; changes of one id may be merged.
type Change struct {
	Seq     Seq          `json:"seq"`
	Kind    ChangeKind   `json:"kind"`
	Run     RunID        `json:"run"`
	Rollout RolloutID    `json:"rollout,omitempty"`
	Attempt AttemptID    `json:"attempt,omitempty"`
	State   RolloutState `json:"state,omitempty"` // of the rollout, after the change
	Phase   Phase        `json:"phase,omitempty"` // of the attempt, after the change
}

// UnusedLate is Event.Unused of a reward that came after its rollout's end.
const UnusedLate = "late: the rollout had ended"

// UnusedNoNumber is Event.Unused of a reward that is no finite number.
const UnusedNoNumber = "its value is no number"

// Event is an append-only item of an attempt: a reward, or the user's own.
type Event struct {
	Seq     Seq             `json:"seq"`
	Rollout RolloutID       `json:"rollout"`
	Attempt AttemptID       `json:"attempt"`
	Type    string          `json:"type"`
	Data    json.RawMessage `json:"data"`
	Unused  string          `json:"unused,omitempty"` // why a reward does not count
	At      time.Time       `json:"at"`
}

// EventReward is the type of the event that carries a reward: {"value": number}.
const EventReward = "reward"

// EventCallReward is the type of the event that rewards one call of its attempt:
// {"call": the call's id, or its number among the agent's own calls from 0,
// "value": number}. Several of one call add up. It counts in runs that ask for it.
const EventCallReward = "call_reward"

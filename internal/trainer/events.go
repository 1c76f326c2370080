package trainer

import (
	"time"

	"github.com/fulgur-rl/fulgur"
	"github.com/fulgur-rl/fulgur/internal/audit"
)

// An Event is what the Observer gets: the terminal view, the report and the JSON
// line are fed from these.
type Event interface{ event() }

// The events.
type (
	// Started comes first, also after resume.
	Started struct {
		Run     fulgur.RunID
		Resumed bool
		Step    int64 // finished steps
		Steps   int64 // 0: no limit known
		Version fulgur.PolicyVersion
	}
	// StepStarted says that a step's rollouts were asked for.
	StepStarted struct {
		Step     int64
		Rollouts int
	}
	// Progress counts the ended rollouts of a step or an evaluation.
	Progress struct {
		Part  string // "train", "val", "before", "after", …
		Step  int64
		Done  int // never above Total; each rollout counts once
		Total int
	}
	// StepDone is a finished training step.
	StepDone struct {
		Step         int64
		Version      fulgur.PolicyVersion
		Reward       float64 // mean over unmasked rollouts
		PassRate     float64
		Rollouts     []RolloutLine
		Groups       int
		Unanimous    int // groups with equal rewards
		Masked       int // rollouts that neither trained nor voted
		Tokens       int // trained
		Samples      int
		Updates      int // optimizer steps made
		LearningRate float64
		Loss         float64 // sum over the optimizer steps
		GradNorm     float64 // mean over them, before clipping
		ClipShare    float64 // of trained tokens
		KL           float64 // mean over trained tokens, nats
		Timing       Timing  // of this step
		Total        Timing  // of the run so far
	}
	// Evaluated is a finished validation, or the one before or after training.
	Evaluated struct{ Evaluation }
	// Checkpointed says that a checkpoint is whole.
	Checkpointed struct {
		Step int64
		Dir  string
		Best bool // it is the best by validation so far
	}
	// Warning says that something needs a look; training goes on.
	Warning struct {
		Step    int64
		Code    string // a word: "zero_reward", "infrastructure", "unanimous", …
		Message string
	}
)

func (Started) event()      {}
func (StepStarted) event()  {}
func (Progress) event()     {}
func (StepDone) event()     {}
func (Evaluated) event()    {}
func (Checkpointed) event() {}
func (Warning) event()      {}

// Timing is wall time by what it was spent on.
type Timing struct {
	Rollout    time.Duration `json:"rollout"`    // waiting for agents, grading, building samples
	Update     time.Duration `json:"update"`     // optimizer steps and publishing
	Evaluation time.Duration `json:"evaluation"` // validation, before, after
	Checkpoint time.Duration `json:"checkpoint"`
}

func (t *Timing) add(o Timing) {
	t.Rollout += o.Rollout
	t.Update += o.Update
	t.Evaluation += o.Evaluation
	t.Checkpoint += o.Checkpoint
}

// RolloutLine is what a run keeps of each rollout in rollouts.jsonl.
type RolloutLine struct {
	Step      int64               `json:"step"`
	Part      string              `json:"part"` // "train", "val", "val-greedy", …
	ID        fulgur.RolloutID    `json:"id"`
	Group     fulgur.GroupID      `json:"group"`
	Row       int                 `json:"row"`
	Class     fulgur.OutcomeClass `json:"class"`
	Outcome   string              `json:"outcome,omitempty"` // the outcome's reason
	Reward    *float64            `json:"reward"`            // null: none
	Why       string              `json:"why,omitempty"`     // what the grader said
	Masked    string              `json:"masked,omitempty"`  // why it neither trains nor votes
	Flags     []string            `json:"flags,omitempty"`   // traces of an attempt to be graded for something else than the work
	Audit     []audit.Finding     `json:"audit,omitempty"`   // traces of shortcuts in its calls
	Audited   string              `json:"audited,omitempty"` // what followed: flag, zero, mask, fail
	Advantage float64             `json:"advantage,omitempty"`
	// CallRewards are of its own calls in order, beside Reward; absent: none was given.
	CallRewards []float64      `json:"call_rewards,omitempty"`
	Weight      float64        `json:"weight,omitempty"` // of each trained token
	Calls       int            `json:"calls"`
	Untrained   map[string]int `json:"untrained,omitempty"` // calls that do not train, by reason
	Samples     int            `json:"samples,omitempty"`
	Sampled     int            `json:"sampled"` // T: tokens sampled in its own conversation
	Trained     int            `json:"trained,omitempty"`
	Lost        map[string]int `json:"lost,omitempty"`            // sampled tokens that do not train, by their call's reason
	Breaks      map[string]int `json:"breaks,omitempty"`          // where its lineages broke, by class
	Again       int            `json:"prefilled_again,omitempty"` // prompt tokens that a prefix cache would have held without the breaks
	// SamplesHash is that of its samples (sample.Built.Hash).
	SamplesHash string `json:"samples_hash,omitempty"`
	// Version is the policy that sampled its first token; Last the one of its last
	// token where that is another.
	Version fulgur.PolicyVersion  `json:"version"`
	Last    *fulgur.PolicyVersion `json:"last_version,omitempty"`
	Seconds float64               `json:"seconds"` // from creation to its end
}

// Passes says whether the rollout counts as passed, where a reward of at least so
// much is a pass. What is masked does not, whatever it was given: a shortcut that
// the audit masks has been graded before it was found.
func (l *RolloutLine) Passes(least float64) bool {
	return l.Masked == "" && l.Reward != nil && *l.Reward >= least
}

package report

import "time"

// Data is everything that a report shows. Texts may be hostile: they are
// escaped. What is empty is left out of the page.
type Data struct {
	Title   string // the run's name
	Model   string
	Program string // what made it: "fulgur v0.1.0"
	Created time.Time

	Verdict string // one sentence: "reached 0.9 in two validations in a row, after step 120"
	Reached bool   // the stop rule was met
	Target  float64
	Before  *Score // pass@1 at the training temperature on data.test, before training
	After   *Score
	// The same with greedy decoding.
	BeforeGreedy, AfterGreedy *Score

	Wall     time.Duration
	CPU      []Share // CPU time by part: engine, gateway, agents, …
	Rollouts int
	Updates  int

	Steps       []Step
	Validations []Validation
	Outcomes    []Outcome
	Samples     Fragmentation
	Wasted      []Waste
	Problems    []Problem
	Groups      []Group
	Warnings    []string
	Config      string // the effective run file
}

// Score is a share of solved problems with its 95 % confidence interval.
type Score struct {
	Value    float64 `json:"value"`
	Low      float64 `json:"low"`
	High     float64 `json:"high"`
	Problems int     `json:"problems"`
	// Reward is the mean reward where that is not the share: rewards between 0 and
	// 1 are no passes. nil: it is the share.
	Reward *float64 `json:"reward,omitempty"`
}

// Share is a part of the CPU time.
type Share struct {
	Name string
	Time time.Duration
}

// Step is one training step.
type Step struct {
	Step       int // from 1
	Reward     float64
	Groups     int
	Mixed      int // groups whose rewards differ
	Masked     int // rollouts that neither trained nor voted
	Rollout    time.Duration
	Update     time.Duration
	Validation time.Duration
}

// Validation is one measurement during training.
type Validation struct {
	Step   int // 0: before the first step
	Score  Score
	Greedy *Score
	Best   bool // the checkpoint that was kept
}

// Outcome counts how rollouts ended.
type Outcome struct {
	Class   string // ok, agent_failure, infrastructure
	Reason  string
	Count   int
	Example string // a rollout's id and message
}

// Fragmentation tells into how many training samples rollouts fell.
type Fragmentation struct {
	Rollouts int
	Single   int // rollouts that stayed one sample
	Samples  int
	Breaks   []Count // where lineages broke, by class
	Again    int     // prompt tokens that a prefix cache would have held without the breaks
}

// Count counts something by name.
type Count struct {
	Name  string
	Count int
}

// Waste is what was sampled, and the agents' time, for one cause: "trained", or
// why it did not train.
type Waste struct {
	Cause    string
	Tokens   int
	Rollouts int
	Seconds  float64
}

// Problem shows one problem before and after training.
type Problem struct {
	Text     string   `json:"text"`
	Expected string   `json:"expected"`
	Before   *Rollout `json:"before,omitempty"`
	After    *Rollout `json:"after,omitempty"`
}

// Group shows the rollouts of one row in one training step.
type Group struct {
	Text     string    `json:"text"`
	Step     int       `json:"step"`
	Rollouts []Rollout `json:"rollouts"`
}

// Rollout is what one rollout read and wrote.
type Rollout struct {
	ID        string   `json:"id"`
	Reward    *float64 `json:"reward,omitempty"`
	Advantage *float64 `json:"advantage,omitempty"` // nil: it did not train
	Outcome   string   `json:"outcome"`
	// Samples are its training sequences, in order; each starts with its prompt.
	Samples [][]Token `json:"samples"`
}

// Token is one token of a sample.
type Token struct {
	Text    string
	ID      int32
	Sampled bool    // by the policy; else it was read
	Trained bool    // takes part in the loss
	Weight  float64 // its advantage, times its weight, if it trained
	LogProb float64 // at sampling
	Version int64   // of the policy that sampled it
	Reason  string  // why it did not train, if it was sampled
}

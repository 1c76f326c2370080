package cli

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/fulgur-rl/fulgur"
	"github.com/fulgur-rl/fulgur/internal/config"
	"github.com/fulgur-rl/fulgur/internal/controller/plan"
	"github.com/fulgur-rl/fulgur/internal/engine"
	"github.com/fulgur-rl/fulgur/internal/reward"
	"github.com/fulgur-rl/fulgur/internal/trainer"
	"github.com/fulgur-rl/fulgur/internal/trainer/data"
)

// dataSets are the rows of a run.
type dataSets struct {
	train      data.Set
	validation []data.Row
	test       []data.Row
}

// readData reads and checks the run's data: every field that the reward and the
// agent's input name must be there.
func readData(r *runFile) (d dataSets, err error) {
	var fields []string
	for _, p := range r.Agent.Input.Env {
		if p != "input" {
			fields = append(fields, p)
		}
	}
	if r.Reward.Expected != "" {
		fields = append(fields, r.Reward.Expected)
	}
	hides := hidden{paths: r.Reward.Withhold}
	read := func(path string, filter data.Filter, limit int) (data.Set, error) {
		if path == "" {
			return data.Set{}, nil
		}
		set, err := data.Read(r.resolve(path), data.Options{Fields: fields, Filter: filter, Limit: limit, Look: hides.look})
		return set, r.missing(err)
	}
	filter, err := data.ParseFilter(r.Data.Filter)
	if err != nil {
		return d, usageErr(err)
	}
	var errs [3]error // of all files at once
	var validation, test data.Set
	d.train, errs[0] = read(r.Data.Train, filter, r.Data.Limit)
	validation, errs[1] = read(r.Data.Validation, nil, r.Validation.Problems)
	test, errs[2] = read(r.Data.Test, nil, 0)
	d.validation, d.test = validation.Rows, test.Rows
	for _, set := range []struct {
		path string
		rows []data.Row
	}{{r.Data.Train, d.train.Rows}, {r.Data.Validation, d.validation}, {r.Data.Test, d.test}} {
		errs[2] = errors.Join(errs[2], checkRows(r, set.path, set.rows))
	}
	if err := errors.Join(errs[:]...); err != nil {
		return d, err
	}
	return d, r.placed(hides.err(), func(*runFile, string) []string { return nil })
}

// missing says before an error about a field that rows lack where the run file names
// it: it may be that which is wrong.
func (r *runFile) missing(err error) error {
	if err == nil {
		return nil
	}
	named := map[string]string{"reward.expected": r.Reward.Expected}
	for name, path := range r.Agent.Input.Env {
		named["agent.input.env."+name] = path
	}
	for _, key := range sortedKeys(named) {
		says := fmt.Sprintf("field %q is missing", strings.TrimPrefix(named[key], "input."))
		if at := r.places[key]; at != "" && strings.Contains(err.Error(), says) {
			return &placedError{at, err}
		}
	}
	return err
}

// withheld lists the paths of the input that no agent may see.
func withheld(r config.Reward) []string {
	var out []string
	if r.Expected != "" {
		out = append(out, r.Expected)
	}
	return append(out, r.Withhold...)
}

// grader makes the run's grader; nil where the agents' own rewards count.
func grader(r config.Reward) (trainer.Grader, error) {
	g, err := builtinGrader(r)
	if g == nil || err != nil {
		return nil, err // not g: an interface that holds a nil one is not nil
	}
	return g, nil
}

// builtinGrader makes the grader that reward.builtin names; nil where it names none.
func builtinGrader(r config.Reward) (reward.Grader, error) {
	if r.Builtin == "" {
		return nil, nil
	}
	g, err := reward.New(r.Builtin, reward.Options{Expected: r.Expected, Compare: r.Compare, Pattern: r.Pattern})
	if err != nil {
		return nil, usageErr(err)
	}
	return g, nil
}

// passReward is the least reward that is a pass.
const passReward = 1.0

// trainerOptions maps the run file to the trainer's options; where it runs, and
// what it is given to run with, is the caller's to add.
func trainerOptions(r *runFile, dir runDir, d dataSets) (trainer.Options, error) {
	g, err := grader(r.Reward)
	if err != nil {
		return trainer.Options{}, err
	}
	a := r.Algorithm
	o := trainer.Options{
		Run: fulgur.RunID(r.Run), Model: modelName(r.File), Dir: string(dir), Config: r.JSON(), ConfigHash: trainingHash(r.File), Seed: uint64(r.Seed),
		Grader: g, Graded: len(r.Reward.Command) > 0, Pass: passReward, Train: d.train, Validation: d.validation, Test: d.test,
		Steps: int64(r.Steps), Epochs: r.Epochs, GroupSize: a.GroupSize, GroupsPerStep: a.GroupsPerStep, Minibatches: a.Minibatches,
		Adam:         engine.AdamW{Beta1: a.Adam.Beta1, Beta2: a.Adam.Beta2, Eps: a.Adam.Eps, WeightDecay: a.Adam.WeightDecay, ClipNorm: a.Adam.ClipNorm},
		LearningRate: trainer.LearningRate{Start: a.LearningRate.Start, End: a.LearningRate.End, Over: int64(a.LearningRate.Over)},
		Sampling:     fulgur.Sampling{Temperature: r.Sampling.Temperature, TopP: r.Sampling.TopP, TopK: r.Sampling.TopK, MaxTokens: r.Sampling.MaxTokens},
		Withhold:     withheld(r.Reward), Timeout: time.Duration(r.Agent.Timeout),
		ValidateEvery: int64(r.Validation.Every), EvaluationRuns: r.Validation.Runs, NoGreedy: !r.Validation.Greedy, Stop: trainer.Stop{Validation: r.Stop.Validation, Twice: r.Stop.Twice, Patience: r.Stop.Patience},
		CheckpointEvery: int64(r.Checkpoints.Every), Keep: r.Checkpoints.Keep,
	}
	objective(&o, r.File)
	overlap(&o, r.File)
	o.Audit = auditOptions(r.Audit)
	if r.Epochs > 0 {
		o.Steps = 0
	}
	if o.ValidateEvery > 0 && len(o.Validation) == 0 {
		o.ValidateEvery = 0
	}
	if o.ValidateEvery == 0 {
		o.Stop = trainer.Stop{} // the run file's reader has warned
	}
	table := outcomeTable(r.Outcomes)
	o.Follow, o.AgentFailure = table.Follow, table.Agent.Value
	return o, nil
}

// trainingHash identifies what a resumed run must share with the run that it
// goes on: everything but where it is kept and what is shown.
func trainingHash(f *config.File) string {
	c := *f
	c.Out, c.Server, c.Listen, c.Logs, c.Retention, c.Checkpoints, c.Durability = "", "", "", config.Logs{}, config.Retention{}, config.Checkpoints{}, ""
	c.Hooks = config.Hooks{}
	c.Steps, c.Epochs, c.Stop = 0, 0, config.Stop{} // a run may be made longer
	return c.Hash()
}

// modelName is the name under which agents ask for the policy.
func modelName(f *config.File) string { return f.Run }

// startingPods are how many pods may be starting at once, where the run file does
// not say: a cluster suffers from cold pods, however few are created a minute.
const startingPods = 100

// limits are the controller's limits: its slots are those that this machine has room for.
func limits(f *config.File) plan.Limits {
	slots := int(f.Runner.Slots)
	if slots == 0 {
		slots = autoSlots(f)
	}
	slots = min(slots, slotsOf(f, openFiles()))
	starting := f.Runner.Starting
	if starting == 0 && f.Runner.Kind == "kubernetes" {
		starting = startingPods
	}
	return plan.Limits{
		Slots: slots, Starting: starting, Rate: f.Runner.StartRate, Start: time.Duration(f.Agent.StartTimeout), Total: time.Duration(f.Agent.Timeout), Idle: time.Duration(f.Agent.IdleTimeout),
		Table: outcomeTable(f.Outcomes), Lost: lostAttempts, Backoff: time.Duration(f.Outcomes.Infrastructure.Backoff),
	}
}

package cli

import (
	"errors"
	"fmt"

	"github.com/fulgur-rl/fulgur"
	"github.com/fulgur-rl/fulgur/internal/controller"
	"github.com/fulgur-rl/fulgur/internal/trainer/data"
)

// shownInputs is how many rows are named that no agent could be given, or that
// could not be graded.
const shownInputs = 3

// checkRows says which rows no agent can be given, and which the grader could not
// grade: known before the first rollout, instead of when a step comes to them.
func checkRows(r *runFile, path string, rows []data.Row) error {
	return errors.Join(checkInputs(r, path, rows), checkAnswers(r, path, rows))
}

// checkAnswers says which rows a built-in grader could not grade.
func checkAnswers(r *runFile, path string, rows []data.Row) error {
	g, err := builtinGrader(r.Reward)
	if g == nil || err != nil {
		return err
	}
	var errs []error
	bad := 0
	for i := range rows {
		err := g.Check(rows[i].Input)
		if err == nil {
			continue
		}
		if bad++; bad <= shownInputs {
			errs = append(errs, fulgur.E(fulgur.KindOf(err), "read data "+path, fmt.Sprintf("line %d: %s", rows[i].Line, fulgur.PublicMessage(err)), nil))
		}
	}
	if bad > shownInputs {
		errs = append(errs, fmt.Errorf("%s: %d further rows that cannot be graded", path, bad-shownInputs))
	}
	return errors.Join(errs...)
}

// checkInputs says which rows the agent's environment cannot carry: the system
// would refuse each of their rollouts at its start.
func checkInputs(r *runFile, path string, rows []data.Row) error {
	mapping, hidden := r.Agent.Input.Env, withheld(r.Reward)
	reads := false
	for _, v := range mapping {
		reads = reads || controller.IsPath(v)
	}
	if !reads {
		return nil
	}
	var errs []error
	bad := 0
	for i := range rows {
		err := checkEnv(mapping, controller.Withhold(rows[i].Input, hidden))
		if err == nil {
			continue
		}
		if bad++; bad <= shownInputs {
			errs = append(errs, fulgur.E(fulgur.KindOf(err), "read data "+path, fmt.Sprintf("line %d: no agent can be given this row", rows[i].Line), err))
		}
	}
	if bad > shownInputs {
		errs = append(errs, fmt.Errorf("%s: %d further rows that no agent can be given", path, bad-shownInputs))
	}
	return errors.Join(errs...)
}

func checkEnv(mapping map[string]string, input []byte) error {
	env, err := controller.InputEnv(mapping, input)
	if err != nil {
		return err
	}
	for name, value := range env {
		if err := controller.CheckVar(name, value); err != nil {
			return err
		}
	}
	return nil
}

package cli

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/tidwall/gjson"

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
	return eachRow(path, rows, "cannot be graded", func(row data.Row) error {
		if err := g.Check(row.Input); err != nil {
			return fulgur.E(fulgur.KindOf(err), "read data "+path, fmt.Sprintf("line %d: %s", row.Line, fulgur.PublicMessage(err)), nil)
		}
		return nil
	})
}

// eachRow checks every row, and returns the first errors with the number of the others.
func eachRow(path string, rows []data.Row, what string, check func(data.Row) error) error {
	var errs []error
	bad := 0
	for i := range rows {
		if err := check(rows[i]); err != nil {
			if bad++; bad <= shownInputs {
				errs = append(errs, err)
			}
		}
	}
	if bad > shownInputs {
		errs = append(errs, fmt.Errorf("%s: %d further rows that %s", path, bad-shownInputs, what))
	}
	return errors.Join(errs...)
}

// hidden looks for the paths of reward.withhold in a run's rows. One that no row has
// hides nothing: it is a slip, and what was meant is shown to agents.
type hidden struct {
	paths []string
	found map[string]bool            // of paths
	names map[string]map[string]bool // of the fields where a path came to no field, by the path so far
}

// look looks at a row.
func (h *hidden) look(input json.RawMessage) {
	if h.found == nil {
		h.found, h.names = map[string]bool{}, map[string]map[string]bool{}
	}
	for _, path := range h.paths {
		if h.found[path] {
			continue
		}
		if h.found[path] = !bytes.Equal(controller.Withhold(input, []string{path}), input); h.found[path] {
			continue
		}
		at, parts := gjson.ParseBytes(input), strings.Split(path, ".")
		for i, name := range parts[1:] { // behind "input"
			fields := at.Map()
			if !at.IsObject() {
				break
			}
			so := strings.Join(parts[:i+1], ".")
			if h.names[so] == nil {
				h.names[so] = map[string]bool{}
			}
			for f := range fields {
				h.names[so][f] = true
			}
			at = fields[name]
		}
	}
}

// err names the paths that no row has, after all rows have been looked at.
func (h *hidden) err() error {
	var errs []error
	for _, path := range h.paths {
		if h.found == nil || h.found[path] {
			continue
		}
		have := "no fields at all"
		for so := path; so != ""; so = so[:max(0, strings.LastIndexByte(so, '.'))] {
			if names := h.names[so]; len(names) > 0 {
				have = "in " + so + " they have " + strings.Join(slices.Sorted(maps.Keys(names)), ", ")
				break
			}
		}
		errs = append(errs, usageErr(fulgur.E(fulgur.KindInvalid, "check the data", fmt.Sprintf("reward.withhold names %s, which no row has, so that it would hide nothing from agents; %s", path, have), nil)))
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
	return eachRow(path, rows, "no agent can be given", func(row data.Row) error {
		if err := checkEnv(mapping, controller.Withhold(row.Input, hidden)); err != nil {
			return fulgur.E(fulgur.KindOf(err), "read data "+path, fmt.Sprintf("line %d: no agent can be given this row", row.Line), err)
		}
		return nil
	})
}

func checkEnv(mapping map[string]string, input []byte) error {
	env, err := controller.InputEnv(mapping, input)
	if err != nil {
		return err
	}
	sum := 0
	for name, value := range env {
		if err := controller.CheckVar(name, value); err != nil {
			return err
		}
		sum += len(name) + len(value) + 2
	}
	if sum > maxEnv {
		return fulgur.E(fulgur.KindTooLarge, "", fmt.Sprintf("its environment variables would hold %d bytes together; the system takes 2 MiB with all others: use agent.input file or stdin", sum), nil)
	}
	return nil
}

// maxEnv bounds what the input puts into an agent's environment, in bytes. Linux
// takes 2 MiB of arguments and environment (a quarter of the usual stack), and some
// are others'.
const maxEnv = 2<<20 - 64<<10

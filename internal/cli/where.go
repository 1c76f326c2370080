package cli

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/fulgur-rl/fulgur"
	"github.com/fulgur-rl/fulgur/internal/api/client"
	"github.com/fulgur-rl/fulgur/internal/trainer"
)

// resumeServer says where a run goes on: with the server that is asked for, else
// with the one that it was trained with; "" is in this process. A run whose
// record is in its folder can't go on with a server, and none goes on without its
// record: the rollouts of the step that was cut off would be run, and counted,
// again.
func resumeServer(dir runDir, asked, file string) (string, error) {
	var from origin
	if err := dir.readJSON("origin.json", &from); err != nil {
		return "", fulgur.E(fulgur.KindInvalid, "resume "+string(dir), "its origin.json, which says where the run was begun, is missing or broken: put it back, or train again", err)
	}
	_, err := os.Stat(dir.store())
	here := err == nil
	for _, s := range []string{asked, from.Server, file} {
		if s == "" {
			continue
		}
		if here && from.Server == "" {
			return "", usageErr(fulgur.E(fulgur.KindConflict, "resume "+string(dir), fmt.Sprintf(
				"its record is in its folder, not at %s: resume it without --server (and FULGUR_SERVER unset)", s), nil))
		}
		return s, nil
	}
	if _, _, err := trainer.Last(string(dir)); !here && err == nil {
		return "", usageErr(fulgur.E(fulgur.KindConflict, "resume "+string(dir),
			"it has checkpoints, but no store.db in its folder: put that back from a backup, or, where the run was trained with a server, name it with --server URL --key KEY", nil))
	}
	return "", nil
}

// checkRecord looks whether a server holds what a run needs: nothing of a new
// one, the record of one that goes on.
func (j *trainJob) checkRecord(ctx context.Context) (err error) {
	c, err := client.New(j.server, j.key, client.Options{RetryFor: -1})
	if err != nil {
		return usageErr(err)
	}
	defer func() { err = errors.Join(err, c.Close()) }()
	some, err := c.Rollouts(ctx, fulgur.RolloutQuery{Run: fulgur.RunID(j.file.Run), Limit: 1})
	if err != nil {
		return err
	}
	if j.resume {
		if _, _, e := trainer.Last(string(j.dir)); e == nil && len(some) == 0 {
			return fulgur.E(fulgur.KindConflict, "resume "+string(j.dir), fmt.Sprintf(
				"the server at %s has no rollouts of the run %q: name the server that has its record with --server", j.server, j.file.Run), nil)
		}
		return nil
	}
	if len(some) == 0 {
		return nil
	}
	resume := "`fulgur resume` where it was begun"
	if dir := j.begun(); dir != "" {
		resume = "`fulgur resume " + dir + "`"
	}
	return fulgur.E(fulgur.KindConflict, "start training", fmt.Sprintf(
		"the server at %s has rollouts of a run %q already: go on with it by %s, or choose another name with --set run=NAME (its controllers too)", j.server, j.file.Run, resume), nil)
}

// begun finds the folder, beside the job's own, of a run of the same name and
// server; "" if there is none.
func (j *trainJob) begun() string {
	found, err := filepath.Glob(filepath.Join(filepath.Dir(string(j.dir)), "*", "origin.json"))
	if err != nil {
		return ""
	}
	for _, p := range found {
		dir := runDir(filepath.Dir(p))
		var from origin
		if dir.readJSON("origin.json", &from) == nil && from.Server == j.server && from.Run == j.file.Run {
			return string(dir)
		}
	}
	return ""
}

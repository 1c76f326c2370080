package trainer

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/fulgur-rl/fulgur"
	"github.com/fulgur-rl/fulgur/internal/trainer/advantage"
	"github.com/fulgur-rl/fulgur/internal/trainer/schedule"
)

// State is everything a run resumes from besides weights and optimizer. Random
// numbers need no state: each is a function of the seed and of what it is for.
type State struct {
	Format     int                  `json:"format"`
	Run        fulgur.RunID         `json:"run"`
	ConfigHash string               `json:"config_hash,omitempty"`
	DataHash   string               `json:"data_hash,omitempty"`
	Seed       uint64               `json:"seed"`
	Cursor     schedule.State       `json:"cursor"`
	Version    fulgur.PolicyVersion `json:"version"`
	Updates    int64                `json:"updates"`
	Rollouts   int64                `json:"rollouts"`
	Evaluated  int64                `json:"evaluated"`
	Tokens     int64                `json:"tokens"`
	Timing     Timing               `json:"timing"`
	Before     *Evaluation          `json:"before,omitempty"`
	After      *Evaluation          `json:"after,omitempty"`
	Validated  *Evaluation          `json:"validated,omitempty"` // the newest validation
	Best       *Best                `json:"best,omitempty"`
	Streak     int                  `json:"streak"` // validations in a row that reached the stop score
	Reached    bool                 `json:"reached"`
	Stale      int                  `json:"stale,omitempty"`     // validations in a row that were no better than the best
	Stalled    bool                 `json:"stalled,omitempty"`   // they were as many as Stop.Patience
	Zeros      int                  `json:"zeros"`               // steps in a row without any reward
	OffRatio   int                  `json:"off_ratio,omitempty"` // steps in a row whose mean ratio was far above 1; negative: below
	// Drift is what is known of how often each way to end occurs, by policy version.
	Drift drift `json:"drift"`
	// Passes are what a curriculum knows of each row.
	Passes []advantage.Passes `json:"passes,omitempty"`
	// Branches are the points from which asynchronous training went on after a
	// process had died: what was sampled behind one, before that time, is of a
	// policy that this run's history does not have.
	Branches []branch `json:"branches,omitempty"`
	// Anew are the rollouts of a step that could not be trained on. Who resumes has
	// mended the cause, so they are asked for again in place of being used.
	Anew []fulgur.RolloutID `json:"anew,omitempty"`
	// Pending is what was measured at Cursor.Step and is not yet in the metrics
	// files; it is written together with what still belongs to that step.
	Pending *pending `json:"pending,omitempty"`
}

type branch struct {
	Version fulgur.PolicyVersion `json:"version"`
	At      time.Time            `json:"at"`
}

// lost says whether a call was sampled by a policy that was lost in a crash.
func (s *State) lost(c *fulgur.Call) bool {
	last := c.Version()
	for _, span := range c.Spans {
		last = max(last, span.Version)
	}
	return slices.ContainsFunc(s.Branches, func(b branch) bool { return last > b.Version && c.StartedAt.Before(b.At) })
}

type pending struct {
	Values map[string]float64 `json:"values"`
	Lines  []RolloutLine      `json:"lines"`
}

const (
	stateFormat = 1
	stateFile   = "trainer.json"
	stepPrefix  = "step-"
)

func checkpointDir(dir string) string { return filepath.Join(dir, "checkpoints") }

func stepName(step int64) string { return fmt.Sprintf("%s%06d", stepPrefix, step) }

// Checkpoints returns the folders of a run's whole checkpoints, oldest first. Each
// is a Hugging Face folder with optimizer state and trainer.json beside.
func Checkpoints(dir string) ([]string, error) {
	entries, err := os.ReadDir(checkpointDir(dir))
	if os.IsNotExist(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fulgur.E(fulgur.KindInternal, "list checkpoints", "the run folder can't be read", err)
	}
	var out []string
	for _, e := range entries {
		if e.IsDir() && strings.HasPrefix(e.Name(), stepPrefix) {
			out = append(out, filepath.Join(checkpointDir(dir), e.Name()))
		}
	}
	// Numbers of more than six digits still sort by value.
	slices.SortFunc(out, func(a, b string) int {
		if len(a) != len(b) {
			return len(a) - len(b)
		}
		return strings.Compare(a, b)
	})
	return out, nil
}

// Last returns a run's newest checkpoint and its state; KindNotFound if there is
// none.
func Last(dir string) (string, State, error) {
	all, err := Checkpoints(dir)
	if err != nil {
		return "", State{}, err
	}
	if len(all) == 0 {
		return "", State{}, fulgur.E(fulgur.KindNotFound, "find a checkpoint", "the run folder "+dir+" has no checkpoint", nil)
	}
	path := all[len(all)-1]
	s, err := readState(path)
	return path, s, err
}

// BestCheckpoint returns the folder of a run's best policy by validation, or of
// the last one where nothing was validated.
func BestCheckpoint(dir string) (string, error) {
	last, s, err := Last(dir)
	if err != nil || s.Best == nil {
		return last, err
	}
	return filepath.Join(checkpointDir(dir), s.Best.Dir), nil
}

func readState(checkpoint string) (State, error) {
	var s State
	raw, err := os.ReadFile(filepath.Join(checkpoint, stateFile))
	if err == nil {
		err = json.Unmarshal(raw, &s)
	}
	switch {
	case err != nil:
		return s, fulgur.E(fulgur.KindInvalid, "read checkpoint "+checkpoint, "its trainer.json is missing or broken; remove that folder to resume from the one before it", err)
	case s.Format != stateFormat:
		return s, fulgur.E(fulgur.KindUnsupported, "read checkpoint "+checkpoint, fmt.Sprintf("it has format %d, this program reads %d", s.Format, stateFormat), nil)
	}
	return s, nil
}

// matches refuses a checkpoint of another run, configuration or data.
func (s *State) matches(o *Options) error {
	differs := ""
	switch {
	case s.Run != o.Run:
		differs = fmt.Sprintf("it belongs to run %q, this is %q", s.Run, o.Run)
	case s.Seed != o.Seed:
		differs = fmt.Sprintf("its seed is %d, not %d", s.Seed, o.Seed)
	case o.ConfigHash != "" && s.ConfigHash != o.ConfigHash:
		differs = "the run file has changed since; resume with the run folder's own configuration, or start a new run from this checkpoint as model"
	case o.Train.Hash != "" && s.DataHash != o.Train.Hash:
		differs = "the training data have changed since: the places already trained would be others; start a new run from this checkpoint as model"
	default:
		return nil
	}
	return fulgur.E(fulgur.KindConflict, "resume", "the checkpoint does not fit: "+differs, nil)
}

// checkpoint saves weights, optimizer and state of the current step under a name
// that appears when all is on disk, then removes old ones. If the step has a
// checkpoint already, only its state is replaced.
func (t *trainer) checkpoint(ctx context.Context) error {
	start := t.o.Now()
	name := stepName(t.state.Cursor.Step)
	root := checkpointDir(t.o.Dir)
	path := filepath.Join(root, name)
	fail := func(err error) error {
		return fulgur.E(kindOfDisk(err), "write checkpoint "+path, "the checkpoint could not be written; free some disk space or mend the folder, then `fulgur resume`: the checkpoint before it is whole", err)
	}
	if err := os.MkdirAll(root, 0o755); err != nil {
		return fail(err)
	}
	if _, err := os.Stat(path); err == nil {
		if err := writeState(path, t.state); err != nil {
			return fail(err)
		}
	} else {
		tmp := filepath.Join(root, ".writing-"+name)
		if err := os.RemoveAll(tmp); err != nil {
			return fail(err)
		}
		if err := t.o.Engine.Save(ctx, tmp); err != nil {
			return fail(err)
		}
		if err := writeState(tmp, t.state); err != nil {
			return fail(err)
		}
		if err := os.Rename(tmp, path); err != nil {
			return fail(err)
		}
		syncDir(root)
	}
	t.saved = t.state.Cursor.Step
	t.final = path
	if err := t.prune(root); err != nil {
		return fail(err)
	}
	t.state.Timing.Checkpoint += t.o.Now().Sub(start)
	best := t.state.Best != nil && t.state.Best.Dir == name
	t.o.Observer(Checkpointed{Step: t.state.Cursor.Step, Dir: path, Best: best})
	return nil
}

func kindOfDisk(err error) fulgur.Kind {
	if k := fulgur.KindOf(err); k != fulgur.KindInternal {
		return k
	}
	return fulgur.KindExhausted
}

// writeState replaces trainer.json in one step.
func writeState(dir string, s State) error {
	raw, err := json.MarshalIndent(s, "", " ")
	if err != nil {
		return fmt.Errorf("encoding the trainer's state: %w", err)
	}
	tmp := filepath.Join(dir, "."+stateFile)
	f, err := os.Create(tmp)
	if err != nil {
		return err
	}
	_, err = f.Write(append(raw, '\n'))
	if err == nil {
		err = f.Sync()
	}
	if e := f.Close(); err == nil {
		err = e
	}
	if err == nil {
		err = os.Rename(tmp, filepath.Join(dir, stateFile))
	}
	if err == nil {
		syncDir(dir)
	}
	return err
}

// syncDir makes renames in dir survive a power cut where the system can do that.
func syncDir(dir string) {
	if d, err := os.Open(dir); err == nil {
		d.Sync() // some systems can't sync a folder; the rename is then as durable as they make it
		d.Close()
	}
}

// prune removes all but the newest checkpoints and the best one, and what a
// crash left half written.
func (t *trainer) prune(root string) error {
	all, err := Checkpoints(t.o.Dir)
	if err != nil {
		return err
	}
	for i, path := range all {
		best := t.state.Best != nil && filepath.Base(path) == t.state.Best.Dir
		if len(all)-i <= t.o.Keep || best {
			continue
		}
		// Renamed first: a folder under its own name is always whole.
		gone := filepath.Join(root, ".gone-"+filepath.Base(path))
		if err := os.Rename(path, gone); err != nil {
			return err
		}
	}
	left, err := filepath.Glob(filepath.Join(root, ".gone-*"))
	if err != nil {
		return err
	}
	for _, path := range left {
		if err := os.RemoveAll(path); err != nil {
			return err
		}
	}
	return nil
}

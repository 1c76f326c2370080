package cli

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/fulgur-rl/fulgur"
)

// runDir is a run's folder. Its layout is part of what users rely on:
//
//	config.yaml    the effective run file
//	origin.json    the run file's folder and the server, for resume
//	store.db       rollouts, attempts, calls, events
//	metrics.jsonl  one line a step; tensorboard/ the same for TensorBoard
//	checkpoints/   step-N and best: Hugging Face folders with optimizer state
//	attempts/      logs of attempts that are kept
//	server.json    where the run listens while it runs, and its key
//	cost.json      what the run has cost up to its last checkpoint, for resume
//	result.json    what `fulgur demo --json` prints
//	dossier.json   what the run was made of and came to: fulgur reproduce runs it again
//	report.html
type runDir string

func (d runDir) path(name ...string) string {
	return filepath.Join(append([]string{string(d)}, name...)...)
}

func (d runDir) config() string      { return d.path("config.yaml") }
func (d runDir) store() string       { return d.path("store.db") }
func (d runDir) metrics() string     { return d.path("metrics.jsonl") }
func (d runDir) checkpoints() string { return d.path("checkpoints") }
func (d runDir) attempts() string    { return d.path("attempts") }
func (d runDir) report() string      { return d.path("report.html") }

// newRunDir makes the folder of a new run below out: out/name, or name-2, -3, …
// where that is taken. A run is never written over.
func newRunDir(out, name string) (runDir, error) {
	for n := 1; n < 10000; n++ {
		p := filepath.Join(out, name)
		if n > 1 {
			p = fmt.Sprintf("%s-%d", p, n)
		}
		if err := os.MkdirAll(filepath.Dir(p), 0o755); err != nil {
			return "", fulgur.E(fulgur.KindExhausted, "make the run's folder", "choose another place with --out", err)
		}
		err := os.Mkdir(p, 0o755)
		if err == nil {
			abs, err := filepath.Abs(p)
			return runDir(abs), err
		}
		if !errors.Is(err, fs.ErrExist) {
			return "", fulgur.E(fulgur.KindExhausted, "make the run's folder", "choose another place with --out", err)
		}
	}
	return "", fulgur.E(fulgur.KindExhausted, "make the run's folder", out+" holds too many runs of this name", nil)
}

// openRunDir finds the folder of a run: a path, or a name below runs/.
func openRunDir(arg string) (runDir, error) {
	for _, p := range []string{arg, filepath.Join("runs", arg)} {
		if _, err := os.Stat(filepath.Join(p, "config.yaml")); err == nil {
			abs, err := filepath.Abs(p)
			return runDir(abs), err
		}
	}
	return "", notFound("open run "+arg, "no run is there (a run's folder holds config.yaml); look below runs/")
}

// origin is what resume needs to know beside the effective configuration.
type origin struct {
	Dir     string `json:"dir"` // the run file's folder
	Run     string `json:"run"`
	Server  string `json:"server"`  // that has the run's record; "": it is in the run's folder
	Version string `json:"version"` // of fulgur that started the run
	Seed    int64  `json:"seed"`
}

func (d runDir) writeJSON(name string, v any, mode fs.FileMode) error {
	b, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		return fmt.Errorf("encoding %s: %w", name, err)
	}
	return writeFile(d.path(name), append(b, '\n'), mode)
}

func (d runDir) readJSON(name string, v any) error {
	b, err := os.ReadFile(d.path(name))
	if err != nil {
		return err
	}
	if err := json.Unmarshal(b, v); err != nil {
		return fmt.Errorf("%s: %w", d.path(name), err)
	}
	return nil
}

// writeFile writes a file whole or not at all.
func writeFile(path string, b []byte, mode fs.FileMode) error {
	tmp, err := os.CreateTemp(filepath.Dir(path), ".tmp-*")
	if err != nil {
		return fmt.Errorf("writing %s: %w", path, err)
	}
	defer os.Remove(tmp.Name())
	_, err = tmp.Write(b)
	err = errors.Join(err, tmp.Chmod(mode), tmp.Sync(), tmp.Close())
	if err == nil {
		err = os.Rename(tmp.Name(), path)
	}
	if err != nil {
		return fmt.Errorf("writing %s: %w", path, err)
	}
	return nil
}

// address is server.json: where a run listens while it runs.
type address struct {
	URL string `json:"url"`
	Key string `json:"key"`
	PID int    `json:"pid"`
}

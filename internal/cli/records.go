package cli

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"

	"github.com/fulgur-rl/fulgur"
	"github.com/fulgur-rl/fulgur/internal/api/client"
	"github.com/fulgur-rl/fulgur/internal/trainer"
)

// records is what commands that look at a run need: the store, or a client of
// the process that has it open.
type records interface {
	Rollouts(ctx context.Context, q fulgur.RolloutQuery) ([]fulgur.Rollout, error)
	Rollout(ctx context.Context, id fulgur.RolloutID) (fulgur.Rollout, error)
	Attempts(ctx context.Context, id fulgur.RolloutID) ([]fulgur.Attempt, error)
	Calls(ctx context.Context, id fulgur.RolloutID, a fulgur.AttemptID) ([]fulgur.Call, error)
	Call(ctx context.Context, id fulgur.CallID) (fulgur.Call, error)
	Events(ctx context.Context, id fulgur.RolloutID, a fulgur.AttemptID) ([]fulgur.Event, error)
	Close() error
}

// openRecords opens a run's record: over HTTP while the run's own process has it
// open, else the file.
func openRecords(ctx context.Context, dir runDir) (records, error) {
	var at address
	if dir.readJSON("server.json", &at) == nil && alive(at.PID) {
		c, err := client.New(at.URL, at.Key, client.Options{RetryFor: -1})
		if err == nil {
			if _, err = c.Head(ctx); err == nil {
				return c, nil
			}
			_ = c.Close()
		}
	}
	if _, err := os.Stat(dir.store()); err != nil {
		var from origin
		if dir.readJSON("origin.json", &from) == nil && from.Server != "" {
			return nil, notFound("open the record of "+string(dir), fmt.Sprintf("its server has it: --server %s --run %s, and its --key", from.Server, from.Run))
		}
		return nil, notFound("open the record of "+string(dir), "it has no store.db: put it back from a backup, or, where the run was trained with a server, ask that with --server")
	}
	return openStore(ctx, "sqlite:"+dir.store(), "", false)
}

// readRolloutLines reads rollouts.jsonl: what became of each rollout.
func readRolloutLines(dir runDir) ([]trainer.RolloutLine, error) {
	return readLines[trainer.RolloutLine](dir.path("rollouts.jsonl"))
}

// readMetrics reads metrics.jsonl, one map a step.
func readMetrics(dir runDir) ([]map[string]float64, error) {
	lines, err := readLines[map[string]any](dir.metrics())
	out := make([]map[string]float64, len(lines))
	for i, l := range lines {
		out[i] = map[string]float64{}
		for k, v := range l {
			if x, ok := v.(float64); ok { // the line's time is text
				out[i][k] = x
			}
		}
	}
	return out, err
}

// readLines reads a file of JSON lines; a last line that a crash cut off is left
// out, an absent file is empty.
func readLines[T any](path string) ([]T, error) {
	b, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var out []T
	s := bufio.NewScanner(bytes.NewReader(b))
	s.Buffer(nil, 16<<20)
	for s.Scan() {
		var v T
		if json.Unmarshal(s.Bytes(), &v) == nil {
			out = append(out, v)
		}
	}
	return out, s.Err()
}

package local

import (
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"time"

	"github.com/fulgur-rl/fulgur"
	"github.com/fulgur-rl/fulgur/internal/controller"
)

// prepareJob checks what a rollout's line will hold.
func (r *Workers) prepareJob(e controller.Execution) (*job, error) {
	mapped, err := r.mapped(e)
	if err != nil {
		return nil, err
	}
	env := make(map[string]string, len(mapped)+len(e.Env))
	vars, pass := r.vars(e)
	for _, m := range []map[string]string{mapped, vars} {
		for name, value := range m {
			if err := controller.CheckVar(name, value); err != nil { // what works as a worker works as a process too
				return nil, err
			}
			env[name] = value
		}
	}
	if !json.Valid(e.Input) {
		return nil, fulgur.E(fulgur.KindInvalid, "", "the rollout's input is not JSON", nil)
	}
	return &job{e: e, env: env, pass: pass}, nil
}

// filed says whether attempts have folders.
func (r *Workers) filed() bool { return r.Workspace || r.Input == controller.ByFile }

// line makes the rollout's folder, in its worker's, and its line.
func (r *Workers) line(p *pipes, j *job) (line []byte, err error) {
	dir := r.Dir
	if r.filed() {
		if j.folder, dir, err = r.files(p.dir, j.e, j.env); err != nil {
			return nil, err
		}
	}
	var deadline *float64
	if j.e.Timeout > 0 {
		at := float64(time.Now().Add(j.e.Timeout).UnixMilli()) / 1000
		deadline = &at
	}
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	err = enc.Encode(struct {
		V        int               `json:"v"`
		Rollout  fulgur.RolloutID  `json:"rollout_id"`
		Attempt  fulgur.AttemptID  `json:"attempt_id"`
		Input    json.RawMessage   `json:"input"`
		Env      map[string]string `json:"env"`
		Dir      string            `json:"dir"`
		Deadline *float64          `json:"deadline"`
	}{1, j.e.Key.Rollout, j.e.Key.Attempt, j.e.Input, j.env, dir, deadline})
	return b.Bytes(), err
}

// fetch takes a rollout's folder out of its worker's, who may still write there, and
// may have put anything in its place.
func (r *Workers) fetch(j *job) (folder string) {
	if j.folder == "" {
		return ""
	}
	folder = filepath.Join(r.attempts(), filepath.Base(j.folder))
	err := controller.RemoveAll(folder)
	if err == nil {
		err = os.Rename(j.folder, folder)
	}
	if err == nil {
		if st, e := os.Lstat(folder); e == nil && !st.IsDir() {
			err = errors.Join(errors.New("the agent has put something else in its place"), os.Remove(folder))
		}
	}
	if err != nil {
		r.Log.Warn("an attempt's folder is lost", "folder", j.folder, "err", err)
		return ""
	}
	return folder
}

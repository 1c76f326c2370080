package local

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/fulgur-rl/fulgur"
	"github.com/fulgur-rl/fulgur/internal/controller"
	"github.com/fulgur-rl/fulgur/internal/controller/plan"
	"github.com/fulgur-rl/fulgur/internal/controller/sandbox"
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

// runJob sees one rollout to its end. A process that does not take it after it has
// answered others had come to its end with the last of them: a new one takes it.
func (r *Workers) runJob(w *worker, j *job) plan.Exit {
	exit, taken := r.tryJob(w, j)
	if !taken {
		r.Log.Warn("a worker took no rollout after its last answer; a new one is started", "rollout", j.e.Key.Rollout, "why", exit.Message)
		exit, _ = r.tryJob(w, j)
	}
	return exit
}

// tryJob gives a rollout to a worker's process and sees it to its end; taken is false
// if the process had answered others, and did not read this one's line.
func (r *Workers) tryJob(w *worker, j *job) (exit plan.Exit, taken bool) {
	stopped := func() bool {
		r.mu.Lock()
		defer r.mu.Unlock()
		return j.stopped
	}
	if stopped() {
		return plan.Exit{Code: -1, Signal: "terminated"}, true
	}
	waits := func(why error) (again bool) { // as starts wait in package controller
		if stopped() {
			return false
		}
		r.events <- controller.Event{Key: j.e.Key, Phase: fulgur.PhaseWaiting, Why: why.Error()}
		time.Sleep(roomEvery)
		return true
	}
	for err := r.disk.Room(); err != nil && waits(err); err = r.disk.Room() { //nolint:revive // that is the loop
	}
	if w.p != nil && (w.p.dead() || w.p.stray()) {
		w.p.kill()
		r.gone(w.p)
		r.mu.Lock()
		w.p = nil
		r.mu.Unlock()
	}
	if w.p == nil {
		p, err := r.spawn(w)
		for controller.NoRoom(err) && waits(err) {
			p, err = r.spawn(w)
		}
		if err != nil {
			return spawnExit(err), true
		}
		r.mu.Lock()
		w.p = p
		r.mu.Unlock()
	}
	p := w.p
	if stopped() { // Stop has not seen this process, or it has and ends it
		return plan.Exit{Code: -1, Signal: "terminated"}, true
	}
	p.log.Reset()
	line, err := r.line(p, j)
	if err != nil {
		return spawnExit(err), true
	}
	if p.child.cell != nil {
		p.child.cell.Let(j.pass)
		defer p.child.cell.Let(sandbox.Pass{})
	}
	if r.Workspace {
		r.disk.Watch(j.e.Key, p.dir, func() int64 { return unlinked(p.dir, p.child.pid) })
	}
	p.send(line)
	if exit, ok := r.reads(p); !ok {
		return exit, p.fresh || stopped()
	}
	p.fresh = false
	r.events <- controller.Event{Key: j.e.Key, Handle: p.child.handle}
	select {
	case line, open := <-p.lines:
		if open {
			return p.answer(line, j.e.Key.Rollout), true
		}
		// It closed its output: it has ended, or cannot answer any more.
		if !closedWithin(p.child.gone, r.Grace) {
			p.kill()
			return plan.Exit{Code: -1, Failure: plan.ReasonProtocol, Message: "the worker closed its standard output without an answer"}, true
		}
	case <-p.child.gone:
	}
	if line, ok := p.last(); ok { // it answered, and ended
		return p.answer(line, j.e.Key.Rollout), true
	}
	exit = r.exitOf(p.child, controller.LastLines(p.log.Bytes()))
	if exit.Code == 0 && !p.child.stopped() {
		exit = plan.Exit{Code: -1, Failure: plan.ReasonProtocol, Message: "the worker exited with code 0 without an answer"}
	}
	return exit, true
}

// reads waits until a process has read the line that it was sent.
func (r *Workers) reads(p *pipes) (plan.Exit, bool) {
	limit := time.NewTimer(r.WorkerStart)
	defer limit.Stop()
	for nap := time.Millisecond; ; nap = min(2*nap, 20*time.Millisecond) {
		if p.taken() {
			return plan.Exit{}, true
		}
		t := time.NewTimer(nap)
		select {
		case <-t.C:
			continue
		case <-p.child.gone:
			t.Stop()
			if p.taken() { // it read its line, and ended: that is the rollout's end
				return plan.Exit{}, true
			}
			exit := r.exitOf(p.child, controller.LastLines(p.log.Bytes()))
			if p.child.stopped() || exit.Failure != "" {
				return exit, false
			}
			how := fmt.Sprintf("with code %d", exit.Code)
			if exit.Signal != "" {
				how = "by signal " + exit.Signal
			}
			return plan.Exit{Code: -1, Failure: plan.ReasonWorker, Cause: plan.CauseTransient, Message: "the worker ended " + how + p.before()}, false
		case <-limit.C:
			t.Stop()
			p.kill()
			return plan.Exit{Code: -1, Failure: plan.ReasonWorker, Cause: plan.CauseTransient, Message: fmt.Sprintf("the worker had not read its first line %s after its start", r.WorkerStart)}, false
		}
	}
}

// before says, for people, what a process that ended had not done.
func (p *pipes) before() string {
	if p.fresh {
		return " at its start-up, before it read its first line"
	}
	return " before it read its next line"
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

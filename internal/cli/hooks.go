package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"time"

	"github.com/fulgur-rl/fulgur"
	"github.com/fulgur-rl/fulgur/internal/config"
	"github.com/fulgur-rl/fulgur/internal/trainer"
)

// hooks run the run file's commands. They run one at a time, on the trainer's
// goroutine: training waits for them.
type hooks struct {
	ctx   context.Context
	stop  context.CancelCauseFunc // ends the run
	file  *runFile
	dir   runDir
	warn  func(string)
	fault string // of a hook that ends the run: no further one is run
}

// failed is the error of a run that a hook has stopped.
func (h *hooks) failed() error {
	if h.fault == "" {
		return nil
	}
	return fulgur.E(fulgur.KindUpstream, "train", h.fault+"; mend it, then `fulgur resume "+string(h.dir)+"`", nil)
}

// happened is what a hook reads on standard input.
type happened struct {
	Event      string              `json:"event"`
	Run        string              `json:"run"` // the run's folder
	Step       int64               `json:"step"`
	Version    *int64              `json:"version,omitempty"` // of the policy
	Reward     *float64            `json:"reward,omitempty"`
	PassRate   *float64            `json:"pass_rate,omitempty"`
	Loss       *float64            `json:"loss,omitempty"`
	KL         *float64            `json:"kl,omitempty"`
	Part       string              `json:"part,omitempty"` // val, before, after
	Evaluation *trainer.Evaluation `json:"evaluation,omitempty"`
	Checkpoint string              `json:"checkpoint,omitempty"` // its folder
	Best       bool                `json:"best,omitempty"`       // it is the best so far
	Result     *result             `json:"result,omitempty"`
}

// on runs the hook of an event, if there is one.
func (h *hooks) on(e trainer.Event) {
	c := h.file.Hooks
	switch e := e.(type) {
	case trainer.Started:
		h.run(c.BeforeRun, happened{Event: "before_run", Step: e.Step})
	case trainer.StepDone:
		v := int64(e.Version)
		h.run(c.AfterStep, happened{Event: "after_step", Step: e.Step, Version: &v, Reward: &e.Reward, PassRate: &e.PassRate, Loss: &e.Loss, KL: &e.KL})
	case trainer.Evaluated:
		h.run(c.AfterValidation, happened{Event: "after_validation", Step: e.Step, Part: e.Part, Evaluation: &e.Evaluation})
	case trainer.Checkpointed:
		h.run(c.AfterCheckpoint, happened{Event: "after_checkpoint", Step: e.Step, Checkpoint: e.Dir, Best: e.Best})
	}
}

// done runs the hook of the run's end.
func (h *hooks) done(ctx context.Context, r result) {
	h.ctx = ctx
	h.run(h.file.Hooks.AfterRun, happened{Event: "after_run", Step: r.Steps, Result: &r})
}

func (h *hooks) run(command []string, e happened) {
	if len(command) == 0 || h.fault != "" || h.ctx.Err() != nil {
		return
	}
	e.Run = string(h.dir)
	out, err := h.execute(config.Expand(command, string(h.dir)), e)
	h.keep(e, out, err)
	if err == nil {
		return
	}
	text := fmt.Sprintf("the hook %s failed in step %d: %v; hooks.log has what it said", e.Event, e.Step, err)
	if h.file.Hooks.Failure == "stop" {
		h.fault = text
		h.warn(text + "; the run is stopped (hooks.failure)")
		h.stop(errors.New(text))
		return
	}
	h.warn(text)
}

// execute runs a command with what happened on its standard input, and ends it
// with all that it started when its time is over.
func (h *hooks) execute(command []string, e happened) ([]byte, error) {
	in, err := json.Marshal(e)
	if err != nil {
		return nil, fmt.Errorf("encoding what happened: %w", err)
	}
	limit := time.Duration(h.file.Hooks.Timeout)
	ctx, cancel := context.WithTimeout(h.ctx, limit)
	defer cancel()
	c := exec.CommandContext(ctx, command[0], command[1:]...)
	c.Dir = h.file.Dir
	c.Stdin = bytes.NewReader(append(in, '\n'))
	c.Env = append(os.Environ(), "HOOK_EVENT="+e.Event, "HOOK_STEP="+strconv.FormatInt(e.Step, 10), "HOOK_RUN="+string(h.dir))
	ownGroup(c)
	c.WaitDelay = 2 * time.Second
	out, err := c.CombinedOutput()
	killGroup(c)
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		err = fulgur.E(fulgur.KindTimeout, "run "+command[0], fmt.Sprintf("it took longer than %s (hooks.timeout)", limit), nil)
	}
	return out, err
}

// keep adds what a hook said to hooks.log.
func (h *hooks) keep(e happened, out []byte, failed error) {
	status := "ok"
	if failed != nil {
		status = failed.Error()
	}
	f, err := os.OpenFile(h.dir.path("hooks.log"), os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
	if err == nil {
		text := strings.TrimRight(string(out), "\n")
		if text != "" {
			text += "\n"
		}
		_, err = fmt.Fprintf(f, "%s %s step %d: %s\n%s", time.Now().Format(time.RFC3339), e.Event, e.Step, status, text)
		err = errors.Join(err, f.Close())
	}
	if err != nil {
		h.warn("hooks.log can't be written: " + err.Error())
	}
}

package local

import (
	"context"
	"fmt"
	"os"
	"strings"
	"syscall"
	"time"

	"github.com/fulgur-rl/fulgur/internal/controller"
	"github.com/fulgur-rl/fulgur/internal/controller/plan"
	"github.com/fulgur-rl/fulgur/internal/controller/sandbox"
)

// sandboxLimit is how long what is in a sandbox may take to die with it.
const sandboxLimit = 2 * time.Second

// launch is one process to start.
type launch struct {
	dir   string
	env   []string
	files [3]*os.File
	mark  string
	pass  sandbox.Pass // what its relay lets through
	read  []string     // what it sees beside the rest of the view
	write []string     // and may write
}

// start starts the agent's program, in a sandbox if there is one.
func (b *base) start(l launch) (*child, error) {
	dog := b.watched()
	if b.Sandbox == nil {
		p, err := b.forker.start(b.program, b.Command, &os.ProcAttr{Dir: l.dir, Env: l.env, Files: l.files[:], Sys: attributes(b.orphans)}, nil)
		if err != nil {
			return nil, spawnError(b.program, l.dir, err)
		}
		return newChild(p, l.mark, dog), nil
	}
	cell, err := b.Sandbox.Cell(sandbox.Command{Program: b.program, Args: b.Command, Dir: l.dir, Env: l.env, Files: l.files, Read: l.read, Write: l.write})
	if err != nil {
		return nil, spawnError("the sandbox", "", err)
	}
	cell.Let(l.pass)
	around := cell.Attributes(attributes(b.orphans))
	p, err := b.forker.start(cell.Name, cell.Argv, cell.Attr, around)
	if err != nil {
		cell.Abandon()
		return nil, spawnError("the sandbox ("+cell.Name+")", "", err)
	}
	c := newChild(p, l.mark, dog)
	c.cell = cell
	cell.Begin()
	return c, nil
}

// Prove implements controller.Prover: probes try to get out of the sandbox, and
// to reach the gateway. Without a sandbox there is nothing to prove.
func (b *base) Prove(ctx context.Context, _ string) error {
	if b.Sandbox == nil {
		return nil
	}
	return b.Sandbox.Prove(ctx, b.Hidden)
}

// vars are an execution's variables as its process gets them.
func (b *base) vars(e controller.Execution) (map[string]string, sandbox.Pass) {
	if b.Sandbox == nil {
		return e.Env, sandbox.Pass{}
	}
	return b.Sandbox.Env(e.Env, e.Secrets)
}

// exitOf says how a child ended that is gone; tail is the end of its log.
func (b *base) exitOf(c *child, tail string) plan.Exit {
	exit := exitOf(c.state)
	if c.cell == nil || exit.Failure != "" {
		return exit
	}
	if why, program := c.cell.Problem(tail); why != "" && !c.stopped() {
		if program {
			return plan.Failed(plan.ReasonSpawn, "the agent could not be started in its sandbox: "+why+": what the agent needs of this machine beside the system and the run file's folder is named by runner.read")
		}
		return plan.Failed(plan.ReasonSandbox, "the sandbox could not be made: "+why)
	}
	// bubblewrap tells a signal as shells do.
	var signal syscall.Signal
	if n := exit.Code - 128; n > 0 && n < 32 {
		signal = syscall.Signal(n)
		exit = plan.Exit{Code: -1, Signal: signal.String()}
	}
	if exit.Code == 0 || c.stopped() {
		return exit
	}
	limit, sure := c.cell.Limit(signal, tail)
	if limit == "" {
		return exit
	}
	how := fmt.Sprintf("code %d", exit.Code)
	if exit.Signal != "" {
		how = "signal " + exit.Signal
	}
	x := plan.Failed(limit, fmt.Sprintf("the agent ran into its sandbox's limit on %s (runner.limits) and ended with %s", limitWords(limit), how))
	x.Guess = !sure
	return x
}

// limitWords names a limit for people.
func limitWords(limit string) string {
	switch limit {
	case plan.ReasonDisk:
		return "file sizes"
	case plan.ReasonCPU:
		return "CPU time"
	}
	return strings.TrimSpace(limit)
}

// cpuOf adds what a child has used to the runner's account.
func (b *base) cpuOf(c *child) time.Duration {
	d := b.spent(c.state)
	if c.cell != nil {
		d += c.cell.CPU()
		b.cpu.Add(int64(c.cell.CPU()))
	}
	return d
}

// Package local runs agents as processes of this machine: one per attempt
// (Processes), or long-lived workers that take rollouts one by one (Workers).
//
// Every agent is the leader of a process group of its own, and a whole tree is
// ended with it: the group, what descends from it, and what carries its mark in
// its environment (FULGUR_EXECUTION), so that a daemon that left group and
// session is found too, also by the next controller after this one was killed.
// On Linux the agent itself dies with the controller (PR_SET_PDEATHSIG); what it
// started is ended by a watchdog, a process that waits for the controller's end
// (Options.Watchdog), and in a sandbox dies with that, once that is set up. On macOS a process's
// environment cannot be read: there the group and the descendants are covered,
// daemons that left both are not.
package local

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/fulgur-rl/fulgur"
	"github.com/fulgur-rl/fulgur/internal/controller"
	"github.com/fulgur-rl/fulgur/internal/controller/grade"
	"github.com/fulgur-rl/fulgur/internal/controller/sandbox"
)

// Options say what to run, and how. The zero value of each but Command is good.
type Options struct {
	Command   []string          // program and arguments
	Dir       string            // the agents' working folder, and where a relative program is; "": the current one
	State     string            // folder for logs, inputs and workspaces; "": none is written
	Env       map[string]string // NAME: literal, or a path such as input.question
	Input     controller.InputMode
	Workspace bool            // a fresh folder per attempt under State as the working folder
	Disk      int64           // bytes that a workspace may hold; 0: 10 GiB
	Keep      controller.Keep // which workspaces and input files; "": failures
	Logs      controller.Keep // which logs become files under State/logs; "": failures. They are held in memory until the agent has ended
	LogCap    int             // bytes of output kept per attempt, beginning and end; 0: 1 MiB
	Grace     time.Duration   // between SIGTERM and SIGKILL; 0: 5 s
	Environ   []string        // the parent's environment; nil: os.Environ()
	Secrets   []string        // a variable that holds one of these is not passed on
	Scope     string          // what the agents belong to, such as the store's address and the run; the same after a restart
	Log       *slog.Logger    // nil: nothing is logged

	// Sandbox is what agents run in, and is closed with the runner; nil: nothing keeps
	// them from what this user may do.
	Sandbox *sandbox.Box
	// Grading says how what an agent leaves is graded; nil: the runner grades nothing.
	Grading *grade.Options
	// Hidden are files that no agent may read, by the names that the probes have
	// for them; Prove looks whether they are hidden.
	Hidden map[string]string

	// Watchdog is the command line of a program that begins with Watch, such as this one with
	// WatchCommand: one process that ends what agents have left when this one is killed, and
	// sandboxes that were being set up; nil: only a successor does.
	Watchdog []string

	Workers     int           // NewWorkers: how many at once, at least 1
	WorkerStart time.Duration // NewWorkers: how long a worker may take to read its first line; 0: 60 s

	orphans bool // tests: agents outlive their controller, as on macOS
}

const (
	defaultLogCap = 1 << 20
	defaultGrace  = 5 * time.Second
	// markName is the variable by which an agent's processes are known:
	// scope/holder/rollout/attempt, each part escaped.
	markName = "FULGUR_EXECUTION"
)

// prepared are Options, checked and filled in.
type prepared struct {
	Options
	program string
	environ []string      // of the parent, filtered
	owner   string        // scope/holder: the marks' prefix
	grading *grade.Grader // nil: none
}

func (o Options) prepare() (*prepared, error) {
	const op = "set up the local runner"
	if len(o.Command) == 0 || o.Command[0] == "" {
		return nil, fulgur.E(fulgur.KindInvalid, op, "no command: set agent.command to the program and its arguments", nil)
	}
	if err := controller.CheckFiles(op, o.State, o.Input, o.Workspace, &o.Keep, &o.Logs); err != nil {
		return nil, err
	}
	if o.LogCap <= 0 {
		o.LogCap = defaultLogCap
	}
	if o.Disk <= 0 {
		o.Disk = controller.DefaultWorkspace
	}
	if o.Grace <= 0 {
		o.Grace = defaultGrace
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.Environ == nil {
		o.Environ = os.Environ()
	}
	for _, dir := range []*string{&o.Dir, &o.State} {
		if *dir == "" {
			continue
		}
		abs, err := filepath.Abs(*dir)
		if err != nil {
			return nil, fulgur.E(fulgur.KindInvalid, op, "the folder "+*dir+" cannot be found", err)
		}
		*dir = abs
	}
	if st, err := os.Stat(o.Dir); o.Dir != "" && (err != nil || !st.IsDir()) {
		return nil, fulgur.E(fulgur.KindInvalid, op, "the agents' working folder "+o.Dir+" is not there", err)
	}
	program := o.Command[0]
	if strings.ContainsRune(program, filepath.Separator) && !filepath.IsAbs(program) {
		program = filepath.Join(o.Dir, program)
	}
	found, err := exec.LookPath(program)
	if err == nil {
		found, err = filepath.Abs(found)
	}
	if err != nil {
		return nil, fulgur.E(fulgur.KindInvalid, op, fmt.Sprintf("the agent's command %q cannot be run: is it built, executable and on PATH?", o.Command[0]), err)
	}
	p := &prepared{Options: o, program: found, environ: filter(o.Environ, o.Secrets)}
	if o.Sandbox != nil {
		p.environ = sandbox.Environ(p.environ)
	}
	scope := sha256.Sum256([]byte(o.Scope))
	p.owner = hex.EncodeToString(scope[:8]) + "/" + rand.Text()[:12]
	if o.Grading != nil && o.Sandbox == nil { // they outlive nobody
		g := *o.Grading
		g.Environ = append(slices.Clone(g.Environ), markName+"="+p.graders())
		o.Grading = &g
	}
	if p.grading, err = grade.New(o.Grading, o.State, nil); err != nil {
		return nil, err
	}
	return p, nil
}

// graders is the mark of the programs that grade.
func (p *prepared) graders() string { return p.owner + "/grading" }

// filter drops what agents must not see: anything that holds a key of ours.
func filter(environ, secrets []string) []string {
	out := make([]string, 0, len(environ))
next:
	for _, kv := range environ {
		name, value, _ := strings.Cut(kv, "=")
		if strings.HasPrefix(name, "FULGUR_") && strings.Contains(name, "KEY") || name == markName {
			continue
		}
		for _, s := range secrets {
			if s != "" && strings.Contains(value, s) {
				continue next
			}
		}
		out = append(out, kv)
	}
	return out
}

// merge puts vars over the parent's environment. A value that the system would
// refuse at exec is refused here, with its name and size.
func (p *prepared) merge(vars ...map[string]string) ([]string, error) {
	out := make([]string, 0, len(p.environ)+24)
	has := func(name string) bool {
		for _, m := range vars {
			if _, ok := m[name]; ok {
				return true
			}
		}
		return false
	}
	for _, kv := range p.environ {
		if name, _, _ := strings.Cut(kv, "="); !has(name) {
			out = append(out, kv)
		}
	}
	for i, m := range vars {
	next:
		for name, value := range m {
			for _, later := range vars[i+1:] {
				if _, ok := later[name]; ok {
					continue next
				}
			}
			if err := controller.CheckVar(name, value); err != nil {
				return nil, err
			}
			out = append(out, name+"="+value)
		}
	}
	return out, nil
}

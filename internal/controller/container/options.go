// Package container runs each attempt in a container of its own on this
// machine, through a command line like docker's: Podman or Docker.
//
// A container belongs to the runtime, not to the process that asked for it: it
// outlives a controller that is killed, and the next one finds it again by its
// labels (Adopt). A client process waits for each container, so an exit is
// heard when it happens, without polling; ending an attempt ends its container,
// never the client alone (CL-04). An ended container stays until its end is on
// record (Acknowledge).
package container

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/fulgur-rl/fulgur"
	"github.com/fulgur-rl/fulgur/internal/controller"
	"github.com/fulgur-rl/fulgur/internal/controller/grade"
	"github.com/fulgur-rl/fulgur/internal/controller/plan"
)

// Limits bound one container. Zero: no limit.
type Limits struct {
	Memory    int64   // bytes, swap included
	Processes int     // and threads
	FileSize  int64   // bytes of the largest file
	Workspace int64   // bytes of the workspace; 0: 10 GiB
	CPUTime   int     // seconds of each process
	CPUs      float64 // how many it may keep busy
}

// Options say what to run, and how. The zero value of each but Image is good.
type Options struct {
	Program string            // the client; "" and "auto": podman or docker, the first that is there
	Image   string            // what containers are made of
	Pull    string            // "missing" ("") gets the image if it is not there, "never" does not
	Command []string          // program and arguments; empty: the image's own
	Env     map[string]string // NAME: literal, or a path such as input.question
	Input   controller.InputMode
	Network string   // "" and NetworkGateway: the gateway alone; else what --network takes
	Gateway string   // the gateway's URL as this process reaches it; NetworkGateway wants it
	Mounts  []string // FOLDER:PATH or FOLDER:PATH:ro, as --volume takes them
	Limits  Limits
	// Workspace gives each attempt a new empty folder, which is its working folder.
	Workspace bool
	// Grading says how what an agent leaves in it is graded: Tests run in a container of the
	// same image, with no network, Command on this machine; nil: the runner grades nothing.
	Grading  *grade.Options
	ReadOnly bool     // the container's root cannot be written; /tmp can
	Extra    []string // more options of `run`, such as --gpus=all

	State   string          // folder for logs and inputs; "": none is written
	Keep    controller.Keep // which input files; "": failures
	Logs    controller.Keep // which logs become files under State/logs; "": failures
	LogCap  int             // bytes of output kept per attempt, beginning and end; 0: 1 MiB
	Grace   time.Duration   // between SIGTERM and SIGKILL; 0: 5 s
	Environ []string        // the client's environment; nil: os.Environ()
	Scope   string          // what the containers belong to, such as the store's address and the run; the same after a restart
	Log     *slog.Logger    // nil: nothing is logged

	unguarded bool // tests: NetworkGateway does not take the network away
}

const (
	defaultLogCap = 1 << 20
	defaultGrace  = 5 * time.Second
	// The labels by which a container is known.
	labelScope   = "fulgur.scope"
	labelRollout = "fulgur.rollout"
	labelAttempt = "fulgur.attempt"
	inputPath    = "/run/fulgur/input.json"
)

// prepare checks the options and fills them in.
func (o *Options) prepare() error {
	const op = "set up the container runner"
	if o.Image == "" {
		return fulgur.E(fulgur.KindInvalid, op, "no image: set runner.image", nil)
	}
	if strings.HasPrefix(o.Image, "-") || strings.ContainsAny(o.Image, " \t\n") {
		return fulgur.E(fulgur.KindInvalid, op, fmt.Sprintf("%q is no name of an image", o.Image), nil)
	}
	if len(o.Command) > 0 && o.Command[0] == "" {
		return fulgur.E(fulgur.KindInvalid, op, "the program's name in agent.command is empty", nil)
	}
	switch o.Pull {
	case "", "missing", "never":
	default:
		return fulgur.E(fulgur.KindInvalid, op, fmt.Sprintf("pull %q is none of missing, never", o.Pull), nil)
	}
	if o.Network == "" {
		o.Network = NetworkGateway
	}
	if o.Network == NetworkGateway && o.Gateway == "" {
		return fulgur.E(fulgur.KindInvalid, op, "the network gateway needs the gateway's address", nil)
	}
	if err := controller.CheckFiles(op, o.State, o.Input, o.Workspace, &o.Keep, &o.Logs); err != nil {
		return err
	}
	for _, m := range o.Mounts {
		from, _, ok := strings.Cut(m, ":")
		if _, err := os.Stat(from); !ok || !filepath.IsAbs(from) || err != nil {
			return fulgur.E(fulgur.KindInvalid, op, fmt.Sprintf("the mount %q wants a folder or file that is there, a colon, and where it shall be in the container", m), err)
		}
	}
	if o.State != "" {
		abs, err := filepath.Abs(o.State)
		if err != nil {
			return fulgur.E(fulgur.KindInvalid, op, "the folder "+o.State+" cannot be found", err)
		}
		o.State = abs
	}
	if o.LogCap <= 0 {
		o.LogCap = defaultLogCap
	}
	if o.Limits.Workspace <= 0 {
		o.Limits.Workspace = controller.DefaultWorkspace
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
	return nil
}

// New checks the options, the client, its server, the image (which is fetched
// where that is allowed) and that the program is in it: what cannot work is
// refused here, before any rollout fails by it.
func New(ctx context.Context, o Options) (*Runner, error) {
	if err := o.prepare(); err != nil {
		return nil, err
	}
	inner, err := findInner()
	if err != nil && o.Network == NetworkGateway {
		return nil, err
	}
	c, err := findClient(ctx, o.Program, o.Environ)
	if err != nil {
		return nil, err
	}
	if l := &o.Limits; c.about.Unbounded && (l.Memory > 0 || l.Processes > 0 || l.CPUs > 0) {
		o.Log.Warn(unbounded, "program", c.path)
		l.Memory, l.Processes, l.CPUs = 0, 0, 0 // for what a limit explains is not to be explained by it
	}
	r := &Runner{Options: o, client: c, inner: inner, scope: short(o.Scope), events: make(chan controller.Event, 64), live: map[plan.Key]*box{}, kept: map[plan.Key]left{}, testing: map[string]bool{}}
	if r.grader, err = grade.New(o.Grading, o.State, r.test); err != nil {
		return nil, err
	}
	if r.State != "" {
		r.disk = controller.NewDisk(r.State, r.Limits.Workspace, r.fills)
	}
	r.life, r.end = context.WithCancel(context.WithoutCancel(ctx))
	if err := r.haveImage(ctx); err != nil {
		r.end()
		return nil, err
	}
	return r, nil
}

// short is a hash of a name, fit for a label's value and a container's name.
func short(s string) string {
	sum := sha256.Sum256([]byte(s))
	return hex.EncodeToString(sum[:6])
}

// nameOf is the container's name: the same for the same attempt, another for
// every scope.
func (r *Runner) nameOf(k plan.Key) string {
	return "fulgur-" + r.scope + "-" + controller.FileName(k)
}

// left is what an attempt that has ended still has on this machine.
type left struct {
	name   string // its container
	folder string // to be removed with it; "": none
}

// Runner implements controller.Runner, Grader, Acknowledger, Leaver and Prover.
type Runner struct {
	Options
	client *client
	scope  string
	init   bool     // containers can have an init process
	entry  []string // what runs: Command, or the image's own
	inner  string   // this binary, where it is to be a container's first program
	events chan controller.Event
	life   context.Context // of the clients that wait; ends with Close
	end    context.CancelFunc
	grader *grade.Grader    // nil: none
	disk   *controller.Disk // of State; nil: there is none

	mu     sync.Mutex
	closed bool
	left   bool // Close ends nothing
	live   map[plan.Key]*box
	kept   map[plan.Key]left // ended, and the end is not on record yet
	wg     sync.WaitGroup

	testing map[string]bool // the containers of tests that run
}

// Name implements controller.Runner.
func (r *Runner) Name() string { return "container" }

// Events implements controller.Runner.
func (r *Runner) Events() <-chan controller.Event { return r.events }

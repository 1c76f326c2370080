// Package grade has a program grade what an agent has left in its workspace. It is
// what runners share that implement controller.Grader: files are taken out when the
// agent is dead, laid over a copy of the pristine folder, tested there, and graded.
package grade

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/fulgur-rl/fulgur"
	"github.com/fulgur-rl/fulgur/internal/controller"
	"github.com/fulgur-rl/fulgur/internal/controller/plan"
	"github.com/fulgur-rl/fulgur/internal/controller/sandbox"
)

// Options say how what an agent has left in its workspace is graded.
//
// When the agent and all that it started are dead, the files that it changed are
// taken out of its workspace, once and up to a size, and laid over a copy of the
// pristine folder as far as Paths allow. Tests, if there are any, run there: the agent's
// code may run in them, so they hold no credential, no key and no evaluation data, and
// nobody takes their word. Command then reads what they printed and how they ended,
// and says what it is worth: a number on the last line of its standard output.
type Options struct {
	Command  []string      // the grader
	Tests    []string      // what runs the agent's work, in the copy; nil: nothing does
	Dir      string        // where Command runs
	Pristine string        // the folder that the agent's files are laid over; "": an empty one
	Paths    []string      // what an agent may change, with * and **; nil: all
	Size     int64         // bytes of all changed files; 0: 32 MiB
	Timeout  time.Duration // of Tests, and again of Command; 0: 10 minutes
	Failures bool          // what agents have left that failed is taken too
	Environ  []string      // more variables of Tests, where they run here, and of Command

	// What Tests and Command run in; closed with the Grader; nil: nothing keeps them in.
	TestBox, Box *sandbox.Box
}

// RunTests runs Options.Tests in a folder to their end, and writes what they print.
// exit is their exit code, -1: a signal. An error says that they could not be run:
// KindExhausted, KindUnavailable and KindTimeout that the machine is to blame, and
// another attempt may go better.
type RunTests func(ctx context.Context, work string, out io.Writer) (exit int, err error)

const (
	defaultGradeTime = 10 * time.Minute
	testOutput       = 1 << 20 // bytes of what tests print that a grader gets
	graderOutput     = 64 << 10
	keptOutput       = 1 << 10 // of either, with each attempt that was graded
	gradedAtOnce     = 4       // graders run beside the agents, whose slots are free by then
)

// Grader is Options at work.
type Grader struct {
	Options
	state   string
	environ []string // the system's folders on PATH, and little else
	tests   RunApart
	room    chan struct{}

	mu      sync.Mutex
	patches map[plan.Key]taken
	copies  map[string]bool // folders of state that are this process's
}

// taken is what was taken out of a workspace.
type taken struct {
	patch
	err error
}

// New returns a Grader that keeps copies below state; nil: o is nil, and nothing is
// graded. tests nil: they run here, in TestBox.
func New(o *Options, state string, tests RunTests) (*Grader, error) {
	const op = "set up the grader"
	switch {
	case o == nil:
		return nil, nil
	case len(o.Command) == 0 || o.Command[0] == "":
		return nil, fulgur.E(fulgur.KindInvalid, op, "no command: set reward.command to the program that grades and its arguments", nil)
	case state == "":
		return nil, fulgur.E(fulgur.KindInvalid, op, "a grader needs a folder for what it grades", nil)
	}
	out := &Grader{Options: *o, state: filepath.Join(state, "grading"), room: make(chan struct{}, gradedAtOnce), patches: map[plan.Key]taken{}, copies: map[string]bool{}}
	if out.Size <= 0 {
		out.Size = defaultPatch
	}
	if out.Timeout <= 0 {
		out.Timeout = defaultGradeTime
	}
	out.environ = slices.Concat([]string{"PATH=" + os.Getenv("PATH"), "LANG=C.UTF-8", "HOME=/tmp", "PYTHONDONTWRITEBYTECODE=1"}, o.Environ)
	out.environ = slices.Clip(out.environ) // who appends has a copy
	if tests == nil {
		tests = out.here
	}
	out.tests = timed(tests)
	if out.Pristine != "" {
		if st, err := os.Stat(out.Pristine); err != nil || !st.IsDir() {
			return nil, fulgur.E(fulgur.KindInvalid, op, "reward.pristine: the folder "+out.Pristine+" is not there", err)
		}
	}
	return out, nil
}

// Takes says whether what an execution has left that has ended like this may have to be
// graded. stopped: it was asked to end.
func (g *Grader) Takes(x plan.Exit, stopped bool) bool {
	switch {
	case g == nil:
		return false
	case x.Code == 0 && x.Failure == "" && x.Signal == "" && !stopped:
		return true
	case x.Failure != "" && (x.Cause == plan.CauseTransient || x.Cause == plan.CausePermanent): // not the agent's
		return false
	}
	return g.Failures
}

// rootFS is a workspace: no link leads out of it, and nothing in it is waited for (a
// pipe that somebody has put in a file's place).
type rootFS struct{ root *os.Root }

func (r rootFS) Open(name string) (fs.File, error) {
	if !fs.ValidPath(name) {
		return nil, &fs.PathError{Op: "open", Path: name, Err: fs.ErrInvalid}
	}
	f, err := r.root.OpenFile(name, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if errors.Is(err, syscall.EAGAIN) { // somebody of the agent's holds a lease on it: no lack of this machine's
		err = &fs.PathError{Op: "open", Path: name, Err: fs.ErrPermission}
	}
	if err != nil {
		return nil, err
	}
	st, err := f.Stat()
	if err == nil && !st.IsDir() && !st.Mode().IsRegular() {
		err = &fs.PathError{Op: "open", Path: name, Err: fs.ErrInvalid}
	}
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

// emptyFS has no files.
type emptyFS struct{}

func (emptyFS) Open(name string) (fs.File, error) {
	return nil, &fs.PathError{Op: "open", Path: name, Err: fs.ErrNotExist}
}

// Grade is that of controller.Grader.
func (g *Grader) Grade(ctx context.Context, x controller.Grading) (controller.Grade, error) {
	g.mu.Lock()
	t, ok := g.patches[x.Key]
	delete(g.patches, x.Key)
	g.mu.Unlock()
	if !ok {
		return controller.Grade{}, controller.ErrNothingLeft
	}
	name := controller.FileName(x.Key)
	defer g.drop(name)
	switch {
	case Machine(t.err):
		return controller.Grade{}, fulgur.E(fulgur.KindExhausted, "", "what the agent left could not be read", t.err)
	case t.err != nil: // too much, or of a kind that is no work: the agent's doing
		return controller.Grade{Graded: fulgur.Graded{Flags: []string{t.err.Error()}}}, nil
	}
	flags := t.refused
	if t.shams+t.usual > 0 && t.files == 0 {
		return controller.Grade{Graded: fulgur.Graded{Flags: flags}}, nil // nothing is left that could be graded
	}
	select {
	case g.room <- struct{}{}:
		defer func() { <-g.room }()
	case <-ctx.Done():
		return controller.Grade{}, ctx.Err()
	}
	out, err := g.grade(ctx, filepath.Join(g.state, name), x, t.patch)
	if Machine(err) {
		err = fulgur.E(fulgur.KindExhausted, "", "disk, memory, files or processes ran out", err)
	}
	if t.shams > 0 { // files beside the work are no trick
		out.Flags = flags
	}
	return out, err
}

// Machine says whether an error is that this machine has no more of something. (A
// workspace can bring about other errors, and they must not be worth more than failing.)
func Machine(err error) bool {
	return errors.As(err, new(ours)) || slices.ContainsFunc([]error{syscall.ENOSPC, syscall.EDQUOT, syscall.EIO, syscall.EROFS, syscall.ENOMEM, syscall.EAGAIN, syscall.EMFILE, syscall.ENFILE},
		func(e error) bool { return errors.Is(err, e) })
}

// graderInput is what a grader reads on its standard input.
type graderInput struct {
	V         int              `json:"v"`
	Rollout   fulgur.RolloutID `json:"rollout_id"`
	Attempt   fulgur.AttemptID `json:"attempt_id"`
	Input     json.RawMessage  `json:"input"`     // whole
	Workspace string           `json:"workspace"` // the pristine copy with the agent's files
	Applied   []string         `json:"applied"`
	Refused   []string         `json:"refused"`
	Tests     *testResult      `json:"tests"`
}

// testResult is how the tests ended, seen from outside.
type testResult struct {
	ExitCode int    `json:"exit_code"` // -1: a signal
	TimedOut bool   `json:"timed_out"`
	Output   string `json:"output"` // the end of what they printed
}

// grade lays a patch over a pristine copy, runs the tests and asks the grader.
func (g *Grader) grade(ctx context.Context, dir string, x controller.Grading, p patch) (out controller.Grade, err error) {
	work := filepath.Join(dir, "work")
	if err := os.MkdirAll(work, 0o700); err != nil {
		return out, err
	}
	if g.Pristine != "" {
		if err := os.CopyFS(work, os.DirFS(g.Pristine)); err != nil {
			return out, fmt.Errorf("copying reward.pristine: %w", err)
		}
	}
	in := graderInput{V: 1, Rollout: x.Key.Rollout, Attempt: x.Key.Attempt, Input: x.Input, Workspace: work, Applied: []string{}, Refused: p.refused}
	root, err := os.OpenRoot(work)
	if err != nil {
		return out, err
	}
	defer func() { _ = root.Close() }()
	if err := g.layAll(root, filepath.Join(dir, leftFolder), &in); err != nil {
		return out, err
	}
	if len(g.Tests) > 0 {
		if in.Tests, err = g.test(ctx, x.Key, work, in.Applied); err != nil {
			return out, err
		}
		out.Tests = &fulgur.TestsEnd{ExitCode: in.Tests.ExitCode, TimedOut: in.Tests.TimedOut, Output: end(in.Tests.Output)}
	}
	text, err := json.Marshal(in)
	if err != nil {
		return out, err
	}
	out.Reward, out.Log, err = g.ask(ctx, work, text)
	return out, err
}

// test runs the tests; that they fail, hang or are killed is for the grader to
// judge, and so is that they cannot be started where the agent wrote their program.
func (g *Grader) test(ctx context.Context, key plan.Key, work string, applied []string) (*testResult, error) {
	log := controller.NewLogBuffer(testOutput)
	exit, err := g.tests(ctx, Test{Key: key, Work: work, Timeout: g.Timeout, Out: log})
	late := errors.Is(err, context.DeadlineExceeded)
	switch {
	case ctx.Err() != nil:
		return nil, ctx.Err()
	case late, err != nil && !again(err) && slices.Contains(applied, filepath.Clean(g.Tests[0])):
		exit = -1
	case err != nil:
		return nil, fmt.Errorf("reward.tests: %w", err)
	}
	return &testResult{ExitCode: exit, TimedOut: late, Output: strings.ToValidUTF8(string(log.Bytes()), "\uFFFD")}, nil
}

// again says whether an error is not the program's that could not be run.
func again(err error) bool {
	k := fulgur.KindOf(err)
	return Machine(err) || k == fulgur.KindExhausted || k == fulgur.KindUnavailable || k == fulgur.KindTimeout
}

// here runs the tests as a process of this machine.
func (g *Grader) here(ctx context.Context, work string, out io.Writer) (int, error) {
	state, err := run(ctx, g.TestBox, program{argv: g.Tests, dir: work, env: g.environ, write: work, out: out, err: out})
	if state == nil {
		return -1, err
	}
	return state.ExitCode(), err
}

// ask runs the grader and reads its number. told is the end of its standard error.
func (g *Grader) ask(ctx context.Context, work string, input []byte) (value float64, told string, err error) {
	ctx, cancel := context.WithTimeout(ctx, g.Timeout)
	defer cancel()
	out, log := controller.NewLogBuffer(graderOutput), controller.NewLogBuffer(graderOutput)
	state, err := run(ctx, g.Box, program{argv: g.Command, dir: g.Dir, env: append(g.environ, "FULGUR_WORKSPACE="+work), in: input, write: work, out: out, err: log})
	told = end(strings.ToValidUTF8(string(log.Bytes()), "\uFFFD"))
	said := func(what string) error {
		tail := controller.LastLines(log.Bytes())
		if tail != "" {
			tail = "\nlast lines of what it printed on standard error:\n" + tail
		}
		return errors.New("reward.command " + what + tail)
	}
	switch {
	case ctx.Err() != nil:
		return 0, told, fmt.Errorf("reward.command took longer than reward.timeout (%s): %w", g.Timeout, ctx.Err())
	case err != nil:
		return 0, told, fmt.Errorf("reward.command: %w", err)
	case !state.Success():
		return 0, told, said("ended with " + state.String())
	}
	lines := strings.Split(strings.TrimSpace(string(out.Bytes())), "\n")
	value, err = strconv.ParseFloat(strings.TrimSpace(lines[len(lines)-1]), 64)
	if err != nil || math.IsNaN(value) || math.IsInf(value, 0) {
		return 0, told, said(fmt.Sprintf("printed no number on its last line, but %.80q", lines[len(lines)-1]))
	}
	return value, told, nil
}

// end is the end of an output as it is kept with an attempt: last lines, up to a size.
func end(output string) string {
	tail := controller.LastLines([]byte(output))
	if len(tail) > keptOutput {
		tail = "… " + strings.ToValidUTF8(tail[len(tail)-keptOutput:], "")
	}
	return tail
}

// program is one to run to its end.
type program struct {
	argv     []string
	dir      string
	env      []string
	in       []byte
	write    string // a folder that it may write
	out, err io.Writer
}

// run runs a program to its end, with all that it starts.
func run(ctx context.Context, box *sandbox.Box, p program) (*os.ProcessState, error) {
	path := p.argv[0]
	if strings.ContainsRune(path, '/') && !filepath.IsAbs(path) {
		path = filepath.Join(p.dir, path)
	}
	path, err := exec.LookPath(path)
	if err != nil {
		return nil, err
	}
	if box == nil {
		cmd := exec.CommandContext(ctx, path, p.argv[1:]...)
		cmd.Dir, cmd.Env, cmd.Stdin, cmd.Stdout, cmd.Stderr = p.dir, p.env, bytes.NewReader(p.in), p.out, p.err
		cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
		cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
		cmd.WaitDelay = time.Second
		err := cmd.Run()
		if cmd.ProcessState == nil {
			return nil, err
		}
		_ = syscall.Kill(-cmd.ProcessState.Pid(), syscall.SIGKILL) // what it left behind
		return cmd.ProcessState, nil
	}
	return box.Run(ctx, sandbox.Command{Program: path, Args: p.argv, Dir: p.dir, Env: p.env, Write: []string{p.write}}, sandbox.Pass{}, sandbox.Streams{In: p.in, Out: p.out, Err: p.err})
}

// Close closes what programs run in, and drops what nobody has graded.
func (g *Grader) Close() {
	if g == nil {
		return
	}
	g.mu.Lock()
	left := slices.Collect(maps.Keys(g.patches))
	g.mu.Unlock()
	g.Forget(left...)
	for _, b := range []*sandbox.Box{g.TestBox, g.Box} {
		if b != nil {
			b.Close()
		}
	}
}

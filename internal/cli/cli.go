// Package cli holds the commands of fulgur, wires the parts of the house
// together, and owns the order in which they start and stop. It is the only
// package that knows everyone.
package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"runtime/debug"
	"runtime/pprof"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/fulgur-rl/fulgur"
	"github.com/fulgur-rl/fulgur/internal/config"
	"github.com/fulgur-rl/fulgur/internal/controller/container"
	"github.com/fulgur-rl/fulgur/internal/controller/local"
	"github.com/fulgur-rl/fulgur/internal/controller/sandbox"
)

// Exit codes.
const (
	exitOK          = 0
	exitFailed      = 1   // the command did not do what it says
	exitUsage       = 2   // bad flags, arguments or run file
	exitNotReached  = 3   // training ended, and the stop rule was not met
	exitInterrupted = 130 // Ctrl-C
)

// gcPercent trades memory for CPU: the live heap is tens of megabytes, and at the
// default of 100 collecting is a sixth of the gateway's work.
const gcPercent = 400

// trainGCPercent is gcPercent for a process that trains: engine and records keep
// 150 MB alive there, and the demo then takes 300 MB in place of 700, for 2 % more
// CPU (40 steps of calc: 1.3 s of collecting in place of 0.2 s, of 58 s).
const trainGCPercent = 60

// Process is what a command may touch of the process it runs in.
type Process struct {
	Args           []string
	Stdin          io.Reader
	Stdout, Stderr io.Writer
	Getenv         func(string) string
}

// app is one invocation.
type app struct {
	Process
	json   bool // --json: results as JSON on stdout
	forced forced
	agents atomic.Bool // this process starts agents
}

// exitError carries an exit code; err may be nil when all has been said.
type exitError struct {
	code int
	err  error
}

func (e *exitError) Error() string {
	if e.err == nil {
		return fmt.Sprintf("exit code %d", e.code)
	}
	return e.err.Error()
}
func (e *exitError) Unwrap() error { return e.err }

// usageErr marks an error of the command line or the run file.
func usageErr(err error) error { return &exitError{exitUsage, err} }

// Main runs fulgur and returns the exit code. The first interrupt asks the
// command to stop cleanly; the second ends the process at once.
func Main(p Process) int {
	sandbox.Inner(append([]string{"fulgur"}, p.Args...))
	container.Inner(append([]string{"fulgur"}, p.Args...))
	local.Watch(append([]string{"fulgur"}, p.Args...))
	a := &app{Process: p}
	if p.Getenv("GOGC") == "" {
		debug.SetGCPercent(gcPercent)
	}
	ctx, stop := a.interruptible()
	defer stop()
	root := a.root()
	root.SetArgs(p.Args)
	root.SetIn(p.Stdin)
	root.SetOut(p.Stdout)
	root.SetErr(p.Stderr)
	err := a.profiled(func() error { return root.ExecuteContext(ctx) })
	if err == nil {
		return exitOK
	}
	code := exitFailed
	var ee *exitError
	switch {
	case errors.As(err, &ee):
		code = ee.code
		if ee.err == nil {
			return code
		}
	case ctx.Err() != nil:
		code = exitInterrupted
	case strings.HasPrefix(err.Error(), "unknown command") || strings.HasPrefix(err.Error(), "required flag"):
		code = exitUsage // cobra has no type for these
	}
	for _, e := range separate(err) {
		fmt.Fprintln(p.Stderr, "fulgur: "+e.Error())
	}
	return code
}

// separate takes joined errors apart: one line each.
func separate(err error) []error {
	joined, ok := err.(interface{ Unwrap() []error })
	if !ok {
		return []error{err}
	}
	all := joined.Unwrap()
	texts := make([]string, len(all))
	for i, e := range all {
		texts[i] = e.Error()
	}
	if err.Error() != strings.Join(texts, "\n") { // it says more than its parts do
		return []error{err}
	}
	var out []error
	for _, e := range all {
		out = append(out, separate(e)...)
	}
	return out
}

// sameInterrupt is how long further signals count as the first one: timeout(1)
// and service managers signal the process and its group, which is no second
// wish.
const sameInterrupt = 200 * time.Millisecond

// interruptible returns a context that the first SIGINT or SIGTERM cancels, and
// the end of the terminal, unless nohup has it ignored.
func (a *app) interruptible() (context.Context, func()) {
	stderr := a.Stderr
	ctx, cancel := context.WithCancel(context.Background())
	sig := make(chan os.Signal, 2)
	signal.Notify(sig, os.Interrupt, syscall.SIGTERM)
	if !signal.Ignored(syscall.SIGHUP) {
		signal.Notify(sig, syscall.SIGHUP)
	}
	done := make(chan struct{})
	go func() {
		var first time.Time
		for {
			select {
			case <-done:
				return
			case <-sig:
			}
			switch {
			case first.IsZero():
				first = time.Now()
				what := "what is recorded is kept"
				if a.agents.Load() {
					what = "agents are ended, and what must be kept is saved"
				}
				fmt.Fprintln(stderr, "\nstopping: "+what+" (once more: stop now)")
				cancel()
			case time.Since(first) >= sameInterrupt:
				fmt.Fprintln(stderr, "stopped now; what is recorded is kept")
				a.forced.run()
				os.Exit(exitInterrupted)
			}
		}
	}()
	return ctx, func() { signal.Stop(sig); close(done); cancel() }
}

// outliveReader keeps the process alive when nobody reads its output any more:
// Ctrl-C on `fulgur train run.yaml 2>&1 | tee log` ends tee first, and the
// checkpoint is yet to be saved. (Ignored in place of caught, agents would
// inherit it.)
func outliveReader() { signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE) }

func (a *app) root() *cobra.Command {
	root := &cobra.Command{
		Use:   "fulgur",
		Short: "train LLM agents through the harness they ship with",
		Long: `Fulgur trains LLM agents with reinforcement learning through the harness they are
deployed with. It sits at the harness's model URL, records each call exactly,
runs the harness at scale, turns its calls into training samples, and updates
the policy.

  fulgur demo                     a tool-using agent learns in minutes; a report opens
  fulgur init                     write a run file for your own agent
  fulgur try -- COMMAND           run any agent once, and see what would train
  fulgur train run.yaml           train
  fulgur serve --run DIR          serve the trained model, OpenAI-compatible

Every flag can also be given as a variable: --listen is FULGUR_LISTEN.
Exit codes: 0 done, 1 failed, 2 wrong usage or run file, 3 trained but the stop
rule was not met, 130 interrupted.`,
		SilenceUsage:  true,
		SilenceErrors: true,
		PersistentPreRunE: func(c *cobra.Command, _ []string) error {
			a.unknownVariables(c.Root())
			return a.flagsFromEnv(c)
		},
	}
	root.Version = version()
	root.SetVersionTemplate("fulgur {{.Version}}\n")
	root.PersistentFlags().BoolVar(&a.json, "json", false, "print results as JSON on standard output")
	root.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return usageErr(err) })
	root.AddGroup(
		&cobra.Group{ID: "start", Title: "Start here:"},
		&cobra.Group{ID: "train", Title: "Train and use:"},
		&cobra.Group{ID: "look", Title: "Look:"},
		&cobra.Group{ID: "parts", Title: "The parts alone:"},
	)
	for _, c := range a.commands() {
		root.AddCommand(c)
		usage(c)
	}
	return root
}

// usage makes wrong arguments of a command, and of those below it, errors of
// usage; a command that only holds others wants one of them.
func usage(c *cobra.Command) {
	for _, sub := range c.Commands() {
		usage(sub)
	}
	if c.HasSubCommands() && c.RunE == nil {
		c.Args = cobra.ArbitraryArgs
		c.RunE = func(c *cobra.Command, args []string) error {
			if len(args) == 0 {
				return c.Help()
			}
			return usageErr(fmt.Errorf("unknown command %q for %q; see `%s --help`", args[0], c.CommandPath(), c.CommandPath()))
		}
	}
	if check := c.Args; check != nil {
		c.Args = func(c *cobra.Command, args []string) error {
			if err := check(c, args); err != nil {
				return usageErr(fmt.Errorf("%w; usage: %s", err, c.UseLine()))
			}
			return nil
		}
	}
}

// flagsFromEnv sets each flag that was not given from its FULGUR_ variable.
func (a *app) flagsFromEnv(c *cobra.Command) error {
	var first error
	c.Flags().VisitAll(func(f *pflag.Flag) {
		if f.Changed || f.Name == "help" {
			return
		}
		name := variableOf(f)
		if v := a.Getenv(name); v != "" {
			if err := c.Flags().Set(f.Name, v); err != nil && first == nil {
				first = usageErr(fmt.Errorf("variable %s: %w", name, err))
			}
		}
	})
	return first
}

// otherVariables start with FULGUR_ and are neither a flag nor a key: what
// agents get, and what tests and profiles are switched by.
var otherVariables = []string{"ROLLOUT_ID", "ATTEMPT_ID", "INPUT_FILE", "EXECUTION", "GOLDEN", "LONG", "HARNESS", "TEMPLATES", "CPUPROFILE"}

// unknownVariables warns of FULGUR_ variables that nothing reads: a mistyped one
// would change nothing without a word.
func (a *app) unknownVariables(root *cobra.Command) {
	known := map[string]bool{}
	for _, v := range otherVariables {
		known["FULGUR_"+v] = true
	}
	for _, p := range config.Paths() {
		known[config.Variable(p)] = true
	}
	var visit func(c *cobra.Command)
	visit = func(c *cobra.Command) {
		c.Flags().VisitAll(func(f *pflag.Flag) { known[variableOf(f)] = true })
		c.PersistentFlags().VisitAll(func(f *pflag.Flag) { known[variableOf(f)] = true })
		for _, sub := range c.Commands() {
			visit(sub)
		}
	}
	visit(root)
	for _, line := range os.Environ() {
		name, _, _ := strings.Cut(line, "=")
		if strings.HasPrefix(name, "FULGUR_") && !known[name] && !strings.HasPrefix(name, "FULGUR_TEST_") {
			a.say("warning: variable %s is no flag and no key of the run file: it has no effect", name)
		}
	}
}

// variableOf is the variable that sets a flag.
func variableOf(f *pflag.Flag) string {
	return "FULGUR_" + strings.ToUpper(strings.ReplaceAll(f.Name, "-", "_"))
}

// printJSON prints v as one line on standard output.
func (a *app) printJSON(v any) error {
	b, err := json.Marshal(v)
	if err != nil {
		return fmt.Errorf("encoding the result: %w", err)
	}
	_, err = fmt.Fprintf(a.Stdout, "%s\n", b)
	return err
}

// say prints a line for people on standard error.
func (a *app) say(format string, args ...any) { fmt.Fprintf(a.Stderr, format+"\n", args...) }

// notFound makes a KindNotFound error.
func notFound(op, msg string) error { return fulgur.E(fulgur.KindNotFound, op, msg, nil) }

// commands lists every command; a new one is one line here.
func (a *app) commands() []*cobra.Command {
	return []*cobra.Command{
		a.demoCommand(), a.initCommand(), a.tryCommand(),
		a.trainCommand(), a.resumeCommand(), a.reproduceCommand(), a.evalCommand(), a.exportCommand(),
		a.rolloutsCommand(), a.auditCommand(), a.compareCommand(), a.callsCommand(), a.samplesCommand(), a.reportCommand(), a.simCommand(), a.doctorCommand(), a.versionCommand(),
		a.serveCommand(), a.controllerCommand(), a.engineCommand(), a.relayCommand(), a.storeCommand(), a.calcAgentCommand(), a.probeNetworkCommand(), a.fetchCopyCommand(),
	}
}

// profiled runs f; with FULGUR_CPUPROFILE=FILE its CPU profile is written there.
func (a *app) profiled(f func() error) error {
	path := a.Getenv("FULGUR_CPUPROFILE")
	if path == "" {
		return f()
	}
	out, err := os.Create(path)
	if err != nil {
		return fmt.Errorf("writing the CPU profile: %w", err)
	}
	if err := pprof.StartCPUProfile(out); err != nil {
		return errors.Join(err, out.Close())
	}
	err = f()
	pprof.StopCPUProfile()
	return errors.Join(err, out.Close())
}

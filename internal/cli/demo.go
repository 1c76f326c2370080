package cli

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"

	"github.com/spf13/cobra"

	"github.com/fulgur-rl/fulgur"
	"github.com/fulgur-rl/fulgur/examples/calc"
	"github.com/fulgur-rl/fulgur/examples/calc/agent/loop"
	"github.com/fulgur-rl/fulgur/internal/config"
)

// exampleDir is where the example is unpacked, below the run's folder.
const exampleDir = "example"

// exampleModule is the go.mod of the unpacked example: its module path makes
// the agent's imports resolve as they do in the repository, so that it builds
// without network and without Fulgur.
const exampleModule = "module github.com/fulgur-rl/fulgur/examples/calc\n\ngo 1.26\n"

func (a *app) demoCommand() *cobra.Command {
	var flags runFileFlags
	var quick, noOpen bool
	var engine engineFlags
	c := &cobra.Command{
		Use:     "demo",
		Short:   "a tool-using agent learns in minutes; a report opens",
		GroupID: "start",
		Long: `A small agent answers word stories with a calculator. It is a program of its own
that talks to an OpenAI-compatible server; it is started as a real process for
each rollout, its calls are recorded, and the model behind it learns from the
rewards of its answers alone, on this machine's CPU.

It is fulgur train examples/calc/run.yaml: the example is unpacked into the
run's folder, where you can change it.`,
		Example: `  fulgur demo
  fulgur demo --seed 7 --out /tmp/demo --json
  fulgur demo --quick                # one-event stories, a minute`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			dir, err := demoDir(flags.out)
			if err != nil {
				return err
			}
			flags.out = "" // the run's folder is the demo's own
			r, err := a.unpackDemo(dir, flags, c, quick)
			if err != nil {
				return err
			}
			a.warn(r)
			a.demoNotice(quick, engine)
			j := &trainJob{app: a, file: r, dir: dir, engine: engine}
			res, err := j.run(c.Context())
			if res.Report != "" && !noOpen && !a.json {
				a.openBrowser(res.Report)
			}
			return a.finish(res, err)
		},
	}
	flags.register(c)
	c.Flags().Lookup("out").Usage = "the demo's folder; new or empty (default runs/demo)"
	c.Flags().BoolVar(&quick, "quick", false, "stories with one event, fewer steps: shows the loop, not the result")
	c.Flags().BoolVar(&noOpen, "no-open", false, "do not open the report in a browser")
	engine.register(c)
	return c
}

// demoDir makes the demo's folder.
func demoDir(out string) (runDir, error) {
	if out == "" {
		return newRunDir("runs", "demo")
	}
	if entries, err := os.ReadDir(out); err == nil && len(entries) > 0 {
		return "", usageErr(fulgur.E(fulgur.KindConflict, "start the demo", out+" is not empty: name a new folder, or go on with `fulgur resume "+out+"`", nil))
	}
	if err := os.MkdirAll(out, 0o755); err != nil {
		return "", fulgur.E(fulgur.KindExhausted, "make the demo's folder", "choose another place with --out", err)
	}
	abs, err := filepath.Abs(out)
	return runDir(abs), err
}

// unpackDemo writes the example into the run's folder and reads its run file.
func (a *app) unpackDemo(dir runDir, flags runFileFlags, c *cobra.Command, quick bool) (*runFile, error) {
	root := dir.path(exampleDir)
	if err := unpack(calc.Files, root); err != nil {
		return nil, fulgur.E(fulgur.KindExhausted, "unpack the example", "check permissions and disk space, or choose another place with --out", err)
	}
	var extra []config.Override
	if quick {
		if err := keepOneEvent(filepath.Join(root, "data")); err != nil {
			return nil, err
		}
		for _, kv := range [][2]string{{"steps", "40"}, {"validation.every", "10"}, {"validation.problems", "100"}, {"algorithm.groups_per_step", "8"}} {
			extra = append(extra, config.Override{Path: kv[0], Value: kv[1], Source: "--quick"})
		}
	}
	if _, err := exec.LookPath("go"); err != nil {
		self, err := os.Executable()
		if err != nil {
			return nil, fmt.Errorf("finding this program: %w", err)
		}
		command, err := json.Marshal([]string{self, agentCommandName})
		if err != nil {
			return nil, fmt.Errorf("encoding the agent's command: %w", err)
		}
		a.say("no Go was found to build the agent: its copy in this program is run")
		extra = append(extra, config.Override{Path: "agent.build", Value: "[]", Source: "no Go found"},
			config.Override{Path: "agent.command", Value: string(command), Source: "no Go found"})
	}
	r, err := a.loadRunFile(filepath.Join(root, "run.yaml"), flags, c, extra...)
	if err != nil {
		return nil, err
	}
	r.buildEnv = []string{"GOWORK=off", "GOFLAGS=-mod=mod", "GOPROXY=off", "CGO_ENABLED=0"}
	return r, nil
}

// unpack writes an embedded folder to disk, with the go.mod that makes it build.
func unpack(files fs.FS, root string) error {
	err := fs.WalkDir(files, ".", func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		to := filepath.Join(root, filepath.FromSlash(p))
		if d.IsDir() {
			return os.MkdirAll(to, 0o755)
		}
		b, err := fs.ReadFile(files, p)
		if err != nil {
			return err
		}
		return os.WriteFile(to, b, 0o644)
	})
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(root, "go.mod"), []byte(exampleModule), 0o644)
}

// keepOneEvent leaves only the one-event stories in the unpacked data.
func keepOneEvent(dir string) error {
	for _, name := range []string{"train.jsonl", "val.jsonl", "test.jsonl"} {
		p := filepath.Join(dir, name)
		b, err := os.ReadFile(p)
		if err != nil {
			return fmt.Errorf("reading the example's data: %w", err)
		}
		var out bytes.Buffer
		for line := range bytes.Lines(b) {
			var row struct{ Events int }
			if json.Unmarshal(line, &row) == nil && row.Events == 1 {
				out.Write(line)
			}
		}
		if err := os.WriteFile(p, out.Bytes(), 0o644); err != nil {
			return fmt.Errorf("writing the example's data: %w", err)
		}
	}
	return nil
}

// demoNotice says what to expect of this machine.
func (a *app) demoNotice(quick bool, engine engineFlags) {
	a.say("an agent that answers word stories with a calculator learns from its answers alone; each rollout is a real process of it")
	if k := kernelName(engine.kernels); k != "portable" {
		a.say("kernels: %s, %d cores; a few minutes on two idle cores", k, runtime.NumCPU())
		return
	}
	a.say("this CPU (%s) has no kernels in this version: the engine is about 20 times slower, and the demo takes 10 to 20 minutes.", runtime.GOARCH)
	if !quick {
		a.say("`fulgur demo --quick` shows the loop in a few minutes (one event, fewer steps).")
	}
}

// openBrowser shows a file where a person can see it; where there is no
// display, the path has been printed.
func (a *app) openBrowser(path string) {
	var c *exec.Cmd
	switch {
	case runtime.GOOS == "darwin":
		c = exec.Command("open", path)
	case a.Getenv("DISPLAY") != "" || a.Getenv("WAYLAND_DISPLAY") != "":
		c = exec.Command("xdg-open", path)
	default:
		return
	}
	if c.Start() == nil {
		go func() { _ = c.Wait() }()
	}
}

// agentCommandName is the hidden command that is the calc agent, for machines
// without Go.
const agentCommandName = "calc-agent"

func (a *app) calcAgentCommand() *cobra.Command {
	return &cobra.Command{
		Use: agentCommandName, Hidden: true, DisableFlagParsing: true,
		Short: "the calc example's agent",
		RunE: func(c *cobra.Command, args []string) error {
			if code := loop.Main(c.Context(), args, a.Getenv, a.Stdin, a.Stdout, a.Stderr); code != 0 {
				return &exitError{code, nil}
			}
			return nil
		},
	}
}

var errNoRunFile = errors.New("name a run file; `fulgur init` writes one")

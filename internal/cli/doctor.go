package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/fulgur-rl/fulgur"
	"github.com/fulgur-rl/fulgur/internal/controller/sandbox"
)

// Statuses of what the doctor finds.
const (
	healthy = "ok"
	warned  = "warning"
	failed  = "failed"
	skipped = "skipped"
)

// finding is one thing that the doctor looked at.
type finding struct {
	Check  string `json:"check"`
	Name   string `json:"name"`
	Status string `json:"status"`
	Detail string `json:"detail"`
	Do     string `json:"do,omitempty"`
}

// patient is what the doctor looks at: the machine, and a run if a file was given.
type patient struct {
	app  *app
	file *runFile // nil: none
}

// doctorCheck is one check. It returns what it found, in the order to be shown.
type doctorCheck struct {
	name  string
	about string
	run   func(ctx context.Context, p patient) []finding
	limit time.Duration // of its time; 0: a minute
}

// doctorChecks are all checks; a new one is a line here.
func doctorChecks() []doctorCheck {
	return []doctorCheck{
		{name: "run file", about: "what train --check looks at", run: checkFile},
		{name: "sandbox", about: "whether agents can be sandboxed here, and what is missing", run: checkSandbox},
		{name: "escape", about: "probes that try to get out of the sandbox, and to exceed its limits", run: checkEscape},
		{name: "run's sandbox", about: "the same probes in the sandbox of the run file, at its own files", run: checkRunSandbox},
		{name: "containers", about: "the container program, the run's image, and what its containers reach", run: checkRunContainers, limit: clusterPatience},
		{name: "cluster", about: "the API server, rights, quotas; from each node what agents reach, and their images", run: checkCluster, limit: clusterPatience},
	}
}

func (a *app) doctorCommand() *cobra.Command {
	var flags runFileFlags
	var about strings.Builder
	for _, c := range doctorChecks() {
		fmt.Fprintf(&about, "\n  %-14s %s", c.name, c.about)
	}
	c := &cobra.Command{
		Use:     "doctor [RUN.yaml]",
		Short:   "look whether this machine, a cluster, and a run are fit: what agents reach above all",
		GroupID: "look",
		Long: `Look whether this machine can run agents in a sandbox, and prove that the sandbox
holds: a program inside tries to reach other hosts, the run's store, other
attempts' folders and processes, the server's key, and more memory and processes
than it may have. With a run file, its own sandbox is probed too; if its agents
are containers or Jobs of a cluster, those are looked at as the run would find them:
of a cluster the API server, the namespace, each right, the quotas, whether a Job is
taken, and from each node that agents can come to what they reach, and their
images. What is made for that is removed again, also on Ctrl-C.

Checks:` + about.String() + `

Exit code 1 if anything failed; warnings do not count.`,
		Example: "  fulgur doctor\n  fulgur doctor run.yaml        # with runner.kind: kubernetes, its cluster too\n  fulgur doctor --json | jq '.[] | select(.status == \"failed\")'",
		Args:    cobra.MaximumNArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			p := patient{app: a}
			if len(args) == 1 {
				r, err := a.loadRunFile(args[0], flags, c)
				if err != nil {
					return err
				}
				p.file = r
			}
			return a.doctor(c.Context(), p)
		},
	}
	flags.register(c)
	return c
}

// doctor runs the checks and tells what they found.
func (a *app) doctor(ctx context.Context, p patient) error {
	all := []finding{}
	bad := 0
	for _, c := range doctorChecks() {
		ctx, cancel := context.WithTimeout(ctx, cmp.Or(c.limit, time.Minute))
		found := c.run(ctx, p)
		cancel()
		for _, f := range found {
			f.Check = c.name
			if f.Status == failed {
				bad++
			}
			all = append(all, f)
		}
	}
	if a.json {
		if err := a.printJSON(all); err != nil {
			return err
		}
	} else {
		w := tabwriter.NewWriter(a.Stdout, 0, 0, 2, ' ', 0)
		for _, f := range all {
			fmt.Fprintf(w, "%s\t%s\t%s\t%s\n", f.Check, f.Name, f.Status, strings.ReplaceAll(f.Detail, "\n", " "))
			if f.Do != "" {
				fmt.Fprintf(w, "\t\t\t→ %s\n", f.Do)
			}
		}
		if err := w.Flush(); err != nil {
			return err
		}
	}
	if p.file == nil {
		a.say("containers and clusters: `fulgur doctor RUN.yaml`, with a run file of runner.kind: container or kubernetes, looks at those")
	}
	if ctx.Err() == nil && bad > 0 {
		return &exitError{exitFailed, fmt.Errorf("%d of %d checks failed", bad, len(all))}
	}
	return ctx.Err()
}

// checkFile looks at the run file as train --check does.
func checkFile(ctx context.Context, p patient) []finding {
	if p.file == nil {
		return nil
	}
	var out []finding
	for _, w := range p.file.Warnings {
		out = append(out, finding{Name: w.Path, Status: warned, Detail: w.Text})
	}
	good := "data, model, reward and agent are there"
	_, err := readData(p.file)
	if p.file.Server != "" && errors.Is(err, fs.ErrNotExist) {
		out = append(out, finding{Name: "data", Status: skipped, Detail: "they are not here, as where a controller runs: neither they nor the model were looked at"})
		good, err = "its runner can be made", checkRunner(ctx, p.file)
	} else {
		err = errors.Join(err, checkRest(ctx, p.file, p.file.Server))
	}
	if err != nil {
		for _, e := range separate(err) {
			out = append(out, finding{Name: p.file.Run, Status: failed, Detail: e.Error()})
		}
		return out
	}
	return append(out, finding{Name: p.file.Run, Status: healthy, Detail: good})
}

// wants is the run file's word for a sandbox; auto without one.
func (p patient) wants() string {
	if p.file == nil {
		return "auto"
	}
	return p.file.Runner.Sandbox
}

// elsewhere says that the run's agents are no processes of this machine's user: the
// sandbox is not theirs.
func (p patient) elsewhere() bool { return p.file != nil && p.file.Runner.Kind != "local" }

// checkSandbox says what the machine has.
func checkSandbox(_ context.Context, p patient) []finding {
	if p.elsewhere() {
		return []finding{{Name: p.file.Run, Status: skipped, Detail: "agents of runner.kind: " + p.file.Runner.Kind + " run in their images, not in this machine's sandbox: what they reach is shown below, and by the run before its first rollout"}}
	}
	b, err := sandbox.New(sandbox.Options{Limits: sandboxLimits})
	if err != nil {
		return []finding{{Name: "bubblewrap", Status: warned, Detail: reasonOf(err), Do: "docs/sandbox.md; until then agents run with all rights of this user"}}
	}
	defer b.Close()
	out := []finding{{Name: "bubblewrap", Status: healthy, Detail: "works here"}}
	if note := b.Note(); note != "" {
		return append(out, finding{Name: "limits", Status: warned, Detail: note, Do: "run fulgur as root, or in a systemd scope of your own: systemd-run --user --scope -p Delegate=yes fulgur train …"})
	}
	return append(out, finding{Name: "limits", Status: healthy, Detail: "memory and processes are bounded for an agent's processes together"})
}

// checkEscape probes a sandbox with files like a run's.
func checkEscape(ctx context.Context, p patient) []finding {
	if p.elsewhere() {
		return nil
	}
	fail := func(err error) []finding {
		if fulgur.KindOf(err) == fulgur.KindUnsupported {
			return []finding{{Name: "probes", Status: skipped, Detail: "there is no sandbox here to get out of"}}
		}
		return []finding{{Name: "probes", Status: failed, Detail: err.Error()}}
	}
	s, err := sandbox.NewScene("")
	if err != nil {
		return fail(err)
	}
	defer s.Close()
	o := sandbox.Options{View: sandbox.View{Read: []string{s.Dir}, Hide: s.Hide}, Upstream: s.Gateway, Limits: sandboxLimits}
	b, err := sandbox.New(o)
	if err != nil {
		return fail(err)
	}
	found, err := s.Probe(ctx, b)
	b.Close()
	if err != nil {
		return fail(err)
	}
	o.Limits = sandbox.Scarce()
	small, err := sandbox.New(o)
	if err != nil {
		return fail(err)
	}
	defer small.Close()
	over, err := s.Limits(ctx, small)
	if err != nil {
		return fail(err)
	}
	return escapeRows(append(found, over...))
}

// escapeRows are the probes' findings, as the doctor's.
func escapeRows(found []sandbox.Finding) (out []finding) {
	for _, f := range found {
		row := finding{Name: f.Name, Status: healthy, Detail: f.Detail}
		switch {
		case f.Escaped:
			row.Status, row.Detail = failed, "ESCAPED: "+f.Detail
		case f.Skipped:
			row.Status = skipped
		}
		out = append(out, row)
	}
	return out
}

// checkRunSandbox probes the run's own.
func checkRunSandbox(ctx context.Context, p patient) []finding {
	switch {
	case p.file == nil || p.file.Runner.Kind != "local":
		return nil
	case p.wants() == "none":
		return []finding{{Name: p.file.Run, Status: skipped, Detail: "runner.sandbox is none: agents run with all rights of this user"}}
	}
	s, err := sandbox.NewScene("")
	if err != nil {
		return []finding{{Name: p.file.Run, Status: failed, Detail: err.Error()}}
	}
	defer s.Close()
	dir := runDir(filepath.Join(p.file.Out, p.file.Run))
	f := *p.file.File
	f.Runner.AgentURL = "" // no gateway runs yet: the scene's stands for it
	j := controllerJob{file: &runFile{File: &f, Dir: p.file.Dir}, dir: dir, url: s.Gateway, log: p.app.logger("error"), say: func(string, ...any) {}}
	b, err := newSandbox(j)
	switch {
	case err != nil:
		return []finding{{Name: p.file.Run, Status: failed, Detail: err.Error(), Do: "docs/sandbox.md"}}
	case b == nil:
		return []finding{{Name: p.file.Run, Status: warned, Detail: "its agents would run without a sandbox"}}
	}
	defer b.Close()
	if err := b.Prove(ctx, hiddenOf(j)); err != nil {
		return []finding{{Name: p.file.Run, Status: failed, Detail: err.Error()}}
	}
	return []finding{{Name: p.file.Run, Status: healthy, Detail: "no probe got out of it, and the gateway was reached"}}
}

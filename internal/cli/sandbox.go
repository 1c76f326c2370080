package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/fulgur-rl/fulgur"
	"github.com/fulgur-rl/fulgur/internal/config"
	"github.com/fulgur-rl/fulgur/internal/controller/sandbox"
)

// sandboxLimits are those of runner.limits that the run file leaves to the sandbox.
var sandboxLimits = sandbox.Limits{Memory: 4 << 30, Processes: 1024, File: 1 << 30}

// newSandbox makes what the run file's agents run in; nil: nothing. Under auto it
// says loudly why there is none.
func newSandbox(j controllerJob) (*sandbox.Box, error) {
	o, err := sandboxOptions(j)
	if err != nil {
		return nil, err
	}
	return sandboxWith(j, o)
}

// sandboxWith is newSandbox of known options.
func sandboxWith(j controllerJob, o sandbox.Options) (*sandbox.Box, error) {
	word := j.file.Runner.Sandbox
	if word == "none" {
		return nil, nil
	}
	b, err := sandbox.New(o)
	switch {
	case err == nil:
		if note := b.Note(); note != "" {
			j.say("warning: runner.sandbox: %s", note)
		}
		return b, nil
	case word == "auto" && fulgur.KindOf(err) == fulgur.KindUnsupported:
		j.say("WARNING: the agents run WITHOUT A SANDBOX, with all rights of this user: %s. (`runner: {sandbox: none}` if you trust them; `fulgur doctor` tries again.)", reasonOf(err))
		return nil, nil
	}
	return nil, err
}

// reasonOf is an error without the operation's name before it.
func reasonOf(err error) string { return strings.TrimPrefix(err.Error(), "set up the sandbox: ") }

// secretFiles are Fulgur's own in a run file's folder, as sandbox.Match reads them:
// they hold records and keys.
func secretFiles() []string { return []string{"./*.db*", "./server.json"} }

// sandboxOptions says what a run's agents see and use.
func sandboxOptions(j controllerJob) (sandbox.Options, error) {
	f, r := j.file, j.file.Runner
	home, _ := os.UserHomeDir()
	o := sandbox.Options{Home: home, Upstream: cmp.Or(r.AgentURL, j.url), Log: j.log, Limits: sandbox.Limits{
		Memory: cmp.Or(int64(r.Limits.Memory), sandboxLimits.Memory), Processes: cmp.Or(int64(r.Limits.Processes), sandboxLimits.Processes),
		File: cmp.Or(int64(r.Limits.FileSize), sandboxLimits.File), CPU: time.Duration(r.Limits.CPUTime),
	}}
	o.View.Read = []string{f.Dir}
	for _, p := range r.Read {
		o.View.Read = append(o.View.Read, f.atHome(home, p))
	}
	for _, p := range r.Write {
		o.View.Write = append(o.View.Write, f.atHome(home, p))
	}
	hide, err := sandbox.Match(f.Dir, append(secretFiles(), r.Hide...), o.View.Write...)
	if err != nil {
		return o, fulgur.E(fulgur.KindInvalid, "set up the sandbox", "looking for what runner.hide names in "+f.Dir, err)
	}
	o.View.Hide = append(hide, hiddenRuns(f, j.dir)...)
	o.View.Hide = append(o.View.Hide, graderFiles(f)...)
	o.View.Show = ofTheRun(config.Expand(f.Agent.Command, string(j.dir)), string(j.dir))
	return o, nil
}

// atHome resolves a path of runner.read and runner.write.
func (r *runFile) atHome(home, path string) string {
	if rest, ok := strings.CutPrefix(path, "~/"); ok {
		return filepath.Join(home, rest)
	}
	return r.resolve(path)
}

// checkLocal looks for the agent's program, and for what it is to see in its sandbox.
func checkLocal(_ context.Context, r *runFile) error {
	err := checkCommand(r)
	if r.Runner.Sandbox == "none" || len(r.Agent.Build) > 0 { // which may make what is missing
		return err
	}
	home, _ := os.UserHomeDir()
	for i, p := range slices.Concat(r.Runner.Read, r.Runner.Write) {
		if _, missing := os.Stat(r.atHome(home, p)); missing != nil {
			key := "read"
			if i >= len(r.Runner.Read) {
				key = "write"
			}
			err = errors.Join(err, usageErr(fulgur.E(fulgur.KindNotFound, "check the run file", fmt.Sprintf("runner.%s: %q is not there: correct the path, make it, or leave it out", key, p), missing)))
		}
	}
	return err
}

// sandboxed says in a line what agents would run in, for train --check.
func sandboxed(r *runFile) (string, error) {
	switch {
	case r.Runner.Kind != "local":
		return "", nil
	case r.Runner.Sandbox == "none":
		return "none: agents run with all rights of this user", nil
	}
	b, err := sandbox.New(sandbox.Options{Limits: sandboxLimits})
	switch {
	case err == nil:
		defer b.Close()
		return "bubblewrap" + strings.TrimSuffix("; "+b.Note(), "; "), nil
	case r.Runner.Sandbox == "auto" && fulgur.KindOf(err) == fulgur.KindUnsupported:
		return "NONE, agents would run with all rights of this user: " + reasonOf(err), nil
	}
	return "", usageErr(err)
}

// hiddenRuns are the folders of runs, this one's and others'.
func hiddenRuns(f *runFile, dir runDir) []string {
	out, err := filepath.Abs(f.Out)
	own, err2 := filepath.Abs(string(dir))
	if err != nil || err2 != nil {
		return nil
	}
	if out != f.Dir && !strings.HasPrefix(f.Dir, strings.TrimRight(out, "/")+"/") {
		return []string{own, out}
	}
	// The runs lie around the run file, whose folder is to be seen.
	all := []string{own}
	for _, mark := range []string{"store.db", "origin.json", "attempts"} {
		found, _ := filepath.Glob(filepath.Join(out, "*", mark))
		for _, p := range found {
			all = append(all, filepath.Dir(p))
		}
	}
	return all
}

// graderFiles are what a grader compares with and is made of: the data, and the
// files in the run file's folder that reward.command names.
func graderFiles(f *runFile) []string {
	var out []string
	for _, p := range []string{f.Data.Train, f.Data.Validation, f.Data.Test} {
		if p != "" {
			out = append(out, f.resolve(p))
		}
	}
	for _, arg := range f.Reward.Command {
		p := f.resolve(arg)
		if st, err := os.Stat(p); err == nil && p != f.Dir && (strings.ContainsRune(arg, '/') || !st.IsDir()) && strings.HasPrefix(p, f.Dir+"/") {
			out = append(out, p)
		}
	}
	return out
}

// ofTheRun are the agent's own files in the run's folder, which is hidden:
// what agent.build has put there and agent.command names. Of a file in a folder below it the
// folder is shown, for a program is seldom alone.
func ofTheRun(command []string, dir string) []string {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return nil
	}
	var out []string
	for _, arg := range command {
		rest, ok := strings.CutPrefix(filepath.Clean(arg), dir+"/")
		if !ok {
			continue
		}
		first, _, _ := strings.Cut(rest, "/")
		switch first {
		case "attempts", "checkpoints", "tensorboard": // ours
		default:
			out = append(out, filepath.Join(dir, first))
		}
	}
	return out
}

// hiddenOf names files of a run that no agent may read, for the probes.
func hiddenOf(j controllerJob) map[string]string {
	m := map[string]string{"store": j.dir.store(), "server-key": j.dir.path("server.json"), "other-attempt": j.dir.path("attempts", "attempts"), "run-folder": j.dir.checkpoints()}
	for i, p := range graderFiles(j.file) {
		m[[]string{"data", "grader"}[min(i, 1)]] = p
	}
	if git := filepath.Join(j.file.Dir, ".git"); slices.Contains(j.file.Runner.Hide, ".git") {
		m["git"] = git
	}
	return m
}

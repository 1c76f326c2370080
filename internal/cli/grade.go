package cli

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/fulgur-rl/fulgur"
	"github.com/fulgur-rl/fulgur/internal/config"
	"github.com/fulgur-rl/fulgur/internal/controller/grade"
	"github.com/fulgur-rl/fulgur/internal/controller/sandbox"
)

// gradingOf says how a run's agents' work is graded by a program; nil: it is not.
// agents is what the agents' sandbox would be made of (sandboxOptions). boxed: programs
// of this machine are sandboxed. Neither the agents' relay nor a credential is in their
// sandboxes; tests see nothing but the system and the copy, or are in a container.
func gradingOf(j controllerJob, agents sandbox.Options, boxed bool) (_ *grade.Options, err error) {
	f, r := j.file, j.file.Reward
	if len(r.Command) == 0 {
		return nil, nil
	}
	g := &grade.Options{
		Command: inDir(config.Expand(r.Command, string(j.dir)), f.Dir), Tests: inDir(config.Expand(r.Tests, string(j.dir)), f.Dir), Dir: f.Dir,
		Pristine: f.resolve(r.Pristine), Paths: r.Paths, Size: int64(r.Size), Timeout: time.Duration(r.Timeout),
		Failures: outcomeTable(f.Outcomes).Failures(),
	}
	if !boxed {
		return g, nil
	}
	defer func() {
		if err != nil {
			closeBoxes(gradingBoxes(g)...)
		}
	}()
	o := agents
	o.Upstream = ""
	shared := agents.View.Read[1:] // runner.read
	o.View = sandbox.View{Read: shared}
	if f.Runner.Kind == "local" {
		if g.TestBox, err = sandbox.New(o); err != nil {
			return nil, err
		}
	}
	o.View.Read = append([]string{f.Dir}, shared...)
	if o.View.Hide, err = sandbox.Match(f.Dir, append(secretFiles(), ".env")); err != nil {
		return nil, err
	}
	o.View.Hide = append(o.View.Hide, hiddenRuns(f, j.dir)...)
	g.Box, err = sandbox.New(o)
	return g, err
}

// gradingBoxes are the sandboxes that a grader would close.
func gradingBoxes(g *grade.Options) []*sandbox.Box {
	if g == nil {
		return nil
	}
	return []*sandbox.Box{g.TestBox, g.Box}
}

// containerGrading is gradingOf where agents are in containers: so are their tests;
// the grader's program is sandboxed on this machine where one can be made.
func containerGrading(j controllerJob) (*grade.Options, error) {
	o, err := sandboxOptions(j)
	if err != nil {
		return nil, err
	}
	g, err := gradingOf(j, o, true)
	if err != nil && fulgur.KindOf(err) == fulgur.KindUnsupported {
		if j.say == nil { // doctor's
			j.say = func(string, ...any) {}
		}
		j.say("warning: reward.command runs without a sandbox, with all rights of this user: %s", reasonOf(err))
		return gradingOf(j, o, false)
	}
	return g, err
}

// checkGrader says whether the grader's programs and its folder are there. Files may
// be what agent.build is to make.
func checkGrader(r *runFile) error {
	if len(r.Reward.Command) == 0 {
		return nil
	}
	built := len(r.Agent.Build) > 0
	if p := r.Reward.Pristine; p != "" && !built {
		if st, err := os.Stat(r.resolve(p)); err != nil || !st.IsDir() {
			return usageErr(fulgur.E(fulgur.KindNotFound, "check the grader", fmt.Sprintf("reward.pristine names the folder %s, which is not there", r.resolve(p)), err))
		}
	}
	for key, command := range map[string][]string{"reward.command": r.Reward.Command, "reward.tests": r.Reward.Tests} {
		if len(command) == 0 || strings.Contains(command[0], "{run}") || key == "reward.tests" && r.Runner.Kind != "local" { // looked for in the image
			continue
		}
		program := inDir(slices.Clone(command), r.Dir)[0]
		if strings.ContainsRune(program, filepath.Separator) && key == "reward.command" {
			program = r.resolve(program)
		}
		if file := strings.ContainsRune(program, filepath.Separator); file && (built || !filepath.IsAbs(program)) {
			continue // relative: in the copy, which is not there yet
		}
		if _, err := exec.LookPath(program); err != nil {
			return usageErr(fulgur.E(fulgur.KindInvalid, "check the grader", fmt.Sprintf("the program %q of %s can't be run: name one that is on PATH, or a file with its executable bit set", command[0], key), err))
		}
	}
	if built {
		return nil
	}
	return errors.Join(checkGraderScript(r), checkTestFiles(r))
}

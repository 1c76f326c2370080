package cli

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/fulgur-rl/fulgur"
	"github.com/fulgur-rl/fulgur/internal/config"
	"github.com/fulgur-rl/fulgur/internal/controller/grade"
)

// programFile is an argument that is a program's file, read by an interpreter or a test runner.
var programFile = regexp.MustCompile(`^[^\s*?=:@-][^\s*?=:@]*\.(py|sh|bash|js|mjs|cjs|ts|rb|pl)$`)

// pathLike is an argument that looks like another file, or a folder.
var pathLike = regexp.MustCompile(`^(\./[\w.+/-]+|\w[\w+-]*(/[\w.+-]+)*/[\w.+-]*)$`)

// scriptOf is the file that a command has an interpreter run; "": none that is known.
func scriptOf(command []string) string {
	if len(command) == 0 || !slices.Contains(interpreters, filepath.Base(command[0])) {
		return ""
	}
	for i, a := range command[1:] {
		switch {
		case a == "-m" || a == "-e" || strings.HasPrefix(a, "-") && !strings.HasPrefix(a, "--") && strings.HasSuffix(a, "c"):
			return ""
		case programFile.MatchString(a) && !strings.HasPrefix(command[i], "--"): // else it may be a flag's value
			return a
		}
	}
	return ""
}

// checkGraderScript says whether the file is there that reward.command has an interpreter run.
func checkGraderScript(r *runFile) error {
	script := scriptOf(r.Reward.Command)
	if script == "" || strings.Contains(script, "{run}") {
		return nil
	}
	if _, err := os.Stat(r.resolve(inDir([]string{script}, r.Dir)[0])); err != nil {
		return usageErr(fulgur.E(fulgur.KindNotFound, "check the grader", fmt.Sprintf("the program %q of reward.command is not in %s, where it is started", script, r.Dir), err))
	}
	return nil
}

// missingTests are arguments of reward.tests that look like files and are not in
// reward.pristine. sure: no agent could bring it, and it is a program's file.
func missingTests(r *runFile, tell func(file string, sure bool)) {
	if len(r.Reward.Command) == 0 {
		return
	}
	for i, a := range r.Reward.Tests {
		a, _, _ = strings.Cut(a, "::") // pytest's way to name one test
		a = strings.TrimSuffix(a, "/...")
		program := programFile.MatchString(a)
		// The value of a flag may be what tests write.
		if !program && (!pathLike.MatchString(a) || i > 0 && strings.HasPrefix(r.Reward.Tests[i-1], "-")) || path.IsAbs(a) || strings.ContainsRune(a, '{') {
			continue
		}
		name := path.Clean(a)
		if r.Reward.Pristine != "" {
			if _, err := os.Stat(filepath.Join(r.resolve(r.Reward.Pristine), name)); err == nil {
				continue
			}
		}
		// What is no program's own script may be a pattern, or a flag's value.
		tell(a, (i == 0 || program && a == scriptOf(r.Reward.Tests)) && !grade.MayBring(r.Reward.Paths, name))
	}
}

// checkTestFiles says which files of reward.tests can never be there.
func checkTestFiles(r *runFile) error {
	var errs []error
	missingTests(r, func(file string, sure bool) {
		if sure {
			errs = append(errs, usageErr(fulgur.E(fulgur.KindNotFound, "check the grader", fmt.Sprintf("%q of reward.tests is not in %s, and reward.paths lets no agent bring it: correct it, or put it there", file, pristineName(r)), nil)))
		}
	})
	return errors.Join(errs...)
}

// testFileWarnings says which files of reward.tests are there only if agents bring them.
func testFileWarnings(r *runFile) []config.Warning {
	if r.Server != "" || len(r.Agent.Build) > 0 { // elsewhere, or not there yet
		return nil
	}
	var out []config.Warning
	missingTests(r, func(file string, sure bool) {
		if !sure {
			out = append(out, config.Warning{Path: "reward.tests", Text: fmt.Sprintf("%s: reward.tests: %q is not in %s: the tests fail unless the agent brings it", cmp.Or(r.places["reward.tests"], "run file"), file, pristineName(r))})
		}
	})
	return out
}

// pristineName names the folder that tests find their files in.
func pristineName(r *runFile) string {
	if r.Reward.Pristine == "" {
		return "the copy: there is no reward.pristine, so it is empty"
	}
	return "reward.pristine (" + r.resolve(r.Reward.Pristine) + ")"
}

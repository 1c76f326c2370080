package cli

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/fulgur-rl/fulgur/internal/config"
)

// What no agent could be started with is refused before anything starts, with its
// place (issue: bad input of controllers).
func TestAgentThatCannotBeStarted(t *testing.T) {
	t.Parallel()
	row := func(text string) func(*testing.T, string) {
		return func(t *testing.T, dir string) {
			name := filepath.Join(dir, "train.jsonl")
			b, err := os.ReadFile(name)
			if err != nil {
				t.Fatal(err)
			}
			lines := strings.SplitAfter(string(b), "\n")
			lines[1] = text + "\n"
			if err := os.WriteFile(name, []byte(strings.Join(lines, "")), 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
	const command = "agent: {command: ["
	for name, c := range map[string]struct {
		change []string // of the run file
		breaks func(*testing.T, string)
		says   []string
	}{
		"a command that does not exist":       {[]string{command, command + "./nothing, "}, nil, []string{"./nothing", "executable bit"}},
		"a value over the system's limit":     {nil, row(`{"question":"` + strings.Repeat("x", 140_000) + `","answer":"1"}`), []string{"train.jsonl: line 2", "QUESTION would hold 140000 bytes", "file or stdin"}},
		"a value with a zero byte":            {nil, row(`{"question":"a\u0000b","answer":"1"}`), []string{"train.jsonl: line 2", "QUESTION would hold a zero byte"}},
		"an answer that is no number":         {nil, row(`{"question":"q","answer":"many"}`), []string{"train.jsonl: line 2", "input.answer", `"many" is no number`}},
		"a row that is not JSON":              {nil, row(`{"question":`), []string{"train.jsonl: line 2"}},
		"a row without what the agent needs":  {nil, row(`{"answer":"1"}`), []string{"train.jsonl: line 2", "question"}},
		"a name that no variable can have":    {[]string{"{QUESTION:", `{"A=B":`}, nil, []string{"run.yaml:7:", `"A=B" is no name of a variable`}},
		"a run whose name is no folder":       {[]string{"run: tiny", "run: ../tiny"}, nil, []string{"run.yaml:2:", "want letters, digits"}},
		"a script that is not in a workspace": {[]string{command, "agent: {workspace: true, command: [sh, agent.sh, "}, nil, []string{"{dir}/agent.sh"}},
		"a folder to read that is not there":  {[]string{"sandbox: none}", "sandbox: auto, read: [tools]}"}, nil, []string{"runner.read", `"tools" is not there`}},
		"a reason that is none":               {[]string{"validation: {every: 0}", "outcomes: {reasons: {oom: {then: mask}}}"}, nil, []string{"run.yaml:11:", `unknown reason "oom"`}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := tinyDir(t, c.change...)
			if c.breaks != nil {
				c.breaks(t, dir)
			}
			code := exitUsage
			if strings.HasPrefix(c.says[0], "train.jsonl") {
				code = exitFailed
			}
			start(t, dir, nil, "train", "--check", "run.yaml").ends(soon, code, c.says...)
			if _, err := os.Stat(filepath.Join(dir, "runs")); err == nil {
				t.Error("a check left a folder behind")
			}
		})
	}
}

// What a start checks is what --check does: the grader's programs too.
func TestGraderThatCannotBeRun(t *testing.T) {
	t.Parallel()
	const graded = "{workspace: true, command: ["
	reward := func(r string) []string {
		return []string{"agent: {command: [", "agent: " + graded, "reward: {builtin: final-answer, expected: input.answer, compare: number}", "reward: {" + r + "}"}
	}
	for name, c := range map[string]struct {
		change []string
		says   []string
	}{
		"a grader's script that is not there": {reward("command: [python3, -B, grad.py]"), []string{"run.yaml:9:", `"grad.py" of reward.command is not in`}},
		"tests' script that is not there":     {reward("command: [true], pristine: ., paths: [src/], tests: [sh, tests/test_anser.sh]"), []string{"run.yaml:9:", `"tests/test_anser.sh" of reward.tests is not in reward.pristine`, "reward.paths lets no agent bring it"}},
		"a test that decides how tests run":   {reward("command: [true], pristine: ., tests: [python3, conftest.py]"), []string{`"conftest.py" of reward.tests is not in reward.pristine`}},
		"tests' program that is not there":    {reward("command: [true], paths: [src], tests: [./check]"), []string{`"./check" of reward.tests is not in the copy: there is no reward.pristine`}},
		"a grader that is not there":          {reward("command: [./grade]"), []string{"./grade", "reward.command"}},
		"tests that are not there":            {reward("command: [true], tests: [no-such-tests]"), []string{"no-such-tests", "reward.tests"}},
		"a pristine folder that is not there": {reward("command: [true], pristine: repo"), []string{"reward.pristine", "repo"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := tinyDir(t, c.change...)
			start(t, dir, nil, "train", "run.yaml").ends(soon, exitUsage, c.says...)
			if _, err := os.Stat(filepath.Join(dir, "runs", "tiny")); err == nil {
				t.Error("something was started")
			}
		})
	}
}

// What the agent may bring itself is warned of; what is there, or is no file, is not.
func TestTestsThatTheAgentMayBring(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		tests  []string
		warned []string
	}{
		"the agent may bring it":        {[]string{"python3", "tests/test_anser.py"}, []string{"tests/test_anser.py"}},
		"one test of a file":            {[]string{"pytest", "tests/a.py::test_x", "-q", "b.py"}, []string{"tests/a.py", "b.py"}},
		"what is there":                 {[]string{"python3", "t.py"}, nil},
		"a module":                      {[]string{"python3", "-P", "-m", "pytest", "-q"}, nil},
		"Go's packages":                 {[]string{"go", "test", "./..."}, nil},
		"an import path":                {[]string{"go", "test", "example.com/a/b"}, nil},
		"a shell's line":                {[]string{"sh", "-c", "cd src && ./t.sh"}, nil},
		"what tests write":              {[]string{"pytest", "--junitxml", "out/report.xml", "--cov=src/a.py"}, nil},
		"a folder that is not there":    {[]string{"pytest", "tests/unit/"}, []string{"tests/unit/"}},
		"a package of npm":              {[]string{"npx", "@vitest/runner"}, nil},
		"a path of the run, or a whole": {[]string{"sh", "{run}/a.sh", "/b.sh"}, nil},
	} {
		dir := t.TempDir()
		if err := os.WriteFile(filepath.Join(dir, "t.py"), nil, 0o600); err != nil {
			t.Fatal(err)
		}
		f := config.Default()
		f.Reward.Command, f.Reward.Tests, f.Reward.Pristine = []string{"true"}, c.tests, "."
		var got []string
		missingTests(&runFile{File: f, Dir: dir}, func(file string, sure bool) {
			if got = append(got, file); sure {
				t.Errorf("%s: %s is an error", name, file)
			}
		})
		if !slices.Equal(got, c.warned) {
			t.Errorf("%s: warned of %q, want %q", name, got, c.warned)
		}
	}
}

// train --check shows what each way to end leads to.
func TestCheckShowsOutcomes(t *testing.T) {
	t.Parallel()
	dir := tinyDir(t, "validation: {every: 0}", "outcomes: {infrastructure: {retries: 4}, agent_failure: {reward: -0.5}, reasons: {no_calls: {then: -1}}}\nvalidation: {every: 0}")
	c := start(t, dir, nil, "train", "--check", "run.yaml")
	c.ends(soon, 0)
	for _, want := range []string{"memory ", "agent_failure ", "trains with reward -0.5", "no_calls ", "trains with reward -1", "up to 4"} {
		if !strings.Contains(c.err.String(), want) {
			t.Errorf("no %q in\n%s", want, c.err.String())
		}
	}
}

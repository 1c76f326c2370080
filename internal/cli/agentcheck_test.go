package cli

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
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

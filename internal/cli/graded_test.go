package cli

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// Why rewards are all 0 is told in training and where rollouts are looked at: tests that
// are broken, files that decide how tests run, agents that die at once.
func TestWhyNothingIsLearnedIsShown(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("several training runs: left out by -short, make test runs it")
	}
	for name, c := range map[string]struct {
		agent string // what it does before it works
		ends  int
		warns string
		list  string
		shown string
	}{
		"tests that are broken": {"touch work.txt", 0, "reward.tests ended with code 2 for all of", "graded by reward.command",
			"  tests ended with code 2; last lines of what they printed:\n    \tno such suite\n  last lines of what the grader printed on standard error:\n    tests: 2"},
		"a file that decides how tests run": {"touch conftest.py", 0, "rollouts are flagged", "flagged: conftest.py (decides how tests run)", "flagged: conftest.py"},
		"agents that die at once":           {"echo \"KeyError: 'TASK'\" >&2; exit 1", exitFailed, "of 12 rollouts ended as agent_failure/exit: the agent exited with code 1; its log ends with: KeyError: 'TASK'; look at `fulgur rollouts show", "the agent exited with code 1", "KeyError: 'TASK'"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := tinyDir(t, "agent: {command: [", "agent: {workspace: true, command: [sh, \"{dir}/leave.sh\", ",
				"reward: {builtin: final-answer, expected: input.answer, compare: number}",
				`reward: {command: [sh, grade.sh], tests: [sh, -c, "printf '\\033[31m\\tno such suite\\033[0m\\n'; exit 2"]}`)
			for file, text := range map[string]string{
				"leave.sh": c.agent + "\nexec \"$@\"\n",
				"grade.sh": "cat > /dev/null; echo 'tests: 2' >&2; echo 0\n",
			} {
				if err := os.WriteFile(filepath.Join(dir, file), []byte(text), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			run := start(t, dir, nil, "train", "run.yaml")
			run.ends(soon, c.ends, c.warns)
			list := start(t, dir, nil, "rollouts", "list", "--run", "tiny")
			list.ends(soon, 0)
			if !strings.Contains(list.out.String(), c.list) {
				t.Errorf("the list does not say %q", c.list)
			}
			lines := strings.Split(strings.TrimSpace(list.out.String()), "\n")
			show := start(t, dir, nil, "rollouts", "show", strings.Fields(lines[len(lines)-1])[0], "--run", "tiny")
			show.ends(soon, 0)
			if !strings.Contains(show.out.String(), c.shown) {
				t.Errorf("it does not show %q", c.shown)
			}
		})
	}
}

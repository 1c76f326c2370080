package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/fulgur-rl/fulgur"
	"github.com/fulgur-rl/fulgur/examples/calc/agent/loop"
)

// documentedAgents are the lines of examples/calc/run.yaml that choose an agent,
// as flags: the one that is chosen, and those that are commented out.
func documentedAgents(t *testing.T) map[string][]string {
	t.Helper()
	b, err := os.ReadFile("../../examples/calc/run.yaml")
	if err != nil {
		t.Fatal(err)
	}
	out := map[string][]string{}
	for _, m := range regexp.MustCompile(`(?m)^(?:# )?agent: \{build: (\[.*?\]), command: (\[.*?\]), (worker: true, )?input: .*\}$`).FindAllStringSubmatch(string(b), -1) {
		out[m[1]] = []string{"--set", "agent.build=" + m[1], "--set", "agent.command=" + m[2], "--set", fmt.Sprintf("agent.worker=%v", m[3] != "")}
	}
	if len(out) != 3 {
		t.Fatalf("examples/calc/run.yaml offers %v, want the Go agent, its twin, the Python one", out)
	}
	return out
}

// TestDemoAgents trains each Go agent of the example as its run file documents
// it (test/harness has the Python one), and has it answered for every rollout.
func TestDemoAgents(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("builds the SDK")
	}
	file, err := filepath.Abs("../../examples/calc/run.yaml")
	if err != nil {
		t.Fatal(err)
	}
	for build, flags := range documentedAgents(t) {
		if strings.Contains(build, "python") {
			continue
		}
		t.Run(build, func(t *testing.T) {
			dir := t.TempDir()
			args := append([]string{"train", file, "--set", "steps=3", "--set", "algorithm.group_size=4", "--set", "algorithm.groups_per_step=4",
				"--set", "validation.every=0", "--set", "data.test="}, flags...)
			run(t, dir, args...)
			d := runDir(filepath.Join(dir, "runs", "calc"))
			trainedOnce(t, d, 3, 16)
			lines, err := readRolloutLines(d)
			if err != nil {
				t.Fatal(err)
			}
			for _, l := range lines {
				if l.Class != "ok" || l.Calls == 0 {
					t.Errorf("rollout %s ended with %s/%s after %d calls", l.ID, l.Class, l.Outcome, l.Calls)
				}
			}
		})
	}
}

// aglAgentMain is an agent as Agent Lightning v1 has them: it knows only the
// AGL_ variables, and posts its own reward.
func aglAgentMain() {
	env := map[string]string{"OPENAI_BASE_URL": "AGL_OPENAI_BASE_URL", "OPENAI_API_KEY": "AGL_KEY"}
	var answer bytes.Buffer
	code := loop.Main(context.Background(), nil, func(name string) string {
		if agl, ok := env[name]; ok {
			name = agl
		}
		return os.Getenv(name)
	}, os.Stdin, &answer, os.Stderr)
	if code != 0 {
		os.Exit(code)
	}
	body := `{"event_type":"reward","data":{"value":0.25,"source":"the agent"}}`
	req, err := http.NewRequest("POST", os.Getenv("AGL_EVENT_URL"), strings.NewReader(body))
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	req.Header.Set("Authorization", "Bearer "+os.Getenv("AGL_KEY"))
	req.Header.Set("Content-Type", "application/json")
	res, err := http.DefaultClient.Do(req)
	if err != nil || res.StatusCode != 200 {
		fmt.Fprintln(os.Stderr, "posting the reward:", err, res)
		os.Exit(1)
	}
	os.Exit(0)
}

// TestAgentLightningAgent: an agent of v1 trains unchanged, on the rewards that
// it posts.
func TestAgentLightningAgent(t *testing.T) {
	t.Parallel()
	dir := tinyDir(t, "reward: {builtin: final-answer, expected: input.answer, compare: number}", "reward: {from: agent}")
	_, said := run(t, dir, "train", "run.yaml", "--set", "agent.command=[aglagent]", "--set", "validation.every=2")
	// No reward is a pass here: the mean is what is to be seen.
	for _, want := range []string{"before: T=1 0.000 [0.000, 0.390] mean reward 0.250  greedy 0.000 [0.000, 0.390] mean reward 0.250  (6 problems, a reward of 1 passes)",
		"validation after step 2: T=1 0.000 [0.000, 0.390] mean reward 0.250", "reward     0.250 → 0.250 in the mean; a reward of 1 passes"} {
		if !strings.Contains(said, want) {
			t.Errorf("standard error does not say %q", want)
		}
	}
	if page, err := os.ReadFile(filepath.Join(dir, "runs", "tiny", "report.html")); err != nil || !strings.Contains(string(page), "mean reward 0.250") {
		t.Errorf("the report does not show the mean reward (%v)", err)
	}
	for _, r := range rolloutsOf(t, dir, "tiny") {
		if r.Reward == nil || *r.Reward != 0.25 {
			t.Errorf("rollout %s: reward %s, want the agent's 0.25; %+v", r.ID, number(r.Reward), r.Outcome)
		}
	}
}

func rolloutsOf(t *testing.T, dir, name string) []fulgur.Rollout {
	t.Helper()
	out, _ := run(t, dir, "rollouts", "list", "--run", name, "--limit", "0", "--json")
	var all []fulgur.Rollout
	for line := range strings.Lines(out) {
		var r fulgur.Rollout
		if err := json.Unmarshal([]byte(line), &r); err != nil {
			t.Fatal(err)
		}
		all = append(all, r)
	}
	if len(all) == 0 {
		t.Fatal("the run has no rollouts")
	}
	return all
}

// TestOddAgents: whatever an agent does, the run goes on, its end says why, and
// nothing of it is left.
func TestOddAgents(t *testing.T) {
	if testing.Short() {
		t.Skip("waits for the grace of agents that hang")
	}
	t.Parallel()
	for name, c := range map[string]struct {
		script  string
		class   fulgur.OutcomeClass
		reason  string // of the outcome
		message string
		trains  bool
	}{
		"crashes":                    {"echo the reason >&2; exit 7", fulgur.OutcomeAgent, "exit", "the reason", false},
		"is killed":                  {"kill -9 $$", fulgur.OutcomeAgent, "signal", "", false},
		"never calls the model":      {"echo 'Answer: 3'", fulgur.OutcomeOK, "no_calls", "", false},
		"prints nonsense":            {"head -c 200000 /dev/urandom; exec \"$AGENT\"", fulgur.OutcomeOK, "ok", "", true},
		"hangs":                      {"exec sleep 1000", fulgur.OutcomeAgent, "timeout", "1s", false},
		"forks and ignores SIGTERM":  {"trap '' TERM; sleep 1000 & sleep 1000", fulgur.OutcomeAgent, "timeout", "1s", false},
		"leaves a daemon behind":     {"setsid sleep 1000 >/dev/null 2>&1 & exec \"$AGENT\"", fulgur.OutcomeOK, "ok", "", true},
		"works, and prints its task": {"echo \"$QUESTION\"; exec \"$AGENT\"", fulgur.OutcomeOK, "ok", "", true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			agent, err := calcAgent()
			if err != nil {
				t.Fatal(err)
			}
			dir := tinyDir(t)
			copyProgram(t, "sleep", filepath.Join(dir, "sleep"))
			script := filepath.Join(dir, "agent.sh")
			text := "#!/bin/sh\nPATH=" + dir + ":$PATH\nAGENT=" + agent + "\n" + c.script + "\n"
			if err := os.WriteFile(script, []byte(text), 0o755); err != nil {
				t.Fatal(err)
			}
			began := time.Now()
			p := start(t, dir, nil, "train", "run.yaml", "--set", fmt.Sprintf("agent.command=[%q]", script), "--set", "agent.timeout=1s", "--set", "steps=1", "--set", "data.test=")
			if c.trains {
				p.ends(time.Minute, exitOK)
			} else { // a step in which no agent calls the model is the end
				p.ends(time.Minute, exitFailed, string(c.class)+"/"+c.reason, "fulgur rollouts show")
			}
			t.Logf("took %s", time.Since(began).Round(time.Millisecond))
			for _, r := range rolloutsOf(t, dir, "tiny") {
				if r.Outcome == nil || r.Outcome.Class != c.class || !strings.Contains(r.Outcome.Reason, c.reason) {
					t.Errorf("rollout %s ended with %+v, want %s/%s", r.ID, r.Outcome, c.class, c.reason)
				} else if !strings.Contains(r.Outcome.Message, c.message) {
					t.Errorf("rollout %s: the outcome says %q, not %q", r.ID, r.Outcome.Message, c.message)
				}
			}
			if left := agentsOf(t, filepath.Join(dir, "sleep")); len(left) > 0 {
				t.Errorf("left over:\n%s", strings.Join(left, "\n"))
			}
		})
	}
}

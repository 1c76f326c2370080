package cli

import (
	"os"
	"strings"
	"testing"

	"github.com/fulgur-rl/fulgur"
	"github.com/fulgur-rl/fulgur/internal/api/client"
)

func TestQuotedKeepsAnglesAndEscapesControls(t *testing.T) {
	if got, want := quoted("<tool_call>{\"a\": 1 && 2}\n\x1b[2J"), `"<tool_call>{\"a\": 1 && 2}\n\u001b[2J"`; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

func TestRolloutsTail(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	server := start(t, dir, nil, "serve", "--listen", "127.0.0.1:0", "--key", "K", "--store", "sqlite::memory:")
	url := server.says("listening on ")
	tail := start(t, dir, nil, "rollouts", "tail", "--server", url, "--key", "K")
	tail.notes("following run default")
	c, err := client.New(url, "K", client.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if _, err = c.CreateRollouts(t.Context(), []fulgur.RolloutSpec{{ID: "one", Run: fulgur.DefaultRun, Input: []byte(`{}`)}}); err != nil {
		t.Fatal(err)
	}
	tail.says("  one  queuing  reward -")
	if _, err = c.EndRollout(t.Context(), "one", fulgur.Outcome{Class: fulgur.OutcomeAgent, Reason: "exit", Message: "it gave up"}); err != nil {
		t.Fatal(err)
	}
	tail.says("agent_failure/exit  it gave up")
	tail.signal(os.Interrupt)
	tail.ends(soon, exitOK)
	server.signal(os.Interrupt)
	server.ends(soon, exitOK)
}

// A rollout that has not ended says what it does, or what it waits for.
func TestRolloutsThatWait(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	server := start(t, dir, nil, "serve", "--listen", "127.0.0.1:0", "--key", "K", "--store", "sqlite::memory:")
	url := server.says("listening on ")
	c, err := client.New(url, "K", client.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	lost := &fulgur.Outcome{Class: fulgur.OutcomeInfrastructure, Reason: "node", Message: "its node is gone\nsince a minute"}
	var want []string
	for _, w := range []struct {
		id      fulgur.RolloutID
		reports []fulgur.AttemptReport
		says    string
	}{
		{"queued", nil, "queuing  -  waits for a controller with a free slot"},
		{"held", []fulgur.AttemptReport{{Phase: fulgur.PhaseStarting}, {Phase: fulgur.PhaseWaiting, Why: "the quota leaves no room for its pod"}},
			"running  -  attempt 0: waiting: the quota leaves no room for its pod"},
		{"opened", []fulgur.AttemptReport{{Phase: fulgur.PhaseWaiting}}, "running  -  attempt 0: opened, and its start is not told yet"},
		{"runs", []fulgur.AttemptReport{{Phase: fulgur.PhaseRunning}}, "running  -  attempt 0: running"},
		{"again", []fulgur.AttemptReport{{Phase: fulgur.PhaseEnded, Outcome: lost, Retry: true}},
			"running  -  waits for another attempt: attempt 0 ended as infrastructure/node: its node is gone"},
		{"over", []fulgur.AttemptReport{{Phase: fulgur.PhaseEnded, Outcome: lost}}, "failed  -  0  infrastructure/node  its node is gone"},
	} {
		if _, err = c.CreateRollouts(t.Context(), []fulgur.RolloutSpec{{ID: w.id, Run: fulgur.DefaultRun, Input: []byte(`{}`)}}); err != nil {
			t.Fatal(err)
		}
		for i, r := range w.reports {
			if i == 0 {
				if _, err := c.OpenAttempt(t.Context(), w.id); err != nil {
					t.Fatal(err)
				}
			}
			if _, err := c.ReportAttempt(t.Context(), w.id, "0", r); err != nil {
				t.Fatal(err)
			}
		}
		want = append(want, string(w.id)+"  "+w.says)
	}
	list := start(t, dir, nil, "rollouts", "list", "--server", url, "--key", "K")
	list.ends(soon, exitOK)
	words := func(s string) string { return strings.Join(strings.Fields(s), " ") }
	got := strings.Split(list.out.String(), "\n")
	for i, line := range want {
		if i+1 >= len(got) || words(got[i+1]) != words(line) {
			t.Errorf("want %s, got\n%s", line, list.out.String())
		}
	}
	start(t, dir, nil, "rollouts", "list", "--server", url, "--key", "K", "--state", "running", "--json").says(`"attempt":{"rollout":"held","id":"0","phase":"waiting","why":"the quota leaves no room for its pod"`)
	start(t, dir, nil, "rollouts", "show", "held", "--server", url, "--key", "K").says("attempt 0  waiting: the quota leaves no room for its pod")
	server.signal(os.Interrupt)
	server.ends(soon, exitOK)
}

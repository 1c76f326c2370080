package cli

import (
	"os"
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

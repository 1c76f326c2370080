package cli

import (
	"bytes"
	"errors"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// A run that cannot be run is told of and tried again, and neither it nor one that is
// long in its build holds up others.
func TestControllerTriesAgain(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("waits for a second try: left out by -short, make test runs it")
	}
	agent, err := calcAgent()
	if err != nil {
		t.Fatal(err)
	}
	server := start(t, t.TempDir(), nil, "serve", "--listen", "127.0.0.1:0", "--key", "K", "--model-dir", "builtin:calc")
	env := []string{"FULGUR_SERVER=" + server.says("listening on "), "FULGUR_KEY=K"}
	dir := tinyDir(t)
	start(t, dir, env, "train", "run.yaml", "--set", "run=slow", "--set", "agent.build=[sh, -c, 'touch building; exec sleep 300']")
	ctl := start(t, t.TempDir(), env, "controller", "--dir", dir, "--slots", "3")
	waitFor(t, "a build", func() bool { _, err := os.Stat(filepath.Join(dir, "building")); return err == nil })
	late := start(t, dir, env, "train", "run.yaml", "--set", "run=late", "--set", "agent.command=[./late]")
	ctl.notes(`the agents of run late are not run here: check the agent: the program "./late" of agent.command can't be run`)
	start(t, dir, env, "train", "run.yaml", "--set", "run=good").ends(time.Minute, exitOK)
	if err := os.Symlink(agent, filepath.Join(dir, "late")); err != nil {
		t.Fatal(err)
	}
	late.ends(time.Minute, exitOK)
	ctl.notes("run late has ended")
	ctl.signal(os.Interrupt)
	ctl.ends(20*time.Second, exitOK)
}

// Tries become rarer.
func TestRetryAfter(t *testing.T) {
	t.Parallel()
	for fails, want := range map[int]time.Duration{0: 5 * time.Second, 1: 10 * time.Second, 5: 160 * time.Second, 6: 5 * time.Minute, 1000: 5 * time.Minute} {
		if got := retryAfter(fails); got != want {
			t.Errorf("after %d failures: %s, want %s", fails, got, want)
		}
	}
}

// What is built once is not built twice at the same time; other builds go on.
func TestBuildsTakeTurns(t *testing.T) {
	t.Parallel()
	b := builds{turns: map[string]chan struct{}{}}
	done, err := b.turn(t.Context(), "a")
	if err != nil {
		t.Fatal(err)
	}
	other, err := b.turn(t.Context(), "b")
	if err != nil {
		t.Fatal(err)
	}
	other()
	got := make(chan struct{})
	go func() {
		if again, err := b.turn(t.Context(), "a"); err == nil {
			again()
		}
		close(got)
	}()
	select {
	case <-got:
		t.Fatal("two turns at once")
	default:
	}
	done()
	<-got
}

// A run whose controller has ended by itself is tried again later; that is said, and
// /healthz tells so while it lasts, but does not call others dead for it.
func TestFallenRunIsPostponed(t *testing.T) {
	t.Parallel()
	var said bytes.Buffer
	fl := newFleet(&app{Process: Process{Stderr: &said}}, controllerFlags{}, nil)
	stopped := false
	g := &agents{over: make(chan struct{}), err: errors.New("it may not list Jobs"), shut: func() error { stopped = true; return nil }}
	close(g.over)
	fl.runs["a"] = &tended{agents: g, began: time.Now()}
	go fl.look(fallen{id: "a", agents: g})
	fl.fall(<-fl.fell)
	fl.finish(<-fl.done)
	a := fl.runs["a"]
	if !stopped || a.agents != nil || a.ending || a.fails != 1 || !a.again.After(time.Now()) || !strings.Contains(said.String(), "run a are not run here: it may not list Jobs") {
		t.Errorf("stopped %v, %+v, said %q", stopped, a, said.String())
	}
	for runs, want := range []int{http.StatusServiceUnavailable, http.StatusOK} {
		if runs == 1 {
			fl.health.set("b", func() string { return "" })
		}
		w := httptest.NewRecorder()
		fl.health.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/healthz", nil))
		if w.Code != want || !strings.Contains(w.Body.String(), "the agents of run a are not run: it may not list Jobs") {
			t.Errorf("%d %s", w.Code, w.Body)
		}
	}
	if err := fl.close(); err != nil {
		t.Error(err)
	}
}

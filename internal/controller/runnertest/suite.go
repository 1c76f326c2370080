package runnertest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/fulgur-rl/fulgur"
	"github.com/fulgur-rl/fulgur/internal/controller"
	"github.com/fulgur-rl/fulgur/internal/controller/plan"
)

// Variant is what the suite runs on.
type Variant struct {
	// New makes a runner of at least two executions at once, with a grace of
	// 200 ms, whose agent is this test binary (AgentEnv is set by it) and gets
	// DO from input.do.
	New func(t *testing.T) controller.Runner
	// Again makes a runner of the same scope, as after a restart.
	Again func(t *testing.T, old controller.Runner) controller.Runner
}

// wait is how long anything may take on a busy machine.
const wait = 15 * time.Second

// Execution makes one that does what do says.
func Execution(id, do string) controller.Execution {
	input, _ := json.Marshal(map[string]string{"do": do})
	return controller.Execution{
		Key:   plan.Key{Rollout: fulgur.RolloutID(id), Attempt: "0"},
		Env:   map[string]string{"OPENAI_API_KEY": "secret-" + id, "FULGUR_ROLLOUT_ID": id, "FULGUR_ATTEMPT_ID": "0"},
		Input: input, Secrets: []string{"secret-" + id},
	}
}

// Run runs the suite.
func Run(t *testing.T, v Variant) {
	for name, test := range map[string]func(*testing.T, Variant){
		"an agent that exits with 0 is told once":                               exitsOnce,
		"an agent that fails is told with its code and log":                     fails,
		"start twice is start once":                                             startTwice,
		"stop of what is unknown is no error":                                   stopUnknown,
		"the list holds what runs, and nothing after a restart":                 lists,
		"an agent that takes SIGTERM may clean up (CL-04)":                      polite,
		"an agent that ignores SIGTERM is killed":                               ignores,
		"children and daemons die with a stopped agent":                         tree,
		"close ends what runs":                                                  closes,
		"an environment value over 128 KiB is refused before the start (CL-07)": bigEnv,
		"10 MB of output block nobody (CL-10)":                                  chatty,
	} {
		t.Run(name, func(t *testing.T) { test(t, v) })
	}
}

// Start starts an execution and fails the test if that does not work.
func Start(t *testing.T, r controller.Runner, e controller.Execution) controller.Started {
	t.Helper()
	s, err := r.Start(t.Context(), e)
	if err != nil {
		t.Fatalf("start of %s: %v", e.Key.Rollout, err)
	}
	return s
}

// Exit waits for an execution's exit and passes over other events.
func Exit(t *testing.T, r controller.Runner, id string) plan.Exit {
	t.Helper()
	timer := time.NewTimer(wait)
	defer timer.Stop()
	for {
		select {
		case ev := <-r.Events():
			if ev.Exit != nil && ev.Key.Rollout == fulgur.RolloutID(id) {
				return *ev.Exit
			}
		case <-timer.C:
			t.Fatalf("%s has not ended after %s", id, wait)
		}
	}
}

// Pid waits for a file with a process number.
func Pid(t *testing.T, file string) int {
	t.Helper()
	var pid int
	Until(t, file+" holds a pid", func() bool {
		b, err := os.ReadFile(file)
		if err != nil {
			return false
		}
		pid, err = strconv.Atoi(string(b))
		return err == nil
	})
	return pid
}

// Until waits for a condition that another process brings about.
func Until(t testing.TB, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(wait); !ok(); time.Sleep(2 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("not true after %s: %s", wait, what)
		}
	}
}

// Dead says whether a process is gone, or a zombie that nobody reaps.
func Dead(pid int) bool {
	if errors.Is(syscall.Kill(pid, 0), syscall.ESRCH) {
		return true
	}
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	return err == nil && strings.Contains(string(b), ") Z ")
}

func exitsOnce(t *testing.T, v Variant) {
	r := v.New(t)
	Start(t, r, Execution("a", ""))
	if x := Exit(t, r, "a"); x.Code != 0 || x.Failure != "" || x.Signal != "" {
		t.Errorf("exit %+v, want code 0", x)
	}
	Start(t, r, Execution("b", ""))
	Exit(t, r, "b")
	if keys, _ := r.List(t.Context()); len(keys) > 0 {
		t.Errorf("list after the exits: %v", keys)
	}
	if err := r.Close(); err != nil {
		t.Error(err)
	}
	for ev := range r.Events() {
		t.Errorf("event after the exit was told: %+v", ev)
	}
}

func fails(t *testing.T, v Variant) {
	r := v.New(t)
	Start(t, r, Execution("a", "say first; say Traceback; env OPENAI_API_KEY; exit 3"))
	x := Exit(t, r, "a")
	if x.Code != 3 || x.Cause != plan.CauseAgent || !strings.Contains(x.Tail, "first\nTraceback") {
		t.Errorf("exit %+v, want code 3 and the log's end", x)
	}
	if strings.Contains(x.Tail, "secret-a") {
		t.Errorf("the credential is in the log: %s", x.Tail)
	}
	Start(t, r, Execution("b", "crash"))
	if x := Exit(t, r, "b"); x.Signal != "killed" || x.Cause != plan.CauseAgent {
		t.Errorf("exit of one that was killed: %+v", x)
	}
}

func startTwice(t *testing.T, v Variant) {
	r := v.New(t)
	file := filepath.Join(t.TempDir(), "pid")
	e := Execution("a", "pid "+file+"; hang")
	first := Start(t, r, e)
	Pid(t, file)
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	second := Start(t, r, e)
	if second.Handle != first.Handle && first.Handle != "" {
		t.Errorf("handles %q and %q", first.Handle, second.Handle)
	}
	if keys, _ := r.List(t.Context()); len(keys) != 1 {
		t.Errorf("list %v, want one", keys)
	}
	if err := r.Stop(t.Context(), e.Key); err != nil {
		t.Error(err)
	}
	Exit(t, r, "a")
	if _, err := os.Stat(file); err == nil {
		t.Error("the agent ran twice")
	}
}

func stopUnknown(t *testing.T, v Variant) {
	r := v.New(t)
	if err := r.Stop(t.Context(), plan.Key{Rollout: "nobody", Attempt: "7"}); err != nil {
		t.Error(err)
	}
}

func lists(t *testing.T, v Variant) {
	r := v.New(t)
	Start(t, r, Execution("a", "hang"))
	Start(t, r, Execution("b", "hang"))
	keys, err := r.List(t.Context())
	slices.SortFunc(keys, func(a, b plan.Key) int { return strings.Compare(string(a.Rollout), string(b.Rollout)) })
	if want := []plan.Key{{Rollout: "a", Attempt: "0"}, {Rollout: "b", Attempt: "0"}}; err != nil || !slices.Equal(keys, want) {
		t.Errorf("list %v, %v", keys, err)
	}
	if keys, err := v.Again(t, r).List(t.Context()); err != nil || len(keys) > 0 {
		t.Errorf("a new runner lists %v, %v before it adopted anything", keys, err)
	}
}

func polite(t *testing.T, v Variant) {
	r := v.New(t)
	dir := t.TempDir()
	e := Execution("a", "pid "+dir+"/pid; polite "+dir+"/bye")
	Start(t, r, e)
	Pid(t, dir+"/pid")
	// The handler is set right after the file is there.
	time.Sleep(50 * time.Millisecond)
	if err := r.Stop(t.Context(), e.Key); err != nil {
		t.Fatal(err)
	}
	Exit(t, r, "a")
	if _, err := os.Stat(dir + "/bye"); err != nil {
		t.Error("the agent got no time to clean up:", err)
	}
}

func ignores(t *testing.T, v Variant) {
	r := v.New(t)
	file := filepath.Join(t.TempDir(), "pid")
	e := Execution("a", "ignore; pid "+file+"; hang")
	Start(t, r, e)
	pid := Pid(t, file)
	begin := time.Now()
	_ = r.Stop(t.Context(), e.Key)
	_ = r.Stop(t.Context(), e.Key)
	Exit(t, r, "a")
	if took := time.Since(begin); took < 150*time.Millisecond {
		t.Errorf("it was killed after %s, within its grace", took)
	}
	if !Dead(pid) {
		t.Error("it lives on")
	}
}

func tree(t *testing.T, v Variant) {
	r := v.New(t)
	dir := t.TempDir()
	e := Execution("a", "child "+dir+"/child; daemon "+dir+"/daemon; pid "+dir+"/pid; hang")
	Start(t, r, e)
	pids := []int{Pid(t, dir+"/pid"), Pid(t, dir+"/child"), Pid(t, dir+"/daemon")}
	_ = r.Stop(t.Context(), e.Key)
	Exit(t, r, "a")
	for i, pid := range pids {
		Until(t, fmt.Sprintf("process %d is dead", i), func() bool { return Dead(pid) })
	}
}

func closes(t *testing.T, v Variant) {
	r := v.New(t)
	file := filepath.Join(t.TempDir(), "pid")
	Start(t, r, Execution("a", "ignore; pid "+file+"; hang"))
	pid := Pid(t, file)
	if err := r.Close(); err != nil {
		t.Error(err)
	}
	if !Dead(pid) {
		t.Error("it lives on")
	}
	if _, err := r.Start(t.Context(), Execution("b", "")); fulgur.KindOf(err) != fulgur.KindUnavailable {
		t.Errorf("start on a closed runner: %v", err)
	}
	if err := r.Close(); err != nil {
		t.Error("second close:", err)
	}
}

func bigEnv(t *testing.T, v Variant) {
	if runtime.GOOS != "linux" {
		t.Skip("the limit is Linux's")
	}
	r := v.New(t)
	_, err := r.Start(context.Background(), Execution("a", strings.Repeat("x", 150_000)))
	if fulgur.KindOf(err) != fulgur.KindTooLarge || !strings.Contains(err.Error(), "DO ") || !strings.Contains(err.Error(), "150000 bytes") {
		t.Errorf("error %v", err)
	}
	if keys, _ := r.List(t.Context()); len(keys) > 0 {
		t.Errorf("list %v", keys)
	}
}

func chatty(t *testing.T, v Variant) {
	r := v.New(t)
	Start(t, r, Execution("a", "say the beginning; print 10000000; say the end; exit 1"))
	x := Exit(t, r, "a")
	if x.Code != 1 || !strings.HasSuffix(x.Tail, "the end") || len(x.Tail) > 4096 {
		t.Errorf("code %d, tail of %d bytes", x.Code, len(x.Tail))
	}
}

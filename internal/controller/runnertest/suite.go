package runnertest

import (
	"cmp"
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
	"github.com/fulgur-rl/fulgur/internal/controller/grade"
	"github.com/fulgur-rl/fulgur/internal/controller/plan"
)

// Variant is what the suite runs on.
type Variant struct {
	// New makes a runner of at least two executions at once, with the grace below,
	// whose agent is this test binary (AgentEnv is set to "process" by it, or to
	// "worker" for a runner of workers), and gets DO from input.do. It is closed by
	// the test's end.
	New func(t *testing.T, s Setup) controller.Runner
	// Again makes a runner of the same scope, as after a restart; old was not closed.
	Again func(t *testing.T, s Setup, old controller.Runner) controller.Runner

	Lacks Lacks
	Wait  time.Duration // how long anything may take on a busy machine; 0: 15 s
	Grace time.Duration // between the request to end and force; 0: 200 ms
	// Dir makes a folder that the test and the agents see under one path; nil: t.TempDir.
	Dir func(t *testing.T) string
}

// Setup is what a test wants of a runner.
type Setup struct {
	Input string // how the agent gets its input beside DO: "", "file" (FULGUR_INPUT_FILE), "stdin"
	// Grading is of a program that grades what agents leave in their workspaces; nil: none does.
	Grading *grade.Options
}

// Lacks is what a variant cannot do; what follows from it is not tested, or is
// tested by what can be seen.
type Lacks struct {
	Stdin  bool // no input on standard input
	File   bool // no input file
	Files  bool // agents and test share no folder
	Pids   bool // agents see other process numbers than the test
	Signal bool // a signal that ended the agent is told as code 128 + its number
	Adopt  bool // what an earlier runner left is dead after Adopt, not taken over
	Redact bool // its log is not the runner's to blot secrets out of
	Grader bool // nothing here grades what agents leave, or they do not work in their workspaces
}

const wait = 15 * time.Second

func (v Variant) wait() time.Duration { return cmp.Or(v.Wait, wait) }

func (v Variant) grace() time.Duration { return cmp.Or(v.Grace, 200*time.Millisecond) }

// dir returns a shared folder, or skips the test.
func (v Variant) dir(t *testing.T) string {
	t.Helper()
	switch {
	case v.Lacks.Files:
		t.Skip("agents and test share no folder here")
	case v.Dir != nil:
		return v.Dir(t)
	}
	return t.TempDir()
}

func (v Variant) exit(t *testing.T, r controller.Runner, id string) plan.Exit {
	t.Helper()
	return ExitWithin(t, r, id, v.wait())
}

func (v Variant) pid(t *testing.T, file string) int {
	t.Helper()
	var pid int
	v.until(t, file+" holds a pid", func() (ok bool) { pid, ok = readPid(file); return ok })
	return pid
}

func (v Variant) until(t *testing.T, what string, ok func() bool) {
	t.Helper()
	within(t, v.wait(), what, ok)
}

// dead waits until the process that wrote its number to a file, and beats in
// FILE.beat, is no more.
func (v Variant) dead(t *testing.T, file string) {
	t.Helper()
	if !v.Lacks.Pids {
		pid := v.pid(t, file)
		v.until(t, "the process of "+file+" is dead", func() bool { return Dead(pid) })
		return
	}
	v.until(t, "the process of "+file+" is still", func() bool { return still(file + ".beat") })
}

// still says whether a file has not changed for as long as ten beats.
func still(file string) bool {
	size := func() int64 {
		st, err := os.Stat(file)
		if err != nil {
			return -1
		}
		return st.Size()
	}
	before := size()
	time.Sleep(10 * beat)
	return before >= 0 && size() == before
}

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
		"the input comes by file":                                               byFile,
		"the input comes by standard input":                                     byStdin,
		"what an earlier runner left is taken over, or dead (CL-08)":            adopts,
		"who leads again goes on with what it left":                             leadsAgain,
		"adopting nothing is no error":                                          adoptsNothing,
		"the environment of an attempt reaches its agent":                       environment,
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
		"what a failed agent has left is graded where that is wanted":           gradesFailures,
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
	return ExitWithin(t, r, id, wait)
}

// ExitWithin is Exit with another patience.
func ExitWithin(t *testing.T, r controller.Runner, id string, limit time.Duration) plan.Exit {
	t.Helper()
	timer := time.NewTimer(limit)
	defer timer.Stop()
	for {
		select {
		case ev := <-r.Events():
			if ev.Exit != nil && ev.Key.Rollout == fulgur.RolloutID(id) {
				return *ev.Exit
			}
		case <-timer.C:
			t.Fatalf("%s has not ended after %s", id, limit)
		}
	}
}

// Pid waits for a file with a process number.
func Pid(t *testing.T, file string) int {
	t.Helper()
	var pid int
	Until(t, file+" holds a pid", func() (ok bool) { pid, ok = readPid(file); return ok })
	return pid
}

func readPid(file string) (pid int, ok bool) {
	b, err := os.ReadFile(file)
	if err != nil {
		return 0, false
	}
	pid, err = strconv.Atoi(string(b))
	return pid, err == nil
}

// Until waits for a condition that another process brings about.
func Until(t testing.TB, what string, ok func() bool) {
	t.Helper()
	within(t, wait, what, ok)
}

func within(t testing.TB, limit time.Duration, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(limit); !ok(); time.Sleep(2 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("not true after %s: %s", limit, what)
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
	r := v.New(t, Setup{})
	Start(t, r, Execution("a", ""))
	if x := v.exit(t, r, "a"); x.Code != 0 || x.Failure != "" || x.Signal != "" {
		t.Errorf("exit %+v, want code 0", x)
	}
	Start(t, r, Execution("b", ""))
	v.exit(t, r, "b")
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
	r := v.New(t, Setup{})
	Start(t, r, Execution("a", "say first; say Traceback; env OPENAI_API_KEY; exit 3"))
	x := v.exit(t, r, "a")
	if x.Code != 3 || x.Cause != plan.CauseAgent || !strings.Contains(x.Tail, "first\nTraceback") {
		t.Errorf("exit %+v, want code 3 and the log's end", x)
	}
	if strings.Contains(x.Tail, "secret-a") && !v.Lacks.Redact {
		t.Errorf("the credential is in the log: %s", x.Tail)
	}
	Start(t, r, Execution("b", "crash"))
	if x := v.exit(t, r, "b"); x.Signal != "killed" && !(v.Lacks.Signal && x.Code == 137) || x.Cause != plan.CauseAgent || x.Failure != "" {
		t.Errorf("exit of one that was killed: %+v", x)
	}
}

func startTwice(t *testing.T, v Variant) {
	r := v.New(t, Setup{})
	file := filepath.Join(v.dir(t), "pid")
	e := Execution("a", "pid "+file+"; hang")
	first := Start(t, r, e)
	v.pid(t, file)
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
	v.exit(t, r, "a")
	if _, err := os.Stat(file); err == nil {
		t.Error("the agent ran twice")
	}
}

func stopUnknown(t *testing.T, v Variant) {
	r := v.New(t, Setup{})
	if err := r.Stop(t.Context(), plan.Key{Rollout: "nobody", Attempt: "7"}); err != nil {
		t.Error(err)
	}
}

func lists(t *testing.T, v Variant) {
	r := v.New(t, Setup{})
	Start(t, r, Execution("a", "hang"))
	Start(t, r, Execution("b", "hang"))
	keys, err := r.List(t.Context())
	slices.SortFunc(keys, func(a, b plan.Key) int { return strings.Compare(string(a.Rollout), string(b.Rollout)) })
	if want := []plan.Key{{Rollout: "a", Attempt: "0"}, {Rollout: "b", Attempt: "0"}}; err != nil || !slices.Equal(keys, want) {
		t.Errorf("list %v, %v", keys, err)
	}
	if keys, err := v.Again(t, Setup{}, r).List(t.Context()); err != nil || len(keys) > 0 {
		t.Errorf("a new runner lists %v, %v before it adopted anything", keys, err)
	}
}

func polite(t *testing.T, v Variant) {
	r := v.New(t, Setup{})
	dir := v.dir(t)
	e := Execution("a", "pid "+dir+"/pid; polite "+dir+"/bye")
	Start(t, r, e)
	v.pid(t, dir+"/pid")
	// The handler is set right after the file is there.
	time.Sleep(50 * time.Millisecond)
	if err := r.Stop(t.Context(), e.Key); err != nil {
		t.Fatal(err)
	}
	v.exit(t, r, "a")
	if _, err := os.Stat(dir + "/bye"); err != nil {
		t.Error("the agent got no time to clean up:", err)
	}
}

func ignores(t *testing.T, v Variant) {
	r := v.New(t, Setup{})
	file := filepath.Join(v.dir(t), "pid")
	e := Execution("a", "ignore; beat "+file+".beat; pid "+file+"; hang")
	Start(t, r, e)
	v.pid(t, file)
	begin := time.Now()
	_ = r.Stop(t.Context(), e.Key)
	_ = r.Stop(t.Context(), e.Key)
	v.exit(t, r, "a")
	if took := time.Since(begin); took < v.grace()*3/4 {
		t.Errorf("it was killed after %s, within its grace", took)
	}
	v.dead(t, file)
}

func tree(t *testing.T, v Variant) {
	r := v.New(t, Setup{})
	dir := v.dir(t)
	e := Execution("a", "child "+dir+"/child; daemon "+dir+"/daemon; beat "+dir+"/pid.beat; pid "+dir+"/pid; hang")
	Start(t, r, e)
	files := []string{dir + "/pid", dir + "/child", dir + "/daemon"}
	for _, f := range files {
		v.pid(t, f)
	}
	_ = r.Stop(t.Context(), e.Key)
	v.exit(t, r, "a")
	for _, f := range files {
		v.dead(t, f)
	}
}

func closes(t *testing.T, v Variant) {
	r := v.New(t, Setup{})
	file := filepath.Join(v.dir(t), "pid")
	Start(t, r, Execution("a", "ignore; beat "+file+".beat; pid "+file+"; hang"))
	v.pid(t, file)
	if err := r.Close(); err != nil {
		t.Error(err)
	}
	if pid, _ := readPid(file); !v.Lacks.Pids && !Dead(pid) || v.Lacks.Pids && !still(file+".beat") {
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
	r := v.New(t, Setup{})
	_, err := r.Start(context.Background(), Execution("a", strings.Repeat("x", 150_000)))
	if fulgur.KindOf(err) != fulgur.KindTooLarge || !strings.Contains(err.Error(), "DO ") || !strings.Contains(err.Error(), "150000 bytes") {
		t.Errorf("error %v", err)
	}
	if keys, _ := r.List(t.Context()); len(keys) > 0 {
		t.Errorf("list %v", keys)
	}
}

func chatty(t *testing.T, v Variant) {
	r := v.New(t, Setup{})
	Start(t, r, Execution("a", "say the beginning; print 10000000; say the end; exit 1"))
	x := v.exit(t, r, "a")
	if x.Code != 1 || !strings.HasSuffix(x.Tail, "the end") || len(x.Tail) > 4096 {
		t.Errorf("code %d, tail of %d bytes", x.Code, len(x.Tail))
	}
}

// gradesFailures: its grader looks for the file that the agents write.
func gradesFailures(t *testing.T, v Variant) {
	if v.Lacks.Grader {
		t.Skip("no grader here")
	}
	for _, test := range []struct {
		do       string
		stop     bool // once its file is there
		failures bool
		reward   float64 // -1: there is nothing to grade
	}{
		{"write left; exit 3", false, true, 1},
		{"exit 3", false, true, 0},
		{"crash", false, true, 0},
		{"write left; pid FILE; hang", true, true, 1},
		{"write left; ignore; pid FILE; hang", true, true, 1},
		{"write left; exit 3", false, false, -1},
		{"write left; pid FILE; hang", true, false, -1},
		{"write left", false, false, 1},
	} {
		g := &grade.Options{Command: []string{"sh", "-c", `cat > /dev/null; test -f "$FULGUR_WORKSPACE/left" && echo 1 || echo 0`}, Failures: test.failures}
		r := v.New(t, Setup{Grading: g})
		file := filepath.Join(v.dir(t), "pid")
		e := Execution("a", strings.ReplaceAll(test.do, "FILE", file))
		Start(t, r, e)
		if test.stop {
			v.pid(t, file)
			if err := r.Stop(t.Context(), e.Key); err != nil {
				t.Error(err)
			}
		}
		v.exit(t, r, "a")
		got, err := r.(controller.Grader).Grade(t.Context(), controller.Grading{Key: e.Key, Input: []byte(`{}`)})
		if errors.Is(err, controller.ErrNothingLeft) {
			got.Reward, err = -1, nil
		}
		if err != nil || got.Reward != test.reward {
			t.Errorf("%q, failures %v: reward %g, want %g, %v", test.do, test.failures, got.Reward, test.reward, err)
		}
		if err := r.Close(); err != nil {
			t.Error(err)
		}
	}
}

func byFile(t *testing.T, v Variant) {
	if v.Lacks.File {
		t.Skip("no input file here")
	}
	r := v.New(t, Setup{Input: "file"})
	Start(t, r, Execution("a", "file FULGUR_INPUT_FILE; exit 1"))
	if x := v.exit(t, r, "a"); !strings.Contains(x.Tail, `file {"do":"file FULGUR_INPUT_FILE; exit 1"} <nil>`) {
		t.Errorf("exit %+v", x)
	}
}

func byStdin(t *testing.T, v Variant) {
	if v.Lacks.Stdin {
		t.Skip("no standard input here")
	}
	r := v.New(t, Setup{Input: "stdin"})
	Start(t, r, Execution("a", "stdin; exit 1"))
	if x := v.exit(t, r, "a"); !strings.Contains(x.Tail, `stdin 22 {"do":"stdin; exit 1"}`) {
		t.Errorf("exit %+v", x)
	}
	Start(t, r, Execution("b", "exit 1; nobody reads it")) // and nobody waits for a reader
	if x := v.exit(t, r, "b"); x.Code != 1 {
		t.Errorf("exit %+v", x)
	}
}

func environment(t *testing.T, v Variant) {
	r := v.New(t, Setup{})
	e := Execution("a", "env FULGUR_ROLLOUT_ID; env ODD; env TEXT; exit 1")
	e.Env["ODD"], e.Env["TEXT"] = `a "b" $(c) {{ d }} ${E}`, "one: two\n# three"
	Start(t, r, e)
	if x := v.exit(t, r, "a"); !strings.Contains(x.Tail, "FULGUR_ROLLOUT_ID=a\nODD=a \"b\" $(c) {{ d }} ${E}\nTEXT=one: two\n# three") {
		t.Errorf("exit %+v", x)
	}
}

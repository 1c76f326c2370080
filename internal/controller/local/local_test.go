package local

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/fulgur-rl/fulgur"
	"github.com/fulgur-rl/fulgur/internal/controller"
	"github.com/fulgur-rl/fulgur/internal/controller/plan"
	"github.com/fulgur-rl/fulgur/internal/controller/runnertest"
	"github.com/fulgur-rl/fulgur/internal/controller/sandbox"
)

func TestMain(m *testing.M) {
	sandbox.Inner(os.Args)
	Watch(os.Args)
	runnertest.Main()
	if dir := os.Getenv("FULGUR_TEST_BOXED"); dir != "" {
		boxedController(dir)
	}
	if dir := os.Getenv("FULGUR_TEST_STUCK"); dir != "" {
		stuckProcess(dir)
	}
	if dir := os.Getenv("FULGUR_TEST_WATCHED"); dir != "" {
		watchedProcess(dir)
	}
	if db := os.Getenv("FULGUR_TEST_CONTROLLER"); db != "" {
		controllerProcess(db)
	}
	goleak.VerifyTestMain(m)
}

func options(t *testing.T) Options {
	return Options{
		Command: []string{os.Args[0]}, State: t.TempDir(), Scope: t.Name(), Grace: 200 * time.Millisecond,
		Env:     map[string]string{runnertest.AgentEnv: "process", "DO": "input.do"},
		Environ: append(os.Environ(), "FULGUR_SERVER_KEY=hidden", "OTHER=has hidden-key inside"), Secrets: []string{"hidden-key"},
	}
}

func processes(t *testing.T, o Options) *Processes {
	t.Helper()
	r, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = r.Close() })
	return r
}

func TestProcesses(t *testing.T) {
	make := func(t *testing.T, s runnertest.Setup) controller.Runner {
		o := options(t)
		o.Input, o.Grading, o.Workspace = controller.InputMode(s.Input), s.Grading, s.Grading != nil
		return processes(t, o)
	}
	runnertest.Run(t, runnertest.Variant{
		New:   make,
		Again: func(t *testing.T, s runnertest.Setup, _ controller.Runner) controller.Runner { return make(t, s) },
		Lacks: runnertest.Lacks{Adopt: true},
	})
}

func log(t *testing.T, r *Processes, id string) string {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(r.State, "logs", id+".0.log"))
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func TestAgentThatExitsLeavesNothing(t *testing.T) {
	r := processes(t, options(t))
	dir := t.TempDir()
	begin := time.Now()
	runnertest.Start(t, r, runnertest.Execution("a", "child "+dir+"/child; daemon "+dir+"/daemon"))
	runnertest.Exit(t, r, "a")
	if took := time.Since(begin); took > 5*time.Second {
		t.Errorf("the exit was told after %s: something waited for those that hold the pipe", took)
	}
	for _, f := range []string{"/child", "/daemon"} {
		pid := runnertest.Pid(t, dir+f)
		runnertest.Until(t, f+" is dead", func() bool { return runnertest.Dead(pid) })
	}
}

func TestLogsOfTwoAgentsAreApartAndCapped_CL10(t *testing.T) {
	o := options(t)
	o.LogCap = 64 << 10
	r := processes(t, o)
	runnertest.Start(t, r, runnertest.Execution("a", "say i am a; print 20000; exit 1"))
	runnertest.Start(t, r, runnertest.Execution("b", "say i am b; print 10000000; exit 1"))
	for range 2 {
		ev := <-r.Events()
		if ev.Exit.Log == "" {
			t.Errorf("no log is named: %+v", ev.Exit)
		}
	}
	if l := log(t, r, "a"); !strings.HasPrefix(l, "i am a\n") || strings.Contains(l, "i am b") || strings.Count(l, "\n") != 201 {
		t.Errorf("log of a has %d lines", strings.Count(l, "\n"))
	}
	if l := log(t, r, "b"); len(l) > 65<<10 || !strings.HasPrefix(l, "i am b\n") || !strings.Contains(l, " bytes left out …") {
		t.Errorf("log of b has %d bytes", len(l))
	}
}

func TestInputAndFolders(t *testing.T) {
	big := strings.Repeat("y", 300_000)
	for name, test := range map[string]struct {
		set  func(*Options)
		do   string
		want []string // in the log
		kept bool     // the attempt's folder
	}{
		"by file":                                  {func(o *Options) { o.Input = controller.ByFile }, "file FULGUR_INPUT_FILE; exit 1", []string{`file {"do":"`, big}, true},
		"by stdin":                                 {func(o *Options) { o.Input = controller.ByStdin }, "stdin; exit 1", []string{"stdin 3", `{"do":"stdin`}, false},
		"by stdin that nobody reads":               {func(o *Options) { o.Input = controller.ByStdin }, "exit 1", nil, false},
		"a workspace is the working folder":        {func(o *Options) { o.Workspace = true }, "pwd; write x; exit 1", []string{"pwd ", "/attempts/a.0/work"}, true},
		"a workspace of one that went well goes":   {func(o *Options) { o.Workspace, o.Logs = true, controller.KeepAll }, "pwd; write x", []string{"pwd "}, false},
		"a workspace that is kept":                 {func(o *Options) { o.Workspace, o.Logs, o.Keep = true, controller.KeepAll, controller.KeepAll }, "pwd; write x", []string{"pwd "}, true},
		"keys of ours are not passed on":           {nil, "env FULGUR_SERVER_KEY; env OTHER; env HOME; exit 1", []string{"FULGUR_SERVER_KEY=\n", "OTHER=\n", "HOME=/"}, false},
		"the attempt's own variables are over all": {func(o *Options) { o.Environ = append(o.Environ, "FULGUR_ROLLOUT_ID=outer") }, "env FULGUR_ROLLOUT_ID; exit 1", []string{"FULGUR_ROLLOUT_ID=a\n"}, false},
	} {
		t.Run(name, func(t *testing.T) {
			o := options(t)
			o.LogCap = 2 << 20
			if test.set != nil {
				test.set(&o)
			}
			r := processes(t, o)
			e := runnertest.Execution("a", test.do)
			e.Input, _ = json.Marshal(map[string]string{"do": test.do, "pad": big})
			runnertest.Start(t, r, e)
			runnertest.Exit(t, r, "a")
			for _, w := range test.want {
				if l := log(t, r, "a"); !strings.Contains(l, w) {
					t.Errorf("the log lacks %.80q: %.300s", w, l)
				}
			}
			if _, err := os.Stat(filepath.Join(o.State, "attempts", "a.0")); (err == nil) != test.kept {
				t.Errorf("folder there: %v, want %v", err == nil, test.kept)
			}
		})
	}
}

func TestStartRefuses(t *testing.T) {
	for name, test := range map[string]struct {
		env  map[string]string
		kind fulgur.Kind
		want string
	}{
		"a path that is not there": {map[string]string{"Q": "input.question"}, fulgur.KindInvalid, `Q asks for input.question`},
		"a zero byte":              {map[string]string{"Q": "a\x00b"}, fulgur.KindInvalid, "zero byte"},
		"a bad name":               {map[string]string{"A=B": "c"}, fulgur.KindInvalid, "no name"},
	} {
		t.Run(name, func(t *testing.T) {
			o := options(t)
			o.Env = test.env
			_, err := processes(t, o).Start(t.Context(), runnertest.Execution("a", ""))
			if fulgur.KindOf(err) != test.kind || !strings.Contains(fmt.Sprint(err), test.want) {
				t.Errorf("error %v", err)
			}
		})
	}
}

func TestNewRefuses(t *testing.T) {
	for name, test := range map[string]struct {
		o    Options
		want string
	}{
		"no command":                      {Options{}, "agent.command"},
		"a program that is not there":     {Options{Command: []string{"no-such-program-4711"}}, "no-such-program-4711"},
		"a file that is no program":       {Options{Command: []string{"./options.go"}, Dir: "."}, "executable"},
		"a folder that is not there":      {Options{Command: []string{"true"}, Dir: "nowhere"}, "nowhere"},
		"an input file without a folder":  {Options{Command: []string{"true"}, Input: controller.ByFile}, "folder"},
		"a policy that does not exist":    {Options{Command: []string{"true"}, Keep: "some"}, "some"},
		"an input mode that is not there": {Options{Command: []string{"true"}, Input: "pigeon"}, "pigeon"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := New(test.o)
			if fulgur.KindOf(err) != fulgur.KindInvalid || !strings.Contains(err.Error(), test.want) {
				t.Errorf("error %v", err)
			}
		})
	}
}

func TestHandleOfAnotherProcessKillsNobody(t *testing.T) {
	self := os.Getpid()
	birth, ok := born(self)
	if !ok {
		t.Fatal("this process has no time of birth")
	}
	for _, h := range []string{"", "nonsense", fmt.Sprintf("%s:%d:%d", bootID(), self, birth+1), fmt.Sprintf("other:%d:%d", self, birth), fmt.Sprintf("%s:1:%d", bootID(), birth)} {
		if killHandle(h) {
			t.Errorf("%q killed something", h)
		}
	}
}

// A workspace is bounded in all, while its agent runs and at its end.
func TestAWorkspaceIsBounded(t *testing.T) {
	const fill = "for i in 1 2 3 4; do head -c 1000000 /dev/zero > f$i; done"
	for name, test := range map[string]struct {
		script, want string
	}{
		"while it runs":  {fill + "; exec sleep 60", plan.ReasonDisk},
		"at its end":     {fill + "; exit 3", plan.ReasonDisk},
		"and not before": {"head -c 1000000 /dev/zero > f; exit 3", ""},
	} {
		t.Run(name, func(t *testing.T) {
			o := options(t)
			o.Command, o.Workspace, o.Disk = []string{"/bin/sh", "-c", test.script}, true, 3<<20
			r := processes(t, o)
			began := time.Now()
			runnertest.Start(t, r, runnertest.Execution("a", ""))
			x := runnertest.Exit(t, r, "a")
			if x.Failure != test.want || x.Cause != plan.CauseAgent || x.Guess || time.Since(began) > 20*time.Second {
				t.Errorf("after %s: %+v", time.Since(began), x)
			}
		})
	}
	t.Run("a worker's", func(t *testing.T) {
		o := options(t)
		o.Command = []string{"/bin/sh", "-c", `read -r l; d=${l#*\"dir\":\"}; cd "${d%%\"*}"; ` + fill + "; exec sleep 60"}
		o.Env, o.Workspace, o.Disk, o.Workers = nil, true, 3<<20, 1
		r := workers(t, o)
		runnertest.Start(t, r, runnertest.Execution("a", ""))
		if x := runnertest.Exit(t, r, "a"); x.Failure != plan.ReasonDisk {
			t.Errorf("%+v", x)
		}
	})
}

func TestUnlinkedFilesAreSeen(t *testing.T) {
	dir := t.TempDir()
	f, err := os.Create(filepath.Join(dir, "x"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	if _, err := f.Write(make([]byte, 1<<20)); err != nil {
		t.Fatal(err)
	}
	before := unlinked(dir, os.Getpid())
	if err := os.Remove(f.Name()); err != nil {
		t.Fatal(err)
	}
	if got := unlinked(dir, os.Getpid()) - before; got < 1<<20 && runtime.GOOS == "linux" {
		t.Errorf("%d bytes", got)
	}
}

package sandbox

import (
	"context"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fulgur-rl/fulgur"
)

func TestMain(m *testing.M) {
	Inner(os.Args)
	os.Exit(m.Run())
}

// needBox skips where there is no bubblewrap; `make test-sandbox` installs it,
// and there a skip is a failure.
func needBox(t testing.TB) {
	t.Helper()
	if _, err := exec.LookPath("bwrap"); err != nil {
		if os.Getenv("FULGUR_TEST_SANDBOX") != "" {
			t.Fatal("bubblewrap is not here, and the sandbox is what is to be tested")
		}
		t.Skip("bubblewrap is not here: make test-sandbox installs it and runs this")
	}
}

func newBox(t testing.TB, o Options) *Box {
	t.Helper()
	needBox(t)
	b, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(b.Close)
	return b
}

// ran is what became of a command in a box.
type ran struct {
	out   string
	state *os.ProcessState
	cell  *Cell
}

// do runs a command in a box to its end.
func do(t testing.TB, b *Box, c Command, p Pass) ran {
	t.Helper()
	null, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	defer null.Close()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	c.Files = [3]*os.File{null, w, w}
	if c.Env == nil {
		c.Env = []string{"PATH=/usr/bin:/bin"}
	}
	cell, err := b.Cell(c)
	if err != nil {
		t.Fatal(err)
	}
	cell.Let(p)
	var proc *os.Process
	around := cell.Attributes(&syscall.SysProcAttr{Setpgid: true})
	if err = around(func() error { proc, err = os.StartProcess(cell.Name, cell.Argv, cell.Attr); return err }); err != nil {
		t.Fatal(err)
	}
	cell.Begin()
	w.Close()
	out, _ := io.ReadAll(r)
	st, err := proc.Wait()
	if err != nil {
		t.Fatal(err)
	}
	cell.End(2 * time.Second)
	return ran{string(out), st, cell}
}

func sh(script string) Command {
	return Command{Program: "/bin/sh", Args: []string{"sh", "-c", script}}
}

func TestSandboxedShellSeesItsView(t *testing.T) {
	dir := t.TempDir()
	for _, p := range []string{"proj/.git/config", "proj/agent.py", "proj/answers.jsonl", "work/x", "other/secret", "runs/run/agent", "runs/run/store.db"} {
		p = filepath.Join(dir, p)
		if err := os.MkdirAll(filepath.Dir(p), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(p, []byte(filepath.Base(p)), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	leak, err := os.Open(dir + "/other/secret") // a descriptor that this process's own parents might have left
	if err != nil {
		t.Fatal(err)
	}
	defer leak.Close()
	if _, err := unix.FcntlInt(leak.Fd(), unix.F_SETFD, 0); err != nil {
		t.Fatal(err)
	}
	b := newBox(t, Options{Home: "/home/agent", Limits: Limits{File: 1 << 20}, View: View{
		Read: []string{dir + "/proj"}, Hide: []string{dir + "/proj/.git", dir + "/proj/answers.jsonl", dir + "/runs"}, Show: []string{dir + "/runs/run/agent"}}})
	for name, test := range map[string]struct{ script, want string }{
		"what is to be read":                       {"cat proj/agent.py", "agent.py"},
		"a hidden folder is empty":                 {"ls -A proj/.git | wc -l", "0\n"},
		"a hidden file cannot be read":             {"cat proj/answers.jsonl 2>/dev/null || echo no", "no\n"},
		"what is around is not there":              {"ls", "proj\nruns\nwork\n"},
		"what is shown all the same":               {"ls runs/run; cat runs/run/agent", "agent\nagent"},
		"hidden folders are read-only":             {"touch runs/x runs/run/x proj/.git/x 2>/dev/null || echo no", "no\n"},
		"what is to be written":                    {"echo hi > work/y; cat work/y", "hi\n"},
		"what is read is not written":              {"(echo no > proj/agent.py) 2>/dev/null || echo read-only", "read-only\n"},
		"the home is empty":                        {"ls -A /home/agent | wc -l; touch /home/agent/x", "0\n"},
		"three files are open":                     {"readlink /proc/$$/fd/* | grep -v /dev/null | grep -c secret", "0\n"},
		"processes: the sandbox's":                 {"[ $(ls -d /proc/[0-9]* | wc -l) -lt 8 ] && echo few", "few\n"},
		"its first process is filtered":            {"grep ^Seccomp: /proc/1/status", "Seccomp:\t2\n"},
		"no capability":                            {"grep CapEff /proc/self/status", "CapEff:\t0000000000000000\n"},
		"a filter, and nothing to gain":            {"grep -e '^Seccomp:' -e NoNewPrivs /proc/self/status", "NoNewPrivs:\t1\nSeccomp:\t2\n"},
		"a session of its own":                     {"cut -d' ' -f6 /proc/self/stat", "1\n"},
		"a name of its own":                        {"uname -n", "sandbox\n"},
		"nothing in memory but what is bounded":    {"for d in / /dev /var /etc /proc /run; do touch $d/x 2>/dev/null && echo $d; done; echo none", "none\n"},
		"devices work, and are nobody's to change": {"head -c 2 /dev/zero > /dev/null && chmod 600 /dev/full 2>/dev/null; stat -c %a /dev/full", "666\n"},
		"no core for the machine's own handler":    {"[ $(awk '/^Max core/ {print $5}' /proc/self/limits) -le 1 ] && echo none", "none\n"},
		"neither sockets nor devices":              {"ls -d /run/* /var/run/* /dev/sd* /dev/vd* /sys/* 2>/dev/null | wc -l", "0\n"},
	} {
		t.Run(name, func(t *testing.T) {
			c := sh("cd " + dir + "; " + test.script)
			c.Write = []string{dir + "/work"}
			got := do(t, b, c, Pass{})
			if why, _ := got.cell.Problem(got.out); got.out != test.want || why != "" {
				t.Errorf("printed %q (%v, %s), want %q", got.out, got.state, why, test.want)
			}
		})
	}
}

func TestWhatCannotBeSandboxedIsSaid(t *testing.T) {
	needBox(t)
	dir := t.TempDir()
	if err := errors.Join(os.MkdirAll(dir+"/p/runs/r", 0o755), os.Symlink("p/runs", dir+"/link"), os.Symlink("/", dir+"/root")); err != nil {
		t.Fatal(err)
	}
	for name, test := range map[string]struct {
		o    Options
		want string
	}{
		"no bubblewrap":                {Options{Bwrap: "/no/such/bwrap"}, "no such file"},
		"all of the machine":           {Options{View: View{Read: []string{"/"}}}, "would see all of /"},
		"all of a home":                {Options{Home: "/home/u", View: View{Read: []string{"/home"}}}, "would see all of /home"},
		"no gateway":                   {Options{Upstream: "gateway"}, "want the gateway's URL"},
		"all of a home to be written":  {Options{Home: "/home/u", View: View{Write: []string{"/home"}}}, "would see all of /home"},
		"the system to be written":     {Options{View: View{Write: []string{"/etc"}}}, "the system's"},
		"what holds the system":        {Options{View: View{Write: []string{dir + "/root"}}}, "would see all of /"},
		"what holds what is hidden":    {Options{View: View{Write: []string{dir + "/p"}, Hide: []string{dir + "/p/runs/store.db"}}}, dir + "/p/runs/store.db is hidden"},
		"what lies in what is hidden":  {Options{View: View{Write: []string{dir + "/p/runs/r"}, Hide: []string{dir + "/p/runs"}}}, dir + "/p/runs is hidden"},
		"what is hidden":               {Options{View: View{Write: []string{dir + "/p/runs"}, Hide: []string{dir + "/p/runs/"}}}, "is hidden"},
		"a link to what is hidden":     {Options{View: View{Write: []string{dir + "/link"}, Hide: []string{dir + "/p/runs"}}}, "is hidden"},
		"what is hidden behind a link": {Options{View: View{Write: []string{dir + "/p"}, Hide: []string{dir + "/link/store.db"}}}, "is hidden"},
		"what lies in what is written": {Options{View: View{Write: []string{dir + "/p", dir + "/p/runs"}}}, "lies in " + dir + "/p"},
	} {
		t.Run(name, func(t *testing.T) {
			if _, err := New(test.o); err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("error %v", err)
			}
		})
	}
}

// What an agent prints is no proof of what a limit did, least of all where a control
// group counts it.
func TestWhichLimitEndedAnAgent(t *testing.T) {
	all := Limits{Memory: 1 << 30, Processes: 10, File: 1 << 20, CPU: time.Second}
	for name, test := range map[string]struct {
		signal  syscall.Signal
		printed string
		cell    *Cell
		want    string
		sure    bool
	}{
		"a group's word":                       {0, "", &Cell{group: &group{}, hit: "memory"}, "memory", true},
		"cpu time":                             {syscall.SIGXCPU, "", &Cell{}, "cpu", true},
		"cpu time, and the signal was blocked": {syscall.SIGKILL, "", &Cell{group: &group{}, cpu: time.Second}, "cpu", true},
		"a file":                               {syscall.SIGXFSZ, "", &Cell{}, "disk", true},
		"words about memory":                   {0, "MemoryError", &Cell{}, "memory", false},
		"words about memory, with a group":     {0, "MemoryError", &Cell{group: &group{}}, "", false},
		"words about processes":                {0, "Resource temporarily unavailable", &Cell{}, "processes", false},
		"words about processes, with a group":  {0, "Resource temporarily unavailable", &Cell{group: &group{}}, "", false},
		"words about disk, with a group":       {0, "No space left on device", &Cell{group: &group{}}, "disk", false},
		"nothing":                              {0, "", &Cell{}, "", false},
	} {
		t.Run(name, func(t *testing.T) {
			c := test.cell
			c.box = &Box{o: Options{Limits: all}}
			if got, sure := c.Limit(test.signal, test.printed); got != test.want || sure != test.sure {
				t.Errorf("%q, sure %v", got, sure)
			}
		})
	}
}

// A program whose limits cannot be set is not started without them.
func TestNothingStartsWithoutItsLimits(t *testing.T) {
	b := newBox(t, Options{Limits: Limits{Memory: 1 << 30, Processes: 100}})
	switch {
	case b.cg == nil:
		t.Skip("no control group can be made here: " + b.note)
	case b.cg.v2:
		t.Skip("the kernel starts children in their groups here")
	}
	cell, err := b.Cell(sh("echo ran"))
	if err != nil {
		t.Fatal(err)
	}
	defer cell.Abandon()
	cell.group.remove() // as if somebody else had
	err = cell.Attributes(&syscall.SysProcAttr{})(func() error { t.Error("it was started"); return nil })
	if fulgur.KindOf(err) != fulgur.KindUnavailable {
		t.Errorf("error %v", err)
	}
}

// An agent can have bubblewrap's own process inside write to what says that all is dead.
func TestAllIsDeadWhenACellHasEnded(t *testing.T) {
	dir := t.TempDir()
	b := newBox(t, Options{View: View{Write: []string{dir}}})
	c := sh("printf x > /proc/1/fd/5; (while :; do echo x >> " + dir + "/alive; done) & sleep 0.1; exit 3")
	for range 5 {
		if got := do(t, b, c, Pass{}); got.state.ExitCode() != 3 {
			t.Fatalf("%v: %s", got.state, got.out)
		}
		size := func() int64 { st, _ := os.Stat(dir + "/alive"); return st.Size() }
		before := size()
		time.Sleep(20 * time.Millisecond)
		if size() != before {
			t.Error("it writes on")
		}
	}
}

// Control groups go with their cells, also where the dead are not buried at once.
func TestControlGroupsGo(t *testing.T) {
	needBox(t)
	b, err := New(Options{Limits: Limits{Memory: 1 << 30, Processes: 100}})
	if err != nil {
		t.Fatal(err)
	}
	if b.cg == nil {
		b.Close()
		t.Skip("no control group can be made here: " + b.note)
	}
	for range 8 {
		do(t, b, sh("for i in 1 2 3 4 5; do sleep 100 & done"), Pass{})
	}
	b.Close()
	for _, dir := range b.cg.base {
		if exists(dir) {
			t.Errorf("%s is left", dir)
		}
	}
}

func TestRunSaysWhatKeptAProgramFromRunning(t *testing.T) {
	b := newBox(t, Options{})
	var out, text strings.Builder
	st, err := b.Run(t.Context(), sh("cat; echo no >&2; exit 3"), Pass{}, Streams{In: []byte("yes"), Out: &out, Err: &text})
	if err != nil || st.ExitCode() != 3 || out.String() != "yes" || text.String() != "no\n" {
		t.Errorf("%v, %v, %q, %q", st, err, out.String(), text.String())
	}
	if _, err := b.Run(t.Context(), Command{Program: "/usr/bin/no-such-program", Args: []string{"x"}}, Pass{}, Streams{}); fulgur.KindOf(err) != fulgur.KindInvalid {
		t.Errorf("no such program: %v", err)
	}
	if _, err := b.Run(t.Context(), Command{Program: "/bin/true", Args: []string{"true"}, Dir: "/no/such/folder"}, Pass{}, Streams{}); fulgur.KindOf(err) != fulgur.KindUnavailable {
		t.Errorf("no such folder: %v", err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if _, err := b.Run(ctx, sh("sleep 100 & sleep 100"), Pass{}, Streams{}); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("one that hangs: %v", err)
	}
}

func TestEnvironKeepsKeysOut(t *testing.T) {
	got := Environ([]string{"PATH=/bin", "AWS_SECRET_ACCESS_KEY=x", "GITHUB_TOKEN=x", "HF_TOKEN=x", "OPENAI_API_KEY=x", "DB_PASSWORD=x", "SSH_AUTH_SOCK=x", "PGPASSWORD=x", "MYSQL_PWD=x", "AZURE_STORAGE_CONNECTION_STRING=x",
		"REDIS_URL=redis://:x@h/0", "PIP_INDEX_URL=https://me:x@pypi.example/simple", "DOCS=https://h:80/a@b", "PWD=/w", "OLDPWD=/o",
		"HTTPS_PROXY=x", "no_proxy=x", "KEYBOARD=us", "GIT_AUTHOR_NAME=a", "MONKEY=1", "HOME=/h"})
	if want := []string{"PATH=/bin", "DOCS=https://h:80/a@b", "PWD=/w", "OLDPWD=/o", "KEYBOARD=us", "GIT_AUTHOR_NAME=a", "MONKEY=1", "HOME=/h"}; !slices.Equal(got, want) {
		t.Errorf("%v", got)
	}
}

// What hides a file is gone when somebody outside puts another in its place; new
// files beside it may have to be hidden as well.
func TestHiddenFileStaysHiddenWhenItIsReplaced(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) {
		t.Helper()
		if err := errors.Join(os.MkdirAll(filepath.Dir(dir+name), 0o755), os.WriteFile(dir+name, []byte(text), 0o644)); err != nil {
			t.Fatal(err)
		}
	}
	write("/proj/server.json", "secret\n")
	write("/proj/agent.py", "agent\n")
	write("/proj/lib/x.py", "x\n")
	write("/proj/lib/deep/.env", "secret\n")
	if err := os.Symlink("lib", dir+"/proj/link"); err != nil {
		t.Fatal(err)
	}
	b := newBox(t, Options{View: View{Read: []string{dir + "/proj"}, Hide: []string{dir + "/proj/server.json", dir + "/proj/lib/deep/.env"}}})
	write("/proj/started", "")
	c := sh("cd " + dir + "/proj; echo > ../mine/up; while [ ! -e ../mine/go ]; do sleep 0.02; done; cat agent.py link/x.py server.json lib/deep/.env new.db-wal 2>/dev/null; touch x 2>/dev/null; ls")
	c.Write = []string{dir + "/mine"}
	write("/mine/x", "")
	go func() {
		for !exists(dir + "/mine/up") {
			time.Sleep(5 * time.Millisecond)
		}
		for _, name := range []string{"/proj/server.json", "/proj/lib/deep/.env", "/proj/new.db-wal"} {
			_ = os.WriteFile(dir+"/tmp", []byte("new secret\n"), 0o644)
			_ = os.Rename(dir+"/tmp", dir+name)
		}
		_ = os.WriteFile(dir+"/mine/go", nil, 0o644)
	}()
	if got := do(t, b, c, Pass{}); got.out != "agent\nx\nagent.py\nlib\nlink\nserver.json\nstarted\n" {
		t.Errorf("it printed %q", got.out)
	}
}

// A folder that is named by a link is hidden in all the same, by whatever name.
func TestViewThroughLinks(t *testing.T) {
	dir := t.TempDir()
	for _, p := range []string{"real/proj/agent.py", "real/proj/data.jsonl", "real/proj/.git/config", "real/proj/runs/r/mine/x", "real/proj/runs/r/tool", "real/lib/x", "cache/x"} {
		p = filepath.Join(dir, p)
		if err := errors.Join(os.MkdirAll(filepath.Dir(p), 0o755), os.WriteFile(p, []byte(filepath.Base(p)+"\n"), 0o644)); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(os.Symlink("real", dir+"/link"), os.Symlink("lib", dir+"/real/lib2"), os.Symlink("../cache", dir+"/real/cache")); err != nil {
		t.Fatal(err)
	}
	proj := dir + "/link/proj"
	b := newBox(t, Options{View: View{Read: []string{proj, dir + "/link/lib2"}, Hide: []string{proj + "/data.jsonl", proj + "/.git", dir + "/real/proj/runs"}, Show: []string{proj + "/runs/r/tool"}, Write: []string{dir + "/link/cache"}}})
	c := sh("cat agent.py data.jsonl .git/config " + dir + "/real/proj/data.jsonl " + dir + "/link/lib2/x runs/r/tool 2>/dev/null; cd " + proj + "/runs/r/mine && echo new > y && cat x y; echo c > " + dir + "/link/cache/y && cat " + dir + "/link/cache/x; touch " + proj + "/x 2>/dev/null || echo read-only")
	c.Dir, c.Write = proj, []string{proj + "/runs/r/mine"}
	if got := do(t, b, c, Pass{}); got.out != "agent.py\nx\ntool\nx\nnew\nx\nread-only\n" {
		t.Errorf("it printed %q", got.out)
	}
}

func TestMatchFindsPathsAndNames(t *testing.T) {
	dir := t.TempDir()
	for _, p := range []string{".git/config", "sub/.git/config", "tests/test_a.py", "lib/b.py", "lib/test_b.py"} {
		if err := os.MkdirAll(filepath.Dir(filepath.Join(dir, p)), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, p), nil, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	got, err := Match(dir, []string{".git", "lib/*_b.py", "test_a.*", "/etc/passwd"})
	if err != nil {
		t.Fatal(err)
	}
	slices.Sort(got)
	if but, err := Match(dir, []string{".git"}, dir+"/sub"); err != nil || !slices.Equal(but, []string{dir + "/.git"}) {
		t.Errorf("but for a folder: %v, %v", but, err)
	}
	if want := []string{"/etc/passwd", dir + "/.git", dir + "/lib/test_b.py", dir + "/sub/.git", dir + "/tests/test_a.py"}; !slices.Equal(got, want) {
		t.Errorf("%v", got)
	}
}

func TestProgramBringsWhatItNeeds(t *testing.T) {
	dir := t.TempDir()
	for _, p := range []string{"tool/bin/run", "proj/agent", "proj/runs/r/agent", "alone"} {
		p = filepath.Join(dir, p)
		if err := os.MkdirAll(filepath.Dir(p), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(p, nil, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.MkdirAll(dir+"/venv/bin", 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("../../tool/bin/run", dir+"/venv/bin/python"); err != nil {
		t.Fatal(err)
	}
	v := View{Read: []string{dir + "/proj", ""}, Hide: []string{dir + "/proj/runs"}}
	for path, want := range map[string][]string{
		"/tool/bin/run":      {dir + "/tool"},
		"/venv/bin/python":   {dir + "/venv", dir + "/tool"},
		"/alone":             {dir + "/alone"},
		"/proj/agent":        nil,
		"/proj/runs/r/agent": {dir + "/proj/runs/r/agent"},
	} {
		if got := v.program(dir+path, ""); !slices.Equal(got, want) {
			t.Errorf("%s: %v, want %v", path, got, want)
		}
	}
	if got := (View{}).program("/home/u/bin/agent", "/home/u"); !slices.Equal(got, []string{"/home/u/bin/agent"}) {
		t.Errorf("a program of a home brings %v", got)
	}
}

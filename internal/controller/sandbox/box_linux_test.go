package sandbox

import (
	"io"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
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
	around(func() { proc, err = os.StartProcess(cell.Name, cell.Argv, cell.Attr) })
	if err != nil {
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
	for _, p := range []string{"proj/.git/config", "proj/agent.py", "proj/answers.jsonl", "work/x", "other/secret", "run/agent"} {
		p = filepath.Join(dir, p)
		if err := os.MkdirAll(filepath.Dir(p), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(p, []byte(filepath.Base(p)), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	b := newBox(t, Options{View: View{Read: []string{dir + "/proj"}, Hide: []string{dir + "/proj/.git", dir + "/proj/answers.jsonl"}}, Home: "/home/agent", Limits: Limits{File: 1 << 20}})
	c := sh(`cd ` + dir + `/proj; cat agent.py; echo; ls .git; wc -c < answers.jsonl; ls ` + dir + `; echo hi > ../work/y && echo written; echo no > agent.py; ls -a /home/agent; echo $HOME; ls /proc | grep -c '^[0-9]'; ls /proc/self/fd; grep CapEff /proc/self/status; echo 1 > /proc/sys/kernel/sysrq; ls -d /root /home/* /work /run; pwd; ulimit -f; grep Seccomp: /proc/self/status`)
	c.Write = []string{dir + "/work"}
	c.Dir = dir + "/work"
	got := do(t, b, c, Pass{})
	why, _ := got.cell.Problem(got.out)
	t.Log(got.out, got.state, why)
}

func TestRelayIsReachedFromInside(t *testing.T) {
	up := httptest.NewServer(nil)
	defer up.Close()
	b := newBox(t, Options{Upstream: up.URL})
	got := do(t, b, sh(`python3 -c "import urllib.request as u
print(u.urlopen('http://127.0.0.1:41457/openai/v1/x').read())"; which curl`), Pass{Paths: []string{"/openai/"}, Key: "k"})
	t.Log(got.out, strings.Contains(got.out, "404"))
}

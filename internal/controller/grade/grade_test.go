package grade

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"

	"github.com/fulgur-rl/fulgur"
	"github.com/fulgur-rl/fulgur/internal/controller"
	"github.com/fulgur-rl/fulgur/internal/controller/plan"
)

var key = plan.Key{Rollout: "r", Attempt: "0"}

// grader is one that says what it was given.
func grader(t *testing.T, o Options, tests RunTests) *Grader {
	t.Helper()
	o.Command = []string{"/bin/sh", "-c", `cat > "$FULGUR_WORKSPACE/../said"; cat "$FULGUR_WORKSPACE/../said" >&2; echo 1`}
	g, err := New(&o, t.TempDir(), tests)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(g.Close)
	return g
}

func workspace(t *testing.T, files map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for name, text := range files {
		name = filepath.Join(dir, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(name), 0o755), os.WriteFile(name, []byte(text), 0o644)); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// What this machine runs out of is no work of the agent's: it is not worth 0.
func TestMachineErrorsAreNoReward(t *testing.T) {
	for name, test := range map[string]struct {
		taken error
		tests error
		want  fulgur.Kind // "": it is graded
	}{
		"no descriptors to read what it left": {&fs.PathError{Op: "open", Path: "x", Err: syscall.EMFILE}, nil, fulgur.KindExhausted},
		"no disk to copy it":                  {nil, &fs.PathError{Op: "write", Path: "x", Err: syscall.ENOSPC}, fulgur.KindExhausted},
		"no box to test it in":                {nil, fulgur.E(fulgur.KindUnavailable, "", "no box", nil), fulgur.KindUnavailable},
		"too much was left":                   {excess("too much"), nil, ""},
		"the agent's program does not start":  {nil, fulgur.E(fulgur.KindInvalid, "", "no program", nil), ""},
	} {
		t.Run(name, func(t *testing.T) {
			g := grader(t, Options{Tests: []string{"a.py"}}, func(_ context.Context, _ string, _ io.Writer) (int, error) { return -1, test.tests })
			g.Take(key, workspace(t, map[string]string{"a.py": "a"}))
			if test.taken != nil {
				g.patches[key] = taken{err: test.taken}
			}
			got, err := g.Grade(t.Context(), controller.Grading{Key: key, Input: []byte("{}")})
			if fulgur.KindOf(err) != test.want {
				t.Errorf("%+v, %v", got, err)
			}
		})
	}
}

// A file where a folder has to be cannot keep a grader from grading, which would be
// better for the agent than failing.
func TestFilesThatCannotBeLaidAreRefused(t *testing.T) {
	pristine := workspace(t, map[string]string{"tests/test_a.py": "pass", "calc.py": "old", "z.py": "z"})
	var laid []string
	g := grader(t, Options{Pristine: pristine, Tests: []string{"true"}}, func(_ context.Context, work string, _ io.Writer) (int, error) {
		for _, name := range []string{"tests/test_a.py", "calc.py", "new.py"} {
			b, _ := os.ReadFile(filepath.Join(work, name))
			laid = append(laid, string(b))
		}
		return 0, nil
	})
	g.Take(key, workspace(t, map[string]string{"tests": "no folder", "calc.py/in": "no file", "new.py": "new"}))
	got, err := g.Grade(t.Context(), controller.Grading{Key: key, Input: []byte("{}")})
	if err != nil || got.Reward != 1 || strings.Join(laid, " ") != "pass old new" {
		t.Errorf("%+v, %v, %q", got, err, laid)
	}
}

// How tests ended is told beside the reward, and with a grader's failure: the end of what
// they printed, no more.
func TestHowTestsEndedIsTold(t *testing.T) {
	for name, command := range map[string]string{"graded": "echo broken >&2; echo 0", "the grader fails": "echo broken >&2; exit 1"} {
		g, err := New(&Options{Tests: []string{"true"}, Command: []string{"/bin/sh", "-c", command}}, t.TempDir(), func(_ context.Context, _ string, out io.Writer) (int, error) {
			_, err := io.WriteString(out, strings.Repeat("first\n", 1000)+strings.Repeat("é", 600)+"\nlast\n")
			return 2, err
		})
		if err != nil {
			t.Fatal(err)
		}
		g.Take(key, t.TempDir())
		got, err := g.Grade(t.Context(), controller.Grading{Key: key, Input: []byte("{}")})
		if (err != nil) != (name != "graded") {
			t.Errorf("%s: %v", name, err)
		}
		if o := got.Tests; o == nil || o.ExitCode != 2 || o.TimedOut || !strings.HasSuffix(o.Output, "é\nlast") || len(o.Output) > keptOutput+8 || got.Log != "broken" {
			t.Errorf("%s: %+v, %q", name, o, got.Log)
		}
		g.Close()
	}
}

func TestTakenOnceAndForgotten(t *testing.T) {
	g := grader(t, Options{}, nil)
	g.Take(key, "")
	other := plan.Key{Rollout: "other", Attempt: "0"}
	g.Take(other, "")
	g.Forget(key, plan.Key{Rollout: "unknown"})
	if _, err := g.Grade(t.Context(), controller.Grading{Key: key, Input: []byte("{}")}); err == nil {
		t.Error("what was forgotten is graded")
	}
	if _, err := g.Grade(t.Context(), controller.Grading{Key: other, Input: []byte("{}")}); err != nil || len(g.patches) != 0 {
		t.Errorf("%v, %d are kept", err, len(g.patches))
	}
	(*Grader)(nil).Forget(key)
}

// What agents leave waits on disk: many may end at once.
func TestWhatWasTakenWaitsOnDisk(t *testing.T) {
	g := grader(t, Options{Size: 40 << 20}, nil)
	work := workspace(t, map[string]string{"big": strings.Repeat("x", 8<<20), "src/a": "a"})
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	keys := []plan.Key{}
	for i := range 4 {
		keys = append(keys, plan.Key{Rollout: fulgur.RolloutID(rune('a' + i)), Attempt: "0"})
		g.Take(keys[i], work)
	}
	if runtime.ReadMemStats(&after); after.TotalAlloc-before.TotalAlloc > 8<<20 {
		t.Errorf("%d bytes of memory for four that left 8 MiB each", after.TotalAlloc-before.TotalAlloc)
	}
	if err := g.Sweep(); err != nil { // leaves what is this process's
		t.Error(err)
	}
	got, err := g.Grade(t.Context(), controller.Grading{Key: keys[0], Input: []byte("{}")})
	if err != nil || got.Reward != 1 {
		t.Errorf("%+v, %v", got, err)
	}
	g.Forget(keys[1], keys[2])
	g.Close()
	if left, _ := os.ReadDir(g.state); len(left) > 0 {
		t.Errorf("%v is left", left)
	}
}

// A process that is killed while it grades leaves a copy, which the next one removes.
func TestSweepRemovesWhatWasLeft(t *testing.T) {
	g := grader(t, Options{}, nil)
	if err := g.Sweep(); err != nil {
		t.Error(err)
	}
	if err := errors.Join(os.MkdirAll(g.state+"/old.0/work", 0o755), os.MkdirAll(g.state+"/mine.0", 0o755)); err != nil {
		t.Fatal(err)
	}
	g.copies["mine.0"] = true
	if err := g.Sweep(); err != nil {
		t.Error(err)
	}
	if left, _ := filepath.Glob(g.state + "/*"); len(left) != 1 || filepath.Base(left[0]) != "mine.0" {
		t.Errorf("left: %v", left)
	}
	if err := (*Grader)(nil).Sweep(); err != nil {
		t.Error(err)
	}
}

// Nothing in a workspace is waited for, or leads out of it.
func TestWorkspaceIsReadWithCare(t *testing.T) {
	dir := workspace(t, map[string]string{"locked/a.py": "a", "b.py": "b"})
	if err := errors.Join(syscall.Mkfifo(dir+"/pipe", 0o644), os.Symlink("/etc", dir+"/etc"), os.WriteFile(dir+"/\xff.py", nil, 0o644), os.Chmod(dir+"/locked", 0)); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.Chmod(dir+"/locked", 0o755) })
	g := grader(t, Options{}, nil)
	into := filepath.Join(t.TempDir(), "a.0")
	p, err := g.take(dir, into)
	text, _ := os.ReadFile(filepath.Join(into, leftFolder, "b.py"))
	if err != nil || string(text) != "b" || p.shams < 3 {
		t.Errorf("%q, refused %q, %v", text, p.refused, err)
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	if _, err := (rootFS{root}).Open("pipe"); err == nil { // put in a file's place since it was looked at
		t.Error("a pipe is read, and waited for")
	}
	if _, err := (rootFS{root}).Open("etc/passwd"); err == nil {
		t.Error("a link leads out of it")
	}
}

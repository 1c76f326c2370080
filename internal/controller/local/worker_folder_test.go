package local

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/fulgur-rl/fulgur/internal/controller"
	"github.com/fulgur-rl/fulgur/internal/controller/grade"
	"github.com/fulgur-rl/fulgur/internal/controller/runnertest"
	"github.com/fulgur-rl/fulgur/internal/controller/sandbox"
)

// hostileWorker puts links in the place of its rollout's folder, and of the next one's,
// after it has looked around. $OUT is where the links lead.
const hostileWorker = `while read -r l; do
	id=${l#*rollout_id\":\"}; id=${id%%\"*}; d=${l#*\"dir\":\"}; d=${d%%\"*}
	case $id in
	a) cd "$d/../../.." && ls > "$d/../../seen"; cat */*/input.json > "$d/../../read" 2>&1
		cd "$d/../.."; mv a.0 mine; ln -s "$OUT" a.0; ln -s "$OUT" b.0;;
	b) [ -L "$d/.." ] || echo fresh > "$d/b.txt"; rm -r "$d"; ln -s "$OUT" "$d";;
	c) mkdir "$d/e"; cp seen read "$d/"; echo c > "$d/c.txt"; chmod 0 "$d/e";;
	esac
	printf '{"v":1,"rollout_id":"%s","ok":true,"error":null}\n' "$id"
done`

// A worker writes where its rollouts' folders are made, and so could lead this process
// elsewhere, and to other workers' rollouts.
func TestWorkersLinksLeadNowhere(t *testing.T) {
	for name, box := range map[string]bool{"alone": false, "in a sandbox": true} {
		t.Run(name, func(t *testing.T) {
			outside := t.TempDir()
			theirs := filepath.Join(outside, "work")
			if err := errors.Join(os.MkdirAll(theirs, 0o755), os.WriteFile(filepath.Join(theirs, "secret"), []byte("secret"), 0o644)); err != nil {
				t.Fatal(err)
			}
			o := options(t)
			if box {
				o = boxed(t, o, t.TempDir(), sandbox.Limits{})
			}
			o.Command, o.Env = []string{"/bin/sh", "-c", hostileWorker}, map[string]string{"OUT": outside}
			o.Workers, o.Workspace, o.Input, o.Keep = 1, true, controller.ByFile, controller.KeepAll
			// The grader gives what it finds as its last line's failure.
			o.Grading = &grade.Options{Command: []string{"/bin/sh", "-c", `cd "$FULGUR_WORKSPACE" && cat $(find . -type f | sort) >&2; exit 1`}}
			r := workers(t, o)
			got := map[string]string{}
			for _, id := range []string{"a", "b", "c"} {
				e := runnertest.Execution(id, id)
				runnertest.Start(t, r, e)
				if x := runnertest.Exit(t, r, id); x.Code != 0 || x.Failure != "" {
					t.Fatalf("%s: %+v", id, x)
				}
				g, err := r.Grade(t.Context(), controller.Grading{Key: e.Key, Input: []byte("{}")})
				if err == nil {
					got[id] = strings.Join(g.Flags, " ")
				} else {
					_, got[id], _ = strings.Cut(err.Error(), "standard error:\n")
				}
			}
			for id, text := range got {
				if strings.Contains(text, "secret") {
					t.Errorf("%s is graded for what lies outside: %q", id, text)
				}
			}
			if !strings.HasPrefix(got["c"], "c\n") || box && strings.Count(got["c"], "worker-") != 1 {
				t.Errorf("the last one left, and had seen: %q", got["c"])
			}
			if left, _ := filepath.Glob(outside + "/*"); len(left) != 1 {
				t.Errorf("written outside: %v", left)
			}
			if err := r.Close(); err != nil {
				t.Error(err)
			}
			left, _ := filepath.Glob(filepath.Join(o.State, "attempts", "*"))
			if len(left) != 2 || filepath.Base(left[0]) != "b.0" || filepath.Base(left[1]) != "c.0" {
				t.Errorf("kept: %v", left)
			}
		})
	}
}

// What a killed controller's workers left: what is kept of lost attempts is taken out,
// the rest goes.
func TestAdoptTidiesWorkersFolders(t *testing.T) {
	for name, keep := range map[string]controller.Keep{"kept": controller.KeepFailures, "not kept": controller.KeepNone} {
		t.Run(name, func(t *testing.T) {
			o := workerOptions(t)
			o.Workspace, o.Keep = true, keep
			at := filepath.Join(o.State, "attempts")
			for _, dir := range []string{"worker-1/a.0/work", "worker-1/stash", "b.0/work", "other.0"} {
				if err := os.MkdirAll(filepath.Join(at, dir), 0o755); err != nil {
					t.Fatal(err)
				}
			}
			r := workers(t, o)
			runnertest.Start(t, r, runnertest.Execution("c", ""))
			runnertest.Exit(t, r, "c")
			lost := []controller.Leftover{{Key: runnertest.Execution("a", "").Key}, {Key: runnertest.Execution("b", "").Key}}
			if _, err := r.Adopt(t.Context(), lost); err != nil {
				t.Fatal(err)
			}
			var left []string
			all, _ := os.ReadDir(at)
			for _, d := range all {
				left = append(left, strings.TrimRight(d.Name(), "0123456789"))
			}
			want := "a. b. other. worker-"
			if keep == controller.KeepNone {
				want = "other. worker-"
			}
			if got := strings.Join(left, " "); got != want {
				t.Errorf("left %q, want %q", got, want)
			}
		})
	}
}

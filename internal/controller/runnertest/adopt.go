package runnertest

import (
	"os"
	"slices"
	"testing"

	"github.com/fulgur-rl/fulgur"
	"github.com/fulgur-rl/fulgur/internal/controller"
	"github.com/fulgur-rl/fulgur/internal/controller/plan"
)

func adopts(t *testing.T, v Variant) {
	dir := v.dir(t)
	old := v.New(t, Setup{})
	e := Execution("a", "child "+dir+"/child; beat "+dir+"/pid.beat; pid "+dir+"/pid; hang")
	s := Start(t, old, e)
	v.pid(t, dir+"/pid")
	r := v.Again(t, Setup{}, old)
	keys, err := r.Adopt(t.Context(), []controller.Leftover{{Key: e.Key, Phase: fulgur.PhaseRunning, Handle: s.Handle}, {Key: plan.Key{Rollout: "gone", Attempt: "0"}, Phase: fulgur.PhaseRunning, Handle: "?"}})
	if err != nil {
		t.Fatal(err)
	}
	if v.Lacks.Adopt {
		if len(keys) > 0 {
			t.Errorf("adopted %v", keys)
		}
	} else {
		// What is gone may be adopted too, and is told as ended.
		if !slices.Contains(keys, e.Key) {
			t.Fatalf("adopted %v", keys)
		}
		if again, err := r.Start(t.Context(), e); err != nil || again.Handle != "" && s.Handle != "" && again.Handle != s.Handle {
			t.Errorf("start of what was adopted: %+v, %v", again, err)
		}
		if err := r.Stop(t.Context(), e.Key); err != nil {
			t.Error(err)
		}
		v.exit(t, r, "a")
	}
	v.dead(t, dir+"/pid")
	v.dead(t, dir+"/child")
	if keys, _ := r.List(t.Context()); slices.Contains(keys, e.Key) {
		t.Errorf("list %v", keys)
	}
}

// leadsAgain is a controller that lost its lease and got it back: the runner is the
// same one.
func leadsAgain(t *testing.T, v Variant) {
	r := v.New(t, Setup{})
	dir := v.dir(t)
	e, other := Execution("a", "beat "+dir+"/a.beat; pid "+dir+"/a; hang"), Execution("b", "beat "+dir+"/b.beat; pid "+dir+"/b; hang")
	s := Start(t, r, e)
	v.pid(t, dir+"/a")
	l, leaves := r.(controller.Leaver)
	if leaves {
		l.Leave()
	} else {
		_ = r.Stop(t.Context(), e.Key)
		v.exit(t, r, "a")
	}
	keys, err := r.Adopt(t.Context(), []controller.Leftover{{Key: e.Key, Phase: fulgur.PhaseRunning, Handle: s.Handle}})
	if err != nil || slices.Contains(keys, e.Key) != leaves {
		t.Fatalf("adopted %v, %v", keys, err)
	}
	if !leaves {
		if err := os.Remove(dir + "/a"); err != nil {
			t.Fatal(err)
		}
	}
	if again := Start(t, r, e); leaves && again.Handle != s.Handle && again.Handle != "" && s.Handle != "" {
		t.Errorf("it was started again: %+v, before %+v", again, s)
	}
	v.pid(t, dir+"/a")
	Start(t, r, other)
	v.pid(t, dir+"/b")
	_ = r.Stop(t.Context(), e.Key)
	v.exit(t, r, "a")
	v.dead(t, dir+"/a")
	if err := r.Close(); err != nil { // it has not left again
		t.Error(err)
	}
	v.dead(t, dir+"/b")
}

func adoptsNothing(t *testing.T, v Variant) {
	r := v.New(t, Setup{})
	if keys, err := r.Adopt(t.Context(), nil); err != nil || len(keys) > 0 {
		t.Errorf("adopted %v, %v", keys, err)
	}
	Start(t, r, Execution("a", ""))
	v.exit(t, r, "a")
}

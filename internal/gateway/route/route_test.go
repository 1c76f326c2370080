package route

import (
	"fmt"
	"math"
	"testing"
	"time"
)

var t0 = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

func names(n int) []string {
	out := make([]string, n)
	for i := range out {
		out[i] = fmt.Sprintf("http://10.0.0.%d:8000/v1", i)
	}
	return out
}

// home is where a key goes when nothing else is going on.
func home(key string, list []string) string { return list[New(Options{}).Pick(t0, key, list)] }

func TestRolloutsStayAndSpread(t *testing.T) {
	list := names(8)
	seen := map[string]int{}
	for i := range 8000 {
		key := fmt.Sprintf("rollout-%d", i)
		h := home(key, list)
		seen[h]++
		if again := home(key, list); again != h {
			t.Fatalf("%s is at %s, then at %s", key, h, again)
		}
	}
	for n, c := range seen {
		if c < 850 || c > 1150 {
			t.Errorf("%s has %d of 8000 rollouts, want about 1000", n, c)
		}
	}
	if len(seen) != 8 {
		t.Errorf("%d endpoints of 8 have rollouts", len(seen))
	}
}

// A change of the set moves only those that it concerns.
func TestAChangeMovesOnlyItsOwn(t *testing.T) {
	list := names(8)
	moved := 0
	for i := range 4000 {
		key := fmt.Sprintf("rollout-%d", i)
		before, after := home(key, list), home(key, list[:7])
		if before != list[7] && before != after {
			t.Fatalf("%s moved from %s to %s, though its endpoint stayed", key, before, after)
		}
		if before == list[7] {
			moved++
		}
	}
	if moved < 400 || moved > 600 {
		t.Errorf("%d of 4000 moved, want an eighth", moved)
	}
}

func TestTheOrderOfTheListDoesNotMatter(t *testing.T) {
	a := names(5)
	b := []string{a[3], a[0], a[4], a[2], a[1]}
	for i := range 200 {
		if key := fmt.Sprint(i); home(key, a) != home(key, b) {
			t.Fatalf("%s depends on the order", key)
		}
	}
}

// Many calls of one rollout spill over to others when its own is loaded, and
// nobody holds more than the bound.
func TestBoundedLoad(t *testing.T) {
	tab := New(Options{Load: 1.25})
	list := names(4)
	count := map[int]int{}
	for i := range 400 {
		count[tab.Pick(t0, "hot", list)]++
		for j, c := range count {
			if bound := max(4, int(math.Ceil(1.25*float64(i+1)/4))); c > bound {
				t.Fatalf("after %d calls endpoint %d has %d in flight, at most %d", i+1, j, c, bound)
			}
		}
	}
	if len(count) != 4 {
		t.Errorf("%v", count)
	}
	if tab := New(Options{Load: math.Inf(1)}); true {
		first := tab.Pick(t0, "hot", list)
		for range 400 {
			if tab.Pick(t0, "hot", list) != first {
				t.Fatal("without a bound a rollout stays")
			}
		}
	}
}

func TestEjectionAndReturn(t *testing.T) {
	list := names(3)
	tab := New(Options{Failures: 3, Backoff: time.Second, MaxBackoff: 4 * time.Second})
	now := t0
	own := tab.Pick(now, "k", list)
	tab.Done(now, list[own], Failed)
	call := func(o Outcome) int {
		i := tab.Pick(now, "k", list)
		tab.Done(now, list[i], o)
		return i
	}
	fail := func(want bool) {
		t.Helper()
		i := tab.Pick(now, "k", list)
		if got := tab.Done(now, list[i], Failed); i != own || got != want {
			t.Fatalf("at %s endpoint %d failed and was ejected: %t, want %d and %t", now.Sub(t0), i, got, own, want)
		}
	}
	call(OK)
	fail(false) // a success between: the count starts anew
	fail(false)
	fail(true)
	if tab.Ejected(now) != 1 {
		t.Error("not counted as ejected")
	}
	for wait, steps := time.Second, 0; steps < 4; steps++ {
		now = now.Add(wait - time.Millisecond)
		if call(OK) == own {
			t.Fatalf("back before %s have passed", wait)
		}
		now = now.Add(time.Millisecond)
		// Back on trial: one call at a time, and one failure is enough.
		i, j := tab.Pick(now, "k", list), tab.Pick(now, "k", list)
		if i != own || j == own {
			t.Fatalf("on trial: calls went to %d and %d", i, j)
		}
		tab.Done(now, list[j], OK)
		if !tab.Done(now, list[i], Failed) {
			t.Fatal("a failed trial ejects")
		}
		wait = min(2*wait, 4*time.Second)
	}
	now = now.Add(time.Minute)
	if call(OK) != own || tab.Ejected(now) != 0 {
		t.Error("not back after a success")
	}
	fail(false) // and its history is forgotten
}

// Where all are out calls go to the one that is back soonest.
func TestAllEjected(t *testing.T) {
	list := names(3)
	tab := New(Options{Failures: 1})
	for i, n := range list {
		tab.Done(t0.Add(time.Duration(i)*time.Millisecond), n, Failed)
	}
	if got := tab.Pick(t0.Add(3*time.Millisecond), "k", list); got != 0 {
		t.Errorf("endpoint %d, want the one that is back first", got)
	}
	if got := New(Options{Failures: 1}); got.Pick(t0, "k", list[:1]) != 0 {
		t.Error("a single endpoint")
	}
}

func TestWhatIsGoneIsForgotten(t *testing.T) {
	tab := New(Options{})
	for i := range 10 * maxIdle {
		n := fmt.Sprint(i)
		tab.Pick(t0, "k", []string{n})
		tab.Done(t0, n, OK)
	}
	if len(tab.eps) > maxIdle {
		t.Errorf("%d endpoints are remembered", len(tab.eps))
	}
}

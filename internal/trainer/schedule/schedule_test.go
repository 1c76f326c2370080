package schedule

import (
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// drive runs a schedule to its end, or to a step, and returns what was trained.
func drive(t *testing.T, cfg Config, at Cursor, until int64) (trained []Group, end Cursor) {
	t.Helper()
	s, err := New(cfg, State{Cursor: at})
	if err != nil {
		t.Fatal(err)
	}
	effects := s.Handle(0, Begin{})
	for {
		if _, ok := effects[0].(Finished); ok || s.State().Step == until {
			return trained, s.State().Cursor
		}
		ask := effects[0].(Ask)
		var update []Effect
		for _, g := range ask.Groups {
			if update != nil {
				t.Fatal("a step started before all groups were complete")
			}
			update = s.Handle(0, Complete{Group: g})
			if s.Handle(0, Complete{Group: g}) != nil { // told twice
				t.Fatal("a repeated event had an effect")
			}
		}
		u := update[0].(Update)
		if u.Step != s.State().Step+1 {
			t.Fatalf("step %d after %d", u.Step, s.State().Step)
		}
		trained = append(trained, u.Groups...)
		effects = s.Handle(0, Updated{})
	}
}

func TestEveryRowTrainsOncePerEpoch(t *testing.T) { // AS-07
	cfg := Config{Order: Order{Rows: 13, Seed: 5}, GroupsPerStep: 4, Epochs: 3}
	all, end := drive(t, cfg, Cursor{}, -1)
	if end.Step != 10 { // 39 groups, the last step has 3
		t.Errorf("%d steps", end.Step)
	}
	count := map[Group]int{}
	for _, g := range all {
		count[g]++
	}
	for epoch := range 3 {
		for row := range 13 {
			if count[Group{epoch, row}] != 1 {
				t.Errorf("row %d of epoch %d trained %d times", row, epoch, count[Group{epoch, row}])
			}
		}
	}
	if slices.Equal(cfg.Order.Epoch(0), cfg.Order.Epoch(1)) {
		t.Error("two epochs have one order")
	}
}

func TestResumeAtAnyStepChangesNothing(t *testing.T) {
	cfg := Config{Order: Order{Rows: 13, Seed: 5}, GroupsPerStep: 4, Steps: 11}
	want, _ := drive(t, cfg, Cursor{}, -1)
	for stop := int64(0); stop <= 11; stop++ {
		first, at := drive(t, cfg, Cursor{}, stop)
		second, _ := drive(t, cfg, at, -1)
		if diff := cmp.Diff(want, append(first, second...)); diff != "" {
			t.Errorf("stopped at %d:\n%s", stop, diff)
		}
	}
}

func TestMoreGroupsThanRowsGoOnIntoTheNextEpoch(t *testing.T) {
	all, _ := drive(t, Config{Order: Order{Rows: 3}, GroupsPerStep: 7, Steps: 1}, Cursor{}, -1)
	seen := map[Group]bool{}
	for _, g := range all {
		if seen[g] {
			t.Errorf("%v twice", g)
		}
		seen[g] = true
	}
	if len(all) != 7 {
		t.Errorf("%d groups", len(all))
	}
}

func TestShuffleIsAPermutation(t *testing.T) {
	for n := range 50 {
		p := Shuffle(n, uint64(n))
		slices.Sort(p)
		for i, x := range p {
			if i != x {
				t.Fatalf("n %d: %v", n, p)
			}
		}
	}
}

func TestBadStartIsRefused(t *testing.T) {
	for name, c := range map[string]Config{"no rows": {GroupsPerStep: 1}, "no groups": {Order: Order{Rows: 1}}} {
		if _, err := New(c, State{}); err == nil {
			t.Error(name)
		}
	}
	if _, err := New(Config{Order: Order{Rows: 2}, GroupsPerStep: 1}, State{Cursor: Cursor{Position: 3}}); err == nil {
		t.Error("a position behind the end")
	}
}

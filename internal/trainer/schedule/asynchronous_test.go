package schedule

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"
)

// world runs a schedule with groups that end in a drawn order: slow ones take
// ten times as many turns (case AS-06).
type world struct {
	t        *testing.T
	s        Schedule
	r        *rand.Rand
	running  map[Group]int // turns left
	version  map[Group]int64
	trained  []Group
	ages     []int64
	dropped  []Group
	update   *Update
	finished bool
	peak     int
	turn     int
	step     int64
	reject   func(Group) bool
}

func newWorld(t *testing.T, cfg Config, at State, seed uint64) *world {
	s, err := New(cfg, at)
	if err != nil {
		t.Fatal(err)
	}
	w := &world{t: t, s: s, r: rand.New(rand.NewPCG(seed, 1)), running: map[Group]int{}, version: map[Group]int64{}, step: at.Step,
		reject: func(Group) bool { return false }}
	w.do(s.Handle(0, Begin{}))
	return w
}

func (w *world) at() time.Duration { return time.Duration(w.turn) * time.Second }

func (w *world) do(effects []Effect) {
	for _, e := range effects {
		switch e := e.(type) {
		case Ask:
			for _, g := range e.Groups {
				if _, twice := w.running[g]; twice {
					w.t.Fatalf("%v asked for twice", g)
				}
				w.running[g] = 1 + w.r.IntN(5)
				if g.Row%2 == 0 {
					w.running[g] *= 10
				}
				w.version[g] = w.step
			}
		case Drop:
			w.dropped = append(w.dropped, e.Group)
		case Update:
			if w.update != nil {
				w.t.Fatal("two updates at once")
			}
			w.update = &e
			for _, g := range e.Groups {
				if _, open := w.running[g]; open {
					w.t.Fatalf("%v trains while it runs", g)
				}
				w.trained = append(w.trained, g)
				w.ages = append(w.ages, w.step-w.version[g])
			}
		case Finished:
			w.finished = true
		}
	}
	w.peak = max(w.peak, len(w.running))
}

// tick lets one turn pass; an update takes up to three.
func (w *world) tick() {
	w.turn++
	var done []Group
	for g, left := range w.running {
		if w.running[g] = left - 1; left <= 1 {
			done = append(done, g)
		}
	}
	slices.SortFunc(done, func(a, b Group) int { return a.Epoch*1000 + a.Row - b.Epoch*1000 - b.Row })
	for _, g := range done {
		delete(w.running, g)
		var e Event = Complete{Group: g, Version: w.version[g]}
		if w.reject(g) {
			e = Rejected{Group: g, Version: w.version[g]}
		}
		w.do(w.s.Handle(w.at(), e))
	}
	if w.update != nil && w.r.IntN(3) == 0 {
		w.update = nil
		w.step++
		w.do(w.s.Handle(w.at(), Updated{}))
	}
}

func (w *world) run(until func() bool) {
	for !w.finished && !until() {
		if w.tick(); w.turn > 100000 {
			w.t.Fatalf("stuck after step %d: %d run, state %+v", w.step, len(w.running), w.s.State())
		}
	}
}

func never() bool { return false }

// asyncs are settings that all invariants hold for.
func asyncs() map[string]Config {
	base := Config{Order: Order{Rows: 23, Seed: 5}, GroupsPerStep: 4, GroupSize: 8}
	out := map[string]Config{}
	for _, mode := range []Mode{Collocated, Disaggregated} {
		for _, refill := range []Refill{RefillOnCompletion, RefillOnUpdate} {
			for _, active := range []float64{0, 1, 2, 4} {
				for _, most := range []int64{0, 1, 2, 5} {
					if active == 0 && refill == RefillOnCompletion {
						continue
					}
					c := base
					c.Mode, c.Refill, c.Active, c.MaxStaleness = mode, refill, active, most
					out[fmt.Sprintf("%s, refill on %s, active %g, max %d", mode, refill, active, most)] = c
				}
			}
		}
	}
	return out
}

func TestEveryRowTrainsOncePerEpochWhateverTheOrder(t *testing.T) { // AS-06, AS-07
	for name, cfg := range asyncs() {
		cfg.Epochs = 3
		for seed := range uint64(4) {
			w := newWorld(t, cfg, State{}, seed)
			w.run(never)
			once(t, name, w.trained, 3*23)
			bound := cfg.MaxStaleness
			if bound == 0 {
				bound = DefaultMaxStaleness
			}
			if a := slices.Max(w.ages); a > bound {
				t.Errorf("%s: staleness %d above the bound %d", name, a, bound)
			}
		}
	}
}

func once(t *testing.T, name string, trained []Group, want int) {
	t.Helper()
	count := map[Group]int{}
	for _, g := range trained {
		if count[g]++; count[g] > 1 {
			t.Errorf("%s: %v trained %d times", name, g, count[g])
		}
	}
	if len(count) != want {
		t.Errorf("%s: %d groups trained, want %d", name, len(count), want)
	}
}

func TestKilledAtAnyStepNoGroupIsLostOrTrainedTwice(t *testing.T) { // AS-07
	for name, cfg := range asyncs() {
		cfg.Epochs = 3
		r := rand.New(rand.NewPCG(1, 2))
		var trained []Group
		at := State{} // the checkpoint
		for {
			w := newWorld(t, cfg, at, r.Uint64())
			die := at.Step + 1 + r.Int64N(4)
			w.run(func() bool {
				if st := w.s.State(); st.Step > at.Step && st.Step%2 == 0 && w.update == nil { // a checkpoint every other step
					at = st
					trained = append(trained, w.trained...)
					w.trained = nil
				}
				return w.step >= die
			})
			if w.finished {
				trained = append(trained, w.trained...)
				break
			}
		}
		once(t, name, trained, 3*23)
	}
}

func TestNoMoreGroupsAreAskedForThanTheStepsTrain(t *testing.T) {
	for name, cfg := range asyncs() {
		cfg.Steps = 7
		w := newWorld(t, cfg, State{}, 3)
		w.run(never)
		if w.step != 7 || len(w.trained) != 28 || len(w.running) != 0 {
			t.Errorf("%s: %d steps, %d groups trained, %d left running", name, w.step, len(w.trained), len(w.running))
		}
	}
}

func TestRejectedGroupsAreReplacedUpToTheBound(t *testing.T) { // AL-14
	for _, mode := range []Mode{Synchronous, Collocated, Disaggregated} {
		w := newWorld(t, Config{Mode: mode, Order: Order{Rows: 50}, GroupsPerStep: 4, GroupSize: 8, Epochs: 1, Refills: 2}, State{}, 1)
		w.reject = func(g Group) bool { return g.Row%3 == 0 }
		w.run(never)
		once(t, string(mode), append(w.trained, w.dropped...), 50)
		if n := len(w.dropped); n == 0 || int64(n) > 2*w.step {
			t.Errorf("%s: %d dropped in %d steps", mode, n, w.step)
		}
	}
}

func TestSteeringKeepsTheMeanStalenessUnderItsCap(t *testing.T) {
	for _, limit := range []float64{1, 2, 4} {
		w := newWorld(t, Config{Mode: Collocated, Order: Order{Rows: 1000}, GroupsPerStep: 8, Steps: 300, MeanStaleness: limit}, State{}, 1)
		w.run(never)
		mean := 0.0
		for _, a := range w.ages {
			mean += float64(a) / float64(len(w.ages))
		}
		if mean > limit+1e-9 || mean < 0.9*limit {
			t.Errorf("mean staleness %.2f under a cap of %g", mean, limit)
		}
	}
}

func TestAGroupWithAStragglerIsClosedByTheRule(t *testing.T) { // AS-09
	s, err := New(Config{Mode: Collocated, Order: Order{Rows: 9}, GroupsPerStep: 1, GroupSize: 4, Active: 1, Steps: 1,
		Straggler: Straggler{Done: 0.75, Factor: 3}}, State{})
	if err != nil {
		t.Fatal(err)
	}
	g := s.Handle(0, Begin{})[0].(Ask).Groups[0]
	for i := range 3 {
		if e := s.Handle(time.Duration(10+i)*time.Second, Member{Group: g}); e != nil {
			t.Fatalf("closed too early: %v", e)
		}
	}
	if e := s.Handle(33*time.Second, Clock{}); e != nil {
		t.Fatalf("closed at 3 times the median: %v", e)
	}
	if e := s.Handle(34*time.Second, Clock{}); len(e) != 1 || e[0] != (Close{Group: g}) {
		t.Fatalf("not closed: %v", e)
	}
	if e := s.Handle(40*time.Second, Clock{}); e != nil {
		t.Fatalf("closed twice: %v", e)
	}
}

func TestRowsOfACurriculumSurviveResume(t *testing.T) {
	calls := 0
	cfg := Config{Mode: Collocated, Order: Order{Rows: 6}, GroupsPerStep: 2, Epochs: 1,
		Rows: func(int) []int { calls++; return Shuffle(6, uint64(calls)) }}
	w := newWorld(t, cfg, State{}, 1)
	w.run(func() bool { return w.step == 1 })
	second := newWorld(t, cfg, w.s.State(), 2)
	second.run(never)
	once(t, "resumed", append(w.trained, second.trained...), 6)
	if calls != 1 {
		t.Errorf("the order was made %d times", calls)
	}
}

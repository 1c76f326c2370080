package plan

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/fulgur-rl/fulgur"
)

var t0 = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

func at(s int) time.Time { return t0.Add(time.Duration(s) * time.Second) }

func running(id string, since int, change ...func(*Execution)) Execution {
	e := Execution{Key: Key{fulgur.RolloutID(id), "0"}, Phase: fulgur.PhaseRunning, Since: at(since)}
	for _, f := range change {
		f(&e)
	}
	return e
}

func seen(s, last int, busy bool, held int) func(*Execution) {
	return func(e *Execution) {
		e.Seen = Seen{At: at(s), Busy: busy, Held: time.Duration(held) * time.Second}
		if last >= 0 {
			e.Seen.Last = at(last)
		}
	}
}

// words writes actions as "stop a timeout".
func words(actions []Action) (out []string) {
	for _, a := range actions {
		text := fmt.Sprintf("%s %s %s", a.Kind, a.Key.Rollout, a.Reason)
		if a.Delay > 0 {
			text += a.Delay.String()
		}
		out = append(out, strings.TrimSpace(text))
	}
	return out
}

func TestNext(t *testing.T) {
	limits := Limits{Slots: 4, Starting: 2, Start: 30 * time.Second, Total: 100 * time.Second, Idle: 20 * time.Second}
	phase := func(p fulgur.Phase) func(*Execution) { return func(e *Execution) { e.Phase = p } }
	for name, test := range map[string]struct {
		now    int
		run    []Execution
		queue  []Item
		limits *Limits
		world  func(*World)
		want   []string
		wake   int // seconds; -1: none
	}{
		"nothing to do": {now: 0, wake: -1},
		"as many start as may be starting at once, oldest first": {
			queue: []Item{{ID: "a"}, {ID: "b"}, {ID: "c"}}, want: []string{"start a", "start b"}, wake: -1},
		"validation starts before training": {
			queue: []Item{{ID: "a"}, {ID: "b", Validation: true}, {ID: "c", Validation: true}}, want: []string{"start b", "start c"}, wake: -1},
		"slots bound what runs": {
			run: []Execution{running("a", 0), running("b", 0), running("c", 0)}, queue: []Item{{ID: "d"}, {ID: "e"}}, want: []string{"start d"}, wake: 20},
		"one that is being stopped still holds its slot": {
			run:   []Execution{running("a", 0), running("b", 0), running("c", 0), running("d", 0, func(e *Execution) { e.Stopping = true })},
			queue: []Item{{ID: "e"}}, wake: 20},
		"what waits out a back-off wakes the loop": {
			now: 1, queue: []Item{{ID: "a", NotBefore: at(5)}}, wake: 5},
		"after its back-off it goes first": {
			now: 5, queue: []Item{{ID: "b"}, {ID: "c"}, {ID: "a", NotBefore: at(5)}}, want: []string{"start a", "start b"}, wake: -1},
		"a back-off wakes nobody while all slots are taken": {
			now: 1, run: []Execution{running("a", 0)}, queue: []Item{{ID: "b", NotBefore: at(5)}}, limits: &Limits{Slots: 1}, wake: -1},
		"what is unwanted is stopped": {
			run: []Execution{running("a", 0, func(e *Execution) { e.Unwanted = ReasonEnded })}, want: []string{"stop a ended"}, wake: -1},
		"a clock that ran out is looked at first": {
			now: 100, run: []Execution{running("a", 0, seen(90, 89, false, 0))}, want: []string{"observe a"}, wake: -1},
		"then it stops": {
			now: 100, run: []Execution{running("a", 0, seen(100, 95, false, 0))}, want: []string{"stop a timeout"}, wake: -1},
		"held calls move the total clock": {
			now: 100, run: []Execution{running("a", 0, seen(100, 95, false, 10))}, want: nil, wake: 110},
		"a call in flight is no idleness": {
			now: 30, run: []Execution{running("a", 0, seen(30, 5, true, 0))}, wake: 50},
		"a call that ended lately is none": {
			now: 30, run: []Execution{running("a", 0, seen(30, 25, false, 0))}, wake: 45},
		"no call for long is": {
			now: 30, run: []Execution{running("a", 0, seen(30, 9, false, 0))}, want: []string{"stop a idle"}, wake: -1},
		"no call at all is": {
			now: 20, run: []Execution{running("a", 0, seen(20, -1, false, 0))}, want: []string{"stop a idle"}, wake: -1},
		"a rollout's own timeout goes before the run's": {
			now: 7, run: []Execution{running("a", 0, seen(7, 6, false, 0), func(e *Execution) { e.Timeout = 7 * time.Second })}, want: []string{"stop a timeout"}, wake: -1},
		"a start that takes too long stops": {
			now: 30, run: []Execution{running("a", 0, phase(fulgur.PhaseStarting))}, want: []string{"stop a start_timeout"}, wake: -1},
		"starting has no other clock": {
			now: 25, run: []Execution{running("a", 0, phase(fulgur.PhaseWaiting))}, wake: 30},
		"what waits for room that others have is no start that takes too long": {
			now: 40, run: []Execution{running("a", 0, phase(fulgur.PhaseStarting), func(e *Execution) { e.Waits = true })}, wake: -1},
		"and no start of those that may be at once": {
			run:   []Execution{running("a", 0, phase(fulgur.PhaseStarting), func(e *Execution) { e.Waits = true }), running("b", 0, phase(fulgur.PhaseStarting))},
			queue: []Item{{ID: "c"}, {ID: "d"}}, want: []string{"start c"}, wake: 30},
		"what this machine has no room for waits, and others do not press in": {
			now:   40,
			run:   []Execution{running("a", 0, phase(fulgur.PhaseWaiting), func(e *Execution) { e.Short = true }), running("b", 30, phase(fulgur.PhaseStarting))},
			queue: []Item{{ID: "c"}, {ID: "d"}}, wake: 60},
		"starts keep their pace": {
			queue: []Item{{ID: "a"}, {ID: "b"}}, world: func(w *World) { w.Pace = Pace{PerMinute: 6} }, want: []string{"start a"}, wake: 10},
		"a run without its trainer ends what runs, and starts nothing": {
			run: []Execution{running("a", 0), running("b", 0, func(e *Execution) { e.Stopping = true })}, queue: []Item{{ID: "c"}},
			world: func(w *World) { w.Orphaned = true }, want: []string{"stop a orphaned"}, wake: -1},
		"while starts are closed what runs is looked after, and nothing is started": {
			now: 100, run: []Execution{running("a", 0), running("b", 0, func(e *Execution) { e.Unwanted = ReasonEnded })}, queue: []Item{{ID: "c"}},
			world: func(w *World) { w.Closed = "no room" }, want: []string{"stop b ended", "observe a"}, wake: -1},
		"stops come before looks and starts": {
			now: 100, run: []Execution{running("a", 0), running("b", 0, func(e *Execution) { e.Unwanted = ReasonEnded })}, queue: []Item{{ID: "c"}},
			want: []string{"stop b ended", "observe a", "start c"}, wake: -1},
	} {
		t.Run(name, func(t *testing.T) {
			w := World{Now: at(test.now), Limits: limits, Executions: test.run, Queue: NewQueue()}
			if test.limits != nil {
				w.Limits = *test.limits
			}
			for _, it := range test.queue {
				w.Queue.Add(it)
			}
			if test.world != nil {
				test.world(&w)
			}
			for range 2 { // nothing is remembered: asked again, it says the same
				actions, wake := Next(w)
				if d := cmp.Diff(test.want, words(actions)); d != "" {
					t.Errorf("actions (-want +got):\n%s", d)
				}
				if test.wake < 0 != wake.IsZero() || test.wake >= 0 && !wake.Equal(at(test.wake)) {
					t.Errorf("wake %v, want %d s", wake.Sub(t0), test.wake)
				}
			}
		})
	}
}

func TestQueueKeepsPlacesAndForgets(t *testing.T) {
	q := NewQueue()
	for _, id := range []fulgur.RolloutID{"a", "b", "c"} {
		q.Add(Item{ID: id})
		q.Add(Item{ID: id}) // keeps its place
	}
	q.Remove("a")
	q.Remove("nobody")
	q.Add(Item{ID: "a", NotBefore: at(9)})
	ids := func(now, n int) (out []fulgur.RolloutID) {
		items, _ := q.Peek(at(now), n)
		for _, it := range items {
			out = append(out, it.ID)
		}
		return out
	}
	if d := cmp.Diff([]fulgur.RolloutID{"b", "c"}, ids(0, 9)); d != "" || q.Len() != 3 || len(q.IDs()) != 3 {
		t.Error(d, q.Len())
	}
	if d := cmp.Diff([]fulgur.RolloutID{"a", "b"}, ids(9, 2)); d != "" {
		t.Error(d)
	}
	q.Remove("b")
	q.Add(Item{ID: "b"}) // came back: to the end, once
	if d := cmp.Diff([]fulgur.RolloutID{"a", "c", "b"}, ids(9, 9)); d != "" {
		t.Error(d)
	}
}

func TestJudge(t *testing.T) {
	limits := Limits{Table: Table{Retries: 2}, Backoff: time.Second}
	killed := Exit{Code: -1, Signal: "killed", Tail: "tail"}
	for name, test := range map[string]struct {
		f     Facts
		class fulgur.OutcomeClass
		want  string // reason
		says  string // in the message
		retry bool
		delay time.Duration
	}{
		"went well":                           {Facts{Calls: 3}, fulgur.OutcomeOK, "ok", "", false, 0},
		"went well, calls not known":          {Facts{Calls: -1}, fulgur.OutcomeOK, "ok", "", false, 0},
		"no calls (CL-09)":                    {Facts{}, fulgur.OutcomeOK, "no_calls", "OPENAI_BASE_URL", false, 0},
		"an exit code, with the log":          {Facts{Exit: Exit{Code: 3, Tail: "boom", Log: "x.log"}, Calls: 1}, fulgur.OutcomeAgent, "exit", "code 3\nlast lines of its log (x.log):\nboom", false, 0},
		"a signal":                            {Facts{Exit: killed, Calls: 1}, fulgur.OutcomeAgent, "signal", "signal killed", false, 0},
		"a timeout wins over the kill it had": {Facts{Exit: killed, Stopped: ReasonTimeout, Limit: time.Minute}, fulgur.OutcomeAgent, "timeout", "1m0s", false, 0},
		"a timeout wins over exit code 0":     {Facts{Stopped: ReasonTimeout, Calls: 1}, fulgur.OutcomeAgent, "timeout", "agent.timeout", false, 0},
		"idle":                                {Facts{Exit: killed, Stopped: ReasonIdle, Limit: time.Minute}, fulgur.OutcomeAgent, "idle", "1m0s", false, 0},
		"a start that took too long":          {Facts{Exit: killed, Stopped: ReasonStartTimeout}, fulgur.OutcomeInfrastructure, "start_timeout", "", true, time.Second},
		"shutdown is always gone on with":     {Facts{Exit: killed, Stopped: ReasonShutdown, Before: History{Failures: 9, Lost: 9}}, fulgur.OutcomeInfrastructure, "shutdown", "", true, 0},
		"ended by somebody":                   {Facts{Exit: killed, Stopped: ReasonEnded}, fulgur.OutcomeInfrastructure, "ended", "", false, 0},
		"no resources":                        {Facts{Exit: Exit{Code: -1, Failure: "spawn", Cause: CauseTransient, Message: "m"}}, fulgur.OutcomeInfrastructure, "spawn", "m", true, time.Second},
		"the second retry waits longer":       {Facts{Exit: Exit{Failure: "spawn", Cause: CauseTransient}, Before: History{Failures: 1}}, fulgur.OutcomeInfrastructure, "spawn", "", true, 2 * time.Second},
		"no retry is left":                    {Facts{Exit: Exit{Failure: "spawn", Cause: CauseTransient}, Before: History{Failures: 2}}, fulgur.OutcomeInfrastructure, "spawn", "attempt 3 of 3", false, 0},
		"an input that cannot be given":       {Facts{Exit: Exit{Code: -1, Failure: "input", Cause: CausePermanent, Message: "m"}}, fulgur.OutcomeInfrastructure, "input", "m", false, 0},
		"an agent that broke the protocol":    {Facts{Exit: Exit{Code: -1, Failure: "protocol", Message: "m"}}, fulgur.OutcomeAgent, "protocol", "m", false, 0},
		"the upstream was down":               {Facts{Exit: Exit{Code: 1}, Calls: 1, Upstream: "refused"}, fulgur.OutcomeInfrastructure, "upstream", "refused", true, time.Second},
		"the upstream was down, and it exited with 0 all the same":   {Facts{Calls: 1, Upstream: "refused"}, fulgur.OutcomeInfrastructure, "upstream", "refused", true, time.Second},
		"not even its first call was answered, and it exited with 0": {Facts{Upstream: "refused"}, fulgur.OutcomeInfrastructure, "upstream", "refused", true, time.Second},
		"the gateway was killed under it":                            {Facts{Exit: Exit{Code: 1}, Calls: 1, Restarted: true}, fulgur.OutcomeInfrastructure, "upstream", "started again", true, time.Second},
		"its last call did not fit (GW-23)":                          {Facts{Exit: Exit{Code: 1}, Calls: 6, Overflow: "too long"}, fulgur.OutcomeAgent, "context_overflow", "too long", false, 0},
		"its last call did not fit, and it exited with 0":            {Facts{Calls: 6, Overflow: "too long"}, fulgur.OutcomeAgent, "context_overflow", "too long", false, 0},
		"it survived the gateway's death":                            {Facts{Calls: 3, Restarted: true}, fulgur.OutcomeOK, "ok", "", false, 0},
		"it used up its memory":                                      {Facts{Exit: Failed(ReasonMemory, "m"), Calls: 1}, fulgur.OutcomeAgent, "memory", "m", false, 0},
		"it used up its memory before its first call":                {Facts{Exit: Failed(ReasonMemory, "m")}, fulgur.OutcomeAgent, "memory", "m", false, 0},
		"it used up its memory when its call had failed":             {Facts{Exit: Failed(ReasonMemory, "m"), Calls: 1, Upstream: "refused", Restarted: true}, fulgur.OutcomeAgent, "memory", "m", false, 0},
		"it printed what a limit leaves when its call had failed":    {Facts{Exit: Exit{Code: -1, Failure: ReasonProcesses, Guess: true}, Calls: 1, Upstream: "refused"}, fulgur.OutcomeInfrastructure, "upstream", "refused", true, time.Second},
		"it filled the disk that its call was to be recorded on":     {Facts{Exit: Exit{Code: 3, Filled: "m"}, Calls: 1, Upstream: "no space"}, fulgur.OutcomeAgent, "disk", "m", false, 0},
		"it had much on a full disk, and its calls went well":        {Facts{Exit: Exit{Filled: "m"}, Calls: 1}, fulgur.OutcomeOK, "ok", "", false, 0},
		"it printed what a limit leaves":                             {Facts{Exit: Exit{Code: -1, Failure: ReasonProcesses, Guess: true, Message: "m"}, Calls: 1}, fulgur.OutcomeAgent, "processes", "m", false, 0},
		"a node that was lost":                                       {Facts{Exit: Failed(ReasonNode, "m"), Calls: 7}, fulgur.OutcomeInfrastructure, "node", "m", true, time.Second},
		"evicted before its first call":                              {Facts{Exit: Failed(ReasonEvicted, "m")}, fulgur.OutcomeInfrastructure, "evicted", "m", true, time.Second},
		"evicted when it had sampled":                                {Facts{Exit: Failed(ReasonEvicted, "m"), Calls: 1}, fulgur.OutcomeAgent, "evicted", "m", false, 0},
		"evicted in its first call":                                  {Facts{Exit: Failed(ReasonEvicted, "m"), Open: 1}, fulgur.OutcomeAgent, "evicted", "m", false, 0},
		"evicted, and nobody knows whether it had sampled":           {Facts{Exit: Failed(ReasonEvicted, "m"), Calls: -1}, fulgur.OutcomeAgent, "evicted", "m", false, 0},
		"an image that is not there":                                 {Facts{Exit: Failed(ReasonImage, "m")}, fulgur.OutcomeInfrastructure, "image", "m", false, 0},
		"a word that nobody knows, before its first call":            {Facts{Exit: Failed("moon", "m")}, fulgur.OutcomeInfrastructure, "moon", "m", true, time.Second},
		"pending too long, with the reason":                          {Facts{Exit: Exit{Code: -1, Message: "0/3 nodes"}, Stopped: ReasonStartTimeout}, fulgur.OutcomeInfrastructure, "start_timeout", "0/3 nodes", true, time.Second},
		"a reason with retries of its own":                           {Facts{Exit: Failed(ReasonQuota, "m"), Before: History{Failures: 4}}, fulgur.OutcomeInfrastructure, "quota", "m", true, 16 * time.Second},
		"a reason that is never retried":                             {Facts{Exit: Failed(ReasonRuntime, "m")}, fulgur.OutcomeInfrastructure, "runtime", "attempt 1 of 1", false, 0},
		"the upstream is still down":                                 {Facts{Calls: 1, Upstream: "refused", Before: History{Failures: 2}}, fulgur.OutcomeInfrastructure, "upstream", "no retry is left", false, 0},
	} {
		t.Run(name, func(t *testing.T) {
			test.f.Limits = limits
			test.f.Limits.Table.Reasons = map[string]Rule{ReasonQuota: {Retries: new(9)}, ReasonRuntime: {Retries: new(0)}}
			v := Judge(test.f)
			if v.Outcome.Class != test.class || v.Outcome.Reason != test.want || !strings.Contains(v.Outcome.Message, test.says) || v.Retry != test.retry || v.Delay != test.delay {
				t.Errorf("%+v", v)
			}
		})
	}
}

func TestTable(t *testing.T) {
	minus, five := -1.0, 5
	table := Table{Retries: 2, Agent: fulgur.Follow{Value: new(float64)}, Reasons: map[string]Rule{
		ReasonTimeout: {Then: &fulgur.Follow{Value: &minus}}, ReasonNode: {Retries: &five}, ReasonNoCalls: {Then: &fulgur.Follow{Mask: true}}, "moon": {},
	}}
	got := map[string]string{}
	for _, r := range table.Rows(3) {
		if r.Means == "" || got[r.Name] != "" {
			t.Errorf("%+v", r)
		}
		got[r.Name] = r.Again + "; " + r.Then
	}
	for reason, want := range map[string]string{
		ReasonOK: "never; trains on its grade", ReasonExit: "never; trains with reward 0", ReasonTimeout: "never; trains with reward -1", ReasonNoCalls: "never; is masked: neither trains nor votes",
		ReasonNode: "up to 5; is masked: neither trains nor votes", ReasonImage: "never; is masked: neither trains nor votes", ReasonLost: "up to 3; is masked: neither trains nor votes",
		ReasonEvicted: "up to 2 before its first call; is masked: neither trains nor votes; after a call: trains with reward 0", "moon": "up to 2 before its first call; is masked: neither trains nor votes; after a call: trains with reward 0",
	} {
		if got[reason] != want {
			t.Errorf("%s: %s, want %s", reason, got[reason], want)
		}
	}
}

// What an agent can bring about gives no second try, and is worth what failing is.
func TestWhatAgentsBringAboutIsFailing(t *testing.T) {
	fail := fulgur.Follow{Value: new(float64)}
	for _, r := range Reasons() {
		if !r.Steered() || r.Class == fulgur.OutcomeOK {
			continue
		}
		f := Facts{Exit: Failed(r.Name, "m"), Calls: 1, Limits: Limits{Table: Table{Retries: 9, Agent: fail}}}
		if r.Name == ReasonTimeout || r.Name == ReasonIdle {
			f.Exit, f.Stopped = Exit{Code: -1, Signal: "killed"}, r.Name
		}
		v := Judge(f)
		if v.Retry || f.Limits.Table.Follow(v.Outcome.Class, v.Outcome.Reason) != fail {
			t.Errorf("%s: %+v", r.Name, v)
		}
	}
}

func TestRecover(t *testing.T) {
	ended := func(reason string) fulgur.Attempt {
		return fulgur.Attempt{Phase: fulgur.PhaseEnded, Outcome: &fulgur.Outcome{Class: fulgur.OutcomeInfrastructure, Reason: reason}}
	}
	open := func(id string, p fulgur.Phase) fulgur.Attempt {
		return fulgur.Attempt{ID: fulgur.AttemptID(id), Phase: p}
	}
	for name, test := range map[string]struct {
		attempts []fulgur.Attempt
		adopted  bool
		want     []string
		retry    bool
	}{
		"no attempt of ours":                  {},
		"a lost one is told and tried again":  {[]fulgur.Attempt{open("0", fulgur.PhaseRunning)}, false, []string{"report r", "enqueue r"}, true},
		"one that still runs is adopted":      {[]fulgur.Attempt{open("0", fulgur.PhaseRunning)}, true, []string{"adopt r"}, false},
		"one that never started goes on":      {[]fulgur.Attempt{open("0", fulgur.PhaseWaiting)}, false, []string{"enqueue r"}, false},
		"one whose retry was told goes on":    {[]fulgur.Attempt{ended("spawn")}, false, []string{"enqueue r"}, false},
		"what is lost again waits":            {[]fulgur.Attempt{ended("lost"), open("1", fulgur.PhaseRunning)}, false, []string{"report r", "enqueue r 2s"}, true},
		"also for the next controller":        {[]fulgur.Attempt{ended("lost"), ended("lost")}, false, []string{"enqueue r 2s"}, false},
		"lost too often ends":                 {[]fulgur.Attempt{ended("lost"), ended("lost"), open("2", fulgur.PhaseRunning)}, false, []string{"report r"}, false},
		"other failures are not counted here": {[]fulgur.Attempt{ended("spawn"), ended("shutdown"), open("2", fulgur.PhaseStarting)}, false, []string{"report r", "enqueue r"}, true},
	} {
		t.Run(name, func(t *testing.T) {
			l := Left{Rollout: fulgur.Rollout{RolloutSpec: fulgur.RolloutSpec{ID: "r"}}, Attempts: test.attempts}
			adopted := map[Key]bool{}
			if test.adopted {
				adopted[Key{"r", "0"}] = true
			}
			got := Recover([]Left{l}, adopted, Limits{Lost: 2, Table: Table{Retries: 2}, Backoff: time.Second})
			if d := cmp.Diff(test.want, words(got)); d != "" {
				t.Error(d)
			}
			if len(got) > 0 && got[0].Kind == Report && (got[0].Retry != test.retry || got[0].Outcome.Reason != ReasonLost) {
				t.Errorf("%+v", got[0])
			}
		})
	}
}

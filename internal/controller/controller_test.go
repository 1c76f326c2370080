package controller_test

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/fulgur-rl/fulgur"
	"github.com/fulgur-rl/fulgur/internal/controller"
	"github.com/fulgur-rl/fulgur/internal/controller/local"
	"github.com/fulgur-rl/fulgur/internal/controller/plan"
	"github.com/fulgur-rl/fulgur/internal/controller/runnertest"
	"github.com/fulgur-rl/fulgur/internal/store"
	"github.com/fulgur-rl/fulgur/internal/store/sqlite"
)

func TestMain(m *testing.M) {
	runnertest.Main()
	goleak.VerifyTestMain(m)
}

const run fulgur.RunID = "calc"

// house is a store, a model server that records calls, and a controller.
type house struct {
	t     *testing.T
	store *store.Store
	model *model
	ctrl  *controller.Controller
	stop  func() // stops the controller and waits for it
}

type setup struct {
	limits  plan.Limits
	local   local.Options
	holder  string
	wrap    func(*store.Store) controller.Store
	workers int

	orphaned time.Duration
}

func open(t *testing.T) *house {
	t.Helper()
	s, err := store.Open(t.Context(), sqlite.New(filepath.Join(t.TempDir(), "store.db"), sqlite.Options{}), store.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	if err := s.PutRun(t.Context(), fulgur.Run{ID: run, Model: "m"}); err != nil {
		t.Fatal(err)
	}
	m := &model{store: s, acts: map[plan.Key]*fulgur.Activity{}, status: http.StatusOK}
	m.server = httptest.NewServer(m)
	t.Cleanup(m.server.Close)
	return &house{t: t, store: s, model: m}
}

func (h *house) start(s setup) *house {
	h.t.Helper()
	s.limits.Slots = cmp.Or(s.limits.Slots, 4)
	if s.limits.Backoff == 0 {
		s.limits.Backoff = time.Millisecond
	}
	if s.local.Command == nil {
		s.local.Command = []string{os.Args[0]}
		s.local.Env = map[string]string{runnertest.AgentEnv: "process", "DO": "input.do"}
		if s.workers > 0 {
			s.local.Env[runnertest.AgentEnv], s.local.Workers = "worker", s.workers
		}
	}
	s.local.Grace = 200 * time.Millisecond
	var r controller.Runner
	var err error
	if s.workers > 0 {
		r, err = local.NewWorkers(s.local)
	} else {
		r, err = local.New(s.local)
	}
	if err != nil {
		h.t.Fatal(err)
	}
	var st controller.Store = h.store
	if s.wrap != nil {
		st = s.wrap(h.store)
	}
	h.ctrl, err = controller.New(controller.Options{Run: run, AgentURL: h.model.server.URL, Model: "m", Holder: s.holder, Limits: s.limits, LeaseTTL: 500 * time.Millisecond, Orphaned: s.orphaned}, st, h.model, r)
	if err != nil {
		h.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func(c *controller.Controller) { done <- c.Run(ctx) }(h.ctrl)
	h.stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			h.t.Error("run:", err)
		}
		if err := r.Close(); err != nil {
			h.t.Error("close:", err)
		}
	})
	h.t.Cleanup(h.stop)
	return h
}

// create makes rollouts that do what they are told: id → do.
func (h *house) create(change func(*fulgur.RolloutSpec), dos ...string) (ids []fulgur.RolloutID) {
	h.t.Helper()
	var specs []fulgur.RolloutSpec
	for i, do := range dos {
		input, _ := json.Marshal(map[string]string{"do": do, "answer": "42"})
		s := fulgur.RolloutSpec{ID: fulgur.RolloutID(fmt.Sprintf("r-%d", i)), Run: run, Input: input, IsTrain: true, Withhold: []string{"input.answer"}}
		if change != nil {
			change(&s)
		}
		specs = append(specs, s)
		ids = append(ids, s.ID)
	}
	if _, err := h.store.CreateRollouts(h.t.Context(), specs); err != nil {
		h.t.Fatal(err)
	}
	return ids
}

// ended waits until a rollout has ended.
func (h *house) ended(id fulgur.RolloutID) (r fulgur.Rollout) {
	h.t.Helper()
	runnertest.Until(h.t, string(id)+" has ended", func() bool {
		var err error
		if r, err = h.store.Rollout(h.t.Context(), id); err != nil {
			h.t.Fatal(err)
		}
		return r.State.Terminal()
	})
	return r
}

func (h *house) attempts(id fulgur.RolloutID) []fulgur.Attempt {
	h.t.Helper()
	a, err := h.store.Attempts(h.t.Context(), id)
	if err != nil {
		h.t.Fatal(err)
	}
	return a
}

// model answers calls and records them, as the gateway does; it checks the
// credential against the store.
type model struct {
	store  *store.Store
	server *httptest.Server

	mu     sync.Mutex
	acts   map[plan.Key]*fulgur.Activity
	status int
	held   time.Duration // added to what every attempt reports

	forgets bool          // as a gateway that was restarted
	up      time.Duration // what it says of itself
}

func (m *model) Activity(_ context.Context, id fulgur.RolloutID, at fulgur.AttemptID) (fulgur.Activity, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	a := fulgur.Activity{}
	if p := m.acts[plan.Key{Rollout: id, Attempt: at}]; p != nil && !m.forgets {
		a = *p
	}
	a.Held += m.held
	a.Up = m.up
	return a, nil
}

func (m *model) Activities(ctx context.Context, keys []fulgur.AttemptKey) ([]fulgur.Activity, error) {
	out := make([]fulgur.Activity, len(keys))
	for i, k := range keys {
		out[i], _ = m.Activity(ctx, k.Rollout, k.Attempt)
	}
	return out, nil
}

func (m *model) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	who, err := m.store.Identify(req.Context(), strings.TrimPrefix(req.Header.Get("Authorization"), "Bearer "))
	part := strings.Split(req.URL.Path, "/") // "", proxy, rollout, ID, attempt, A, mode, M, openai, v1, …
	if err != nil || len(part) < 10 || part[3] != string(who.Rollout) || part[5] != string(who.Attempt) || who.Ended {
		http.Error(w, "no", http.StatusForbidden)
		return
	}
	key := plan.Key{Rollout: who.Rollout, Attempt: who.Attempt}
	m.mu.Lock()
	if m.acts[key] == nil {
		m.acts[key] = &fulgur.Activity{}
	}
	a := m.acts[key]
	c := fulgur.Call{ID: fulgur.CallID(fmt.Sprintf("%s.%s.%d", key.Rollout, key.Attempt, a.Calls)), Run: run, Rollout: key.Rollout, Attempt: key.Attempt,
		Index: a.Calls, Mode: fulgur.Mode(part[7]), Model: "m", HTTPStatus: m.status, Fate: fulgur.FateDelivered, StartedAt: time.Now()}
	if m.status != http.StatusOK {
		c.Error = "connection refused"
		a.Upstream = c.Error
	}
	a.Calls++
	a.LastEnd = time.Now()
	m.mu.Unlock()
	if err := m.store.AppendCall(req.Context(), &c); err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.WriteHeader(c.HTTPStatus)
}

func TestAgentRunsAndEnds(t *testing.T) {
	for name, workers := range map[string]int{"as a process": 0, "as a worker": 2} {
		t.Run(name, func(t *testing.T) {
			h := open(t).start(setup{workers: workers})
			ids := h.create(nil, "call; call", "call; exit 3", "say a; crash", "")
			for i, want := range []fulgur.Outcome{
				{Class: fulgur.OutcomeOK, Reason: "ok", Calls: 2},
				{Class: fulgur.OutcomeAgent, Reason: "exit", Calls: 1},
				{Class: fulgur.OutcomeAgent, Reason: "signal"},
				{Class: fulgur.OutcomeOK, Reason: "no_calls"}, // CL-09
			} {
				r := h.ended(ids[i])
				if o := r.Outcome; o.Class != want.Class || o.Reason != want.Reason || o.Calls != want.Calls || (o.Message == "") != (want.Reason == "ok") {
					t.Errorf("rollout %d: outcome %+v", i, *o)
				}
				if (r.State == fulgur.Succeeded) != (want.Class == fulgur.OutcomeOK) {
					t.Errorf("rollout %d is %s", i, r.State)
				}
			}
			a := h.attempts(ids[0])
			if len(a) != 1 || a[0].Runner != "local" || a[0].Handle == "" || a[0].Holder == "" || a[0].StartedAt == nil || a[0].EndedAt == nil {
				t.Errorf("attempt %+v", a)
			}
			runnertest.Until(t, "all are counted", func() bool { return len(h.ctrl.Stats().Outcomes) == 4 })
			if s := h.ctrl.Stats(); s.Started != 4 || s.Running+s.Starting+s.Queued != 0 || s.Outcomes["ok/no_calls"] != 1 {
				t.Errorf("stats %+v", s)
			}
		})
	}
}

func TestWithheldAnswerNeverReachesTheAgent(t *testing.T) {
	o := local.Options{Command: []string{os.Args[0]}, State: t.TempDir(), Input: controller.ByFile, Logs: controller.KeepAll,
		Env: map[string]string{runnertest.AgentEnv: "process", "DO": "input.do", "ALL": "input"}}
	h := open(t).start(setup{local: o})
	id := h.create(nil, "env ALL; file FULGUR_INPUT_FILE; exit 1")[0]
	r := h.ended(id)
	if !strings.Contains(r.Outcome.Message, "file {") || strings.Contains(r.Outcome.Message, "answer") {
		t.Errorf("message %s", r.Outcome.Message)
	}
	o.Env = map[string]string{"A": "input.answer"}
	h.stop()
	h.start(setup{local: o})
	id = h.create(func(s *fulgur.RolloutSpec) { s.ID = "asks" }, "")[0]
	if r := h.ended(id); r.Outcome.Class != fulgur.OutcomeInfrastructure || r.Outcome.Reason != "input" || !strings.Contains(r.Outcome.Message, "withheld") {
		t.Errorf("outcome %+v", *r.Outcome)
	}
}

// flaky refuses the first reports of an end.
type flaky struct {
	*store.Store
	mu   sync.Mutex
	left int
}

func (f *flaky) ReportAttempts(ctx context.Context, rs []fulgur.Report) error {
	f.mu.Lock()
	refuse := f.left > 0
	if refuse {
		f.left--
	}
	f.mu.Unlock()
	if refuse {
		return fulgur.E(fulgur.KindUnavailable, "report", "HTTP 500", nil)
	}
	return f.Store.ReportAttempts(ctx, rs)
}

// picky takes no report of several.
type picky struct{ *store.Store }

func (picky) ReportAttempts(context.Context, []fulgur.Report) error {
	return fulgur.E(fulgur.KindNotFound, "report", "one of them was deleted", nil)
}

func TestOneRefusedReportHarmsNoOther(t *testing.T) {
	h := open(t).start(setup{wrap: func(s *store.Store) controller.Store { return picky{s} }})
	for _, id := range h.create(nil, "call", "call", "call; exit 3") {
		h.ended(id)
	}
}

func TestAnAttemptThatCalledIsNotStartedAgain(t *testing.T) {
	h := open(t)
	ids := h.create(nil, "call", "call")
	for _, id := range ids {
		if _, err := h.store.OpenAttempt(t.Context(), id); err != nil {
			t.Fatal(err)
		}
	}
	// The controller died before it told that the first one runs.
	if err := h.store.AppendCall(t.Context(), &fulgur.Call{ID: "c", Rollout: ids[0], Attempt: "0"}); err != nil {
		t.Fatal(err)
	}
	h.start(setup{limits: plan.Limits{Lost: 2}})
	if r := h.ended(ids[0]); r.LastAttempt != "1" || h.attempts(ids[0])[0].Outcome.Reason != plan.ReasonLost {
		t.Errorf("%+v", r)
	}
	if r := h.ended(ids[1]); r.LastAttempt != "0" {
		t.Errorf("one that never started: %+v", r)
	}
}

func TestRolloutThatGoesTakesItsProcesses_CL02(t *testing.T) {
	for name, end := range map[string]func(*house, fulgur.RolloutID) error{
		"deleted": func(h *house, id fulgur.RolloutID) error { return h.store.DeleteRollout(h.t.Context(), id) },
		"ended": func(h *house, id fulgur.RolloutID) error {
			_, err := h.store.EndRollout(h.t.Context(), id, fulgur.Outcome{Class: fulgur.OutcomeInfrastructure, Reason: "over"})
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			h := open(t).start(setup{limits: plan.Limits{Slots: 1}})
			file := filepath.Join(t.TempDir(), "pid")
			id := h.create(nil, "pid "+file+"; hang", "call")
			pid := runnertest.Pid(t, file)
			if err := end(h, id[0]); err != nil {
				t.Fatal(err)
			}
			runnertest.Until(t, "the agent is dead", func() bool { return runnertest.Dead(pid) })
			if r := h.ended(id[1]); r.State != fulgur.Succeeded { // it got the slot
				t.Errorf("the next one: %+v", r.Outcome)
			}
		})
	}
}

func TestShortAgentsKeepThePoolFull_CL05(t *testing.T) {
	h := open(t).start(setup{limits: plan.Limits{Slots: 8}, local: local.Options{Command: []string{"sleep", "0.1"}}})
	begin := time.Now()
	ids := h.create(nil, make([]string, 80)...)
	for _, id := range ids {
		h.ended(id)
	}
	if took := time.Since(begin); took > 5*time.Second {
		t.Errorf("80 agents of 100 ms through 8 slots took %s, 1 s at best", took)
	}
}

func TestMoreThanAHundredAtOnce_CL06(t *testing.T) {
	h := open(t).start(setup{limits: plan.Limits{Slots: 120}, local: local.Options{Command: []string{"sleep", "60"}}})
	h.create(nil, make([]string, 200)...)
	runnertest.Until(t, "120 run", func() bool { s := h.ctrl.Stats(); return s.Running == 120 && s.Queued == 80 })
}

func TestLargeInputIsRefusedBeforeTheStart_CL07(t *testing.T) {
	h := open(t).start(setup{limits: plan.Limits{Table: plan.Table{Retries: 2}}})
	id := h.create(nil, strings.Repeat("x", 150_000))[0]
	r := h.ended(id)
	if o := r.Outcome; o.Class != fulgur.OutcomeInfrastructure || o.Reason != "input" || !strings.Contains(o.Message, "DO would hold 150000 bytes") || len(h.attempts(id)) != 1 {
		t.Errorf("outcome %+v", *o)
	}
}

func TestUpstreamThatIsDownGivesNewAttempts(t *testing.T) {
	for _, forgets := range []bool{false, true} {
		h := open(t)
		h.model.status, h.model.forgets = http.StatusBadGateway, forgets
		h.start(setup{limits: plan.Limits{Table: plan.Table{Retries: 2}}})
		// The second one swallows it and exits with 0.
		for _, id := range h.create(nil, "call", "try") {
			o := h.ended(id).Outcome
			if o.Class != fulgur.OutcomeInfrastructure || o.Reason != "upstream" || !strings.Contains(o.Message, "no retry is left") {
				t.Errorf("outcome %+v", *o)
			}
			if a := h.attempts(id); len(a) != 3 {
				t.Errorf("%d attempts, want 3", len(a))
			}
		}
	}
}

// A gateway that was killed under an agent cut off a call that is on no record:
// the agent's failure is not its own.
func TestGatewayKilledUnderAnAgent(t *testing.T) {
	for up, want := range map[time.Duration]fulgur.OutcomeClass{time.Nanosecond: fulgur.OutcomeInfrastructure, time.Hour: fulgur.OutcomeAgent} {
		h := open(t).start(setup{})
		h.model.mu.Lock()
		h.model.up = up
		h.model.mu.Unlock()
		ids := h.create(nil, "call; exit 3", "call")
		if r := h.ended(ids[0]); r.Outcome.Class != want {
			t.Errorf("up for %s: %+v", up, *r.Outcome)
		}
		if r := h.ended(ids[1]); r.Outcome.Class != fulgur.OutcomeOK {
			t.Errorf("up for %s, one that ended well: %+v", up, *r.Outcome)
		}
	}
}

func TestStopAndStartGoesOn(t *testing.T) {
	h := open(t).start(setup{})
	file := filepath.Join(t.TempDir(), "pid")
	id := h.create(nil, "pid "+file+"; call; sleep 300")[0]
	pid := runnertest.Pid(t, file)
	h.stop()
	if !runnertest.Dead(pid) {
		t.Error("the agent outlives its controller")
	}
	r, _ := h.store.Rollout(t.Context(), id)
	if a := h.attempts(id); r.State != fulgur.Running || len(a) != 1 || a[0].Outcome == nil || a[0].Outcome.Reason != "shutdown" {
		t.Fatalf("rollout is %s, attempts %+v", r.State, a)
	}
	h.start(setup{})
	if r := h.ended(id); r.State != fulgur.Succeeded || r.LastAttempt != "1" {
		t.Errorf("rollout %+v", r)
	}
}

func TestOneControllerLeads(t *testing.T) {
	h := open(t).start(setup{holder: "first"})
	first := h.stop
	ids := h.create(nil, "call")
	h.ended(ids[0])
	h.start(setup{holder: "second"})
	id := h.create(func(s *fulgur.RolloutSpec) { s.ID = "next" }, "call")[0]
	h.ended(id)
	if a := h.attempts(id); a[0].Holder != "first" {
		t.Errorf("run by %s while the first leads", a[0].Holder)
	}
	first()
	id = h.create(func(s *fulgur.RolloutSpec) { s.ID = "last" }, "call")[0]
	h.ended(id)
	if a := h.attempts(id); a[0].Holder != "second" {
		t.Errorf("run by %s after the first has left", a[0].Holder)
	}
}

func TestV1EnvMapOfTheRollout(t *testing.T) {
	h := open(t).start(setup{local: local.Options{Command: []string{os.Args[0]}, Env: map[string]string{"DO": "exit 9"}}})
	id := h.create(func(s *fulgur.RolloutSpec) {
		s.Config = json.RawMessage(`{"local":{"env_map":{"DO":"input.do","` + runnertest.AgentEnv + `":"process"}}}`)
	}, "call; exit 4")[0]
	if o := h.ended(id).Outcome; o.ExitCode == nil || *o.ExitCode != 4 {
		t.Errorf("outcome %+v", *o)
	}
}

func TestNewRefuses(t *testing.T) {
	for name, o := range map[string]controller.Options{
		"no address": {Run: run, Limits: plan.Limits{Slots: 1}},
		"no slots":   {Run: run, AgentURL: "http://127.0.0.1:1"},
		"no run":     {AgentURL: "http://127.0.0.1:1", Limits: plan.Limits{Slots: 1}},
	} {
		t.Run(name, func(t *testing.T) {
			if _, err := controller.New(o, nil, nil, nil); fulgur.KindOf(err) != fulgur.KindInvalid {
				t.Errorf("error %v", err)
			}
		})
	}
}

package controller_test

import (
	"context"
	"errors"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/fulgur-rl/fulgur"
	"github.com/fulgur-rl/fulgur/internal/controller"
	"github.com/fulgur-rl/fulgur/internal/controller/local"
	"github.com/fulgur-rl/fulgur/internal/controller/plan"
	"github.com/fulgur-rl/fulgur/internal/controller/runnertest"
)

// grading is a runner whose grader says what the test wants, for each attempt.
type grading struct {
	controller.Runner
	says []error
	// meanwhile happens while it grades, if it is not nil.
	meanwhile func()
	graded    []plan.Key
}

func (g *grading) Grades() bool { return true }
func (g *grading) Grade(_ context.Context, x controller.Grading) (controller.Grade, error) {
	g.graded = append(g.graded, x.Key) // one execution at a time
	if g.meanwhile != nil {
		g.meanwhile()
	}
	if n := len(g.graded); n <= len(g.says) {
		return controller.Grade{}, g.says[n-1]
	}
	return controller.Grade{Reward: 0.5}, nil
}

// What keeps a program from grading is the grader's own failure, which another
// attempt would not mend (and an agent could bring about), or the machine's.
func TestWhoseFaultItIsThatNothingIsGraded(t *testing.T) {
	fixed := func(v float64) fulgur.Follow { return fulgur.Follow{Value: &v} }
	then := func(reason string, f fulgur.Follow) map[string]plan.Rule {
		return map[string]plan.Rule{reason: {Then: &f}}
	}
	for name, test := range map[string]struct {
		do       string
		status   int
		says     []error
		table    plan.Table
		state    fulgur.RolloutState
		reason   string
		attempts int
		graded   int
	}{
		"it is graded":                {"call", 200, nil, plan.Table{}, fulgur.Succeeded, plan.ReasonOK, 1, 1},
		"the grader fails":            {"call", 200, []error{errors.New("no number")}, plan.Table{}, fulgur.Failed, plan.ReasonGrader, 1, 1},
		"the disk is full":            {"call", 200, []error{fulgur.E(fulgur.KindExhausted, "", "no disk", nil)}, plan.Table{}, fulgur.Succeeded, plan.ReasonOK, 2, 2},
		"the model server had failed": {"call", 500, nil, plan.Table{}, fulgur.Failed, plan.ReasonUpstream, 2, 0},

		"a failure that is graded":                    {"call; exit 3", 200, nil, plan.Table{}, fulgur.Failed, plan.ReasonExit, 1, 1},
		"a failure of a fixed reward":                 {"call; exit 3", 200, nil, plan.Table{Agent: fixed(0)}, fulgur.Failed, plan.ReasonExit, 1, 0},
		"a failure that alone is graded":              {"call; exit 3", 200, nil, plan.Table{Agent: fixed(0), Reasons: then(plan.ReasonExit, fulgur.Follow{})}, fulgur.Failed, plan.ReasonExit, 1, 1},
		"a failure beside one that is graded":         {"call; crash", 200, nil, plan.Table{Agent: fixed(0), Reasons: then(plan.ReasonExit, fulgur.Follow{})}, fulgur.Failed, plan.ReasonSignal, 1, 0},
		"a failure that is masked":                    {"call; exit 3", 200, nil, plan.Table{Reasons: then(plan.ReasonExit, fulgur.Follow{Mask: true})}, fulgur.Failed, plan.ReasonExit, 1, 0},
		"a timeout that is graded":                    {"call; hang", 200, nil, plan.Table{}, fulgur.Failed, plan.ReasonTimeout, 1, 1},
		"a failure after the model server had failed": {"try; exit 3", 500, nil, plan.Table{}, fulgur.Failed, plan.ReasonUpstream, 2, 0},
		"a failure that left nothing":                 {"call; exit 3", 200, []error{controller.ErrNothingLeft}, plan.Table{}, fulgur.Failed, plan.ReasonExit, 1, 1},
		"a timeout whose grader fails":                {"call; hang", 200, []error{errors.New("no number")}, plan.Table{}, fulgur.Failed, plan.ReasonGrader, 1, 1},
		"a failure, and the disk is full":             {"call; exit 3", 200, []error{fulgur.E(fulgur.KindExhausted, "", "no disk", nil)}, plan.Table{}, fulgur.Failed, plan.ReasonExit, 2, 2},
	} {
		t.Run(name, func(t *testing.T) {
			h := open(t)
			h.model.status = test.status
			l, err := local.New(local.Options{Command: []string{os.Args[0]}, Env: map[string]string{runnertest.AgentEnv: "process", "DO": "input.do"}})
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = l.Close() }()
			g := &grading{Runner: l, says: test.says}
			test.table.Retries = 1
			o := controller.Options{Run: run, AgentURL: h.model.server.URL, Limits: plan.Limits{Slots: 1, Backoff: 1, Total: 2 * time.Second, Table: test.table}}
			c, err := controller.New(o, h.store, h.model, g)
			if err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithCancel(t.Context())
			done := make(chan error, 1)
			go func() { done <- c.Run(ctx) }()
			id := h.create(nil, test.do)[0]
			r := h.ended(id)
			cancel()
			if err := <-done; err != nil {
				t.Error(err)
			}
			if r.State != test.state || r.Outcome.Reason != test.reason || len(h.attempts(id)) != test.attempts || len(g.graded) != test.graded || (r.Reward != nil) != (test.graded > len(test.says)) {
				t.Errorf("%s, %+v after %d attempts, %d graded", r.State, *r.Outcome, len(h.attempts(id)), len(g.graded))
			}
		})
	}
}

// A gateway that starts again while an attempt is graded took nothing from it.
func TestTheGatewayStartsAgainWhileAFailureIsGraded(t *testing.T) {
	h := open(t)
	l, err := local.New(local.Options{Command: []string{os.Args[0]}, Env: map[string]string{runnertest.AgentEnv: "process", "DO": "input.do"}})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	var c *controller.Controller
	during := 0
	g := &grading{Runner: l, meanwhile: func() {
		during = c.Stats().Grading
		h.model.mu.Lock()
		defer h.model.mu.Unlock()
		h.model.up = time.Nanosecond
	}}
	c, err = controller.New(controller.Options{Run: run, AgentURL: h.model.server.URL, Limits: plan.Limits{Slots: 1}}, h.store, h.model, g)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- c.Run(ctx) }()
	r := h.ended(h.create(nil, "call; exit 3")[0])
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
	if during != 1 || c.Stats().Grading != 0 {
		t.Errorf("%d counted as graded meanwhile, %d afterwards", during, c.Stats().Grading)
	}
	if r.Outcome.Reason != plan.ReasonExit || r.Reward == nil || len(g.graded) != 1 {
		t.Errorf("%+v, reward %v, %d graded", *r.Outcome, r.Reward, len(g.graded))
	}
}

// telling is a runner whose grader tells of tests that printed the attempt's credential.
type telling struct {
	controller.Runner
	secret string
}

func (g *telling) Start(ctx context.Context, x controller.Execution) (controller.Started, error) {
	g.secret = x.Secrets[0]
	return g.Runner.Start(ctx, x)
}
func (g *telling) Grades() bool { return true }
func (g *telling) Grade(context.Context, controller.Grading) (controller.Grade, error) {
	return controller.Grade{Graded: fulgur.Graded{
		Tests: &fulgur.TestsEnd{ExitCode: 2, Output: "key " + g.secret}, Log: "at " + g.secret, Flags: []string{g.secret + "/conftest.py"}}}, nil
}

// How tests ended is on record with the attempt, without its credential.
func TestHowTestsEndedIsKept(t *testing.T) {
	h := open(t)
	l, err := local.New(local.Options{Command: []string{os.Args[0]}, Env: map[string]string{runnertest.AgentEnv: "process", "DO": "input.do"}})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	c, err := controller.New(controller.Options{Run: run, AgentURL: h.model.server.URL, Limits: plan.Limits{Slots: 1}}, h.store, h.model, &telling{Runner: l})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- c.Run(ctx) }()
	id := h.create(nil, "call")[0]
	r := h.ended(id)
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
	want := &fulgur.Graded{Tests: &fulgur.TestsEnd{ExitCode: 2, Output: "key [credential]"}, Log: "at [credential]", Flags: []string{"[credential]/conftest.py"}}
	if diff := cmp.Diff(want, r.Outcome.Graded); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff(want, h.attempts(id)[0].Outcome.Graded); diff != "" || !strings.HasSuffix(r.Outcome.Message, "flagged: [credential]/conftest.py") {
		t.Errorf("%s, message %q", diff, r.Outcome.Message)
	}
}

// A store that takes no rewards is found before anything starts.
func TestGraderNeedsAStoreThatTakesRewards(t *testing.T) {
	h := open(t)
	o := controller.Options{Run: run, AgentURL: h.model.server.URL, Limits: plan.Limits{Slots: 1}}
	type plain struct{ controller.Store }
	if _, err := controller.New(o, plain{h.store}, h.model, &grading{}); fulgur.KindOf(err) != fulgur.KindUnsupported {
		t.Errorf("error %v", err)
	}
}

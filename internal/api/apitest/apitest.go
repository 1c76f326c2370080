// Package apitest is the conformance suite of what store and client have in
// common: trainer and controller must not see which of the two they got.
package apitest

import (
	"context"
	"encoding/json"
	"testing"
	"time"

	"github.com/fulgur-rl/fulgur"
	"github.com/google/go-cmp/cmp"
)

// API are the methods that store and client both have.
type API interface {
	PutRun(ctx context.Context, r fulgur.Run) error
	Run(ctx context.Context, id fulgur.RunID) (fulgur.Run, error)
	Runs(ctx context.Context) ([]fulgur.Run, error)
	AcquireLease(ctx context.Context, run fulgur.RunID, name, holder string, ttl time.Duration) (fulgur.Lease, error)
	Lease(ctx context.Context, run fulgur.RunID, name string) (fulgur.Lease, error)
	ReleaseLease(ctx context.Context, run fulgur.RunID, name, holder string) error
	PutEndpoints(ctx context.Context, run fulgur.RunID, model string, eps []fulgur.Endpoint) error
	Endpoints(ctx context.Context, run fulgur.RunID, model string) ([]fulgur.Endpoint, error)
	CreateRollouts(ctx context.Context, specs []fulgur.RolloutSpec) ([]fulgur.Rollout, error)
	Rollout(ctx context.Context, id fulgur.RolloutID) (fulgur.Rollout, error)
	Rollouts(ctx context.Context, q fulgur.RolloutQuery) ([]fulgur.Rollout, error)
	Terminal(ctx context.Context, after, limit int) (fulgur.TerminalPage, error)
	EndRollout(ctx context.Context, id fulgur.RolloutID, o fulgur.Outcome) (fulgur.Rollout, error)
	SetReward(ctx context.Context, id fulgur.RolloutID, a fulgur.AttemptID, value float64, source string) error
	SetRewards(ctx context.Context, rs []fulgur.Reward) error
	ReportAttempts(ctx context.Context, rs []fulgur.Report) error
	Records(ctx context.Context, ids []fulgur.RolloutID) ([]fulgur.Record, error)
	OpenAttempt(ctx context.Context, id fulgur.RolloutID) (fulgur.OpenedAttempt, error)
	OpenAttempts(ctx context.Context, ids []fulgur.RolloutID) ([]fulgur.OpenedAttempt, error)
	ReportAttempt(ctx context.Context, id fulgur.RolloutID, a fulgur.AttemptID, r fulgur.AttemptReport) (fulgur.Rollout, error)
	Attempts(ctx context.Context, id fulgur.RolloutID) ([]fulgur.Attempt, error)
	Calls(ctx context.Context, id fulgur.RolloutID, a fulgur.AttemptID) ([]fulgur.Call, error)
	Call(ctx context.Context, id fulgur.CallID) (fulgur.Call, error)
	AppendEvent(ctx context.Context, ev fulgur.Event) (fulgur.Event, error)
	Events(ctx context.Context, id fulgur.RolloutID, a fulgur.AttemptID) ([]fulgur.Event, error)
	Head(ctx context.Context) (fulgur.Seq, error)
	Changes(ctx context.Context, run fulgur.RunID, after fulgur.Seq) ([]fulgur.Change, error)
}

// Recorder is the store behind the API: what only the gateway does.
type Recorder interface {
	AppendCall(ctx context.Context, c *fulgur.Call) error
	Identify(ctx context.Context, secret string) (fulgur.Identity, error)
}

// Subject is an API over a fresh store.
type Subject struct {
	API   API
	Store Recorder
}

// Run runs the suite; open gives a fresh subject, closed by the test's cleanup.
func Run(t *testing.T, open func(t *testing.T) Subject) {
	for name, f := range map[string]func(*testing.T, Subject){
		"a run is put, read, listed, and its version never goes down": testRuns,
		"a lease has one holder and ends":                             testLeases,
		"endpoints of a model are replaced as a whole (ST-11)":        testEndpoints,
		"creation is idempotent, all or nothing":                      testCreate,
		"rollouts are listed by state, group and page (ST-10)":        testList,
		"attempts are opened, reported, retried (ST-04)":              testAttempts,
		"attempts wait, and say what for":                             testWaiting,
		"a credential lives and dies with its attempt":                testCredentials,
		"an ended rollout stays as it ended (ST-06)":                  testEnd,
		"rewards: graded, from agents, late, repeated (ST-05)":        testRewards,
		"calls come back as they were recorded (ST-01)":               testCalls,
		"several attempts opened in one":                              testOpenSeveral,
		"several reports, rewards and records in one":                 testSeveral,
		"events come back in order, as the bytes that came (ST-02)":   testEvents,
		"the completion log is read by cursor":                        testTerminal,
		"a watch wakes at once and misses nothing":                    testWatch,
		"what is not there is said to be not there":                   testNotFound,
		"what is wrong is refused":                                    testInvalid,
	} {
		t.Run(name, func(t *testing.T) { f(t, open(t)) })
	}
}

func must[T any](v T, err error) func(*testing.T) T {
	return func(t *testing.T) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}

func noError(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func wantKind(t *testing.T, err error, k fulgur.Kind) {
	t.Helper()
	if fulgur.KindOf(err) != k {
		t.Errorf("error is %v (kind %q), want kind %q", err, fulgur.KindOf(err), k)
	}
	if err != nil && fulgur.PublicMessage(err) == "" {
		t.Errorf("%v has no message for people", err)
	}
}

func equal(t *testing.T, what string, got, want any) {
	t.Helper()
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("%s (-want +got):\n%s", what, d)
	}
}

// create makes rollouts with the given ids in the run default.
func create(t *testing.T, s Subject, ids ...fulgur.RolloutID) []fulgur.Rollout {
	t.Helper()
	specs := make([]fulgur.RolloutSpec, len(ids))
	for i, id := range ids {
		specs[i] = fulgur.RolloutSpec{ID: id, Run: fulgur.DefaultRun, Input: json.RawMessage(`{"question":"6*7"}`), IsTrain: true}
	}
	return must(s.API.CreateRollouts(t.Context(), specs))(t)
}

var (
	okay = fulgur.AttemptReport{Phase: fulgur.PhaseEnded, Outcome: &fulgur.Outcome{Class: fulgur.OutcomeOK, Reason: "exit", Calls: 1,
		Graded: &fulgur.Graded{Tests: &fulgur.TestsEnd{ExitCode: -1, TimedOut: true, Output: "late"}, Log: "why", Flags: []string{"conftest.py"}}}}
	lost   = fulgur.AttemptReport{Phase: fulgur.PhaseEnded, Retry: true, Outcome: &fulgur.Outcome{Class: fulgur.OutcomeInfrastructure, Reason: "lost"}}
	failed = fulgur.Outcome{Class: fulgur.OutcomeInfrastructure, Reason: "given up", Message: "the run has stopped"}
)

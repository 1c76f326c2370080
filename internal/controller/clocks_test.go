package controller_test

import (
	"strings"
	"testing"
	"time"

	"github.com/fulgur-rl/fulgur"
	"github.com/fulgur-rl/fulgur/internal/controller"
	"github.com/fulgur-rl/fulgur/internal/controller/plan"
	"github.com/fulgur-rl/fulgur/internal/store"
)

func TestTimeoutStaysTheReason_CL01(t *testing.T) {
	h := open(t).start(setup{wrap: func(s *store.Store) controller.Store { return &flaky{Store: s, left: 2} }, limits: plan.Limits{Table: plan.Table{Retries: 2}}})
	id := h.create(func(s *fulgur.RolloutSpec) { s.Timeout = 500 * time.Millisecond }, "ignore; say thinking; hang")[0]
	r := h.ended(id)
	if o := r.Outcome; r.State != fulgur.Failed || o.Class != fulgur.OutcomeAgent || o.Reason != "timeout" || !strings.Contains(o.Message, "500ms") || !strings.Contains(o.Message, "thinking") {
		t.Errorf("outcome %+v", *o)
	}
}

func TestIdleAgent_CL11(t *testing.T) {
	h := open(t).start(setup{limits: plan.Limits{Total: time.Hour, Idle: 3 * time.Second}})
	ids := h.create(nil, "call; sleep 50; call; hang", "call; sleep 1100; call; sleep 1100; call; sleep 1100; call")
	if o := h.ended(ids[0]).Outcome; o.Class != fulgur.OutcomeAgent || o.Reason != "idle" || o.Calls != 2 || !strings.Contains(o.Message, "for 3s") {
		t.Errorf("outcome %+v", *o)
	}
	if o := h.ended(ids[1]).Outcome; o.Reason != "ok" {
		t.Errorf("one that calls often enough: %+v", *o)
	}
}

func TestHeldCallsStopTheClocks(t *testing.T) {
	h := open(t)
	h.model.held = 400 * time.Millisecond
	h.start(setup{})
	begin := time.Now()
	id := h.create(func(s *fulgur.RolloutSpec) { s.Timeout = 100 * time.Millisecond }, "hang")[0]
	h.ended(id)
	if took := time.Since(begin); took < 500*time.Millisecond {
		t.Errorf("ended after %s, with 100 ms of active time allowed and 400 ms held", took)
	}
}

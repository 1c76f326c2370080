package controller_test

import (
	"context"
	"fmt"
	"testing"

	"github.com/fulgur-rl/fulgur"
	"github.com/fulgur-rl/fulgur/internal/controller"
	"github.com/fulgur-rl/fulgur/internal/controller/local"
	"github.com/fulgur-rl/fulgur/internal/controller/plan"
	"github.com/fulgur-rl/fulgur/internal/controller/runnertest"
)

// Two runs share three slots: the one with many rollouts leaves the other its
// part, and takes it when that has none left.
func TestRunsShareAPool(t *testing.T) {
	h := open(t)
	pool := controller.NewPool(3)
	controllers := map[fulgur.RunID]*controller.Controller{}
	for id, n := range map[fulgur.RunID]int{"many": 40, "few": 6} {
		if err := h.store.PutRun(t.Context(), fulgur.Run{ID: id, Model: "m"}); err != nil {
			t.Fatal(err)
		}
		var specs []fulgur.RolloutSpec
		for i := range n {
			specs = append(specs, fulgur.RolloutSpec{ID: fulgur.RolloutID(fmt.Sprintf("%s-%d", id, i)), Run: id, Input: []byte(`{}`)})
		}
		if _, err := h.store.CreateRollouts(t.Context(), specs); err != nil {
			t.Fatal(err)
		}
		r, err := local.New(local.Options{Command: []string{"sleep", "0.05"}})
		if err != nil {
			t.Fatal(err)
		}
		c, err := controller.New(controller.Options{Run: id, AgentURL: h.model.server.URL, Limits: plan.Limits{Slots: 3}, Pool: pool}, h.store, h.model, r)
		if err != nil {
			t.Fatal(err)
		}
		controllers[id] = c
		ctx, cancel := context.WithCancel(context.Background())
		done := make(chan error, 1)
		go func() { done <- c.Run(ctx) }()
		t.Cleanup(func() {
			cancel()
			if err := <-done; err != nil {
				t.Error(err)
			}
			_ = r.Close()
		})
	}
	most := 0
	at := map[fulgur.RunID]int{} // ended rollouts of many when few had ended
	runnertest.Until(t, "all rollouts have ended", func() bool {
		running := 0
		ended := map[fulgur.RunID]int{}
		for id, c := range controllers {
			s := c.Stats()
			running += s.Running + s.Starting
			for _, n := range s.Outcomes {
				ended[id] += n
			}
		}
		most = max(most, running)
		if ended["few"] == 6 && at["many"] == 0 {
			at["many"] = ended["many"]
		}
		return ended["few"] == 6 && ended["many"] == 40
	})
	if most > 3 {
		t.Errorf("%d ran at once", most)
	}
	if at["many"] > 30 {
		t.Errorf("the run with few rollouts waited for %d of the other's", at["many"])
	}
}

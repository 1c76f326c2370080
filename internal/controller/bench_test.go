package controller_test

import (
	"context"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/fulgur-rl/fulgur"
	"github.com/fulgur-rl/fulgur/internal/controller"
	"github.com/fulgur-rl/fulgur/internal/controller/local"
	"github.com/fulgur-rl/fulgur/internal/controller/plan"
	"github.com/fulgur-rl/fulgur/internal/controller/runnertest"
	"github.com/fulgur-rl/fulgur/internal/store"
	"github.com/fulgur-rl/fulgur/internal/store/sqlite"
)

// bench runs b.N rollouts of /bin/true, created group by group, through 8
// slots, with the store on disk. cpu-us/op is this process's CPU (controller,
// store, fork and exec), child-us/op the children's, start-us the median from
// a rollout's creation to its process.
func bench(b *testing.B, group int) {
	s, err := store.Open(b.Context(), sqlite.New(filepath.Join(b.TempDir(), "store.db"), sqlite.Options{}), store.Options{})
	if err != nil {
		b.Fatal(err)
	}
	defer func() { _ = s.Close() }()
	if err := s.PutRun(b.Context(), fulgur.Run{ID: run, Model: "m"}); err != nil {
		b.Fatal(err)
	}
	specs := make([]fulgur.RolloutSpec, b.N)
	for i := range specs {
		specs[i] = fulgur.RolloutSpec{ID: fulgur.NewRolloutID(fulgur.RolloutKey{Run: run, Part: "train", Row: i}), Run: run, IsTrain: true,
			Input: []byte(`{"question":"Ann has 3 apples and buys 4 more. How many?","answer":"7"}`), Withhold: []string{"input.answer"}}
	}
	r, err := local.New(local.Options{Command: []string{"true"}, Env: map[string]string{"QUESTION": "input.question"}, Scope: "bench"})
	if err != nil {
		b.Fatal(err)
	}
	m := &model{store: s, acts: map[plan.Key]*fulgur.Activity{}}
	c, err := controller.New(controller.Options{Run: run, AgentURL: "http://127.0.0.1:1", Model: "m", Limits: plan.Limits{Slots: 8, Total: time.Minute}}, s, m, r)
	if err != nil {
		b.Fatal(err)
	}
	ctx, cancel := context.WithCancel(b.Context())
	done := make(chan error, 1)
	go func() { done <- c.Run(ctx) }()

	b.ResetTimer()
	before := usage()
	for at := 0; at < len(specs); at += group {
		if _, err := s.CreateRollouts(ctx, specs[at:min(at+group, len(specs))]); err != nil {
			b.Fatal(err)
		}
		runnertest.Until(b, "the group has ended", func() bool {
			open, err := s.Rollouts(ctx, fulgur.RolloutQuery{Run: run, States: []fulgur.RolloutState{fulgur.Queuing, fulgur.Running}, Limit: 1})
			return err == nil && len(open) == 0
		})
	}
	spent := usage() - before
	b.StopTimer()
	b.ReportMetric(float64(spent.Microseconds())/float64(b.N), "cpu-us/op")
	b.ReportMetric(float64(r.ChildCPU().Microseconds())/float64(b.N), "child-us/op")
	b.ReportMetric(float64(c.Stats().StartP50.Microseconds()), "start-us")
	cancel()
	if err := <-done; err != nil {
		b.Error(err)
	}
	_ = r.Close()
}

func BenchmarkRollouts(b *testing.B) { bench(b, 128) } // as a training step creates them

func BenchmarkOneByOne(b *testing.B) { bench(b, 1) } // start latency, idle

// usage is the CPU time of this process.
func usage() time.Duration {
	var u syscall.Rusage
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &u)
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

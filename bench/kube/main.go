// Command kube measures the runner of Jobs on the cluster of test/kube:
//
//	test/kube/run.sh --with go run ./bench/kube
//
// 200 rollouts that do nothing, against what `kubectl apply` asks of the API server
// for the same Jobs and Secrets, and waiting for them; requests to the API server a rollout, and when
// nothing happens, from the audit log; and 1,000 rollouts under a quota of 50.
package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/fulgur-rl/fulgur"
	"github.com/fulgur-rl/fulgur/internal/controller"
	"github.com/fulgur-rl/fulgur/internal/controller/kube"
	"github.com/fulgur-rl/fulgur/internal/controller/plan"
	"github.com/fulgur-rl/fulgur/internal/store"
	"github.com/fulgur-rl/fulgur/internal/store/sqlite"
)

const (
	runID = fulgur.RunID("bench")
	image = "kubebox.test/host:1"
)

func main() {
	jobs := flag.Int("jobs", 200, "rollouts against kubectl apply; 0: leave it out")
	pairs := flag.Int("pairs", 2, "how often both are measured, in turn")
	idle := flag.Duration("idle", time.Minute, "how long nothing happens; 0: leave it out")
	queued := flag.Int("queued", 1000, "rollouts under a quota; 0: leave it out")
	quota := flag.Int("quota", 50, "the quota of Jobs")
	kubectl := flag.String("kubectl", "", "this kubectl applies, in place of the same requests without it")
	flag.Parse()
	if err := bench(context.Background(), *kubectl, *jobs, *pairs, *idle, *queued, *quota); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func bench(ctx context.Context, kubectl string, jobs, pairs int, idle time.Duration, queued, quota int) error {
	cl, err := open()
	if err != nil {
		return err
	}
	if jobs > 0 {
		if err := against(ctx, cl, kubectl, jobs, pairs, idle); err != nil {
			return err
		}
	}
	if queued > 0 {
		return underQuota(ctx, cl, queued, quota)
	}
	return nil
}

// against runs the same Jobs by Fulgur and by kubectl, in turn.
func against(ctx context.Context, cl *cluster, kubectl string, n, pairs int, idle time.Duration) error {
	var ratios []float64
	for i := range pairs {
		ns, err := cl.namespace(ctx, nil)
		if err != nil {
			return err
		}
		ours, err := fulgurRun(ctx, cl, ns, n, idle)
		if err != nil {
			return err
		}
		other, err := cl.namespace(ctx, nil)
		if err != nil {
			return err
		}
		theirs, err := kubectlRun(ctx, cl, kubectl, other, ours.manifests, n)
		if err != nil {
			return err
		}
		ratio := ours.took.Seconds() / theirs.Seconds()
		ratios = append(ratios, ratio)
		fmt.Printf("%d Jobs, round %d: fulgur %.1f s, apply and wait %.1f s, ratio %.2f; %.1f requests a rollout (most in one second: %d)\n",
			n, i+1, ours.took.Seconds(), theirs.Seconds(), ratio, float64(ours.requests)/float64(n), ours.most)
		if idle > 0 {
			fmt.Printf("nothing to do for %s: %.3f requests a second (bar: under 0.2)\n", idle, ours.idle)
			idle = 0
		}
		cl.forget(ctx, ns)
		cl.forget(ctx, other)
	}
	fmt.Printf("ratios %.2f (bar: at most 1.15); requests a rollout: bar at most 8\n", ratios)
	return nil
}

// result is what one run of Fulgur took.
type result struct {
	took      time.Duration
	requests  int // of the controller
	most      int // in any second
	idle      float64
	manifests []byte
}

// house is a controller with its store.
type house struct {
	store *store.Store
	ctrl  *controller.Controller
	stop  func() error
}

func start(ctx context.Context, cl *cluster, ns string, slots int, keep time.Duration) (*house, error) {
	dir, err := os.MkdirTemp("", "fulgur-bench-kube")
	if err != nil {
		return nil, err
	}
	s, err := store.Open(ctx, sqlite.New(filepath.Join(dir, "store.db"), sqlite.Options{}), store.Options{})
	if err != nil {
		return nil, err
	}
	if err := s.PutRun(ctx, fulgur.Run{ID: runID, Model: "m"}); err != nil {
		return nil, err
	}
	r, err := kube.New(kube.Options{Kubeconfig: cl.kubeconfig, Namespace: ns, Run: string(runID), Scope: ns, Image: image,
		Command: []string{"true"}, Keep: keep, Grace: time.Second, QPS: cl.qps})
	if err != nil {
		return nil, err
	}
	c, err := controller.New(controller.Options{Run: runID, AgentURL: "http://127.0.0.1:1", Model: "m", Limits: plan.Limits{Slots: slots, Starting: slots}}, s, nil, r)
	if err != nil {
		return nil, err
	}
	run, cancel := context.WithCancel(ctx)
	done := make(chan error, 1)
	go func() { done <- c.Run(run) }()
	return &house{store: s, ctrl: c, stop: sync.OnceValue(func() error {
		cancel()
		err := <-done
		if e := r.Close(); err == nil {
			err = e
		}
		_ = s.Close()
		_ = os.RemoveAll(dir)
		return err
	})}, nil
}

func (h *house) create(ctx context.Context, n int) error {
	specs := make([]fulgur.RolloutSpec, n)
	for i := range specs {
		specs[i] = fulgur.RolloutSpec{ID: fulgur.RolloutID(fmt.Sprintf("b-%d", i)), Run: runID, Input: json.RawMessage(`{"question":"what is 1 + 1?"}`), IsTrain: true}
	}
	_, err := h.store.CreateRollouts(ctx, specs)
	return err
}

// over waits until all rollouts have ended, and fails if one did not end well.
func (h *house) over(ctx context.Context) error {
	for {
		open, err := h.store.Rollouts(ctx, fulgur.RolloutQuery{Run: runID, States: []fulgur.RolloutState{fulgur.Queuing, fulgur.Running}, Limit: 1})
		if err != nil {
			return err
		}
		if len(open) == 0 {
			break
		}
		time.Sleep(20 * time.Millisecond)
	}
	bad, err := h.store.Rollouts(ctx, fulgur.RolloutQuery{Run: runID, States: []fulgur.RolloutState{fulgur.Failed}, Limit: 1})
	if err == nil && len(bad) > 0 {
		err = fmt.Errorf("rollout %s failed: %+v", bad[0].ID, *bad[0].Outcome)
	}
	return err
}

func fulgurRun(ctx context.Context, cl *cluster, ns string, n int, idle time.Duration) (result, error) {
	// The Jobs stay, to be what kubectl applies afterwards.
	h, err := start(ctx, cl, ns, n, time.Hour)
	if err != nil {
		return result{}, err
	}
	defer func() { _ = h.stop() }()
	time.Sleep(2 * time.Second) // its first questions are no rollout's
	begin := time.Now()
	if err := h.create(ctx, n); err != nil {
		return result{}, err
	}
	if err := h.over(ctx); err != nil {
		return result{}, err
	}
	r := result{took: time.Since(begin)}
	time.Sleep(3 * time.Second) // what is acknowledged is asked of the cluster a moment later
	r.requests, r.most, err = cl.requests(ns, "fulgur", begin, time.Now())
	if err != nil {
		return r, err
	}
	if r.manifests, err = cl.manifests(ctx, ns, n); err != nil {
		return r, err
	}
	if idle > 0 {
		from := time.Now()
		time.Sleep(idle)
		count, _, err := cl.requests(ns, "fulgur", from, time.Now())
		if err != nil {
			return r, err
		}
		r.idle = float64(count) / idle.Seconds()
	}
	return r, h.stop()
}

func underQuota(ctx context.Context, cl *cluster, n, quota int) error {
	ns, err := cl.namespace(ctx, map[string]string{"count/jobs.batch": fmt.Sprint(quota)})
	if err != nil {
		return err
	}
	defer cl.forget(ctx, ns)
	h, err := start(ctx, cl, ns, n, 0)
	if err != nil {
		return err
	}
	defer func() { _ = h.stop() }()
	begin := time.Now()
	if err := h.create(ctx, n); err != nil {
		return err
	}
	if err := h.over(ctx); err != nil {
		return err
	}
	took := time.Since(begin)
	count, most, err := cl.requests(ns, "fulgur", begin, time.Now())
	if err != nil {
		return err
	}
	refused, err := cl.refused(ns, begin)
	if err != nil {
		return err
	}
	fmt.Printf("%d rollouts under a quota of %d Jobs: %.0f s, %.1f a second; %.1f requests a rollout (most in one second: %d), %d refused for quota\n",
		n, quota, took.Seconds(), float64(n)/took.Seconds(), float64(count)/float64(n), most, refused)
	return h.stop()
}

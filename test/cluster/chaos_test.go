package cluster

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/fulgur-rl/fulgur"
	"github.com/fulgur-rl/fulgur/internal/api/client"
	"github.com/fulgur-rl/fulgur/internal/controller"
	"github.com/fulgur-rl/fulgur/internal/controller/kube"
	"github.com/fulgur-rl/fulgur/internal/controller/plan"
	"github.com/fulgur-rl/fulgur/internal/controller/runnertest"
)

// order is what a controller in a process of its own is told, by variable orderEnv.
type order struct {
	Dir, Namespace, Share, Template, URL string
	Slots, Retries                       int
	Lease                                time.Duration
}

const orderEnv = "FULGUR_TEST_CONTROLLER"

// controllerProcess works until it is killed.
func controllerProcess(text string) error {
	var o order
	if err := json.Unmarshal([]byte(text), &o); err != nil {
		return err
	}
	s, err := client.New(o.URL, "", client.Options{})
	if err != nil {
		return err
	}
	k, err := runnerOptions(o.Dir, o.Namespace, o.Share, o.Template)
	if err != nil {
		return err
	}
	k.Lease = o.Lease
	k.Log = slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn}))
	r, err := kube.New(k)
	if err != nil {
		return err
	}
	c, err := controller.New(controller.Options{Run: run, AgentURL: o.URL, LeaseTTL: time.Second, RunWindow: -1, Log: k.Log,
		Limits: plan.Limits{Slots: o.Slots, Lost: 30, Backoff: 100 * time.Millisecond, Table: plan.Table{Retries: o.Retries}}}, s, nil, r)
	if err != nil {
		return err
	}
	return c.Run(context.Background())
}

// process starts a controller in a process of its own; what it returns kills it
// with SIGKILL.
func (h *house) process(template string, slots, retries int) (kill func()) {
	h.t.Helper()
	return h.ordered(order{Dir: h.dir, Namespace: h.ns, Share: h.share, Template: template, URL: h.model.url, Slots: slots, Retries: retries})
}

func (h *house) ordered(o order) (kill func()) {
	h.t.Helper()
	text, err := json.Marshal(o)
	if err != nil {
		h.t.Fatal(err)
	}
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), orderEnv+"="+string(text))
	cmd.Stdout, cmd.Stderr = h.t.Output(), h.t.Output()
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		h.t.Fatal(err)
	}
	killed := false
	kill = func() {
		if !killed {
			killed = true
			_ = cmd.Process.Kill()
			_ = cmd.Wait()
		}
	}
	h.t.Cleanup(kill)
	return kill
}

// settle waits until all rollouts have ended, and shows those that have not.
func (h *house) settle(limit time.Duration) {
	h.t.Helper()
	for end := time.Now().Add(limit); h.unfinished() > 0; time.Sleep(100 * time.Millisecond) {
		if time.Now().Before(end) {
			continue
		}
		rs, _ := h.store.Rollouts(h.t.Context(), fulgur.RolloutQuery{Run: run, States: []fulgur.RolloutState{fulgur.Queuing, fulgur.Running}})
		for i, r := range rs {
			a := h.attempts(r.ID)
			if i < 5 && len(a) > 0 {
				h.t.Logf("%s is %s, attempt %+v", r.ID, r.State, a[len(a)-1])
			}
		}
		h.t.Fatalf("%d rollouts have not ended after %s; there are %d Jobs and %d pods", len(rs), limit, len(h.jobs()), len(h.pods()))
	}
}

// noted is a script that notes in the shared folder that an attempt has begun,
// and that it has ended.
func (h *house) noted(id fulgur.RolloutID, then string) string {
	file := filepath.Join(h.share, string(id))
	return fmt.Sprintf("echo $FULGUR_ATTEMPT_ID >> %s.begun; %s; echo $FULGUR_ATTEMPT_ID >> %s.ended", file, then, file)
}

func lines(file string) []string {
	b, err := os.ReadFile(file)
	if err != nil {
		return nil
	}
	return strings.Fields(string(b))
}

// accounts checks what holds after any chaos: each rollout has ended, well, once;
// no attempt ran twice; attempts that ended well, but were not the last, there are none.
func (h *house) accounts(n int) (attempts int) {
	h.t.Helper()
	for i := range n {
		id := fulgur.RolloutID(fmt.Sprint("r-", i))
		r, all := h.rollout(id), h.attempts(id)
		attempts += len(all)
		if r.State != fulgur.Succeeded {
			h.t.Errorf("%s is %s: %+v", id, r.State, r.Outcome)
		}
		for j, a := range all {
			if last := j == len(all)-1; a.Phase != fulgur.PhaseEnded || (a.Outcome.Class == fulgur.OutcomeOK) != last {
				h.t.Errorf("attempt %s of %s: %s, %+v", a.ID, id, a.Phase, a.Outcome)
			}
		}
		begun := map[string]bool{}
		for _, a := range lines(filepath.Join(h.share, string(id)+".begun")) {
			if begun[a] {
				h.t.Errorf("attempt %s of %s ran twice", a, id)
			}
			begun[a] = true
		}
		if ended := lines(filepath.Join(h.share, string(id)+".ended")); len(ended) != 1 {
			h.t.Errorf("%s came to its end %d times: attempts %v; the first: %+v", id, len(ended), ended, all[0].Outcome)
		}
	}
	h.empty()
	return attempts
}

// The controller is killed 20 times during 300 rollouts: none is lost, none runs
// twice, and what runs meanwhile is taken over.
func TestControllerIsKilled(t *testing.T) {
	h := build(t)
	n, kills := 300, 20
	if testing.Short() {
		n, kills = 60, 6
	}
	inputs := map[fulgur.RolloutID]map[string]string{}
	for i := range n {
		id := fulgur.RolloutID(fmt.Sprint("r-", i))
		inputs[id] = in(h.noted(id, "sleep 1"))
	}
	h.rollouts(inputs)
	begin := time.Now()
	for range kills {
		kill := h.process(shell, 40, 3)
		time.Sleep(2*time.Second + time.Duration(rand.IntN(3000))*time.Millisecond)
		kill()
	}
	t.Logf("after %d kills and %s %d rollouts are left", kills, time.Since(begin), h.unfinished())
	kill := h.process(shell, 40, 3)
	h.settle(5 * time.Minute)
	h.empty()
	kill()
	t.Logf("%d rollouts took %s and %d attempts", n, time.Since(begin), h.accounts(n))
}

// The API server is away for 30 s: agents go on, and nothing is lost.
func TestAPIServerIsAway(t *testing.T) {
	h := build(t)
	const n = 40
	inputs := map[fulgur.RolloutID]map[string]string{}
	for i := range n {
		id := fulgur.RolloutID(fmt.Sprint("r-", i))
		inputs[id] = in(h.noted(id, "sleep 8"))
	}
	// As a real cluster has it: 4 s, as here, is less than nodes need to be heard again.
	const patient = "      tolerations:\n      - {key: node.kubernetes.io/unreachable, operator: Exists, effect: NoExecute, tolerationSeconds: 300}\n" +
		"      - {key: node.kubernetes.io/not-ready, operator: Exists, effect: NoExecute, tolerationSeconds: 300}\n"
	o := h.options(strings.Replace(shell, "      containers:\n", patient+"      containers:\n", 1))
	_, stop := h.control(o, plan.Limits{Slots: 20, Table: plan.Table{Retries: 2}})
	h.rollouts(inputs)
	h.Until("some run", func() bool {
		files, _ := filepath.Glob(filepath.Join(h.share, "*.begun"))
		return len(files) >= 8
	})
	up := h.down("kube-apiserver")
	time.Sleep(30 * time.Second)
	up()
	h.answers()
	h.settle(4 * time.Minute)
	if got := h.accounts(n); got != n {
		t.Errorf("%d rollouts took %d attempts", n, got)
	}
	stop()
}

// A node goes away with all that runs on it: its rollouts run again elsewhere.
func TestNodeIsLost(t *testing.T) {
	h := build(t)
	const n = 12
	inputs := map[fulgur.RolloutID]map[string]string{}
	for i := range n {
		id := fulgur.RolloutID(fmt.Sprint("r-", i))
		inputs[id] = in(h.noted(id, `if [ "$FULGUR_ATTEMPT_ID" = 0 ]; then sleep 20; fi`))
	}
	h.control(h.options(shell), plan.Limits{Slots: n, Table: plan.Table{Retries: 3}})
	h.rollouts(inputs)
	h.Until("all run", func() bool {
		files, _ := filepath.Glob(filepath.Join(h.share, "*.begun"))
		return len(files) == n
	})
	there := 0
	for _, p := range h.pods() {
		if p.Spec.NodeName == "node-2" {
			there++
		}
	}
	if there == 0 {
		t.Fatal("nothing runs on node-2")
	}
	up := h.down("node-2")
	h.remove("/api/v1/nodes/node-2")
	h.settle(4 * time.Minute)
	if got := h.accounts(n); got != n+there {
		t.Errorf("%d rollouts of which %d lost their node took %d attempts", n, there, got)
	}
	up()
	h.Ready("node-2")
}

// What ends while no controller is there is told by the next one, and not run again.
func TestEndsWithoutAController_CK04(t *testing.T) {
	h := build(t)
	kill := h.process(shell, 4, 1)
	h.rollouts(map[fulgur.RolloutID]map[string]string{
		"good": in(h.call() + h.noted("good", "sleep 2")),
		"bad":  in(h.call() + h.noted("bad", "sleep 2") + "; exit 3"),
		"gone": in(h.call() + h.noted("gone", "sleep 2")),
	})
	for _, id := range []fulgur.RolloutID{"good", "bad", "gone"} {
		h.wrote(string(id) + ".begun")
		h.Until(string(id)+" is on record as running", func() bool {
			a := h.attempts(id)
			return len(a) > 0 && a[len(a)-1].Phase == fulgur.PhaseRunning
		})
	}
	kill()
	h.Until("all Jobs have ended", func() bool {
		over := 0
		for _, j := range h.jobs() {
			over += int(j.Status.Succeeded + j.Status.Failed)
		}
		return over == 3
	})
	// As if its time to live were over.
	for _, j := range h.jobs() {
		if strings.Contains(j.Name, "gone") {
			h.remove(h.Batch("jobs/" + j.Name + "?propagationPolicy=Background"))
		}
	}
	h.process(shell, 4, 1)
	if r := h.ended("good"); r.State != fulgur.Succeeded || len(h.attempts("good")) != 1 {
		t.Errorf("good: %+v", *r.Outcome)
	}
	if r := h.ended("bad"); r.Outcome.Reason != plan.ReasonExit || len(h.attempts("bad")) != 1 {
		t.Errorf("bad: %+v", *r.Outcome)
	}
	if r := h.ended("gone"); r.Outcome.Class != fulgur.OutcomeInfrastructure || r.Outcome.Reason != plan.ReasonUnknown || r.Outcome.Calls != 1 || len(h.attempts("gone")) != 1 {
		t.Errorf("gone: %+v", *r.Outcome)
	}
	for _, id := range []string{"good", "bad", "gone"} {
		if begun := lines(filepath.Join(h.share, id+".begun")); len(begun) != 1 {
			t.Errorf("%s ran as %v", id, begun)
		}
	}
	h.empty()
}

// The Jobs of a run whose controller does not come back are removed by another
// run's, when its lease is over.
func TestLeaseIsOver_CK11(t *testing.T) {
	h := build(t)
	kill := h.ordered(order{Dir: h.dir, Namespace: h.ns, Share: h.share, Template: shell, URL: h.model.url, Slots: 4, Lease: 6 * time.Second})
	h.rollouts(map[fulgur.RolloutID]map[string]string{"a": in("touch " + h.share + "/a; sleep 600")})
	h.wrote("a")
	kill()
	o := h.options(shell)
	o.Scope, o.Lease = "another run", 6*time.Second
	r, err := kube.New(o)
	if err != nil {
		t.Fatal(err)
	}
	input, err := json.Marshal(in("exit 0"))
	if err != nil {
		t.Fatal(err)
	}
	key := plan.Key{Rollout: "b", Attempt: "0"}
	if _, err := r.Start(t.Context(), controller.Execution{Key: key, Env: map[string]string{"OPENAI_API_KEY": "k"}, Secrets: []string{"k"}, Input: input}); err != nil {
		t.Fatal(err)
	}
	runnertest.ExitWithin(t, r, "b", patience)
	r.Acknowledge([]plan.Key{key})
	h.empty()
	if err := r.Close(); err != nil {
		t.Error(err)
	}
}

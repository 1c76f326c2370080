package cluster

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/fulgur-rl/fulgur"
	v2 "github.com/fulgur-rl/fulgur/internal/api/v2"
	"github.com/fulgur-rl/fulgur/internal/controller"
	"github.com/fulgur-rl/fulgur/internal/controller/kube"
	"github.com/fulgur-rl/fulgur/internal/controller/plan"
	"github.com/fulgur-rl/fulgur/internal/controller/runnertest"
	"github.com/fulgur-rl/fulgur/internal/store"
	"github.com/fulgur-rl/fulgur/internal/store/sqlite"
	"github.com/fulgur-rl/fulgur/test/kubeapi"
)

const run fulgur.RunID = "calc"

// shell is a Job whose agent is the shell script that its input holds. Agents and
// test share a folder.
const shell = `
apiVersion: batch/v1
kind: Job
metadata:
  name: "{{ job_name }}"
spec:
  template:
    spec:
      terminationGracePeriodSeconds: 1
      containers:
      - name: agent
        image: kubebox.test/host:1
        command: [sh, -c, 'eval "$SH"']
        volumeMounts: [{name: share, mountPath: SHARE}]
      volumes: [{name: share, hostPath: {path: SHARE}}]
`

// house is a box with a store, a model server, and a controller of Jobs.
type house struct {
	*box
	store *store.Store
	model *model
}

func build(t *testing.T) *house {
	t.Helper()
	h := &house{box: open(t)}
	var err error
	if h.store, err = store.Open(t.Context(), sqlite.New(filepath.Join(t.TempDir(), "store.db"), sqlite.Options{}), store.Options{}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = h.store.Close() })
	if err := h.store.PutRun(t.Context(), fulgur.Run{ID: run, Model: "m"}); err != nil {
		t.Fatal(err)
	}
	h.model = &model{store: h.store, calls: map[plan.Key]int{}}
	mux := http.NewServeMux()
	mux.Handle("/", h.model)
	mux.HandleFunc("/healthz", kubeapi.Health) // what probes ask
	mux.HandleFunc("/healthz/", kubeapi.Health)
	mux.Handle(v2.Prefix+"/", v2.New(v2.Options{Store: h.store})) // for controllers in processes of their own
	server := httptest.NewServer(mux)
	t.Cleanup(server.Close)
	h.model.url = server.URL
	return h
}

// options are the runner's, for a template in which SHARE stands for the shared folder.
func (h *house) options(template string) kube.Options {
	h.t.Helper()
	return options(h.t, h.dir, h.ns, h.share, template)
}

func options(t testing.TB, dir, ns, share, template string) kube.Options {
	t.Helper()
	o, err := runnerOptions(dir, ns, share, template)
	if err != nil {
		t.Fatal(err)
	}
	o.Log = logger(t)
	return o
}

func runnerOptions(dir, ns, share, template string) (kube.Options, error) {
	parsed, err := kube.ParseTemplate("job.yaml", strings.ReplaceAll(template, "SHARE", share))
	return kube.Options{Kubeconfig: filepath.Join(dir, "kubeconfig"), Namespace: ns, Run: string(run), Scope: ns, Template: parsed,
		Env: map[string]string{"SH": "input.sh"}, Grace: time.Second, QPS: 200}, err
}

// logger writes to the test's log.
func logger(t testing.TB) *slog.Logger {
	return slog.New(slog.NewTextHandler(t.Output(), &slog.HandlerOptions{Level: slog.LevelInfo}))
}

// control starts a controller over a runner; what it returns stops both.
func (h *house) control(o kube.Options, limits plan.Limits) (c *controller.Controller, stop func()) {
	h.t.Helper()
	r, err := kube.New(o)
	if err != nil {
		h.t.Fatal(err)
	}
	if limits.Slots == 0 {
		limits.Slots = 20
	}
	if limits.Backoff == 0 {
		limits.Backoff = 100 * time.Millisecond
	}
	c, err = controller.New(controller.Options{Run: run, AgentURL: h.model.url, Model: "m", Limits: limits, LeaseTTL: 2 * time.Second, RunWindow: -1, Log: logger(h.t)}, h.store, nil, r)
	if err != nil {
		h.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- c.Run(ctx) }()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			h.t.Error("run:", err)
		}
		if err := r.Close(); err != nil {
			h.t.Error("close:", err)
		}
	})
	h.t.Cleanup(stop)
	return c, stop
}

// in is an input: a script, and further fields.
func in(sh string, more ...string) map[string]string {
	m := map[string]string{"sh": sh}
	for i := 0; i+1 < len(more); i += 2 {
		m[more[i]] = more[i+1]
	}
	return m
}

// rollouts creates rollouts of these inputs.
func (h *house) rollouts(inputs map[fulgur.RolloutID]map[string]string, change ...func(*fulgur.RolloutSpec)) {
	h.t.Helper()
	specs := make([]fulgur.RolloutSpec, 0, len(inputs))
	for id, fields := range inputs {
		input, err := json.Marshal(fields)
		if err != nil {
			h.t.Fatal(err)
		}
		s := fulgur.RolloutSpec{ID: id, Run: run, Input: input, IsTrain: true}
		for _, c := range change {
			c(&s)
		}
		specs = append(specs, s)
	}
	if _, err := h.store.CreateRollouts(h.t.Context(), specs); err != nil {
		h.t.Fatal(err)
	}
}

func (h *house) rollout(id fulgur.RolloutID) fulgur.Rollout {
	h.t.Helper()
	r, err := h.store.Rollout(h.t.Context(), id)
	if err != nil {
		h.t.Fatal(err)
	}
	return r
}

// ended waits for a rollout's end.
func (h *house) ended(id fulgur.RolloutID) (r fulgur.Rollout) {
	h.t.Helper()
	h.Until(string(id)+" has ended", func() bool { r = h.rollout(id); return r.State.Terminal() })
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

// unfinished counts rollouts that have not ended.
func (h *house) unfinished() int {
	h.t.Helper()
	rs, err := h.store.Rollouts(h.t.Context(), fulgur.RolloutQuery{Run: run, States: []fulgur.RolloutState{fulgur.Queuing, fulgur.Running}})
	if err != nil {
		h.t.Fatal(err)
	}
	return len(rs)
}

// wrote waits for a file that an agent writes.
func (h *house) wrote(name string) {
	h.t.Helper()
	h.Until("an agent wrote "+name, func() bool {
		_, err := os.Stat(filepath.Join(h.share, name))
		return err == nil
	})
}

// call is a script that asks the model once.
func (h *house) call() string {
	h.t.Helper()
	agent := filepath.Join(h.share, "agent")
	if _, err := os.Stat(agent); err != nil {
		if err := os.Link(os.Args[0], agent); err != nil {
			h.t.Fatal(err)
		}
	}
	return runnertest.AgentEnv + "=process DO=call " + agent + " || exit 9; "
}

// podOf waits for the pod of a rollout's newest attempt and returns it.
func (h *house) podOf(id fulgur.RolloutID) (name, node string) {
	h.t.Helper()
	h.Until(string(id)+" has a pod that runs", func() bool {
		for _, p := range h.pods() {
			if p.Annotations["fulgur/rollout-id"] == string(id) || p.Labels["agentlightning/rollout-id"] == string(id) {
				name, node = p.Name, p.Spec.NodeName
				return p.Status.Phase == "Running"
			}
		}
		return false
	})
	return name, node
}

// model answers calls and records them, as the gateway does.
type model struct {
	store *store.Store
	url   string
	mu    sync.Mutex
	calls map[plan.Key]int
}

func (m *model) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	who, err := m.store.Identify(req.Context(), strings.TrimPrefix(req.Header.Get("Authorization"), "Bearer "))
	if err != nil || who.Ended {
		http.Error(w, "no", http.StatusForbidden)
		return
	}
	key := plan.Key{Rollout: who.Rollout, Attempt: who.Attempt}
	m.mu.Lock()
	n := m.calls[key]
	m.calls[key]++
	m.mu.Unlock()
	c := fulgur.Call{ID: fulgur.CallID(fmt.Sprintf("%s.%s.%d", key.Rollout, key.Attempt, n)), Run: run, Rollout: key.Rollout, Attempt: key.Attempt,
		Index: n, Mode: fulgur.ModeTrain, Model: "m", HTTPStatus: http.StatusOK, Fate: fulgur.FateDelivered, StartedAt: time.Now()}
	if err := m.store.AppendCall(req.Context(), &c); err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
	}
}

package kube

import (
	"bytes"
	"context"
	"errors"
	"io"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"

	"github.com/fulgur-rl/fulgur"
	"github.com/fulgur-rl/fulgur/internal/controller"
	"github.com/fulgur-rl/fulgur/internal/controller/grade"
	"github.com/fulgur-rl/fulgur/internal/controller/plan"
	"github.com/fulgur-rl/fulgur/internal/controller/runnertest"
)

// shelf keeps artifacts as the store does.
type shelf struct {
	mu  sync.Mutex
	all map[fulgur.AttemptKey]map[string][]byte

	failing int // so many questions for lists
}

func (s *shelf) put(key fulgur.AttemptKey, name string, text []byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.all == nil {
		s.all = map[fulgur.AttemptKey]map[string][]byte{}
	}
	if s.all[key] == nil {
		s.all[key] = map[string][]byte{}
	}
	s.all[key][name] = text
}

func (s *shelf) Artifacts(_ context.Context, key fulgur.AttemptKey) (out []fulgur.Artifact, _ error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.failing > 0 {
		s.failing--
		return nil, fulgur.E(fulgur.KindUnavailable, "", "away", nil)
	}
	for _, name := range slices.Sorted(maps.Keys(s.all[key])) {
		out = append(out, fulgur.Artifact{Name: name})
	}
	return out, nil
}

func (s *shelf) Artifact(_ context.Context, key fulgur.AttemptKey, name string) (fulgur.Artifact, io.ReadCloser, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return fulgur.Artifact{Name: name}, io.NopCloser(bytes.NewReader(s.all[key][name])), nil
}

func (s *shelf) PutArtifact(_ context.Context, key fulgur.AttemptKey, name, reader string, body io.Reader, _ int64) (a fulgur.Artifact, created bool, err error) {
	text, err := io.ReadAll(body)
	if reader == "" {
		err = errors.Join(err, errors.New("nobody may read it"))
	}
	s.put(key, name, text)
	return a, true, err
}

func (s *shelf) DeleteArtifact(_ context.Context, key fulgur.AttemptKey, name string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.all[key], name)
	return nil
}

// work packs a workspace.
func work(t *testing.T, files map[string]string) []byte {
	t.Helper()
	dir := t.TempDir()
	for name, text := range files {
		if err := os.MkdirAll(filepath.Dir(filepath.Join(dir, name)), 0o755); err != nil {
			t.Fatal(err)
		}
		var err error
		if to, ok := strings.CutPrefix(text, "-> "); ok {
			err = os.Symlink(to, filepath.Join(dir, name))
		} else {
			err = os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	var b bytes.Buffer
	if err := grade.Pack(&b, dir, 1<<20); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// grades are the options of a runner whose grader believes the tests' exit code and their
// output together.
func grades(t *testing.T, s *shelf) func(*Options) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "calc.py"), []byte("old"), 0o644); err != nil {
		t.Fatal(err)
	}
	return func(o *Options) {
		o.Workspace, o.Artifacts, o.State, o.KeepWork = true, s, t.TempDir(), controller.KeepFailures
		o.RelayImage, o.Gateway = "fulgur:1", "http://gateway.test:8080"
		o.Grading = &grade.Options{Command: []string{"sh", "-c", `x=$(cat); case $x in *'"exit_code":0,"timed_out":false'*'2 passed'*) echo 1;; *) echo 0;; esac`},
			Dir: dir, Pristine: dir, Tests: []string{"pytest", "-q", "$(HOME)"}, Timeout: time.Minute}
	}
}

// tests waits for the Job of tests that is there beside an agent's.
func (a *api) tests() *batchv1.Job {
	a.t.Helper()
	for end := time.Now().Add(10 * time.Second); ; time.Sleep(5 * time.Millisecond) {
		a.mu.Lock()
		for _, j := range a.jobs {
			if j.Labels[labelTests] != "" && a.secrets[j.Name] != nil {
				a.mu.Unlock()
				return j
			}
		}
		a.mu.Unlock()
		if time.Now().After(end) {
			a.t.Fatal("there is no Job of tests")
		}
	}
}

// testsPod changes the state of the container of tests.
func (a *api) testsPod(job string, phase corev1.PodPhase, s corev1.ContainerState) {
	a.pod(job, func(p *corev1.Pod) {
		p.Status.Phase = phase
		p.Status.InitContainerStatuses = []corev1.ContainerStatus{{Name: copyName, State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{}}}}
		p.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: testsName, State: s}}
	})
}

type graded struct {
	controller.Grade
	err error
}

// gradeLater has an execution graded, and hands the result over.
func gradeLater(ctx context.Context, r *Runner, key plan.Key) <-chan graded {
	out := make(chan graded, 1)
	go func() {
		g, err := r.Grade(ctx, controller.Grading{Key: key, Input: []byte(`{}`)})
		out <- graded{g, err}
	}()
	return out
}

func TestWhatAgentsLeaveIsGraded(t *testing.T) {
	ran := corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}
	exit := func(code int32) corev1.ContainerState {
		return corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: code}}
	}
	for name, test := range map[string]struct {
		files   map[string]string
		refused string
		end     corev1.ContainerState // of the tests; zero: there are none
		log     string
		reward  float64
		flag    string
	}{
		"an honest fix":                  {files: map[string]string{"calc.py": "new"}, end: exit(0), log: "..\n2 passed", reward: 1},
		"tests that fail":                {files: map[string]string{"calc.py": "bad"}, end: exit(1), log: "2 passed"},
		"tests that print what they say": {files: map[string]string{"calc.py": "os._exit(0)"}, end: exit(0), log: "nothing"},
		"a conftest.py alone":            {files: map[string]string{"conftest.py": "x"}, flag: "conftest.py"},
		"a sitecustomize.py alone":       {files: map[string]string{"lib/sitecustomize.py": "x"}, flag: "sitecustomize.py"},
		"a link alone":                   {files: map[string]string{"calc.py": "-> /etc/passwd"}, flag: "no regular file"},
		"more than is taken":             {refused: "the agent's workspace is larger than what is taken of one", flag: "larger"},
	} {
		t.Run(name, func(t *testing.T) {
			a, s := newAPI(t), &shelf{}
			r := testRunner(t, a, grades(t, s))
			e := runnertest.Execution("r", "")
			key := fulgur.AttemptKey(e.Key)
			runnertest.Start(t, r, e)
			const job = "agl-rollout-r"
			a.has(job, true)
			a.running(job)
			if test.refused != "" {
				s.put(key, RefusedArtifact, []byte(test.refused))
			} else {
				s.put(key, WorkArtifact, work(t, test.files))
			}
			a.exits(job, 0)
			if x := runnertest.Exit(t, r, "r"); x.Code != 0 || x.Failure != "" {
				t.Fatalf("exit %+v", x)
			}
			done := gradeLater(t.Context(), r, e.Key)
			if test.end.Terminated != nil {
				a.mu.Lock()
				a.log = test.log
				a.mu.Unlock()
				j := a.tests()
				a.testsPod(j.Name, corev1.PodRunning, ran)
				a.testsPod(j.Name, corev1.PodSucceeded, test.end)
			}
			g := <-done
			if g.err != nil || g.Reward != test.reward {
				t.Fatalf("%+v, want %g", g, test.reward)
			}
			if flags := strings.Join(g.Flags, "\n"); !strings.Contains(flags, test.flag) || test.flag == "" && flags != "" {
				t.Errorf("flags %q, want %q", flags, test.flag)
			}
			if list, _ := s.Artifacts(t.Context(), key); len(list) != 1 {
				t.Errorf("left %v", list)
			}
			a.mu.Lock()
			n := len(a.jobs)
			a.mu.Unlock()
			if n != 1 {
				t.Errorf("%d Jobs are left, want the agent's", n)
			}
			r.Acknowledge([]plan.Key{e.Key})
			for end := time.Now().Add(10 * time.Second); ; time.Sleep(5 * time.Millisecond) {
				list, _ := s.Artifacts(t.Context(), key)
				if len(list) == 0 || test.refused != "" {
					break
				}
				if time.Now().After(end) {
					t.Fatalf("what was graded stays: %v", list)
				}
			}
			if left, _ := filepath.Glob(filepath.Join(r.State, "*", "*")); len(left) > 0 {
				t.Errorf("left %v", left)
			}
		})
	}
}

// What keeps a workspace or its tests away may be the agent's doing (a sidecar that it
// drowned), but for what the server shows; what tests take too much of is.
func TestGradingGoesWrong(t *testing.T) {
	for name, test := range map[string]struct {
		play func(a *api, job string, s *shelf, key fulgur.AttemptKey)
		want string // of the exit
		by   plan.Cause
	}{
		"the sidecar ended without it": {func(a *api, job string, _ *shelf, _ fulgur.AttemptKey) { a.exits(job, 0) }, plan.ReasonWorkspace, plan.CauseEither},
		"so it did, and the server was away": {func(a *api, job string, s *shelf, _ fulgur.AttemptKey) {
			s.mu.Lock()
			s.failing = 1
			s.mu.Unlock()
			a.exits(job, 0)
		}, plan.ReasonWorkspace, plan.CauseTransient},
		"it was evicted": {func(a *api, job string, _ *shelf, _ fulgur.AttemptKey) {
			a.pod(job, func(p *corev1.Pod) {
				p.Status.Phase, p.Status.Reason, p.Status.Message = corev1.PodFailed, "Evicted", "Usage of EmptyDir volume exceeds the limit"
				p.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "agent", State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{}}}}
			})
		}, plan.ReasonDisk, plan.CauseAgent},
		"it is late": {func(a *api, job string, s *shelf, key fulgur.AttemptKey) {
			a.pod(job, func(p *corev1.Pod) {
				p.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "agent", State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{}}}}
			})
			time.Sleep(300 * time.Millisecond)
			s.put(key, WorkArtifact, work(a.t, nil))
		}, "", plan.CauseAgent},
	} {
		t.Run(name, func(t *testing.T) {
			a, s := newAPI(t), &shelf{}
			r := testRunner(t, a, grades(t, s))
			e := runnertest.Execution("r", "")
			runnertest.Start(t, r, e)
			a.has("agl-rollout-r", true)
			a.running("agl-rollout-r")
			test.play(a, "agl-rollout-r", s, fulgur.AttemptKey(e.Key))
			if x := runnertest.Exit(t, r, "r"); x.Failure != test.want || x.Cause != test.by {
				t.Errorf("exit %+v, want %q (cause %d)", x, test.want, test.by)
			}
		})
	}
	state := func(s corev1.ContainerState) func(a *api, job string) {
		return func(a *api, job string) { a.testsPod(job, corev1.PodFailed, s) }
	}
	for name, test := range map[string]struct {
		play func(a *api, job string)
		kind fulgur.Kind // of the grader's failure; "": none, and the reward is 0
	}{
		"tests out of memory": {state(corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: 137, Reason: "OOMKilled"}}), ""},
		"a copy that did not come": {func(a *api, job string) {
			a.pod(job, func(p *corev1.Pod) {
				p.Status.Phase = corev1.PodFailed
				p.Status.InitContainerStatuses = []corev1.ContainerStatus{{Name: copyName, State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: 1}}}}
			})
		}, fulgur.KindUnavailable},
		"a node that was lost": {func(a *api, job string) {
			a.pod(job, func(p *corev1.Pod) { p.Status.Phase, p.Status.Reason = corev1.PodFailed, "NodeLost" })
		}, fulgur.KindUnavailable},
		"tests that hang": {func(a *api, job string) {
			a.testsPod(job, corev1.PodRunning, corev1.ContainerState{Running: &corev1.ContainerStateRunning{}})
		}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			a, s := newAPI(t), &shelf{}
			r := testRunner(t, a, grades(t, s), func(o *Options) { o.Grading.Timeout = time.Second })
			e := runnertest.Execution("r", "")
			runnertest.Start(t, r, e)
			a.has("agl-rollout-r", true)
			a.running("agl-rollout-r")
			s.put(fulgur.AttemptKey(e.Key), WorkArtifact, work(t, map[string]string{"calc.py": "new"}))
			a.exits("agl-rollout-r", 0)
			runnertest.Exit(t, r, "r")
			done := gradeLater(t.Context(), r, e.Key)
			test.play(a, a.tests().Name)
			if g := <-done; fulgur.KindOf(g.err) != test.kind || g.Reward != 0 {
				t.Errorf("%+v, want kind %q", g, test.kind)
			}
		})
	}
}

// A controller that dies while it grades leaves a Job of tests; its successor removes
// that, takes the agent's over, and grades what it has left from the artifact.
func TestASuccessorGradesAnew(t *testing.T) {
	a, s := newAPI(t), &shelf{}
	change := grades(t, s)
	r := testRunner(t, a, change)
	e := runnertest.Execution("r", "")
	runnertest.Start(t, r, e)
	a.has("agl-rollout-r", true)
	a.running("agl-rollout-r")
	s.put(fulgur.AttemptKey(e.Key), WorkArtifact, work(t, map[string]string{"calc.py": "new"}))
	a.exits("agl-rollout-r", 0)
	runnertest.Exit(t, r, "r")
	ctx, die := context.WithCancel(t.Context())
	done := gradeLater(ctx, r, e.Key)
	left := a.tests().Name
	a.setFault(func(q *http.Request) (int, string) { // it cannot clean up
		if q.Method == http.MethodDelete {
			return refusalText(http.StatusForbidden, "Forbidden", "it is dead")
		}
		return 0, ""
	})
	die()
	if g := <-done; !errors.Is(g.err, context.Canceled) {
		t.Fatalf("%+v", g)
	}
	dies(t, r)
	a.setFault(nil)
	a.has(left, true)

	s.put(fulgur.AttemptKey(e.Key), copyPrefix+"old", []byte("x"))
	next := testRunner(t, a, change)
	keys, err := next.Adopt(t.Context(), []controller.Leftover{{Key: e.Key, Phase: fulgur.PhaseGrading, Handle: "default/agl-rollout-r/uid"}})
	if err != nil || len(keys) != 1 {
		t.Fatalf("adopted %v, %v", keys, err)
	}
	a.has(left, false)
	if x := runnertest.Exit(t, next, "r"); x.Code != 0 || x.Failure != "" {
		t.Fatalf("exit %+v", x)
	}
	if list, _ := s.Artifacts(t.Context(), fulgur.AttemptKey(e.Key)); len(list) != 1 {
		t.Errorf("left %v", list)
	}
	again := gradeLater(t.Context(), next, e.Key)
	a.mu.Lock()
	a.log = "2 passed"
	a.mu.Unlock()
	j := a.tests()
	a.testsPod(j.Name, corev1.PodSucceeded, corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{}})
	if g := <-again; g.err != nil || g.Reward != 1 {
		t.Errorf("%+v", g)
	}
}

// The agent's pod has its workspace, which the sidecar alone sees beside it; the tests' has
// the image and the place of the agent's, and nothing that was the attempt's.
func TestPodsOfGrading(t *testing.T) {
	tmpl, err := ParseTemplate("job.yaml", `
apiVersion: batch/v1
kind: Job
metadata: {name: x, labels: {kueue.x-k8s.io/queue-name: q}}
spec:
  template:
    metadata: {annotations: {sidecar.istio.io/inject: "false"}}
    spec:
      nodeSelector: {gpu: "true"}
      serviceAccountName: agents
      automountServiceAccountToken: true
      securityContext: {runAsUser: 7}
      initContainers: [{name: prepare, image: "busybox:1"}]
      containers:
      - name: agent
        image: agent:1
        env: [{name: TOKEN, value: s3cret}]
        envFrom: [{secretRef: {name: token}}]
        resources: {limits: {cpu: "2"}}
        securityContext: {readOnlyRootFilesystem: true}
        volumeMounts:
        - {name: conf, mountPath: /conf}
        - {name: data, mountPath: /data, readOnly: true}
        - {name: scratch, mountPath: /scratch}
        - {name: token, mountPath: /token, readOnly: true}
      volumes:
      - {name: conf, configMap: {name: conf}}
      - {name: data, hostPath: {path: /data}}
      - {name: scratch, hostPath: {path: /scratch}}
      - {name: token, secret: {secretName: token}}
`)
	if err != nil {
		t.Fatal(err)
	}
	o := Options{Template: tmpl, Namespace: "n", Scope: "s"}
	grades(t, &shelf{})(&o)
	m, err := newMaker(o)
	if err != nil {
		t.Fatal(err)
	}
	e := runnertest.Execution("r$(X)", "")
	e.Secrets = []string{"fk-credential"}
	e.Env = map[string]string{"OPENAI_API_KEY": "fk-credential", "OPENAI_BASE_URL": o.Gateway + "/v1"}
	made, err := m.build("agl-x", e)
	if err != nil {
		t.Fatal(err)
	}
	pod := made.job.Spec.Template.Spec
	relay := pod.InitContainers[0]
	if relay.Name != relayName || *relay.SecurityContext.RunAsUser != 7 || len(relay.SecurityContext.Capabilities.Add) > 0 || *pod.TerminationGracePeriodSeconds != 30 {
		t.Errorf("the sidecar: %+v, %d", relay, *pod.TerminationGracePeriodSeconds)
	}
	if i := slices.Index(relay.Args, "--rollout"); i < 0 || relay.Args[i+1] != "r$$(X)" || !slices.Contains(relay.Args, "--take") {
		t.Errorf("its arguments: %q", relay.Args)
	}
	for _, c := range slices.Concat(pod.InitContainers, pod.Containers) {
		i := slices.IndexFunc(c.VolumeMounts, func(m corev1.VolumeMount) bool { return m.Name == workName })
		if has := c.Name == "agent" || c.Name == relayName; has != (i >= 0) || c.Name == relayName && !c.VolumeMounts[i].ReadOnly {
			t.Errorf("%s: %+v", c.Name, c.VolumeMounts)
		}
	}
	if pod.Containers[0].WorkingDir != workPath {
		t.Errorf("the agent works in %q", pod.Containers[0].WorkingDir)
	}

	got, err := m.testObjects(made.job, "agent", grade.Test{Key: e.Key, Timeout: time.Minute}, "tests-x", "the key")
	if err != nil {
		t.Fatal(err)
	}
	pod = got.job.Spec.Template.Spec
	c := pod.Containers[0]
	if len(pod.Containers) != 1 || len(pod.InitContainers) != 1 || c.Image != "agent:1" || c.WorkingDir != workPath || c.Resources.Limits.Cpu().Value() != 2 || pod.NodeSelector["gpu"] != "true" || *pod.SecurityContext.RunAsUser != 7 {
		t.Errorf("the pod: %+v", pod)
	}
	if *pod.AutomountServiceAccountToken || len(c.EnvFrom) > 0 {
		t.Error("it gets a token")
	}
	if d := cmp.Diff([]string{"pytest", "-q", "$$(HOME)"}, c.Command); d != "" {
		t.Error(d)
	}
	var env, mounts []string
	for _, v := range c.Env {
		env = append(env, v.Name)
	}
	for _, v := range c.VolumeMounts {
		if !v.ReadOnly {
			v.MountPath += "*"
		}
		mounts = append(mounts, v.MountPath)
	}
	if d := cmp.Diff([]string{"HOME", "PYTHONDONTWRITEBYTECODE"}, env); d != "" {
		t.Error(d)
	}
	if d := cmp.Diff([]string{"/workspace*", "/tmp*", "/conf", "/data"}, mounts); d != "" {
		t.Error(d)
	}
	if slices.ContainsFunc(c.VolumeMounts, func(m corev1.VolumeMount) bool { return m.Name == copyName }) {
		t.Error("the tests hold the key of their copy")
	}
	if string(got.secret.Data[copyKey]) != "the key" || len(got.secret.Data) != 1 || got.job.OwnerReferences[0].Name != "agl-x" {
		t.Errorf("%+v, %+v", got.secret, got.job.OwnerReferences)
	}
	for name, want := range map[string]string{labelScope: m.scope, labelRollout: "", "kueue.x-k8s.io/queue-name": "q"} {
		if got.job.Labels[name] != want {
			t.Errorf("label %s is %q, want %q", name, got.job.Labels[name], want)
		}
	}
	if notes := got.job.Spec.Template.Annotations; notes["sidecar.istio.io/inject"] != "false" || notes[noteRollout] != "" || notes[noteCredential] != "" {
		t.Errorf("annotations %v", notes)
	}
}

// A workspace that nobody grades is a folder of the pod, and nothing else is changed.
func TestAWorkspaceAlone(t *testing.T) {
	m, err := newMaker(Options{Image: "agent:1", Workspace: true})
	if err != nil {
		t.Fatal(err)
	}
	made, err := m.build("agl-x", runnertest.Execution("r", ""))
	if err != nil {
		t.Fatal(err)
	}
	pod := made.job.Spec.Template.Spec
	if c := pod.Containers[0]; len(pod.InitContainers) > 0 || c.WorkingDir != workPath || len(c.VolumeMounts) != 1 || *pod.TerminationGracePeriodSeconds != 5 {
		t.Errorf("%+v", pod)
	}
}

func TestWhatCannotBeGradedIsRefused(t *testing.T) {
	for name, test := range map[string]struct{ spec, want string }{
		"another container":          {"containers: [{name: agent, image: a}, {name: db, image: b}]", "other containers beside the agent"},
		"a mount in its place":       {"containers: [{name: agent, image: a, volumeMounts: [{name: v, mountPath: /workspace/}]}], volumes: [{name: v, hostPath: {path: /x}}]", "something mounted at /workspace"},
		"a volume of its name":       {"containers: [{name: agent, image: a}], volumes: [{name: fulgur-workspace, emptyDir: {}}]", "a volume called fulgur-workspace"},
		"a user that nobody knows":   {"securityContext: {runAsNonRoot: true}, containers: [{name: agent, image: a}]", "runAsUser"},
		"processes that see another": {"shareProcessNamespace: true, containers: [{name: agent, image: a}]", "see each other's processes"},
		"a sidecar beside it":        {"initContainers: [{name: db, image: b, restartPolicy: Always}], containers: [{name: agent, image: a}]", ""},
	} {
		t.Run(name, func(t *testing.T) {
			tmpl, err := ParseTemplate("job.yaml", "apiVersion: batch/v1\nkind: Job\nmetadata: {name: x}\nspec: {template: {spec: {"+test.spec+"}}}\n")
			if err != nil {
				t.Fatal(err)
			}
			o := Options{Template: tmpl}
			grades(t, &shelf{})(&o)
			trial, err := NewTrial(o)
			if err != nil {
				t.Fatal(err)
			}
			err = trial.Job([]byte(`{}`))
			if test.want == "" && err != nil || test.want != "" && (err == nil || !strings.Contains(err.Error(), test.want)) {
				t.Errorf("%v, want %q", err, test.want)
			}
		})
	}
}

// Where failures are graded too, so is what was left by an agent that exits with another
// code, or is stopped; where nothing came of one, its end is as it was.
func TestFailuresAreGraded(t *testing.T) {
	for name, test := range map[string]struct {
		failures, stop, left bool
		want                 error
	}{
		"an exit code":                  {failures: true, left: true},
		"a stop":                        {failures: true, stop: true, left: true},
		"a stop, and nothing came":      {failures: true, stop: true, want: controller.ErrNothingLeft},
		"an exit code, and nobody asks": {left: true, want: controller.ErrNothingLeft},
	} {
		t.Run(name, func(t *testing.T) {
			a, s := newAPI(t), &shelf{}
			r := testRunner(t, a, grades(t, s), func(o *Options) { o.Grading.Failures = test.failures })
			e := runnertest.Execution("r", "")
			runnertest.Start(t, r, e)
			a.has("agl-rollout-r", true)
			a.running("agl-rollout-r")
			if test.left {
				s.put(fulgur.AttemptKey(e.Key), WorkArtifact, work(t, map[string]string{"calc.py": "new"}))
			}
			if test.stop {
				if err := r.Stop(t.Context(), e.Key); err != nil {
					t.Fatal(err)
				}
			} else {
				a.exits("agl-rollout-r", 3)
			}
			if x := runnertest.Exit(t, r, "r"); x.Failure != "" || !test.stop && x.Code != 3 {
				t.Fatalf("exit %+v", x)
			}
			done := gradeLater(t.Context(), r, e.Key)
			if test.want == nil {
				a.mu.Lock()
				a.log = "2 passed"
				a.mu.Unlock()
				j := a.tests()
				if owned := len(j.OwnerReferences) > 0; owned == test.stop {
					t.Errorf("owned by the agent's Job: %v", owned)
				}
				a.testsPod(j.Name, corev1.PodSucceeded, corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{}})
			}
			if g := <-done; !errors.Is(g.err, test.want) || test.want == nil && g.Reward != 1 {
				t.Errorf("%+v, want %v", g, test.want)
			}
			r.Acknowledge([]plan.Key{e.Key})
			r.mu.Lock()
			defer r.mu.Unlock()
			if len(r.works) > 0 {
				t.Errorf("kept: %v", r.works)
			}
		})
	}
}

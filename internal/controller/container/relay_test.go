package container

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/fulgur-rl/fulgur"
	"github.com/fulgur-rl/fulgur/internal/controller"
	"github.com/fulgur-rl/fulgur/internal/controller/plan"
	"github.com/fulgur-rl/fulgur/internal/controller/runnertest"
	"github.com/fulgur-rl/fulgur/internal/controller/sandbox"
)

// gatewayServer answers as a gateway does, and notes what came.
type gatewayServer struct {
	*httptest.Server
	mu   sync.Mutex
	seen []string
}

func newGateway(t *testing.T) *gatewayServer {
	g := &gatewayServer{}
	g.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		g.mu.Lock()
		g.seen = append(g.seen, r.URL.Path+" "+r.Header.Get("Authorization"))
		g.mu.Unlock()
		fmt.Fprintln(w, "{}")
	}))
	t.Cleanup(g.Close)
	return g
}

func (g *gatewayServer) calls() []string {
	g.mu.Lock()
	defer g.mu.Unlock()
	return append([]string(nil), g.seen...)
}

func relayed(t *testing.T, g *gatewayServer) Options {
	o := options(t)
	o.Network, o.Gateway = NetworkGateway, g.URL
	return o
}

func caller(g *gatewayServer, id, do string) controller.Execution {
	e := runnertest.Execution(id, do)
	e.Env["OPENAI_BASE_URL"] = g.URL + "/proxy/rollout/" + id + "/openai/v1"
	return e
}

func TestAgentReachesTheGatewayAloneAndHoldsNoKey(t *testing.T) {
	program(t)
	g := newGateway(t)
	r := runner(t, relayed(t, g))
	runnertest.Start(t, r, caller(g, "a", "env OPENAI_API_KEY; env OPENAI_BASE_URL; call; exit 3"))
	x := runnertest.Exit(t, r, "a")
	if x.Code != 3 || !strings.Contains(x.Tail, "OPENAI_API_KEY="+sandbox.Placeholder) || !strings.Contains(x.Tail, fmt.Sprintf("OPENAI_BASE_URL=http://127.0.0.1:%d/proxy/", sandbox.Port)) {
		t.Errorf("exit %+v", x)
	}
	if d := cmp.Diff([]string{"/proxy/rollout/a/openai/v1/chat/completions Bearer secret-a"}, g.calls()); d != "" {
		t.Error(d)
	}

	// Another attempt's address is not let through, though it is the same gateway's.
	e := caller(g, "b", "call")
	e.Env["OPENAI_BASE_URL"] = fmt.Sprintf("http://127.0.0.1:%d/proxy/rollout/a/openai/v1", sandbox.Port)
	runnertest.Start(t, r, e)
	if x := runnertest.Exit(t, r, "b"); x.Code != 5 || !strings.Contains(x.Tail, "403") {
		t.Errorf("exit %+v", x)
	}
	if n := len(g.calls()); n != 1 {
		t.Errorf("%d calls came through", n)
	}
	if left, _ := filepath.Glob(filepath.Join(r.doors(), "*")); len(left) > 0 {
		t.Errorf("relays left: %v", left)
	}
}

func TestProofShowsWhatContainersReach(t *testing.T) {
	program(t)
	g := newGateway(t)
	prove := func(t *testing.T, change func(*Options)) error {
		o := relayed(t, g)
		change(&o)
		return runner(t, o).Prove(t.Context(), o.Gateway)
	}
	t.Run("the gateway alone", func(t *testing.T) {
		if err := prove(t, func(*Options) {}); err != nil {
			t.Error(err)
		}
	})
	t.Run("escaped: the guard is off", func(t *testing.T) {
		err := prove(t, func(o *Options) { o.unguarded = true })
		if fulgur.KindOf(err) != fulgur.KindForbidden || !strings.Contains(err.Error(), "reach more than the gateway") {
			t.Errorf("error %v", err)
		}
	})
	t.Run("a network of the user's that reaches it", func(t *testing.T) {
		if err := prove(t, func(o *Options) { o.Network = "host" }); err != nil {
			t.Error(err)
		}
	})
	t.Run("one that does not", func(t *testing.T) {
		err := prove(t, func(o *Options) { o.Network = "none" })
		if fulgur.KindOf(err) != fulgur.KindUnavailable || !strings.Contains(err.Error(), "runner.agent_url") {
			t.Errorf("error %v", err)
		}
	})
}

// An agent goes on through the next controller's relay, whether the one before was
// killed or left.
func TestRelayComesBackWithTheNextController(t *testing.T) {
	program(t)
	for name, end := range map[string]func(t *testing.T, r *Runner, x *box){
		"killed": func(_ *testing.T, _ *Runner, x *box) { _ = x.door.http.Close() },
		"left": func(t *testing.T, r *Runner, _ *box) {
			r.Leave()
			if err := r.Close(); err != nil {
				t.Error(err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			g := newGateway(t)
			dir := shared(t)
			old := runner(t, relayed(t, g))
			e := caller(g, "a", "call; pid "+dir+"/pid; sleep 1500; call; exit 3")
			runnertest.Start(t, old, e)
			runnertest.Pid(t, dir+"/pid")
			old.mu.Lock()
			x := old.live[e.Key]
			old.mu.Unlock()
			end(t, old, x)
			stale := filepath.Join(old.doors(), "stale") // of a container that is no more
			if err := os.Mkdir(stale, 0o700); err != nil {
				t.Fatal(err)
			}

			r := runner(t, relayed(t, g))
			keys, err := r.Adopt(t.Context(), []controller.Leftover{{Key: e.Key, Phase: fulgur.PhaseRunning}})
			if err != nil || len(keys) != 1 {
				t.Fatalf("adopted %v, %v", keys, err)
			}
			if _, err := os.Stat(stale); err == nil {
				t.Error("what a relay left is still there")
			}
			if x := runnertest.Exit(t, r, "a"); x.Code != 3 {
				t.Errorf("exit %+v", x)
			}
			const call = "/proxy/rollout/a/openai/v1/chat/completions Bearer secret-a"
			if d := cmp.Diff([]string{call, call}, g.calls()); d != "" {
				t.Error(d)
			}
		})
	}
}

// A runner that leads again, as when its lease was lost and came back, goes on with
// its own containers, and with what another controller did to their relays.
func TestARunnerThatLeadsAgainKeepsItsContainers(t *testing.T) {
	g := newGateway(t)
	dir := shared(t)
	r := runner(t, relayed(t, g))
	e := caller(g, "a", "call; pid "+dir+"/pid; sleep 1500; call; exit 3")
	runnertest.Start(t, r, e)
	runnertest.Pid(t, dir+"/pid")
	r.Leave()
	other, err := listenDoor(r.doorOf(e.Key), ticket{Upstream: g.URL})
	if err != nil {
		t.Fatal(err)
	}
	other.shut(false)
	keys, err := r.Adopt(t.Context(), []controller.Leftover{{Key: e.Key, Phase: fulgur.PhaseRunning}})
	if d := cmp.Diff([]plan.Key{e.Key}, keys); d != "" || err != nil {
		t.Fatal(d, err)
	}
	if x := runnertest.Exit(t, r, "a"); x.Code != 3 {
		t.Errorf("exit %+v", x)
	}
	const call = "/proxy/rollout/a/openai/v1/chat/completions Bearer secret-a"
	if d := cmp.Diff([]string{call, call}, g.calls()); d != "" {
		t.Error(d)
	}
	if err := r.Close(); err != nil {
		t.Error(err)
	}
	if n := len(containers(t, r)); n > 0 {
		t.Errorf("%d containers left: it leads, and does not leave", n)
	}
}

// A controller that leaves may do so after its successor has opened the door.
func TestLeavingTakesNoSuccessorsSocket(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "a")
	if err := os.MkdirAll(filepath.Join(dir, "gateway"), 0o700); err != nil {
		t.Fatal(err)
	}
	g := newGateway(t)
	open := func() *door {
		d, err := listenDoor(dir, ticket{Upstream: g.URL, Pass: sandbox.Pass{Paths: []string{"/"}}})
		if err != nil {
			t.Fatal(err)
		}
		return d
	}
	old, successor := open(), open()
	defer successor.shut(true)
	old.shut(false)
	if err := old.listen(); err != nil { // which it does no more
		t.Error(err)
	}
	c, err := net.Dial("unix", filepath.Join(successor.folder(), filepath.Base(socketPath)))
	if err != nil {
		t.Fatal(err)
	}
	_ = c.Close()
}

// Each of an agent's connections takes a descriptor of this process.
func TestADoorTakesFewConnections(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "a")
	if err := os.MkdirAll(filepath.Join(dir, "gateway"), 0o700); err != nil {
		t.Fatal(err)
	}
	g := newGateway(t)
	d, err := listenDoor(dir, ticket{Upstream: g.URL, Pass: sandbox.Pass{Paths: []string{"/"}}})
	if err != nil {
		t.Fatal(err)
	}
	defer d.shut(true)
	var all []net.Conn // held: one that nobody refers to is closed by the collector
	defer func() {
		for _, c := range all {
			_ = c.Close()
		}
	}()
	for range 257 {
		c, err := net.Dial("unix", filepath.Join(d.folder(), filepath.Base(socketPath)))
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, c)
	}
	first, last := all[0], all[256]
	answer := make([]byte, 12)
	fmt.Fprint(last, "GET / HTTP/1.1\r\nHost: g\r\n\r\n")
	_ = last.SetReadDeadline(time.Now().Add(100 * time.Millisecond))
	if n, err := io.ReadFull(last, answer); err == nil {
		t.Fatalf("it was answered beside 256 others: %q", answer[:n])
	}
	_ = first.Close()
	_ = last.SetReadDeadline(time.Now().Add(10 * time.Second))
	if _, err := io.ReadFull(last, answer); err != nil || string(answer) != "HTTP/1.1 200" {
		t.Errorf("%q, %v when one had left", answer, err)
	}
}

func TestSomebodyElsesFolderIsRefused(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "open")
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(dir, 0o777); err != nil {
		t.Fatal(err)
	}
	if err := ownFolder(dir); fulgur.KindOf(err) != fulgur.KindForbidden {
		t.Errorf("error %v", err)
	}
	if err := ownFolder(filepath.Join(dir, "new")); err != nil {
		t.Error(err)
	}
	// No ticket in one is believed, and nothing there is removed.
	r := &Runner{Options: Options{Environ: []string{"XDG_RUNTIME_DIR=" + dir}}, scope: "s"}
	x := newBox(plan.Key{Rollout: "a", Attempt: "0"}, "a")
	if err := r.reopenDoor(x); err != nil {
		t.Error(err)
	}
	if err := os.MkdirAll(r.doorOf(x.key), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := r.reopenDoor(x); fulgur.KindOf(err) != fulgur.KindForbidden {
		t.Errorf("error %v", err)
	}
	if r.sweepDoors(); checkFolder(r.doors()) == nil {
		t.Error("the folder is ours")
	}
	if _, err := os.Stat(r.doorOf(x.key)); err != nil {
		t.Error(err)
	}
}

// Another controller of the run starts, and its probe has a relay too.
func TestAProbesDoorIsNotSweptAway(t *testing.T) {
	r := &Runner{Options: Options{Environ: []string{"XDG_RUNTIME_DIR=" + t.TempDir()}}, scope: "s"}
	probe, attempt := r.doorOf(plan.Key{Rollout: "probe"}), r.doorOf(plan.Key{Rollout: "a", Attempt: "0"})
	if err := ownFolder(r.doors()); err != nil {
		t.Fatal(err)
	}
	left := func(age time.Duration) (names []string) {
		for _, d := range []string{probe, attempt} {
			if err := os.MkdirAll(d, 0o700); err != nil {
				t.Fatal(err)
			}
			if at := time.Now().Add(-age); os.Chtimes(d, at, at) != nil {
				t.Fatal("the folder's time cannot be set")
			}
		}
		r.sweepDoors()
		names, _ = filepath.Glob(filepath.Join(r.doors(), "*"))
		return names
	}
	if d := cmp.Diff([]string{probe}, left(0)); d != "" {
		t.Error(d)
	}
	if all := left(time.Hour); len(all) > 0 { // of a controller that was killed
		t.Errorf("left: %v", all)
	}
}

func TestAMissingProgramIsSaid(t *testing.T) {
	_, err := New(context.Background(), Options{Image: "x", Program: "no-such-program", Network: "none"})
	if fulgur.KindOf(err) != fulgur.KindNotFound || !strings.Contains(err.Error(), "no-such-program is not on PATH") {
		t.Errorf("error %v", err)
	}
}

// What clients say, as Podman 4.3 and Docker 20.10 and 27 do.
func TestFailuresAreToldApart(t *testing.T) {
	for text, want := range map[string]trouble{
		"localhost/none:1: image not known": troubleImage,
		"No such image: nonesuch:1":         troubleImage,
		"pull access denied for nonesuch, repository does not exist or may require 'docker login'":                                                              troubleImage,
		`exec: "/nope": stat /nope: no such file or directory: OCI runtime attempted to invoke a command that was not found`:                                    troubleProgram,
		`failed to create task for container: runc create failed: unable to start container process: exec: "nope": executable file not found in $PATH: unknown`: troubleProgram,
		`creating container storage: the container name "x" is already in use by 9f. You have to remove that container`:                                         troubleName,
		`Conflict. The container name "/x" is already in use by container "9f"`:                                                                                 troubleName,
		`no container with name or ID "x" found: no such container`:                                                                                             troubleGone,
		"No such container: x": troubleGone,
		"can only kill running containers. 9f is in state exited: container state improper":                 troubleState,
		"Cannot kill container: x: Container 9f is not running":                                             troubleState,
		"you can only attach to running containers":                                                         troubleState,
		"You cannot attach to a stopped container, start it first":                                          troubleState,
		"unknown flag: --no-such-option":                                                                    troubleOptions,
		"crun: setrlimit `RLIMIT_NOFILE`: Operation not permitted: OCI permission denied":                   troubleRuntime,
		"Cannot connect to the Docker daemon at unix:///var/run/docker.sock. Is the docker daemon running?": troubleRuntime,
	} {
		if got := classify(&failure{126, text}); got != want {
			t.Errorf("%q: %d, want %d", text, got, want)
		}
	}
}

// Command controller measures `fulgur controller` with its local runner beside the
// reference's local controller, on the same server (fulgur serve): the time from a
// rollout's creation to its process, 300 rollouts through 50 slots, and what 10,000
// queued rollouts cost. See ../README.md and run.sh. Linux.
package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/fulgur-rl/fulgur"
	"github.com/fulgur-rl/fulgur/internal/api/client"
)

const key = "bench-key"

// stampEnv makes this program the agent: it writes when it began to the folder
// that the variable names.
const stampEnv = "BENCH_STAMP"

func main() {
	if dir := os.Getenv(stampEnv); dir != "" {
		name := filepath.Join(dir, os.Getenv("FULGUR_ROLLOUT_ID"))
		if os.WriteFile(name, strconv.AppendInt(nil, time.Now().UnixNano(), 10), 0o600) != nil {
			os.Exit(1)
		}
		return
	}
	var b bench
	flag.StringVar(&b.fulgur, "fulgur", "", "the fulgur binary")
	flag.StringVar(&b.python, "reference", "", "Python with agentlightning 1.0.2; empty: the reference is left out")
	flag.BoolVar(&b.same, "same", false, "run the reference's Python process as our agent too (minutes)")
	parts := flag.String("parts", "start,rollouts,queue", "which measurements")
	flag.Parse()
	if err := b.run(strings.Split(*parts, ",")); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

type bench struct {
	fulgur, python string
	same           bool
	dir, self      string
	server         string
	running        []*exec.Cmd
}

func (b *bench) run(parts []string) (err error) {
	if b.dir, err = os.MkdirTemp("", "bench-controller-"); err != nil {
		return err
	}
	defer os.RemoveAll(b.dir)
	if b.self, err = os.Executable(); err != nil {
		return err
	}
	defer b.stopAll()
	for _, p := range parts {
		measure := map[string]func(*client.Client) error{"start": b.start, "rollouts": b.rollouts, "queue": b.queue}[p]
		if measure == nil {
			return fmt.Errorf("unknown part %q", p)
		}
		c, err := b.serve(p)
		if err != nil {
			return err
		}
		if err := errors.Join(measure(c), c.Close()); err != nil {
			return fmt.Errorf("%s: %w", p, err)
		}
		b.stopAll()
	}
	return nil
}

// serve starts fulgur serve on a new store, with the run bench.
func (b *bench) serve(part string) (*client.Client, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	addr := l.Addr().String()
	if err := l.Close(); err != nil {
		return nil, err
	}
	b.server = "http://" + addr
	if _, err := b.begin("serve-"+part, nil, b.fulgur, "serve", "--listen", addr, "--key", key, "--store", "sqlite:"+filepath.Join(b.dir, part+".db"), "--log-level", "warn"); err != nil {
		return nil, err
	}
	c, err := client.New(b.server, key, client.Options{})
	if err != nil {
		return nil, err
	}
	return c, c.PutRun(context.Background(), fulgur.Run{ID: "bench", Model: "m"})
}

// begin starts a program in a group of its own.
func (b *bench) begin(name string, env []string, args ...string) (*exec.Cmd, error) {
	out, err := os.Create(filepath.Join(b.dir, name+".log"))
	if err != nil {
		return nil, err
	}
	defer out.Close()
	c := exec.Command(args[0], args[1:]...)
	c.Dir, c.Stdout, c.Stderr, c.Env = b.dir, out, out, append(os.Environ(), env...)
	c.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := c.Start(); err != nil {
		return nil, err
	}
	b.running = append(b.running, c)
	return c, nil
}

func (b *bench) stopAll() {
	for _, c := range slices.Backward(b.running) {
		_ = c.Process.Signal(syscall.SIGTERM)
		done := make(chan struct{})
		go func() { _ = c.Wait(); close(done) }()
		select {
		case <-done:
		case <-time.After(15 * time.Second):
			_ = syscall.Kill(-c.Process.Pid, syscall.SIGKILL)
			<-done
		}
	}
	b.running = nil
}

// control starts fulgur controller with an agent.
func (b *bench) control(slots int, env []string, agent ...string) (*exec.Cmd, error) {
	command, err := json.Marshal(agent)
	if err != nil {
		return nil, err
	}
	file := filepath.Join(b.dir, "run.yaml")
	text := fmt.Sprintf("run: bench\ndata: {train: none.jsonl}\nagent: {command: %s}\nrunner: {sandbox: none, slots: %d}\nreward: {from: agent}\nout: %s\n", command, slots, b.dir)
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		return nil, err
	}
	return b.begin("controller", env, b.fulgur, "controller", file, "--server", b.server, "--key", key, "--log-level", "warn")
}

func specs(n, inputBytes int, prefix string) []fulgur.RolloutSpec {
	input, _ := json.Marshal(map[string]string{"question": strings.Repeat("q", inputBytes)}) // text encodes
	out := make([]fulgur.RolloutSpec, n)
	for i := range out {
		out[i] = fulgur.RolloutSpec{ID: fulgur.RolloutID(fmt.Sprintf("%s-%d", prefix, i)), Run: "bench", Input: input, IsTrain: true}
	}
	return out
}

// start measures queued to process started, one rollout at a time.
func (b *bench) start(c *client.Client) error {
	stamps := filepath.Join(b.dir, "stamps")
	if err := os.Mkdir(stamps, 0o700); err != nil {
		return err
	}
	if _, err := b.control(8, []string{stampEnv + "=" + stamps}, b.self); err != nil {
		return err
	}
	var took []time.Duration
	for i, s := range specs(60, 100, "s") {
		began := time.Now()
		if _, err := c.CreateRollouts(context.Background(), []fulgur.RolloutSpec{s}); err != nil {
			return err
		}
		at, err := stamp(filepath.Join(stamps, string(s.ID)))
		if err != nil {
			return err
		}
		if i >= 10 { // the first ones wait for the controller's own start
			took = append(took, at.Sub(began))
		}
		time.Sleep(200 * time.Millisecond) // idle between two: their ends are told
	}
	slices.Sort(took)
	fmt.Printf("queued to process started, idle: p50 %.1f ms, p90 %.1f ms (creation's request and the process's own start included)  %s\n",
		ms(took[len(took)/2]), ms(took[len(took)*9/10]), verdict(ms(took[len(took)/2]) <= 20, "p50 at most 20 ms"))
	return nil
}

func stamp(name string) (time.Time, error) {
	for end := time.Now().Add(20 * time.Second); time.Now().Before(end); time.Sleep(time.Millisecond) {
		text, err := os.ReadFile(name)
		if err != nil || len(text) == 0 {
			continue
		}
		ns, err := strconv.ParseInt(string(text), 10, 64)
		return time.Unix(0, ns), err
	}
	return time.Time{}, errors.New("the agent has not started within 20 s")
}

// rollouts measures 300 no-op rollouts through 50 slots.
func (b *bench) rollouts(c *client.Client) error {
	const n = 300
	worker := []string{b.python, "-c", "import sys; from agentlightning.controller.local_reconciler import _run_local_reconciler_worker as w; sys.exit(w('noop.Agent'))"}
	env := []string{"PYTHONPATH=" + b.dir}
	if err := os.WriteFile(filepath.Join(b.dir, "noop.py"), []byte("class Agent:\n    def run(self):\n        pass\n"), 0o600); err != nil {
		return err
	}
	ours, err := b.through(c, "o", n, nil, "true")
	if err != nil {
		return err
	}
	fmt.Printf("%d no-op rollouts through 50 slots: %.2f s\n", n, ours.Seconds())
	if b.python == "" {
		return nil
	}
	if b.same {
		same, err := b.through(c, "p", n, env, worker...)
		if err != nil {
			return err
		}
		fmt.Printf("  the same with the reference's Python process as the agent: %.2f s\n", same.Seconds())
	}
	reference, err := b.reference(n, env)
	if err != nil {
		return err
	}
	ratio := reference.Seconds() / ours.Seconds()
	fmt.Printf("  the reference's local controller, whose agents are Python processes: %.2f s: %.0f times ours  %s\n", reference.Seconds(), ratio, verdict(ratio >= 20, "20 times"))
	return nil
}

// through runs n rollouts through our controller and returns how long that took.
func (b *bench) through(c *client.Client, prefix string, n int, env []string, agent ...string) (time.Duration, error) {
	ctl, err := b.control(50, env, agent...)
	if err != nil {
		return 0, err
	}
	if err := b.settled(c, specs(1, 100, prefix+"warm")); err != nil { // it is up
		return 0, err
	}
	began := time.Now()
	err = b.settled(c, specs(n, 100, prefix))
	took := time.Since(began)
	_ = ctl.Process.Signal(syscall.SIGTERM)
	_ = ctl.Wait()
	b.running = b.running[:len(b.running)-1]
	return took, err
}

// settled creates rollouts and waits until all have ended well.
func (b *bench) settled(c *client.Client, list []fulgur.RolloutSpec) error {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	if _, err := c.CreateRollouts(ctx, list); err != nil {
		return err
	}
	for {
		open, err := c.Rollouts(ctx, fulgur.RolloutQuery{Run: "bench", States: []fulgur.RolloutState{fulgur.Queuing, fulgur.Running}, Limit: 1})
		if err != nil {
			return err
		}
		if len(open) == 0 {
			break
		}
		time.Sleep(10 * time.Millisecond)
	}
	failed, err := c.Rollouts(ctx, fulgur.RolloutQuery{Run: "bench", States: []fulgur.RolloutState{fulgur.Failed}, Limit: 1})
	if err == nil && len(failed) > 0 {
		err = fmt.Errorf("%s failed: %s", failed[0].ID, failed[0].Error)
	}
	return err
}

// reference runs n rollouts through the reference's controller, over v1.
func (b *bench) reference(n int, env []string) (time.Duration, error) {
	_, err := b.begin("reference", env, filepath.Join(filepath.Dir(b.python), "agl-controller"), "runner_type=local", "agl_server.url="+b.server, "agl_server.key="+key)
	if err != nil {
		return 0, err
	}
	create := func(ids string, n int) error {
		var list []any
		for i := range n {
			list = append(list, map[string]any{"rollout_id": fmt.Sprintf("%s-%d", ids, i), "input": map[string]any{}, "is_train": true,
				"config": map[string]any{"local": map[string]any{"agent_class": "noop.Agent", "env_map": map[string]string{}}}})
		}
		if err := b.call("POST", "/api/rollouts", list, nil); err != nil {
			return err
		}
		for {
			var open []json.RawMessage
			if err := b.call("GET", "/api/rollouts?state_in=queuing&state_in=running&limit=1", nil, &open); err != nil || len(open) == 0 {
				return err
			}
			time.Sleep(20 * time.Millisecond)
		}
	}
	if err := create("refwarm", 1); err != nil {
		return 0, err
	}
	began := time.Now()
	err = create("ref", n)
	return time.Since(began), err
}

func (b *bench) call(method, path string, body, out any) error {
	text, err := json.Marshal(body)
	if err != nil {
		return err
	}
	req, err := http.NewRequest(method, b.server+path, bytes.NewReader(text))
	if err != nil {
		return err
	}
	req.Header.Set("Authorization", "Bearer "+key)
	req.Header.Set("Content-Type", "application/json")
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode >= 300 {
		return fmt.Errorf("%s %s: %s", method, path, resp.Status)
	}
	if out == nil {
		return nil
	}
	return json.NewDecoder(resp.Body).Decode(out)
}

// queue measures what 10,000 queued rollouts cost while one agent runs.
func (b *bench) queue(c *client.Client) error {
	ctl, err := b.control(1, nil, "sleep", "1000")
	if err != nil {
		return err
	}
	const n, idle = 10_000, 20 * time.Second
	if _, err := c.CreateRollouts(context.Background(), specs(1, 1000, "first")); err != nil {
		return err
	}
	time.Sleep(2 * time.Second)
	before := rss(ctl.Process.Pid)
	began := time.Now()
	for list := range slices.Chunk(specs(n, 1000, "q"), 500) {
		if _, err := c.CreateRollouts(context.Background(), list); err != nil {
			return err
		}
	}
	created := time.Since(began)
	time.Sleep(3 * time.Second)
	server := b.running[0].Process.Pid
	cpu, serverCPU := cpuOf(ctl.Process.Pid), cpuOf(server)
	time.Sleep(idle)
	used, serverUsed := cpuOf(ctl.Process.Pid)-cpu, cpuOf(server)-serverCPU
	peak := rss(ctl.Process.Pid)
	fmt.Printf("%d queued rollouts (1 KB of input each; created in %.1f s): the controller has %.0f MiB (%.0f before)  %s\n", n, created.Seconds(), peak, before, verdict(peak <= 100, "at most 100 MiB"))
	fmt.Printf("  idle for %s: %.2f s of CPU, the server %.2f s  %s\n", idle, used, serverUsed, verdict(used <= 0.05, "none that can be measured"))
	return nil
}

func ms(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }

func verdict(ok bool, bar string) string {
	if ok {
		return "pass (" + bar + ")"
	}
	return "MISS (" + bar + ")"
}

// rss is a process's memory in MiB.
func rss(pid int) float64 {
	b, _ := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	for line := range strings.Lines(string(b)) {
		if v, ok := strings.CutPrefix(line, "VmRSS:"); ok {
			kib, _ := strconv.ParseFloat(strings.Fields(v)[0], 64)
			return kib / 1024
		}
	}
	return 0
}

// cpuOf is the CPU time of a process itself in seconds, in steps of 10 ms.
func cpuOf(pid int) float64 {
	b, _ := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	f := strings.Fields(string(b)[strings.LastIndexByte(string(b), ')')+1:])
	user, _ := strconv.ParseFloat(f[11], 64)
	system, _ := strconv.ParseFloat(f[12], 64)
	return (user + system) / 100
}

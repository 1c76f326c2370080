package harness

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/fulgur-rl/fulgur"
	"github.com/fulgur-rl/fulgur/internal/trainer/sample"
)

// harness is a program that people ship, and how it does the task: write a file,
// read it back with two tools at once where it can, say so.
type harness struct {
	script  string // below run/
	base    string // what its base URL ends in
	dialect string
	tool    string // its shell tool, as it is offered; "": it has none
	steps   []step
	whole   bool // it asks for unstreamed answers
	aside   int  // calls of its own that are not the task's
	heavy   bool // its installation is too big for every run
}

const taskPrompt = "Write the word hello into the file hello.txt, read it back, and say Done."

// shellTask is the task for a harness with a shell tool: one call, then two at
// once, then the answer.
func shellTask(tool, argument string, more string) []step {
	call := func(cmd string) toolCall {
		return toolCall{tool, fmt.Sprintf(`{%q:%q%s}`, argument, cmd, more)}
	}
	return []step{
		{text: "I make the file.", calls: []toolCall{call("echo hello > hello.txt")}},
		{text: "Now I look.", calls: []toolCall{call("cat hello.txt"), call("wc -l hello.txt")}},
		{text: "Done: the file says hello."},
	}
}

func harnesses() []harness {
	return []harness{
		{script: "pi", base: "/openai/v1", dialect: "openai-chat", tool: "bash", steps: shellTask("bash", "command", "")},
		{script: "codex", base: "/openai/v1", dialect: "openai-responses", tool: "exec_command", steps: shellTask("exec_command", "cmd", "")},
		{script: "claude-code", base: "/anthropic", dialect: "anthropic-messages", tool: "Bash", steps: shellTask("Bash", "command", `,"description":"a step"`)},
		{script: "qwen-code", base: "/openai/v1", dialect: "openai-chat", tool: "run_shell_command", heavy: true,
			steps: shellTask("run_shell_command", "command", `,"is_background":false`)},
		{script: "opencode", base: "/openai/v1", dialect: "openai-chat", tool: "bash", heavy: true, aside: 1,
			steps: shellTask("bash", "command", `,"description":"a step"`)},
		{script: "openhands", base: "/openai/v1", dialect: "openai-chat", tool: "terminal", heavy: true, whole: true,
			steps: shellTask("terminal", "command", "")},
		{script: "mini-swe-agent", base: "/openai/v1", dialect: "openai-chat", heavy: true, whole: true, steps: []step{
			{text: "<sh>echo hello > hello.txt</sh>"}, {text: "<sh>cat hello.txt</sh>"},
			{text: "<sh>echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT</sh>"}}},
	}
}

// TestHarnesses runs each harness on the task, unchanged, with nothing but a base
// URL and an attempt's credential: once at a token sampler with a pause in the
// middle, once at a chat server. Every call must be on record, as it was sampled.
func TestHarnesses(t *testing.T) {
	hold := 5 * time.Second
	if os.Getenv("FULGUR_HARNESS") == "all" {
		hold = 35 * time.Second // long enough for two keep-alives
	}
	for _, h := range harnesses() {
		t.Run(h.script, func(t *testing.T) {
			needHarness(t, h.heavy)
			t.Run("at a token sampler, with a pause", func(t *testing.T) { h.try(t, fulgur.EndpointTokens, hold) })
			t.Run("at a chat server", func(t *testing.T) { h.try(t, fulgur.EndpointChat, 0) })
		})
	}
}

func (h *harness) try(t *testing.T, kind fulgur.EndpointKind, hold time.Duration) {
	g := startGateway(t)
	p := &pause{gate: g, span: hold}
	m := newModel(t, h.tool, h.steps, func(step int) {
		if step == 0 && hold > 0 {
			p.begin(t.Context())
		}
	})
	g.use(t, m, kind)
	a := g.open(t, "task")

	dir := t.TempDir()
	work := filepath.Join(dir, "work")
	if err := os.Mkdir(work, 0o755); err != nil {
		t.Fatal(err)
	}
	out := runScript(t, h.script, 2*time.Minute, g.url+h.base, a.Credential, work, taskPrompt)
	if b, err := os.ReadFile(filepath.Join(work, "hello.txt")); err != nil || string(b) != "hello\n" {
		t.Errorf("the file holds %q, %v", b, err)
	}
	if hold > 0 {
		p.check(t)
	}
	calls := g.calls(t, "task")
	h.check(t, m, calls)
	if kind == fulgur.EndpointTokens && h.aside == 0 {
		if built := sample.Build("task", calls, sample.Options{}); len(built.Sequences) != 1 {
			t.Errorf("%d training samples: the conversation only grows, so want 1", len(built.Sequences))
		}
	}
	if t.Failed() {
		t.Logf("%s said:\n%s", h.script, out)
	}
}

// check looks at the record: each call that the model answered is there, in order,
// streamed as it was asked for, with the ids that were sampled, and trains unless
// it is not of the task.
func (h *harness) check(t *testing.T, m *model, calls []fulgur.Call) {
	t.Helper()
	taken, main := m.taken(), 0
	if len(calls) != len(taken) {
		t.Errorf("%d calls on record, the model answered %d: %v", len(calls), len(taken), taken)
	}
	for i := range calls {
		c := &calls[i]
		t.Logf("call %d: %s stream=%t %d messages, %d tools, %d + %d tokens, %s, trainable %t %v %s", c.Index, c.Dialect, c.Stream, len(c.Messages), len(c.Tools),
			len(c.PromptIDs), len(c.SampledIDs), c.FinishReason, c.Trainable, c.Untrainable, c.Auxiliary)
		if c.Dialect != h.dialect || c.Stream == h.whole || c.HTTPStatus != 200 || c.Fate != fulgur.FateDelivered {
			t.Errorf("call %d: dialect %s, stream %t, status %d, %s, %s", i, c.Dialect, c.Stream, c.HTTPStatus, c.Fate, c.Error)
		}
		at := slices.IndexFunc(h.steps, func(s step) bool {
			return slices.Equal(c.SampledIDs, append(m.tok.Encode(nil, s.written()), m.end))
		})
		if at < 0 {
			if c.Trainable || c.Auxiliary == "" {
				t.Errorf("call %d is not of the task: trainable %t, auxiliary %q", i, c.Trainable, c.Auxiliary)
			}
			continue
		}
		if at != main || !c.Trainable || c.Version() != modelVersion || len(c.LogProbs) != len(c.SampledIDs) || c.LogProbs[0] != logProbOf(c.SampledIDs[0]) {
			t.Errorf("call %d: step %d, want %d; trainable %t %v; %d log probs", i, at, main, c.Trainable, c.Untrainable, len(c.LogProbs))
		}
		main++
	}
	if main != len(h.steps) || len(calls)-main > h.aside {
		t.Errorf("%d calls of the task, want %d; %d others, want at most %d", main, len(h.steps), len(calls)-main, h.aside)
	}
}

// runScript runs a script of run/ in a process group of its own and returns what
// it said. It must end well, within the limit.
func runScript(t *testing.T, name string, limit time.Duration, args ...string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	c := exec.CommandContext(ctx, filepath.Join("run", name+".sh"), args...)
	var out bytes.Buffer
	c.Stdout, c.Stderr = &out, &out
	c.Env = append(os.Environ(), "HARNESS_MODEL="+modelName)
	c.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	c.Cancel = func() error { return syscall.Kill(-c.Process.Pid, syscall.SIGKILL) }
	c.WaitDelay = 5 * time.Second
	began := time.Now()
	err := c.Run()
	_ = syscall.Kill(-c.Process.Pid, syscall.SIGKILL) // what it left behind
	if err != nil {
		t.Errorf("%s: %v\n%s", name, err, tail(out.String(), 4000))
	}
	t.Logf("%s took %s", name, time.Since(began).Round(100*time.Millisecond))
	return out.String()
}

func tail(s string, n int) string {
	if len(s) <= n {
		return s
	}
	return "…" + strings.ToValidUTF8(s[len(s)-n:], "")
}

package cli

import (
	"bufio"
	"cmp"
	"encoding/json"
	"fmt"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/fulgur-rl/fulgur/examples/calc"
	"github.com/fulgur-rl/fulgur/internal/trainer"
)

// soon is how long a command may take to say that it can't start.
const soon = 20 * time.Second

// UI-05: what cannot start says so at once, with the cause and the fix.
func TestTakenPort(t *testing.T) {
	t.Parallel()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	dir := tinyDir(t)
	addr := ln.Addr().String()
	start(t, dir, nil, "train", "run.yaml", "--set", "listen="+addr).ends(soon, exitFailed, "listen on "+addr, "the address is taken", "--set listen=")
	start(t, dir, nil, "serve", "--listen", addr).ends(soon, exitFailed, "listen on "+addr, "--listen")
	start(t, dir, nil, "engine", "serve", "--listen", addr).ends(soon, exitFailed, "listen on "+addr)
	start(t, dir, nil, "try", "--listen", addr, "--", "true").ends(soon, exitFailed, "listen on "+addr)
}

// UI-05 too, for a server that is down or refuses the key.
func TestServerThatIsNotThere(t *testing.T) {
	t.Parallel()
	dir := tinyDir(t)
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	down := "http://" + ln.Addr().String()
	ln.Close() // nobody listens there now
	for _, args := range [][]string{{"train", "run.yaml"}, {"controller", "run.yaml"}, {"rollouts", "list"}} {
		start(t, dir, nil, append(args, "--server", down)...).ends(soon, exitFailed, "reach "+down, "fulgur serve")
	}
	if _, err := os.Stat(filepath.Join(dir, "runs", "tiny")); err == nil {
		t.Error("a run that did not start left a folder behind")
	}
	server := start(t, t.TempDir(), nil, "serve", "--listen", "127.0.0.1:0", "--key", "right")
	url := server.says("listening on ")
	for _, args := range [][]string{{"train", "run.yaml"}, {"controller", "run.yaml"}, {"rollouts", "list"}} {
		start(t, dir, nil, append(args, "--server", url, "--key", "wrong")...).ends(soon, exitFailed, "--key")
	}
	start(t, dir, nil, "train", "run.yaml", "--server", "ftp://x").ends(soon, exitUsage)
	start(t, dir, nil, "controller", "run.yaml").ends(soon, exitUsage, "--server")
}

// Parts that are started together come up in any order.
func TestServerThatComesLater(t *testing.T) {
	t.Parallel()
	address := freeAddress(t)
	early := start(t, tinyDir(t), nil, "controller", "run.yaml", "--server", "http://"+address, "--listen", "127.0.0.1:0", "--wait", "1m")
	early.notes("waiting up to 1m0s for the server at ")
	start(t, t.TempDir(), nil, "serve", "--listen", address)
	early.notes("metrics at ")
}

// jobTemplate is a Job's template; its agent is in line 9.
const jobTemplate = `apiVersion: batch/v1
kind: Job
metadata: {name: "{{ job_name }}"}
spec:
  template:
    spec:
      containers:
      - name: agent
        image: alpine:3
        args: [{{ input.question | yaml_escape }}]
`

// What agents of any kind cannot be started with is refused by a check, and by the
// doctor, with its place in the run file, in the template or in the data.
func TestBadAgentInput(t *testing.T) {
	t.Parallel()
	const (
		runner  = "runner: {kind: local, slots: auto, sandbox: none}"
		job     = "runner: {kind: kubernetes, job_template: job.yaml, kubernetes: {isolation: none}}"
		image   = `runner: {kind: kubernetes, image: "alpine:3", kubernetes: {isolation: none}}`
		box     = `runner: {kind: container, image: "alpine:3", container: {program: "false"}}`
		command = "agent: {command: ["
	)
	template := func(text string) map[string]string { return map[string]string{"job.yaml": text} }
	in := func(from, to string) map[string]string { return template(strings.Replace(jobTemplate, from, to, 1)) }
	row := func(text string) map[string]string {
		return map[string]string{"train.jsonl": `{"question":"q","answer":"1"}` + "\n" + text + "\n" + `{"question":"q","answer":"2"}` + "\n"}
	}
	long := `{"question":"` + strings.Repeat("x", 140_000) + `","answer":"1"}`
	for name, c := range map[string]struct {
		change []string // of the run file
		files  map[string]string
		says   []string
	}{
		"a template of another kind":                 {[]string{runner, job}, in("batch/v1", "v1"), []string{"job.yaml:1: it is v1 Job: the template must give a batch/v1 Job"}},
		"a template of two documents":                {[]string{runner, job}, template(jobTemplate + "---\nkind: Pod\n"), []string{"job.yaml:12: a second document"}},
		"a template of nothing":                      {[]string{runner, job}, template(""), []string{"job.yaml: it is empty"}},
		"a template that is no YAML":                 {[]string{runner, job}, in("spec:", "spec: ["), []string{"job.yaml:", "no YAML"}},
		"a template with a field that Jobs have not": {[]string{runner, job}, in("args", "arks"), []string{"job.yaml:10: a Job has no field", "arks"}},
		"a template that is not there":               {[]string{runner, job}, nil, []string{"run.yaml:8:", "the Job template can't be read", "job.yaml"}},
		"a template's unknown variable":              {[]string{runner, job}, in("input.question", "inputs.question"), []string{"job.yaml:10: 'inputs' is undefined"}},
		"a template's unknown field of a row":        {[]string{runner, job}, in("input.question", "input.qestion"), []string{"job.yaml:10:", "no attribute 'qestion'"}},
		"a template's unknown filter":                {[]string{runner, job}, in("yaml_escape", "yaml_scape"), []string{"job.yaml:10: no filter named 'yaml_scape'"}},
		"a template's bad image":                     {[]string{runner, job}, in("alpine:3", "Not An Image"), []string{"run.yaml:8:42", "row 1 of train.jsonl", "Not An Image"}},
		"an argument over the system's limit":        {[]string{runner, job, "QUESTION: input.question", ""}, map[string]string{"job.yaml": jobTemplate, "train.jsonl": row(long)["train.jsonl"]}, []string{"row 2 of train.jsonl", "an argument of the container agent would hold 140000 bytes"}},
		"a Job's bad image":                          {[]string{runner, strings.Replace(image, "alpine:3", "Not An Image", 1)}, nil, []string{"run.yaml:8:35", `"Not An Image" is no image's name`}},
		"a Job's bad namespace":                      {[]string{runner, strings.Replace(image, "image:", "namespace: My_Space, image:", 1)}, nil, []string{"run.yaml:8:39", "runner.namespace", `"My_Space"`}},
		"a Job's value over the limit":               {[]string{runner, image}, row(long), []string{"train.jsonl: line 2", "QUESTION would hold 140000 bytes"}},
		"a Job's row that is not JSON":               {[]string{runner, image}, row(`{"question":`), []string{"train.jsonl: line 2: bad JSON"}},
		"a container's bad image":                    {[]string{runner, strings.Replace(box, "alpine:3", "Not An Image", 1)}, nil, []string{"run.yaml:8:34", `"Not An Image" is no name of an image`}},
		"a container program that is none":           {[]string{runner, box}, nil, []string{"run.yaml:8:67", "docker's command line"}},
		"a container's value over the limit":         {[]string{runner, box}, row(long), []string{"train.jsonl: line 2", "QUESTION would hold 140000 bytes"}},
		"a container's row that is not JSON":         {[]string{runner, box}, row(`[`), []string{"train.jsonl: line 2: bad JSON"}},
		"a process that does not exist":              {[]string{command, command + "./nothing, "}, nil, []string{"run.yaml:7:18", `"./nothing" of agent.command can't be run`}},
		"a process without an x bit":                 {[]string{command, command + "./plain, "}, map[string]string{"plain": "x"}, []string{"run.yaml:7:18", "executable bit"}},
		"a script that does not exist":               {[]string{command, command + "sh, nothing.sh, "}, nil, []string{"run.yaml:7:18", `"nothing.sh" of agent.command is not in`}},
		"a process's value over the limit":           {nil, row(long), []string{"train.jsonl: line 2", "QUESTION would hold 140000 bytes"}},
		"variables over the limit together":          {[]string{"{QUESTION: input.question}", "{" + manyVariables(25) + "}"}, row(`{"question":"` + strings.Repeat("x", 100_000) + `","answer":"1"}`), []string{"train.jsonl: line 2", "its environment variables would hold 2500"}},
		"a process's row that is not JSON":           {nil, row(`{"question":`), []string{"train.jsonl: line 2: bad JSON"}},
		"a variable of what no row has":              {[]string{"input.question", "input.qestion"}, nil, []string{"run.yaml:7:", "train.jsonl: lines 1, 2,", `field "qestion" is missing`}},
		"a withheld field that no row has":           {[]string{"expected: input.answer,", "expected: input.answer, withhold: [input.anser],", "env: {QUESTION: input.question}", "file: true"}, nil, []string{"run.yaml:9:", "reward.withhold names input.anser, which no row has", "in input they have answer, events,"}},
		"a variable of no path":                      {[]string{"input.question", "question"}, nil, []string{"run.yaml:7:", "want a path such as input.question"}},
		"a run whose name is none":                   {[]string{"run: tiny", "run: ../tiny"}, nil, []string{"run.yaml:2:", "want letters, digits"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := tinyDir(t, c.change...)
			for file, text := range c.files {
				if err := os.WriteFile(filepath.Join(dir, file), []byte(text), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			path := "PATH=" + filepath.Dir(mustLook(t, "fulgur")) + ":/bin" // the doctor's own probes are others' tests
			check := start(t, dir, []string{path}, "train", "--check", "run.yaml")
			if code := check.wait(soon); code != exitUsage && code != exitFailed {
				t.Errorf("train --check: exit code %d", code)
			}
			for _, text := range c.says {
				if !strings.Contains(check.err.String(), text) {
					t.Errorf("train --check does not say %q", text)
				}
			}
			if _, err := os.Stat(filepath.Join(dir, "runs")); err == nil {
				t.Error("a check left a folder behind")
			}
			if testing.Short() {
				return
			}
			doctor := start(t, dir, []string{path}, "doctor", "run.yaml")
			if code := doctor.wait(time.Minute); code != exitUsage && code != exitFailed {
				t.Errorf("doctor: exit code %d", code)
			}
			for _, text := range c.says {
				if !strings.Contains(doctor.out.String()+doctor.err.String(), text) {
					t.Errorf("doctor does not say %q", text)
				}
			}
			if _, err := os.Stat(filepath.Join(dir, "runs")); err == nil {
				t.Error("the doctor left a folder behind")
			}
		})
	}
}

// What no check could see, for it came over the API, fails its own rollout with the
// cause; ids that no file, no Job and no label may have are no one's trouble.
func TestBadRollouts(t *testing.T) {
	t.Parallel()
	server := start(t, t.TempDir(), nil, "serve", "--listen", "127.0.0.1:0", "--key", "K")
	url := server.says("listening on ")
	if code, text := send(t, "PUT", url+"/api/v2/runs/tiny", "K", `{"model":"m","config":{}}`); code != 200 {
		t.Fatalf("%d %s", code, text)
	}
	const fits, ok = `{"question":"1+1?"}`, "succeeded"
	inputs := map[string]string{"nul": `{"question":"a\u0000b"}`, "lacking": `{"q":"a"}`, "big": `{"question":"` + strings.Repeat("x", 140_000) + `"}`,
		"text": `"just text"`, "list": `[1]`}
	want := map[string]string{"nul": "would hold a zero byte", "lacking": `has no "input.question"`, "big": "would hold 140000 bytes", "text": `has no "input.question"`,
		"list": `has no "input.question"`, "zero\x00byte": "FULGUR_ROLLOUT_ID would hold a zero byte"}
	for _, id := range []string{"../../evil", "a b", "x/y", strings.Repeat("a", 300), "plain-1", "ü", "two\nlines", "-dash", "UP"} {
		want[id] = ok
	}
	for id := range want {
		name, err := json.Marshal(id)
		if err != nil {
			t.Fatal(err)
		}
		if code, text := send(t, "POST", url+"/api/v2/rollouts", "K", fmt.Sprintf(`[{"id":%s,"run":"tiny","input":%s}]`, name, cmp.Or(inputs[id], fits))); code != 201 && code != 200 {
			t.Fatalf("%q: %d %s", id, code, text)
		}
	}
	for _, id := range []string{"..", "."} {
		if code, text := send(t, "POST", url+"/api/v2/rollouts", "K", fmt.Sprintf(`[{"id":%q,"run":"tiny","input":{}}]`, id)); code != 400 || !strings.Contains(text, "cannot stand in a path") {
			t.Errorf("%q: %d %s", id, code, text)
		}
	}
	dir := tinyDir(t)
	env := []string{"FULGUR_SERVER=" + url, "FULGUR_KEY=K"}
	start(t, dir, env, "controller", "run.yaml", "--set", "agent.command=["+mustLook(t, "true")+"]")
	var lines string
	waitFor(t, "all ends", func() bool {
		list := start(t, dir, env, "rollouts", "list", "--run", "tiny", "--json")
		list.wait(soon)
		lines = list.out.String()
		return strings.Count(lines, `"succeeded"`)+strings.Count(lines, `"failed"`) == len(want)
	})
	got := map[string]string{}
	for dec := json.NewDecoder(strings.NewReader(lines)); dec.More(); {
		var r struct {
			ID, State string
			Outcome   struct{ Message string }
		}
		if err := dec.Decode(&r); err != nil {
			t.Fatal(err)
		}
		if got[r.ID] = r.State; r.State != ok {
			got[r.ID] = r.Outcome.Message
		}
	}
	for id, says := range want {
		if !strings.Contains(got[id], says) {
			t.Errorf("%q: %q, want %q", id, got[id], says)
		}
	}
}

// manyVariables maps n variables to a row's question.
func manyVariables(n int) string {
	var all []string
	for i := range n {
		all = append(all, fmt.Sprintf("Q%d: input.question", i))
	}
	return strings.Join(all, ", ")
}

// TestBrokenModel: each way in which a model's folder can be broken is named.
func TestBrokenModel(t *testing.T) {
	t.Parallel()
	files, err := fs.Sub(calc.Files, "model")
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		breaks func(t *testing.T, model string)
		says   string
	}{
		"weights that were cut off": {func(t *testing.T, m string) {
			if err := os.Truncate(filepath.Join(m, "model.safetensors"), 100_000); err != nil {
				t.Fatal(err)
			}
		}, "model.safetensors"},
		"no weights":      {remove("model.safetensors"), "safetensors"},
		"no tokenizer":    {remove("tokenizer.json"), "tokenizer.json"},
		"no config":       {remove("config.json"), "config.json is missing"},
		"a broken config": {replace("config.json", "{", "["), "config.json"},
		"an architecture that the engine has not": {replace("config.json", `"model_type": "llama"`, `"model_type": "mamba"`), "mamba"},
		"sizes that are not the weights'":         {replace("config.json", `"num_hidden_layers": `, `"num_hidden_layers": 1`), "layers"},
		"a broken chat template":                  {replace("chat_template.jinja", "{%", "{{"), "template"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := tinyDir(t, "builtin:calc", "model")
			if err := os.CopyFS(filepath.Join(dir, "model"), files); err != nil {
				t.Fatal(err)
			}
			c.breaks(t, filepath.Join(dir, "model"))
			start(t, dir, nil, "train", "run.yaml").ends(soon, exitFailed, c.says)
			if _, err := os.Stat(filepath.Join(dir, "runs", "tiny")); err == nil {
				t.Error("a run that did not start left a folder behind")
			}
		})
	}
}

func remove(name string) func(*testing.T, string) {
	return func(t *testing.T, dir string) {
		if err := os.Remove(filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
}

func replace(name, from, to string) func(*testing.T, string) {
	return func(t *testing.T, dir string) {
		p := filepath.Join(dir, name)
		b, err := os.ReadFile(p)
		if err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(string(b), from) {
			t.Fatalf("%s has no %q", name, from)
		}
		if err := os.WriteFile(p, []byte(strings.Replace(string(b), from, to, 1)), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

// TestFullDisk: writing fails from some size on. It is said, and when there is
// room again, resume goes on with what is recorded.
func TestFullDisk(t *testing.T) {
	t.Parallel()
	for name, limit := range map[string]int{
		"at the first checkpoint": 1_000_000, // the weights have 1.4 MB
		"in the record":           260_000,
		"at once":                 2_000,
	} {
		t.Run(name, func(t *testing.T) {
			if testing.Short() && limit == 260_000 {
				t.Skip("the trainer asks the store again for ten seconds")
			}
			t.Parallel()
			dir := tinyDir(t, "steps: 2", "steps: 4", "validation: {every: 0}", "checkpoints: {every: 1}\nvalidation: {every: 0}")
			full := start(t, dir, []string{fmt.Sprintf("TEST_FILE_SIZE_LIMIT=%d", limit)}, "train", "run.yaml")
			full.ends(time.Minute, exitFailed, "disk")
			if limit < 10_000 {
				return // the run never began
			}
			run(t, dir, "resume", "tiny")
			trainedOnce(t, runDir(filepath.Join(dir, "runs", "tiny")), 4, 4)
		})
	}
}

func TestFolderThatCannotBeMade(t *testing.T) {
	t.Parallel()
	dir := tinyDir(t)
	start(t, dir, nil, "train", "run.yaml", "--out", "run.yaml").ends(soon, exitFailed, "make the run's folder", "--out")
	start(t, dir, nil, "demo", "--out", "run.yaml/demo").ends(soon, exitFailed, "make the demo's folder", "--out")
	start(t, dir, nil, "serve", "--listen", "127.0.0.1:0", "--store", "sqlite:run.yaml/x.db").ends(soon, exitFailed, "open store")
	start(t, dir, nil, "serve", "--listen", "127.0.0.1:0", "--store", "sqlite:run.yaml").ends(soon, exitFailed, "run.yaml")
	start(t, dir, nil, "serve", "--listen", "127.0.0.1:0", "--store", "mysql:x").ends(soon, exitUsage, "sqlite:PATH")
	start(t, dir, nil, "serve", "--listen", "127.0.0.1:0", "--pause", "perhaps").ends(soon, exitUsage, "refuse hold")
	start(t, dir, nil, "serve", "--run", "nothing").ends(soon, exitFailed, "no run is there")
}

// A run that is refused before its first rollout leaves nothing, so that the next
// start has its name.
func TestRunThatNeverBegan(t *testing.T) {
	t.Parallel()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = ln.Close() })
	for name, c := range map[string]struct{ set, says string }{
		"its agent is not built":              {"agent.build=[false]", "build the agent"},
		"its address is taken":                {"listen=" + ln.Addr().String(), "the address is taken"},
		"its engine cannot do what it asks":   {"sampling.temperature=0.5", "temperature"},
		"its agents do not reach the gateway": {"runner={kind: local, sandbox: bubblewrap, agent_url: 'http://127.0.0.1:1'}", "gateway"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if strings.Contains(c.set, "bubblewrap") {
				needBwrap(t)
			}
			dir := tinyDir(t)
			p := start(t, dir, nil, "train", "run.yaml", "--set", c.set)
			if code := p.wait(soon); code == exitOK || !strings.Contains(p.err.String(), c.says) {
				t.Fatalf("exit code %d, and it does not say %q", code, c.says)
			}
			if _, err := os.Stat(filepath.Join(dir, "runs", "tiny")); err == nil {
				t.Error("a run that never began left its folder behind")
			}
		})
	}
}

// TestRunThatIsRunning: a second process never touches a run at work, and looks
// at its record through the first.
func TestRunThatIsRunning(t *testing.T) {
	t.Parallel()
	dir := tinyDir(t, "steps: 2", "steps: 10000")
	first := start(t, dir, nil, "train", "run.yaml")
	first.notes("step 2/10000")
	start(t, dir, nil, "resume", "tiny").ends(soon, exitFailed, fmt.Sprintf("process %d has this store open", first.cmd.Process.Pid))
	out, _ := run(t, dir, "rollouts", "list", "--run", "tiny")
	if !strings.Contains(out, "train-0-") {
		t.Errorf("no rollouts of a run at work: %s", out)
	}
	first.signal(os.Interrupt)
	first.ends(soon, exitInterrupted, "fulgur resume")
}

// TestInterrupt: Ctrl-C once saves a checkpoint and says how to resume; nothing
// is lost and nothing counts twice.
func TestInterrupt(t *testing.T) {
	t.Parallel()
	dir := tinyDir(t, "steps: 2", "steps: 10000")
	p := start(t, dir, nil, append([]string{"train", "run.yaml"}, copied(t)...)...)
	p.notes("step 3/10000")
	p.signal(os.Interrupt)
	p.ends(soon, exitInterrupted, "once more: stop now", "go on with `fulgur resume "+filepath.Join(dir, "runs", "tiny"))
	d := runDir(filepath.Join(dir, "runs", "tiny"))
	if left := agentsOf(t, d.path("agent")); len(left) > 0 {
		t.Errorf("agents are left over:\n%s", strings.Join(left, "\n"))
	}
	_, s, err := trainer.Last(string(d))
	if err != nil {
		t.Fatal("no checkpoint was saved: ", err)
	}
	steps := int(s.Cursor.Step) + 2
	run(t, dir, "resume", "tiny", "--steps", fmt.Sprint(steps))
	trainedOnce(t, d, steps, 4)
}

// TestReaderThatIsGone: Ctrl-C on a pipe ends the reader first, and a lost
// terminal hangs up: the checkpoint is saved all the same.
func TestReaderThatIsGone(t *testing.T) {
	t.Parallel()
	for name, sig := range map[string]os.Signal{"Ctrl-C on a pipe": os.Interrupt, "a terminal that hangs up": syscall.SIGHUP} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if sig == syscall.SIGHUP && signal.Ignored(syscall.SIGHUP) {
				t.Skip("started by nohup: its children ignore the signal, as they should")
			}
			dir := tinyDir(t, "steps: 2", "steps: 10000")
			read, write, err := os.Pipe()
			if err != nil {
				t.Fatal(err)
			}
			c := exec.Command("fulgur", append([]string{"train", "run.yaml"}, copied(t)...)...)
			c.Dir, c.Stdout, c.Stderr = dir, write, write
			if err := c.Start(); err != nil {
				t.Fatal(err)
			}
			stop := time.AfterFunc(soon, func() { _ = c.Process.Kill() })
			defer stop.Stop()
			_ = write.Close()
			for lines := bufio.NewScanner(read); lines.Scan() && !strings.HasPrefix(lines.Text(), "step 3/10000"); {
			}
			_ = read.Close()
			if err := c.Process.Signal(sig); err != nil {
				t.Fatal(err)
			}
			_ = c.Wait() // its exit code is looked at
			if code := c.ProcessState.ExitCode(); code != exitInterrupted {
				t.Errorf("ended with %s, want code %d", c.ProcessState, exitInterrupted)
			}
			if _, s, err := trainer.Last(filepath.Join(dir, "runs", "tiny")); err != nil || s.Cursor.Step < 2 {
				t.Errorf("the last checkpoint is of step %d (%v)", s.Cursor.Step, err)
			}
		})
	}
}

// hangs is an agent that neither calls the model nor minds SIGTERM, nor do its
// children.
const hangs = `#!/bin/sh
trap '' TERM INT
"$0.child" 1000 &
while :; do "$0.child" 1000; done
`

// TestSecondInterrupt: Ctrl-C twice ends everything now.
func TestSecondInterrupt(t *testing.T) {
	t.Parallel()
	dir := tinyDir(t)
	agent := filepath.Join(dir, "hangs")
	if err := os.WriteFile(agent, []byte(hangs), 0o755); err != nil {
		t.Fatal(err)
	}
	copyProgram(t, "sleep", agent+".child")
	t.Cleanup(func() {
		for _, line := range agentsOf(t, agent+".child") {
			if pid, err := strconv.Atoi(strings.Fields(line)[0]); err == nil {
				_ = syscall.Kill(pid, syscall.SIGKILL)
			}
		}
	})
	p := start(t, dir, nil, "train", "run.yaml", "--set", "agent.command=["+agent+"]")
	waitFor(t, "agents", func() bool { return len(agentsOf(t, agent+".child")) >= 4 })
	p.signal(os.Interrupt)
	p.notes("once more: stop now")
	time.Sleep(sameInterrupt + 50*time.Millisecond) // sooner it would be the same Ctrl-C
	p.signal(os.Interrupt)
	p.ends(3*time.Second, exitInterrupted, "stopped now; what is recorded is kept")
	waitFor(t, "no agent", func() bool { return len(agentsOf(t, agent+".child")) == 0 })
}

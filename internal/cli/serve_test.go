package cli

import (
	"bufio"
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/fulgur-rl/fulgur/examples/calc/agent/loop"
)

// ask posts JSON as curl would, and returns status and body.
func ask(t *testing.T, url, key, body string) (int, string) {
	t.Helper()
	return send(t, "POST", url, key, body)
}

// send makes one request with a bearer key ("": none) and returns status and body.
func send(t *testing.T, method, url, key, body string) (int, string) {
	t.Helper()
	if key == "" {
		return callServer(t, method, url, body)
	}
	return callServer(t, method, url, body, "Authorization", "Bearer "+key)
}

const chatBody = `{"model":"MODEL","messages":[{"role":"system","content":"Use the tool, then say Answer: N"},{"role":"user","content":"Tom has 3 pens. Tom gets 4 more. How many pens?"}],"temperature":0,"max_tokens":48}`

// TestServeRun serves a trained model to any OpenAI client, and to fulgur try as
// an upstream.
func TestServeRun(t *testing.T) {
	t.Parallel()
	agent, err := calcAgent()
	if err != nil {
		t.Fatal(err)
	}
	dir := tinyDir(t)
	run(t, dir, "train", "run.yaml", "--set", "data.test=")
	server := start(t, dir, nil, "serve", "--run", "tiny", "--listen", "127.0.0.1:0", "--key", "K")
	url := server.says("listening on ")
	if line := server.notes("try: curl " + url + "/v1/chat/completions"); !strings.Contains(line, "Bearer $KEY") {
		t.Errorf("the example leaves the key out: %s", line)
	}

	body := strings.ReplaceAll(chatBody, "MODEL", "tiny")
	status, answer := ask(t, url+"/v1/chat/completions", "K", body)
	var chat struct {
		Choices []struct {
			Message struct{ Content string }
		}
		Usage struct {
			PromptTokens int `json:"prompt_tokens"`
		}
	}
	if err := json.Unmarshal([]byte(answer), &chat); err != nil || status != 200 || len(chat.Choices) != 1 || chat.Choices[0].Message.Content == "" || chat.Usage.PromptTokens == 0 {
		t.Errorf("status %d: %s", status, answer)
	}
	status, answer = ask(t, url+"/v1/chat/completions", "K", strings.Replace(body, `"temperature"`, `"stream":true,"temperature"`, 1))
	if events := strings.Count(answer, "data: "); status != 200 || events < 3 || !strings.HasSuffix(answer, "data: [DONE]\n\n") {
		t.Errorf("streamed: status %d: %s", status, answer)
	}
	raw := `{"model":"tiny","prompt":"<|im_start|>user\nTom has 3 pens.<|im_end|>\n<|im_start|>assistant\n","temperature":0,"max_tokens":8,"logprobs":1,"return_token_ids":true,"stream":STREAM}`
	status, answer = ask(t, url+"/v1/completions", "K", strings.Replace(raw, "STREAM", "false", 1))
	var completion struct {
		Choices []struct {
			Text      string
			TokenIDs  []int `json:"token_ids"`
			PromptIDs []int `json:"prompt_token_ids"`
			LogProbs  struct {
				TokenLogProbs []float64 `json:"token_logprobs"`
			}
		}
	}
	if err := json.Unmarshal([]byte(answer), &completion); err != nil || status != 200 || len(completion.Choices) != 1 {
		t.Fatalf("a raw prompt: status %d: %s", status, answer)
	}
	if c := completion.Choices[0]; len(c.TokenIDs) == 0 || len(c.PromptIDs) == 0 || len(c.LogProbs.TokenLogProbs) != len(c.TokenIDs) {
		t.Errorf("a raw prompt: %s", answer)
	}
	if status, answer = ask(t, url+"/v1/completions", "K", strings.Replace(raw, "STREAM", "true", 1)); status != 200 || strings.Count(answer, `"text"`) < 2 || !strings.HasSuffix(answer, "data: [DONE]\n\n") {
		t.Errorf("a raw prompt, streamed: status %d: %s", status, answer)
	}
	if status, answer = ask(t, url+"/v1/completions", "K", `{"prompt":["a","b"]}`); status != 400 || !strings.Contains(answer, "2 prompts") {
		t.Errorf("two prompts: status %d: %s", status, answer)
	}
	if status, answer = ask(t, url+"/v1/completions", "K", `{"prompt":"a","echo":true}`); status != 400 || !strings.Contains(answer, "echo") {
		t.Errorf("echo: status %d: %s", status, answer)
	}
	if status, answer = ask(t, url+"/v1/chat/completions", "wrong", body); status != 401 {
		t.Errorf("with a wrong key: status %d: %s", status, answer)
	}
	// The model has one name here; a harness that asks for another gets the same.
	if status, answer = ask(t, url+"/v1/chat/completions", "K", strings.Replace(body, "tiny", "gpt", 1)); status != 200 || !strings.Contains(answer, `"model":"gpt"`) {
		t.Errorf("under another name: status %d: %s", status, answer)
	}

	env := []string{"QUESTION=Tom has 3 pens. Tom gets 4 more. How many pens?", "FULGUR_UPSTREAM_KEY=K"}
	try := start(t, dir, env, "try", "--upstream", url+"/v1", "--upstream-model", "tiny", "--", agent)
	try.ends(soon, exitOK)
	for _, s := range []string{"call 0  openai-chat  tiny", "user      \"Tom has 3 pens", "→ "} {
		if !strings.Contains(try.out.String(), s) {
			t.Errorf("try does not print %q:\n%s", s, try.out.String())
		}
	}
	server.signal(syscall.SIGTERM)
	server.ends(soon, exitOK, "stopping")
}

// TestEngineServe serves the built-in model's tokens: token ids in, token ids
// and log probs out.
func TestEngineServe(t *testing.T) {
	t.Parallel()
	began := time.Now()
	engine := start(t, t.TempDir(), nil, "engine", "serve", "--listen", "127.0.0.1:0", "--json")
	var at struct{ URL string }
	if err := json.Unmarshal([]byte("{"+engine.says("{")), &at); err != nil {
		t.Fatal(err)
	}
	t.Logf("up after %s", time.Since(began).Round(time.Millisecond))
	status, answer := ask(t, at.URL+"/v1/completions", "any", `{"model":"builtin:calc","prompt":[1,20,30,40],"max_tokens":4,"temperature":1,"logprobs":0,"return_token_ids":true,"seed":1}`)
	if status != 200 || !strings.Contains(answer, "token_ids") {
		t.Errorf("status %d: %s", status, answer)
	}
	engine.signal(os.Interrupt)
	engine.ends(soon, exitOK, "no --key: any key passes")
}

// TestServeStandsAlone: the API describes itself, and the record outlives the
// server.
func TestServeStandsAlone(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	args := []string{"serve", "--listen", "127.0.0.1:0", "--store", "sqlite:" + filepath.Join(dir, "x.db")}
	server := start(t, dir, nil, args...)
	url := server.says("listening on ")
	server.notes("warning: no --key")
	for _, path := range []string{"/healthz", "/readyz", "/metrics", "/docs", "/api/v2/openapi.json", "/api/v2/capabilities"} {
		res, err := http.Get(url + path)
		if err != nil {
			t.Fatal(err)
		}
		body, _ := io.ReadAll(res.Body)
		res.Body.Close()
		if res.StatusCode != 200 {
			t.Errorf("GET %s: %s", path, res.Status)
		}
		if path == "/metrics" && !strings.Contains(string(body), "\ngo_goroutines ") {
			t.Error("the metrics leave out the process itself: goroutines, memory, open files")
		}
	}
	status, answer := ask(t, url+"/api/rollouts", "", `[{"rollout_id":"r1","input":{"q":1},"is_train":true}]`)
	if status/100 != 2 {
		t.Fatalf("creating a rollout as v1 does: status %d: %s", status, answer)
	}
	server.kill()
	server = start(t, dir, nil, args...)
	url = server.says("listening on ")
	out, _ := run(t, dir, "rollouts", "list", "--server", url)
	if !strings.Contains(out, "r1 ") {
		t.Errorf("after kill -9 of the server: %s", out)
	}
}

// TestNothingRunsOn runs commands in this process: when they return, no
// goroutine of theirs is left.
func TestNothingRunsOn(t *testing.T) {
	dir := tinyDir(t)
	agent, err := calcAgent()
	if err != nil {
		t.Fatal(err)
	}
	t.Setenv("QUESTION", "Tom has 3 pens. Tom gets 4 more. How many pens?")
	t.Chdir(dir)
	http.DefaultClient.CloseIdleConnections()
	before := goleak.IgnoreCurrent()
	for _, args := range [][]string{
		{"version"}, {"train", "run.yaml"}, {"resume", "tiny"}, {"resume", "tiny", "--steps", "3"}, {"rollouts", "list"},
		{"eval", "tiny"}, {"report", "tiny"}, {"try", "--", agent}, {"try", "--", "true"}, {"train", "run.yaml", "--set", "listen=256.0.0.1:1"},
	} {
		var out, err bytes.Buffer
		code := Main(Process{Args: args, Stdin: strings.NewReader(""), Stdout: &out, Stderr: &err, Getenv: os.Getenv})
		if want := map[bool]int{true: exitFailed}[strings.Contains(args[len(args)-1], "256") || args[len(args)-1] == "true"]; code != want {
			t.Errorf("fulgur %v: exit code %d, want %d: %s", args, code, want, tail(err.String()))
		}
		if leak := goleak.Find(before, goleak.IgnoreTopFunction("os/signal.signal_recv"), goleak.IgnoreTopFunction("os/signal.loop")); leak != nil {
			t.Errorf("fulgur %v: %v", args, leak)
		}
	}
}

// TestCalcAgentInTheBinary: the hidden command is the example's agent.
func TestCalcAgentInTheBinary(t *testing.T) {
	var want, got bytes.Buffer
	none := func(string) string { return "" }
	code := loop.Main(t.Context(), nil, none, strings.NewReader(""), io.Discard, &want)
	if c := Main(Process{Args: []string{agentCommandName}, Stdin: strings.NewReader(""), Stdout: io.Discard, Stderr: &got, Getenv: none}); c != code || code == 0 {
		t.Errorf("exit code %d, want %d", c, code)
	}
	if s := bufio.NewScanner(&got); !s.Scan() || !strings.HasPrefix(want.String(), s.Text()) {
		t.Errorf("it says %q, the agent says %q", s.Text(), want.String())
	}
}

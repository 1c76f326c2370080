// Package runnertest is the conformance suite of controller.Runner, and the
// agents, good and bad, that it runs: the test binary itself, executed again.
package runnertest

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// AgentEnv makes a test binary an agent: "process" or "worker".
const AgentEnv = "FULGUR_TEST_AGENT"

// Main is what TestMain calls first: it is the agent, if the environment says
// so, and does not return then.
func Main() {
	switch os.Getenv(AgentEnv) {
	case "process":
		os.Exit(behave(os.Getenv("DO"), ""))
	case "worker":
		worker()
	case "child":
		beats(os.Getenv("FULGUR_TEST_BEAT"))
	}
}

// hang sleeps for longer than any test; a select without cases would be a
// deadlock to the Go runtime.
func hang() { time.Sleep(time.Hour) }

// beat is how often a process that beats shows that it lives.
const beat = 20 * time.Millisecond

// beats makes a file grow while this process lives, at most for as long as any test.
func beats(file string) {
	for end := time.Now().Add(10 * time.Minute); time.Now().Before(end); time.Sleep(beat) {
		f, err := os.OpenFile(file, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
		if err != nil {
			hang() // its folder is gone, and the test with it
		}
		_, _ = f.WriteString(".")
		_ = f.Close()
	}
}

// behave does what it is told, words divided by ";", and returns an exit code:
//
//	again (from the second attempt on: exit 0) · exit N · crash (SIGKILL to itself) · hang · ignore (SIGTERM) · say TEXT ·
//	print N bytes · sleep MS · polite FILE (on SIGTERM writes FILE and exits) ·
//	child FILE (a child holds the pipes; its pid goes to FILE, and it beats in
//	FILE.beat) · daemon FILE (one in a session of its own) · beat FILE · call (asks the model; exits with 5 if that fails) · try (call, but goes on if it fails) · env NAME · stdin · file NAME · write FILE · pwd · alone FILE
func behave(do, dir string) int {
	var held []*os.File // open, and so locked, until the end
	defer func() { runtime.KeepAlive(held) }()
	for _, step := range strings.Split(do, ";") {
		word, arg, _ := strings.Cut(strings.TrimSpace(step), " ")
		switch word {
		case "":
		case "again":
			if os.Getenv("FULGUR_ATTEMPT_ID") != "0" {
				return 0
			}
		case "exit":
			n, _ := strconv.Atoi(arg)
			return n
		case "crash":
			_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
			hang()
		case "hang":
			hang()
		case "ignore":
			signal.Ignore(syscall.SIGTERM)
		case "say":
			fmt.Fprintln(os.Stderr, arg)
		case "print":
			n, _ := strconv.Atoi(arg)
			line := strings.Repeat("x", 99) + "\n"
			w := bufio.NewWriter(os.Stderr)
			for ; n > 0; n -= len(line) {
				_, _ = w.WriteString(line)
			}
			_ = w.Flush()
		case "sleep":
			n, _ := strconv.Atoi(arg)
			time.Sleep(time.Duration(n) * time.Millisecond)
		case "polite":
			c := make(chan os.Signal, 1)
			signal.Notify(c, syscall.SIGTERM)
			<-c
			_ = os.WriteFile(arg, []byte("bye"), 0o600)
			return 0
		case "child", "daemon":
			cmd := exec.Command(os.Args[0])
			cmd.Env = append(os.Environ(), AgentEnv+"=child", "FULGUR_TEST_BEAT="+arg+".beat")
			cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
			if word == "daemon" {
				cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
			}
			touch(arg + ".beat")
			if err := cmd.Start(); err != nil {
				fmt.Fprintln(os.Stderr, err)
				return 9
			}
			put(arg, strconv.Itoa(cmd.Process.Pid))
		case "beat":
			touch(arg)
			go beats(arg)
		case "alone": // says so if another process of this rollout lives
			// By a lock, which ends with its process: numbers mean something else in
			// another namespace.
			if f, err := os.OpenFile(arg+".lock", os.O_CREATE|os.O_RDWR, 0o600); err == nil && syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB) != nil {
				put(arg+".twice", strconv.Itoa(os.Getpid()))
			} else {
				held = append(held, f)
			}
			put(arg, strconv.Itoa(os.Getpid()))
		case "pid":
			put(arg, strconv.Itoa(os.Getpid()))
		case "env":
			fmt.Fprintf(os.Stderr, "%s=%s\n", arg, os.Getenv(arg))
		case "stdin":
			b, _ := bufio.NewReader(os.Stdin).ReadString(0)
			fmt.Fprintln(os.Stderr, "stdin", len(b), b[:min(len(b), 200)])
		case "file":
			b, err := os.ReadFile(os.Getenv(arg))
			fmt.Fprintln(os.Stderr, "file", string(b), err)
		case "write":
			put(arg, "here")
		case "call":
			if err := call(); err != nil {
				fmt.Fprintln(os.Stderr, "call:", err)
				return 5
			}
		case "try": // a call whose failure it swallows
			if err := call(); err != nil {
				fmt.Fprintln(os.Stderr, "try:", err)
			}
		case "pwd":
			d, _ := os.Getwd()
			fmt.Fprintln(os.Stderr, "pwd", d)
		default:
			fmt.Fprintln(os.Stderr, "unknown step", word)
			return 8
		}
	}
	return 0
}

// call makes one model call, as a harness does.
func call() error {
	req, err := http.NewRequest("POST", os.Getenv("OPENAI_BASE_URL")+"/chat/completions", strings.NewReader(`{"model":"m","messages":[]}`))
	if err != nil {
		return err
	}
	req.Header.Set("Authorization", "Bearer "+os.Getenv("OPENAI_API_KEY"))
	req.Header.Set("Content-Type", "application/json")
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer func() { _ = resp.Body.Close() }()
	if resp.StatusCode != http.StatusOK {
		return errors.New(resp.Status)
	}
	return nil
}

// touch makes the file of one that beats: who is killed before its first beat is
// still, too.
func touch(name string) { _ = os.WriteFile(name, nil, 0o600) }

// put writes a file whole: who sees it sees its text.
func put(name, text string) {
	_ = os.WriteFile(name+".tmp", []byte(text), 0o600)
	_ = os.Rename(name+".tmp", name)
}

// worker speaks the protocol of long-lived workers. Beside behave's words it
// knows, for a whole rollout: nonsense (prints a line that is no answer), wrong (answers
// for another rollout), fail TEXT (answers not ok), last (answers, and ends), deaf
// (answers, and hears nothing more).
func worker() {
	if ms, err := strconv.Atoi(os.Getenv("FULGUR_TEST_STARTUP")); err == nil {
		time.Sleep(time.Duration(ms) * time.Millisecond)
	}
	if os.Getenv("FULGUR_TEST_BROKEN") != "" {
		fmt.Fprintln(os.Stderr, "no module named tools")
		os.Exit(4)
	}
	in := bufio.NewScanner(os.Stdin)
	in.Buffer(nil, 16<<20)
	for in.Scan() {
		var job struct {
			V         int               `json:"v"`
			RolloutID string            `json:"rollout_id"`
			Attempt   string            `json:"attempt_id"`
			Input     json.RawMessage   `json:"input"`
			Env       map[string]string `json:"env"`
			Dir       string            `json:"dir"`
		}
		if err := json.Unmarshal(in.Bytes(), &job); err != nil || job.V != 1 {
			fmt.Fprintln(os.Stderr, "bad line", err)
			os.Exit(7)
		}
		for name, value := range job.Env {
			_ = os.Setenv(name, value)
		}
		do := job.Env["DO"]
		word, arg, _ := strings.Cut(do, " ")
		ok, problem := true, any(nil)
		switch word {
		case "nonsense":
			fmt.Println("hello from a library")
		case "wrong":
			job.RolloutID += "x"
		case "fail":
			ok, problem = false, arg
		case "last", "deaf":
		case "exit", "crash":
			os.Exit(behave(do, job.Dir))
		default:
			if code := behave(do, job.Dir); code != 0 {
				os.Exit(code)
			}
		}
		b, _ := json.Marshal(map[string]any{"v": 1, "rollout_id": job.RolloutID, "ok": ok, "error": problem})
		fmt.Println(string(b))
		switch word {
		case "last":
			os.Exit(3)
		case "deaf":
			_ = os.Stdin.Close()
			time.Sleep(time.Minute)
		}
	}
	os.Exit(0)
}

package loop

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"
)

// Main is the whole program: it takes its task from QUESTION, prints the final
// answer on stdout and returns the exit code. With the argument -worker it takes
// rollouts from stdin instead, one JSON line each; with -wait=200ms its calculator
// takes that long, as the tools of real agents do (see Slow).
func Main(ctx context.Context, args []string, getenv func(string) string, stdin io.Reader, stdout, stderr io.Writer) int {
	client := &http.Client{Transport: NewTransport()}
	var err error
	switch {
	case len(args) == 0:
		var answer string
		if answer, err = answerQuestion(ctx, client, getenv, 0); err == nil {
			_, err = fmt.Fprintln(stdout, answer)
		}
	case len(args) == 1 && strings.HasPrefix(args[0], waitFlag):
		var answer string
		var wait time.Duration
		if wait, err = time.ParseDuration(args[0][len(waitFlag):]); err != nil || wait <= 0 {
			err = fmt.Errorf("%s: want a time above 0 such as 200ms", args[0])
		} else if answer, err = answerQuestion(ctx, client, getenv, wait); err == nil {
			_, err = fmt.Fprintln(stdout, answer)
		}
	case len(args) == 1 && args[0] == "-worker":
		err = Worker(ctx, client, getenv, stdin, stdout, stderr)
	default:
		err = fmt.Errorf("unknown arguments %q: the agent takes its task from QUESTION, or rollouts from standard input with -worker, and its calculator's time from -wait=TIME", args)
	}
	if err != nil {
		fmt.Fprintln(stderr, "calc:", err)
		return 1
	}
	return 0
}

const waitFlag = "-wait="

func answerQuestion(ctx context.Context, client *http.Client, getenv func(string) string, wait time.Duration) (string, error) {
	c, err := FromEnv(getenv)
	if err != nil {
		return "", err
	}
	question := getenv("QUESTION")
	if question == "" {
		return "", errors.New("QUESTION is not set: it holds the story to answer")
	}
	chat := NewChat(c, client)
	if wait > 0 {
		chat = Slow(chat, wait)
	}
	return Run(ctx, chat, question, c.MaxCalls)
}

// task is a line of the worker protocol: one rollout to run.
type task struct {
	V        int               `json:"v"`
	Rollout  string            `json:"rollout_id"`
	Env      map[string]string `json:"env"`
	Deadline *float64          `json:"deadline"` // seconds since the epoch; null: none
}

// done is the line that answers a task.
type done struct {
	V       int     `json:"v"`
	Rollout string  `json:"rollout_id"`
	OK      bool    `json:"ok"`
	Error   *string `json:"error"`
}

// Worker takes rollouts from stdin until it ends, one after the other: one JSON
// line in, one out. What a line's env does not say comes from getenv. Stdout is
// the protocol's alone, answers go to stderr. A line that is no rollout ends the
// worker with an error, a rollout that fails does not.
func Worker(ctx context.Context, client *http.Client, getenv func(string) string, stdin io.Reader, stdout, stderr io.Writer) error {
	in := bufio.NewReader(stdin)
	for {
		line, err := in.ReadBytes('\n')
		if errors.Is(err, io.EOF) && len(line) == 0 {
			return nil
		}
		if err != nil && !errors.Is(err, io.EOF) {
			return fmt.Errorf("reading a rollout: %w", err)
		}
		var t task
		if err := json.Unmarshal(line, &t); err != nil || t.V != 1 {
			return fmt.Errorf("reading a rollout: want a JSON line of version 1, got %s", cut(line))
		}
		d := done{V: 1, Rollout: t.Rollout, OK: true}
		if answer, err := runTask(ctx, client, getenv, t); err != nil {
			text := err.Error()
			d.OK, d.Error = false, &text
			fmt.Fprintf(stderr, "calc: %s: %v\n", t.Rollout, err)
		} else {
			fmt.Fprintf(stderr, "%s: %s\n", t.Rollout, answer)
		}
		if err := json.NewEncoder(stdout).Encode(d); err != nil {
			return fmt.Errorf("reporting a rollout: %w", err)
		}
	}
}

func runTask(ctx context.Context, client *http.Client, getenv func(string) string, t task) (string, error) {
	if t.Deadline != nil {
		var cancel context.CancelFunc
		ctx, cancel = context.WithDeadline(ctx, time.UnixMilli(int64(*t.Deadline*1000)))
		defer cancel()
	}
	return answerQuestion(ctx, client, func(name string) string {
		if v, ok := t.Env[name]; ok {
			return v
		}
		return getenv(name)
	}, 0)
}

// Agent is the calc agent in a harness that fragments: it takes a turn that led
// to an error out of its history, and for a share of its tasks it solves the task
// anew, in fresh conversations, until two of them (of some tasks three, or four …)
// agree. What trains of a rollout is then several samples, many of them where the
// model is unsure.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"hash/fnv"
	"net/http"
	"os"
	"runtime"
	"runtime/debug"
	"strconv"
	"strings"

	"github.com/fulgur-rl/fulgur/examples/calc/agent/loop"
)

func main() {
	debug.SetGCPercent(-1)
	runtime.GOMAXPROCS(1)
	if err := run(context.Background()); err != nil {
		fmt.Fprintln(os.Stderr, "agent:", err)
		os.Exit(1)
	}
}

// number reads an environment variable.
func number(name string, otherwise float64) (float64, error) {
	s := os.Getenv(name)
	if s == "" {
		return otherwise, nil
	}
	v, err := strconv.ParseFloat(s, 64)
	if err != nil || v < 0 {
		return 0, fmt.Errorf("%s is %q: give a number of at least 0", name, s)
	}
	return v, nil
}

func run(ctx context.Context) error {
	c, err := loop.FromEnv(os.Getenv)
	share, e1 := number("ABLATION_VERIFY", .61)
	again, e2 := number("ABLATION_AGAIN", .25)
	most, e3 := number("ABLATION_ATTEMPTS", 12)
	if err := errors.Join(err, e1, e2, e3); err != nil {
		return err
	}
	question := os.Getenv("QUESTION")
	if question == "" {
		return errors.New("QUESTION is not set: it holds the story to answer")
	}
	// Which tasks are verified is a function of the rollout, not of what it samples.
	h := fnv.New32a()
	h.Write([]byte(os.Getenv("FULGUR_ROLLOUT_ID")))
	draw := float64(h.Sum32()%10000) / 10000
	need := 1 // answers that agree
	for below := share; draw < below && need < int(most); below *= again {
		need++
	}
	chat := loop.NewChat(c, &http.Client{Transport: loop.NewTransport()})
	seen := map[string]int{}
	for n := 1; ; n++ {
		answer, err := attempt(ctx, chat, question, c.MaxCalls)
		if err != nil {
			return err
		}
		if seen[answer]++; seen[answer] >= need || n >= int(most) {
			fmt.Println(answer)
			return nil
		}
	}
}

// attempt is one conversation. A turn whose tool results are all errors is taken
// out of the history before the next one.
func attempt(ctx context.Context, chat loop.Chat, question string, maxCalls int) (string, error) {
	var messages []json.RawMessage
	add := func(ms []loop.Message) error {
		for _, m := range ms {
			b, err := json.Marshal(m)
			if err != nil {
				return err
			}
			messages = append(messages, b)
		}
		return nil
	}
	if err := add(loop.Start(question)); err != nil {
		return "", err
	}
	for n := 1; ; n++ {
		raw, err := chat(ctx, messages)
		if err != nil {
			return "", err
		}
		var m loop.Message
		if err := json.Unmarshal(raw, &m); err != nil {
			return "", err
		}
		feedback := loop.Next(m)
		if len(feedback) == 0 || n >= maxCalls {
			return m.Content, nil
		}
		failed := true
		for _, f := range feedback {
			failed = failed && strings.HasPrefix(f.Content, "error")
		}
		if failed {
			continue // dropped: the model is asked again
		}
		messages = append(messages, raw)
		if err := add(feedback); err != nil {
			return "", err
		}
	}
}

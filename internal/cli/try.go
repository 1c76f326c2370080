package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/url"
	"os"
	"os/exec"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/fulgur-rl/fulgur"
	"github.com/fulgur-rl/fulgur/internal/controller"
	"github.com/fulgur-rl/fulgur/internal/gateway"
	"github.com/fulgur-rl/fulgur/internal/gateway/sampler"
	"github.com/fulgur-rl/fulgur/internal/trainer/sample"
)

// tryJob runs any agent once through the gateway.
type tryJob struct {
	app                                                 *app
	command                                             []string
	model, upstream, upstreamKey, upstreamModel, listen string
	temperature                                         float64
	timeout                                             time.Duration
}

func (a *app) tryCommand() *cobra.Command {
	j := &tryJob{app: a}
	c := &cobra.Command{
		Use:     "try [flags] -- COMMAND [ARG...]",
		Short:   "run any agent once, and see its calls and what would train",
		GroupID: "start",
		Long: `Run a program once as an agent: its model calls go through the recording gateway
to the built-in model, a Hugging Face folder (--model), or your own server
(--upstream). Its calls, tokens and what would train of them are printed.

The program finds the gateway in OPENAI_BASE_URL and OPENAI_API_KEY (chat
completions, completions, Responses) or in ANTHROPIC_BASE_URL and ANTHROPIC_API_KEY
(Messages), and the model's name in OPENAI_MODEL and ANTHROPIC_MODEL. Nothing is
trained and nothing is kept.`,
		Example: `  fulgur try -- python my_agent.py
  fulgur try --upstream http://127.0.0.1:8000/v1 --upstream-model qwen3 -- python my_agent.py
  fulgur try --upstream http://127.0.0.1:8000/v1 --upstream-model qwen3 -- claude -p 'Fix the test.' --permission-mode acceptEdits
  QUESTION='Tom has 3 pens. Tom gets 4 more. How many pens?' fulgur try -- ./agent`,
		Args: cobra.MinimumNArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			j.command = args
			return j.run(c.Context())
		},
	}
	f := c.Flags()
	f.StringVar(&j.model, "model", "builtin:calc", "model that answers: builtin:calc, or a Hugging Face folder")
	f.StringVar(&j.upstream, "upstream", "", "OpenAI base URL of a server that answers in place of --model, ending in /v1")
	f.StringVar(&j.upstreamKey, "upstream-key", "", "that server's key (variable FULGUR_UPSTREAM_KEY)")
	f.StringVar(&j.upstreamModel, "upstream-model", "", "that server's name of the model")
	f.Float64Var(&j.temperature, "temperature", 1, "temperature of all calls, as training would fix it")
	f.DurationVar(&j.timeout, "timeout", 10*time.Minute, "the agent is ended after this")
	f.StringVar(&j.listen, "listen", "127.0.0.1:0", "address of the gateway")
	return c
}

// tried is what `fulgur try --json` prints.
type tried struct {
	ExitCode  int             `json:"exit_code"`
	Error     string          `json:"error,omitempty"`
	Calls     []fulgur.Call   `json:"calls"`
	Samples   []fulgur.Sample `json:"samples"`
	Trainable int             `json:"trainable_tokens"`
	Refused   int             `json:"refused,omitempty"` // requests that became no call
	Refusal   string          `json:"refusal,omitempty"` // what the last of them was told
	Verdict   string          `json:"verdict"`
}

func (j *tryJob) run(ctx context.Context) (err error) {
	s, name, stop, err := j.open(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, stop()) }()
	id := fulgur.RolloutID("try")
	made, err := s.store.CreateRollouts(ctx, []fulgur.RolloutSpec{{ID: id, Run: fulgur.DefaultRun, Input: json.RawMessage(`{}`), IsTrain: true,
		Rewards: fulgur.RewardsAgent, Sampling: &fulgur.Sampling{Temperature: j.temperature}}})
	if err != nil {
		return err
	}
	attempt, err := s.store.OpenAttempt(ctx, id)
	if err != nil {
		return err
	}
	env := controller.AgentEnv(s.URL(), name, made[0], attempt)
	j.app.say("gateway %s, model %s; running %s", s.URL(), name, strings.Join(j.command, " "))
	code, runErr := j.exec(ctx, env)
	calls, err := s.store.Calls(context.WithoutCancel(ctx), id, attempt.ID)
	if err != nil {
		return err
	}
	out := tried{ExitCode: code, Calls: calls}
	if runErr != nil {
		out.Error = runErr.Error()
	}
	if act, err := s.gateway.Activity(context.WithoutCancel(ctx), id, attempt.ID); err == nil {
		out.Refused, out.Refusal = act.Refused, act.Refusal
	}
	built := sample.Build("try", calls, sample.Options{})
	out.Samples, out.Trainable = built.Samples(), built.Trained
	out.Verdict = j.verdict(out)
	if j.app.json {
		err = j.app.printJSON(out)
	} else {
		j.app.printCalls(calls)
		fmt.Fprintf(j.app.Stdout, "\n%s\n", out.Verdict)
	}
	if runErr != nil || len(calls) == 0 {
		return errors.Join(err, &exitError{exitFailed, nil})
	}
	return err
}

// open starts a gateway in front of the model or the upstream.
func (j *tryJob) open(ctx context.Context) (*server, string, func() error, error) {
	if j.upstream == "" {
		files, err := modelFiles(j.model, "")
		if err != nil {
			return nil, "", nil, err
		}
		name := strings.TrimPrefix(j.model, builtinPrefix)
		s, stop, err := j.app.openModelServer(ctx, files, name, serveFlags{listen: j.listen, key: newKey(), history: "deployed", log: "warn"})
		return s, name, stop, err
	}
	if j.upstreamModel == "" {
		return nil, "", nil, usageErr(errors.New("--upstream needs --upstream-model: the name that the server knows the model by"))
	}
	if err := reachUpstream(ctx, j.upstream); err != nil {
		return nil, "", nil, err
	}
	s, err := openServer(ctx, serverOptions{Store: "sqlite::memory:", Listen: j.listen, Key: newKey(),
		Gateway: gateway.Options{Model: j.upstreamModel}, Log: j.app.logger("warn"),
		Retry: sampler.Retry{Told: func(url string, wait time.Duration, err error) {
			j.app.say("%s fails, and is tried again for some time: %v", url, err)
		}}})
	if err != nil {
		return nil, "", nil, err
	}
	stop := func() error { return s.close(ctx) }
	err = s.store.PutEndpoints(ctx, fulgur.DefaultRun, j.upstreamModel, []fulgur.Endpoint{{
		Model: j.upstreamModel, Kind: fulgur.EndpointChat, URL: strings.TrimSuffix(j.upstream, "/"), Key: j.upstreamKey}})
	if err != nil {
		return nil, "", nil, errors.Join(err, stop())
	}
	return s, j.upstreamModel, stop, nil
}

// reachUpstream says at once that nothing listens at an address. That a server is
// slow or refuses is left to its answers.
func reachUpstream(ctx context.Context, base string) error {
	u, err := url.Parse(base)
	if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
		return usageErr(fmt.Errorf("--upstream %s: want a URL such as http://127.0.0.1:8000/v1", base))
	}
	port := u.Port()
	if port == "" {
		port = u.Scheme // its name is known to the dialer
	}
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	c, err := (&net.Dialer{}).DialContext(ctx, "tcp", net.JoinHostPort(u.Hostname(), port))
	if err != nil {
		return fulgur.E(fulgur.KindUnavailable, "reach "+base, "no server is there: start it, or name another with --upstream", err)
	}
	return c.Close()
}

// notStarted is the exit code of an agent that could not be started; one that a
// signal ended has -1.
const notStarted = -2

// exec runs the agent with its output on the terminal, and its whole process
// group ended with it.
func (j *tryJob) exec(ctx context.Context, env map[string]string) (int, error) {
	ctx, cancel := context.WithTimeout(ctx, j.timeout)
	defer cancel()
	c := exec.CommandContext(ctx, j.command[0], j.command[1:]...)
	c.Stdin, c.Stdout, c.Stderr = j.app.Stdin, j.app.Stderr, j.app.Stderr
	c.Env = os.Environ()
	for k, v := range env {
		c.Env = append(c.Env, k+"="+v)
	}
	ownGroup(c)
	j.app.agents.Store(true)
	defer j.app.forced.add(func() { killGroup(c) })()
	c.WaitDelay = 5 * time.Second
	err := c.Run()
	killGroup(c)
	if c.ProcessState == nil {
		return notStarted, fmt.Errorf("the agent could not be started: %w", err)
	}
	switch {
	case errors.Is(ctx.Err(), context.DeadlineExceeded):
		return c.ProcessState.ExitCode(), fmt.Errorf("the agent was ended after %s: --timeout gives it longer", j.timeout)
	case err != nil:
		return c.ProcessState.ExitCode(), fmt.Errorf("the agent ended with %w", err)
	}
	return 0, nil
}

func (j *tryJob) verdict(t tried) string {
	bad := map[string]int{}
	for i := range t.Calls {
		for _, why := range t.Calls[i].Untrainable {
			bad[why]++
		}
	}
	var b strings.Builder
	switch {
	case t.ExitCode == notStarted && len(t.Calls) == 0:
		return t.Error
	case len(t.Calls) == 0 && t.Refused > 0:
		b.WriteString("None of the agent's requests became a model call.")
	case len(t.Calls) == 0:
		b.WriteString("The agent made no model call: does it read OPENAI_BASE_URL and OPENAI_API_KEY, or ANTHROPIC_BASE_URL and ANTHROPIC_API_KEY?")
	case t.Trainable == 0:
		fmt.Fprintf(&b, "%s, and nothing would train.", count(len(t.Calls), "call"))
	default:
		fmt.Fprintf(&b, "%s with %d trainable tokens.", count(len(t.Calls), "call")+" → "+count(len(t.Samples), "training sample"), t.Trainable)
		if len(t.Samples) == 1 && len(t.Calls) > 1 {
			b.WriteString(" The conversation only grows: one sample, each token trained once.")
		}
	}
	for _, why := range slices.Sorted(maps.Keys(bad)) {
		fmt.Fprintf(&b, "\n%s untrainable: %s", count(bad[why], "call"), why)
	}
	if t.Refused > 0 {
		fmt.Fprintf(&b, "\n%s refused, the last one with: %s", count(t.Refused, "request"), t.Refusal)
	}
	if t.Error != "" {
		fmt.Fprintf(&b, "\n%s", t.Error)
	}
	return b.String()
}

// count says a number of things.
func count(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}

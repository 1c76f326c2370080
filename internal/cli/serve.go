package cli

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"github.com/fulgur-rl/fulgur"
	"github.com/fulgur-rl/fulgur/internal/api"
	"github.com/fulgur-rl/fulgur/internal/gateway"
	"github.com/fulgur-rl/fulgur/internal/gateway/render"
	"github.com/fulgur-rl/fulgur/internal/gateway/sampler"
	"github.com/fulgur-rl/fulgur/internal/trainer"
)

// serveFlags are serve's flags.
type serveFlags struct {
	listen, key, model, modelDir, store, run, history, pause, durability, log string
	trainTemp, valTemp                                                        float64
	logProbs, experts, probe                                                  bool
	upstreamTimeout, retryBackoff, keepRecords                                time.Duration
	compat                                                                    []string
	threads                                                                   int
	maxBody                                                                   int64
	attemptCalls                                                              int
	artifacts                                                                 int64
	attemptRate                                                               float64
	events                                                                    api.EventLimits
}

func (a *app) serveCommand() *cobra.Command {
	var f serveFlags
	c := &cobra.Command{
		Use:     "serve",
		Short:   "serve the gateway and the control API, or a trained model",
		GroupID: "parts",
		Long: `Serve the recording gateway, the record and the control API, for trainers and
controllers elsewhere (Agent Lightning v1's as well as Fulgur's own).

With --run the model that a run has trained is served as an OpenAI-compatible
server in place of that: point any client at http://ADDRESS/v1.`,
		Example: `  fulgur serve --key KEY --store sqlite:fulgur.db --model-dir builtin:calc
  fulgur serve --run runs/calc`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			outliveReader()
			if a.Getenv("GOGC") == "" {
				defer boundHeap()()
			}
			if f.run != "" {
				return a.serveRun(c, f)
			}
			return a.serve(c, f)
		},
	}
	fl := c.Flags()
	fl.StringVar(&f.listen, "listen", "127.0.0.1:8080", "address to listen on")
	fl.StringVar(&f.key, "key", "", "server key of trainers, controllers and people; empty: none is needed")
	fl.StringVar(&f.model, "model", "", "name of the policy: which registered endpoints answer (default: the run's)")
	fl.StringVar(&f.modelDir, "model-dir", "", "Hugging Face folder (or builtin:calc) whose tokenizer and chat template render for endpoints that take tokens")
	fl.StringVar(&f.store, "store", "sqlite:fulgur.db", "the record: sqlite:PATH, sqlite::memory:, or postgres://USER:PASSWORD@HOST/DATABASE")
	fl.StringVar(&f.run, "run", "", "serve the best model of this run")
	fl.StringVar(&f.history, "history", "deployed", "tokens of a known conversation that are reused: deployed or sampled")
	fl.Float64Var(&f.trainTemp, "train-temperature", 1, "temperature of training calls whose rollout fixes none")
	fl.Float64Var(&f.valTemp, "val-temperature", 0.7, "temperature of validation calls whose rollout fixes none")
	fl.BoolVar(&f.logProbs, "logprobs", true, "ask upstreams for log probs")
	fl.BoolVar(&f.probe, "probe", true, "ask each model server for two tokens when it is registered over v2, and say what training would lack")
	fl.BoolVar(&f.experts, "routed-experts", false, "ask upstreams for routed experts in training calls (R3: router replay of mixtures of experts)")
	fl.DurationVar(&f.upstreamTimeout, "upstream-timeout", 300*time.Second, "limit of one try at an upstream")
	fl.DurationVar(&f.retryBackoff, "retry-backoff", 500*time.Millisecond, "first wait between tries; doubles up to 8s")
	fl.Int64Var(&f.maxBody, "max-body", 64<<20, "largest request in bytes; -1: any")
	fl.IntVar(&f.attemptCalls, "attempt-calls", 4096, "most calls of one attempt's credential at once; -1: any number")
	fl.Float64Var(&f.attemptRate, "attempt-rate", 500, "most calls of one attempt's credential a second, on average; -1: any number")
	fl.IntVar(&f.events.Count, "attempt-events", 10_000, "most events that one attempt's credential may post; -1: any number")
	fl.Int64Var(&f.events.Bytes, "attempt-event-bytes", 64<<20, "most bytes of events that one attempt's credential may post; -1: any")
	fl.Int64Var(&f.artifacts, "attempt-artifact-bytes", 512<<20, "most bytes that one attempt's credential may leave in files (docs/grading.md); 0: none, -1: any")
	fl.StringVar(&f.pause, "pause", "refuse", "what v1's pause does with new calls: refuse (429) or hold")
	fl.StringSliceVar(&f.compat, "compat", nil, "v1-agents: an attempt's credential may read its own rollout, as v1's agents do, without what is withheld")
	fl.StringVar(&f.durability, "durability", "process", "what an acknowledged record survives: process (kill -9) or power")
	fl.DurationVar(&f.keepRecords, "keep-records", 0, "delete the calls, events and artifacts of rollouts that ended longer ago (0: never)")
	fl.StringVar(&f.log, "log-level", "info", "debug, info, warn or error")
	fl.IntVar(&f.threads, "threads", 0, "with --run: workers of the embedded engine (0: one per core)")
	return c
}

func oneOf(flag, v string, allowed ...string) error {
	for _, x := range allowed {
		if v == x {
			return nil
		}
	}
	return usageErr(fmt.Errorf("--%s %s: want one of %v", flag, v, allowed))
}

// serve is the gateway, the record and the control API alone.
func (a *app) serve(c *cobra.Command, f serveFlags) (err error) {
	err = errors.Join(oneOf("pause", f.pause, "refuse", "hold"), oneOf("durability", f.durability, "process", "power"),
		oneOf("history", f.history, "deployed", "sampled"))
	for _, c := range f.compat {
		err = errors.Join(err, oneOf("compat", c, compatAgents))
	}
	if err != nil {
		return usageErr(err)
	}
	var rend *render.Renderer
	var limits modelLimits
	if f.modelDir != "" {
		files, err := modelFiles(f.modelDir, "")
		if err != nil {
			return err
		}
		if rend, err = render.Load(files, render.Options{Now: time.Now}); err != nil {
			return err
		}
		if limits, err = readLimits(files); err != nil {
			return err
		}
	}
	var probe func(string, ...any)
	if f.probe {
		probe = a.say
	}
	s, err := openServer(c.Context(), serverOptions{
		Probe: probe, Store: f.store, Power: f.durability == "power", Listen: f.listen, Key: f.key, Renderer: rend, Limits: limits, History: f.history,
		Gateway: gateway.Options{Model: f.model, TrainTemperature: &f.trainTemp, ValTemperature: &f.valTemp, HoldV1: f.pause == "hold",
			MaxBody: f.maxBody, MaxConcurrent: f.attemptCalls, MaxRate: f.attemptRate},
		Retry: sampler.Retry{Try: f.upstreamTimeout, Backoff: f.retryBackoff}, NoLogProbs: !f.logProbs, RoutedExperts: f.experts, AgentsRead: len(f.compat) > 0, Events: f.events, Artifacts: artifactLimit(f.artifacts), Log: a.logger(f.log),
	})
	if err != nil {
		return err
	}
	if f.key == "" {
		a.say("warning: no --key: whoever reaches %s may do everything", s.URL())
	}
	if err := a.announce(s.URL()); err != nil {
		return errors.Join(err, s.close(c.Context()))
	}
	var keeping sync.WaitGroup
	if f.keepRecords > 0 {
		keeping.Go(func() { keepRecords(c.Context(), s.store, f.keepRecords, a.logger(f.log)) })
	}
	<-c.Context().Done()
	keeping.Wait()
	return s.close(c.Context())
}

// announce says that a server is up, on standard output for scripts.
func (a *app) announce(url string) error {
	if a.json {
		return a.printJSON(map[string]string{"url": url})
	}
	_, err := fmt.Fprintf(a.Stdout, "listening on %s\n", url)
	return err
}

// bestModel finds the folder of a run's best policy.
func bestModel(dir runDir) (fs.FS, string, error) {
	best, err := trainer.BestCheckpoint(string(dir))
	if err != nil {
		return nil, "", err
	}
	return os.DirFS(best), best, nil
}

// serveRun serves a trained model to any OpenAI client.
func (a *app) serveRun(c *cobra.Command, f serveFlags) error {
	r, dir, err := a.openRun(f.run, c)
	if err != nil {
		return err
	}
	files, best, err := bestModel(dir)
	if err != nil {
		return err
	}
	name := f.model
	if name == "" {
		name = modelName(r.File)
	}
	s, stop, err := a.openModelServer(c.Context(), files, name, f)
	if err != nil {
		return err
	}
	a.say("model %s (%s)", name, best)
	auth := ""
	if f.key != "" {
		auth = ` -H "authorization: Bearer $KEY"`
	}
	a.say("try: curl %s/v1/chat/completions%s -H 'content-type: application/json' -d '{\"model\":\"%s\",\"messages\":[{\"role\":\"user\",\"content\":\"…\"}]}'", s.URL(), auth, name)
	if err := a.announce(s.URL()); err != nil {
		return errors.Join(err, stop())
	}
	<-c.Context().Done()
	return stop()
}

// openModelServer serves one model folder with the embedded engine, plain calls
// included.
func (a *app) openModelServer(ctx context.Context, files fs.FS, name string, f serveFlags) (*server, func() error, error) {
	eng, rend, err := openPolicy(files, name, engineFlags{threads: f.threads})
	if err != nil {
		return nil, nil, err
	}
	info, err := eng.Info(ctx)
	if err != nil {
		return nil, nil, errors.Join(err, eng.Close())
	}
	s, err := openServer(ctx, serverOptions{
		Store: "sqlite::memory:", Listen: f.listen, Key: f.key, Renderer: rend, Local: eng, ContextLength: info.ContextLength, Limits: modelLimits{Vocabulary: info.VocabSize},
		History: f.history, Gateway: gateway.Options{Model: name, Plain: true}, Log: a.logger(f.log),
	})
	if err != nil {
		return nil, nil, errors.Join(err, eng.Close())
	}
	stop := func() error { return errors.Join(s.close(ctx), eng.Close()) }
	eps, err := eng.Publish(ctx, 0)
	if err == nil {
		for i := range eps {
			eps[i].Model = name
		}
		err = s.store.PutEndpoints(ctx, fulgur.DefaultRun, name, eps)
	}
	if err != nil {
		return nil, nil, errors.Join(err, stop())
	}
	return s, stop, nil
}

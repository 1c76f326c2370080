package cli

import (
	"context"
	"errors"
	"time"

	"github.com/spf13/cobra"

	"github.com/fulgur-rl/fulgur"
	"github.com/fulgur-rl/fulgur/internal/api/client"
	"github.com/fulgur-rl/fulgur/internal/engine"
	"github.com/fulgur-rl/fulgur/internal/engine/serve"
)

// engineCommand serves the embedded engine's tokens.
func (a *app) engineCommand() *cobra.Command {
	parent := &cobra.Command{Use: "engine", Short: "the engine alone", GroupID: "parts",
		Example: "  fulgur engine serve\n  fulgur engine serve --model DIR --listen 0.0.0.0:8000 --key KEY"}
	var addr, model, key, logLevel string
	var threads int
	c := &cobra.Command{
		Use:   "serve",
		Short: "serve a model's tokens: vLLM's /v1/completions with token-id prompts",
		Example: `  fulgur engine serve
  fulgur engine serve --model DIR --listen 0.0.0.0:8000 --key KEY`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			outliveReader()
			files, err := modelFiles(model, "")
			if err != nil {
				return err
			}
			eng, _, err := openPolicy(files, model, engineFlags{threads: threads})
			if err != nil {
				return err
			}
			info, err := eng.Info(c.Context())
			if err != nil {
				return errors.Join(err, eng.Close())
			}
			if key == "" {
				a.say("warning: no --key: any key passes")
			}
			l, err := listen(addr, serve.New(eng, serveLimits(info, model, key)), a.logger(logLevel))
			if err != nil {
				return errors.Join(err, eng.Close())
			}
			if err := a.announce(l.url); err != nil {
				return errors.Join(err, l.close(c.Context()), eng.Close())
			}
			<-c.Context().Done()
			return errors.Join(l.close(c.Context()), eng.Close())
		},
	}
	c.Flags().StringVar(&addr, "listen", "127.0.0.1:8000", "address to listen on")
	c.Flags().StringVar(&model, "model", "builtin:calc", "Hugging Face folder, or builtin:calc")
	c.Flags().StringVar(&key, "key", "", "bearer key; empty: any key passes")
	c.Flags().StringVar(&logLevel, "log-level", "info", "debug, info, warn or error")
	c.Flags().IntVar(&threads, "threads", 0, "workers (0: one per core)")
	parent.AddCommand(c)
	return parent
}

// serverWait is how long a server is waited for that is not there yet: parts of one
// run are started together, in any order. Whoever starts one by hand, with the server
// down, learns it within seconds.
const serverWait = 5 * time.Second

// waitServer waits for a server that is not there, at most for limit, and says so
// once. A key that it does not take, and an address that is none, are told at once.
func (a *app) waitServer(ctx context.Context, url, key string, limit time.Duration) error {
	end, told := time.Now().Add(limit), false
	for {
		err := checkServer(ctx, url, key)
		kind := fulgur.KindOf(err)
		if err == nil || kind != fulgur.KindUnavailable && kind != fulgur.KindTimeout || time.Now().After(end) {
			return err
		}
		if !told {
			a.say("waiting up to %s for the server at %s (start it with `fulgur serve`)", limit, url)
			told = true
		}
		if !pauseFor(ctx, 500*time.Millisecond) {
			return err
		}
	}
}

// checkServer says within seconds whether a server is there and takes our key.
func checkServer(ctx context.Context, url, key string) error {
	c, err := client.New(url, key, client.Options{RetryFor: -1})
	if err != nil {
		return usageErr(err)
	}
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	_, err = c.Head(ctx)
	switch err = errors.Join(err, c.Close()); fulgur.KindOf(err) {
	case "":
		return nil
	case fulgur.KindDenied, fulgur.KindForbidden:
		return fulgur.E(fulgur.KindOf(err), "reach "+url, "it does not take this key: give the one that it was started with, --key KEY", err)
	default:
		return fulgur.E(fulgur.KindOf(err), "reach "+url, "start the server there with `fulgur serve`, or name another with --server", err)
	}
}

// serveLimits are the options of an engine's listener.
func serveLimits(info engine.Info, model, key string) serve.Options {
	return serve.Options{Model: model, Key: key, ContextLength: info.ContextLength, VocabSize: info.VocabSize}
}

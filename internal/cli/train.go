package cli

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"runtime/debug"
	"time"

	"github.com/spf13/cobra"

	"github.com/fulgur-rl/fulgur"
	"github.com/fulgur-rl/fulgur/internal/api/client"
	"github.com/fulgur-rl/fulgur/internal/config"
	"github.com/fulgur-rl/fulgur/internal/engine"
	"github.com/fulgur-rl/fulgur/internal/engine/embedded"
	"github.com/fulgur-rl/fulgur/internal/engine/serve"
	"github.com/fulgur-rl/fulgur/internal/gateway"
	"github.com/fulgur-rl/fulgur/internal/gateway/render"
	"github.com/fulgur-rl/fulgur/internal/trainer"
	"github.com/fulgur-rl/fulgur/internal/trainer/metrics"
)

// trainJob is one training run: new or resumed, all in one process or against a
// server.
type trainJob struct {
	app    *app
	file   *runFile
	dir    runDir
	resume bool
	server string // URL; "": gateway, store and controller run here
	key    string
	wait   time.Duration // for the server to be there
	began  bool          // the trainer has checked all, and starts rollouts

	engine engineFlags
}

func (a *app) trainCommand() *cobra.Command {
	var flags runFileFlags
	var server, key string
	var wait time.Duration
	var check, outcomes, schema bool
	var engine engineFlags
	c := &cobra.Command{
		Use:     "train RUN.yaml",
		Short:   "train the agent that a run file describes",
		GroupID: "train",
		Long: `Train the agent that a run file describes. Everything runs in this process:
gateway, store, controller, trainer, and the embedded engine. With --server the
gateway, the store and the controllers are elsewhere (fulgur serve, fulgur
controller), and only the trainer and its engine run here.

Ctrl-C saves a checkpoint and stops; fulgur resume goes on.`,
		Example: `  fulgur train examples/calc/run.yaml
  fulgur train run.yaml --set algorithm.group_size=16 --seed 7
  fulgur train run.yaml --check        # the effective configuration, and what it would start
  fulgur train --schema > run.schema.json`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			if schema {
				_, err := a.Stdout.Write(config.Schema(variants()))
				return err
			}
			if len(args) == 0 {
				return usageErr(errNoRunFile)
			}
			r, err := a.loadRunFile(args[0], flags, c)
			if err != nil {
				return err
			}
			if server == "" {
				server = r.Server
			}
			a.warn(r)
			for _, w := range gatewayWarnings(r, server) {
				a.say("warning: %s", w)
			}
			if check || outcomes {
				r.Server = server
				return a.check(c.Context(), r, outcomes)
			}
			dir, err := newRunDir(r.Out, r.Run)
			if err != nil {
				return err
			}
			j := &trainJob{app: a, file: r, dir: dir, server: server, key: key, wait: wait, engine: engine}
			return a.finish(j.run(c.Context()))
		},
	}
	flags.register(c)
	c.Flags().StringVar(&server, "server", "", "URL of a running fulgur serve (key server)")
	c.Flags().StringVar(&key, "key", "", "the server's key")
	c.Flags().DurationVar(&wait, "wait", serverWait, "how long to wait for a server that is not there yet")
	c.Flags().BoolVar(&check, "check", false, "print the effective configuration and what it would start, and start nothing")
	c.Flags().BoolVar(&outcomes, "outcomes", false, "with --check: print what each way to end leads to, not only what the run file changes of it")
	c.Flags().BoolVar(&schema, "schema", false, "print the run file's JSON Schema")
	engine.register(c)
	return c
}

func (a *app) resumeCommand() *cobra.Command {
	var server, key string
	var wait time.Duration
	var steps int
	var engine engineFlags
	c := &cobra.Command{
		Use:     "resume RUN",
		Short:   "go on with a run that was stopped or killed",
		GroupID: "train",
		Long: `Go on with a run from its last checkpoint. RUN is the run's folder, or its name
below runs/. Rollouts that ended after the checkpoint are taken from the record,
not run again; nothing counts twice.

A run that was trained with --server goes on with that server; --key (or
FULGUR_KEY) is its key, --server its address if it has moved.`,
		Example: `  fulgur resume runs/calc
  fulgur resume calc --steps 300       # further than the run file says`,
		Args: cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			r, dir, err := a.openRun(args[0], c)
			if err != nil {
				return err
			}
			if c.Flags().Changed("steps") {
				r.Steps = steps
			}
			if server, err = resumeServer(dir, server, r.Server); err != nil {
				return err
			}
			j := &trainJob{app: a, file: r, dir: dir, resume: true, server: server, key: key, wait: wait, engine: engine}
			return a.finish(j.run(c.Context()))
		},
	}
	c.Flags().IntVar(&steps, "steps", 0, "train up to this step in place of the run file's `steps`")
	c.Flags().StringVar(&server, "server", "", "URL of the fulgur serve that has the run's record (default: the one it was trained with)")
	c.Flags().StringVar(&key, "key", "", "the server's key")
	c.Flags().DurationVar(&wait, "wait", serverWait, "how long to wait for a server that is not there yet")
	engine.register(c)
	return c
}

// openRun opens the folder of a run with the configuration it was started with.
func (a *app) openRun(arg string, c *cobra.Command) (*runFile, runDir, error) {
	dir, err := openRunDir(arg)
	if err != nil {
		return nil, "", err
	}
	src, err := os.ReadFile(dir.config())
	if err != nil {
		return nil, "", fmt.Errorf("reading the run's configuration: %w", err)
	}
	f, _, err := config.Parse(src, dir.config(), variants())
	if err != nil {
		return nil, "", usageErr(err)
	}
	var from origin
	if err := dir.readJSON("origin.json", &from); err != nil {
		return nil, "", fmt.Errorf("reading where the run came from: %w", err)
	}
	return &runFile{File: f, Dir: from.Dir}, dir, nil
}

// finish prints a run's result and turns it into the command's error.
func (a *app) finish(r result, err error) error {
	if r.Run != "" && a.json {
		if e := a.printJSON(r); e != nil && err == nil {
			err = e
		}
	}
	switch {
	case fulgur.KindOf(err) == fulgur.KindCanceled:
		return &exitError{exitInterrupted, err}
	case err != nil:
		return err
	case r.stopRule && !r.Reached:
		return &exitError{exitNotReached, fmt.Errorf("the stop rule was not met in %d steps; `fulgur resume %s --steps N` goes on", r.Steps, r.Run)}
	}
	return nil
}

// run is the job from start to end: folder, build, house, training, report. The
// order of start and stop of everything that runs is written here.
func (j *trainJob) run(ctx context.Context) (_ result, err error) {
	outliveReader()
	if j.app.Getenv("GOGC") == "" {
		debug.SetGCPercent(trainGCPercent)
	}
	m := startMeter()
	if j.resume {
		m.goOn(j.dir)
	}
	defer func() {
		if err != nil && !j.resume && !j.began { // there is nothing to resume: nothing stays
			err = errors.Join(err, os.RemoveAll(string(j.dir)))
		}
		if k := fulgur.KindOf(err); err != nil && j.began && k != fulgur.KindCanceled {
			err = errors.Join(err, j.kept())
		}
	}()
	data, err := readData(j.file)
	if err != nil {
		return result{}, errors.Join(err, checkRest(ctx, j.file, j.server)) // all that is amiss at once
	}
	if j.server == "" && !j.resume {
		if err := checkRunner(ctx, j.file); err != nil {
			return result{}, err
		}
	}
	opts, err := trainerOptions(j.file, j.dir, data)
	if err != nil {
		return result{}, err
	}
	files, err := modelFiles(j.file.Model, j.file.Dir)
	if err != nil {
		return result{}, err
	}
	eng, rend, err := openPolicy(files, j.file.Model, j.engine)
	if err != nil {
		return result{}, err
	}
	defer func() { err = errors.Join(err, eng.Close()) }()
	opts.Engine, opts.Resume = eng, j.resume
	if err := j.prepare(ctx); err != nil {
		return result{}, err
	}
	log, closeLog, err := fileLogger(j.dir, j.file.Logs.Level)
	if err != nil {
		return result{}, err
	}
	defer func() { err = errors.Join(err, closeLog()) }()
	j.app.slowWarning(ctx, eng)

	w := j.watch(opts)
	defer w.close()
	w.keepCost = func() {
		if err := j.dir.writeJSON(costFile, m.spent(), 0o644); err != nil {
			w.say("what the run has cost so far is not kept for a resume: " + err.Error())
		}
	}
	if j.resume {
		j.lookAtOptimizer(w.say)
	}
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	w.hooks = &hooks{ctx: ctx, stop: stop, file: j.file, dir: j.dir, warn: w.say}
	opts.Observer = func(e trainer.Event) {
		if _, ok := e.(trainer.Started); ok {
			j.began = true
		}
		w.observe(e)
	}
	var res trainer.Result
	if j.server == "" {
		res, err = j.together(ctx, eng, rend, opts, w.say, m, log)
	} else {
		res, err = j.apart(ctx, eng, opts, log)
	}
	if err != nil && !res.Interrupted {
		return result{}, err
	}
	if e := w.hooks.failed(); e != nil {
		err = e // in place of: it was interrupted
	}
	out, e := j.conclude(context.WithoutCancel(ctx), res, w, m)
	return out, errors.Join(err, e)
}

// kept says where a run that failed is, and how it goes on.
func (j *trainJob) kept() error {
	dir := string(j.dir)
	next := "`fulgur resume " + dir + "` begins it again"
	if _, s, err := trainer.Last(dir); err == nil {
		next = fmt.Sprintf("`fulgur resume %s` goes on after step %d", dir, s.Cursor.Step)
	}
	return fmt.Errorf("the run is kept in %s; once the cause is mended, %s", dir, next)
}

// lookAtOptimizer warns of a checkpoint that lost its optimizer's state: the
// engine begins with a fresh one, and the run isn't what it would have been.
func (j *trainJob) lookAtOptimizer(say func(string)) {
	path, _, err := trainer.Last(string(j.dir))
	if err != nil {
		return // there is none yet, or loading it tells
	}
	if _, err := os.Stat(filepath.Join(path, embedded.OptimizerFile)); errors.Is(err, fs.ErrNotExist) {
		say(path + " has no " + embedded.OptimizerFile + ": the optimizer starts anew, and the run will not be what it would have been; removing that folder resumes from the checkpoint before it")
	}
}

// prepare looks whether the server is there, and writes the run's folder.
func (j *trainJob) prepare(ctx context.Context) error {
	if j.server != "" {
		if err := j.app.waitServer(ctx, j.server, j.key, j.wait); err != nil {
			return err
		}
		if err := j.checkRecord(ctx); err != nil {
			return err
		}
	}
	if j.resume {
		return nil
	}
	err := errors.Join(
		writeFile(j.dir.config(), j.file.Effective(), 0o644),
		j.dir.writeJSON("origin.json", origin{Dir: j.file.Dir, Run: j.file.Run, Server: j.server, Version: version(), Seed: j.file.Seed}, 0o644))
	if err != nil {
		return fulgur.E(fulgur.KindExhausted, "start the run", "the run's folder can't be written: check permissions and disk space, or choose another with --out", err)
	}
	return nil
}

// together runs everything in this process.
func (j *trainJob) together(ctx context.Context, eng *embedded.Engine, rend *render.Renderer, opts trainer.Options, say func(string), m *meter, log *slog.Logger) (_ trainer.Result, err error) {
	info, err := eng.Info(ctx)
	if err != nil {
		return trainer.Result{}, err
	}
	opts.Holder = soleHolder
	key := newKey()
	s, err := openServer(ctx, serverOptions{
		Store: "sqlite:" + j.dir.store(), Power: j.file.Durability == "power", Listen: j.file.Listen, Key: key,
		Gateway:  gateway.Options{Run: opts.Run, Model: opts.Model},
		Renderer: rend, Local: eng, ContextLength: info.ContextLength, Limits: modelLimits{Vocabulary: info.VocabSize}, History: j.file.History, RoutedExperts: j.file.Algorithm.Replay, Artifacts: artifactBytes(j.file), Log: log,
	})
	if err != nil {
		return trainer.Result{}, err
	}
	defer func() { err = errors.Join(err, s.close(ctx)) }()
	if err := j.dir.writeJSON("server.json", address{URL: s.URL(), Key: key, PID: os.Getpid()}, 0o600); err != nil {
		return trainer.Result{}, err
	}
	defer os.Remove(j.dir.path("server.json"))
	// Not before the store is ours: another process may be running the agent.
	if err := j.app.buildAgent(ctx, j.file, j.dir, m); err != nil {
		return trainer.Result{}, err
	}
	agents, err := j.app.startController(ctx, controllerJob{
		file: j.file, dir: j.dir, run: opts.Run, model: opts.Model, url: s.URL(), store: s.store, gate: s.gateway, secret: key, log: log, meter: m, holder: soleHolder, registry: s.registry, tell: say,
	})
	if err != nil {
		return trainer.Result{}, err
	}
	defer func() { err = errors.Join(err, agents.stop()) }()
	ctx, free := agents.within(ctx)
	defer free()

	gauges, err := metrics.NewGauges(s.registry, opts.Run)
	if err != nil {
		return trainer.Result{}, err
	}
	opts.Sinks = []metrics.Sink{gauges}
	opts.Store, opts.Gate = s.store, s.gateway
	if err := registerModels(ctx, s.store, opts, j.file.File); err != nil {
		return trainer.Result{}, err
	}
	res, err := trainer.Run(ctx, opts)
	if e := agents.failed(); e != nil {
		err = e // in place of: it was interrupted
	}
	return res, err
}

// apart runs the trainer and its engine here, against a server.
func (j *trainJob) apart(ctx context.Context, eng *embedded.Engine, opts trainer.Options, log *slog.Logger) (_ trainer.Result, err error) {
	c, err := client.New(j.server, j.key, client.Options{})
	if err != nil {
		return trainer.Result{}, usageErr(err)
	}
	info, err := eng.Info(ctx)
	if err != nil {
		return trainer.Result{}, err
	}
	tokenKey := newKey()
	l, err := listen(j.file.Listen, serve.New(eng, serveLimits(info, opts.Model, tokenKey)), log)
	if err != nil {
		return trainer.Result{}, err
	}
	defer func() { err = errors.Join(err, l.close(context.WithoutCancel(ctx))) }()
	opts.Engine = served{Freezer: eng, url: l.url + "/v1", key: tokenKey}
	opts.Store, opts.Gate = c, c
	if err := registerModels(ctx, c, opts, j.file.File); err != nil {
		return trainer.Result{}, err
	}
	return trainer.Run(ctx, opts)
}

// served is an engine whose tokens are had over HTTP.
type served struct {
	engine.Freezer // a KL term needs it here as well
	url, key       string
}

// Publish returns the listener's address in place of the process's own.
func (s served) Publish(ctx context.Context, v fulgur.PolicyVersion) ([]fulgur.Endpoint, error) {
	list, err := s.Freezer.Publish(ctx, v)
	for i := range list {
		list[i].URL, list[i].Key = s.url, s.key
	}
	return list, err
}

// slowWarning says what to expect of a CPU without our kernels.
func (a *app) slowWarning(ctx context.Context, e engine.Engine) {
	info, err := e.Info(ctx)
	if err == nil && info.Slow {
		a.say("warning: this CPU has no kernels in this version (AVX2 or AVX-512 on amd64): the engine is about 20 times slower.")
	}
}

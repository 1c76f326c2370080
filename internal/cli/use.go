package cli

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"

	"github.com/fulgur-rl/fulgur"
	"github.com/fulgur-rl/fulgur/internal/gateway"
	"github.com/fulgur-rl/fulgur/internal/trainer"
	"github.com/fulgur-rl/fulgur/internal/trainer/data"
)

func (a *app) evalCommand() *cobra.Command {
	var dataPath, checkpoint string
	var problems int
	var engine engineFlags
	c := &cobra.Command{
		Use:     "eval RUN",
		Short:   "measure a run's best model: pass@1 with its interval",
		GroupID: "train",
		Long: `Measure the best model of a run with its own agent and grader, sampled and
greedy, on data.test (or --data). pass@1 is the share of rollouts with a reward of
1 or more, with its 95 % interval (Wilson); the mean reward stands beside it.
RUN is the run's folder, or its name below runs/.`,
		Example: `  fulgur eval runs/demo
  fulgur eval demo --checkpoint start --json       # the model before training
  fulgur eval demo --data more.jsonl --problems 50`,
		Args: cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			r, dir, err := a.openRun(args[0], c)
			if err != nil {
				return err
			}
			e := &evalJob{app: a, file: r, dir: dir, checkpoint: checkpoint, data: dataPath, problems: problems, engine: engine}
			return e.run(c.Context())
		},
	}
	c.Flags().StringVar(&dataPath, "data", "", "rows to measure on (default: the run's data.test, else data.validation)")
	c.Flags().StringVar(&checkpoint, "checkpoint", "", "a checkpoint's name, such as step-000040, or start (default: the best)")
	c.Flags().IntVar(&problems, "problems", 0, "measure on the first so many rows (0: all)")
	engine.register(c)
	return c
}

// evalJob measures one policy of a run.
type evalJob struct {
	app              *app
	file             *runFile
	dir              runDir
	checkpoint, data string
	problems         int
	engine           engineFlags
}

// policy finds the weights that are asked for.
func (j *evalJob) policy() (files fs.FS, name string, err error) {
	switch j.checkpoint {
	case "":
		files, best, err := bestModel(j.dir)
		return files, filepath.Base(best), err
	case "start":
		files, err = modelFiles(j.file.Model, j.file.Dir)
		return files, "start", err
	}
	p := j.dir.path("checkpoints", j.checkpoint)
	if _, err := os.Stat(p); err != nil {
		return nil, "", notFound("open checkpoint "+j.checkpoint, "the run keeps no such checkpoint; look in "+j.dir.checkpoints())
	}
	return os.DirFS(p), j.checkpoint, nil
}

func (j *evalJob) rows() ([]data.Row, string, error) {
	path := j.data
	if path == "" {
		if path = j.file.resolve(j.file.Data.Test); path == "" {
			path = j.file.resolve(j.file.Data.Validation)
		}
	}
	if path == "" {
		return nil, "", usageErr(errors.New("the run names no data.test and no data.validation: name rows with --data"))
	}
	var fields []string
	if j.file.Reward.Expected != "" {
		fields = append(fields, j.file.Reward.Expected)
	}
	set, err := data.Read(path, data.Options{Fields: fields, Limit: j.problems})
	if err == nil {
		err = checkRows(j.file, path, set.Rows)
	}
	return set.Rows, path, err
}

func (j *evalJob) run(ctx context.Context) (err error) {
	rows, path, err := j.rows()
	if err := errors.Join(err, checkRunner(ctx, j.file)); err != nil {
		return err
	}
	files, name, err := j.policy()
	if err != nil {
		return err
	}
	tmp, err := os.MkdirTemp("", "fulgur-eval-")
	if err != nil {
		return fulgur.E(fulgur.KindExhausted, "evaluate", "no temporary folder can be made", err)
	}
	defer os.RemoveAll(tmp)
	work := runDir(tmp)
	if err := j.app.buildAgent(ctx, j.file, work, nil); err != nil {
		return err
	}
	eng, rend, err := openPolicy(files, name, j.engine)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, eng.Close()) }()
	info, err := eng.Info(ctx)
	if err != nil {
		return err
	}
	log := j.app.logger("warn")
	key := newKey()
	run := fulgur.RunID(j.file.Run)
	s, err := openServer(ctx, serverOptions{
		Store: "sqlite:" + work.store(), Listen: "127.0.0.1:0", Key: key, Gateway: gateway.Options{Run: run, Model: modelName(j.file.File)},
		Renderer: rend, Local: eng, ContextLength: info.ContextLength, Limits: modelLimits{Vocabulary: info.VocabSize}, History: j.file.History, Artifacts: artifactBytes(j.file), Log: log,
	})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.close(ctx)) }()
	agents, err := j.app.startController(ctx, controllerJob{file: j.file, dir: work, run: run, model: modelName(j.file.File),
		url: s.URL(), store: s.store, gate: s.gateway, secret: key, log: log})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, agents.stop()) }()
	ctx, free := agents.within(ctx)
	defer free()
	opts, err := trainerOptions(j.file, work, dataSets{})
	if err != nil {
		return err
	}
	opts.Store, opts.Gate, opts.Engine = s.store, s.gateway, eng
	opts.Observer = j.progress
	if err := registerModels(ctx, s.store, opts, j.file.File); err != nil {
		return err
	}
	e, err := trainer.Evaluate(ctx, opts, trainer.Request{Part: "eval", Rows: rows})
	if failed := agents.failed(); failed != nil {
		return failed
	}
	if err != nil {
		return err
	}
	return j.print(e, name, path)
}

func (j *evalJob) progress(e trainer.Event) {
	if p, ok := e.(trainer.Progress); ok && (p.Done == p.Total || p.Done%100 == 0) {
		j.app.say("%d of %d rollouts", p.Done, p.Total)
	}
}

func (j *evalJob) print(e *trainer.Evaluation, name, path string) error {
	if j.app.json {
		return j.app.printJSON(struct {
			Checkpoint string `json:"checkpoint"`
			Data       string `json:"data"`
			*trainer.Evaluation
		}{name, path, e})
	}
	line := func(what string, s trainer.Score) {
		fmt.Fprintf(j.app.Stdout, "%-16s pass@1 %.3f  [%.3f, %.3f]  %d of %d", what, s.Rate, s.Low, s.High, s.Passes, s.Rollouts)
		if s.Rollouts > 0 {
			fmt.Fprintf(j.app.Stdout, "  mean reward %.3f", s.Reward)
		}
		if n := s.AgentFailures + s.Infrastructure; n > 0 {
			fmt.Fprintf(j.app.Stdout, "  (%d failed)", n)
		}
		fmt.Fprintln(j.app.Stdout)
	}
	fmt.Fprintf(j.app.Stdout, "%s on %s (95 %% intervals; a reward of %g or more passes)\n", name, path, passReward)
	line("temperature 1", e.Sampled)
	if r := e.Sampled.Repeats; r != nil {
		k := r.Runs
		fmt.Fprintf(j.app.Stdout, "%-16s pass@%d %.3f  [%.3f, %.3f]  pass^%d %.3f  [%.3f, %.3f]  flips %.3f  (%d of %d problems pass sometimes)\n", fmt.Sprintf("of %d runs", k),
			k, r.PassAny.Value, r.PassAny.Low, r.PassAny.High, k, r.PassAll.Value, r.PassAll.Low, r.PassAll.High, r.FlipRate.Value, r.Unstable, r.Tasks)
	}
	if e.Greedy.Rollouts > 0 {
		line("greedy", e.Greedy)
	}
	return nil
}

func (a *app) exportCommand() *cobra.Command {
	var out, checkpoint string
	c := &cobra.Command{
		Use:     "export RUN",
		Short:   "copy a run's best model as a Hugging Face folder",
		GroupID: "train",
		Long: `Copy a run's best model as a new Hugging Face folder: config.json,
model.safetensors, tokenizer and chat template. RUN is the run's folder, or its
name below runs/.`,
		Example: `  fulgur export runs/demo -o calc-model
  fulgur export demo --checkpoint step-000040 -o calc-40`,
		Args: cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			r, dir, err := a.openRun(args[0], c)
			if err != nil {
				return err
			}
			j := &evalJob{app: a, file: r, dir: dir, checkpoint: checkpoint}
			files, name, err := j.policy()
			if err != nil {
				return err
			}
			if err := exportModel(files, out); err != nil {
				return err
			}
			if a.json {
				return a.printJSON(map[string]string{"model": out, "checkpoint": name})
			}
			_, err = fmt.Fprintf(a.Stdout, "%s (%s)\n", out, name)
			return err
		},
	}
	c.Flags().StringVarP(&out, "out", "o", "", "folder to make")
	c.Flags().StringVar(&checkpoint, "checkpoint", "", "a checkpoint's name, or start (default: the best)")
	_ = c.MarkFlagRequired("out")
	return c
}

// exportModel copies what is the model's out of a checkpoint: not the
// optimizer's state, not the trainer's. The folder is whole or absent.
func exportModel(files fs.FS, out string) error {
	if _, err := os.Stat(out); err == nil {
		return usageErr(fulgur.E(fulgur.KindConflict, "export", out+" is there already: name a new folder", nil))
	}
	if err := os.MkdirAll(filepath.Dir(out), 0o755); err != nil {
		return fulgur.E(fulgur.KindExhausted, "export", "the folder can't be made", err)
	}
	tmp, err := os.MkdirTemp(filepath.Dir(out), ".export-*")
	if err != nil {
		return fulgur.E(fulgur.KindExhausted, "export", "the folder can't be made", err)
	}
	defer os.RemoveAll(tmp)
	entries, err := fs.ReadDir(files, ".")
	if err != nil {
		return fmt.Errorf("reading the checkpoint: %w", err)
	}
	own := map[string]bool{"optimizer.safetensors": true, "optimizer.json": true, "trainer.json": true, "warmstart.json": true}
	for _, e := range entries {
		if e.IsDir() || own[e.Name()] {
			continue
		}
		b, err := fs.ReadFile(files, e.Name())
		if err != nil {
			return fmt.Errorf("reading the checkpoint: %w", err)
		}
		if err := os.WriteFile(filepath.Join(tmp, e.Name()), b, 0o644); err != nil {
			return fulgur.E(fulgur.KindExhausted, "export", "the disk is full, or the folder can't be written", err)
		}
	}
	if err := errors.Join(os.Chmod(tmp, 0o755), os.Rename(tmp, out)); err != nil {
		return fulgur.E(fulgur.KindExhausted, "export", "the folder can't be written", err)
	}
	return nil
}

// newestRun finds the run below a folder whose record changed last.
func newestRun(below string) (string, error) {
	found, err := filepath.Glob(filepath.Join(below, "*", "config.yaml"))
	if err != nil {
		return "", err
	}
	best, at := "", time.Time{}
	for _, p := range found {
		if st, err := os.Stat(p); err == nil && st.ModTime().After(at) {
			best, at = filepath.Dir(p), st.ModTime()
		}
	}
	if best == "" {
		return "", notFound("find a run", "there is none below "+below+"/: name one with --run")
	}
	return best, nil
}

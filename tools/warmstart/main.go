// Warmstart makes the calc example's data and its warm-started model, from
// nothing: problems, tokenizer, demonstrators, supervised training on what they
// say, and a test whether the result is a start from which to learn. The same
// bytes come out each time on the same kind of CPU.
package main

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"os"
	"os/signal"
	"path/filepath"
	"testing/fstest"
	"time"

	"github.com/fulgur-rl/fulgur/internal/engine/embedded"
	"github.com/fulgur-rl/fulgur/internal/engine/weights"
)

func main() {
	out := flag.String("out", "examples/calc/model", "folder of the model")
	data := flag.String("data", "examples/calc/data", "folder of the data")
	seed := flag.Uint64("seed", 1, "seed of everything that is random")
	steps := flag.Int("steps", standard.steps, "steps of training; a model that fails its test goes to -out with -refused behind")
	only := flag.String("only", "", "data: make the data and stop; test: test the model that lies in -out")
	events := flag.Int("events", 0, "with -only data: how many events each problem has, 1 to 4; 0: the calc example's mix of one and two")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	o := options{model: *out, data: *data, seed: *seed, recipe: standard, problems: acceptProblems, only: *only, events: *events}
	o.recipe.steps = *steps
	if err := o.run(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "warmstart:", err)
		os.Exit(1)
	}
}

type options struct {
	model, data string
	seed        uint64
	recipe      recipe
	problems    int // of each measurement
	only        string
	events      int // of each problem; 0: mixed
	quiet       bool
}

func (o options) print(format string, args ...any) {
	if !o.quiet {
		fmt.Fprintf(os.Stderr, format, args...)
	}
}

func (o options) run(ctx context.Context) error {
	mix := mixed
	if o.events != 0 {
		if o.only != "data" || o.events < 1 || o.events > 4 {
			return fmt.Errorf("-events %d: 1 to 4, and with -only data alone: the model's own data are the mix", o.events)
		}
		mix = func(int) int { return o.events }
	}
	problems := newSplit(o.seed, mix)
	switch o.only {
	case "", "data":
		if err := problems.write(o.data); err != nil {
			return err
		}
		o.print("data: %d problems to train on, %d for validation, %d for the test\n", len(problems.train), len(problems.val), len(problems.test))
	case "test":
		return o.retest(ctx)
	default:
		return fmt.Errorf("-only %q: want data or test", o.only)
	}
	if o.only == "data" {
		return nil
	}
	files, err := o.files()
	if err != nil {
		return err
	}
	tmp, err := os.MkdirTemp("", "warmstart")
	if err != nil {
		return fmt.Errorf("making a folder to work in: %w", err)
	}
	defer os.RemoveAll(tmp)
	figures, err := o.make(ctx, files, problems, filepath.Join(tmp, "checkpoint"))
	if err != nil {
		return err
	}
	if files[weights.ModelFile], err = os.ReadFile(filepath.Join(tmp, "checkpoint", weights.ModelFile)); err != nil {
		return fmt.Errorf("reading the checkpoint: %w", err)
	}
	if files[figuresFile], err = json.MarshalIndent(figures, "", "  "); err != nil {
		return fmt.Errorf("writing the figures: %w", err)
	}
	files[figuresFile] = append(files[figuresFile], '\n')
	refused := figures.Acceptance.check()
	if refused != nil {
		o.model += "-refused"
	}
	if err := writeFiles(o.model, files); err != nil {
		return errors.Join(refused, err)
	}
	o.print("model: %s, SHA-256 of the weights %s\n", o.model, hash(files[weights.ModelFile]))
	return refused
}

// files are the model's files but the weights.
func (o options) files() (map[string][]byte, error) {
	words, err := corpus(o.seed)
	if err != nil {
		return nil, err
	}
	vocabulary, err := trainBPE(words)
	if err != nil {
		return nil, err
	}
	return modelFiles(vocabulary)
}

// figures are what warmstart.json keeps of how the model came to be.
type figures struct {
	TokenizerSHA256 string     `json:"tokenizer_sha256"`
	Seed            uint64     `json:"seed"`
	Steps           int        `json:"steps"`
	Batch           int        `json:"batch"`
	LearningRate    float64    `json:"learning_rate"`
	Tokens          int        `json:"tokens"`
	Loss            float64    `json:"loss"` // mean of the last hundred steps, nats a token
	Kernels         string     `json:"kernels"`
	Acceptance      acceptance `json:"acceptance"`
}

const figuresFile = "warmstart.json"

// make trains a model with these files and saves it as a checkpoint.
func (o options) make(ctx context.Context, files map[string][]byte, problems split, checkpoint string) (figures, error) {
	c, err := weights.ParseConfig(files[weights.ConfigFile])
	if err != nil {
		return figures{}, err
	}
	e, err := embedded.New(c, o.seed, embedded.Options{Model: "calc"})
	if err != nil {
		return figures{}, err
	}
	defer e.Close()
	talk, err := newTalk(memory(files))
	if err != nil {
		return figures{}, err
	}
	info, err := e.Info(ctx)
	if err != nil {
		return figures{}, err
	}
	o.print("training %d parameters for %d steps, kernels %s\n", info.Parameters, o.recipe.steps, info.Kernels)
	m := &meter{start: time.Now(), total: o.recipe.steps, print: o.print}
	d := &demonstrations{r: stream(o.seed, streamDemonstrations), recipe: o.recipe, measured: problems.measured(), talk: talk}
	f := figures{TokenizerSHA256: hash(files["tokenizer.json"]), Seed: o.seed, Steps: o.recipe.steps, Batch: o.recipe.batch, LearningRate: o.recipe.rate, Kernels: info.Kernels}
	if f.Loss, f.Tokens, err = o.recipe.train(ctx, e, d, func(step int, loss, tokens float64) { m.report(time.Now(), step, loss, tokens) }); err != nil {
		return figures{}, err
	}
	if err := e.Save(ctx, checkpoint); err != nil {
		return figures{}, err
	}
	if _, err := e.Publish(ctx, 1); err != nil {
		return figures{}, err
	}
	f.Acceptance, err = accept(ctx, talk, e, o)
	return f, err
}

// retest measures the model that is there.
func (o options) retest(ctx context.Context) error {
	talk, err := newTalk(os.DirFS(o.model))
	if err != nil {
		return err
	}
	e, err := embedded.Open(os.DirFS(o.model), embedded.Options{Model: "calc"})
	if err != nil {
		return err
	}
	defer e.Close()
	a, err := accept(ctx, talk, e, o)
	if err != nil {
		return err
	}
	return a.check()
}

// memory is a folder that holds these files.
func memory(files map[string][]byte) fs.FS {
	out := fstest.MapFS{}
	for name, b := range files {
		out[name] = &fstest.MapFile{Data: b}
	}
	return out
}

func hash(b []byte) string {
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:])
}

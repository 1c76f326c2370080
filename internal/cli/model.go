package cli

import (
	"encoding/json"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/fulgur-rl/fulgur"
	"github.com/fulgur-rl/fulgur/examples/calc"
	"github.com/fulgur-rl/fulgur/internal/engine/embedded"
	"github.com/fulgur-rl/fulgur/internal/engine/embedded/kernel"
	"github.com/fulgur-rl/fulgur/internal/gateway/render"
)

const builtinPrefix = "builtin:"

// modelFiles finds a model's folder: builtin:NAME, or a Hugging Face folder
// (relative to dir).
func modelFiles(name, dir string) (fs.FS, error) {
	if b, ok := strings.CutPrefix(name, builtinPrefix); ok {
		if b != "calc" {
			return nil, usageErr(notFound("open model "+name, "the built-in models are: builtin:calc"))
		}
		return fs.Sub(calc.Files, "model")
	}
	p := name
	if !filepath.IsAbs(p) {
		p = filepath.Join(dir, p)
	}
	if _, err := os.Stat(filepath.Join(p, "config.json")); err != nil {
		return nil, fulgur.E(fulgur.KindNotFound, "open model "+name, "no Hugging Face folder is there (config.json is missing); the built-in model is builtin:calc", err)
	}
	return os.DirFS(p), nil
}

// modelLimits are what a model can be asked, in tokens and in ids; 0: not known.
type modelLimits struct {
	Context    int `json:"max_position_embeddings"`
	Vocabulary int `json:"vocab_size"`
}

// readLimits reads them from a model's config.json, of any architecture.
func readLimits(files fs.FS) (modelLimits, error) {
	var l modelLimits
	b, err := fs.ReadFile(files, "config.json")
	if err == nil {
		err = json.Unmarshal(b, &l)
	}
	if err != nil {
		return l, fulgur.E(fulgur.KindInvalid, "read the model's config.json", "it is no Hugging Face configuration: give a model's whole folder", err)
	}
	return l, nil
}

// openPolicy opens a model for sampling and training, with its renderer.
func openPolicy(files fs.FS, name string, f engineFlags) (*embedded.Engine, *render.Renderer, error) {
	r, err := render.Load(files, render.Options{Now: time.Now})
	if err != nil {
		return nil, nil, fmt.Errorf("model %s: %w", name, err)
	}
	e, err := embedded.Open(files, embedded.Options{Model: name, Threads: f.threads, Kernels: f.kernels})
	if err != nil {
		return nil, nil, fmt.Errorf("model %s: %w", name, err)
	}
	return e, r, nil
}

// engineFlags choose how the embedded engine computes, not what.
type engineFlags struct {
	threads int
	kernels string
}

func (f *engineFlags) register(c *cobra.Command) {
	c.Flags().IntVar(&f.threads, "threads", 0, "workers of the embedded engine (0: one per core)")
	c.Flags().StringVar(&f.kernels, "kernels", "", "kernels of the embedded engine: avx512, avx2 or portable (default: the best of this CPU)")
}

// kernelName is the kernel set that a choice gives on this CPU; "": the best.
func kernelName(choice string) string {
	k, err := kernel.Select(choice)
	if err != nil {
		return "none: " + err.Error()
	}
	return k.Name()
}

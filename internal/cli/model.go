package cli

import (
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

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
			return nil, notFound("open model "+name, "the built-in models are: builtin:calc")
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

// openPolicy opens a model for sampling and training, with its renderer.
func openPolicy(files fs.FS, name string, threads int) (*embedded.Engine, *render.Renderer, error) {
	r, err := render.Load(files, render.Options{Now: time.Now})
	if err != nil {
		return nil, nil, err
	}
	e, err := embedded.Open(files, embedded.Options{Model: name, Threads: threads})
	if err != nil {
		return nil, nil, err
	}
	return e, r, nil
}

// kernelName is the kernel set that this CPU gets.
func kernelName() string {
	k, err := kernel.Select("")
	if err != nil {
		return "none: " + err.Error()
	}
	return k.Name()
}

package embedded

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"github.com/fulgur-rl/fulgur"
	"github.com/fulgur-rl/fulgur/internal/engine/weights"
)

// OptimizerFile is the optimizer's state in a checkpoint folder: Adam's moments
// of each tensor under "m." and "v." and its name, the number of steps in the
// metadata.
const OptimizerFile = "optimizer.safetensors"

const optimizerFormat = "fulgur-adamw-1"

// extraFiles go along with the weights, as far as the source folder has them.
var extraFiles = [...]string{"tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "special_tokens_map.json", "generation_config.json", "LICENSE"}

// extras are the contents of a model folder that are not weights.
type extras struct {
	config []byte
	files  map[string][]byte
}

func readExtras(fsys fs.FS, c weights.Config) (extras, error) {
	x := extras{files: map[string][]byte{}}
	if fsys != nil {
		for _, name := range extraFiles {
			b, err := fs.ReadFile(fsys, name)
			if errors.Is(err, fs.ErrNotExist) {
				continue
			}
			if err != nil {
				return x, fulgur.E(fulgur.KindInvalid, "reading "+name, "the model folder's file cannot be read", err)
			}
			x.files[name] = b
		}
	}
	var err error
	x.config, err = c.JSON()
	return x, err
}

// featuresOf tells from a checkpoint's tensors what config.json does not say.
func featuresOf(t weights.Tensors) features {
	_, bias := t["model.layers.0.self_attn.q_proj.bias"]
	_, norm := t["model.layers.0.self_attn.q_norm.weight"]
	return features{qkvBias: bias, qkNorm: norm}
}

// Save implements engine.Engine. A gradient that no step has used yet is not
// saved.
func (e *Engine) Save(ctx context.Context, dir string) error {
	if err := ctx.Err(); err != nil {
		return fulgur.E(fulgur.KindCanceled, "saving "+dir, "stopped before it began", err)
	}
	return weights.WriteFolder(dir, func(tmp string) error {
		if err := os.WriteFile(filepath.Join(tmp, weights.ConfigFile), e.extras.config, 0o644); err != nil {
			return err
		}
		for name, b := range e.extras.files {
			if err := os.WriteFile(filepath.Join(tmp, name), b, 0o644); err != nil {
				return err
			}
		}
		meta := map[string]string{"format": "pt"} // what transformers' loader asks for
		if err := weights.WriteFile(filepath.Join(tmp, weights.ModelFile), e.layout.split("", e.train.w), meta); err != nil {
			return err
		}
		state := append(e.layout.split("m.", e.m), e.layout.split("v.", e.v)...)
		meta = map[string]string{"format": optimizerFormat, "step": strconv.FormatInt(e.step, 10)}
		return weights.WriteFile(filepath.Join(tmp, OptimizerFile), state, meta)
	})
}

// Load implements engine.Engine. The sampler goes on with what it has until
// Publish. On an error the engine is as it was.
func (e *Engine) Load(_ context.Context, dir string) error {
	fsys := os.DirFS(dir)
	c, err := weights.ReadConfig(fsys)
	if err != nil {
		return err
	}
	if diff := e.layout.differs(c); diff != "" {
		return fulgur.E(fulgur.KindInvalid, "loading "+dir, "the checkpoint has another shape than this engine's model: "+diff, nil)
	}
	t, _, err := weights.ReadFile(fsys, weights.ModelFile)
	if err != nil {
		return err
	}
	return e.load(fsys, t)
}

// differs names the fields in which another model's shape differs.
func (l *layout) differs(c weights.Config) string {
	a, b := l.Config, c
	a.BOS, a.EOS, b.BOS, b.EOS = nil, nil, nil, nil
	var out []string
	va, vb := reflect.ValueOf(a), reflect.ValueOf(b)
	for i := range va.NumField() {
		if x, y := va.Field(i).Interface(), vb.Field(i).Interface(); !reflect.DeepEqual(x, y) {
			out = append(out, fmt.Sprintf("%s is %v, not %v", va.Type().Field(i).Name, y, x))
		}
	}
	return strings.Join(out, ", ")
}

// finiteWeights refuses weights that are no finite numbers: a model that holds one answers
// every call with nothing, which looks like a failing server.
func finiteWeights(t weights.Tensors) error {
	for _, name := range slices.Sorted(maps.Keys(t)) {
		for i, x := range t[name].Data {
			if !finite(x) {
				return fulgur.E(fulgur.KindInvalid, "loading the weights", fmt.Sprintf("tensor %q has %v at place %d: the file is damaged, or training had diverged before it was written; load an earlier checkpoint", name, x, i), nil)
			}
		}
	}
	return nil
}

// load takes the weights t and, where fsys has it, the optimizer's state.
func (e *Engine) load(fsys fs.FS, t weights.Tensors) error {
	if err := finiteWeights(t); err != nil {
		return err
	}
	w, err := e.layout.join("", t)
	if err != nil {
		return err
	}
	m, v, step := make([]float32, e.layout.size), make([]float32, e.layout.size), int64(0)
	if _, err := fs.Stat(fsys, OptimizerFile); err == nil {
		if m, v, step, err = e.layout.readOptimizer(fsys); err != nil {
			return err
		}
	}
	copy(e.train.w, w)
	e.m, e.v, e.step = m, v, step
	clear(e.grad)
	e.train.pack(true)
	return nil
}

func (l *layout) readOptimizer(fsys fs.FS) (m, v []float32, step int64, err error) {
	t, meta, err := weights.ReadFile(fsys, OptimizerFile)
	if err != nil {
		return nil, nil, 0, err
	}
	step, err = strconv.ParseInt(meta["step"], 10, 64)
	if err != nil || meta["format"] != optimizerFormat || step < 0 {
		return nil, nil, 0, fulgur.E(fulgur.KindInvalid, "reading "+OptimizerFile,
			fmt.Sprintf("its metadata %v is not that of format %s: delete the file to start a fresh optimizer", meta, optimizerFormat), err)
	}
	if m, err = l.join("m.", t); err != nil {
		return nil, nil, 0, err
	}
	v, err = l.join("v.", t)
	return m, v, step, err
}

// split returns views of a flat vector as tensors of a checkpoint.
func (l *layout) split(prefix string, flat []float32) []weights.Tensor {
	var out []weights.Tensor
	for _, t := range l.tensors {
		out = append(out, weights.Tensor{Name: prefix + t.name, Shape: t.shape, Data: flat[t.off:][:weights.Elements(t.shape)]})
	}
	return out
}

// join is the reverse of split: every tensor of the model must be there in its
// shape, and nothing else that would change the result.
func (l *layout) join(prefix string, t weights.Tensors) ([]float32, error) {
	flat := make([]float32, l.size)
	known := map[string]bool{}
	for _, n := range l.tensors {
		x, err := t.Take(prefix+n.name, n.shape...)
		if err != nil {
			return nil, err
		}
		copy(flat[n.off:], x)
		known[n.name] = true
	}
	for name := range t {
		rest, ours := strings.CutPrefix(name, prefix)
		if !ours || known[rest] || strings.HasSuffix(name, "rotary_emb.inv_freq") || (l.Tied && name == "lm_head.weight") {
			continue
		}
		return nil, fulgur.E(fulgur.KindUnsupported, "reading weights",
			fmt.Sprintf("tensor %q has no place in a %s model here: it would be left out and the results would be wrong", name, l.ModelType), nil)
	}
	return flat, nil
}

// keepConfig makes Save write the opened folder's own config.json, other keys
// included, with the type of the weights as they are written.
func (x *extras) keepConfig(fsys fs.FS) error {
	b, err := fs.ReadFile(fsys, weights.ConfigFile)
	if err != nil {
		return fulgur.E(fulgur.KindNotFound, "reading "+weights.ConfigFile, "the file cannot be read", err)
	}
	var keys map[string]json.RawMessage
	if err := json.Unmarshal(b, &keys); err != nil {
		return fulgur.E(fulgur.KindInvalid, "reading "+weights.ConfigFile, "it is not valid", err)
	}
	for _, k := range []string{"torch_dtype", "dtype"} {
		if _, ok := keys[k]; ok {
			keys[k] = json.RawMessage(`"float32"`)
		}
	}
	var out bytes.Buffer
	enc := json.NewEncoder(&out)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", "  ")
	if err := enc.Encode(keys); err != nil {
		return fmt.Errorf("encoding %s: %w", weights.ConfigFile, err)
	}
	x.config = out.Bytes()
	return nil
}

package embedded

import (
	"fmt"
	"math"

	"github.com/fulgur-rl/fulgur/internal/engine/embedded/kernel"
	"github.com/fulgur-rl/fulgur/internal/engine/weights"
)

// matrix is a place in the flat parameter vector: rows × cols, row-major, as in
// a checkpoint ([out, in]). A vector has one row; n is 0 where the model has
// no such tensor.
type matrix struct{ off, rows, cols int }

func (m matrix) n() int                           { return m.rows * m.cols }
func (m matrix) there() bool                      { return m.rows > 0 }
func (m matrix) of(p []float32) []float32         { return p[m.off:][:m.n():m.n()] }
func (m matrix) row(p []float32, i int) []float32 { return p[m.off+i*m.cols:][:m.cols:m.cols] }

// named is a tensor as it stands in a checkpoint.
type named struct {
	name  string
	off   int
	shape []int
}

// layer is where one block's parameters are. q, k and v lie behind each other
// and are one matrix, gate and up likewise.
type layer struct {
	norm1, norm2, qkv, bias, qNorm, kNorm, out, gateUp, down matrix
}

// layout says where each parameter is in the flat vector. Tensors start at
// multiples of 16 floats; the gaps are zeros and stay so.
type layout struct {
	weights.Config
	embed, norm, head matrix // head is embed when tied
	layers            []layer
	tensors           []named
	context           int   // longest sequence, tokens
	size              int   // of the flat vector
	parameters        int64 // without the gaps
}

// features are what a checkpoint's tensors tell.
type features struct{ qkvBias, qkNorm bool }

func (l *layout) qWidth() int   { return l.Heads * l.HeadDim }
func (l *layout) kvWidth() int  { return l.KVHeads * l.HeadDim }
func (l *layout) qkvWidth() int { return l.qWidth() + 2*l.kvWidth() }

// part is one named tensor of a matrix: rows of it.
type part struct {
	name string
	rows int
}

func newLayout(c weights.Config, f features) *layout {
	l := &layout{Config: c, context: c.MaxPositions, layers: make([]layer, c.Layers)}
	l.embed = l.add(c.HiddenSize, 2, part{"model.embed_tokens.weight", c.VocabSize})
	for i := range l.layers {
		l.addLayer(i, f)
	}
	l.norm = l.add(c.HiddenSize, 1, part{"model.norm.weight", 1})
	l.head = l.embed
	if !c.Tied {
		l.head = l.add(c.HiddenSize, 2, part{"lm_head.weight", c.VocabSize})
	}
	return l
}

func (l *layout) addLayer(i int, f features) {
	d, q, kv := l.HiddenSize, l.qWidth(), l.kvWidth()
	at := func(s string) string { return fmt.Sprintf("model.layers.%d.%s", i, s) }
	y := &l.layers[i]
	y.norm1 = l.add(d, 1, part{at("input_layernorm.weight"), 1})
	y.qkv = l.add(d, 2, part{at("self_attn.q_proj.weight"), q}, part{at("self_attn.k_proj.weight"), kv}, part{at("self_attn.v_proj.weight"), kv})
	if f.qkvBias {
		b := l.add(1, 1, part{at("self_attn.q_proj.bias"), q}, part{at("self_attn.k_proj.bias"), kv}, part{at("self_attn.v_proj.bias"), kv})
		y.bias = matrix{b.off, 1, b.rows}
	}
	if f.qkNorm {
		y.qNorm = l.add(l.HeadDim, 1, part{at("self_attn.q_norm.weight"), 1})
		y.kNorm = l.add(l.HeadDim, 1, part{at("self_attn.k_norm.weight"), 1})
	}
	y.out = l.add(q, 2, part{at("self_attn.o_proj.weight"), d})
	y.norm2 = l.add(d, 1, part{at("post_attention_layernorm.weight"), 1})
	y.gateUp = l.add(d, 2, part{at("mlp.gate_proj.weight"), l.Intermediate}, part{at("mlp.up_proj.weight"), l.Intermediate})
	y.down = l.add(l.Intermediate, 2, part{at("mlp.down_proj.weight"), d})
}

// add places a matrix of cols columns made of the parts below each other. With
// dims 1 the parts are vectors.
func (l *layout) add(cols, dims int, parts ...part) matrix {
	m := matrix{off: l.size, cols: cols}
	for _, p := range parts {
		shape := []int{p.rows, cols}
		if dims == 1 {
			shape = []int{p.rows * cols}
		}
		l.tensors = append(l.tensors, named{p.name, l.size + m.n(), shape})
		m.rows += p.rows
	}
	l.parameters += int64(m.n())
	l.size += (m.n() + 15) / 16 * 16
	return m
}

// ropeTables returns cosines and sines [context, HeadDim/2] of RoPE's
// angles (Su et al. 2021), with Llama 3.1's scaling of the frequencies where the
// configuration asks for it.
func (l *layout) ropeTables() (cos, sin []float32) {
	half := l.HeadDim / 2
	cos, sin = make([]float32, l.context*half), make([]float32, l.context*half)
	for i := range half {
		freq := math.Pow(l.RopeTheta, -2*float64(i)/float64(l.HeadDim))
		if s := l.RopeScaling; s != nil {
			freq = scaledFrequency(freq, *s)
		}
		for t := range l.context {
			sn, cs := math.Sincos(float64(t) * freq)
			cos[t*half+i], sin[t*half+i] = float32(cs), float32(sn)
		}
	}
	return cos, sin
}

func scaledFrequency(freq float64, s weights.Llama3Scaling) float64 {
	wave := 2 * math.Pi / freq
	turns := float64(s.OriginalPosition) / wave
	switch {
	case turns < s.LowFreqFactor:
		return freq / s.Factor
	case turns > s.HighFreqFactor:
		return freq
	}
	smooth := (turns - s.LowFreqFactor) / (s.HighFreqFactor - s.LowFreqFactor)
	return (1-smooth)*freq/s.Factor + smooth*freq
}

// packed is a weight matrix as the products want it: x·Wᵀ going forward and, for
// training, dy·W going back.
type packed struct{ fwd, back []float32 }

func (p *packed) fill(k kernel.Set, w []float32, m matrix, back bool) {
	w = m.of(w)
	p.fwd = k.Pack(p.fwd, w, 1, m.cols, m.cols, m.rows)
	if back {
		p.back = k.Pack(p.back, w, m.cols, 1, m.rows, m.cols)
	}
}

type packedLayer struct{ qkv, out, gateUp, down packed }

// model is a set of weights with all that a forward pass needs. The trainer has
// one whose weights change in place; each published one is never changed.
type model struct {
	*layout
	k        kernel.Set
	w        []float32 // flat
	packs    []packedLayer
	headPack packed
	cos, sin []float32
}

func newModel(l *layout, k kernel.Set, w, cos, sin []float32) *model {
	return &model{layout: l, k: k, w: w, packs: make([]packedLayer, l.Layers), cos: cos, sin: sin}
}

// pack brings the packed forms up to date with the flat weights.
func (m *model) pack(back bool) {
	for i := range m.layers {
		y, p := &m.layers[i], &m.packs[i]
		p.qkv.fill(m.k, m.w, y.qkv, back)
		p.out.fill(m.k, m.w, y.out, back)
		p.gateUp.fill(m.k, m.w, y.gateUp, back)
		p.down.fill(m.k, m.w, y.down, back)
	}
	m.headPack.fill(m.k, m.w, m.head, back)
}

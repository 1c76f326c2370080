package embedded

import (
	"math"
)

// segment is one sequence among the rows of a chunk.
type segment struct{ start, n int }

// activations are what a block keeps of its forward pass, one row per token.
type activations struct {
	x, xn1  []float32 // [N, d] residual stream before the block, its norm
	qkv     []float32 // [N, q+2kv] after norm and rotation
	raw     []float32 // [N, q+kv] before the norms of q and k; empty without them
	rq      []float32 // [N, heads+kvHeads] their factors
	lse     []float32 // [heads, N] log of the softmax's sum
	o       []float32 // [N, q] attention's result
	xm, xn2 []float32 // [N, d] residual stream in the middle, its norm
	gu, act []float32 // [N, 2ff] gate and up, [N, ff] SiLU(gate)·up
	r1, r2  []float32 // [N] factors of the norms
}

// worker computes chunks of sequences forward and backward, for one goroutine.
// Rows of all sequences lie below each other; only attention tells them apart.
type worker struct {
	m    *model
	cap  int // rows that the buffers have room for
	long int // longest sequence that they have room for
	acts []activations

	xf, xnf, rf      []float32 // after the last block
	dx, dxn, dqkv    []float32
	do, dgu, da, tmp []float32
	xh, logits, prob []float32
	s, ds, inv       []float32 // attention scores of a block of rows

	packX, packK, packV, packB, packC, packD []float32
}

func newWorker(m *model) *worker { return &worker{m: m, acts: make([]activations, m.Layers)} }

// attentionRows is how many rows of a sequence go through attention together: a
// multiple of every kernel set's tile height.
const attentionRows = 48

// reserve makes room for n rows, and for sequences of up to long tokens.
func (w *worker) reserve(n, long int) {
	m := w.m
	if n > w.cap {
		w.cap = n
		f := func(k int) []float32 { return make([]float32, n*k) }
		d, ff := m.HiddenSize, m.Intermediate
		for i := range w.acts {
			a := &w.acts[i]
			*a = activations{x: f(d), xn1: f(d), qkv: f(m.qkvWidth()), lse: f(m.Heads), o: f(m.qWidth()), xm: f(d), xn2: f(d), gu: f(2 * ff), act: f(ff), r1: f(1), r2: f(1)}
			if m.layers[i].qNorm.there() {
				a.raw, a.rq = f(m.qWidth()+m.kvWidth()), f(m.Heads+m.KVHeads)
			}
		}
		w.xf, w.xnf, w.rf = f(d), f(d), f(1)
		w.dx, w.dxn, w.dqkv, w.do, w.dgu, w.da = f(d), f(d), f(m.qkvWidth()), f(m.qWidth()), f(2*ff), f(ff)
	}
	if long > w.long {
		w.long = long
		ld := w.scoreWidth()
		w.s, w.ds = make([]float32, attentionRows*ld), make([]float32, attentionRows*ld)
		w.inv = make([]float32, attentionRows)
	}
	if w.tmp == nil {
		w.tmp = make([]float32, max(m.HeadDim, m.HiddenSize))
	}
}

// scoreWidth is the row length of the score buffers: whole panels.
func (w *worker) scoreWidth() int {
	c := w.m.k.Columns()
	return (w.long + c - 1) / c * c
}

// rmsNorm computes dst = RMSNorm(x)·g for n rows and keeps the factors in r.
func (m *model) rmsNorm(dst, x, r, g []float32, n int) {
	d := m.HiddenSize
	for t := range n {
		xr := x[t*d:][:d]
		r[t] = m.rmsFactor(xr)
		m.k.RMS(dst[t*d:][:d], xr, g, r[t])
	}
}

func (m *model) rmsFactor(x []float32) float32 {
	return float32(1 / math.Sqrt(float64(m.k.Dot(x, x))/float64(len(x))+m.NormEps))
}

// forward runs all blocks over the rows of the segments; ids has one token per
// row. It leaves the last hidden state, normed, in w.xnf.
func (w *worker) forward(ids []int32, segs []segment) {
	m, n, d, ff := w.m, len(ids), w.m.HiddenSize, w.m.Intermediate
	k := m.k
	x := w.acts[0].x
	for t, id := range ids {
		copy(x[t*d:][:d], m.embed.row(m.w, int(id)))
	}
	for i := range w.acts {
		a, y, p := &w.acts[i], &m.layers[i], &m.packs[i]
		qw, q := m.qkvWidth(), m.qWidth()
		m.rmsNorm(a.xn1, a.x, a.r1, y.norm1.of(m.w), n)
		k.Gemm(n, qw, d, a.xn1, d, 1, p.qkv.fwd, d, a.qkv, qw, false)
		w.prepareQKV(a, y, segs, n)
		for _, s := range segs {
			w.attend(a, s)
		}
		copy(a.xm[:n*d], a.x)
		k.Gemm(n, d, q, a.o, q, 1, p.out.fwd, q, a.xm, d, true)
		m.rmsNorm(a.xn2, a.xm, a.r2, y.norm2.of(m.w), n)
		k.Gemm(n, 2*ff, d, a.xn2, d, 1, p.gateUp.fwd, d, a.gu, 2*ff, false)
		for t := range n {
			g := a.gu[t*2*ff:][:2*ff]
			k.SiLU(a.act[t*ff:][:ff], g[:ff], g[ff:])
		}
		next := w.xf
		if i+1 < len(w.acts) {
			next = w.acts[i+1].x
		}
		copy(next[:n*d], a.xm)
		k.Gemm(n, d, ff, a.act, ff, 1, p.down.fwd, ff, next, d, true)
	}
	m.rmsNorm(w.xnf, w.xf, w.rf, m.norm.of(m.w), n)
}

// prepareQKV adds biases, norms q and k, and rotates them, row by row.
func (w *worker) prepareQKV(a *activations, y *layer, segs []segment, n int) {
	m := w.m
	qw, qk, heads := m.qkvWidth(), m.qWidth()+m.kvWidth(), m.Heads+m.KVHeads
	for _, s := range segs {
		for i := range s.n {
			t := s.start + i
			row := a.qkv[t*qw:][:qw]
			if y.bias.there() {
				m.k.Axpy(row, y.bias.of(m.w), 1)
			}
			if y.qNorm.there() {
				copy(a.raw[t*qk:][:qk], row)
				m.normQK(row, a.rq[t*heads:][:heads], y)
			}
			m.rotate(row, i, 1)
		}
	}
}

// normQK norms each head of q and k of one row in place and keeps the factors.
func (m *model) normQK(row, factors []float32, y *layer) {
	hd := m.HeadDim
	for h := range m.Heads + m.KVHeads {
		g := y.qNorm
		if h >= m.Heads {
			g = y.kNorm
		}
		x := row[h*hd:][:hd]
		factors[h] = m.rmsFactor(x)
		m.k.RMS(x, x, g.of(m.w), factors[h])
	}
}

// rotate applies RoPE of position pos to q and k of one row; sign -1 undoes it.
func (m *model) rotate(row []float32, pos int, sign float32) {
	hd, half := m.HeadDim, m.HeadDim/2
	cos, sin := m.cos[pos*half:][:half], m.sin[pos*half:][:half]
	for h := range m.Heads + m.KVHeads {
		x := row[h*hd:][:hd]
		m.k.Rope(x[:half], x[half:], cos, sin, sign)
	}
}

func (m *model) attentionScale() float32 { return float32(1 / math.Sqrt(float64(m.HeadDim))) }

// attend computes causal attention of one sequence: a.o and a.lse from a.qkv.
func (w *worker) attend(a *activations, s segment) {
	m, k := w.m, w.m.k
	qw, q, hd := m.qkvWidth(), m.qWidth(), m.HeadDim
	scale, ld := m.attentionScale(), w.scoreWidth()
	qkv, out := a.qkv[s.start*qw:], a.o[s.start*q:]
	group := m.Heads / m.KVHeads
	for kv := range m.KVHeads {
		w.packK = k.Pack(w.packK, qkv[(m.Heads+kv)*hd:], 1, qw, hd, s.n)
		w.packV = k.Pack(w.packV, qkv[(m.Heads+m.KVHeads+kv)*hd:], qw, 1, s.n, hd)
		for h := kv * group; h < (kv+1)*group; h++ {
			lse := a.lse[h*w.cap+s.start:]
			for i0 := 0; i0 < s.n; i0 += attentionRows {
				rb := min(attentionRows, s.n-i0)
				n := i0 + rb
				k.Gemm(rb, w.panels(n), hd, qkv[i0*qw+h*hd:], qw, 1, w.packK, hd, w.s, ld, false)
				for r := range rb {
					row, valid := w.s[r*ld:][:n], i0+r+1
					top := k.Max(row[:valid]) * scale
					sum := k.Exp(row[:valid], row[:valid], scale, top)
					clear(row[valid:])
					lse[i0+r] = top + float32(math.Log(float64(sum)))
					w.inv[r] = 1 / sum
				}
				k.Gemm(rb, hd, n, w.s, ld, 1, w.packV, s.n, out[i0*q+h*hd:], q, false)
				for r := range rb {
					o := out[(i0+r)*q+h*hd:][:hd]
					k.Scale(o, o, w.inv[r])
				}
			}
		}
	}
}

// panels rounds n up to whole panels: score rows have room for that, and it
// spares the product's edge.
func (w *worker) panels(n int) int {
	c := w.m.k.Columns()
	return (n + c - 1) / c * c
}

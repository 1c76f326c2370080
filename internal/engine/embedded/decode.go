package embedded

import "slices"

// sequence is a generation that is being computed: its tokens, of which the
// first pos have keys and values in its blocks.
type sequence struct {
	call   *call
	tokens []int32 // prompt, then what was sampled
	pos    int
	cached int // of the prompt, found in the prefix cache
	blocks []*block
	parent *block // the last of blocks, or the root
	epoch  int64

	rows int // of the step in hand
	out  sample
}

// wants says that the step's last row is the sequence's last token, so that a
// token is to be sampled.
func (s *sequence) wants() bool { return s.pos+s.rows == len(s.tokens) }

// decoder computes sampling steps for one goroutine: rows of prefill and of
// decoding mixed.
type decoder struct {
	l    *layout
	x    []float32 // [rows, d]
	xn   []float32
	r    []float32
	qkv  []float32
	o    []float32
	gu   []float32
	act  []float32
	s    []float32 // attention scores
	prob []float32
	head []float32 // logits of a block of rows
	rq   []float32
	pick picker
}

func newDecoder(l *layout, rows int) *decoder {
	f := func(n int) []float32 { return make([]float32, rows*n) }
	d := l.HiddenSize
	return &decoder{l: l, x: f(d), xn: f(d), r: f(1), qkv: f(l.qkvWidth()), o: f(l.qWidth()), gu: f(2 * l.Intermediate), act: f(l.Intermediate),
		prob: make([]float32, l.VocabSize), rq: make([]float32, l.Heads+l.KVHeads)}
}

// step feeds each sequence's next rows and samples where wanted.
func (d *decoder) step(m *model, seqs []*sequence) {
	k, n, w, ff := m.k, 0, m.HiddenSize, m.Intermediate
	for _, s := range seqs {
		for _, id := range s.tokens[s.pos:][:s.rows] {
			copy(d.x[n*w:][:w], m.embed.row(m.w, int(id)))
			n++
		}
	}
	for i := range m.layers {
		y, p := &m.layers[i], &m.packs[i]
		qw, q := m.qkvWidth(), m.qWidth()
		m.rmsNorm(d.xn, d.x, d.r, y.norm1.of(m.w), n)
		k.Gemm(n, qw, w, d.xn, w, 1, p.qkv.fwd, w, d.qkv, qw, false)
		at := 0
		for _, s := range seqs {
			d.attend(m, i, s, at)
			at += s.rows
		}
		k.Gemm(n, w, q, d.o, q, 1, p.out.fwd, q, d.x, w, true)
		m.rmsNorm(d.xn, d.x, d.r, y.norm2.of(m.w), n)
		k.Gemm(n, 2*ff, w, d.xn, w, 1, p.gateUp.fwd, w, d.gu, 2*ff, false)
		for t := range n {
			g := d.gu[t*2*ff:][:2*ff]
			k.SiLU(d.act[t*ff:][:ff], g[:ff], g[ff:])
		}
		k.Gemm(n, w, ff, d.act, ff, 1, p.down.fwd, ff, d.x, w, true)
	}
	d.sample(m, seqs)
}

// sample runs the head for the sequences that want a token.
func (d *decoder) sample(m *model, seqs []*sequence) {
	w, v, at := m.HiddenSize, m.VocabSize, 0
	var want []*sequence
	for _, s := range seqs {
		at += s.rows
		if s.wants() {
			copy(d.x[len(want)*w:][:w], d.x[(at-1)*w:][:w]) // never ahead of what is still to be read
			want = append(want, s)
		}
	}
	m.rmsNorm(d.xn, d.x, d.r, m.norm.of(m.w), len(want))
	block := max(m.k.Rows(), (1<<17)/v)
	if len(d.head) == 0 {
		d.head = make([]float32, block*v)
	}
	at = 0
	for part := range slices.Chunk(want, block) {
		m.k.Gemm(len(part), v, w, d.xn[at*w:], w, 1, m.headPack.fwd, w, d.head, v, false)
		for i, s := range part {
			s.out = d.pick.sample(m.k, d.head[i*v:][:v], d.prob, &s.call.req, len(s.tokens)-len(s.call.req.Prompt))
		}
		at += len(part)
	}
}

// attend writes the keys and values of the sequence's rows, which begin at row
// at, into its blocks, and computes their attention into d.o.
func (d *decoder) attend(m *model, layer int, s *sequence, at int) {
	k, y := m.k, &m.layers[layer]
	qw, q, hd := m.qkvWidth(), m.qWidth(), m.HeadDim
	for i := range s.rows {
		row := d.qkv[(at+i)*qw:][:qw]
		if y.bias.there() {
			k.Axpy(row, y.bias.of(m.w), 1)
		}
		if y.qNorm.there() {
			m.normQK(row, d.rq, y)
		}
		m.rotate(row, s.pos+i, 1)
		d.store(m, layer, s.blocks[(s.pos+i)/blockTokens], (s.pos+i)%blockTokens, row[q:])
	}
	group := m.Heads / m.KVHeads
	for kv := range m.KVHeads {
		if s.rows == 1 { // the heads of a group are the rows
			h := kv * group
			d.rowsOf(m, layer, kv, s, s.pos, 0, group, d.qkv[at*qw+h*hd:], hd, d.o[at*q+h*hd:], hd)
			continue
		}
		for h := kv * group; h < (kv+1)*group; h++ {
			for i := 0; i < s.rows; i += attentionRows {
				n := min(attentionRows, s.rows-i)
				d.rowsOf(m, layer, kv, s, s.pos+i, 1, n, d.qkv[(at+i)*qw+h*hd:], qw, d.o[(at+i)*q+h*hd:], q)
			}
		}
	}
}

// store puts one position's keys and values, [kvHeads, headDim] each, into a
// block.
func (d *decoder) store(m *model, layer int, b *block, i int, kv []float32) {
	hd, c := m.HeadDim, m.k.Columns()
	unit := kvUnit(hd, c)
	for h := range m.KVHeads {
		dst := b.kv[(layer*m.KVHeads+h)*unit:][:unit]
		keys := dst[i/c*c*hd+i%c:]
		for e, v := range kv[h*hd:][:hd] {
			keys[e*c] = v
		}
		dst = dst[hd*blockTokens:]
		src := kv[(m.KVHeads+h)*hd:][:hd]
		for e := 0; e < hd; e += c {
			copy(dst[e*blockTokens+i*c:], src[e:min(hd, e+c)])
		}
	}
}

// rowsOf computes attention for n rows of queries, strides apart, over one
// key-value head. Row i stands at position pos + i·step.
func (d *decoder) rowsOf(m *model, layer, kv int, s *sequence, pos, step, n int, q []float32, qs int, out []float32, os int) {
	k, hd := m.k, m.HeadDim
	unit := kvUnit(hd, k.Columns())
	off := (layer*m.KVHeads + kv) * unit
	length := pos + (n-1)*step + 1 // positions that the last row sees
	blocks := s.blocks[:(length+blockTokens-1)/blockTokens]
	ld := len(blocks) * blockTokens
	if len(d.s) < n*ld {
		d.s = make([]float32, 2*n*ld)
	}
	for i, b := range blocks {
		k.Gemm(n, blockTokens, hd, q, qs, 1, b.kv[off:], hd, d.s[i*blockTokens:], ld, false)
	}
	scale := m.attentionScale()
	for i := range n {
		row, valid := d.s[i*ld:][:ld], pos+i*step+1
		top := k.Max(row[:valid]) * scale
		sum := k.Exp(row[:valid], row[:valid], scale, top)
		clear(row[valid:])
		k.Scale(row[:valid], row[:valid], 1/sum)
	}
	for i, b := range blocks {
		rows := min(blockTokens, length-i*blockTokens)
		k.Gemm(n, hd, rows, d.s[i*blockTokens:], ld, 1, b.kv[off+hd*blockTokens:], blockTokens, out, os, i > 0)
	}
}

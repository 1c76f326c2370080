package embedded

// backward adds the gradient to g, given the gradient of the normed last hidden
// state in w.dxn; forward has run on the same rows.
func (w *worker) backward(ids []int32, segs []segment, g []float32) {
	m, k := w.m, w.m.k
	n, d, ff, q, qw := len(ids), m.HiddenSize, m.Intermediate, m.qWidth(), m.qkvWidth()
	clear(w.dx[:n*d])
	w.normGrad(w.xf, w.rf, m.norm, g, n)
	for i := len(w.acts) - 1; i >= 0; i-- {
		a, y, p := &w.acts[i], &m.layers[i], &m.packs[i]
		w.matrixGrad(g, y.down, w.dx, a.act, n)
		k.Gemm(n, ff, d, w.dx, d, 1, p.down.back, d, w.da, ff, false)
		for t := range n {
			gu := a.gu[t*2*ff:][:2*ff]
			k.SiLUGrad(w.da[t*ff:][:ff], gu[:ff], gu[ff:])
		}
		w.matrixGrad(g, y.gateUp, a.gu, a.xn2, n)
		k.Gemm(n, d, 2*ff, a.gu, 2*ff, 1, p.gateUp.back, 2*ff, w.dxn, d, false)
		w.normGrad(a.xm, a.r2, y.norm2, g, n)
		w.matrixGrad(g, y.out, w.dx, a.o, n)
		k.Gemm(n, q, d, w.dx, d, 1, p.out.back, d, w.do, q, false)
		for _, s := range segs {
			w.attendGrad(a, s)
		}
		w.qkvGrad(a, y, segs, g)
		w.matrixGrad(g, y.qkv, w.dqkv, a.xn1, n)
		k.Gemm(n, d, qw, w.dqkv, qw, 1, p.qkv.back, qw, w.dxn, d, false)
		w.normGrad(a.x, a.r1, y.norm1, g, n)
	}
	for t, id := range ids {
		k.Axpy(m.embed.row(g, int(id)), w.dx[t*d:][:d], 1)
	}
}

// matrixGrad adds dyᵀ·x to the gradient of the matrix whose result has the
// gradient dy. Where dy is wide it goes by some rows at a time: dy is read across
// its rows, and so fewer of its lines have to stay in the cache.
func (w *worker) matrixGrad(g []float32, mat matrix, dy, x []float32, n int) {
	k, step := w.m.k, n
	if mat.rows >= 384 {
		step = 64
	}
	w.packX = k.Pack(w.packX, x, mat.cols, 1, n, mat.cols)
	for t := 0; t < n; t += step {
		k.Gemm(mat.rows, mat.cols, min(step, n-t), dy[t*mat.rows:], 1, mat.rows, w.packX[t*k.Columns():], n, mat.of(g), mat.cols, true)
	}
}

// normGrad adds the gradient through an RMS norm of x to w.dx, given that of its
// result in w.dxn.
func (w *worker) normGrad(x, r []float32, gain matrix, g []float32, n int) {
	d := w.m.HiddenSize
	gw, gg := gain.of(w.m.w), gain.of(g)
	for t := range n {
		w.m.k.RMSGrad(w.dx[t*d:][:d], w.dxn[t*d:][:d], x[t*d:][:d], gw, gg, r[t])
	}
}

// qkvGrad takes w.dqkv back through rotation, norms and biases.
func (w *worker) qkvGrad(a *activations, y *layer, segs []segment, g []float32) {
	m := w.m
	qw, qk, hd, heads := m.qkvWidth(), m.qWidth()+m.kvWidth(), m.HeadDim, m.Heads+m.KVHeads
	for _, s := range segs {
		for i := range s.n {
			t := s.start + i
			row := w.dqkv[t*qw:][:qw]
			m.rotate(row, i, -1)
			for h := 0; y.qNorm.there() && h < heads; h++ {
				gain := y.qNorm
				if h >= m.Heads {
					gain = y.kNorm
				}
				dst, dy := row[h*hd:][:hd], w.tmp[:hd]
				copy(dy, dst)
				clear(dst)
				m.k.RMSGrad(dst, dy, a.raw[t*qk+h*hd:][:hd], gain.of(m.w), gain.of(g), a.rq[t*heads+h])
			}
			if y.bias.there() {
				m.k.Axpy(y.bias.of(g), row, 1)
			}
		}
	}
}

// attendGrad computes w.dqkv of one sequence from w.do; probabilities are computed
// again from the scores and a.lse.
func (w *worker) attendGrad(a *activations, s segment) {
	m, k := w.m, w.m.k
	qw, q, hd := m.qkvWidth(), m.qWidth(), m.HeadDim
	scale, ld := m.attentionScale(), w.scoreWidth()
	qkv, dqkv := a.qkv[s.start*qw:], w.dqkv[s.start*qw:]
	out, do := a.o[s.start*q:], w.do[s.start*q:]
	clear(dqkv[:s.n*qw])
	group := m.Heads / m.KVHeads
	for kv := range m.KVHeads {
		ko, vo := (m.Heads+kv)*hd, (m.Heads+m.KVHeads+kv)*hd
		w.packK = k.Pack(w.packK, qkv[ko:], 1, qw, hd, s.n)
		w.packV = k.Pack(w.packV, qkv[vo:], 1, qw, hd, s.n)
		w.packB = k.Pack(w.packB, qkv[ko:], qw, 1, s.n, hd)
		for h := kv * group; h < (kv+1)*group; h++ {
			lse := a.lse[h*w.cap+s.start:]
			for i0 := 0; i0 < s.n; i0 += attentionRows {
				rb := min(attentionRows, s.n-i0)
				n := i0 + rb
				qs, dos := qkv[i0*qw+h*hd:], do[i0*q+h*hd:]
				k.Gemm(rb, w.panels(n), hd, qs, qw, 1, w.packK, hd, w.s, ld, false)
				k.Gemm(rb, w.panels(n), hd, dos, q, 1, w.packV, hd, w.ds, ld, false)
				for r := range rb {
					p, dp, valid := w.s[r*ld:][:n], w.ds[r*ld:][:n], i0+r+1
					k.Exp(p[:valid], p[:valid], scale, lse[i0+r])
					delta := k.Dot(dos[r*q:][:hd], out[(i0+r)*q+h*hd:][:hd])
					k.SoftmaxGrad(dp[:valid], p[:valid], delta, scale)
					clear(p[valid:])
					clear(dp[valid:])
				}
				w.packC = k.Pack(w.packC, dos, q, 1, rb, hd)
				k.Gemm(n, hd, rb, w.s, 1, ld, w.packC, rb, dqkv[vo:], qw, true)
				k.Gemm(rb, hd, n, w.ds, ld, 1, w.packB, s.n, dqkv[i0*qw+h*hd:], qw, false)
				w.packD = k.Pack(w.packD, qs, qw, 1, rb, hd)
				k.Gemm(n, hd, rb, w.ds, 1, ld, w.packD, rb, dqkv[ko:], qw, true)
			}
		}
	}
}

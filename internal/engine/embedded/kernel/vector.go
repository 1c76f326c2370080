package kernel

// The vector operations. The length is that of the first slice; the others must
// be at least as long. An empty one is allowed everywhere but in Max.

// Exp computes dst = exp(src·scale - shift) and returns the sum of dst. Arguments
// are held between -87 and 88, so that results are finite and positive; NaN
// stays NaN.
func (s Set) Exp(dst, src []float32, scale, shift float32) float32 {
	n := len(dst)
	if n == 0 {
		return 0
	}
	src = src[:n]
	switch s.level {
	case avx512:
		return expAVX512(&dst[0], &src[0], n, scale, shift)
	case avx2:
		return expAVX2(&dst[0], &src[0], n, scale, shift)
	}
	return expPortable(dst, src, scale, shift)
}

// Max returns the largest element of x, which must not be empty.
func (s Set) Max(x []float32) float32 {
	switch s.level {
	case avx512:
		return maximumAVX512(&x[0], len(x))
	case avx2:
		return maximumAVX2(&x[0], len(x))
	}
	return maxPortable(x)
}

// Dot returns Σ a·b.
func (s Set) Dot(a, b []float32) float32 {
	n := len(a)
	if n == 0 {
		return 0
	}
	b = b[:n]
	switch s.level {
	case avx512:
		return dotAVX512(&a[0], &b[0], n)
	case avx2:
		return dotAVX2(&a[0], &b[0], n)
	}
	return dotPortable(a, b)
}

// Axpy computes dst += a·src.
func (s Set) Axpy(dst, src []float32, a float32) {
	n := len(dst)
	if n == 0 {
		return
	}
	src = src[:n]
	switch s.level {
	case avx512:
		axpyAVX512(&dst[0], &src[0], n, a)
	case avx2:
		axpyAVX2(&dst[0], &src[0], n, a)
	default:
		for i, v := range src {
			dst[i] += a * v
		}
	}
}

// Scale computes dst = a·src.
func (s Set) Scale(dst, src []float32, a float32) {
	n := len(dst)
	if n == 0 {
		return
	}
	src = src[:n]
	switch s.level {
	case avx512:
		scaleAVX512(&dst[0], &src[0], n, a)
	case avx2:
		scaleAVX2(&dst[0], &src[0], n, a)
	default:
		for i, v := range src {
			dst[i] = a * v
		}
	}
}

// RMS computes dst = x·w·f, the last step of an RMS norm with f = 1/rms(x).
func (s Set) RMS(dst, x, w []float32, f float32) {
	n := len(dst)
	if n == 0 {
		return
	}
	x, w = x[:n], w[:n]
	switch s.level {
	case avx512:
		rmsAVX512(&dst[0], &x[0], &w[0], n, f)
	case avx2:
		rmsAVX2(&dst[0], &x[0], &w[0], n, f)
	default:
		for i, v := range x {
			dst[i] = v * f * w[i]
		}
	}
}

// RMSGrad adds the gradient of y = x·w·f, f = 1/rms(x): dw += dy·x·f and
// dx += dy·w·f - x·f³/n·Σ dy·w·x.
func (s Set) RMSGrad(dx, dy, x, w, dw []float32, f float32) {
	n := len(dx)
	if n == 0 {
		return
	}
	dy, x, w, dw = dy[:n], x[:n], w[:n], dw[:n]
	switch s.level {
	case avx512:
		rmsGradAVX512(&dx[0], &dy[0], &x[0], &w[0], &dw[0], n, f, 1/float32(n))
	case avx2:
		rmsGradAVX2(&dx[0], &dy[0], &x[0], &w[0], &dw[0], n, f, 1/float32(n))
	default:
		rmsGradPortable(dx, dy, x, w, dw, f)
	}
}

// SiLU computes dst = gate·sigmoid(gate)·up.
func (s Set) SiLU(dst, gate, up []float32) {
	n := len(dst)
	if n == 0 {
		return
	}
	gate, up = gate[:n], up[:n]
	switch s.level {
	case avx512:
		siluAVX512(&dst[0], &gate[0], &up[0], n)
	case avx2:
		siluAVX2(&dst[0], &gate[0], &up[0], n)
	default:
		siluPortable(dst, gate, up)
	}
}

// SiLUGrad replaces gate and up by the gradients with respect to them, given the
// gradient d of SiLU's result.
func (s Set) SiLUGrad(d, gate, up []float32) {
	n := len(d)
	if n == 0 {
		return
	}
	gate, up = gate[:n], up[:n]
	switch s.level {
	case avx512:
		siluGradAVX512(&d[0], &gate[0], &up[0], n)
	case avx2:
		siluGradAVX2(&d[0], &gate[0], &up[0], n)
	default:
		siluGradPortable(d, gate, up)
	}
}

// SoftmaxGrad computes d = p·(d - delta)·scale.
func (s Set) SoftmaxGrad(d, p []float32, delta, scale float32) {
	n := len(d)
	if n == 0 {
		return
	}
	p = p[:n]
	switch s.level {
	case avx512:
		softmaxGradAVX512(&d[0], &p[0], n, delta, scale)
	case avx2:
		softmaxGradAVX2(&d[0], &p[0], n, delta, scale)
	default:
		for i, v := range p {
			d[i] = v * (d[i] - delta) * scale
		}
	}
}

// Rope rotates the pairs (a, b) by the angles whose cosines and sines are given,
// forwards with sign 1 and backwards with -1.
func (s Set) Rope(a, b, cos, sin []float32, sign float32) {
	n := len(a)
	if n == 0 {
		return
	}
	b, cos, sin = b[:n], cos[:n], sin[:n]
	switch s.level {
	case avx512:
		ropeAVX512(&a[0], &b[0], &cos[0], &sin[0], n, sign)
	case avx2:
		ropeAVX2(&a[0], &b[0], &cos[0], &sin[0], n, sign)
	default:
		ropePortable(a, b, cos, sin, sign)
	}
}

// AdamStep are the numbers of one AdamW step, in the order in which the
// assembly reads them.
type AdamStep struct {
	Clip       float32 // factor of the gradient
	Beta1      float32
	OneMinus1  float32 // 1-β1
	Beta2      float32
	OneMinus2  float32 // 1-β2
	Correction float32 // 1/sqrt(1-β2^t)
	Eps        float32
	Rate       float32 // learning rate/(1-β1^t)
	Keep       float32 // 1 - learning rate·decay
}

// Adam applies one AdamW step to the parameters p with the gradient g and the
// moments m and v: p = p·Keep - Rate·m/(sqrt(v)·Correction + Eps).
func (s Set) Adam(p, g, m, v []float32, c *AdamStep) {
	n := len(p)
	if n == 0 {
		return
	}
	g, m, v = g[:n], m[:n], v[:n]
	switch s.level {
	case avx512:
		adamAVX512(&p[0], &g[0], &m[0], &v[0], n, &c.Clip)
	case avx2:
		adamAVX2(&p[0], &g[0], &m[0], &v[0], n, &c.Clip)
	default:
		adamPortable(p, g, m, v, c)
	}
}

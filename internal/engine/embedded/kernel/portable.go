package kernel

import (
	"math"
	"unsafe"
)

// The portable tile is four by four: sixteen sums that a compiler can hold in
// registers.
const (
	portableRows    = 4
	portableColumns = 4
)

func gemmPortable(h, k int, a *float32, rs, cs int, b, c *float32, ldc, acc int) {
	as := unsafe.Slice(a, (h-1)*rs+(k-1)*cs+1)
	bs := unsafe.Slice(b, k*portableColumns)
	cc := unsafe.Slice(c, (h-1)*ldc+portableColumns)
	if h == portableRows {
		gemm4x4(k, as, rs, cs, bs, cc, ldc, acc != 0)
		return
	}
	for i := range h {
		var s0, s1, s2, s3 float32
		o := i * rs
		for p := 0; p < len(bs); p += 4 {
			t := bs[p : p+4 : p+4]
			x := as[o]
			s0 += x * t[0]
			s1 += x * t[1]
			s2 += x * t[2]
			s3 += x * t[3]
			o += cs
		}
		put4(cc[i*ldc:], s0, s1, s2, s3, acc != 0)
	}
}

func gemm4x4(k int, a []float32, rs, cs int, b, c []float32, ldc int, acc bool) {
	n := (k-1)*cs + 1
	a0, a1, a2, a3 := a[:n], a[rs:][:n], a[2*rs:][:n], a[3*rs:][:n]
	var c00, c01, c02, c03, c10, c11, c12, c13, c20, c21, c22, c23, c30, c31, c32, c33 float32
	for p, o := 0, 0; p < len(b); p, o = p+4, o+cs {
		t := b[p : p+4 : p+4]
		b0, b1, b2, b3 := t[0], t[1], t[2], t[3]
		x := a0[o]
		c00 += x * b0
		c01 += x * b1
		c02 += x * b2
		c03 += x * b3
		x = a1[o]
		c10 += x * b0
		c11 += x * b1
		c12 += x * b2
		c13 += x * b3
		x = a2[o]
		c20 += x * b0
		c21 += x * b1
		c22 += x * b2
		c23 += x * b3
		x = a3[o]
		c30 += x * b0
		c31 += x * b1
		c32 += x * b2
		c33 += x * b3
	}
	put4(c, c00, c01, c02, c03, acc)
	put4(c[ldc:], c10, c11, c12, c13, acc)
	put4(c[2*ldc:], c20, c21, c22, c23, acc)
	put4(c[3*ldc:], c30, c31, c32, c33, acc)
}

func put4(c []float32, v0, v1, v2, v3 float32, acc bool) {
	c = c[:4:4]
	if acc {
		v0, v1, v2, v3 = v0+c[0], v1+c[1], v2+c[2], v3+c[3]
	}
	c[0], c[1], c[2], c[3] = v0, v1, v2, v3
}

// exp1 is the exponential of the vector kernels, one at a time (Cephes expf).
func exp1(x float32) float32 {
	if x != x {
		return x
	}
	x = min(max(x, -87), 88)
	n := float32(math.RoundToEven(float64(x * 1.44269504088896341)))
	x -= n * 0.693359375
	x -= n * -2.12194440e-4
	y := float32(1.9875691500e-4)
	y = y*x + 1.3981999507e-3
	y = y*x + 8.3334519073e-3
	y = y*x + 4.1665795894e-2
	y = y*x + 1.6666665459e-1
	y = y*x + 5.0000001201e-1
	y = y*x*x + x + 1
	return math.Float32frombits(uint32(int32(math.Float32bits(y)) + int32(n)<<23))
}

func expPortable(dst, src []float32, scale, shift float32) (sum float32) {
	for i, v := range src {
		e := exp1(v*scale - shift)
		dst[i] = e
		sum += e
	}
	return sum
}

func maxPortable(x []float32) float32 {
	m := x[0]
	for _, v := range x {
		if v > m {
			m = v
		}
	}
	return m
}

func dotPortable(a, b []float32) float32 {
	var s0, s1, s2, s3 float32
	i := 0
	for ; i+3 < len(a); i += 4 {
		s0 += a[i] * b[i]
		s1 += a[i+1] * b[i+1]
		s2 += a[i+2] * b[i+2]
		s3 += a[i+3] * b[i+3]
	}
	for ; i < len(a); i++ {
		s0 += a[i] * b[i]
	}
	return s0 + s1 + s2 + s3
}

func rmsGradPortable(dx, dy, x, w, dw []float32, f float32) {
	var t float32
	for i, v := range dy {
		t += v * x[i] * w[i]
		dw[i] += v * x[i] * f
	}
	t *= f * f * f / float32(len(dx))
	for i, v := range dy {
		dx[i] += v*w[i]*f - x[i]*t
	}
}

func siluPortable(dst, gate, up []float32) {
	for i, g := range gate {
		dst[i] = g / (1 + exp1(-g)) * up[i]
	}
}

func siluGradPortable(d, gate, up []float32) {
	for i, g := range gate {
		s := 1 / (1 + exp1(-g))
		gate[i] = d[i] * up[i] * s * (1 + g*(1-s))
		up[i] = d[i] * g * s
	}
}

func ropePortable(a, b, cos, sin []float32, sign float32) {
	for i, x := range a {
		y, c, s := b[i], cos[i], sign*sin[i]
		a[i], b[i] = x*c-y*s, y*c+x*s
	}
}

func adamPortable(p, g, m, v []float32, c *AdamStep) {
	for i, gi := range g {
		gi *= c.Clip
		mi := m[i]*c.Beta1 + gi*c.OneMinus1
		vi := v[i]*c.Beta2 + gi*gi*c.OneMinus2
		m[i], v[i] = mi, vi
		p[i] = p[i]*c.Keep - c.Rate*(mi/(float32(math.Sqrt(float64(vi)))*c.Correction+c.Eps))
	}
}

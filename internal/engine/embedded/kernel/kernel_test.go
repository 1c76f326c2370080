package kernel

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
)

func eachSet(t *testing.T, f func(t *testing.T, s Set)) {
	for _, s := range Available() {
		t.Run(s.Name(), func(t *testing.T) { f(t, s) })
	}
}

func random(r *rand.Rand, n int) []float32 {
	x := make([]float32, n)
	for i := range x {
		x[i] = float32(r.NormFloat64())
	}
	return x
}

func near(t *testing.T, what string, got, want, tol float64) {
	t.Helper()
	if !(math.Abs(got-want) <= tol*(1+math.Abs(want))) {
		t.Fatalf("%s: got %g, want %g", what, got, want)
	}
}

func TestSelect(t *testing.T) {
	best, err := Select("")
	if err != nil || best != Available()[0] {
		t.Fatalf("best is %q, %v", best.Name(), err)
	}
	if s, err := Select("portable"); err != nil || s.Vector() {
		t.Fatalf("portable: %q %v", s.Name(), err)
	}
	if _, err := Select("mmx"); err == nil {
		t.Fatal("an unknown set was selected")
	}
}

// Products of all small shapes, both layouts of the left operand, against
// float64; and the same row alone has the same bits.
func TestGemm(t *testing.T) {
	eachSet(t, func(t *testing.T, s Set) {
		r := rand.New(rand.NewPCG(1, 2))
		for m := 1; m <= 2*s.Rows()+1; m++ {
			for _, n := range []int{1, 3, s.Columns(), s.Columns() + 5, 3 * s.Columns()} {
				for _, k := range []int{1, 7, 32} {
					testGemm(t, s, r, m, n, k)
				}
			}
		}
	})
}

func testGemm(t *testing.T, s Set, r *rand.Rand, m, n, k int) {
	t.Helper()
	a, b := random(r, m*k), random(r, k*n)
	at := make([]float32, m*k) // transposed
	for i := range m {
		for p := range k {
			at[p*m+i] = a[i*k+p]
		}
	}
	bt := make([]float32, k*n)
	for p := range k {
		for j := range n {
			bt[j*k+p] = b[p*n+j]
		}
	}
	pb := s.Pack(nil, b, n, 1, k, n)
	if !slices.Equal(pb, s.Pack(nil, bt, 1, k, k, n)) {
		t.Fatal("packing the transpose gives something else")
	}
	ldc := n + 3
	c := random(r, m*ldc)
	before := slices.Clone(c)
	s.Gemm(m, n, k, a, k, 1, pb, k, c, ldc, true)
	s.Gemm(m, n, k, at, 1, m, pb, k, c, ldc, true)
	one := make([]float32, n)
	full := make([]float32, m*n)
	s.Gemm(m, n, k, a, k, 1, pb, k, full, n, false)
	for i := range m {
		for j := range ldc {
			want := float64(before[i*ldc+j])
			if j < n {
				var sum float64
				for p := range k {
					sum += float64(a[i*k+p]) * float64(b[p*n+j])
				}
				want += 2 * sum
			}
			near(t, fmt.Sprintf("m=%d n=%d k=%d c[%d,%d]", m, n, k, i, j), float64(c[i*ldc+j]), want, 1e-5)
		}
		s.Gemm(1, n, k, a[i*k:], k, 1, pb, k, one, n, false)
		if !slices.Equal(one, full[i*n:][:n]) {
			t.Fatalf("row %d alone differs from row %d among %d", i, i, m)
		}
	}
}

func TestVectors(t *testing.T) {
	eachSet(t, func(t *testing.T, s Set) {
		r := rand.New(rand.NewPCG(3, 4))
		for n := 1; n <= 70; n++ {
			testVectors(t, s, r, n)
		}
	})
}

// guarded returns a slice of n with sentinels behind it, and a check of them.
func guarded(t *testing.T, r *rand.Rand, n int) ([]float32, func()) {
	x := random(r, n+32)
	for i := n; i < len(x); i++ {
		x[i] = 12345
	}
	return x[:n:n], func() {
		for _, v := range x[n:] {
			if v != 12345 {
				t.Fatalf("n=%d: wrote behind the end", n)
			}
		}
	}
}

func testVectors(t *testing.T, s Set, r *rand.Rand, n int) {
	f64 := func(x []float32) []float64 {
		y := make([]float64, len(x))
		for i, v := range x {
			y[i] = float64(v)
		}
		return y
	}
	x, okx := guarded(t, r, n)
	y, oky := guarded(t, r, n)
	z, okz := guarded(t, r, n)
	w, okw := guarded(t, r, n)
	v, okv := guarded(t, r, n)
	each := func(name string, got []float32, want func(i int) float64) {
		t.Helper()
		for i := range got {
			near(t, fmt.Sprintf("%s n=%d [%d]", name, n, i), float64(got[i]), want(i), 1e-5)
		}
	}
	x0, y0, z0, w0, v0 := f64(x), f64(y), f64(z), f64(w), f64(v)
	var sumE, dot float64
	maxi := x0[0]
	for i := range x0 {
		sumE += math.Exp(x0[i]*.7 - .3)
		dot += x0[i] * y0[i]
		maxi = max(maxi, x0[i])
	}
	near(t, "max", float64(s.Max(x)), maxi, 0)
	near(t, "dot", float64(s.Dot(x, y)), dot, 1e-5)
	near(t, "exp sum", float64(s.Exp(z, x, .7, .3)), sumE, 1e-5)
	each("exp", z, func(i int) float64 { return math.Exp(x0[i]*.7 - .3) })
	s.Axpy(z, y, .5)
	each("axpy", z, func(i int) float64 { return math.Exp(x0[i]*.7-.3) + .5*y0[i] })
	s.Scale(z, y, .25)
	each("scale", z, func(i int) float64 { return .25 * y0[i] })
	s.RMS(z, x, y, 1.5)
	each("rms", z, func(i int) float64 { return x0[i] * y0[i] * 1.5 })

	copy(z, w)
	z0 = f64(z)
	var dyw float64
	for i := range x0 {
		dyw += y0[i] * v0[i] * x0[i]
	}
	s.RMSGrad(z, y, x, v, w, 1.25)
	each("rms grad dw", w, func(i int) float64 { return w0[i] + y0[i]*x0[i]*1.25 })
	each("rms grad dx", z, func(i int) float64 {
		return z0[i] + y0[i]*v0[i]*1.25 - x0[i]*1.25*1.25*1.25/float64(n)*dyw
	})
	sig := func(g float64) float64 { return 1 / (1 + math.Exp(-g)) }
	s.SiLU(z, x, y)
	each("silu", z, func(i int) float64 { return x0[i] * sig(x0[i]) * y0[i] })
	z0 = f64(z)
	s.SiLUGrad(z, x, y)
	each("silu grad gate", x, func(i int) float64 {
		return z0[i] * y0[i] * sig(x0[i]) * (1 + x0[i]*(1-sig(x0[i])))
	})
	each("silu grad up", y, func(i int) float64 { return z0[i] * x0[i] * sig(x0[i]) })
	x0, y0 = f64(x), f64(y)
	s.SoftmaxGrad(x, y, .3, .8)
	each("softmax grad", x, func(i int) float64 { return y0[i] * (x0[i] - .3) * .8 })
	x0, w0, v0, z0 = f64(x), f64(w), f64(v), f64(z)
	s.Rope(x, y, w, v, -1)
	each("rope a", x, func(i int) float64 { return x0[i]*w0[i] + y0[i]*v0[i] })
	each("rope b", y, func(i int) float64 { return y0[i]*w0[i] - x0[i]*v0[i] })
	for i := range v {
		v[i] = v[i] * v[i]
	}
	x0, y0, v0, z0 = f64(x), f64(y), f64(v), f64(z)
	c := AdamStep{Clip: .5, Beta1: .9, OneMinus1: .1, Beta2: .95, OneMinus2: .05, Correction: 2, Eps: 1e-3, Rate: .01, Keep: .99}
	s.Adam(x, y, z, v, &c)
	each("adam m", z, func(i int) float64 { return .9*z0[i] + .1*.5*y0[i] })
	each("adam v", v, func(i int) float64 { return .95*v0[i] + .05*.25*y0[i]*y0[i] })
	each("adam p", x, func(i int) float64 {
		return x0[i]*.99 - .01*(.9*z0[i]+.1*.5*y0[i])/(math.Sqrt(.95*v0[i]+.05*.25*y0[i]*y0[i])*2+1e-3)
	})
	okx()
	oky()
	okz()
	okw()
	okv()
}

// A NaN must not be swallowed: it is how bad data is noticed.
func TestExpExtremes(t *testing.T) {
	eachSet(t, func(t *testing.T, s Set) {
		x := []float32{-1e30, 1e30, float32(math.NaN()), 0, float32(math.Inf(1)), float32(math.Inf(-1)), 1, 2, 3}
		y := make([]float32, len(x))
		sum := s.Exp(y, x, 1, 0)
		if sum == sum || y[2] == y[2] {
			t.Fatalf("NaN was lost: %v, sum %v", y, sum)
		}
		for i, v := range y {
			if i != 2 && (v <= 0 || math.IsInf(float64(v), 0)) {
				t.Fatalf("exp(%v) = %v", x[i], v)
			}
		}
	})
}

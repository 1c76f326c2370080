// Package kernel has the numerical kernels of the embedded engine: matrix
// products over packed panels and the vector operations around them, in sets
// (AVX-512, AVX2, portable Go) of which one is chosen at run time. A set is a
// value; nothing here is global. Within a set each row of a matrix product has
// the same bits whatever it is computed together with; between sets results
// differ by rounding.
package kernel

//go:generate go run ../../../../tools/kernelgen .

import (
	"fmt"
	"strings"
)

type level uint8

const (
	portable level = iota
	avx2
	avx512
)

// Set is one set of kernels. The zero value is the portable one.
type Set struct{ level level }

// Select returns the named set, "avx512", "avx2" or "portable"; "" is the best
// that this CPU has. A name that is unknown or not to be had here is an error.
func Select(name string) (Set, error) {
	all := Available()
	if name == "" {
		return all[0], nil
	}
	var names []string
	for _, s := range all {
		if s.Name() == name {
			return s, nil
		}
		names = append(names, s.Name())
	}
	return Set{}, fmt.Errorf("no kernels %q on this CPU: choose one of %s", name, strings.Join(names, ", "))
}

// Available returns the sets that this CPU has, the best first.
func Available() []Set {
	best := detect()
	var all []Set
	for l := int(best); l >= 0; l-- {
		all = append(all, Set{level(l)})
	}
	return all
}

// Name returns "avx512", "avx2" or "portable".
func (s Set) Name() string { return [...]string{"portable", "avx2", "avx512"}[s.level] }

// Vector says whether the set uses vector instructions; the portable one is
// about twenty times slower.
func (s Set) Vector() bool { return s.level != portable }

// Columns returns the width of a panel: how many columns of the right operand
// lie together.
func (s Set) Columns() int { return [...]int{portableColumns, 16, 32}[s.level] }

// Rows returns the height of the tile that a matrix product works by: numbers
// of rows that are its multiples are the most efficient.
func (s Set) Rows() int { return [...]int{portableRows, 6, 12}[s.level] }

// PackedLen returns the number of floats of a right operand of k rows and n
// columns in panels: n is rounded up to whole panels.
func (s Set) PackedLen(k, n int) int {
	c := s.Columns()
	return (n + c - 1) / c * c * k
}

// Pack lays the matrix b of k rows and n columns, element (p, j) at
// b[p*rs+j*cs], out in panels: panel j/Columns has k rows of Columns floats, the
// last one filled with zeros. It returns dst, grown where needed.
func (s Set) Pack(dst, b []float32, rs, cs, k, n int) []float32 {
	w := s.Columns()
	size := s.PackedLen(k, n)
	if cap(dst) < size {
		dst = make([]float32, size)
	}
	dst = dst[:size]
	for j0 := 0; j0 < n; j0 += w {
		d := dst[j0*k:][:k*w]
		jn := min(w, n-j0)
		if cs == 1 && jn == w && s.Vector() && k > 0 {
			_ = b[(k-1)*rs+j0+w-1]
			s.packPanel(&d[0], &b[j0], k, rs)
			continue
		}
		if jn < w {
			clear(d)
		}
		if cs == 1 {
			for p := range k {
				copy(d[p*w:][:jn], b[p*rs+j0:])
			}
			continue
		}
		packColumns(d, b[j0*cs:], rs, cs, k, jn, w)
	}
	return dst
}

func (s Set) packPanel(dst, src *float32, k, stride int) {
	if s.level == avx512 {
		packPanelAVX512(dst, src, k, stride)
	} else {
		packPanelAVX2(dst, src, k, stride)
	}
}

// packColumns transposes in blocks of eight rows, so that a cache line of the
// source is read once.
func packColumns(d, b []float32, rs, cs, k, n, w int) {
	for p0 := 0; p0 < k; p0 += 8 {
		pn := min(8, k-p0)
		for j := range n {
			src := j*cs + p0*rs
			dst := p0*w + j
			for range pn {
				d[dst] = b[src]
				dst += w
				src += rs
			}
		}
	}
}

// Gemm computes c = a·b, or c += a·b where acc is set. a is [m, k], element
// (i, p) at a[i*rs+p*cs]; b is in panels as Pack leaves them, of kp ≥ k rows each,
// of which the first k are used; c is [m, n], rows ldc apart.
func (s Set) Gemm(m, n, k int, a []float32, rs, cs int, b []float32, kp int, c []float32, ldc int, acc bool) {
	if m <= 0 || n <= 0 || k <= 0 {
		return
	}
	w, rows := s.Columns(), s.Rows()
	// What the assembly reads and writes is in the slices, or this panics.
	_ = a[(m-1)*rs+(k-1)*cs]
	_ = b[(n-1)/w*w*kp+w*k-1]
	_ = c[(m-1)*ldc+n-1]
	add := 0
	if acc {
		add = 1
	}
	for j0 := 0; j0 < n; j0 += w {
		panel := &b[j0*kp]
		if j0+w > n {
			s.edge(m, n-j0, k, a, rs, cs, panel, c[j0:], ldc, acc)
			return
		}
		for i0 := 0; i0 < m; i0 += rows {
			s.tile(min(rows, m-i0), k, &a[i0*rs], rs, cs, panel, &c[i0*ldc+j0], ldc, add)
		}
	}
}

// edge computes the last n columns, less than a panel, through a tile of its
// own.
func (s Set) edge(m, n, k int, a []float32, rs, cs int, panel *float32, c []float32, ldc int, acc bool) {
	var tile [12 * 32]float32
	w, rows := s.Columns(), s.Rows()
	for i0 := 0; i0 < m; i0 += rows {
		h := min(rows, m-i0)
		s.tile(h, k, &a[i0*rs], rs, cs, panel, &tile[0], w, 0)
		for i := range h {
			from, to := tile[i*w:][:n], c[(i0+i)*ldc:][:n]
			if !acc {
				copy(to, from)
				continue
			}
			for j, v := range from {
				to[j] += v
			}
		}
	}
}

// tile runs the micro-kernel of h ≤ Rows rows and one panel.
func (s Set) tile(h, k int, a *float32, rs, cs int, b, c *float32, ldc, acc int) {
	switch s.level {
	case avx512:
		gemmAVX512(h, k, a, rs, cs, b, c, ldc, acc)
	case avx2:
		gemmAVX2(h, k, a, rs, cs, b, c, ldc, acc)
	default:
		gemmPortable(h, k, a, rs, cs, b, c, ldc, acc)
	}
}

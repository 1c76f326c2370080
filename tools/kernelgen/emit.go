package main

import (
	"bytes"
	"fmt"
	"math"
	"strings"
)

// isa is what differs between the instruction sets.
type isa struct {
	suffix string // of the functions' names
	file   string
	reg    string // vector register letter
	lanes  int    // float32 per vector
	rows   int    // height of the matrix-product tile, which is two vectors wide
}

var (
	avx2   = isa{suffix: "AVX2", file: "avx2_amd64.s", reg: "Y", lanes: 8, rows: 6}
	avx512 = isa{suffix: "AVX512", file: "avx512_amd64.s", reg: "Z", lanes: 16, rows: 12}
)

func (s isa) wide() bool { return s.lanes == 16 }

// arg is one argument of a function; all but float32 are 8 bytes.
type arg struct{ name, typ string }

type function struct {
	name string
	args []arg
	ret  bool // returns a float32
	body func(e *emitter)
}

func (f function) signature() string {
	var p []string
	for _, a := range f.args {
		p = append(p, a.name+" "+a.typ)
	}
	s := "(" + strings.Join(p, ", ") + ")"
	if f.ret {
		s += " (ret float32)"
	}
	return s
}

// frame returns the offset of each argument and the size of them all.
func (f function) frame() (map[string]int, int) {
	off, at := 0, map[string]int{}
	align := func(n int) { off = (off + n - 1) / n * n }
	for _, a := range f.args {
		n := 8
		if a.typ == "float32" {
			n = 4
		}
		align(n)
		at[a.name] = off
		off += n
	}
	if f.ret {
		align(8)
		at["ret"] = off
		off += 4
	}
	return at, off
}

// emitter writes one assembly file.
type emitter struct {
	isa
	buf   bytes.Buffer
	fn    function
	off   map[string]int
	label int
	tail  bool // the body in hand is the masked one
}

func (e *emitter) raw(s string) { e.buf.WriteString(s) }

// op writes one instruction; %-verbs as in fmt. Vector registers are written
// V0..V31 and become Y or Z registers.
func (e *emitter) op(format string, a ...any) {
	s := fmt.Sprintf(format, a...)
	e.raw("\t" + e.vectors(s) + "\n")
}

func (e *emitter) vectors(s string) string {
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		if s[i] == 'V' && i+1 < len(s) && s[i+1] >= '0' && s[i+1] <= '9' && (i == 0 || s[i-1] == ' ' || s[i-1] == ',') {
			b.WriteString(e.reg)
			continue
		}
		b.WriteByte(s[i])
	}
	return b.String()
}

func (e *emitter) newLabel(s string) string {
	e.label++
	return fmt.Sprintf("%s%d", s, e.label)
}

func (e *emitter) mark(l string) { e.raw(l + ":\n") }

func (e *emitter) function(f function) {
	e.fn, e.label = f, 0
	var size int
	e.off, size = f.frame()
	e.raw(fmt.Sprintf("// func %s%s%s\n", f.name, e.suffix, f.signature()))
	e.raw(fmt.Sprintf("TEXT ·%s%s(SB), NOSPLIT, $0-%d\n", f.name, e.suffix, size))
	f.body(e)
	e.raw("\n")
}

// param returns the operand of an argument.
func (e *emitter) param(name string) string { return fmt.Sprintf("%s+%d(FP)", name, e.off[name]) }

// get loads an integer or pointer argument.
func (e *emitter) get(name, reg string) { e.op("MOVQ %s, %s", e.param(name), reg) }

// spread fills a vector register with a float32 argument.
func (e *emitter) spread(name, reg string) { e.op("VBROADCASTSS %s, %s", e.param(name), reg) }

func (e *emitter) zero(reg string) {
	if e.wide() {
		e.op("VPXORD %s, %s, %s", reg, reg, reg)
	} else {
		e.op("VXORPS %s, %s, %s", reg, reg, reg)
	}
}

// load and store move a vector, or what is left of one in the tail. The mask is
// K1, or V15 in AVX2; what the mask leaves out reads as 0.
func (e *emitter) load(ptr, reg string) {
	switch {
	case !e.tail:
		e.op("VMOVUPS (%s), %s", ptr, reg)
	case e.wide():
		e.op("VMOVUPS.Z (%s), K1, %s", ptr, reg)
	default:
		e.op("VMASKMOVPS (%s), V15, %s", ptr, reg)
	}
}

func (e *emitter) store(reg, ptr string) {
	switch {
	case !e.tail:
		e.op("VMOVUPS %s, (%s)", reg, ptr)
	case e.wide():
		e.op("VMOVUPS %s, K1, (%s)", reg, ptr)
	default:
		e.op("VMASKMOVPS %s, V15, (%s)", reg, ptr)
	}
}

// keep zeroes what the tail's mask leaves out.
func (e *emitter) keep(reg string) {
	switch {
	case !e.tail:
	case e.wide():
		e.op("VMOVUPS.Z %s, K1, %s", reg, reg)
	default:
		e.op("VANDPS V15, %s, %s", reg, reg)
	}
}

// loop runs body over the vectors of the argument n, then once more, masked,
// over what is left; ptrs are advanced. It uses CX and AX.
func (e *emitter) loop(ptrs []string, body func()) {
	top, tail, end := e.newLabel("loop"), e.newLabel("tail"), e.newLabel("end")
	e.get("n", "CX")
	e.op("SUBQ $%d, CX", e.lanes)
	e.op("JLT %s", tail)
	e.mark(top)
	body()
	for _, p := range ptrs {
		e.op("ADDQ $%d, %s", 4*e.lanes, p)
	}
	e.op("SUBQ $%d, CX", e.lanes)
	e.op("JGE %s", top)
	e.mark(tail)
	e.op("ADDQ $%d, CX", e.lanes)
	e.op("JEQ %s", end)
	if e.wide() {
		e.op("MOVQ $1, AX")
		e.op("SHLQ CX, AX")
		e.op("DECQ AX")
		e.op("KMOVW AX, K1")
	} else {
		e.op("LEAQ masks<>+32(SB), AX")
		e.op("SHLQ $2, CX")
		e.op("SUBQ CX, AX")
		e.op("VMOVUPS (AX), V15")
	}
	e.tail = true
	body()
	e.tail = false
	e.mark(end)
}

// sum adds the lanes of a register and puts the total into X0; it uses X1.
func (e *emitter) sum(n int) {
	if e.wide() {
		e.op("VEXTRACTF64X4 $1, Z%d, Y1", n)
		e.op("VADDPS Y1, Y%d, Y%d", n, n)
	}
	e.op("VEXTRACTF128 $1, Y%d, X0", n)
	e.op("VADDPS X0, X%d, X0", n)
	e.op("VHADDPS X0, X0, X0")
	e.op("VHADDPS X0, X0, X0")
}

func (e *emitter) ret(value bool) {
	if value {
		e.op("VMOVSS X0, %s", e.param("ret"))
	}
	e.op("VZEROUPPER")
	e.op("RET")
}

// The constants of exp (Cephes expf): order as named by the indices.
var expConstants = []float32{1.44269504088896341, 0.693359375, -2.12194440e-4,
	1.9875691500e-4, 1.3981999507e-3, 8.3334519073e-3, 4.1665795894e-2, 1.6666665459e-1, 5.0000001201e-1, 1, -87, 88}

const (
	cLog2e = iota
	cHigh
	cLow
	cP0
	cOne = iota + 5
	cMin
	cMax
)

// constants writes the tables: each constant eight times, so that AVX2 can use
// it from memory, and the masks of its tails.
func (e *emitter) constants() {
	for i, v := range expConstants {
		for j := range 8 {
			e.raw(fmt.Sprintf("DATA exps<>+%d(SB)/4, $0x%08x\n", 32*i+4*j, math.Float32bits(v)))
		}
	}
	e.raw(fmt.Sprintf("GLOBL exps<>(SB), RODATA|NOPTR, $%d\n\n", 32*len(expConstants)))
	if e.wide() {
		return
	}
	for i := range 16 {
		v := uint32(0)
		if i < 8 {
			v = 0xffffffff
		}
		e.raw(fmt.Sprintf("DATA masks<>+%d(SB)/4, $0x%08x\n", 4*i, v))
	}
	e.raw("GLOBL masks<>(SB), RODATA|NOPTR, $64\n\n")
}

// expConst returns the operand of a constant of exp: in AVX-512 registers 16 and up, in
// AVX2 memory but for the bounds in V14 and V13.
func (e *emitter) expConst(i int) string {
	switch {
	case e.wide():
		return fmt.Sprintf("V%d", 16+i)
	case i == cMin:
		return "V14"
	case i == cMax:
		return "V13"
	}
	return fmt.Sprintf("exps<>+%d(SB)", 32*i)
}

// expSetup loads what expConst keeps in registers.
func (e *emitter) expSetup() {
	for i := range expConstants {
		if e.wide() || i == cMin || i == cMax {
			e.op("VBROADCASTSS exps<>+%d(SB), %s", 32*i, e.expConst(i))
		}
	}
}

// exp replaces V0 by its exponential; it uses V1, V2, V3. The bounds keep the
// result finite and not zero; NaN stays NaN (the operand order of MAX and MIN
// matters for that).
func (e *emitter) exp() {
	e.op("VMAXPS V0, %s, V0", e.expConst(cMin))
	e.op("VMINPS V0, %s, V0", e.expConst(cMax))
	e.op("VMULPS %s, V0, V1", e.expConst(cLog2e))
	if e.wide() {
		e.op("VRNDSCALEPS $0, V1, V1")
	} else {
		e.op("VROUNDPS $0, V1, V1")
	}
	e.op("VFNMADD231PS %s, V1, V0", e.expConst(cHigh))
	e.op("VFNMADD231PS %s, V1, V0", e.expConst(cLow))
	e.op("VMOVUPS %s, V2", e.expConst(cP0))
	for i := 1; i < 6; i++ {
		e.op("VFMADD213PS %s, V0, V2", e.expConst(cP0+i))
	}
	e.op("VMULPS V0, V0, V3")
	e.op("VFMADD213PS V0, V3, V2")
	e.op("VADDPS %s, V2, V2", e.expConst(cOne))
	e.op("VCVTPS2DQ V1, V1")
	e.op("VPSLLD $23, V1, V1")
	e.op("VPADDD V1, V2, V0")
}

// sigmoid replaces V0 = exp(-x) by 1/(1+V0); it uses V1. AVX-512 divides by an
// approximate reciprocal and one step of Newton's, which is four times as fast.
func (e *emitter) sigmoid() {
	e.op("VADDPS %s, V0, V0", e.expConst(cOne))
	if !e.wide() {
		e.op("VMOVUPS %s, V1", e.expConst(cOne))
		e.op("VDIVPS V0, V1, V0")
		return
	}
	e.op("VRCP14PS V0, V1")
	e.op("VFNMADD213PS %s, V1, V0", e.expConst(cOne)) // 1 - V0·V1
	e.op("VFMADD213PS V1, V1, V0")                    // V1 + V1·(1 - …)
}

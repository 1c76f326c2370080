package main

import "fmt"

// gemm is the micro-kernel: c[h,2 vectors] = or += a[h,k] · b[k,2 vectors], b a
// panel without gaps, a with strides in floats. Every height has code of its
// own, and each element is one chain of fused multiply-adds over k, so that a
// row's bits do not depend on how many rows it is computed with.
func gemm(s isa) function {
	return function{
		name: "gemm",
		args: []arg{{"h", "int"}, {"k", "int"}, {"a", "*float32"}, {"rs", "int"}, {"cs", "int"},
			{"b", "*float32"}, {"c", "*float32"}, {"ldc", "int"}, {"acc", "int"}},
		body: func(e *emitter) { gemmBody(e, s.rows) },
	}
}

func gemmBody(e *emitter, rows int) {
	for _, p := range [][2]string{{"h", "AX"}, {"k", "CX"}, {"a", "SI"}, {"rs", "R8"}, {"cs", "R9"}, {"b", "DI"}, {"c", "DX"}, {"ldc", "R10"}, {"acc", "BX"}} {
		e.get(p[0], p[1])
	}
	e.op("SHLQ $2, R8")
	e.op("SHLQ $2, R9")
	e.op("SHLQ $2, R10")
	for h := rows; h > 1; h-- {
		e.op("CMPQ AX, $%d", h)
		e.op("JEQ h%d", h)
	}
	for h := 1; h <= rows; h++ {
		gemmHeight(e, h)
	}
}

// gemmHeight writes the code for h rows. Accumulators are the last 2h vector
// registers; rows are addressed from one pointer to every third row.
func gemmHeight(e *emitter, h int) {
	if h > 1 {
		e.mark(fmt.Sprintf("h%d", h))
	}
	first := 4
	if e.wide() {
		first = 8
	}
	acc := func(r, j int) string { return fmt.Sprintf("V%d", first+2*r+j) }
	bases := []string{"SI", "R11", "R12", "R13"}[:(h+2)/3]
	if len(bases) > 1 {
		e.op("LEAQ (R8)(R8*2), AX")
		for i := 1; i < len(bases); i++ {
			e.op("LEAQ (%s)(AX*1), %s", bases[i-1], bases[i])
		}
	}
	for r := range h {
		e.zero(acc(r, 0))
		e.zero(acc(r, 1))
	}
	e.mark(fmt.Sprintf("k%d", h))
	e.op("VMOVUPS (DI), V0")
	e.op("VMOVUPS %d(DI), V1", 4*e.lanes)
	for r := range h {
		at := "(" + bases[r/3] + ")"
		if r%3 > 0 {
			at += fmt.Sprintf("(R8*%d)", r%3)
		}
		x := fmt.Sprintf("V%d", 2+r%2)
		e.op("VBROADCASTSS %s, %s", at, x)
		e.op("VFMADD231PS V0, %s, %s", x, acc(r, 0))
		e.op("VFMADD231PS V1, %s, %s", x, acc(r, 1))
	}
	for _, b := range bases {
		e.op("ADDQ R9, %s", b)
	}
	e.op("ADDQ $%d, DI", 8*e.lanes)
	e.op("DECQ CX")
	e.op("JNE k%d", h)
	store := fmt.Sprintf("store%d", h)
	e.op("TESTQ BX, BX")
	e.op("JEQ %s", store)
	e.op("MOVQ DX, AX")
	for r := range h {
		e.op("VADDPS (AX), %s, %s", acc(r, 0), acc(r, 0))
		e.op("VADDPS %d(AX), %s, %s", 4*e.lanes, acc(r, 1), acc(r, 1))
		if r+1 < h {
			e.op("ADDQ R10, AX")
		}
	}
	e.mark(store)
	for r := range h {
		e.op("VMOVUPS %s, (DX)", acc(r, 0))
		e.op("VMOVUPS %s, %d(DX)", acc(r, 1), 4*e.lanes)
		if r+1 < h {
			e.op("ADDQ R10, DX")
		}
	}
	e.ret(false)
}

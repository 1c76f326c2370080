package main

func ptrs(names ...string) []arg {
	var a []arg
	for _, n := range names {
		a = append(a, arg{n, "*float32"})
	}
	return append(a, arg{"n", "int"})
}

func floats(a []arg, names ...string) []arg {
	for _, n := range names {
		a = append(a, arg{n, "float32"})
	}
	return a
}

// vectorFunctions are the elementwise operations and reductions; package kernel
// says what each computes. Any n ≥ 0 will do.
func vectorFunctions() []function {
	return []function{
		{name: "exp", args: floats(ptrs("dst", "src"), "scale", "shift"), ret: true, body: expBody},
		{name: "maximum", args: ptrs("src"), ret: true, body: maxBody},
		{name: "dot", args: ptrs("a", "b"), ret: true, body: dotBody},
		{name: "axpy", args: floats(ptrs("dst", "src"), "a"), body: axpyBody},
		{name: "scale", args: floats(ptrs("dst", "src"), "a"), body: scaleBody},
		{name: "rms", args: floats(ptrs("dst", "src", "w"), "s"), body: rmsBody},
		{name: "rmsGrad", args: floats(ptrs("dx", "dy", "x", "w", "dw"), "s", "inv"), body: rmsGradBody},
		{name: "silu", args: ptrs("dst", "gate", "up"), body: siluBody},
		{name: "siluGrad", args: ptrs("d", "gate", "up"), body: siluGradBody},
		{name: "softmaxGrad", args: floats(ptrs("d", "p"), "delta", "scale"), body: softmaxGradBody},
		{name: "rope", args: floats(ptrs("a", "b", "cos", "sin"), "sign"), body: ropeBody},
		{name: "packPanel", args: []arg{{"dst", "*float32"}, {"src", "*float32"}, {"k", "int"}, {"stride", "int"}}, body: packPanelBody},
		{name: "adam", args: append(ptrs("p", "grad", "m", "v"), arg{"c", "*float32"}), body: adamBody},
	}
}

func expBody(e *emitter) {
	e.get("dst", "DI")
	e.get("src", "SI")
	e.expSetup()
	e.spread("scale", "V5")
	e.spread("shift", "V6")
	e.zero("V4")
	e.loop([]string{"DI", "SI"}, func() {
		e.load("SI", "V0")
		e.op("VFMSUB213PS V6, V5, V0")
		e.exp()
		e.store("V0", "DI")
		e.keep("V0")
		e.op("VADDPS V0, V4, V4")
	})
	e.sum(4)
	e.ret(true)
}

// maxBody starts from the first element, so that n must be at least 1.
func maxBody(e *emitter) {
	e.get("src", "SI")
	e.op("VBROADCASTSS (SI), V4")
	e.op("VMOVUPS V4, V5")
	e.loop([]string{"SI"}, func() {
		e.load("SI", "V0")
		switch {
		case e.tail && e.wide():
			e.op("VMAXPS V0, V4, K1, V4")
		case e.tail:
			e.op("VBLENDVPS V15, V0, V5, V0")
			e.op("VMAXPS V0, V4, V4")
		default:
			e.op("VMAXPS V0, V4, V4")
		}
	})
	if e.wide() {
		e.op("VEXTRACTF64X4 $1, Z4, Y1")
		e.op("VMAXPS Y1, Y4, Y4")
	}
	e.op("VEXTRACTF128 $1, Y4, X0")
	e.op("VMAXPS X0, X4, X0")
	e.op("VPERMILPS $0x4E, X0, X1")
	e.op("VMAXPS X1, X0, X0")
	e.op("VPERMILPS $0xB1, X0, X1")
	e.op("VMAXPS X1, X0, X0")
	e.ret(true)
}

func dotBody(e *emitter) {
	e.get("a", "DI")
	e.get("b", "SI")
	e.zero("V4")
	e.loop([]string{"DI", "SI"}, func() {
		e.load("DI", "V0")
		e.load("SI", "V1")
		e.op("VFMADD231PS V1, V0, V4")
	})
	e.sum(4)
	e.ret(true)
}

func axpyBody(e *emitter) {
	e.get("dst", "DI")
	e.get("src", "SI")
	e.spread("a", "V5")
	e.loop([]string{"DI", "SI"}, func() {
		e.load("DI", "V0")
		e.load("SI", "V1")
		e.op("VFMADD231PS V1, V5, V0")
		e.store("V0", "DI")
	})
	e.ret(false)
}

func scaleBody(e *emitter) {
	e.get("dst", "DI")
	e.get("src", "SI")
	e.spread("a", "V5")
	e.loop([]string{"DI", "SI"}, func() {
		e.load("SI", "V0")
		e.op("VMULPS V0, V5, V0")
		e.store("V0", "DI")
	})
	e.ret(false)
}

func rmsBody(e *emitter) {
	e.get("dst", "DI")
	e.get("src", "SI")
	e.get("w", "DX")
	e.spread("s", "V5")
	e.loop([]string{"DI", "SI", "DX"}, func() {
		e.load("SI", "V0")
		e.load("DX", "V1")
		e.op("VMULPS V5, V0, V0")
		e.op("VMULPS V1, V0, V0")
		e.store("V0", "DI")
	})
	e.ret(false)
}

// rmsGradBody: t = Σ dy·w·x; dw += dy·x·s; then dx += dy·w·s - x·t·s³·inv.
func rmsGradBody(e *emitter) {
	e.get("dy", "SI")
	e.get("x", "DX")
	e.get("w", "BX")
	e.get("dw", "R8")
	e.spread("s", "V5")
	e.zero("V4")
	e.loop([]string{"SI", "DX", "BX", "R8"}, func() {
		e.load("SI", "V0")
		e.load("DX", "V1")
		e.op("VMULPS V1, V0, V0")
		e.load("BX", "V2")
		e.op("VFMADD231PS V2, V0, V4")
		e.load("R8", "V3")
		e.op("VFMADD231PS V5, V0, V3")
		e.store("V3", "R8")
	})
	e.sum(4)
	e.op("VMOVSS %s, X5", e.param("s"))
	e.op("VMULSS X5, X0, X0")
	e.op("VMULSS X5, X0, X0")
	e.op("VMULSS X5, X0, X0")
	e.op("VMULSS %s, X0, X0", e.param("inv"))
	e.op("VBROADCASTSS X0, V6")
	e.spread("s", "V5")
	e.get("dx", "DI")
	e.get("dy", "SI")
	e.get("x", "DX")
	e.get("w", "BX")
	e.loop([]string{"DI", "SI", "DX", "BX"}, func() {
		e.load("SI", "V0")
		e.load("BX", "V1")
		e.op("VMULPS V1, V0, V0")
		e.load("DI", "V3")
		e.op("VFMADD231PS V5, V0, V3")
		e.load("DX", "V1")
		e.op("VFNMADD231PS V6, V1, V3")
		e.store("V3", "DI")
	})
	e.ret(false)
}

func siluBody(e *emitter) {
	e.get("dst", "DI")
	e.get("gate", "SI")
	e.get("up", "DX")
	e.expSetup()
	e.loop([]string{"DI", "SI", "DX"}, func() {
		e.load("SI", "V5")
		e.zero("V0")
		e.op("VSUBPS V5, V0, V0")
		e.exp()
		e.sigmoid()
		e.op("VMULPS V0, V5, V5")
		e.load("DX", "V1")
		e.op("VMULPS V1, V5, V5")
		e.store("V5", "DI")
	})
	e.ret(false)
}

// siluGradBody: with s = sigmoid(gate): gate ← d·up·s·(1+gate·(1-s)), up ← d·gate·s.
func siluGradBody(e *emitter) {
	e.get("d", "DI")
	e.get("gate", "SI")
	e.get("up", "DX")
	e.expSetup()
	e.loop([]string{"DI", "SI", "DX"}, func() {
		e.load("SI", "V5")
		e.zero("V0")
		e.op("VSUBPS V5, V0, V0")
		e.exp()
		e.op("VMOVUPS %s, V4", e.expConst(cOne))
		e.sigmoid()
		e.load("DI", "V6")
		e.op("VMULPS V0, V6, V7")      // d·s
		e.op("VSUBPS V0, V4, V1")      // 1-s
		e.op("VFMADD213PS V4, V5, V1") // 1+gate·(1-s)
		e.op("VMULPS V7, V1, V1")
		e.load("DX", "V2")
		e.op("VMULPS V2, V1, V1")
		e.store("V1", "SI")
		e.op("VMULPS V5, V7, V7")
		e.store("V7", "DX")
	})
	e.ret(false)
}

func softmaxGradBody(e *emitter) {
	e.get("d", "DI")
	e.get("p", "SI")
	e.spread("delta", "V5")
	e.spread("scale", "V6")
	e.loop([]string{"DI", "SI"}, func() {
		e.load("DI", "V0")
		e.load("SI", "V1")
		e.op("VSUBPS V5, V0, V0")
		e.op("VMULPS V6, V0, V0")
		e.op("VMULPS V1, V0, V0")
		e.store("V0", "DI")
	})
	e.ret(false)
}

func ropeBody(e *emitter) {
	e.get("a", "DI")
	e.get("b", "SI")
	e.get("cos", "DX")
	e.get("sin", "BX")
	e.spread("sign", "V6")
	e.loop([]string{"DI", "SI", "DX", "BX"}, func() {
		e.load("DI", "V0")
		e.load("SI", "V1")
		e.load("DX", "V2")
		e.load("BX", "V3")
		e.op("VMULPS V6, V3, V3")
		e.op("VMULPS V2, V0, V4")
		e.op("VFNMADD231PS V3, V1, V4")
		e.op("VMULPS V2, V1, V5")
		e.op("VFMADD231PS V3, V0, V5")
		e.store("V4", "DI")
		e.store("V5", "SI")
	})
	e.ret(false)
}

// packPanelBody copies k ≥ 1 rows, strides apart, of one panel's width.
func packPanelBody(e *emitter) {
	e.get("dst", "DI")
	e.get("src", "SI")
	e.get("k", "CX")
	e.get("stride", "DX")
	e.op("SHLQ $2, DX")
	e.mark("row")
	e.op("VMOVUPS (SI), V0")
	e.op("VMOVUPS %d(SI), V1", 4*e.lanes)
	e.op("VMOVUPS V0, (DI)")
	e.op("VMOVUPS V1, %d(DI)", 4*e.lanes)
	e.op("ADDQ DX, SI")
	e.op("ADDQ $%d, DI", 8*e.lanes)
	e.op("DECQ CX")
	e.op("JNE row")
	e.ret(false)
}

// adamBody reads its coefficients from c: clip, β1, 1-β1, β2, 1-β2,
// 1/sqrt(1-β2^t), eps, lr/(1-β1^t), 1-lr·decay.
func adamBody(e *emitter) {
	e.get("p", "DI")
	e.get("grad", "SI")
	e.get("m", "DX")
	e.get("v", "BX")
	e.get("c", "AX")
	for i := range 9 {
		e.op("VBROADCASTSS %d(AX), V%d", 4*i, 6+i)
	}
	e.loop([]string{"DI", "SI", "DX", "BX"}, func() {
		e.load("SI", "V0")
		e.op("VMULPS V6, V0, V0")
		e.load("DX", "V1")
		e.op("VMULPS V7, V1, V1")
		e.op("VFMADD231PS V8, V0, V1")
		e.store("V1", "DX")
		e.op("VMULPS V0, V0, V0")
		e.load("BX", "V2")
		e.op("VMULPS V9, V2, V2")
		e.op("VFMADD231PS V10, V0, V2")
		e.store("V2", "BX")
		e.op("VSQRTPS V2, V2")
		e.op("VFMADD213PS V12, V11, V2")
		e.op("VDIVPS V2, V1, V1")
		e.load("DI", "V0")
		e.op("VMULPS V14, V0, V0")
		e.op("VFNMADD231PS V13, V1, V0")
		e.store("V0", "DI")
	})
	e.ret(false)
}

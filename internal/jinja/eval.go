package jinja

// maxEvalNesting bounds the depth of evaluation, and with it Go's stack.
const maxEvalNesting = 20_000

// args are the arguments of a call.
type args struct {
	pos   []Value
	names []string
	kw    []Value
}

// absent stands for an argument that was not given.
type absent struct{}

// bind puts the arguments in the order of params; absent{} where none is given.
func (a args) bind(in *interp, fn string, params ...string) []Value {
	out := make([]Value, len(params))
	for i := range out {
		out[i] = absent{}
	}
	if len(a.pos) > len(params) {
		fail(in.line, KindType, "%s() takes at most %d arguments (%d given)", fn, len(params), len(a.pos))
	}
	copy(out, a.pos)
next:
	for i, n := range a.names {
		for j, p := range params {
			if n == p {
				if j < len(a.pos) {
					fail(in.line, KindType, "%s() got multiple values for argument '%s'", fn, n)
				}
				out[j] = a.kw[i]
				continue next
			}
		}
		fail(in.line, KindType, "%s() got an unexpected keyword argument '%s'", fn, n)
	}
	return out
}

func given(v Value) bool { _, no := v.(absent); return !no }

// builtin is a function or a bound method.
type builtin struct {
	name string
	self string // type of the object a method belongs to
	fn   func(in *interp, a args) Value
}

func (in *interp) evalArgs(c *callArgs, sc *scope) args {
	var a args
	if n := len(c.args); n > 0 {
		a.pos = make([]Value, n)
		for i, e := range c.args {
			a.pos[i] = in.eval(e, sc)
		}
	}
	if c.star != nil {
		a.pos = append(a.pos, in.iterate(in.eval(c.star, sc))...)
	}
	a.names = c.names
	for _, e := range c.kwargs {
		a.kw = append(a.kw, in.eval(e, sc))
	}
	if c.star2 != nil {
		d, ok := in.eval(c.star2, sc).(*Dict)
		if !ok {
			fail(in.line, KindType, "argument after ** must be a mapping")
		}
		a.names = append([]string(nil), a.names...)
		for i, k := range d.keys {
			a.names = append(a.names, str(k))
			a.kw = append(a.kw, d.vals[i])
		}
	}
	return a
}

func (in *interp) call(fn Value, a args) Value {
	switch f := fn.(type) {
	case *builtin:
		return f.fn(in, a)
	case *macro:
		return in.callMacro(f, a)
	case *Undef:
		in.undefined(f)
	case *loopObj:
		if f.again == nil {
			fail(in.line, KindType, "the loop must have the 'recursive' marker to be called recursively")
		}
		return f.again(a.bind(in, "loop", "iterable")[0])
	}
	fail(in.line, KindType, "'%s' object is not callable", typeName(fn))
	return nil
}

func (in *interp) undefined(u *Undef) { fail(in.line, u.kind, "%s", u.message()) }

// need fails on an undefined value.
func (in *interp) need(v Value) {
	if u, ok := v.(*Undef); ok {
		in.undefined(u)
	}
}

func (in *interp) eval(e expr, sc *scope) Value {
	if c, ok := e.(constExpr); ok {
		return c.v
	}
	in.step()
	if in.nested++; in.nested > maxEvalNesting {
		fail(in.line, KindLimit, "expressions are nested too deeply")
	}
	v := in.evalNode(e, sc)
	in.nested--
	return v
}

func (in *interp) evalNode(e expr, sc *scope) Value {
	switch e := e.(type) {
	case *nameExpr:
		if v, ok := sc.get(e.name); ok {
			return v
		}
		if f := in.globalFunc(e.name); f != nil {
			return f
		}
		return &Undef{msg: "'" + e.name + "' is undefined", kind: KindUndefined}
	case *attrExpr:
		of := in.eval(e.of, sc)
		in.line = e.line
		return in.getAttr(of, e.name)
	case *indexExpr:
		return in.index(e, sc)
	case *callExpr:
		fn := in.eval(e.fn, sc)
		a := in.evalArgs(&e.callArgs, sc)
		in.line = e.line
		return in.call(fn, a)
	case *filterExpr:
		v := in.eval(e.of, sc)
		a := in.evalArgs(&e.callArgs, sc)
		in.line = e.line
		if e.fn == nil {
			fail(e.line, KindType, "No filter named '%s'.", e.name)
		}
		return e.fn(in, v, a)
	case *testExpr:
		v := in.eval(e.of, sc)
		a := in.evalArgs(&e.callArgs, sc)
		in.line = e.line
		if e.fn == nil {
			fail(e.line, KindType, "No test named '%s'.", e.name)
		}
		return e.fn(in, v, a)
	case blockValue:
		v, _ := sc.get("\x00block")
		return v
	case *condExpr:
		if truthy(in.eval(e.test, sc)) {
			return in.eval(e.then, sc)
		}
		if e.els == nil {
			return &Undef{msg: "the inline if-expression evaluated to false and no else section was defined.", kind: KindUndefined}
		}
		return in.eval(e.els, sc)
	case *andExpr:
		if v := in.eval(e.a, sc); !truthy(v) {
			return v
		}
		return in.eval(e.b, sc)
	case *orExpr:
		if v := in.eval(e.a, sc); truthy(v) {
			return v
		}
		return in.eval(e.b, sc)
	case *unaryExpr:
		v := in.eval(e.e, sc)
		if e.op == '!' {
			return !truthy(v)
		}
		in.line = e.line
		return in.negate(v, e.op == '-')
	case *binExpr:
		a, b := in.eval(e.a, sc), in.eval(e.b, sc)
		in.line = e.line
		return in.binary(e.op, a, b)
	case *compareExpr:
		return in.compareChain(e, sc)
	}
	return in.evalMade(e, sc)
}

// evalMade evaluates an expression that makes a value of several.
func (in *interp) evalMade(e expr, sc *scope) Value {
	switch e := e.(type) {
	case *concatExpr:
		parts := make([]*Str, len(e.parts))
		n := 0
		for i, p := range e.parts {
			parts[i] = toStr(in.eval(p, sc))
			n += len(parts[i].s)
		}
		in.line = e.line
		in.alloc(n)
		return concat(parts...)
	case *listExpr:
		return &List{in.evalAll(e.items, sc)}
	case *tupleExpr:
		return &Tuple{items: in.evalAll(e.items, sc)}
	case *dictExpr:
		d := NewDict()
		in.alloc(len(e.keys))
		for i, k := range e.keys {
			key := in.eval(k, sc)
			v := in.eval(e.vals[i], sc)
			in.line = e.line
			if !d.put(key, v) {
				fail(e.line, KindType, "unhashable type: '%s'", typeName(key))
			}
		}
		return d
	case *sliceExpr:
		fail(in.line, KindType, "a slice can only be used to index")
	}
	panic("jinja: unknown expression")
}

func (in *interp) evalAll(es []expr, sc *scope) []Value {
	in.alloc(len(es))
	out := make([]Value, len(es))
	for i, e := range es {
		out[i] = in.eval(e, sc)
	}
	return out
}

func (in *interp) compareChain(e *compareExpr, sc *scope) Value {
	a := in.eval(e.first, sc)
	for i, op := range e.ops {
		b := in.eval(e.rest[i], sc)
		in.line = e.line
		if !in.compare(op, a, b) {
			return false
		}
		a = b
	}
	return true
}

package jinja

import (
	"slices"
	"time"
)

// interp is the state of one rendering.
type interp struct {
	lim    Limits
	now    func() time.Time
	global *scope
	steps  int
	memory int
	depth  int // of macro calls and recursive loops
	nested int // of evaluation
	line   int // of the operation under way, for errors
	strict bool
}

func (in *interp) step() {
	if in.steps++; in.steps > in.lim.Steps {
		fail(in.line, KindLimit, "more than %d steps", in.lim.Steps)
	}
}

// alloc books n bytes, or elements of a list.
func (in *interp) alloc(n int) {
	if n > in.lim.Output {
		fail(in.line, KindLimit, "a value of more than %d bytes or elements", in.lim.Output)
	}
	if in.memory += n; in.memory > in.lim.Memory {
		fail(in.line, KindLimit, "more than %d bytes of memory", in.lim.Memory)
	}
}

func (in *interp) deeper(line int) {
	if in.depth++; in.depth > in.lim.Depth {
		fail(line, KindLimit, "more than %d nested calls", in.lim.Depth)
	}
}

// scope is one level of variables.
type scope struct {
	parent *scope
	vars   []binding
	few    [3]binding // what vars starts on: most scopes have no more
}

type binding struct {
	name string
	v    Value
}

func (s *scope) set(name string, v Value) {
	for i := range s.vars {
		if s.vars[i].name == name {
			s.vars[i].v = v
			return
		}
	}
	if s.vars == nil {
		s.vars = s.few[:0]
	}
	s.vars = append(s.vars, binding{name, v})
}

func (s *scope) get(name string) (Value, bool) {
	for ; s != nil; s = s.parent {
		for i := range s.vars {
			if s.vars[i].name == name {
				return s.vars[i].v, true
			}
		}
	}
	return nil, false
}

// control says how a block ended.
type control uint8

const (
	ctlNone control = iota
	ctlBreak
	ctlContinue
)

func (in *interp) execBlock(body []node, sc *scope, out *buffer) control {
	for _, n := range body {
		if c := in.exec(n, sc, out); c != ctlNone {
			return c
		}
	}
	return ctlNone
}

// printable refuses what is not there, in a strict dialect.
func (in *interp) printable(v Value) Value {
	if in.strict {
		in.need(v)
	}
	return v
}

func (in *interp) exec(n node, sc *scope, out *buffer) control {
	in.step()
	switch n := n.(type) {
	case outputText:
		out.mark(n.line)
		out.write(n.text)
	case outputExpr:
		in.line = n.line
		out.mark(n.line)
		if c, ok := n.e.(*concatExpr); ok { // its parts need not be one string first
			for _, p := range c.parts {
				s := toStr(in.printable(in.eval(p, sc)))
				in.alloc(len(s.s))
				out.write(s)
			}
			return ctlNone
		}
		out.write(toStr(in.printable(in.eval(n.e, sc))))
	case *ifNode:
		for i, t := range n.tests {
			if truthy(in.eval(t, sc)) {
				return in.execBlock(n.bodies[i], sc, out)
			}
		}
		if len(n.bodies) > len(n.tests) {
			return in.execBlock(n.bodies[len(n.tests)], sc, out)
		}
	case *forNode:
		in.line = n.line
		in.loop(n, in.eval(n.iter, sc), sc, out, 0)
	case *setNode:
		in.line = n.line
		in.assign(n.target, in.eval(n.value, sc), sc)
	case *setBlock:
		v := Value(in.capture(n.body, &scope{parent: sc}))
		if n.filters != nil {
			v = in.applyToBlock(n.filters, v, sc)
		}
		in.assign(n.target, v, sc)
	case *filterBlock:
		in.line = n.line
		s := in.capture(n.body, &scope{parent: sc})
		out.write(toStr(in.applyToBlock(n.filter, s, sc)))
	case *withNode:
		inner := &scope{parent: sc}
		for i, t := range n.names {
			in.assign(t, in.eval(n.values[i], sc), inner)
		}
		return in.execBlock(n.body, inner, out)
	case macroNode:
		sc.set(n.name, &macro{def: n.macroDef, scope: sc})
	case *callBlock:
		in.line = n.line
		caller := &macro{def: n.caller, scope: sc}
		fn := in.eval(n.call.fn, sc)
		a := in.evalArgs(&n.call.callArgs, sc)
		a.names = append(slices.Clip(a.names), "caller")
		a.kw = append(slices.Clip(a.kw), caller)
		out.write(toStr(in.call(fn, a)))
	case *scopeNode:
		return in.execBlock(n.body, &scope{parent: sc}, out)
	case loopCtl:
		if n.brk {
			return ctlBreak
		}
		return ctlContinue
	case failNode:
		fail(n.line, KindType, "%s", n.msg)
	}
	return ctlNone
}

func (in *interp) capture(body []node, sc *scope) *Str {
	buf := &buffer{in: in}
	in.execBlock(body, sc, buf)
	return buf.str()
}

// applyToBlock runs the filters of a block over its text.
func (in *interp) applyToBlock(f *filterExpr, block Value, sc *scope) Value {
	inner := &scope{parent: sc}
	inner.set("\x00block", block)
	return in.eval(f, inner)
}

func (in *interp) assign(target expr, v Value, sc *scope) {
	switch t := target.(type) {
	case *nameExpr:
		sc.set(t.name, v)
	case *tupleExpr:
		items := in.iterate(v)
		if len(items) != len(t.items) {
			fail(in.line, KindType, "cannot unpack %d values into %d names", len(items), len(t.items))
		}
		for i, it := range t.items {
			in.assign(it, items[i], sc)
		}
	case *attrExpr:
		ns, ok := in.eval(t.of, sc).(*Namespace)
		if !ok {
			fail(t.line, KindType, "cannot assign attribute on non-namespace object")
		}
		ns.d.put(text(t.name), v)
	}
}

// loopObj is the variable "loop".
type loopObj struct {
	items   []Value
	i       int
	depth   int
	changed []Value
	isSet   bool
	again   func(items Value) Value // of recursive loops
}

func (in *interp) loop(n *forNode, over Value, sc *scope, out *buffer, depth int) {
	items := in.iterate(over)
	if n.filter != nil {
		var kept []Value
		for _, it := range items {
			in.step()
			inner := &scope{parent: sc}
			in.assign(n.target, it, inner)
			if truthy(in.eval(n.filter, inner)) {
				kept = append(kept, it)
			}
		}
		items = kept
	}
	l := &loopObj{items: items, depth: depth}
	if n.recursive {
		l.again = func(v Value) Value {
			in.deeper(n.line)
			buf := &buffer{in: in}
			in.loop(n, v, sc, buf, depth+1)
			in.depth--
			return buf.str()
		}
	}
	name, simple := n.target.(*nameExpr)
	for i, it := range items {
		l.i = i
		inner := &scope{parent: sc}
		inner.set("loop", l)
		if simple {
			inner.set(name.name, it)
		} else {
			in.line = n.line
			in.assign(n.target, it, inner)
		}
		if in.execBlock(n.body, inner, out) == ctlBreak {
			break
		}
	}
	if len(items) == 0 && len(n.orElse) > 0 {
		in.execBlock(n.orElse, &scope{parent: sc}, out)
	}
}

func (l *loopObj) attr(in *interp, name string) (Value, bool) {
	n := len(l.items)
	switch name {
	case "index":
		return int64(l.i + 1), true
	case "index0":
		return int64(l.i), true
	case "revindex":
		return int64(n - l.i), true
	case "revindex0":
		return int64(n - l.i - 1), true
	case "first":
		return l.i == 0, true
	case "last":
		return l.i == n-1, true
	case "length":
		return int64(n), true
	case "depth":
		return int64(l.depth + 1), true
	case "depth0":
		return int64(l.depth), true
	case "previtem":
		if l.i == 0 {
			return &Undef{msg: "there is no previous item", kind: KindUndefined}, true
		}
		return l.items[l.i-1], true
	case "nextitem":
		if l.i == n-1 {
			return &Undef{msg: "there is no next item", kind: KindUndefined}, true
		}
		return l.items[l.i+1], true
	case "cycle":
		return &builtin{name: "cycle", self: "LoopContext", fn: func(in *interp, a args) Value {
			if len(a.pos) == 0 {
				fail(in.line, KindType, "no items for cycling given")
			}
			return a.pos[l.i%len(a.pos)]
		}}, true
	case "changed":
		return &builtin{name: "changed", self: "LoopContext", fn: func(in *interp, a args) Value {
			if l.isSet && equalItems(l.changed, a.pos, 0) {
				return false
			}
			l.changed, l.isSet = a.pos, true
			return true
		}}, true
	}
	return nil, false
}

// macro is a macro with the scope it was made in.
type macro struct {
	def   *macroDef
	scope *scope
}

func (in *interp) callMacro(m *macro, a args) Value {
	in.deeper(m.def.line)
	d := m.def
	sc := &scope{parent: m.scope}
	set := make([]bool, len(d.params))
	for i, v := range a.pos[:min(len(a.pos), len(d.params))] {
		sc.set(d.params[i], v)
		set[i] = true
	}
	kwargs := NewDict()
	var caller Value = &Undef{msg: "No caller defined", kind: KindUndefined}
	for i, name := range a.names {
		switch j := slices.Index(d.params, name); {
		case j >= 0 && set[j]:
			fail(in.line, KindType, "macro '%s' got multiple values for argument '%s'", d.name, name)
		case j >= 0:
			sc.set(name, a.kw[i])
			set[j] = true
		case name == "caller" && d.usesCall:
			caller = a.kw[i]
		default:
			kwargs.put(text(name), a.kw[i])
		}
	}
	if len(kwargs.keys) > 0 && !d.usesKw {
		fail(in.line, KindType, "macro '%s' takes no keyword argument '%s'", d.name, str(kwargs.keys[0]))
	}
	if len(a.pos) > len(d.params) && !d.usesVar {
		fail(in.line, KindType, "macro '%s' takes not more than %d argument(s)", d.name, len(d.params))
	}
	for i, p := range d.params {
		if set[i] {
			continue
		}
		if j := i - (len(d.params) - len(d.defaults)); j >= 0 {
			sc.set(p, in.eval(d.defaults[j], sc))
		} else {
			sc.set(p, &Undef{msg: "parameter '" + p + "' was not provided", kind: KindUndefined})
		}
	}
	if d.usesVar {
		sc.set("varargs", &Tuple{items: slices.Clone(a.pos[min(len(a.pos), len(d.params)):])})
	}
	if d.usesKw {
		sc.set("kwargs", kwargs)
	}
	if d.usesCall {
		sc.set("caller", caller)
	}
	out := in.capture(d.body, sc)
	in.depth--
	return out
}

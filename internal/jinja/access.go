package jinja

import (
	"slices"
	"strings"
)

// getAttr is x.name: an attribute, else an item.
func (in *interp) getAttr(of Value, name string) Value {
	in.need(of)
	if v, ok := in.attribute(of, name); ok {
		return v
	}
	if d, ok := of.(*Dict); ok {
		if v, ok := d.getStr(name); ok {
			return v
		}
	}
	return missing(of, name)
}

func objectName(v Value) string {
	if v == nil {
		return "'None'"
	}
	return "'" + typeName(v) + " object'"
}

// attribute returns what Python's getattr would, within the sandbox.
func (in *interp) attribute(of Value, name string) (Value, bool) {
	switch v := of.(type) {
	case *Namespace:
		if x, ok := v.d.getStr(name); ok {
			return x, true
		}
	case *loopObj:
		if x, ok := v.attr(in, name); ok {
			return x, true
		}
	case *macro:
		if name == "name" {
			return text(v.def.name), true
		}
	case *cyclerObj:
		if x, ok := v.attr(name); ok {
			return x, true
		}
	case *Tuple:
		if i := slices.Index(v.names, name); i >= 0 {
			return v.items[i], true
		}
	}
	if strings.HasPrefix(name, "__") && strings.HasSuffix(name, "__") || mutates(of, name) {
		return &Undef{msg: "access to attribute '" + name + "' of '" + typeName(of) + "' object is unsafe.", kind: KindSecurity}, true
	}
	if m := methodOf(of, name); m != nil {
		return &builtin{name: name, self: typeName(of), fn: func(in *interp, a args) Value { return m(in, of, a) }}, true
	}
	return nil, false
}

func (in *interp) index(e *indexExpr, sc *scope) Value {
	of := in.eval(e.of, sc)
	if s, ok := e.idx.(*sliceExpr); ok {
		return in.slice(e, of, s, sc)
	}
	idx := in.eval(e.idx, sc)
	in.line = e.line
	in.need(of)
	return in.getItem(of, idx)
}

// getItem is x[idx]: an item, else, for a string, an attribute.
func (in *interp) getItem(of, idx Value) Value {
	if d, ok := of.(*Dict); ok {
		if s, ok := idx.(*Str); ok {
			if v, ok := d.getStr(s.s); ok {
				return v
			}
		} else if h, ok := hashKey(idx); ok {
			if i := d.find(h); i >= 0 {
				return d.vals[i]
			}
		}
	}
	if i, ok := asInt(idx); ok {
		if s, ok := of.(*Str); ok {
			if v := charAt(s, i); v != nil {
				return v
			}
		} else if items, ok := sequence(of); ok {
			if i < 0 {
				i += int64(len(items))
			}
			if i >= 0 && i < int64(len(items)) {
				return items[i]
			}
		}
		return &Undef{msg: objectName(of) + " has no element " + repr(idx), kind: KindUndefined}
	}
	if s, ok := idx.(*Str); ok {
		if v, ok := in.attribute(of, s.s); ok {
			return v
		}
		return missing(of, s.s)
	}
	return &Undef{msg: objectName(of) + " has no element " + repr(idx), kind: KindUndefined}
}

func charAt(s *Str, i int64) *Str {
	if isASCII(s.s) {
		if i < 0 {
			i += int64(len(s.s))
		}
		if i < 0 || i >= int64(len(s.s)) {
			return nil
		}
		return s.slice(int(i), int(i)+1)
	}
	off := runeOffsets(s.s)
	n := int64(len(off) - 1)
	if i < 0 {
		i += n
	}
	if i < 0 || i >= n {
		return nil
	}
	return s.slice(off[i], off[i+1])
}

// sequence returns the items of what can be indexed by numbers.
func sequence(v Value) ([]Value, bool) {
	switch v := v.(type) {
	case *List:
		return v.items, true
	case *Tuple:
		return v.items, true
	case *pyRange:
		return v.items, true
	}
	return nil, false
}

func (in *interp) slice(e *indexExpr, of Value, s *sliceExpr, sc *scope) Value {
	var bounds [3]*int64
	for i, b := range []expr{s.lo, s.hi, s.step} {
		if b == nil {
			continue
		}
		v := in.eval(b, sc)
		if v == nil {
			continue
		}
		n, ok := asInt(v)
		if !ok {
			in.line = e.line
			in.need(v)
			fail(e.line, KindType, "slice indices must be integers or None")
		}
		bounds[i] = &n
	}
	in.line = e.line
	in.need(of)
	if str, ok := of.(*Str); ok {
		return in.sliceStr(str, bounds)
	}
	items, ok := sequence(of)
	if !ok {
		return &Undef{msg: objectName(of) + " has no element slice", kind: KindUndefined}
	}
	var out []Value
	for _, i := range in.sliceIndices(len(items), bounds) {
		out = append(out, items[i])
	}
	switch of := of.(type) {
	case *Tuple:
		return &Tuple{items: out}
	case *pyRange:
		return of.slice(out, bounds[2])
	}
	return &List{out}
}

func (in *interp) sliceStr(s *Str, bounds [3]*int64) Value {
	off := runeOffsets(s.s)
	idx := in.sliceIndices(len(off)-1, bounds)
	if len(idx) == 0 {
		return emptyStr
	}
	if bounds[2] == nil || *bounds[2] == 1 {
		return s.slice(off[idx[0]], off[idx[len(idx)-1]+1])
	}
	parts := make([]*Str, len(idx))
	for i, k := range idx {
		parts[i] = s.slice(off[k], off[k+1])
	}
	return concat(parts...)
}

// sliceIndices is Python's slice.indices, listed.
func (in *interp) sliceIndices(n int, b [3]*int64) []int {
	step := int64(1)
	if b[2] != nil {
		step = *b[2]
	}
	if step == 0 {
		fail(in.line, KindType, "slice step cannot be zero")
	}
	length := int64(n)
	lower, upper := int64(0), length
	if step < 0 {
		lower, upper = -1, length-1
	}
	at := func(p *int64, def int64) int64 {
		if p == nil {
			return def
		}
		v := *p
		if v < 0 {
			v += length
		}
		return min(max(v, lower), upper)
	}
	start, stop := at(b[0], lower), at(b[1], upper)
	if step < 0 {
		start, stop = at(b[0], upper), at(b[1], lower)
	}
	in.alloc(n)
	var out []int
	for i := start; step > 0 && i < stop || step < 0 && i > stop; i += step {
		out = append(out, int(i))
		if step > length || step < -length {
			break
		}
	}
	return out
}

// iterate returns the items of an iterable.
func (in *interp) iterate(v Value) []Value {
	var items []Value
	switch v := v.(type) {
	case *List:
		items = v.items
	case *Tuple:
		items = v.items
	case *view:
		items = v.items
	case *pyRange:
		items = v.items
	case *Dict:
		items = v.keys
	case *Gen:
		items, v.items = v.items, nil
	case *Str:
		in.alloc(len(v.s))
		off := runeOffsets(v.s)
		items = make([]Value, len(off)-1)
		for i := range items {
			items[i] = v.slice(off[i], off[i+1])
		}
	case *Undef:
		if v.kind == KindSecurity {
			in.undefined(v)
		}
		return nil
	default:
		fail(in.line, KindType, "'%s' object is not iterable", typeName(v))
	}
	in.steps += len(items)
	in.step()
	return items
}

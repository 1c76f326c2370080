package jinja

import (
	"math"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"
)

// seqFilterNamed returns the filters on sequences.
func seqFilterNamed(name string) filterFunc {
	switch name {
	case "batch":
		return filterBatch
	case "count", "length":
		return filterLength
	case "dictsort":
		return filterDictsort
	case "first":
		return func(in *interp, v Value, a args) Value {
			a.bind(in, name)
			if items := in.iterate(v); len(items) > 0 {
				return items[0]
			}
			return &Undef{msg: "No first item, sequence was empty.", kind: KindUndefined}
		}
	case "groupby":
		return filterGroupby
	case "items":
		return func(in *interp, v Value, _ args) Value {
			switch d := v.(type) {
			case *Undef:
				return &Gen{name: "generator object do_items"}
			case *Dict:
				return &Gen{name: "generator object do_items", items: dictItems(d)}
			}
			fail(in.line, KindType, "Can only get item pairs from a mapping.")
			return nil
		}
	case "join":
		return filterJoin
	case "last":
		return func(in *interp, v Value, a args) Value {
			a.bind(in, name)
			if g, ok := v.(*Gen); ok {
				fail(in.line, KindType, "'%s' object is not reversible", typeName(g))
			}
			if items := in.iterate(v); len(items) > 0 {
				return items[len(items)-1]
			}
			return &Undef{msg: "No last item, sequence was empty.", kind: KindUndefined}
		}
	case "list":
		return func(in *interp, v Value, a args) Value {
			a.bind(in, name)
			items := in.iterate(v)
			in.alloc(len(items))
			return &List{items}
		}
	case "map":
		return filterMap
	case "max", "min":
		return func(in *interp, v Value, a args) Value { return filterExtreme(in, v, a, name == "max") }
	case "reject", "rejectattr", "select", "selectattr":
		keep, byAttr := strings.HasPrefix(name, "select"), strings.HasSuffix(name, "attr")
		return func(in *interp, v Value, a args) Value { return filterSelect(in, v, a, keep, byAttr) }
	case "reverse":
		return filterReverse
	case "slice":
		return filterSlice
	case "sort":
		return filterSort
	case "sum":
		return filterSum
	case "unique":
		return filterUnique
	}
	return nil
}

func dictItems(d *Dict) []Value {
	out := make([]Value, len(d.keys))
	for i, k := range d.keys {
		out[i] = &Tuple{items: []Value{k, d.vals[i]}}
	}
	return out
}

func filterLength(in *interp, v Value, a args) Value {
	a.bind(in, "length")
	switch x := v.(type) {
	case *Str:
		return int64(utf8.RuneCountInString(x.s))
	case *List:
		return int64(len(x.items))
	case *Tuple:
		return int64(len(x.items))
	case *Dict:
		return int64(len(x.keys))
	case *view:
		return int64(len(x.items))
	case *pyRange:
		return int64(len(x.items))
	case bytesVal:
		return int64(len(x))
	case *loopObj:
		return int64(len(x.items))
	case *Undef:
		return int64(0)
	}
	fail(in.line, KindType, "object of type '%s' has no len()", typeName(v))
	return nil
}

// getter is jinja2's make_attrgetter: a dotted path of items or attributes.
func (in *interp) getter(attribute, def Value) func(Value) Value {
	if attribute == nil || !given(attribute) {
		return func(v Value) Value { return v }
	}
	var path []Value
	if s, ok := attribute.(*Str); ok {
		for _, part := range strings.Split(s.s, ".") {
			if n, err := strconv.ParseInt(part, 10, 64); err == nil && part[0] != '-' && part[0] != '+' {
				path = append(path, n)
			} else {
				path = append(path, text(part))
			}
		}
	} else {
		path = []Value{attribute}
	}
	return func(v Value) Value {
		for _, part := range path {
			in.step()
			in.need(v)
			v = in.getItem(v, part)
			if _, undef := v.(*Undef); undef && def != nil && given(def) {
				v = def
			}
		}
		return v
	}
}

// foldCase lowers strings, unless case counts.
func foldCase(caseSensitive bool, key func(Value) Value) func(Value) Value {
	if caseSensitive {
		return key
	}
	return func(v Value) Value {
		v = key(v)
		if s, ok := v.(*Str); ok {
			return text(strings.ToLower(s.s))
		}
		return v
	}
}

// sortBy sorts order stably by key, as Python's sort does.
func (in *interp) sortBy(order []int, key func(int) Value, reverse bool) {
	keys := map[int]Value{}
	for _, i := range order {
		keys[i] = key(i)
	}
	slices.SortStableFunc(order, func(i, j int) int {
		in.steps++
		c := in.order("<", keys[i], keys[j], 0)
		if c == 2 {
			c = 0
		}
		if reverse {
			return -c
		}
		return c
	})
}

func isTrue(v Value) bool { return given(v) && truthy(v) }

func (in *interp) sorted(items []Value, key func(Value) Value, reverse bool) []Value {
	order := make([]int, len(items))
	for i := range order {
		order[i] = i
	}
	in.alloc(len(items))
	in.sortBy(order, func(i int) Value { return key(items[i]) }, reverse)
	out := make([]Value, len(items))
	for n, i := range order {
		out[n] = items[i]
	}
	return out
}

func filterSort(in *interp, v Value, a args) Value {
	b := a.bind(in, "sort", "reverse", "case_sensitive", "attribute")
	keys := []func(Value) Value{}
	if s, ok := b[2].(*Str); ok && strings.Contains(s.s, ",") {
		for _, part := range strings.Split(s.s, ",") {
			keys = append(keys, foldCase(isTrue(b[1]), in.getter(text(strings.TrimSpace(part)), nil)))
		}
	} else {
		keys = append(keys, foldCase(isTrue(b[1]), in.getter(b[2], nil)))
	}
	return &List{in.sorted(in.iterate(v), func(v Value) Value {
		if len(keys) == 1 {
			return keys[0](v)
		}
		t := &Tuple{}
		for _, k := range keys {
			t.items = append(t.items, k(v))
		}
		return t
	}, isTrue(b[0]))}
}

func filterDictsort(in *interp, v Value, a args) Value {
	b := a.bind(in, "dictsort", "case_sensitive", "by", "reverse")
	pos := int64(0)
	if given(b[1]) {
		switch str(b[1]) {
		case "key":
		case "value":
			pos = 1
		default:
			fail(in.line, KindType, "You can only sort by either \"key\" or \"value\"")
		}
	}
	in.need(v)
	d, ok := v.(*Dict)
	if !ok {
		fail(in.line, KindType, "dictsort needs a mapping, not '%s'", typeName(v))
	}
	return &List{in.sorted(dictItems(d), foldCase(isTrue(b[0]), in.getter(pos, nil)), isTrue(b[2]))}
}

func filterGroupby(in *interp, v Value, a args) Value {
	b := a.bind(in, "groupby", "attribute", "default", "case_sensitive")
	get := in.getter(b[0], b[1])
	key := foldCase(isTrue(b[2]), get)
	out := &List{}
	var last Value
	var group *List
	for _, it := range in.sorted(in.iterate(v), key, false) {
		k := key(it)
		if group == nil || !equal(k, last) {
			group = &List{}
			out.items = append(out.items, &Tuple{items: []Value{get(it), group}, names: []string{"grouper", "list"}})
			last = k
		}
		group.items = append(group.items, it)
	}
	return out
}

func filterUnique(in *interp, v Value, a args) Value {
	b := a.bind(in, "unique", "case_sensitive", "attribute")
	key := foldCase(isTrue(b[0]), in.getter(b[1], nil))
	seen := map[any]bool{}
	g := &Gen{name: "generator object do_unique"}
	for _, it := range in.iterate(v) {
		k, ok := hashKey(key(it))
		if !ok {
			fail(in.line, KindType, "unhashable type: '%s'", typeName(key(it)))
		}
		if !seen[k] {
			seen[k] = true
			g.items = append(g.items, it)
		}
	}
	return g
}

func filterExtreme(in *interp, v Value, a args, greatest bool) Value {
	b := a.bind(in, "min", "case_sensitive", "attribute")
	key := foldCase(isTrue(b[0]), in.getter(b[1], nil))
	items := in.iterate(v)
	if len(items) == 0 {
		return &Undef{msg: "No aggregated item, sequence was empty.", kind: KindUndefined}
	}
	best := items[0]
	for _, it := range items[1:] {
		if c := in.order("<", key(it), key(best), 0); greatest && c == 1 || !greatest && c == -1 {
			best = it
		}
	}
	return best
}

func filterSum(in *interp, v Value, a args) Value {
	b := a.bind(in, "sum", "attribute", "start")
	get := in.getter(b[0], nil)
	total := Value(int64(0))
	if given(b[1]) {
		total = b[1]
	}
	for _, it := range in.iterate(v) {
		total = in.binary("+", total, get(it))
	}
	return total
}

func filterJoin(in *interp, v Value, a args) Value {
	b := a.bind(in, "join", "d", "attribute")
	sep := emptyStr
	if given(b[0]) {
		sep = toStr(b[0])
	}
	get := in.getter(b[1], nil)
	items := in.iterate(v)
	parts := make([]*Str, len(items))
	n := 0
	for i, it := range items {
		parts[i] = toStr(get(it))
		n += len(parts[i].s) + len(sep.s)
	}
	in.alloc(n)
	return joinStrs(parts, sep)
}

func filterReverse(in *interp, v Value, a args) Value {
	a.bind(in, "reverse")
	if s, ok := v.(*Str); ok {
		off := runeOffsets(s.s)
		parts := make([]*Str, 0, len(off))
		for i := len(off) - 2; i >= 0; i-- {
			parts = append(parts, s.slice(off[i], off[i+1]))
		}
		in.alloc(len(s.s))
		return concat(parts...)
	}
	items := slices.Clone(in.iterate(v))
	slices.Reverse(items)
	return &Gen{name: typeName(v) + "_reverseiterator object", items: items}
}

func filterBatch(in *interp, v Value, a args) Value {
	b := a.bind(in, "batch", "linecount", "fill_with")
	n, ok := asInt(b[0])
	if !ok || n <= 0 {
		fail(in.line, KindType, "batch() needs a positive number")
	}
	g := &Gen{name: "generator object do_batch"}
	for chunk := range slices.Chunk(in.iterate(v), int(n)) {
		l := slices.Clone(chunk)
		in.alloc(int(n))
		for len(l) < int(n) && given(b[1]) && b[1] != nil {
			l = append(l, b[1])
		}
		g.items = append(g.items, &List{l})
	}
	return g
}

func filterSlice(in *interp, v Value, a args) Value {
	b := a.bind(in, "slice", "slices", "fill_with")
	n, ok := asInt(b[0])
	if !ok || n <= 0 || n > math.MaxInt32 {
		fail(in.line, KindType, "slice() needs a positive number")
	}
	items := in.iterate(v)
	in.alloc(int(n) + len(items))
	per, extra := len(items)/int(n), len(items)%int(n)
	g, start := &Gen{name: "generator object sync_do_slice"}, 0
	for i := range int(n) {
		end := start + per
		if i < extra {
			end++
		}
		l := slices.Clone(items[start:end])
		if i >= extra && given(b[1]) && b[1] != nil {
			l = append(l, b[1])
		}
		g.items = append(g.items, &List{l})
		start = end
	}
	return g
}

func filterMap(in *interp, v Value, a args) Value {
	g := &Gen{name: "generator object sync_do_map"}
	var f func(Value) Value
	if len(a.pos) == 0 && slices.Contains(a.names, "attribute") {
		b := a.bind(in, "map", "attribute", "default")
		f = in.getter(b[0], b[1])
	} else {
		if len(a.pos) == 0 {
			fail(in.line, KindType, "map requires a filter argument")
		}
		fn := filterNamed(str(a.pos[0]))
		if fn == nil {
			fail(in.line, KindType, "No filter named '%s'.", str(a.pos[0]))
		}
		rest := args{a.pos[1:], a.names, a.kw}
		f = func(v Value) Value { return fn(in, v, rest) }
	}
	items := in.iterate(v)
	in.alloc(len(items))
	for _, it := range items {
		in.step()
		g.items = append(g.items, f(it))
	}
	return g
}

func filterSelect(in *interp, v Value, a args, keep, byAttr bool) Value {
	get := func(v Value) Value { return v }
	if byAttr {
		if len(a.pos) == 0 {
			fail(in.line, KindType, "Missing parameter for attribute name")
		}
		get = in.getter(a.pos[0], nil)
		a.pos = a.pos[1:]
	}
	test := func(v Value) bool { return truthy(v) }
	if len(a.pos) > 0 {
		fn := testNamed(str(a.pos[0]))
		if fn == nil {
			fail(in.line, KindType, "No test named '%s'.", str(a.pos[0]))
		}
		rest := args{a.pos[1:], a.names, a.kw}
		test = func(v Value) bool { return fn(in, v, rest) }
	}
	g := &Gen{name: "generator object select_or_reject"}
	for _, it := range in.iterate(v) {
		in.step()
		if test(get(it)) == keep {
			g.items = append(g.items, it)
		}
	}
	return g
}

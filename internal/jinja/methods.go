package jinja

import (
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"
)

type method func(in *interp, self Value, a args) Value

// mutates says whether Python's attribute of that name changes a list or dict:
// the sandbox refuses those.
func mutates(v Value, name string) bool {
	switch v.(type) {
	case *List:
		return slices.Contains([]string{"append", "clear", "extend", "insert", "pop", "remove", "reverse", "sort"}, name)
	case *Dict:
		return slices.Contains([]string{"clear", "pop", "popitem", "setdefault", "update"}, name)
	}
	return false
}

// methodOf returns the method of that name of v's type, or nil.
func methodOf(v Value, name string) method {
	switch v.(type) {
	case *Str:
		if m := strMethod(name); m != nil {
			return m
		}
		return strPredicate(name)
	case *Dict:
		return dictMethod(name)
	case *List, *Tuple:
		return listMethod(name)
	case int64, float64, bool:
		if name == "is_integer" {
			return func(_ *interp, v Value, _ args) Value {
				f, _ := asFloat(v)
				return f == float64(int64(f))
			}
		}
	}
	return nil
}

func dictMethod(name string) method {
	of := func(f func(d *Dict) Value) method {
		return func(in *interp, self Value, a args) Value {
			a.bind(in, name)
			return f(self.(*Dict))
		}
	}
	switch name {
	case "items":
		return of(func(d *Dict) Value { return &view{"dict_items", dictItems(d)} })
	case "keys":
		return of(func(d *Dict) Value { return &view{"dict_keys", d.keys} })
	case "values":
		return of(func(d *Dict) Value { return &view{"dict_values", d.vals} })
	case "copy":
		return of(func(d *Dict) Value { return d })
	case "get":
		return func(in *interp, self Value, a args) Value {
			b := a.bind(in, name, "key", "default")
			h, ok := hashKey(b[0])
			if !ok {
				fail(in.line, KindType, "unhashable type: '%s'", typeName(b[0]))
			}
			d := self.(*Dict)
			if i := d.find(h); i >= 0 {
				return d.vals[i]
			}
			if given(b[1]) {
				return b[1]
			}
			return nil
		}
	}
	return nil
}

func listMethod(name string) method {
	switch name {
	case "copy":
		return func(_ *interp, self Value, _ args) Value { return self }
	case "count", "index":
		return func(in *interp, self Value, a args) Value {
			items, _ := sequence(self)
			n := 0
			x := a.required(in, name)
			for i, it := range items {
				if !equal(it, x) {
					continue
				}
				if name == "index" {
					return int64(i)
				}
				n++
			}
			if name == "index" {
				fail(in.line, KindType, "%s is not in list", repr(x))
			}
			return int64(n)
		}
	}
	return nil
}

func strPredicate(name string) method {
	var f func(s string) bool
	switch name {
	case "isalnum":
		f = func(s string) bool {
			return allRunes(s, func(r rune) bool { return unicode.IsLetter(r) || unicode.IsNumber(r) })
		}
	case "isalpha":
		f = func(s string) bool { return allRunes(s, unicode.IsLetter) }
	case "isascii":
		f = isASCII
	case "isdecimal", "isdigit":
		f = func(s string) bool { return allRunes(s, unicode.IsDigit) }
	case "isnumeric":
		f = func(s string) bool { return allRunes(s, unicode.IsNumber) }
	case "isidentifier":
		f = func(s string) bool {
			return allRunes(s, func(r rune) bool { return r == '_' || unicode.IsLetter(r) || unicode.IsDigit(r) }) && !unicode.IsDigit([]rune(s)[0])
		}
	case "islower":
		f = func(s string) bool { return isLowerUpper(s, false) }
	case "isupper":
		f = func(s string) bool { return isLowerUpper(s, true) }
	case "isspace":
		f = func(s string) bool { return allRunes(s, isSpace) }
	case "istitle":
		f = func(s string) bool { return s != "" && title(s) == s && upper(s) != strings.ToLower(s) }
	case "isprintable":
		f = func(s string) bool { return s == "" || allRunes(s, unicode.IsPrint) }
	default:
		return nil
	}
	return func(in *interp, self Value, a args) Value {
		a.bind(in, name)
		return f(self.(*Str).s)
	}
}

// title is Python's str.title.
func title(s string) string {
	var b strings.Builder
	inWord := false
	for _, r := range s {
		if inWord {
			b.WriteRune(unicode.ToLower(r))
		} else {
			b.WriteRune(unicode.ToTitle(r))
		}
		inWord = unicode.IsLetter(r)
	}
	return b.String()
}

func swapCase(s string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsUpper(r) {
			return unicode.ToLower(r)
		}
		return unicode.ToUpper(r)
	}, s)
}

func strMethod(name string) method {
	changed := func(f func(string) string) method {
		return func(in *interp, self Value, a args) Value {
			a.bind(in, name)
			s := self.(*Str)
			return allOf(f(s.s), s)
		}
	}
	switch name {
	case "capitalize":
		return changed(capitalize)
	case "casefold", "lower":
		return changed(strings.ToLower)
	case "swapcase":
		return changed(swapCase)
	case "title":
		return changed(title)
	case "upper":
		return changed(upper)
	case "encode":
		return func(_ *interp, self Value, _ args) Value { return bytesVal(self.(*Str).s) }
	case "strip", "lstrip", "rstrip":
		return func(in *interp, self Value, a args) Value {
			return strip(in, self.(*Str), a.withDefault(in, name, 0, nil, "chars"), name != "rstrip", name != "lstrip")
		}
	case "center", "ljust", "rjust", "zfill":
		return padMethod(name)
	case "count", "find", "index", "rfind", "rindex":
		return findMethod(name)
	case "endswith", "startswith":
		return affixMethod(name)
	case "expandtabs":
		return func(in *interp, self Value, a args) Value { return expandTabs(in, self.(*Str), a) }
	case "format":
		return func(in *interp, self Value, a args) Value { return in.strFormat(self.(*Str), a) }
	case "join":
		return func(in *interp, self Value, a args) Value { return joinMethod(in, self.(*Str), a) }
	case "partition", "rpartition":
		return partitionMethod(name)
	case "removeprefix", "removesuffix":
		return func(in *interp, self Value, a args) Value {
			s, x := self.(*Str), in.needStr(a.required(in, name), name)
			switch {
			case name == "removeprefix" && strings.HasPrefix(s.s, x.s):
				return s.slice(len(x.s), len(s.s))
			case name == "removesuffix" && strings.HasSuffix(s.s, x.s):
				return s.slice(0, len(s.s)-len(x.s))
			}
			return s
		}
	case "replace":
		return func(in *interp, self Value, a args) Value {
			b := a.bind(in, name, "old", "new", "count")
			n := int64(-1)
			if given(b[2]) {
				n, _ = asInt(b[2])
			}
			return in.replaceStr(self.(*Str), in.needStr(b[0], name).s, in.needStr(b[1], name), int(n))
		}
	case "split", "rsplit":
		return splitMethod(name)
	case "splitlines":
		return func(in *interp, self Value, a args) Value {
			return strList(self.(*Str).splitLines(truthy(a.withDefault(in, name, 0, false, "keepends"))))
		}
	}
	return nil
}

func (in *interp) needStr(v Value, fn string) *Str {
	s, ok := v.(*Str)
	if !ok {
		in.need(v)
		fail(in.line, KindType, "%s() argument must be str, not %s", fn, typeName(v))
	}
	return s
}

func strList(parts []*Str) *List {
	l := &List{make([]Value, len(parts))}
	for i, p := range parts {
		l.items[i] = p
	}
	return l
}

func padMethod(name string) method {
	return func(in *interp, self Value, a args) Value {
		b := a.bind(in, name, "width", "fillchar")
		w, ok := asInt(b[0])
		if !ok {
			fail(in.line, KindType, "%s() needs a width", name)
		}
		if w > int64(in.lim.Output) {
			fail(in.line, KindLimit, "a string of more than %d bytes", in.lim.Output)
		}
		fill := " "
		if given(b[1]) {
			fill = in.needStr(b[1], name).s
		}
		s := self.(*Str)
		switch name {
		case "ljust":
			return pad(in, s, int(w), fill, '<')
		case "rjust":
			return pad(in, s, int(w), fill, '>')
		case "center":
			return pad(in, s, int(w), fill, '^')
		}
		sign := 0
		if s.s != "" && (s.s[0] == '-' || s.s[0] == '+') {
			sign = 1
		}
		return concat(s.slice(0, sign), pad(in, s.slice(sign, len(s.s)), int(w)-sign, "0", '>'))
	}
}

// window applies the start and end arguments of the find methods.
func (in *interp) window(s *Str, start, end Value) (string, int) {
	off := runeOffsets(s.s)
	n := int64(len(off) - 1)
	at := func(v Value, def int64) int64 {
		if !given(v) || v == nil {
			return def
		}
		i, _ := asInt(v)
		if i < 0 {
			i += n
		}
		return min(max(i, 0), n)
	}
	i, j := at(start, 0), at(end, n)
	if i > j {
		return "", -1
	}
	return s.s[off[i]:off[j]], int(i)
}

func findMethod(name string) method {
	return func(in *interp, self Value, a args) Value {
		b := a.bind(in, name, "sub", "start", "end")
		sub := in.needStr(b[0], name).s
		s, base := in.window(self.(*Str), b[1], b[2])
		if name == "count" {
			if base < 0 {
				return int64(0)
			}
			return int64(strings.Count(s, sub))
		}
		i := strings.Index(s, sub)
		if name[0] == 'r' {
			i = strings.LastIndex(s, sub)
		}
		if i < 0 || base < 0 {
			if strings.HasSuffix(name, "index") {
				fail(in.line, KindType, "substring not found")
			}
			return int64(-1)
		}
		return int64(base + utf8.RuneCountInString(s[:i]))
	}
}

func affixMethod(name string) method {
	return func(in *interp, self Value, a args) Value {
		b := a.bind(in, name, "affix", "start", "end")
		s, base := in.window(self.(*Str), b[1], b[2])
		affixes := []Value{b[0]}
		if t, ok := b[0].(*Tuple); ok {
			affixes = t.items
		}
		for _, x := range affixes {
			x := in.needStr(x, name).s
			if base >= 0 && (name == "startswith" && strings.HasPrefix(s, x) || name == "endswith" && strings.HasSuffix(s, x)) {
				return true
			}
		}
		return false
	}
}

func expandTabs(in *interp, s *Str, a args) Value {
	size, _ := asInt(a.withDefault(in, "expandtabs", 0, int64(8), "tabsize"))
	size = min(max(size, 0), 64)
	var b strings.Builder
	col := int64(0)
	for _, r := range s.s {
		switch r {
		case '\t':
			if size > 0 {
				n := size - col%size
				b.WriteString(strings.Repeat(" ", int(n)))
				col += n
			}
		case '\n', '\r':
			b.WriteRune(r)
			col = 0
		default:
			b.WriteRune(r)
			col++
		}
	}
	in.alloc(b.Len())
	return allOf(b.String(), s)
}

func joinMethod(in *interp, sep *Str, a args) Value {
	items := in.iterate(a.required(in, "join"))
	parts := make([]*Str, len(items))
	n := 0
	for i, it := range items {
		s, ok := it.(*Str)
		if !ok {
			fail(in.line, KindType, "sequence item %d: expected str instance, %s found", i, typeName(it))
		}
		parts[i] = s
		n += len(s.s) + len(sep.s)
	}
	in.alloc(n)
	return joinStrs(parts, sep)
}

func partitionMethod(name string) method {
	return func(in *interp, self Value, a args) Value {
		s, sep := self.(*Str), in.needStr(a.required(in, name), name).s
		if sep == "" {
			fail(in.line, KindType, "empty separator")
		}
		right := name[0] == 'r'
		i := strings.Index(s.s, sep)
		if right {
			i = strings.LastIndex(s.s, sep)
		}
		switch {
		case i >= 0:
			return &Tuple{items: []Value{s.slice(0, i), s.slice(i, i+len(sep)), s.slice(i+len(sep), len(s.s))}}
		case right:
			return &Tuple{items: []Value{emptyStr, emptyStr, s}}
		}
		return &Tuple{items: []Value{s, emptyStr, emptyStr}}
	}
}

func splitMethod(name string) method {
	return func(in *interp, self Value, a args) Value {
		b := a.bind(in, name, "sep", "maxsplit")
		limit := int64(-1)
		if given(b[1]) {
			limit, _ = asInt(b[1])
		}
		s, right := self.(*Str), name == "rsplit"
		in.alloc(len(s.s))
		if !given(b[0]) || b[0] == nil {
			return strList(s.fields(int(limit), right))
		}
		sep := in.needStr(b[0], name).s
		if sep == "" {
			fail(in.line, KindType, "empty separator")
		}
		return strList(s.split(sep, int(limit), right))
	}
}

package jinja

import (
	"math"
	"math/big"
	"net/url"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

type filterFunc func(in *interp, v Value, a args) Value

// filterNamed returns jinja2's filter of that name, or nil.
func filterNamed(name string) filterFunc {
	switch name {
	case "abs":
		return filterAbs
	case "attr":
		return filterAttr
	case "capitalize":
		return onStr(func(s *Str) *Str { return allOf(capitalize(s.s), s) })
	case "center":
		return func(in *interp, v Value, a args) Value {
			w, _ := asInt(a.withDefault(in, "center", 0, int64(80), "width"))
			return pad(in, toStr(v), int(w), " ", '^')
		}
	case "d", "default":
		return filterDefault
	case "e", "escape":
		return func(_ *interp, v Value, _ args) Value { return escapeHTML(toStr(v)) }
	case "forceescape":
		return func(_ *interp, v Value, _ args) Value { s := toStr(v); return escapeHTML(s.slicePlain()) }
	case "filesizeformat":
		return filterFilesize
	case "float":
		return filterFloat
	case "format":
		return func(in *interp, v Value, a args) Value {
			if len(a.kw) > 0 {
				d := NewDict()
				for i, n := range a.names {
					d.put(text(n), a.kw[i])
				}
				return in.percentFormat(toStr(v), d)
			}
			return in.percentFormat(toStr(v), &Tuple{items: a.pos})
		}
	case "indent":
		return filterIndent
	case "int":
		return filterInt
	case "lower":
		return onStr(func(s *Str) *Str { return allOf(strings.ToLower(s.s), s) })
	case "replace":
		return filterReplace
	case "round":
		return filterRound
	case "safe":
		return onStr(func(s *Str) *Str { return &Str{s: s.s, spans: s.spans, markup: true} })
	case "string":
		return onStr(func(s *Str) *Str { return s })
	case "striptags":
		return onStr(stripTags)
	case "title":
		return onStr(func(s *Str) *Str { return allOf(titleFilter(s.s), s) })
	case "tojson":
		return filterTojson
	case "trim":
		return func(in *interp, v Value, a args) Value {
			return strip(in, toStr(v), a.withDefault(in, "trim", 0, nil, "chars"), true, true)
		}
	case "truncate":
		return filterTruncate
	case "upper":
		return onStr(func(s *Str) *Str { return allOf(upper(s.s), s) })
	case "urlencode":
		return filterURLEncode
	case "wordcount":
		return func(_ *interp, v Value, _ args) Value {
			return int64(len(strings.FieldsFunc(str(v), func(r rune) bool {
				return r != '_' && !unicode.IsLetter(r) && !unicode.IsNumber(r)
			})))
		}
	}
	return seqFilterNamed(name)
}

func onStr(f func(*Str) *Str) filterFunc {
	return func(in *interp, v Value, a args) Value {
		a.bind(in, "filter")
		return f(toStr(v))
	}
}

// withDefault returns argument i of params, or def where it was not given.
func (a args) withDefault(in *interp, fn string, i int, def Value, params ...string) Value {
	if v := a.bind(in, fn, params...)[i]; given(v) {
		return v
	}
	return def
}

func (s *Str) slicePlain() *Str { return &Str{s: s.s, spans: s.spans} }

// upper is Python's str.upper: some characters become two.
func upper(s string) string {
	return strings.ReplaceAll(strings.ToUpper(s), "ß", "SS")
}

func capitalize(s string) string {
	_, n := utf8.DecodeRuneInString(s)
	return upper(s[:n]) + strings.ToLower(s[n:])
}

func titleFilter(s string) string {
	var b strings.Builder
	start := true
	for _, r := range s {
		sep := isSpace(r) || strings.ContainsRune("-({[<", r)
		switch {
		case sep:
			b.WriteRune(r)
		case start:
			b.WriteString(upper(string(r)))
		default:
			b.WriteRune(unicode.ToLower(r))
		}
		start = sep
	}
	return b.String()
}

func stripTags(s *Str) *Str {
	out, rest := "", s.s
	for {
		i := strings.IndexByte(rest, '<')
		if i < 0 {
			break
		}
		j := strings.IndexByte(rest[i:], '>')
		if j < 0 {
			break
		}
		out, rest = out+rest[:i], rest[i+j+1:]
	}
	return allOf(strings.Join(strings.Fields(out+rest), " "), s)
}

func filterAbs(in *interp, v Value, _ args) Value {
	in.need(v)
	if f, ok := v.(float64); ok {
		return math.Abs(f)
	}
	n, ok := asBig(v)
	if !ok {
		fail(in.line, KindType, "bad operand type for abs(): '%s'", typeName(v))
	}
	return normInt(new(big.Int).Abs(n))
}

func filterAttr(in *interp, v Value, a args) Value {
	name := str(a.withDefault(in, "attr", 0, emptyStr, "name"))
	in.need(v)
	if x, ok := in.attribute(v, name); ok {
		return x
	}
	return missing(v, name)
}

func filterDefault(in *interp, v Value, a args) Value {
	b := a.bind(in, "default", "default_value", "boolean")
	_, undef := v.(*Undef)
	if undef || given(b[1]) && truthy(b[1]) && !truthy(v) {
		if given(b[0]) {
			return b[0]
		}
		return emptyStr
	}
	return v
}

func filterFilesize(in *interp, v Value, a args) Value {
	binary := truthy(a.withDefault(in, "filesizeformat", 0, false, "binary"))
	f, ok := toFloat(in, v)
	if !ok {
		fail(in.line, KindType, "filesizeformat needs a number")
	}
	base, units := 1000.0, []string{"kB", "MB", "GB", "TB", "PB", "EB", "ZB", "YB"}
	if binary {
		base, units = 1024.0, []string{"KiB", "MiB", "GiB", "TiB", "PiB", "EiB", "ZiB", "YiB"}
	}
	if f == 1 {
		return text("1 Byte")
	}
	if f < base {
		return text(strconv.FormatInt(int64(f), 10) + " Bytes")
	}
	unit := base
	for i, u := range units {
		unit *= base
		if f < unit || i == len(units)-1 {
			return text(strconv.FormatFloat(base*f/unit, 'f', 1, 64) + " " + u)
		}
	}
	return nil
}

// toFloat is Python's float(v); false where it raises ValueError or TypeError.
func toFloat(in *interp, v Value) (float64, bool) {
	in.need(v)
	if s, ok := v.(*Str); ok {
		t := strings.TrimFunc(s.s, isSpace)
		if strings.ContainsAny(t, "xXpP") {
			return 0, false
		}
		f, err := strconv.ParseFloat(t, 64)
		return f, err == nil || math.IsInf(f, 0) && t != ""
	}
	return asFloat(v)
}

func filterFloat(in *interp, v Value, a args) Value {
	def := a.withDefault(in, "float", 0, 0.0, "default")
	if f, ok := toFloat(in, v); ok {
		return f
	}
	return def
}

func filterInt(in *interp, v Value, a args) Value {
	b := a.bind(in, "int", "default", "base")
	def := Value(int64(0))
	if given(b[0]) {
		def = b[0]
	}
	base := int64(10)
	if given(b[1]) {
		base, _ = asInt(b[1])
	}
	if s, ok := v.(*Str); ok {
		if n, ok := parsePyInt(s.s, int(base)); ok {
			return n
		}
	} else if n, ok := asBig(v); ok {
		return normInt(n)
	}
	f, ok := toFloat(in, v)
	if !ok || math.IsNaN(f) || math.IsInf(f, 0) {
		return def
	}
	n, _ := big.NewFloat(f).Int(nil)
	return normInt(n)
}

// parsePyInt is Python's int(s, base).
func parsePyInt(s string, base int) (Value, bool) {
	t := strings.TrimFunc(s, isSpace)
	neg := strings.HasPrefix(t, "-")
	t = strings.TrimPrefix(strings.TrimPrefix(t, "+"), "-")
	if len(t) > 2 && t[0] == '0' {
		switch {
		case base == 16 && t[1]|0x20 == 'x', base == 8 && t[1]|0x20 == 'o', base == 2 && t[1]|0x20 == 'b':
			t = t[2:]
		}
	}
	t = strings.ReplaceAll(t, "_", "")
	if base < 2 || base > 36 || t == "" || len(t) > 4300 || t[0] == '-' || t[0] == '+' {
		return nil, false
	}
	n, ok := new(big.Int).SetString(t, base)
	if !ok {
		return nil, false
	}
	if neg {
		n.Neg(n)
	}
	return normInt(n), true
}

func filterRound(in *interp, v Value, a args) Value {
	b := a.bind(in, "round", "precision", "method")
	in.need(v)
	precision := int64(0)
	if given(b[0]) {
		precision, _ = asInt(b[0])
	}
	method := "common"
	if given(b[1]) {
		method = str(b[1])
	}
	f, ok := asFloat(v)
	if !ok {
		fail(in.line, KindType, "type %s doesn't define __round__ method", typeName(v))
	}
	if precision > 300 || precision < -300 {
		return v
	}
	scale := math.Pow(10, float64(precision))
	switch method {
	case "ceil":
		return math.Ceil(f*scale) / scale
	case "floor":
		return math.Floor(f*scale) / scale
	case "common":
		if _, isFloat := v.(float64); !isFloat && precision >= 0 {
			return v
		}
		if precision < 0 {
			r := math.RoundToEven(f*scale) / scale
			if _, isFloat := v.(float64); !isFloat {
				return int64(r)
			}
			return r
		}
		r, _ := strconv.ParseFloat(strconv.FormatFloat(f, 'f', int(precision), 64), 64)
		return r
	}
	fail(in.line, KindType, "method must be common, ceil or floor")
	return nil
}

func filterReplace(in *interp, v Value, a args) Value {
	b := a.bind(in, "replace", "old", "new", "count")
	if !given(b[0]) || !given(b[1]) {
		fail(in.line, KindType, "replace() needs old and new")
	}
	n := int64(-1)
	if given(b[2]) && b[2] != nil {
		n, _ = asInt(b[2])
	}
	return in.replaceStr(toStr(v), str(b[0]), toStr(b[1]), int(n))
}

func (in *interp) replaceStr(s *Str, old string, by *Str, n int) *Str {
	in.alloc(len(s.s) + (strings.Count(s.s, old)+1)*len(by.s))
	return s.replace(old, by, n)
}

// splitLines is Python's str.splitlines.
func (s *Str) splitLines(keep bool) []*Str {
	var out []*Str
	start := 0
	for i := 0; i < len(s.s); {
		r, n := utf8.DecodeRuneInString(s.s[i:])
		end := i
		i += n
		switch r {
		case '\r':
			if i < len(s.s) && s.s[i] == '\n' {
				i++
			}
		case '\n', '\v', '\f', 0x1c, 0x1d, 0x1e, 0x85, 0x2028, 0x2029:
		default:
			continue
		}
		if keep {
			end = i
		}
		out = append(out, s.slice(start, end))
		start = i
	}
	if start < len(s.s) {
		out = append(out, s.slice(start, len(s.s)))
	}
	return out
}

func filterIndent(in *interp, v Value, a args) Value {
	b := a.bind(in, "indent", "width", "first", "blank")
	by := "    "
	if s, ok := b[0].(*Str); ok {
		by = s.s
	} else if given(b[0]) {
		n, _ := asInt(b[0])
		by = strings.Repeat(" ", int(min(max(n, 0), 1000)))
	}
	first, blank := given(b[1]) && truthy(b[1]), given(b[2]) && truthy(b[2])
	lines := concat(toStr(v), text("\n")).splitLines(false)
	var parts []*Str
	for i, l := range lines {
		if i > 0 {
			parts = append(parts, text("\n"))
		}
		if i == 0 && first || i > 0 && (blank || l.s != "") {
			parts = append(parts, text(by))
			in.alloc(len(by))
		}
		parts = append(parts, l)
	}
	in.alloc(len(toStr(v).s))
	return concat(parts...)
}

func filterTruncate(in *interp, v Value, a args) Value {
	b := a.bind(in, "truncate", "length", "killwords", "end", "leeway")
	num := func(v Value, def int64) int {
		if n, ok := asInt(v); ok {
			def = n
		}
		return int(max(def, 0))
	}
	s, length, leeway, end := toStr(v), num(b[0], 255), num(b[3], 5), text("...")
	if given(b[2]) {
		end = toStr(b[2])
	}
	off := runeOffsets(s.s)
	if len(off)-1 <= length+leeway {
		return s
	}
	cut := length - utf8.RuneCountInString(end.s)
	if cut < 0 {
		fail(in.line, KindType, "expected length >= %d, got %d", utf8.RuneCountInString(end.s), length)
	}
	head := s.slice(0, off[cut])
	if !(given(b[1]) && truthy(b[1])) {
		if i := strings.LastIndexByte(head.s, ' '); i >= 0 {
			head = head.slice(0, i)
		}
	}
	return concat(head, end)
}

func filterURLEncode(in *interp, v Value, _ args) Value {
	quote := func(s string, slash bool) string {
		q := strings.ReplaceAll(url.QueryEscape(s), "+", "%20")
		if slash {
			q = strings.ReplaceAll(q, "%2F", "/")
		}
		return q
	}
	var pairs []Value
	switch x := v.(type) {
	case *Str:
		return allOf(quote(x.s, true), x)
	case *Dict:
		pairs = dictItems(x)
	case *List, *Tuple, *Gen:
		pairs = in.iterate(v)
	default:
		return text(quote(str(v), true))
	}
	out := make([]string, len(pairs))
	for i, p := range pairs {
		kv := in.iterate(p)
		if len(kv) != 2 {
			fail(in.line, KindType, "urlencode needs pairs")
		}
		out[i] = strings.ReplaceAll(quote(str(kv[0]), false), "%20", "+") + "=" + strings.ReplaceAll(quote(str(kv[1]), false), "%20", "+")
	}
	return allOfValue(strings.Join(out, "&"), &List{pairs})
}

// strip is str.strip and its halves; chars nil means white space.
func strip(in *interp, s *Str, chars Value, left, right bool) *Str {
	if chars == nil {
		return s.trimFunc(left, right, isSpace)
	}
	set, ok := chars.(*Str)
	if !ok {
		fail(in.line, KindType, "strip arg must be None or str")
	}
	return s.trimFunc(left, right, func(r rune) bool { return strings.ContainsRune(set.s, r) })
}

// pad fills s to width characters: '<' left, '>' right, '^' centre.
func pad(in *interp, s *Str, width int, fill string, align byte) *Str {
	n := width - utf8.RuneCountInString(s.s)
	if n <= 0 {
		return s
	}
	in.alloc(n)
	left := 0
	switch align {
	case '>':
		left = n
	case '^':
		left = n/2 + (n & width & 1)
	case 'c': // of format specifications
		left = n / 2
	}
	return concat(text(strings.Repeat(fill, left)), s, text(strings.Repeat(fill, n-left)))
}

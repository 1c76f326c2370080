package jinja

import (
	"math/big"
	"strconv"
	"strings"
	"unicode/utf8"
)

// spec is a format specification: [[fill]align][sign][#][0][width][,][.precision][type].
type spec struct {
	fill      string
	align     byte // '<', '>', '^', '=' or 0
	sign      byte
	alt       bool
	group     byte // ',' or '_'
	width     int
	precision int // -1: none
	typ       byte
}

func parseSpec(in *interp, s string) spec {
	sp := spec{fill: " ", precision: -1}
	if _, n := utf8.DecodeRuneInString(s); n > 0 && len(s) > n && strings.IndexByte("<>^=", s[n]) >= 0 {
		sp.fill, sp.align, s = s[:n], s[n], s[n+1:]
	} else if s != "" && strings.IndexByte("<>^=", s[0]) >= 0 {
		sp.align, s = s[0], s[1:]
	}
	take := func(set string) byte {
		if s != "" && strings.IndexByte(set, s[0]) >= 0 {
			c := s[0]
			s = s[1:]
			return c
		}
		return 0
	}
	sp.sign = take("+- ")
	sp.alt = take("#") != 0
	if take("0") != 0 && sp.align == 0 {
		sp.fill, sp.align = "0", '='
	}
	number := func() int {
		i := 0
		for i < len(s) && s[i] >= '0' && s[i] <= '9' {
			i++
		}
		n, err := strconv.Atoi(s[:i])
		if i > 0 && (err != nil || n > in.lim.Output) {
			fail(in.line, KindType, "Too many decimal digits in format string")
		}
		s = s[i:]
		return n
	}
	sp.width = number()
	sp.group = take(",_")
	if take(".") != 0 {
		sp.precision = min(number(), 400)
	}
	sp.typ = take("bcdeEfFgGnosxX%")
	if s != "" {
		fail(in.line, KindType, "Invalid format specifier")
	}
	return sp
}

// formatValue is Python's format(v, spec).
func (in *interp) formatValue(v Value, s string) *Str {
	if s == "" {
		return toStr(v)
	}
	in.need(v)
	sp := parseSpec(in, s)
	switch {
	case isNumber(v):
		return text(in.formatNumber(v, sp))
	case sp.typ != 0 && sp.typ != 's':
		fail(in.line, KindType, "Unknown format code '%c' for object of type '%s'", sp.typ, typeName(v))
	}
	t, ok := v.(*Str)
	if !ok {
		fail(in.line, KindType, "unsupported format string passed to %s.__format__", typeName(v))
	}
	if off := runeOffsets(t.s); sp.precision >= 0 && sp.precision < len(off)-1 {
		t = t.slice(0, off[sp.precision])
	}
	align := sp.align
	switch align {
	case 0, '=':
		align = '<'
	case '^':
		align = 'c'
	}
	return pad(in, t, sp.width, sp.fill, align)
}

func (in *interp) formatNumber(v Value, sp spec) string {
	body, neg := in.numberBody(v, sp)
	sign := ""
	switch {
	case neg:
		sign = "-"
	case sp.sign == '+' || sp.sign == ' ':
		sign = string(sp.sign)
	}
	if sp.group != 0 {
		body = groupDigits(body, sp.group)
	}
	switch sp.align {
	case '=':
		return sign + pad(in, text(body), sp.width-len(sign), sp.fill, '>').s
	case 0:
		return pad(in, text(sign+body), sp.width, sp.fill, '>').s
	case '^':
		return pad(in, text(sign+body), sp.width, sp.fill, 'c').s
	}
	return pad(in, text(sign+body), sp.width, sp.fill, sp.align).s
}

// numberBody returns the digits of |v| and whether v is negative.
func (in *interp) numberBody(v Value, sp spec) (string, bool) {
	f, isFloat := v.(float64)
	if !isFloat && strings.IndexByte("\x00bcdnoxX", sp.typ) >= 0 {
		n, _ := asBig(v)
		neg := n.Sign() < 0
		n = new(big.Int).Abs(n)
		base, prefix := 10, ""
		switch sp.typ {
		case 'b':
			base, prefix = 2, "0b"
		case 'o':
			base, prefix = 8, "0o"
		case 'x', 'X':
			base, prefix = 16, "0"+string(sp.typ)
		case 'c':
			if !n.IsInt64() || n.Int64() > utf8.MaxRune {
				fail(in.line, KindType, "%%c arg not in range(0x110000)")
			}
			return string(rune(n.Int64())), false
		}
		s := n.Text(base)
		if sp.typ == 'X' {
			s = strings.ToUpper(s)
		}
		if sp.alt {
			s = prefix + s
		}
		return s, neg
	}
	if !isFloat {
		f, _ = asFloat(v)
	}
	neg := f < 0 || f == 0 && 1/f < 0
	if neg {
		f = -f
	}
	prec := sp.precision
	if prec < 0 {
		prec = 6
	}
	switch sp.typ {
	case 0:
		if sp.precision < 0 {
			return floatRepr(f), neg
		}
		return formatG(f, max(prec, 1)), neg
	case 'f', 'F':
		return strconv.FormatFloat(f, 'f', prec, 64), neg
	case 'e', 'E':
		return strconv.FormatFloat(f, sp.typ, prec, 64), neg
	case 'g', 'G', 'n':
		s := formatG(f, max(prec, 1))
		if sp.typ == 'G' {
			s = strings.ToUpper(s)
		}
		return s, neg
	case '%':
		return strconv.FormatFloat(f*100, 'f', prec, 64) + "%", neg
	}
	fail(in.line, KindType, "Unknown format code '%c' for object of type '%s'", sp.typ, typeName(v))
	return "", false
}

// formatG is C's %g, which Go's differs from in when it takes an exponent.
func formatG(f float64, prec int) string {
	e := strconv.FormatFloat(f, 'e', prec-1, 64)
	i := strings.IndexByte(e, 'e')
	if i < 0 {
		return e
	}
	exp, _ := strconv.Atoi(e[i+1:])
	trim := func(s string) string {
		if strings.Contains(s, ".") {
			return strings.TrimRight(strings.TrimRight(s, "0"), ".")
		}
		return s
	}
	if exp < -4 || exp >= prec {
		return trim(e[:i]) + e[i:]
	}
	return trim(strconv.FormatFloat(f, 'f', prec-1-exp, 64))
}

func groupDigits(s string, sep byte) string {
	end := 0
	for end < len(s) && s[end] >= '0' && s[end] <= '9' {
		end++
	}
	var b strings.Builder
	for i := range end {
		if i > 0 && (end-i)%3 == 0 {
			b.WriteByte(sep)
		}
		b.WriteByte(s[i])
	}
	return b.String() + s[end:]
}

// percentFormat is str % v.
func (in *interp) percentFormat(format *Str, v Value) Value {
	values, single := []Value{v}, true
	if t, ok := v.(*Tuple); ok {
		values, single = t.items, false
	}
	_, isDict := v.(*Dict)
	used := 0
	next := func() Value {
		if used >= len(values) {
			fail(in.line, KindType, "not enough arguments for format string")
		}
		used++
		return values[used-1]
	}
	var parts []*Str
	s := format.s
	for i := 0; i < len(s); {
		j := strings.IndexByte(s[i:], '%')
		if j < 0 {
			parts = append(parts, format.slice(i, len(s)))
			break
		}
		parts = append(parts, format.slice(i, i+j))
		i += j + 1
		end := i
		var arg Value = absent{}
		if end < len(s) && s[end] == '(' {
			k := strings.IndexByte(s[end:], ')')
			if k < 0 || !isDict {
				fail(in.line, KindType, "format requires a mapping")
			}
			arg = in.getItem(v, text(s[end+1:end+k]))
			if _, undef := arg.(*Undef); undef {
				fail(in.line, KindType, "KeyError: '%s'", s[end+1:end+k])
			}
			used = len(values)
			end += k + 1
		}
		start := end
		for end < len(s) && strings.IndexByte("#0- +", s[end]) >= 0 {
			end++
		}
		flags := s[start:end]
		start = end
		for end < len(s) && (s[end] >= '0' && s[end] <= '9' || s[end] == '.') {
			end++
		}
		size := s[start:end]
		if end >= len(s) {
			fail(in.line, KindType, "incomplete format")
		}
		if s[end] == '%' {
			parts = append(parts, text("%"))
		} else {
			if !given(arg) {
				arg = next()
			}
			parts = append(parts, in.percentField(arg, flags, size, s[end]))
		}
		i = end + 1
	}
	if used < len(values) && !(single && isDict) {
		fail(in.line, KindType, "not all arguments converted during string formatting")
	}
	return concat(parts...)
}

func (in *interp) percentField(v Value, flags, size string, typ byte) *Str {
	in.need2(v, typ)
	align := ">"
	if strings.Contains(flags, "-") {
		align = "<"
	}
	switch typ {
	case 's', 'r', 'a':
		t := toStr(v)
		if typ != 's' {
			t = allOfValue(repr(v), v)
		}
		if size == "" {
			return t
		}
		return in.formatValue(t, align+size)
	case 'd', 'i', 'u', 'x', 'X', 'o', 'e', 'E', 'f', 'F', 'g', 'G', 'c':
		if s, ok := v.(*Str); ok && typ == 'c' {
			return s
		}
		if !isNumber(v) {
			fail(in.line, KindType, "%%%c format: a real number is required, not %s", typ, typeName(v))
		}
		if strings.IndexByte("diu", typ) >= 0 {
			typ, v = 'd', filterInt(in, v, args{})
		}
		sp := ""
		for _, c := range []string{"+", " ", "#"} {
			if strings.Contains(flags, c) {
				sp += c
			}
		}
		if align == ">" && strings.Contains(flags, "0") {
			return in.formatValue(v, sp+"0"+size+string(typ))
		}
		return in.formatValue(v, align+sp+size+string(typ))
	}
	fail(in.line, KindType, "unsupported format character '%c'", typ)
	return nil
}

// need2 fails on undefined values but for %s, which prints them as nothing.
func (in *interp) need2(v Value, typ byte) {
	if typ != 's' {
		in.need(v)
	}
}

// strFormat is str.format, with the sandbox's rules on attributes.
func (in *interp) strFormat(format *Str, a args) Value {
	auto := 0
	return in.formatFields(format, a, &auto, 0)
}

func (in *interp) formatFields(format *Str, a args, auto *int, depth int) *Str {
	if depth > 2 {
		fail(in.line, KindType, "Max string recursion exceeded")
	}
	var parts []*Str
	s := format.s
	for i := 0; i < len(s); {
		j := strings.IndexAny(s[i:], "{}")
		if j < 0 {
			parts = append(parts, format.slice(i, len(s)))
			break
		}
		if i+j+1 < len(s) && s[i+j+1] == s[i+j] {
			parts = append(parts, format.slice(i, i+j+1))
			i += j + 2
			continue
		}
		parts = append(parts, format.slice(i, i+j))
		i += j
		if s[i] == '}' {
			fail(in.line, KindType, "Single '}' encountered in format string")
		}
		end, open := i+1, 1
		for ; end < len(s); end++ {
			if s[end] == '{' {
				open++
			} else if s[end] == '}' {
				if open--; open == 0 {
					break
				}
			}
		}
		if end >= len(s) {
			fail(in.line, KindType, "expected '}' before end of string")
		}
		parts = append(parts, in.formatField(s[i+1:end], a, auto, depth))
		i = end + 1
	}
	n := 0
	for _, p := range parts {
		n += len(p.s)
	}
	in.alloc(n)
	return concat(parts...)
}

func (in *interp) formatField(field string, a args, auto *int, depth int) *Str {
	name, sp, _ := strings.Cut(field, ":")
	if strings.Contains(name, "[") { // a key may hold a colon
		if k := strings.IndexByte(field, ']'); k >= 0 {
			if c := strings.IndexByte(field[k:], ':'); c >= 0 {
				name, sp = field[:k+c], field[k+c+1:]
			} else {
				name, sp = field, ""
			}
		}
	}
	conv := ""
	if i := strings.LastIndexByte(name, '!'); i >= 0 {
		name, conv = name[:i], name[i+1:]
	}
	v := in.formatArg(name, a, auto)
	switch conv {
	case "":
	case "s":
		v = toStr(v)
	case "r", "a":
		v = allOfValue(repr(v), v)
	default:
		fail(in.line, KindType, "Unknown conversion specifier %s", conv)
	}
	if strings.Contains(sp, "{") {
		sp = in.formatFields(text(sp), a, auto, depth+1).s
	}
	return in.formatValue(v, sp)
}

// formatArg finds what a field such as "0.name[key]" names.
func (in *interp) formatArg(name string, a args, auto *int) Value {
	i := strings.IndexAny(name, ".[")
	if i < 0 {
		i = len(name)
	}
	first, rest := name[:i], name[i:]
	var v Value = absent{}
	n, err := strconv.Atoi(first)
	switch {
	case first == "" && *auto >= 0:
		n, err = *auto, nil
		first = strconv.Itoa(n)
		*auto++
	case first == "" || err == nil && *auto > 0:
		fail(in.line, KindType, "cannot switch between manual field specification and automatic field numbering")
	case err == nil:
		*auto = -1
	}
	if err == nil {
		if n < 0 || n >= len(a.pos) {
			fail(in.line, KindType, "Replacement index %s out of range for positional args tuple", first)
		}
		v = a.pos[n]
	} else {
		for k, kw := range a.names {
			if kw == first {
				v = a.kw[k]
			}
		}
		if !given(v) {
			fail(in.line, KindType, "KeyError: '%s'", first)
		}
	}
	for rest != "" {
		in.need(v)
		if rest[0] == '.' {
			end := strings.IndexAny(rest[1:], ".[")
			if end < 0 {
				end = len(rest) - 1
			}
			attr := rest[1 : end+1]
			rest = rest[end+1:]
			v = in.getAttr(v, attr)
		} else {
			end := strings.IndexByte(rest, ']')
			if end < 0 {
				fail(in.line, KindType, "Missing ']' in format string")
			}
			key := Value(text(rest[1:end]))
			if n, err := strconv.ParseInt(rest[1:end], 10, 64); err == nil {
				key = n
			}
			rest = rest[end+1:]
			v = in.getItem(v, key)
		}
	}
	return v
}

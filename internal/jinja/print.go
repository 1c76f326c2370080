package jinja

import (
	"math"
	"math/big"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// floatRepr is Python's repr(float).
func floatRepr(f float64) string {
	switch {
	case math.IsInf(f, 1):
		return "inf"
	case math.IsInf(f, -1):
		return "-inf"
	case math.IsNaN(f):
		return "nan"
	}
	s := strconv.FormatFloat(f, 'e', -1, 64)
	exp, _ := strconv.Atoi(s[strings.IndexByte(s, 'e')+1:])
	if exp >= -4 && exp < 16 {
		s = strconv.FormatFloat(f, 'f', -1, 64)
		if !strings.Contains(s, ".") {
			s += ".0"
		}
	}
	return s
}

// printer writes values as Python's str and repr do.
type printer struct {
	b   strings.Builder
	max int
}

// str is Python's str(v).
func str(v Value) string {
	switch v := v.(type) {
	case *Str:
		return v.s
	case *Undef:
		return ""
	}
	return repr(v)
}

func repr(v Value) string {
	p := printer{max: 64 << 20}
	p.repr(v, 0)
	return p.b.String()
}

func (p *printer) repr(v Value, depth int) {
	if depth > maxValueDepth || p.b.Len() > p.max {
		fail(0, KindLimit, "the value is too large or too deeply nested to print")
	}
	switch v := v.(type) {
	case nil:
		p.b.WriteString("None")
	case bool:
		if v {
			p.b.WriteString("True")
		} else {
			p.b.WriteString("False")
		}
	case int64:
		p.b.WriteString(strconv.FormatInt(v, 10))
	case *big.Int:
		p.b.WriteString(v.String())
	case float64:
		p.b.WriteString(floatRepr(v))
	case *Str:
		if v.markup {
			p.b.WriteString("Markup(" + strRepr(v.s) + ")")
		} else {
			p.b.WriteString(strRepr(v.s))
		}
	case *List:
		p.items("[", v.items, "]", depth)
	case *Tuple:
		if len(v.items) == 1 {
			p.items("(", v.items, ",)", depth)
		} else {
			p.items("(", v.items, ")", depth)
		}
	case *Dict:
		p.dict(v, depth)
	case *Namespace:
		p.b.WriteString("<Namespace ")
		p.dict(v.d, depth)
		p.b.WriteString(">")
	case *view:
		p.items(v.kind+"([", v.items, "])", depth)
	case *pyRange:
		p.b.WriteString("range(" + strconv.FormatInt(v.lo, 10) + ", " + strconv.FormatInt(v.hi, 10))
		if v.step != 1 {
			p.b.WriteString(", " + strconv.FormatInt(v.step, 10))
		}
		p.b.WriteString(")")
	case *Undef:
		p.b.WriteString("Undefined")
	case bytesVal:
		p.b.WriteString("b" + bytesRepr(string(v)))
	default:
		p.b.WriteString(objectRepr(v))
	}
}

// objectRepr prints what Python prints with an address; there is none here.
func objectRepr(v Value) string {
	switch v := v.(type) {
	case *Gen:
		return "<" + v.name + " at 0x0>"
	case *macro:
		return "<Macro " + strRepr(v.def.name) + ">"
	case *builtin:
		if v.self != "" {
			return "<built-in method " + v.name + " of " + v.self + " object at 0x0>"
		}
		return "<function " + v.name + " at 0x0>"
	case *loopObj:
		return "<LoopContext " + strconv.Itoa(v.i+1) + "/" + strconv.Itoa(len(v.items)) + ">"
	}
	return "<object at 0x0>"
}

func (p *printer) items(open string, items []Value, end string, depth int) {
	p.b.WriteString(open)
	for i, it := range items {
		if i > 0 {
			p.b.WriteString(", ")
		}
		p.repr(it, depth+1)
	}
	p.b.WriteString(end)
}

func (p *printer) dict(d *Dict, depth int) {
	p.b.WriteString("{")
	for i, k := range d.keys {
		if i > 0 {
			p.b.WriteString(", ")
		}
		p.repr(k, depth+1)
		p.b.WriteString(": ")
		p.repr(d.vals[i], depth+1)
	}
	p.b.WriteString("}")
}

func strRepr(s string) string {
	quote := byte('\'')
	if strings.Contains(s, "'") && !strings.Contains(s, `"`) {
		quote = '"'
	}
	var b strings.Builder
	b.Grow(len(s) + 2)
	b.WriteByte(quote)
	for _, r := range s {
		switch {
		case r == rune(quote) || r == '\\':
			b.WriteByte('\\')
			b.WriteRune(r)
		case r == '\n':
			b.WriteString(`\n`)
		case r == '\r':
			b.WriteString(`\r`)
		case r == '\t':
			b.WriteString(`\t`)
		case r >= 0x20 && r < 0x7f || r > 0x7f && unicode.IsPrint(r):
			b.WriteRune(r)
		case r < 0x100:
			b.WriteString(`\x` + hex(r, 2))
		case r < 0x10000:
			b.WriteString(`\u` + hex(r, 4))
		default:
			b.WriteString(`\U` + hex(r, 8))
		}
	}
	b.WriteByte(quote)
	return b.String()
}

func hex(r rune, width int) string {
	s := strconv.FormatInt(int64(r), 16)
	return strings.Repeat("0", width-len(s)) + s
}

func bytesRepr(s string) string {
	var b strings.Builder
	b.WriteByte('\'')
	for i := range len(s) {
		switch c := s[i]; {
		case c == '\'' || c == '\\':
			b.WriteByte('\\')
			b.WriteByte(c)
		case c == '\n':
			b.WriteString(`\n`)
		case c == '\r':
			b.WriteString(`\r`)
		case c == '\t':
			b.WriteString(`\t`)
		case c >= 0x20 && c < utf8.RuneSelf-1:
			b.WriteByte(c)
		default:
			b.WriteString(`\x` + hex(rune(c), 2))
		}
	}
	b.WriteByte('\'')
	return b.String()
}

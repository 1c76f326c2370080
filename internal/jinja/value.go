package jinja

import (
	"iter"
	"math"
	"math/big"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Value is a value of the template language: nil (None), bool, int64, *big.Int
// (only outside int64's range), float64, *Str, *List, *Tuple, *Dict, *Undef and
// the package's own callables. All are immutable once made.
type Value any

// List is a Python list. Tuple is one that prints in parentheses.
type (
	List  struct{ items []Value }
	Tuple struct {
		items []Value
		names []string // of a named tuple's fields
	}
)

// NewList returns a list of items, which it takes over.
func NewList(items ...Value) *List { return &List{items} }

// Dict is a dict in order of insertion.
type Dict struct {
	keys, vals []Value
	index      map[any]int // by hashKey, made when there are more than a few keys
}

const smallDict = 8

// NewDict returns an empty dict. A dict is filled with Set before it is used.
func NewDict() *Dict { return &Dict{} }

// Set sets d[key] for a string key; for use before rendering.
func (d *Dict) Set(key string, v Value) *Dict {
	d.put(text(key), v)
	return d
}

// Get returns d[key], and whether it is there.
func (d *Dict) Get(key string) (Value, bool) { return d.getStr(key) }

// All yields the entries with string keys in order.
func (d *Dict) All() iter.Seq2[string, Value] {
	return func(yield func(string, Value) bool) {
		for i, k := range d.keys {
			if s, ok := k.(*Str); ok && !yield(s.s, d.vals[i]) {
				return
			}
		}
	}
}

func (d *Dict) getStr(key string) (Value, bool) {
	if d.index != nil {
		i, ok := d.index[key]
		if !ok {
			return nil, false
		}
		return d.vals[i], true
	}
	if i := d.findStr(key); i >= 0 {
		return d.vals[i], true
	}
	return nil, false
}

func (d *Dict) findStr(key string) int {
	for i, k := range d.keys {
		if s, ok := k.(*Str); ok && s.s == key {
			return i
		}
	}
	return -1
}

func (d *Dict) find(h any) int {
	if s, ok := h.(string); ok && d.index == nil {
		return d.findStr(s)
	}
	if d.index != nil {
		if i, ok := d.index[h]; ok {
			return i
		}
		return -1
	}
	for i, k := range d.keys {
		if kh, _ := hashKey(k); kh == h {
			return i
		}
	}
	return -1
}

// put sets key to v; false if the key can't be hashed.
func (d *Dict) put(key, v Value) bool {
	var h any
	i := -1
	if s, ok := key.(*Str); ok && d.index == nil {
		i = d.findStr(s.s) // the usual case, without boxing the text
	} else if h, ok = hashKey(key); ok {
		i = d.find(h)
	} else {
		return false
	}
	if i >= 0 {
		d.vals[i] = v
		return true
	}
	if d.keys == nil {
		d.keys, d.vals = make([]Value, 0, 4), make([]Value, 0, 4)
	}
	d.keys = append(d.keys, key)
	d.vals = append(d.vals, v)
	switch {
	case d.index != nil:
		d.index[h] = len(d.keys) - 1
	case len(d.keys) > smallDict:
		d.index = make(map[any]int, 2*len(d.keys))
		for i, k := range d.keys {
			kh, _ := hashKey(k)
			d.index[kh] = i
		}
	}
	return true
}

// hashKey maps equal values (1, 1.0 and True are) to equal Go values.
func hashKey(v Value) (any, bool) {
	switch v := v.(type) {
	case nil:
		return struct{ none bool }{}, true
	case *Str:
		return v.s, true
	case bool:
		if v {
			return int64(1), true
		}
		return int64(0), true
	case int64:
		return v, true
	case float64:
		if v == math.Trunc(v) && math.Abs(v) < 1<<62 {
			return int64(v), true
		}
		return v, true
	case *big.Int:
		return struct{ big string }{v.String()}, true
	case *Tuple:
		var b strings.Builder
		for _, it := range v.items {
			h, ok := hashKey(it)
			if !ok {
				return nil, false
			}
			switch h := h.(type) {
			case string:
				b.WriteString(strconv.Quote(h))
			case int64:
				b.WriteString(strconv.FormatInt(h, 10))
			case float64:
				b.WriteString(floatRepr(h))
			default:
				b.WriteString(repr(it))
			}
			b.WriteByte(',')
		}
		return struct{ tuple string }{b.String()}, true
	}
	return nil, false
}

// Undef is what a missing variable or attribute evaluates to: it prints as
// nothing, is false, and fails when it is used.
type Undef struct {
	msg  string
	of   Value  // what has no such attribute or element; used where msg is ""
	name string // of the attribute
	kind ErrorKind
}

// missing is an attribute that an object does not have. Its message is put
// together only when someone uses the value: most only ask whether it is there.
func missing(of Value, name string) *Undef {
	return &Undef{of: of, name: name, kind: KindUndefined}
}

func (u *Undef) message() string {
	if u.msg != "" {
		return u.msg
	}
	return objectName(u.of) + " has no attribute '" + u.name + "'"
}

// Namespace is the mutable object that namespace() makes: the only one.
type Namespace struct{ d *Dict }

// Gen is a generator: the result of map, select and the like. It can be run
// through once.
type Gen struct {
	name  string // as Python prints it: "generator object do_unique"
	items []Value
}

// view is d.keys(), d.values() or d.items().
type view struct {
	kind  string
	items []Value
}

type bytesVal string

// pyRange prints as range(a, b) and else is the list of its numbers.
type pyRange struct {
	lo, hi, step int64
	items        []Value
}

func normInt(n *big.Int) Value {
	if n.IsInt64() {
		return n.Int64()
	}
	return n
}

func truthy(v Value) bool {
	switch v := v.(type) {
	case nil:
		return false
	case bool:
		return v
	case int64:
		return v != 0
	case float64:
		return v != 0
	case *Str:
		return v.s != ""
	case *List:
		return len(v.items) > 0
	case *Tuple:
		return len(v.items) > 0
	case *Dict:
		return len(v.keys) > 0
	case *view:
		return len(v.items) > 0
	case *pyRange:
		return len(v.items) > 0
	case bytesVal:
		return v != ""
	case *Undef:
		return false
	}
	return true
}

// typeName is the name that Python and jinja2 use in messages.
func typeName(v Value) string {
	switch v := v.(type) {
	case nil:
		return "NoneType"
	case bool:
		return "bool"
	case int64, *big.Int:
		return "int"
	case float64:
		return "float"
	case *Str:
		if v.markup {
			return "Markup"
		}
		return "str"
	case *List:
		return "list"
	case *Tuple:
		return "tuple"
	case *Dict:
		return "dict"
	case *Undef:
		return "Undefined"
	case *Namespace:
		return "Namespace"
	case *Gen:
		return "generator"
	case *view:
		return v.kind
	case *pyRange:
		return "range"
	case bytesVal:
		return "bytes"
	case *loopObj:
		return "LoopContext"
	case *macro:
		return "Macro"
	}
	return "function"
}

func asInt(v Value) (int64, bool) {
	switch v := v.(type) {
	case int64:
		return v, true
	case bool:
		if v {
			return 1, true
		}
		return 0, true
	}
	return 0, false
}

func asFloat(v Value) (float64, bool) {
	switch v := v.(type) {
	case float64:
		return v, true
	case *big.Int:
		f, _ := new(big.Float).SetInt(v).Float64()
		return f, true
	}
	i, ok := asInt(v)
	return float64(i), ok
}

func asBig(v Value) (*big.Int, bool) {
	if b, ok := v.(*big.Int); ok {
		return b, true
	}
	i, ok := asInt(v)
	return big.NewInt(i), ok
}

func isNumber(v Value) bool {
	switch v.(type) {
	case int64, bool, float64, *big.Int:
		return true
	}
	return false
}

// maxValueDepth bounds recursion over nested values, as Python's own limit does.
const maxValueDepth = 500

func equal(a, b Value) bool { return equalDepth(a, b, 0) }

func equalDepth(a, b Value, depth int) bool {
	if depth > maxValueDepth {
		fail(0, KindLimit, "values are nested too deeply to compare")
	}
	switch x := a.(type) {
	case nil:
		return b == nil
	case *Str:
		y, ok := b.(*Str)
		return ok && x.s == y.s
	case *List:
		y, ok := b.(*List)
		return ok && equalItems(x.items, y.items, depth)
	case *Tuple:
		y, ok := b.(*Tuple)
		return ok && equalItems(x.items, y.items, depth)
	case *Dict:
		y, ok := b.(*Dict)
		if !ok || len(x.keys) != len(y.keys) {
			return false
		}
		for i, k := range x.keys {
			h, _ := hashKey(k)
			j := y.find(h)
			if j < 0 || !equalDepth(x.vals[i], y.vals[j], depth+1) {
				return false
			}
		}
		return true
	case *Undef:
		_, ok := b.(*Undef)
		return ok
	case bytesVal:
		return a == b
	case *pyRange:
		y, ok := b.(*pyRange)
		return ok && equalItems(x.items, y.items, depth)
	}
	if isNumber(a) && isNumber(b) {
		return compareNumbers(a, b) == 0
	}
	if isNumber(a) || isNumber(b) {
		return false
	}
	return a == b
}

func equalItems(x, y []Value, depth int) bool {
	if len(x) != len(y) {
		return false
	}
	for i := range x {
		if !equalDepth(x[i], y[i], depth+1) {
			return false
		}
	}
	return true
}

// compareNumbers returns -1, 0, 1, or 2 where a NaN makes them unordered.
func compareNumbers(a, b Value) int {
	_, fa := a.(float64)
	_, fb := b.(float64)
	if fa || fb {
		x, _ := asFloat(a)
		y, _ := asFloat(b)
		switch {
		case x < y:
			return -1
		case x > y:
			return 1
		case x == y:
			return 0
		}
		return 2
	}
	x, _ := asBig(a)
	y, _ := asBig(b)
	return x.Cmp(y)
}

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

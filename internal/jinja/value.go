package jinja

import (
	"iter"
	"math"
	"math/big"
	"strconv"
	"strings"
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
	few        [8]Value    // what keys and vals start on
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
		d.keys, d.vals = d.few[:0:4], d.few[4:4]
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

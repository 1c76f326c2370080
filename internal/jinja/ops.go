package jinja

import (
	"math"
	"math/big"
	"slices"
	"strings"
)

// maxBits bounds integers: 2 ** 10**9 would not fit in memory.
const maxBits = 1 << 16

func (in *interp) negate(v Value, minus bool) Value {
	in.need(v)
	switch v := v.(type) {
	case float64:
		if minus {
			return -v
		}
		return v
	}
	n, ok := asBig(v)
	if !ok {
		fail(in.line, KindType, "bad operand type for unary -: '%s'", typeName(v))
	}
	if minus {
		n = new(big.Int).Neg(n)
	}
	return normInt(n)
}

func (in *interp) badOperands(op string, a, b Value) {
	in.need(a)
	in.need(b)
	fail(in.line, KindType, "unsupported operand type(s) for %s: '%s' and '%s'", op, typeName(a), typeName(b))
}

func (in *interp) binary(op string, a, b Value) Value {
	if isNumber(a) && isNumber(b) {
		return in.arith(op, a, b)
	}
	in.need(a)
	switch op {
	case "+":
		return in.add(a, b)
	case "*":
		if _, ok := asInt(a); ok {
			a, b = b, a
		}
		if n, ok := asInt(b); ok {
			return in.repeat(a, n, b)
		}
	case "%":
		if s, ok := a.(*Str); ok {
			return in.percentFormat(s, b)
		}
	}
	in.badOperands(op, a, b)
	return nil
}

func (in *interp) add(a, b Value) Value {
	switch x := a.(type) {
	case *Str:
		if y, ok := b.(*Str); ok {
			if x.markup != y.markup {
				x, y = escapeHTML(x), escapeHTML(y)
			}
			in.alloc(len(x.s) + len(y.s))
			s := concat(x, y)
			s.markup = x.markup
			return s
		}
		in.need(b)
		fail(in.line, KindType, "can only concatenate str (not \"%s\") to str", typeName(b))
	case *List:
		if y, ok := b.(*List); ok {
			in.alloc(len(x.items) + len(y.items))
			return &List{slices.Concat(x.items, y.items)}
		}
	case *Tuple:
		if y, ok := b.(*Tuple); ok {
			in.alloc(len(x.items) + len(y.items))
			return &Tuple{items: slices.Concat(x.items, y.items)}
		}
	}
	in.badOperands("+", a, b)
	return nil
}

func (in *interp) repeat(a Value, n int64, b Value) Value {
	n = max(n, 0)
	size := func(l int) int {
		if l > 0 && n > int64(in.lim.Output/l) {
			fail(in.line, KindLimit, "a value of more than %d bytes or elements", in.lim.Output)
		}
		in.alloc(l * int(n))
		return int(n)
	}
	switch x := a.(type) {
	case *Str:
		if x.s == "" || n == 0 {
			return emptyStr
		}
		return allOf(strings.Repeat(x.s, size(len(x.s))), x)
	case *List:
		return &List{slices.Repeat(x.items, size(len(x.items)))}
	case *Tuple:
		return &Tuple{items: slices.Repeat(x.items, size(len(x.items)))}
	}
	in.badOperands("*", a, b)
	return nil
}

func (in *interp) arith(op string, a, b Value) Value {
	_, fa := a.(float64)
	_, fb := b.(float64)
	if fa || fb || op == "/" {
		x, _ := asFloat(a)
		y, _ := asFloat(b)
		return in.floatArith(op, x, y)
	}
	x, okX := asInt(a)
	y, okY := asInt(b)
	if okX && okY && abs(x) < 1<<31 && abs(y) < 1<<31 {
		switch op {
		case "+":
			return x + y
		case "-":
			return x - y
		case "*":
			return x * y
		}
	}
	p, _ := asBig(a)
	q, _ := asBig(b)
	z := new(big.Int)
	switch op {
	case "+":
		z.Add(p, q)
	case "-":
		z.Sub(p, q)
	case "*":
		z.Mul(p, q)
	case "//", "%":
		if q.Sign() == 0 {
			fail(in.line, KindType, "integer division or modulo by zero")
		}
		m := new(big.Int)
		z.QuoRem(p, q, m)
		if m.Sign() != 0 && m.Sign() != q.Sign() {
			z.Sub(z, big.NewInt(1))
			m.Add(m, q)
		}
		if op == "%" {
			z = m
		}
	case "**":
		if q.Sign() < 0 {
			x, _ := asFloat(a)
			y, _ := asFloat(b)
			return in.floatArith(op, x, y)
		}
		if p.BitLen() > 1 && (!q.IsInt64() || q.Int64() > maxBits/int64(p.BitLen())) {
			fail(in.line, KindLimit, "the power is too large")
		}
		z.Exp(p, q, nil)
	}
	if z.BitLen() > maxBits {
		fail(in.line, KindLimit, "the integer is too large")
	}
	return normInt(z)
}

func abs(x int64) int64 {
	if x < 0 {
		return -x
	}
	return x
}

func (in *interp) floatArith(op string, x, y float64) Value {
	switch op {
	case "+":
		return x + y
	case "-":
		return x - y
	case "*":
		return x * y
	case "**":
		if x == 0 && y < 0 {
			fail(in.line, KindType, "0.0 cannot be raised to a negative power")
		}
		return math.Pow(x, y)
	}
	if y == 0 {
		fail(in.line, KindType, "division by zero")
	}
	switch op {
	case "/":
		return x / y
	case "//":
		return math.Floor(x / y)
	}
	m := math.Mod(x, y)
	if m != 0 && (m < 0) != (y < 0) {
		m += y
	}
	return m
}

func (in *interp) compare(op string, a, b Value) bool {
	switch op {
	case "==":
		return equal(a, b)
	case "!=":
		return !equal(a, b)
	case "in":
		return in.contains(b, a)
	case "not in":
		return !in.contains(b, a)
	}
	c := in.order(op, a, b, 0)
	switch op {
	case "<":
		return c == -1
	case "<=":
		return c == -1 || c == 0
	case ">":
		return c == 1
	}
	return c == 1 || c == 0
}

// order compares for < and the like: -1, 0, 1, or 2 if unordered (NaN).
func (in *interp) order(op string, a, b Value, depth int) int {
	if isNumber(a) && isNumber(b) {
		return compareNumbers(a, b)
	}
	if depth > maxValueDepth {
		fail(in.line, KindLimit, "values are nested too deeply to compare")
	}
	switch x := a.(type) {
	case *Str:
		if y, ok := b.(*Str); ok {
			return strings.Compare(x.s, y.s)
		}
	case *List:
		if y, ok := b.(*List); ok {
			return in.orderItems(op, x.items, y.items, depth)
		}
	case *Tuple:
		if y, ok := b.(*Tuple); ok {
			return in.orderItems(op, x.items, y.items, depth)
		}
	}
	in.need(a)
	in.need(b)
	fail(in.line, KindType, "'%s' not supported between instances of '%s' and '%s'", op, typeName(a), typeName(b))
	return 0
}

func (in *interp) orderItems(op string, x, y []Value, depth int) int {
	for i := range min(len(x), len(y)) {
		if !equal(x[i], y[i]) {
			return in.order(op, x[i], y[i], depth+1)
		}
	}
	switch {
	case len(x) < len(y):
		return -1
	case len(x) > len(y):
		return 1
	}
	return 0
}

func (in *interp) contains(container, v Value) bool {
	switch c := container.(type) {
	case *Str:
		s, ok := v.(*Str)
		if !ok {
			in.need(v)
			fail(in.line, KindType, "'in <string>' requires string as left operand, not %s", typeName(v))
		}
		return strings.Contains(c.s, s.s)
	case *Dict:
		if s, ok := v.(*Str); ok {
			_, found := c.getStr(s.s)
			return found
		}
		h, ok := hashKey(v)
		if !ok {
			fail(in.line, KindType, "unhashable type: '%s'", typeName(v))
		}
		return c.find(h) >= 0
	case nil, bool, int64, float64, *big.Int:
		fail(in.line, KindType, "argument of type '%s' is not iterable", typeName(container))
	}
	return slices.ContainsFunc(in.iterate(container), func(it Value) bool { return equal(it, v) })
}

package jinja

import (
	"math/big"
	"strings"
	"unicode"
)

type testFunc func(in *interp, v Value, a args) bool

// testNamed returns jinja2's test of that name, or nil.
func testNamed(name string) testFunc {
	if f := compareTest(name); f != nil {
		return f
	}
	is := func(f func(Value) bool) testFunc {
		return func(in *interp, v Value, a args) bool {
			a.bind(in, name)
			return f(v)
		}
	}
	switch name {
	case "boolean":
		return is(func(v Value) bool { _, ok := v.(bool); return ok })
	case "callable":
		return is(callable)
	case "defined":
		return is(func(v Value) bool { _, ok := v.(*Undef); return !ok })
	case "undefined":
		return is(func(v Value) bool { _, ok := v.(*Undef); return ok })
	case "escaped":
		return is(func(v Value) bool { s, ok := v.(*Str); return ok && s.markup })
	case "false":
		return is(func(v Value) bool { return v == false })
	case "true":
		return is(func(v Value) bool { return v == true })
	case "filter":
		return is(func(v Value) bool { return filterNamed(str(v)) != nil })
	case "test":
		return is(func(v Value) bool { return testNamed(str(v)) != nil })
	case "float":
		return is(func(v Value) bool { _, ok := v.(float64); return ok })
	case "integer":
		return is(isInteger)
	case "iterable":
		return is(iterable)
	case "lower":
		return is(func(v Value) bool { return isLowerUpper(str(v), false) })
	case "upper":
		return is(func(v Value) bool { return isLowerUpper(str(v), true) })
	case "mapping":
		return is(func(v Value) bool { _, ok := v.(*Dict); return ok })
	case "none":
		return is(func(v Value) bool { return v == nil })
	case "number":
		return is(isNumber)
	case "sequence":
		return is(func(v Value) bool {
			switch v.(type) {
			case *Str, *List, *Tuple, *Dict, *pyRange, bytesVal, *Undef:
				return true
			}
			return false
		})
	case "string":
		return is(func(v Value) bool { _, ok := v.(*Str); return ok })
	}
	return nil
}

func compareTest(name string) testFunc {
	op, ok := map[string]string{"==": "==", "eq": "==", "equalto": "==", "!=": "!=", "ne": "!=", ">": ">", "gt": ">",
		"greaterthan": ">", ">=": ">=", "ge": ">=", "<": "<", "lt": "<", "lessthan": "<", "<=": "<=", "le": "<=", "in": "in"}[name]
	if ok {
		return func(in *interp, v Value, a args) bool {
			return in.compare(op, v, a.required(in, name))
		}
	}
	switch name {
	case "even", "odd":
		return func(in *interp, v Value, a args) bool {
			a.bind(in, name)
			m, ok := asFloat(in.binary("%", v, int64(2)))
			return ok && (m == 0) == (name == "even") && (m == 1 || name == "even")
		}
	case "divisibleby":
		return func(in *interp, v Value, a args) bool {
			return equal(in.binary("%", v, a.required(in, name)), int64(0))
		}
	case "sameas":
		return func(in *interp, v Value, a args) bool {
			o := a.required(in, name)
			switch v.(type) {
			case nil, bool, int64:
				return v == o
			case *Str:
				return equal(v, o)
			case *List, *Dict, *Tuple, *Namespace:
				return v == o
			}
			return false
		}
	}
	return nil
}

// required returns the one argument of a test or function, whatever its name.
func (a args) required(in *interp, name string) Value {
	if len(a.pos) == 0 && len(a.kw) == 1 {
		return a.kw[0]
	}
	v := a.bind(in, name, "other")[0]
	if !given(v) {
		fail(in.line, KindType, "'%s' needs an argument", name)
	}
	return v
}

func callable(v Value) bool {
	switch v.(type) {
	case *builtin, *macro, *Undef, *loopObj:
		return true
	}
	return false
}

func isInteger(v Value) bool {
	switch v.(type) {
	case int64, *big.Int:
		return true
	}
	return false
}

func iterable(v Value) bool {
	switch v.(type) {
	case *Str, *List, *Tuple, *Dict, *Gen, *view, *pyRange, bytesVal, *Undef, *loopObj:
		return true
	}
	return false
}

// isLowerUpper is str.islower and str.isupper.
func isLowerUpper(s string, up bool) bool {
	cased := false
	for _, r := range s {
		u := unicode.IsUpper(r) || unicode.IsTitle(r)
		if u && !up || unicode.IsLower(r) && up {
			return false
		}
		cased = cased || u || unicode.IsLower(r)
	}
	return cased
}

func allRunes(s string, ok func(rune) bool) bool {
	return s != "" && strings.IndexFunc(s, func(r rune) bool { return !ok(r) }) < 0
}

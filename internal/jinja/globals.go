package jinja

import (
	"strconv"
	"strings"
	"time"
)

// maxRange is jinja2's MAX_RANGE of sandboxed templates.
const maxRange = 100_000

// globalFunc returns the function of that name, or nil.
func (in *interp) globalFunc(name string) Value {
	var fn func(in *interp, a args) Value
	switch name {
	case "range":
		fn = globalRange
	case "dict":
		fn = func(in *interp, a args) Value { return in.dictOf("dict", a) }
	case "namespace":
		fn = func(in *interp, a args) Value { return &Namespace{in.dictOf("namespace", a)} }
	case "raise_exception":
		fn = func(in *interp, a args) Value {
			fail(in.line, KindRaise, "%s", str(a.required(in, name)))
			return nil
		}
	case "strftime_now":
		if in.now == nil {
			return nil
		}
		fn = func(in *interp, a args) Value {
			return text(strftime(in.now(), str(a.required(in, name))))
		}
	case "joiner":
		fn = func(in *interp, a args) Value {
			sep, used := a.withDefault(in, name, 0, text(", "), "sep"), false
			return &builtin{name: "joiner", fn: func(*interp, args) Value {
				if !used {
					used = true
					return emptyStr
				}
				return sep
			}}
		}
	case "cycler":
		fn = func(in *interp, a args) Value {
			if len(a.pos) == 0 {
				fail(in.line, KindType, "at least one item has to be provided")
			}
			return &cyclerObj{items: a.pos}
		}
	default:
		return nil
	}
	return &builtin{name: name, fn: fn}
}

func globalRange(in *interp, a args) Value {
	if len(a.names) > 0 {
		fail(in.line, KindType, "range() takes no keyword arguments")
	}
	n := make([]int64, len(a.pos))
	for i, v := range a.pos {
		in.need(v)
		var ok bool
		if n[i], ok = asInt(v); !ok {
			fail(in.line, KindType, "'%s' object cannot be interpreted as an integer", typeName(v))
		}
	}
	r := &pyRange{step: 1}
	switch len(n) {
	case 1:
		r.hi = n[0]
	case 2:
		r.lo, r.hi = n[0], n[1]
	case 3:
		r.lo, r.hi, r.step = n[0], n[1], n[2]
	default:
		fail(in.line, KindType, "range expected 1 to 3 arguments, got %d", len(n))
	}
	if r.step == 0 {
		fail(in.line, KindType, "range() arg 3 must not be zero")
	}
	for i := r.lo; r.step > 0 && i < r.hi || r.step < 0 && i > r.hi; {
		if len(r.items) >= maxRange {
			fail(in.line, KindType, "Range too big. The sandbox blocks ranges larger than MAX_RANGE (%d).", maxRange)
		}
		r.items = append(r.items, i)
		next := i + r.step
		if (next > i) != (r.step > 0) {
			break
		}
		i = next
	}
	in.alloc(len(r.items))
	return r
}

// slice is the range of the items that were taken.
func (r *pyRange) slice(items []Value, step *int64) *pyRange {
	out := &pyRange{items: items, step: r.step, lo: r.lo, hi: r.lo}
	if step != nil {
		out.step *= *step
	}
	if n := len(items); n > 0 {
		out.lo = items[0].(int64)
		out.hi = out.lo + int64(n)*out.step
	}
	return out
}

func (in *interp) dictOf(fn string, a args) *Dict {
	d := NewDict()
	if len(a.pos) > 1 {
		fail(in.line, KindType, "%s expected at most 1 argument, got %d", fn, len(a.pos))
	}
	put := func(k, v Value) {
		if !d.put(k, v) {
			fail(in.line, KindType, "unhashable type: '%s'", typeName(k))
		}
	}
	for _, v := range a.pos {
		if src, ok := v.(*Dict); ok {
			for i, k := range src.keys {
				put(k, src.vals[i])
			}
			continue
		}
		for _, pair := range in.iterate(v) {
			kv := in.iterate(pair)
			if len(kv) != 2 {
				fail(in.line, KindType, "dictionary update sequence element has length %d; 2 is required", len(kv))
			}
			put(kv[0], kv[1])
		}
	}
	for i, n := range a.names {
		put(text(n), a.kw[i])
	}
	in.alloc(len(d.keys))
	return d
}

// cyclerObj is what cycler() makes.
type cyclerObj struct {
	items []Value
	pos   int
}

func (c *cyclerObj) attr(name string) (Value, bool) {
	switch name {
	case "current":
		return c.items[c.pos], true
	case "next":
		return &builtin{name: name, self: "Cycler", fn: func(*interp, args) Value {
			v := c.items[c.pos]
			c.pos = (c.pos + 1) % len(c.items)
			return v
		}}, true
	case "reset":
		return &builtin{name: name, self: "Cycler", fn: func(*interp, args) Value { c.pos = 0; return nil }}, true
	}
	return nil, false
}

// strftime is C's, in the C locale; "%-d" and the like leave out padding.
func strftime(t time.Time, format string) string {
	var b strings.Builder
	for i := 0; i < len(format); i++ {
		if format[i] != '%' || i+1 >= len(format) {
			b.WriteByte(format[i])
			continue
		}
		i++
		c, bare := format[i], false
		if c == '-' && i+1 < len(format) {
			i++
			c, bare = format[i], true
		}
		s, ok := strftimeField(t, c)
		switch {
		case !ok:
			s = "%" + string(c)
		case bare:
			if s = strings.TrimLeft(s, "0 "); s == "" {
				s = "0"
			}
		}
		b.WriteString(s)
	}
	return b.String()
}

func strftimeField(t time.Time, c byte) (string, bool) {
	layout := map[byte]string{'a': "Mon", 'A': "Monday", 'b': "Jan", 'h': "Jan", 'B': "January", 'd': "02", 'e': "_2", 'm': "01", 'y': "06",
		'Y': "2006", 'H': "15", 'I': "03", 'M': "04", 'S': "05", 'p': "PM", 'j': "002", 'F': "2006-01-02", 'T': "15:04:05",
		'R': "15:04", 'D': "01/02/06", 'c': "Mon Jan _2 15:04:05 2006", 'x': "01/02/06", 'X': "15:04:05", 'r': "03:04:05 PM"}[c]
	if layout != "" {
		return t.Format(layout), true
	}
	two := func(n int) string { return strconv.Itoa(n/10) + strconv.Itoa(n%10) }
	switch c {
	case '%':
		return "%", true
	case 'z', 'Z':
		return "", true // Python's now() has no zone
	case 'n':
		return "\n", true
	case 't':
		return "\t", true
	case 'f':
		return strconv.Itoa(1_000_000 + t.Nanosecond()/1000)[1:], true
	case 's':
		return strconv.FormatInt(t.Unix(), 10), true
	case 'w':
		return strconv.Itoa(int(t.Weekday())), true
	case 'u':
		return strconv.Itoa((int(t.Weekday())+6)%7 + 1), true
	case 'C':
		return two(t.Year() / 100 % 100), true
	case 'U':
		return two((t.YearDay() + 6 - int(t.Weekday())) / 7), true
	case 'W':
		return two((t.YearDay() + 6 - (int(t.Weekday())+6)%7) / 7), true
	case 'V', 'G':
		y, w := t.ISOWeek()
		if c == 'G' {
			return strconv.Itoa(y), true
		}
		return two(w), true
	}
	return "", false
}

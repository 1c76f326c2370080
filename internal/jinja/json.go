package jinja

import (
	"encoding/json"
	"errors"
	"fmt"
	"math/big"
	"strconv"
	"strings"
	"unicode/utf8"
)

// FromJSON reads one JSON value: objects keep their order, integers of any size
// their value. Its strings are data. Errors say where the JSON is wrong.
func FromJSON(b []byte) (Value, error) { return fromJSON(b, Data) }

// TextFromJSON is FromJSON for what belongs to the model folder or the run file
// rather than to a conversation: its strings are text.
func TextFromJSON(b []byte) (Value, error) { return fromJSON(b, text) }

func fromJSON(b []byte, str func(string) *Str) (Value, error) {
	r := jsonReader{s: string(b), str: str}
	v := r.value(0)
	if r.space(); r.err == "" && r.i < len(r.s) {
		r.err = "text after the value"
	}
	if r.err != "" {
		return nil, fmt.Errorf("reading JSON at byte %d: %s", r.i, r.err)
	}
	return v, nil
}

// jsonReader reads JSON as encoding/json does, but for the order of objects. The
// first error stops it.
type jsonReader struct {
	s   string
	i   int
	str func(string) *Str
	err string
}

func (r *jsonReader) fail(msg string) Value {
	if r.err == "" {
		r.err = msg
	}
	return nil
}

func (r *jsonReader) space() {
	for r.i < len(r.s) && (r.s[r.i] == ' ' || r.s[r.i] == '\n' || r.s[r.i] == '\t' || r.s[r.i] == '\r') {
		r.i++
	}
}

// take moves over the byte c, if it is next behind white space.
func (r *jsonReader) take(c byte) bool {
	if r.space(); r.i < len(r.s) && r.s[r.i] == c {
		r.i++
		return true
	}
	return false
}

func (r *jsonReader) value(depth int) Value {
	if depth > maxValueDepth {
		return r.fail("nested too deeply")
	}
	if r.space(); r.i >= len(r.s) {
		return r.fail("unexpected end")
	}
	switch c := r.s[r.i]; {
	case c == '"':
		return r.str(r.text())
	case c == '{':
		return r.object(depth)
	case c == '[':
		return r.array(depth)
	case c == '-' || c >= '0' && c <= '9':
		return r.number()
	}
	for word, v := range map[string]Value{"true": true, "false": false, "null": nil} {
		if strings.HasPrefix(r.s[r.i:], word) {
			r.i += len(word)
			return v
		}
	}
	return r.fail("no JSON value")
}

func (r *jsonReader) array(depth int) Value {
	r.i++
	l := &List{}
	if r.take(']') {
		return l
	}
	for r.err == "" {
		l.items = append(l.items, r.value(depth+1))
		if r.take(']') {
			return l
		}
		if !r.take(',') {
			r.fail("expected , or ]")
		}
	}
	return nil
}

func (r *jsonReader) object(depth int) Value {
	r.i++
	d := NewDict()
	if r.take('}') {
		return d
	}
	for r.err == "" {
		if r.space(); r.i >= len(r.s) || r.s[r.i] != '"' {
			return r.fail("expected a key")
		}
		k := r.str(r.text())
		if !r.take(':') {
			return r.fail("expected :")
		}
		d.put(k, r.value(depth+1))
		if r.take('}') {
			return d
		}
		if !r.take(',') {
			r.fail("expected , or }")
		}
	}
	return nil
}

// text reads a string; those with escapes or invalid UTF-8 by encoding/json.
func (r *jsonReader) text() string {
	start := r.i
	plain := true
	for r.i++; r.i < len(r.s) && r.s[r.i] != '"'; r.i++ {
		switch c := r.s[r.i]; {
		case c == '\\':
			plain = false
			r.i++
		case c < 0x20:
			r.fail("control character in a string")
			return ""
		}
	}
	if r.i >= len(r.s) {
		r.fail("string without an end")
		return ""
	}
	r.i++
	raw := r.s[start:r.i]
	if plain && utf8.ValidString(raw) {
		return raw[1 : len(raw)-1]
	}
	var s string
	if json.Unmarshal([]byte(raw), &s) != nil {
		r.i = start
		r.fail("broken string")
	}
	return s
}

func (r *jsonReader) number() Value {
	start := r.i
	for r.i < len(r.s) && strings.IndexByte("+-.eE0123456789", r.s[r.i]) >= 0 {
		r.i++
	}
	raw := r.s[start:r.i]
	if !json.Valid([]byte(raw)) {
		r.i = start
		return r.fail("broken number")
	}
	v, err := numberOf(raw)
	if err != nil {
		return r.fail(err.Error())
	}
	return v
}

func numberOf(s string) (Value, error) {
	if strings.ContainsAny(s, ".eE") {
		f, err := strconv.ParseFloat(s, 64)
		if err != nil && !errors.Is(err, strconv.ErrRange) {
			return nil, err
		}
		return f, nil
	}
	if i, err := strconv.ParseInt(s, 10, 64); err == nil {
		return i, nil
	}
	if len(s) > 4300 {
		return nil, errors.New("a number of more than 4300 digits")
	}
	n, ok := new(big.Int).SetString(s, 10)
	if !ok {
		return nil, fmt.Errorf("bad number %q", s)
	}
	return normInt(n), nil
}

// ToJSON writes v as Python's json.dumps(v, ensure_ascii=False) does. Values
// that JSON has no form for are an *Error.
func ToJSON(v Value) (s string, err error) {
	defer catch("json", &err)
	w := jsonWriter{item: ", ", colon: ": "}
	w.write(v, 0)
	return w.b.String(), nil
}

// jsonWriter is Python's json.dumps.
type jsonWriter struct {
	b           strings.Builder
	ascii, sort bool
	indent      string
	multiline   bool
	item, colon string
	max         int
}

func (w *jsonWriter) write(v Value, depth int) {
	if depth > maxValueDepth || w.max > 0 && w.b.Len() > w.max {
		fail(0, KindLimit, "the value is too large or too deeply nested for JSON")
	}
	switch v := v.(type) {
	case nil:
		w.b.WriteString("null")
	case bool:
		w.b.WriteString(strconv.FormatBool(v))
	case int64:
		w.b.WriteString(strconv.FormatInt(v, 10))
	case *big.Int:
		w.b.WriteString(v.String())
	case float64:
		w.b.WriteString(jsonFloat(v))
	case *Str:
		w.quote(v.s)
	case *List:
		w.list(v.items, depth)
	case *Tuple:
		w.list(v.items, depth)
	case *Dict:
		w.dict(v, depth)
	default:
		fail(0, KindType, "Object of type %s is not JSON serializable", typeName(v))
	}
}

func jsonFloat(f float64) string {
	switch s := floatRepr(f); s {
	case "nan":
		return "NaN"
	case "inf":
		return "Infinity"
	case "-inf":
		return "-Infinity"
	default:
		return s
	}
}

func (w *jsonWriter) newline(depth int) {
	if w.multiline {
		w.b.WriteByte('\n')
		w.b.WriteString(strings.Repeat(w.indent, depth))
	}
}

func (w *jsonWriter) list(items []Value, depth int) {
	if len(items) == 0 {
		w.b.WriteString("[]")
		return
	}
	w.b.WriteByte('[')
	for i, it := range items {
		if i > 0 {
			w.b.WriteString(w.item)
		}
		w.newline(depth + 1)
		w.write(it, depth+1)
	}
	w.newline(depth)
	w.b.WriteByte(']')
}

func (w *jsonWriter) dict(d *Dict, depth int) {
	if len(d.keys) == 0 {
		w.b.WriteString("{}")
		return
	}
	order := make([]int, len(d.keys))
	for i := range order {
		order[i] = i
	}
	if w.sort {
		(&interp{}).sortBy(order, func(i int) Value { return d.keys[i] }, false)
	}
	w.b.WriteByte('{')
	for n, i := range order {
		if n > 0 {
			w.b.WriteString(w.item)
		}
		w.newline(depth + 1)
		w.quote(jsonKey(d.keys[i]))
		w.b.WriteString(w.colon)
		w.write(d.vals[i], depth+1)
	}
	w.newline(depth)
	w.b.WriteByte('}')
}

func jsonKey(k Value) string {
	switch k := k.(type) {
	case *Str:
		return k.s
	case nil:
		return "null"
	case bool:
		return strconv.FormatBool(k)
	case float64:
		return jsonFloat(k)
	case int64, *big.Int:
		return str(k)
	}
	fail(0, KindType, "keys must be str, int, float, bool or None, not %s", typeName(k))
	return ""
}

func (w *jsonWriter) quote(s string) {
	w.b.WriteByte('"')
	start := 0
	for i := 0; i < len(s); {
		c := s[i]
		n := 1
		esc := ""
		switch {
		case c == '"':
			esc = `\"`
		case c == '\\':
			esc = `\\`
		case c == '\n':
			esc = `\n`
		case c == '\r':
			esc = `\r`
		case c == '\t':
			esc = `\t`
		case c == '\b':
			esc = `\b`
		case c == '\f':
			esc = `\f`
		case c < 0x20:
			esc = `\u` + hex(rune(c), 4)
		case c >= 0x7f && w.ascii:
			var r rune
			r, n = utf8.DecodeRuneInString(s[i:])
			if r >= 0x10000 {
				r -= 0x10000
				esc = `\u` + hex(0xD800+r>>10, 4) + `\u` + hex(0xDC00+r&0x3FF, 4)
			} else {
				esc = `\u` + hex(r, 4)
			}
		}
		if esc != "" {
			w.b.WriteString(s[start:i])
			w.b.WriteString(esc)
			start = i + n
		}
		i += n
	}
	w.b.WriteString(s[start:])
	w.b.WriteByte('"')
}

// filterTojson is transformers' tojson: json.dumps without HTML escapes.
func filterTojson(in *interp, v Value, a args) Value {
	b := a.bind(in, "tojson", "ensure_ascii", "indent", "separators", "sort_keys")
	w := jsonWriter{item: ", ", colon: ": ", max: in.lim.Output}
	w.ascii = given(b[0]) && truthy(b[0])
	w.sort = given(b[3]) && truthy(b[3])
	if given(b[1]) && b[1] != nil {
		w.multiline, w.item = true, ","
		if s, ok := b[1].(*Str); ok {
			w.indent = s.s
		} else {
			n, _ := asInt(b[1])
			w.indent = strings.Repeat(" ", int(min(max(n, 0), 64)))
		}
	}
	if given(b[2]) && b[2] != nil {
		sep := in.iterate(b[2])
		if len(sep) != 2 {
			fail(in.line, KindType, "separators must be a pair of strings")
		}
		w.item, w.colon = str(sep[0]), str(sep[1])
	}
	w.write(v, 0)
	in.alloc(w.b.Len())
	return allOfValue(w.b.String(), v)
}

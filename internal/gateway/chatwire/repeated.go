package chatwire

import (
	"bytes"
	"slices"
	"strconv"
	"strings"
	"unsafe"
)

// Repeated returns the place of a field that stands twice in its object, anywhere in valid
// JSON: "model", "messages[1].content". Of two, one parser takes the first, another the
// last, and encoding/json a mixture: what the model was shown would not be what the record
// says. Where fields are read, keys that differ in case alone count as one, for
// encoding/json takes either; a schema's properties may be name and Name.
func Repeated(body []byte) (at string, is bool) {
	r := repeats{b: body}
	r.value(true)
	return r.at, r.found
}

// repeats reads JSON that is known to be valid, in a fraction of a scanner's time.
type repeats struct {
	b     []byte
	i     int
	keys  []string // of all objects that are open
	found bool
	at    string // seen from the value that is read
}

// few is how many keys are compared each with each: of more, that would take a hostile
// body's whole minutes.
const few = 64

// peek passes over what is no value and no end, and returns the byte that follows; 0 at
// the end of all.
func (r *repeats) peek() byte {
	for ; r.i < len(r.b); r.i++ {
		switch c := r.b[r.i]; c {
		case ' ', '\n', '\t', '\r', ',', ':':
		default:
			return c
		}
	}
	return 0
}

// value passes over a value. fold: its keys are read in any case.
func (r *repeats) value(fold bool) {
	switch r.peek() {
	case '{':
		r.object(fold)
	case '[':
		r.i++
		for n := 0; ; n++ {
			if c := r.peek(); c == ']' || c == 0 {
				r.i++
				return
			}
			if r.value(fold); r.found {
				r.at = "[" + strconv.Itoa(n) + "]" + dotted(r.at)
				return
			}
		}
	case '"':
		r.i = stringEnd(r.b, r.i)
	default: // a number or a word
		for r.i++; r.i < len(r.b) && r.b[r.i] > ' ' && r.b[r.i] != ',' && r.b[r.i] != ']' && r.b[r.i] != '}'; {
			r.i++
		}
	}
}

func (r *repeats) object(fold bool) {
	base := len(r.keys)
	var many map[string]bool
	r.i++
	for r.peek() == '"' {
		key := r.key()
		if many != nil {
			k := folded(key, fold)
			r.found = many[k]
			many[k] = true
		} else {
			r.found = slices.ContainsFunc(r.keys[base:], func(k string) bool { return k == key || fold && strings.EqualFold(k, key) })
			if r.keys = append(r.keys, key); len(r.keys)-base == few {
				many = make(map[string]bool, 4*few)
				for _, k := range r.keys[base:] {
					many[folded(k, fold)] = true
				}
			}
		}
		if r.found {
			r.at = key
			return
		}
		if r.value(fold && (r.peek() != '{' || readInside(key))); r.found {
			r.at = key + dotted(r.at)
			return
		}
	}
	r.i++ // its end
	r.keys = r.keys[:base]
}

// key reads a key; it is in b's memory where it has no escapes.
func (r *repeats) key() string {
	start := r.i
	r.i = stringEnd(r.b, start)
	raw := r.b[start:r.i]
	if bytes.IndexByte(raw, '\\') < 0 && len(raw) > 1 {
		return unsafe.String(&raw[1], len(raw)-2)
	}
	key, _ := Unquote(raw) // it is valid
	return key
}

// dotted is a place behind what it is in.
func dotted(at string) string {
	if strings.HasPrefix(at, "[") {
		return at
	}
	return "." + at
}

// folded is what keys that encoding/json takes for one have in common.
func folded(key string, fold bool) string {
	if !fold {
		return key
	}
	return strings.ToLower(strings.ToUpper(key)) // ſ is an s to it, and the Kelvin sign a k
}

// readInside says whether the fields of a member's object are read.
func readInside(key string) bool {
	switch key {
	case "function", "response_format", "stream_options", "tool_choice", "text", "format":
		return true
	}
	return false
}

package fulgur

import (
	"bytes"
	"encoding/json"
	"reflect"
)

// MaxNesting is how deep the objects and lists of what agents send may lie in each other.
// Go reads ten thousand, a trainer's Python a thousand: it could read none of the
// rollout's calls and events any more.
const MaxNesting = 500

// TooDeep says whether valid JSON is nested more than MaxNesting deep.
func TooDeep(data []byte) bool {
	if bytes.Count(data, []byte{'['})+bytes.Count(data, []byte{'{'}) <= MaxNesting {
		return false // nearly always
	}
	depth, text := 0, false
	for i := 0; i < len(data); i++ {
		switch c := data[i]; {
		case c == '"':
			text = !text
		case text && c == '\\':
			i++
		case text:
		case c == '[' || c == '{':
			if depth++; depth > MaxNesting {
				return true
			}
		case c == ']' || c == '}':
			depth--
		}
	}
	return false
}

// sameJSON compares two texts by JSON value (numbers by their text), or by
// bytes if either is not JSON.
func sameJSON(a, b string) bool {
	if a == b {
		return true
	}
	x, okX := decodeJSON(a)
	y, okY := decodeJSON(b)
	return okX && okY && reflect.DeepEqual(x, y)
}

func decodeJSON(s string) (any, bool) {
	d := json.NewDecoder(bytes.NewReader([]byte(s)))
	d.UseNumber()
	var v any
	if d.Decode(&v) != nil || d.More() {
		return nil, false
	}
	return v, true
}

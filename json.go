package fulgur

import (
	"bytes"
	"encoding/json"
	"reflect"
)

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

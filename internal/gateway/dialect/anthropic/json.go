package anthropic

import (
	"bytes"
	"encoding/json"
	"strings"
	"unicode/utf8"
)

// appendString appends s as a JSON string, readable; bytes that are not UTF-8
// become U+FFFD.
func appendString(dst []byte, s string) []byte {
	b := bytes.NewBuffer(dst)
	e := json.NewEncoder(b)
	e.SetEscapeHTML(false)
	_ = e.Encode(s) // a string can't fail
	return b.Bytes()[:b.Len()-1]
}

// isObject says whether s is a JSON object and nothing else.
func isObject(s string) bool {
	return strings.HasPrefix(strings.TrimLeft(s, " \t\r\n"), "{") && utf8.ValidString(s) && json.Valid([]byte(s))
}

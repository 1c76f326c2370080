package anthropic

import (
	"bytes"
	"encoding/json"
	"slices"
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

// duplicate returns the first key that stands twice at the top of a valid JSON
// object, "" if none does.
func duplicate(body []byte) string {
	var seen []string
	depth, isKey := 0, false
	for i := 0; i < len(body); i++ {
		switch body[i] {
		case '{', '[':
			depth++
			isKey = depth == 1
		case '}', ']':
			depth--
		case ',':
			isKey = depth == 1
		case '"':
			start := i
			for i++; body[i] != '"'; i++ {
				if body[i] == '\\' {
					i++
				}
			}
			if !isKey {
				continue
			}
			isKey = false
			var key string
			if json.Unmarshal(body[start:i+1], &key) != nil {
				continue
			}
			if slices.Contains(seen, key) {
				return key
			}
			seen = append(seen, key)
		}
	}
	return ""
}

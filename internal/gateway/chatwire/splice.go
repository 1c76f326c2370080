package chatwire

import (
	"bytes"
	"errors"
	"unicode/utf8"

	"github.com/fulgur-rl/fulgur/internal/gateway/call"
)

// Field is a value to put at a top-level key of a JSON object.
type Field struct {
	Key   string
	Value []byte // JSON
}

// ErrNotObject is returned for JSON that is not an object.
var ErrNotObject = errors.New("not a JSON object")

// Members lists the top-level members of an object. Keys are in body's memory where they
// have no escapes.
func Members(body []byte) ([]call.Member, error) {
	r := scanner{b: body}
	if r.peek() != '{' {
		return nil, ErrNotObject
	}
	out := make([]call.Member, 0, 16)
	for more := r.enter('}'); more; more = r.next('}') {
		m := call.Member{Key: r.key()}
		m.Start, m.End = r.skip()
		out = append(out, m)
	}
	if r.bad {
		return nil, ErrNotObject
	}
	return out, nil
}

func space(b []byte, i int) int {
	for i < len(b) && (b[i] == ' ' || b[i] == '\n' || b[i] == '\t' || b[i] == '\r') {
		i++
	}
	return i
}

// value returns the end of the JSON value that starts at i, or i.
func value(b []byte, i int) int {
	depth := 0
	for j := i; j < len(b); {
		switch b[j] {
		case '"':
			j = stringEnd(b, j)
			if depth == 0 {
				return j
			}
		case '{', '[':
			depth++
			j++
		case '}', ']':
			if depth == 0 {
				return j
			}
			if depth--; depth == 0 {
				return j + 1
			}
			j++
		case ',', ':', ' ', '\n', '\t', '\r':
			if depth == 0 {
				return j
			}
			j++
		default:
			j++
		}
	}
	return len(b)
}

// stringEnd returns the position behind the string that starts at i.
func stringEnd(b []byte, i int) int {
	for j := i + 1; ; j++ {
		k := bytes.IndexByte(b[j:], '"')
		if k < 0 {
			return len(b)
		}
		j += k
		escapes := 0
		for b[j-1-escapes] == '\\' { // stops at the opening quote
			escapes++
		}
		if escapes%2 == 0 {
			return j + 1
		}
	}
}

// Get returns the raw value of a top-level key of valid JSON (the last one, as
// parsers take it), nil if it is not there.
func Get(body []byte, key string) []byte {
	ms, err := Members(body)
	if err != nil {
		return nil
	}
	return GetAt(body, ms, key)
}

// GetAt is Get for a body whose members are known.
func GetAt(body []byte, ms []call.Member, key string) []byte {
	for i := len(ms) - 1; i >= 0; i-- {
		if ms[i].Key == key {
			return body[ms[i].Start:ms[i].End]
		}
	}
	return nil
}

// Splice returns the valid JSON object body with the given top-level fields set,
// every other byte as it was: key order, spacing, big numbers and odd strings
// survive. New keys are added at the end. body is not changed.
func Splice(body []byte, fields ...Field) ([]byte, error) {
	ms, err := Members(body)
	if err != nil {
		return nil, err
	}
	return SpliceAt(body, ms, fields...), nil
}

// SpliceAt is Splice for a body whose members are known.
func SpliceAt(body []byte, ms []call.Member, fields ...Field) []byte {
	brace := bytes.LastIndexByte(body, '}')
	size := len(body)
	for _, f := range fields {
		size += len(f.Key) + len(f.Value) + 4
	}
	out := call.Room(size)
	at := 0
	done := make([]bool, len(fields))
	for _, m := range ms {
		for i, f := range fields {
			if f.Key != m.Key {
				continue
			}
			out = append(out, body[at:m.Start]...)
			out = append(out, f.Value...)
			at = m.End
			done[i] = true
		}
	}
	out = append(out, body[at:brace]...)
	first := len(ms) == 0
	for i, f := range fields {
		if done[i] {
			continue
		}
		if !first {
			out = append(out, ',')
		}
		first = false
		out = AppendString(out, f.Key)
		out = append(out, ':')
		out = append(out, f.Value...)
	}
	return append(out, body[brace:]...)
}

// Mend returns JSON that every parser takes: the words NaN, Infinity and
// -Infinity, which Python's encoder writes and JSON does not have, are null, and
// what is no UTF-8 is U+FFFD; other bytes stay. It returns body itself if there is
// nothing to do.
func Mend(body []byte) []byte {
	if !utf8.Valid(body) {
		body = bytes.ToValidUTF8(body, []byte("\uFFFD"))
	}
	if !bytes.Contains(body, []byte("NaN")) && !bytes.Contains(body, []byte("Infinity")) {
		return body
	}
	out := make([]byte, 0, len(body))
	for i := 0; i < len(body); {
		if body[i] == '"' {
			end := stringEnd(body, i)
			out = append(out, body[i:end]...)
			i = end
			continue
		}
		n := 0
		for _, w := range [...]string{"NaN", "Infinity", "-Infinity"} {
			if bytes.HasPrefix(body[i:], []byte(w)) {
				n = len(w)
			}
		}
		if n > 0 {
			out = append(out, "null"...)
			i += n
			continue
		}
		out = append(out, body[i])
		i++
	}
	return out
}

// TakeExperts returns an answer or a chunk without the routed_experts of its
// choices, up to the first choice that has some, and those; nil if none has. It
// returns body itself if there is nothing to take.
func TakeExperts(body []byte) (rest, experts []byte) {
	const key = "routed_experts"
	if !bytes.Contains(body, []byte(key)) {
		return body, nil
	}
	choices := Get(body, "choices")
	if len(choices) == 0 || choices[0] != '[' {
		return body, nil
	}
	var out []byte
	at, changed := 0, false
	for i := space(choices, 1); i < len(choices) && choices[i] != ']'; {
		if choices[i] == ',' {
			i = space(choices, i+1)
			continue
		}
		end := value(choices, i)
		if end <= i {
			return body, nil
		}
		if choice, taken := without(choices[i:end], key); experts == nil && taken != nil {
			out = append(append(out, choices[at:i]...), choice...)
			at, changed = end, true
			if string(taken) != "null" {
				experts = taken
			}
		}
		i = space(choices, end)
	}
	if !changed {
		return body, nil
	}
	rest, err := Splice(body, Field{Key: "choices", Value: append(out, choices[at:]...)})
	if err != nil {
		return body, nil
	}
	return rest, experts
}

// without returns an object without a member, and that member's value; nil if
// it has none.
func without(object []byte, key string) (rest, taken []byte) {
	ms, err := Members(object)
	if err != nil {
		return object, nil
	}
	for i, m := range ms {
		if m.Key != key {
			continue
		}
		// From behind the value before, or the brace, to the end of this one; the
		// first member takes the comma behind it along.
		from, to := space(object, 0)+1, m.End
		if i > 0 {
			from = ms[i-1].End
		} else if next := space(object, to); next < len(object) && object[next] == ',' {
			to = next + 1
		}
		rest = append(append(make([]byte, 0, len(object)), object[:from]...), object[to:]...)
		return rest, object[m.Start:m.End]
	}
	return object, nil
}

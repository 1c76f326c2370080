package chatwire

import (
	"encoding/binary"
	"encoding/json"
	"math/bits"
	"strings"
	"unicode/utf16"
	"unicode/utf8"
	"unsafe"

	"github.com/fulgur-rl/fulgur/internal/gateway/call"
)

// textReader reads many long texts of one JSON value, each in one pass.
type textReader struct {
	scanner
	room []byte // for texts with escapes: those of one value share their memory
	torn bool   // a text has bytes that are no UTF-8
}

// plainText reads the string that starts here, as encoding/json does where it is UTF-8.
// It is in b's memory where it has no escapes.
func (r *textReader) plainText() string {
	b, i := r.b, r.i+1
	from, high := i, uint64(0)
	for i+8 <= len(b) {
		x := load(b, i)
		m := ends(x)
		if m != 0 {
			k := bits.TrailingZeros64(m) / 8
			high |= x & (1<<(8*k) - 1)
			i += k
			break
		}
		high |= x
		i += 8
	}
	for ; i < len(b) && b[i] != '"' && b[i] != '\\' && b[i] >= ' '; i++ { // the last bytes
		high |= uint64(b[i])
	}
	if i == len(b) || b[i] < ' ' {
		r.fail()
		return ""
	}
	if b[i] == '"' {
		r.i = i + 1
		r.torn = r.torn || high&highs != 0 && !validUTF8(b[from:i])
		return r.cut(from, i)
	}
	return r.escaped(from, i, high)
}

// ends has the high bit of the first byte of x that is a control character, a quote or a
// backslash.
func ends(x uint64) uint64 { return (x-ones*' ')&^x&highs | zeroes(x^ones*'"') | zeroes(x^ones*'\\') }

// escaped is plainText from the first escape, at i, on.
func (r *textReader) escaped(from, i int, high uint64) string {
	b := r.b
	if len(r.room) < len(b)-from+8 { // the first one: no text is longer than what it is read from
		r.room = call.Room(len(b) - from + 8)[:len(b)-from+8]
	}
	out := r.room
	n := copy(out, b[from:i])
	for i < len(b) {
		if i+8 <= len(b) { // eight bytes are copied, as far as there is no escape in them
			x := load(b, i)
			binary.LittleEndian.PutUint64(out[n:], x)
			m := ends(x)
			if m == 0 {
				high |= x
				i, n = i+8, n+8
				continue
			}
			k := bits.TrailingZeros64(m) / 8
			high |= x & (1<<(8*k) - 1)
			i, n = i+k, n+k
		}
		c := b[i]
		switch {
		case c == '\\':
			if i+1 < len(b) && unescaped[b[i+1]] != 0 {
				out[n] = unescaped[b[i+1]]
				i, n = i+2, n+1
				continue
			}
			if escapeLen(b[i:]) != 6 {
				r.fail()
				return ""
			}
			x := hex4(b[i+2:])
			i += 6
			if utf16.IsSurrogate(x) {
				low := rune(0)
				if escapeLen(b[i:]) == 6 {
					low = hex4(b[i+2:])
				}
				if x = utf16.DecodeRune(x, low); x != utf8.RuneError {
					i += 6
				}
			}
			n += utf8.EncodeRune(out[n:], x)
		case c == '"':
			r.i = i + 1
			r.torn = r.torn || high&highs != 0 && !validUTF8(b[from:i])
			r.room = out[n:]
			return unsafe.String(unsafe.SliceData(out), n)
		case c < ' ':
			r.fail()
			return ""
		default: // the last bytes
			high |= uint64(c)
			out[n] = c
			i, n = i+1, n+1
		}
	}
	r.fail()
	return ""
}

// unescaped is what a letter behind a backslash means.
var unescaped = [256]byte{'"': '"', '\\': '\\', '/': '/', 'b': '\b', 'f': '\f', 'n': '\n', 'r': '\r', 't': '\t'}

// Unquote reads a valid JSON string, as json.Unmarshal does, into memory of its own.
func Unquote(raw []byte) (string, error) {
	r := textReader{scanner: scanner{b: raw}}
	text := r.plainText()
	switch {
	case r.bad || r.torn:
		err := json.Unmarshal(raw, &text)
		return text, err
	case r.room == nil:
		return strings.Clone(text), nil
	}
	return text, nil
}

// hex4 reads the four hexadecimal digits in front of b.
func hex4(b []byte) (r rune) {
	for _, c := range b[:4] {
		switch {
		case c <= '9':
			c -= '0'
		case c <= 'F':
			c -= 'A' - 10
		default:
			c -= 'a' - 10
		}
		r = r<<4 | rune(c)
	}
	return r
}

package tokenizer

import (
	"strings"
	"unicode/utf8"
)

// Decode returns the text of ids, control tokens included. Bytes that are no
// UTF-8 become U+FFFD, one per maximal invalid part (Unicode 15, 3.9, as Rust and
// the WHATWG do); ids that are no tokens are left out.
func (t *Tokenizer) Decode(ids []int32) string {
	n := 0
	for _, id := range ids {
		n += len(t.bytes(id))
	}
	b := make([]byte, 0, n)
	for _, id := range ids {
		b = append(b, t.bytes(id)...)
	}
	return lossy(b)
}

// DecodeText is Decode without special tokens.
func (t *Tokenizer) DecodeText(ids []int32) string {
	var b []byte
	for _, id := range ids {
		if !t.special[id] {
			b = append(b, t.bytes(id)...)
		}
	}
	return lossy(b)
}

func (t *Tokenizer) bytes(id int32) string {
	if id < 0 || int(id) >= len(t.texts) {
		return ""
	}
	return t.texts[id]
}

// lossy returns b as UTF-8, with U+FFFD per maximal invalid part.
func lossy(b []byte) string {
	if utf8.Valid(b) {
		return string(b)
	}
	var out strings.Builder
	out.Grow(len(b) + 8)
	for len(b) > 0 {
		r, n := utf8.DecodeRune(b)
		if r == utf8.RuneError && n == 1 {
			n = invalidPart(b)
			out.WriteString("\uFFFD")
		} else {
			out.Write(b[:n])
		}
		b = b[n:]
	}
	return out.String()
}

// invalidPart returns the length of the maximal invalid part that b starts with.
func invalidPart(b []byte) int {
	lo, hi, size := byte(0x80), byte(0xBF), 0
	switch c := b[0]; {
	case c >= 0xC2 && c <= 0xDF:
		size = 2
	case c >= 0xE0 && c <= 0xEF:
		size = 3
		if c == 0xE0 {
			lo = 0xA0
		} else if c == 0xED {
			hi = 0x9F
		}
	case c >= 0xF0 && c <= 0xF4:
		size = 4
		if c == 0xF0 {
			lo = 0x90
		} else if c == 0xF4 {
			hi = 0x8F
		}
	}
	n := 1
	for n < size && n < len(b) && b[n] >= lo && b[n] <= hi {
		lo, hi = 0x80, 0xBF
		n++
	}
	return n
}

// Stream decodes ids one by one. What it returns is whole characters: bytes that
// may yet become one wait, and so does an invalid part until a valid character
// or Flush follows (as the original's stream does). The pieces joined are
// Decode of all ids.
type Stream struct {
	t       *Tokenizer
	pending []byte
}

// NewStream returns a stream at its beginning.
func (t *Tokenizer) NewStream() *Stream { return &Stream{t: t} }

// Feed takes the next id and returns the text that it completes, often "".
func (s *Stream) Feed(id int32) string {
	text := s.t.bytes(id)
	if len(s.pending) == 0 && utf8.ValidString(text) && !strings.HasSuffix(text, "\uFFFD") {
		return text
	}
	s.pending = append(s.pending, text...)
	if r, _ := utf8.DecodeLastRune(s.pending); r == utf8.RuneError {
		return ""
	}
	return s.Flush()
}

// Flush returns what waits, invalid parts as U+FFFD.
func (s *Stream) Flush() string {
	out := lossy(s.pending)
	s.pending = s.pending[:0]
	return out
}

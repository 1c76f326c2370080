package chatwire

import (
	"encoding/binary"
	"math"
	"math/bits"
	"strconv"
	"unicode/utf8"
	"unsafe"
)

// maxDepth is encoding/json's limit of nesting.
const maxDepth = 10000

// scanner reads JSON in one pass, and checks all that it passes over: what
// encoding/json takes, it takes. Bodies and answers are tens to hundreds of kilobytes,
// there is one of each a call, and to check, to seek and to read one after the other
// took most of a call's time.
//
// It is used in loops:
//
//	for more := s.enter('}'); more; more = s.next('}') {
//		switch s.key() {
//		case "a":
//			… = s.text()
//		default:
//			s.skip()
//		}
//	}
type scanner struct {
	b     []byte // not changed as long as what was read of it is used
	i     int
	depth int
	most  int    // nesting that is taken; 0: maxDepth
	bad   bool   // what was read is no JSON; nothing more is
	high  uint64 // has a high bit where strings may have bytes beyond ASCII
}

const (
	ones  = 0x0101010101010101
	highs = 0x8080808080808080
)

// zeroes has the high bit of each byte of x that is 0, up to the first one (in
// memory's order); those behind it may be wrong.
func zeroes(x uint64) uint64 { return (x - ones) &^ x & highs }

func load(b []byte, i int) uint64 { return binary.LittleEndian.Uint64(b[i:]) }

// cut is the bytes from i to j as a string, in the same memory.
func (s *scanner) cut(i, j int) string { return unsafe.String(unsafe.SliceData(s.b[i:j]), j-i) }

// fail ends the reading.
func (s *scanner) fail() { s.bad, s.i = true, len(s.b) }

// peek passes over white space and returns the byte that follows; 0 at the end.
func (s *scanner) peek() byte {
	for s.i < len(s.b) {
		c := s.b[s.i]
		if c > ' ' || c != ' ' && c != '\n' && c != '\t' && c != '\r' {
			return c
		}
		s.i++
	}
	return 0
}

// ended says whether it all was JSON, with nothing behind it.
func (s *scanner) ended() bool { return s.peek() == 0 && s.i == len(s.b) && !s.bad }

// enter goes into the object or list that starts here, and says whether there is
// anything in it.
func (s *scanner) enter(end byte) bool {
	if s.depth++; s.depth > maxDepth || s.most > 0 && s.depth > s.most {
		s.fail()
		return false
	}
	s.i++
	if s.peek() == end {
		s.i++
		s.depth--
		return false
	}
	return !s.bad
}

// next goes to the next member or element, and says whether there is one.
func (s *scanner) next(end byte) bool {
	switch c := s.peek(); {
	case s.bad:
		return false
	case c == ',':
		s.i++
		return true
	case c == end:
		s.i++
		s.depth--
		return false
	}
	s.fail()
	return false
}

// key reads a member's key, up to its value.
func (s *scanner) key() string {
	if s.peek() != '"' {
		s.fail()
		return ""
	}
	out := s.str()
	if s.peek() != ':' {
		s.fail()
		return ""
	}
	s.i++
	return out
}

// quoted passes over a string, and says where its inside is, and whether it has escapes.
func (s *scanner) quoted() (from, to int, escaped bool) {
	b, i := s.b, s.i+1
	from = i
	for {
		for i+8 <= len(b) {
			x := load(b, i)
			s.high |= x
			// Control characters, quotes, backslashes.
			m := (x-ones*' ')&^x&highs | zeroes(x^ones*'"') | zeroes(x^ones*'\\')
			if m != 0 {
				i += bits.TrailingZeros64(m) / 8
				break
			}
			i += 8
		}
		if i >= len(b) {
			break
		}
		switch c := b[i]; {
		case c == '"':
			s.i = i + 1
			return from, i, escaped
		case c == '\\':
			n := escapeLen(b[i:])
			if n == 0 {
				s.fail()
				return 0, 0, false
			}
			i, escaped = i+n, true
		case c < ' ':
			s.fail()
			return 0, 0, false
		default: // in the last bytes
			s.high |= uint64(c)
			i++
		}
	}
	s.fail()
	return 0, 0, false
}

// escapeLen is the length of the escape in front of b, 0 if it is none.
func escapeLen(b []byte) int {
	if len(b) < 2 {
		return 0
	}
	switch b[1] {
	case '"', '\\', '/', 'b', 'f', 'n', 'r', 't':
		return 2
	case 'u':
		if len(b) < 6 {
			return 0
		}
		for _, c := range b[2:6] {
			if !(c >= '0' && c <= '9' || c >= 'a' && c <= 'f' || c >= 'A' && c <= 'F') {
				return 0
			}
		}
		return 6
	}
	return 0
}

// str reads the string that starts here, as encoding/json does but for bytes that are
// no UTF-8, which stay. It is in b's memory where it has no escapes.
func (s *scanner) str() string {
	start := s.i
	from, to, escaped := s.quoted()
	if !escaped {
		return s.cut(from, to)
	}
	if s.bad {
		return ""
	}
	out, err := Unquote(s.b[start:s.i])
	if err != nil {
		s.fail()
	}
	return out
}

// text is str; "" for a value of another kind.
func (s *scanner) text() string {
	if s.peek() == '"' {
		return s.str()
	}
	s.skip()
	return ""
}

// skip passes over a value and says where it is.
func (s *scanner) skip() (from, to int) {
	c := s.peek()
	from = s.i
	switch c {
	case '"':
		s.quoted()
	case '{':
		for more := s.enter('}'); more; more = s.next('}') {
			if s.peek() != '"' {
				s.fail()
				break
			}
			s.quoted()
			if s.peek() != ':' {
				s.fail()
				break
			}
			s.i++
			s.skip()
		}
	case '[':
		for more := s.enter(']'); more; more = s.next(']') {
			s.skip()
		}
	case 't':
		s.word("true")
	case 'f':
		s.word("false")
	case 'n':
		s.word("null")
	default:
		s.decimal()
	}
	if s.bad {
		return 0, 0
	}
	return from, s.i
}

func (s *scanner) word(w string) {
	if len(s.b)-s.i < len(w) || string(s.b[s.i:s.i+len(w)]) != w {
		s.fail()
		return
	}
	s.i += len(w)
}

// powers are those that a float64 holds exactly.
var powers = [...]float64{1, 1e1, 1e2, 1e3, 1e4, 1e5, 1e6, 1e7, 1e8, 1e9, 1e10, 1e11, 1e12, 1e13, 1e14, 1e15, 1e16, 1e17, 1e18, 1e19, 1e20, 1e21, 1e22}

// number reads the number that starts here. One that is too large is infinite.
func (s *scanner) number() float64 {
	d := s.decimal()
	if !d.whole || d.m >= 1<<53 || d.after >= len(powers) {
		f, _ := strconv.ParseFloat(s.cut(d.start, s.i), 64)
		return f
	}
	return d.near() // both are held exactly, and so one division rounds right
}

// float32 is number rounded once more, to what a log prob is kept as. Numbers of 16
// digits and more, which model servers write, are the same by less than number takes.
func (s *scanner) float32() float32 {
	d := s.decimal()
	if d.whole && d.after < len(powers) {
		// It is off by less than two units in its last place: that matters only near the
		// middle of two float32s, and where these are no full ones.
		f := d.near()
		if rest := math.Float64bits(f) & (1<<29 - 1); d.m < 1<<53 || (rest-(1<<28-4) > 8 && math.Abs(f) > 1e-30 && math.Abs(f) < 1e30) {
			return float32(f)
		}
	}
	f, _ := strconv.ParseFloat(s.cut(d.start, s.i), 64)
	return float32(f)
}

// decimal is a number as it stands there: m with after digits behind the point.
type decimal struct {
	start int
	m     uint64
	after int
	minus bool
	whole bool // m has all digits, and there is no exponent
}

// near is d, rounded at most twice.
func (d *decimal) near() float64 {
	f := float64(d.m) / powers[d.after]
	if d.minus {
		return -f
	}
	return f
}

// decimal passes over the number that starts here.
func (s *scanner) decimal() (d decimal) {
	b, i := s.b, s.i
	d.start = i
	if i < len(b) && b[i] == '-' {
		d.minus = true
		i++
	}
	first := i
	for i < len(b) && b[i]-'0' <= 9 {
		d.m = d.m*10 + uint64(b[i]-'0')
		i++
	}
	digits := i - first
	if digits == 0 || b[first] == '0' && digits > 1 {
		s.fail()
		return decimal{whole: true}
	}
	if i < len(b) && b[i] == '.' {
		i++
		point := i
		for i < len(b) && b[i]-'0' <= 9 {
			d.m = d.m*10 + uint64(b[i]-'0')
			i++
		}
		if d.after = i - point; d.after == 0 {
			s.fail()
			return decimal{whole: true}
		}
	}
	if b[first] == '0' {
		digits = 0 // it takes no room in m
	}
	d.whole = digits+d.after <= 19
	if i < len(b) && b[i]|' ' == 'e' {
		d.whole = false
		if i++; i < len(b) && (b[i] == '+' || b[i] == '-') {
			i++
		}
		exponent := i
		for i < len(b) && b[i]-'0' <= 9 {
			i++
		}
		if i == exponent {
			s.fail()
			return decimal{whole: true}
		}
	}
	s.i = i
	return d
}

// maybe is number; false for a value of another kind.
func (s *scanner) maybe() (f float64, ok bool) {
	if c := s.peek(); c != '-' && c-'0' > 9 {
		s.skip()
		return 0, false
	}
	f = s.number()
	return f, !s.bad
}

// whole is maybe for whole numbers; 0 for what is none.
func (s *scanner) whole() int64 {
	s.peek()
	start := s.i
	f, ok := s.maybe()
	switch {
	case !ok:
		return 0
	case math.Abs(f) < 1<<53:
		return int64(f)
	}
	n, _ := strconv.ParseInt(s.cut(start, s.i), 10, 64)
	return n
}

// utf8 says whether all of it is UTF-8.
func (s *scanner) utf8() bool { return s.high&highs == 0 || validUTF8(s.b) }

// validUTF8 is utf8.Valid, which does not hurry again once it has met a character
// beyond ASCII.
func validUTF8(b []byte) bool {
	for i := 0; i < len(b); {
		if b[i] < utf8.RuneSelf {
			if i+8 <= len(b) {
				if m := load(b, i) & highs; m != 0 {
					i += bits.TrailingZeros64(m) / 8
				} else {
					i += 8
				}
			} else {
				i++
			}
			continue
		}
		r, n := utf8.DecodeRune(b[i:])
		if r == utf8.RuneError && n == 1 {
			return false
		}
		i += n
	}
	return true
}

package chatwire

import (
	"bytes"
	"math"
	"math/bits"
)

// ids reads a list of token ids from 0 to 2^31-1; nil for any other value.
func (s *scanner) ids() []int32 {
	if s.peek() != '[' {
		s.skip()
		return nil
	}
	start := s.i
	if out, ok := s.plainIDs(); ok {
		return out
	}
	s.i = start // in a form that servers do not write: it has to be JSON all the same
	from, to := s.skip()
	if s.bad {
		return nil
	}
	return idList(s.b[from:to])
}

// plainIDs is ids for a list as servers write it. false: by other means.
func (s *scanner) plainIDs() ([]int32, bool) {
	from := s.i + 1
	end := bytes.IndexByte(s.b[from:], ']')
	if end <= 0 {
		return nil, false
	}
	list := s.b[from : from+end]
	out := make([]int32, bytes.Count(list, []byte{','})+1)
	r := idRun{b: s.b, gap: 1, last: ','}
	if comma := bytes.IndexByte(list, ','); comma >= 0 && comma+1 < end && list[comma+1] == ' ' {
		r.gap, r.last = 2, ' '
	}
	// A number starts where the one before it ends, which is known late: two halves side
	// by side take little longer than one.
	n, half := 0, 0
	if comma := bytes.IndexByte(list[end/2:], ','); end > 256 && comma >= 0 {
		half = end/2 + comma + r.gap
		n = bytes.Count(list[:half], []byte{','})
	}
	i, j, ok := r.both(out[:n], out[n:], from, from+half)
	if !ok || i != from+half || j != from+end+r.gap {
		return nil, false
	}
	s.i = from + end + 1
	return out, true
}

// idRun reads ids that are a comma apart, and a space where gap is 2.
type idRun struct {
	b    []byte
	gap  int
	last byte // of the gap
}

// both reads ids from i on into front and from j on, which is behind, into back, and
// returns where the next ones would start.
func (r *idRun) both(front, back []int32, i, j int) (int, int, bool) {
	b, n := r.b, 0
	for n < len(front) && n < len(back)-1 && i < j && j+8 < len(b) {
		x, y := load(b, i)^ones*'0', load(b, j)^ones*'0'
		k, l := digits(x), digits(y)
		if b[i+k] != ',' || b[j+l] != ',' || !plain(x, k) || !plain(y, l) || r.gap > 1 && (b[i+k+1] != ' ' || b[j+l+1] != ' ') {
			break
		}
		front[n], back[n] = int32(number(x, k)), int32(number(y, l))
		i, j = i+k+r.gap, j+l+r.gap
		n++
	}
	i, ok := r.one(front[n:], i)
	if !ok {
		return 0, 0, false
	}
	j, ok = r.one(back[n:], j)
	return i, j, ok
}

// one is both for one list, with ids of any length.
func (r *idRun) one(out []int32, i int) (int, bool) {
	b := r.b
	for n := range out {
		var v uint64
		start := i
		for ; i < len(b) && b[i]-'0' <= 9; i++ {
			if v = v*10 + uint64(b[i]-'0'); v > math.MaxInt32 {
				return 0, false
			}
		}
		if i == start || i == len(b) || b[start] == '0' && i > start+1 {
			return 0, false
		}
		out[n] = int32(v)
		if b[i] == ']' && n == len(out)-1 {
			return i + r.gap, true
		}
		if i += r.gap; i > len(b) || b[i-r.gap] != ',' || b[i-1] != r.last {
			return 0, false
		}
	}
	return i, true
}

// digits is how many digits x begins with, eight bytes to which '0' was added without
// carry.
func digits(x uint64) int { return bits.TrailingZeros64((x+ones*(0x80-10)|x)&highs) / 8 }

// plain says whether n digits of x are a number as JSON has it.
func plain(x uint64, n int) bool { return n == 1 || n > 1 && x&0xFF != 0 }

// number joins the first n digits of x, from 1 to 8, to pairs, fours and eights.
func number(x uint64, n int) uint64 {
	x <<= -8 * n & 63 // the others out
	x = x*10 + x>>8
	return (x&0x000000FF000000FF*(100+1000000<<32) + x>>16&0x000000FF000000FF*(1+10000<<32)) >> 32
}

// idList reads a list, valid JSON, of token ids; nil if there is anything else in it.
func idList(list []byte) []int32 {
	body := list[1:] // up to and with the bracket
	out := make([]int32, 0, bytes.Count(body, []byte{','})+1)
	const none = -1
	n := int64(none)
	for i := range len(body) {
		switch c := body[i]; {
		case c >= '0' && c <= '9':
			if n = max(n, 0)*10 + int64(c-'0'); n > math.MaxInt32 {
				return nil
			}
		case c == ',' || c == ']':
			if n == none {
				if len(out) > 0 || c == ',' {
					return nil
				}
				return out // an empty list
			}
			out = append(out, int32(n))
			n = none
		case c != ' ' && c != '\n' && c != '\t' && c != '\r':
			return nil
		}
	}
	return out
}

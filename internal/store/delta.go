package store

import (
	"bytes"
	"encoding/binary"
	"errors"
	"strings"
	"unsafe"
)

// A delta describes a text by pieces: runs of bytes that are the same in a base,
// and runs of its own. Calls of one conversation repeat what came before, in
// places that can be guessed (the front, the back, behind a changed id), so no
// index of the base is built: what is the same costs a comparison.

// piece is a run of n bytes of a text: at from in its base, or with from own the
// text's own, or from selfAt on at from-selfAt in what comes before in the text itself.
type piece struct{ from, n int }

const (
	own    = -1
	selfAt = maxText // no base is longer
)

// minCopy is the shortest run that is worth naming in place of repeating.
const minCopy = 12

// anchorLen is how many bytes must agree for two texts to be in step again, and
// maxResync how often that is looked for in one section: it bounds the time that
// texts with nothing in common take.
const (
	anchorLen = 24
	maxResync = 64
)

// addPiece appends a run, and joins it to the one before where they meet.
func addPiece(ps []piece, from, n int) []piece {
	if n == 0 {
		return ps
	}
	if from != own && n < minCopy {
		from = own
	}
	if len(ps) > 0 {
		last := &ps[len(ps)-1]
		if from == own && last.from == own || from != own && last.from != own && last.from+last.n == from {
			last.n += n
			return ps
		}
	}
	return append(ps, piece{from, n})
}

// diff appends the pieces of text against base, which lies at offset at of the
// whole base.
func diff(ps []piece, base, text []byte, at int) []piece {
	n := commonPrefix(base, text)
	ps = addPiece(ps, at, n)
	base, text, at = base[n:], text[n:], at+n
	tail := commonSuffix(base, text)
	end := at + len(base) - tail
	base, text = base[:len(base)-tail], text[:len(text)-tail]
	for range maxResync {
		i, j, ok := inStep(base, text)
		if !ok {
			break
		}
		ps = addPiece(ps, own, j)
		base, text, at = base[i:], text[j:], at+i
		n := commonPrefix(base, text)
		ps = addPiece(ps, at, n)
		base, text, at = base[n:], text[n:], at+n
	}
	ps = addPiece(ps, own, len(text))
	return addPiece(ps, end, tail)
}

// inStep finds where base (at i) and text (at j), which differ in their first
// byte, say the same again: it looks for runs of text a little, and then
// further, behind its front.
func inStep(base, text []byte) (i, j int, ok bool) {
	if len(base) < anchorLen {
		return 0, 0, false
	}
	for j = 1; j+anchorLen <= len(text) && j < 1<<12; j = 2*j + 14 {
		within := base[:min(len(base), 2*j+4096)]
		i = bytes.Index(within, text[j:j+anchorLen])
		if i < 0 {
			continue
		}
		for i > 0 && j > 0 && base[i-1] == text[j-1] {
			i, j = i-1, j-1
		}
		return i, j, true
	}
	return 0, 0, false
}

func commonPrefix(a, b []byte) int {
	n := min(len(a), len(b))
	i := 0
	// Blocks are compared by the runtime's vector code.
	for i+256 <= n && bytes.Equal(a[i:i+256], b[i:i+256]) {
		i += 256
	}
	for i < n && a[i] == b[i] {
		i++
	}
	return i
}

func commonSuffix(a, b []byte) int {
	n := min(len(a), len(b))
	i := 0
	for i+256 <= n && bytes.Equal(a[len(a)-i-256:len(a)-i], b[len(b)-i-256:len(b)-i]) {
		i += 256
	}
	for i < n && a[len(a)-1-i] == b[len(b)-1-i] {
		i++
	}
	return i
}

// compose turns pieces against a middle text into pieces against that text's
// own base; middle covers the whole of it.
func compose(ps, middle []piece) []piece {
	out := make([]piece, 0, len(ps)+len(middle))
	for _, p := range ps {
		if p.from == own || p.from >= selfAt {
			out = addPiece(out, p.from, p.n)
			continue
		}
		off, from, left := 0, p.from, p.n // off: where m lies in the middle text
		for _, m := range middle {
			if left == 0 {
				break
			}
			if skip := from - off; skip < m.n {
				n := min(m.n-skip, left)
				if m.from == own || m.from >= selfAt {
					out = addPiece(out, own, n)
				} else {
					out = addPiece(out, m.from+skip, n)
				}
				from, left = from+n, left-n
			}
			off += m.n
		}
	}
	return out
}

// appendPieces appends pieces in a form that apply reads: how many, and each as its
// length (with a bit for a copy) and where a copy starts (relative to the end of the last
// one). What is the text's own follows.
func appendPieces(b []byte, ps []piece) []byte {
	b = binary.AppendUvarint(b, uint64(len(ps)))
	at := 0
	for _, p := range ps {
		if p.from == own {
			b = binary.AppendUvarint(b, uint64(p.n)<<1)
			continue
		}
		b = binary.AppendUvarint(b, uint64(p.n)<<1|1)
		b = binary.AppendVarint(b, int64(p.from-at))
		at = p.from + p.n
	}
	return b
}

var errDelta = errors.New("the delta does not fit its base")

// maxText bounds what a damaged delta may expand to, in bytes.
const maxText = 1 << 30

// readPieces reads the pieces of a delta, and what it has of its own.
func readPieces(delta []byte) (ps []piece, rest []byte, err error) {
	count, w := binary.Uvarint(delta)
	if w <= 0 || count > uint64(len(delta)) {
		return nil, nil, errDelta
	}
	rest = delta[w:]
	ps = make([]piece, 0, count)
	at, size, owned := 0, 0, 0
	for range count {
		v, w := binary.Uvarint(rest)
		if w <= 0 || v>>1 > maxText {
			return nil, nil, errDelta
		}
		rest = rest[w:]
		p := piece{own, int(v >> 1)}
		if v&1 == 1 {
			d, w := binary.Varint(rest)
			if w <= 0 || d > 2*maxText || d < -2*maxText {
				return nil, nil, errDelta
			}
			rest = rest[w:]
			if p.from = at + int(d); p.from < 0 {
				return nil, nil, errDelta
			}
			at = p.from + p.n
		} else {
			owned += p.n
		}
		if size += p.n; size > maxText {
			return nil, nil, errDelta
		}
		ps = append(ps, p)
	}
	if owned != len(rest) {
		return nil, nil, errDelta
	}
	return ps, rest, nil
}

// apply builds the text that delta describes; base is nil for one without.
func apply(base, delta []byte) ([]byte, error) {
	ps, rest, err := readPieces(delta)
	if err != nil {
		return nil, err
	}
	return build(base, rest, ps)
}

// build joins pieces of a base, of rest, which is the text's own, and of the text itself.
func build(base, rest []byte, ps []piece) ([]byte, error) {
	size := 0
	for _, p := range ps {
		if p.from != own && p.from < selfAt && p.from+p.n > len(base) || p.from >= selfAt && p.from-selfAt+p.n > size {
			return nil, errDelta
		}
		size += p.n
	}
	if size == len(rest) {
		return rest, nil // nothing of a base: no copy either
	}
	var out strings.Builder // its memory is not zeroed first
	out.Grow(size)
	for _, p := range ps {
		switch {
		case p.from == own:
			out.Write(rest[:p.n])
			rest = rest[p.n:]
		case p.from >= selfAt:
			out.WriteString(out.String()[p.from-selfAt : p.from-selfAt+p.n])
		default:
			out.Write(base[p.from : p.from+p.n])
		}
	}
	return unsafe.Slice(unsafe.StringData(out.String()), size), nil
}

// applyFront builds the front of the text, from that of its base. need says how
// long it is, as far as can be told from what there is of it.
func applyFront(base, delta []byte, need func([]byte) int) ([]byte, error) {
	ps, rest, err := readPieces(delta)
	if err != nil {
		return nil, err
	}
	var out strings.Builder // its memory is not zeroed first
	out.Grow(len(base) + len(rest))
	front := func() []byte { return unsafe.Slice(unsafe.StringData(out.String()), out.Len()) }
	limit := need(nil)
	for _, p := range ps {
		var from []byte
		switch {
		case p.from == own:
			from, rest = rest[:p.n], rest[p.n:]
		case p.from > len(base):
			return nil, errDelta
		default:
			from = base[p.from:min(len(base), p.from+p.n)]
		}
		// The front may end in the midst of a piece.
		for len(from) > 0 && out.Len() < limit {
			n := min(len(from), limit-out.Len())
			out.Write(from[:n])
			from, limit = from[n:], need(front())
		}
		if out.Len() >= limit {
			return front(), nil
		}
	}
	return nil, errDelta
}

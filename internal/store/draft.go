package store

import (
	"bytes"
	"encoding/binary"
	"hash/maphash"
	"math/bits"
	"slices"
	"strconv"
	"unsafe"

	"github.com/fulgur-rl/fulgur"
)

// The segments of a call's text, in order: its sections (bodyParts), each with its length
// in front, cut where it is likely that a conversation's calls differ. What is the same in
// two calls is found segment by segment.
const (
	segExpertsLen = iota
	segExperts
	segResponseLen
	segResponse // up to the list of prompt ids, where it has one
	segEcho     // the prompt ids as text
	segAnswer   // the response behind them
	segRequestLen
	segFront   // the request up to its messages
	segRequest // and from there
	segSentLen
	segSent
	segTurnsLen
	segSaid  // the messages
	segTurns // tools and reply
	segments
)

// draft is a call that is to be told: the memory of the call itself, in segments.
type draft struct {
	segs    [segments][]byte
	request []byte // segFront and segRequest
	ids     []byte // prompt ids, as 4-byte words
	buf     []byte // what of segs is no memory of the call
	seed    maphash.Seed
	marks   tellMarks
}

// draft makes the draft of a call, which must not change before free.
func (c *codec) draft(call *fulgur.Call) draft {
	t := turns{call.Messages, call.Tools, call.Reply}
	buf, from, to := appendTurns(slices.Grow((*c.said.Get().(*[]byte))[:0], t.size()), &t)
	d := c.cut([bodyParts][]byte{partExperts: call.RoutedExperts, partResponse: call.Response, partRequest: call.Request, partSent: call.Sent, partTurns: buf},
		from, to, idBytes(call.PromptIDs))
	d.buf = buf
	return d
}

// free takes back what a draft has of the codec's.
func (c *codec) free(d *draft) {
	buf := d.buf
	c.said.Put(&buf)
	*d = draft{}
}

// cut makes a draft of sections; messages are from and to where in that of turns.
func (c *codec) cut(parts [bodyParts][]byte, from, to int, ids []byte) draft {
	d := draft{ids: ids, request: parts[partRequest], seed: c.seed}
	lens := make([]byte, 0, 64)
	size := func(part int) []byte {
		at := len(lens)
		lens = binary.AppendUvarint(lens, uint64(len(parts[part])))
		return lens[at:]
	}
	d.segs[segExpertsLen], d.segs[segExperts] = size(partExperts), parts[partExperts]
	d.segs[segResponseLen] = size(partResponse)
	d.segs[segResponse], d.segs[segEcho], d.segs[segAnswer] = cutEcho(parts[partResponse])
	d.segs[segRequestLen] = size(partRequest)
	d.segs[segFront], d.segs[segRequest] = cutFront(parts[partRequest])
	d.segs[segSentLen], d.segs[segSent] = size(partSent), parts[partSent]
	turns := parts[partTurns]
	d.segs[segTurnsLen] = append(size(partTurns), turns[:from]...)
	d.segs[segSaid], d.segs[segTurns] = turns[from:to], turns[to:]
	for i, seg := range d.segs {
		if marked(i) {
			d.marks.segs[i] = mark(d.seed, seg, i == segExperts || i == segRequest || i == segTurns)
		} else {
			d.marks.segs[i].n = len(seg)
		}
	}
	d.marks.ids = mark(d.seed, ids, false)
	return d
}

// cutEcho finds the list of prompt ids in a response.
func cutEcho(response []byte) (front, echo, rest []byte) {
	const key = `"prompt_token_ids":[`
	from := bytes.Index(response, []byte(key))
	if from < 0 {
		return nil, nil, response
	}
	from += len(key)
	n := bytes.IndexByte(response[from:], ']')
	if n < 0 {
		return nil, nil, response
	}
	return response[:from], response[from : from+n], response[from+n:]
}

// cutFront finds where a request's messages begin.
func cutFront(request []byte) (front, rest []byte) {
	for _, key := range [...]string{`"messages":[`, `"input":[`} {
		if at := bytes.Index(request, []byte(key)); at >= 0 {
			return request[:at+len(key)], request[at+len(key):]
		}
	}
	return request, nil
}

// idBytes is ids as 4-byte little-endian words: the same memory, where the machine has
// them so.
func idBytes(ids []int32) []byte {
	if len(ids) == 0 {
		return nil
	}
	if binary.NativeEndian.Uint16([]byte{1, 0}) == 1 {
		return unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(ids))), 4*len(ids))
	}
	return appendInt32s(nil, ids)
}

// block is how many bytes have a hash of their own.
const block = 256

// backBlocks is how many blocks are hashed from the end on too, of what has an end that
// comes again: tools behind the messages, brackets behind rows.
const backBlocks = 64

// marks are what is kept of a text in place of it: the hashes of its blocks, from the
// front (of the last, shorter one too) and from the end. The seed is a secret of the
// process. Only where two texts differ can hashes deceive, in one or two blocks of a
// segment: for a call that is wrong on record, one in 10^18.
type marks struct {
	n           int
	front, back []uint64
}

// tellMarks are the marks of a call's text.
type tellMarks struct {
	segs [segments]marks
	ids  marks
}

// marked says whether a segment is told against another call's. What is sent upstream
// is told against the request.
func marked(seg int) bool {
	switch seg {
	case segExpertsLen, segResponseLen, segRequestLen, segSentLen, segTurnsLen, segSent:
		return false
	}
	return true
}

func mark(seed maphash.Seed, b []byte, ends bool) marks {
	m := marks{n: len(b)}
	if len(b) == 0 {
		return m
	}
	back := 0
	if ends {
		back = min(len(b)/block, backBlocks)
	}
	all := make([]uint64, 0, (len(b)+block-1)/block+back)
	for at := 0; at < len(b); at += block {
		all = append(all, maphash.Bytes(seed, b[at:min(at+block, len(b))]))
	}
	n := len(all)
	for i := range back {
		end := len(b) - i*block
		all = append(all, maphash.Bytes(seed, b[end-block:end]))
	}
	m.front, m.back = all[:n:n], all[n:]
	return m
}

// size is in bytes of memory.
func (m *tellMarks) size() (n int) {
	for i := range m.segs {
		n += 64 + 8*(len(m.segs[i].front)+len(m.segs[i].back))
	}
	return n + 8*(len(m.ids.front)+len(m.ids.back))
}

// shared is how many bytes m begins with as base does.
func (m *marks) shared(seed maphash.Seed, base *marks, b []byte) int {
	i := 0
	for n := min(m.n, base.n) / block; i < n && m.front[i] == base.front[i]; {
		i++
	}
	at := i * block
	if rest := base.n - at; rest > 0 && rest < block && m.n-at >= rest && maphash.Bytes(seed, b[at:at+rest]) == base.front[i] {
		return base.n
	}
	return at
}

// diff appends the pieces of b, whose marks are m, against a base that lies at offset at
// of the whole base. unlike says that much of both was not found in the other.
func (m *marks) diff(ps []piece, seed maphash.Seed, base *marks, b []byte, at int) (out []piece, unlike bool) {
	const much = 2048
	from := m.shared(seed, base, b)
	start := from
	ps = addPiece(ps, at, from)
	most := (min(m.n, base.n) - from) / block
	back := 0
	for back < min(most, len(m.back), len(base.back)) && m.back[back] == base.back[back] {
		back++
	}
	end, baseEnd := m.n-back*block, base.n-back*block
	alone, copied := 0, 0
	for from < end { // what is changed in its place
		k := from / block
		if from%block == 0 && from+block <= min(end, baseEnd) && m.front[k] == base.front[k] {
			ps = addPiece(ps, at+from, block)
			from += block
			copied += block
			continue
		}
		n := min(block-from%block, end-from)
		ps = addPiece(ps, own, n)
		from += n
		alone += n
	}
	unlike = alone >= much && baseEnd-start-copied >= much
	return addPiece(ps, at+baseEnd, back*block), unlike
}

// len is the length of the whole body.
func (m *tellMarks) len() (n int) {
	for i := range m.segs {
		n += m.segs[i].n
	}
	return n
}

// against are the pieces of d against a tip.
func (d *draft) against(x *tip, read func(fulgur.Seq) (text, error)) (body, ids []piece) {
	ids, odd := d.marks.ids.diff(nil, d.seed, &x.marks.ids, d.ids, 0)
	body, unlike := d.bodyAgainst(x, nil)
	if !odd && !unlike || read == nil {
		return body, ids
	}
	base, err := read(x.seq)
	if err != nil || len(base.body) != x.marks.len() || len(base.ids) != x.marks.ids.n {
		return body, ids // it was dropped, or cannot be read: what was found is as true without
	}
	if odd {
		ids = diff(nil, base.ids, d.ids, 0)
	}
	if unlike {
		body, _ = d.bodyAgainst(x, base.body)
	}
	return body, ids
}

// bodyAgainst tells the body segment by segment, by bytes where base, the tip's body, is
// there and by marks alone much was left; unlike says that such a segment is there.
func (d *draft) bodyAgainst(x *tip, base []byte) (ps []piece, unlike bool) {
	at := 0
	for i, seg := range d.segs {
		from := &x.marks.segs[i]
		switch {
		case i == segSent:
			ps = d.sent(ps)
		case !marked(i):
			ps = addPiece(ps, own, len(seg))
		default:
			into := ps
			if base != nil { // what is found may be dropped, and the last piece grows in place
				into = slices.Clone(ps)
			}
			found, odd := d.marks.segs[i].diff(into, d.seed, from, seg, at)
			switch {
			case !odd || i == segAnswer || i == segTurns: // what was sampled is new each time
				ps = found
			case base != nil:
				ps = diff(ps, base[at:at+from.n], seg, at)
			default:
				ps, unlike = found, true
			}
		}
		at += from.n
	}
	return ps, unlike
}

// sent tells what went upstream against the request, which is in the same text.
func (d *draft) sent(ps []piece) []piece {
	at := 0
	for _, seg := range d.segs[:segFront] {
		at += len(seg)
	}
	return diff(ps, d.request, d.segs[segSent], selfAt+at)
}

// alone are the pieces of a call that stands for itself: its prompt ids as text are
// told against the ids.
func (d *draft) alone() told {
	out := told{ids: addPiece(nil, own, len(d.ids)), next: &tip{marks: d.marks}}
	for i, seg := range d.segs {
		switch {
		case i == segSent:
			out.body = d.sent(out.body)
		case i == segEcho && len(seg) > 0 && isTextOf(seg, d.ids):
			out.body = addPiece(out.body, 0, len(seg))
		default:
			out.body = addPiece(out.body, own, len(seg))
		}
	}
	return out
}

// textIDs appends 4-byte words as JSON has them within a list.
func textIDs(b, ids []byte) []byte {
	for i := 0; i+4 <= len(ids); i += 4 {
		if i > 0 {
			b = append(b, ',')
		}
		b = strconv.AppendInt(b, int64(int32(binary.LittleEndian.Uint32(ids[i:]))), 10)
	}
	return b
}

// isTextOf says whether list is what textIDs writes of ids: eight digits at a time,
// without writing them.
func isTextOf(list, ids []byte) bool {
	const zeroes, highs = 0x3030303030303030, 0x8080808080808080
	var buf [16]byte
	i, at := 0, 0
	for ; at+4 <= len(ids); at += 4 {
		if at > 0 {
			if i >= len(list) || list[i] != ',' {
				return false
			}
			i++
		}
		id := binary.LittleEndian.Uint32(ids[at:])
		if id >= 10_000_000 || i+8 > len(list) { // long, negative, or the last of them
			text := strconv.AppendInt(buf[:0], int64(int32(id)), 10)
			if !bytes.HasPrefix(list[i:], text) {
				return false
			}
			i += len(text)
			continue
		}
		x := binary.LittleEndian.Uint64(list[i:]) ^ zeroes
		n := bits.TrailingZeros64((x+0x7676767676767676|x)&highs) / 8
		if n == 0 || n == 8 || n > 1 && list[i] == '0' {
			return false
		}
		// Digits to pairs, fours and eights.
		x <<= 64 - 8*n
		x = x*10 + x>>8
		if (x&0x000000FF000000FF*(100+1000000<<32)+x>>16&0x000000FF000000FF*(1+10000<<32))>>32 != uint64(id) {
			return false
		}
		i += n
	}
	return i == len(list)
}

// own appends what pieces have of the draft's own.
func (d *draft) own(b []byte, ps []piece) []byte {
	seg, off := 0, 0 // where a piece starts
	for _, p := range ps {
		for left := p.n; left > 0; {
			n := min(left, len(d.segs[seg])-off)
			if n == 0 && seg == segments-1 {
				panic("store: the pieces of a call are longer than its text") // rather than go round for ever
			}
			if p.from == own {
				b = append(b, d.segs[seg][off:off+n]...)
			}
			left, off = left-n, off+n
			if off == len(d.segs[seg]) && seg < segments-1 {
				seg, off = seg+1, 0
			}
		}
	}
	return b
}

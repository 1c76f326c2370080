package store

import (
	"bytes"
	"database/sql"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"hash/maphash"
	"math"
	"slices"
	"sync"

	"github.com/fulgur-rl/fulgur"
	"github.com/klauspost/compress/s2"
	"github.com/klauspost/compress/zstd"
)

// codec turns the large parts of a call into columns. It is the one place that
// knows how they are kept: sampled ids and log probs as 4-byte little-endian words;
// prompt ids (words too), and bodies with messages (which repeat them) as deltas of an
// earlier call's (chain.go), compressed.
type codec struct {
	enc  *zstd.Encoder
	dec  *zstd.Decoder
	bufs sync.Pool // *[]byte, of deltas
	said sync.Pool // *[]byte, of messages: much longer ones
	seed maphash.Seed
}

func newCodec() (*codec, error) {
	enc, err := zstd.NewWriter(nil, zstd.WithEncoderLevel(zstd.SpeedFastest), zstd.WithEncoderConcurrency(2),
		zstd.WithWindowSize(1<<19), zstd.WithLowerEncoderMem(true))
	if err != nil {
		return nil, err
	}
	dec, err := zstd.NewReader(nil, zstd.WithDecoderConcurrency(2), zstd.WithDecoderMaxMemory(maxText))
	if err != nil {
		return nil, err
	}
	none := func() any { return new([]byte) }
	return &codec{enc: enc, dec: dec, bufs: sync.Pool{New: none}, said: sync.Pool{New: none}, seed: maphash.MakeSeed()}, nil
}

// callRow is a call as it is stored.
type callRow struct {
	call                                  *fulgur.Call
	num                                   int64
	seq, base                             fulgur.Seq // base: the call that promptIDs and bodies are deltas of, 0 for none
	meta, promptIDs, sampledIDs, logProbs []byte
	bodies                                []byte
}

// callMeta are the fields of a call that have no column: small, and read whole.
type callMeta struct {
	Run          fulgur.RunID     `json:"run,omitempty"` // of a call without a rollout
	Dialect      string           `json:"dialect,omitempty"`
	Model        string           `json:"model,omitempty"`
	Stream       bool             `json:"stream,omitempty"`
	Endpoint     *fulgur.Endpoint `json:"endpoint,omitempty"`
	Spans        []fulgur.Span    `json:"spans,omitempty"`
	Sampling     fulgur.Sampling  `json:"sampling"`
	Usage        *fulgur.Usage    `json:"usage,omitempty"`
	FinishReason string           `json:"finish_reason,omitempty"`
	Error        string           `json:"error,omitempty"`
	Retries      int              `json:"retries,omitempty"`
	Joined       int              `json:"joined,omitempty"`
	Untrainable  []string         `json:"untrainable,omitempty"`
	Auxiliary    string           `json:"auxiliary,omitempty"`
}

// The sections of a call's bodies, in order: what a trainer reads of many calls
// is in front. Bodies are kept as the bytes that came, JSON or not. A record of an
// older binary may have fewer.
const (
	partExperts  = iota // routed experts
	partResponse        // the last one of front
	partRequest
	partSent
	partTurns // messages, tools and reply
	bodyParts
)

// Schema 1 had these.
var oldParts = [...]int{partRequest, partSent, partResponse, partTurns}

type turns struct {
	Messages []fulgur.Message `json:"m,omitempty"`
	Tools    []fulgur.Tool    `json:"t,omitempty"`
	Reply    *fulgur.Message  `json:"r,omitempty"`
}

func (c *codec) encode(call *fulgur.Call) (*callRow, error) {
	row := &callRow{call: call}
	meta := callMeta{Dialect: call.Dialect, Model: call.Model, Stream: call.Stream, Spans: call.Spans, Sampling: call.Sampling, Usage: call.Usage,
		FinishReason: call.FinishReason, Error: call.Error, Retries: call.Retries, Joined: call.Joined, Untrainable: call.Untrainable, Auxiliary: call.Auxiliary}
	if call.Rollout == "" {
		meta.Run = call.Run
	}
	if call.Endpoint != (fulgur.Endpoint{}) {
		ep := call.Endpoint
		ep.Key = "" // never on record
		meta.Endpoint = &ep
	}
	var err error
	if row.meta, err = json.Marshal(meta); err != nil {
		return nil, fmt.Errorf("encoding call %s: %w", call.ID, err)
	}
	row.sampledIDs, row.logProbs = int32s(call.SampledIDs), float32s(call.LogProbs)
	return row, nil
}

// write puts what is told of a call into its row.
func (c *codec) write(row *callRow, o *told, d *draft) {
	row.base = o.base
	// Experts are numbers, in which s2 finds nothing.
	row.bodies = c.pack(d.own(appendPieces(c.buf(), o.body), o.body), o.base == 0 && len(d.segs[segExperts]) == 0)
	row.bodies[0] |= formSelf
	if row.call.PromptIDs != nil {
		row.promptIDs = c.pack(appendOwn(appendPieces(c.buf(), o.ids), o.ids, d.ids), o.base == 0)
	}
}

// appendOwn appends what pieces have of text's own.
func appendOwn(b []byte, ps []piece, text []byte) []byte {
	off := 0
	for _, p := range ps {
		if p.from == own {
			b = append(b, text[off:off+p.n]...)
		}
		off += p.n
	}
	return b
}

// The forms of a packed delta.
const (
	formPlain = 1 + iota
	formS2
	formZstd
)

// formSelf is added to the form of bodies whose pieces may lie in the text itself, and,
// where it stands for itself, in its prompt ids as text (textIDs). Records of binaries
// before it have none.
const formSelf = 0x10

// Under smallDelta bytes, s2 takes a fraction of zstd's time for a few bytes more. Above
// largeDelta zstd took a third of the time that an attempt's first call takes in all: s2
// takes a third of that, for half as much again of one call in many.
const (
	smallDelta = 4 << 10
	largeDelta = 48 << 10
)

// pack compresses a delta, and takes its buffer back; quickly, if it is long and that is
// asked for.
func (c *codec) pack(plain []byte, quick bool) []byte {
	defer c.put(plain)
	var out []byte
	switch n := len(plain); {
	case n < 64:
		return append(append(make([]byte, 0, n+1), formPlain), plain...)
	case n < smallDelta, n > largeDelta && quick:
		scratch := slices.Grow(c.buf(), s2.MaxEncodedLen(n))
		enc := s2.Encode(scratch[:cap(scratch)], plain)
		out = append(append(make([]byte, 0, len(enc)+1), formS2), enc...)
		c.put(scratch)
	default:
		out = c.enc.EncodeAll(plain, append(make([]byte, 0, n/3+64), formZstd))
	}
	if len(out) > len(plain) {
		out = append(append(out[:0], formPlain), plain...)
	}
	return out
}

// unpack builds the prompt ids that pack was given the delta of, from those of its base.
func (c *codec) unpack(base, packed []byte) ([]byte, error) {
	delta, err := c.expand(packed)
	if err != nil {
		return nil, err
	}
	return apply(base, delta)
}

// bodyBase is what the pieces of a row's delta lie in: its base, or, for one that stands
// for itself, its prompt ids as text.
func bodyBase(cols *columns, base, delta []byte, ids func() ([]byte, error)) ([]byte, error) {
	if cols.base.Int64 != 0 || cols.bodies[0]&formSelf == 0 {
		return base, nil
	}
	ps, _, err := readPieces(delta)
	if err != nil || !slices.ContainsFunc(ps, func(p piece) bool { return p.from != own && p.from < selfAt }) {
		return nil, err
	}
	words, err := ids()
	if err != nil || len(words) > maxText/4 {
		return nil, errors.Join(err, errDelta)
	}
	return textIDs(make([]byte, 0, 2*len(words)), words), nil
}

// expand undoes the compression of a delta.
func (c *codec) expand(packed []byte) ([]byte, error) {
	if len(packed) == 0 {
		return nil, errDelta
	}
	delta, err := packed[1:], error(nil)
	switch packed[0] &^ formSelf {
	case formPlain:
		delta = bytes.Clone(delta) // of a row that is read over
	case formS2:
		var n int
		if n, err = s2.DecodedLen(delta); err == nil && n > maxText {
			err = errDelta
		}
		if err == nil {
			delta, err = s2.Decode(nil, delta)
		}
	case formZstd:
		delta, err = c.dec.DecodeAll(delta, nil)
	default:
		err = fmt.Errorf("form %d is unknown: a newer fulgur wrote it", packed[0])
	}
	return delta, err
}

// readFront is read for the sections up to the response alone, from those of the
// base.
func (c *codec) readFront(cols *columns, base []byte) (front []byte, err error) {
	if !cols.base.Valid {
		body, err := c.dec.DecodeAll(cols.bodies, nil)
		if err != nil {
			return nil, err
		}
		parts, err := sections(body)
		response := parts[slices.Index(oldParts[:], partResponse)]
		return append(binary.AppendUvarint([]byte{0}, uint64(len(response))), response...), err
	}
	delta, err := c.expand(cols.bodies)
	if err != nil {
		return nil, err
	}
	base, err = bodyBase(cols, base, delta, func() ([]byte, error) { return c.unpack(nil, cols.prompt) })
	if err != nil {
		return nil, err
	}
	return applyFront(base, delta, frontLen)
}

// frontLen is how long the sections up to the response are, as far as b's front
// says: one byte more than there is, where its end tells nothing yet.
func frontLen(b []byte) (n int) {
	for range partResponse + 1 {
		size, w := binary.Uvarint(b[min(n, len(b)):])
		switch {
		case w == 0:
			return max(n, len(b)) + 1
		case w < 0 || size > maxText:
			return len(b) // damaged: sections says so
		}
		n += w + int(size)
	}
	return n
}

func (c *codec) buf() []byte { return (*c.bufs.Get().(*[]byte))[:0] }

func (c *codec) put(b []byte) { c.bufs.Put(&b) }

// text is what is told of a call against another: its bodies, section after section, and
// its prompt ids as 4-byte words.
type text struct{ body, ids []byte }

// columns are the large columns of a call. base is NULL where they are in the
// form of schema 1: ids as they are, bodies as one zstd frame.
type columns struct {
	base                                 sql.NullInt64
	meta, prompt, sampled, probs, bodies sql.RawBytes
}

// read builds the text of a row from that of its base.
func (c *codec) read(cols *columns, base text) (t text, err error) {
	if !cols.base.Valid {
		t.ids = bytes.Clone(cols.prompt)
		t.body, err = c.dec.DecodeAll(cols.bodies, nil)
		return t, err
	}
	if cols.prompt != nil {
		if t.ids, err = c.unpack(base.ids, cols.prompt); err != nil {
			return t, err
		}
	}
	delta, err := c.expand(cols.bodies)
	if err != nil {
		return t, err
	}
	from, err := bodyBase(cols, base.body, delta, func() ([]byte, error) { return t.ids, nil })
	if err == nil {
		t.body, err = apply(from, delta)
	}
	return t, err
}

// decode fills the large parts of call, which then share the memory of t, and of
// the messages of a call before where they are the same.
func (c *codec) decode(call *fulgur.Call, cols *columns, t text, before []fulgur.Message) error {
	if err := c.decodeSmall(call, cols); err != nil {
		return err
	}
	if len(t.ids)%4 != 0 {
		return fmt.Errorf("decoding call %s: the length of its prompt ids is no multiple of 4", call.ID)
	}
	if call.PromptIDs = nil; cols.prompt != nil {
		call.PromptIDs = fromInt32s(t.ids)
	}
	parts, err := sections(t.body)
	if err != nil {
		return fmt.Errorf("decoding the bodies of call %s: %w", call.ID, err)
	}
	if !cols.base.Valid {
		old := parts
		parts = [bodyParts][]byte{}
		for i, p := range oldParts {
			parts[p] = old[i]
		}
	}
	call.Request, call.Sent, call.Response, call.RoutedExperts = parts[partRequest], parts[partSent], parts[partResponse], parts[partExperts]
	said, err := readTurns(parts[partTurns], before)
	if err != nil {
		return fmt.Errorf("decoding the messages of call %s: %w", call.ID, err)
	}
	call.Messages, call.Tools, call.Reply = said.Messages, said.Tools, said.Reply
	return nil
}

// decodeSmall fills what is in columns of its own.
func (c *codec) decodeSmall(call *fulgur.Call, cols *columns) error {
	var m callMeta
	if err := json.Unmarshal(cols.meta, &m); err != nil {
		return fmt.Errorf("decoding call %s: %w", call.ID, err)
	}
	if call.Rollout == "" {
		call.Run = m.Run
	}
	call.Dialect, call.Model, call.Stream, call.Spans, call.Sampling, call.Usage = m.Dialect, m.Model, m.Stream, m.Spans, m.Sampling, m.Usage
	call.FinishReason, call.Error, call.Retries, call.Joined, call.Untrainable, call.Auxiliary = m.FinishReason, m.Error, m.Retries, m.Joined, m.Untrainable, m.Auxiliary
	if m.Endpoint != nil {
		call.Endpoint = *m.Endpoint
	}
	if len(cols.sampled)%4+len(cols.probs)%4 != 0 {
		return fmt.Errorf("decoding call %s: the length of its sampled ids or log probs is no multiple of 4", call.ID)
	}
	call.SampledIDs, call.LogProbs = fromInt32s(cols.sampled), fromFloat32s(cols.probs)
	return nil
}

// sections cuts a body into its parts; nil for an empty one.
func sections(body []byte) (parts [bodyParts][]byte, err error) {
	for i := 0; i < bodyParts && len(body) > 0; i++ {
		n, w := binary.Uvarint(body)
		if w <= 0 || n > uint64(len(body)-w) {
			return parts, fmt.Errorf("section %d is cut", i)
		}
		if n > 0 {
			parts[i] = body[w : w+int(n) : w+int(n)]
		}
		body = body[w+int(n):]
	}
	return parts, nil
}

// located is a text that was read, as a draft: the next call of its attempt can be told
// against it.
func (c *codec) located(t text) (draft, error) {
	parts, err := sections(t.body)
	if err != nil {
		return draft{}, err
	}
	from, to := 0, 0
	r := &cutter{b: parts[partTurns]}
	if len(r.b) > 0 && r.b[0] == turnsFormat {
		all := len(r.b)
		r.b = r.b[1:]
		n := r.count()
		from = all - len(r.b)
		for ; n > 0 && !r.bad; n-- {
			r.message(&fulgur.Message{})
		}
		if to = all - len(r.b); r.bad {
			return draft{}, errTurns
		}
	}
	d := c.cut(parts, from, to, t.ids)
	at := t.body
	for _, seg := range d.segs {
		if !bytes.HasPrefix(at, seg) {
			return draft{}, errDelta // of an older binary, with fewer sections, or of none of ours
		}
		at = at[len(seg):]
	}
	if len(at) > 0 {
		return draft{}, errDelta
	}
	return d, nil
}

// nil and empty differ: no ids is not the same as an empty list of them.
func int32s(v []int32) []byte {
	if v == nil {
		return nil
	}
	return appendInt32s(make([]byte, 0, 4*len(v)), v)
}

func appendInt32s(b []byte, v []int32) []byte {
	b = slices.Grow(b, 4*len(v))
	for _, x := range v {
		b = binary.LittleEndian.AppendUint32(b, uint32(x))
	}
	return b
}

func fromInt32s(b []byte) []int32 {
	if b == nil {
		return nil
	}
	out := make([]int32, len(b)/4)
	for i := range out {
		out[i] = int32(binary.LittleEndian.Uint32(b[4*i:]))
	}
	return out
}

func float32s(v []float32) []byte {
	if v == nil {
		return nil
	}
	out := make([]byte, 4*len(v))
	for i, x := range v {
		binary.LittleEndian.PutUint32(out[4*i:], math.Float32bits(x))
	}
	return out
}

func fromFloat32s(b []byte) []float32 {
	if b == nil {
		return nil
	}
	out := make([]float32, len(b)/4)
	for i := range out {
		out[i] = math.Float32frombits(binary.LittleEndian.Uint32(b[4*i:]))
	}
	return out
}

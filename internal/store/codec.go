package store

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"math"
	"sync"

	"github.com/fulgur-rl/fulgur"
	"github.com/klauspost/compress/zstd"
)

// codec turns the large parts of a call into columns. It is the one place that
// knows how they are kept: ids and log probs as 4-byte little-endian words,
// bodies and messages as one zstd frame, for the messages repeat the bodies.
type codec struct {
	enc  *zstd.Encoder
	dec  *zstd.Decoder
	bufs sync.Pool // *[]byte, the plain text of bodies
}

// maxBodies bounds what a damaged or hostile frame may expand to.
const maxBodies = 1 << 30

func newCodec() (*codec, error) {
	enc, err := zstd.NewWriter(nil, zstd.WithEncoderLevel(zstd.SpeedFastest), zstd.WithEncoderConcurrency(2),
		zstd.WithWindowSize(1<<19), zstd.WithLowerEncoderMem(true))
	if err != nil {
		return nil, err
	}
	dec, err := zstd.NewReader(nil, zstd.WithDecoderConcurrency(2), zstd.WithDecoderMaxMemory(maxBodies))
	if err != nil {
		return nil, err
	}
	return &codec{enc: enc, dec: dec, bufs: sync.Pool{New: func() any { return new([]byte) }}}, nil
}

// callRow is a call as it is stored.
type callRow struct {
	call                                  *fulgur.Call
	num                                   int64
	seq                                   fulgur.Seq
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
	Untrainable  []string         `json:"untrainable,omitempty"`
	Auxiliary    string           `json:"auxiliary,omitempty"`
}

// bodyParts are the sections of a call's bodies, in the order of the frame.
// Bodies are kept as the bytes that came, JSON or not.
const bodyParts = 4 // request, sent, response, messages with tools and reply

type turns struct {
	Messages []fulgur.Message `json:"m,omitempty"`
	Tools    []fulgur.Tool    `json:"t,omitempty"`
	Reply    *fulgur.Message  `json:"r,omitempty"`
}

func (c *codec) encode(call *fulgur.Call) (*callRow, error) {
	row := &callRow{call: call}
	meta := callMeta{Dialect: call.Dialect, Model: call.Model, Stream: call.Stream, Spans: call.Spans, Sampling: call.Sampling, Usage: call.Usage,
		FinishReason: call.FinishReason, Error: call.Error, Retries: call.Retries, Untrainable: call.Untrainable, Auxiliary: call.Auxiliary}
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
	t := appendTurns(nil, &turns{call.Messages, call.Tools, call.Reply})
	row.promptIDs, row.sampledIDs, row.logProbs = int32s(call.PromptIDs), int32s(call.SampledIDs), float32s(call.LogProbs)
	buf := c.bufs.Get().(*[]byte)
	defer c.bufs.Put(buf)
	plain := (*buf)[:0]
	for _, p := range [bodyParts][]byte{call.Request, call.Sent, call.Response, t} {
		plain = binary.AppendUvarint(plain, uint64(len(p)))
		plain = append(plain, p...)
	}
	*buf = plain
	row.bodies = c.enc.EncodeAll(plain, make([]byte, 0, len(plain)/3+64))
	return row, nil
}

// decode fills the large parts of call.
func (c *codec) decode(call *fulgur.Call, meta, prompt, sampled, probs, bodies []byte) error {
	var m callMeta
	if err := json.Unmarshal(meta, &m); err != nil {
		return fmt.Errorf("decoding call %s: %w", call.ID, err)
	}
	if call.Rollout == "" {
		call.Run = m.Run
	}
	call.Dialect, call.Model, call.Stream, call.Spans, call.Sampling, call.Usage = m.Dialect, m.Model, m.Stream, m.Spans, m.Sampling, m.Usage
	call.FinishReason, call.Error, call.Retries, call.Untrainable, call.Auxiliary = m.FinishReason, m.Error, m.Retries, m.Untrainable, m.Auxiliary
	if m.Endpoint != nil {
		call.Endpoint = *m.Endpoint
	}
	if len(prompt)%4+len(sampled)%4+len(probs)%4 != 0 {
		return fmt.Errorf("decoding call %s: the length of its ids or log probs is no multiple of 4", call.ID)
	}
	call.PromptIDs, call.SampledIDs, call.LogProbs = fromInt32s(prompt), fromInt32s(sampled), fromFloat32s(probs)
	plain, err := c.dec.DecodeAll(bodies, nil)
	if err != nil {
		return fmt.Errorf("decoding the bodies of call %s: %w", call.ID, err)
	}
	var parts [bodyParts][]byte
	for i := range parts {
		n, w := binary.Uvarint(plain)
		if w <= 0 || n > uint64(len(plain)-w) {
			return fmt.Errorf("decoding the bodies of call %s: section %d is cut", call.ID, i)
		}
		if n > 0 {
			parts[i] = plain[w : w+int(n) : w+int(n)]
		}
		plain = plain[w+int(n):]
	}
	call.Request, call.Sent, call.Response = parts[0], parts[1], parts[2]
	t, err := readTurns(parts[3])
	if err != nil {
		return fmt.Errorf("decoding the messages of call %s: %w", call.ID, err)
	}
	call.Messages, call.Tools, call.Reply = t.Messages, t.Tools, t.Reply
	return nil
}

// nil and empty differ: no ids is not the same as an empty list of them.
func int32s(v []int32) []byte {
	if v == nil {
		return nil
	}
	out := make([]byte, 4*len(v))
	for i, x := range v {
		binary.LittleEndian.PutUint32(out[4*i:], uint32(x))
	}
	return out
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
